//! JAX's coordination service: barriers that timed out, and tasks that stopped sending heartbeats.

use ddp_doctor_proto::Op;
use ddp_doctor_proto::report::Timestamp;

use super::of_rank;
use crate::logs::facts::{ExitStatus, Facts, Statement, Subject};
use crate::logs::lines::Line;
use crate::logs::scan::{after, rank, world_size_after};

/// Heads of the lists of tasks.
const TIMED_OUT: &str = "imed out task names:";
const SILENT: &str = "stopped sending heartbeats):";
/// The task that waited, and the number of those that came.
const FIRST: &str = "first task at the barrier: ";
const REACHED: &str = "tasks that reached the barrier: ";
/// What precedes the number of a task, which is its rank.
const TASK: &str = "/task:";
/// What precedes and follows the task in a line about one that stopped.
const STOPPED: (&str, &str) = ("Task /job:", " heartbeat timeout");
/// Maximum number of tasks of a list.
const MAX_LIST: usize = 4096;

/// A list of tasks that is being read.
#[derive(Debug, Default)]
pub(super) struct Tasks {
    first: Option<u32>,
    list: Option<List>,
}

#[derive(Clone, Copy, Debug)]
enum List {
    TimedOut,
    Silent,
}

impl Tasks {
    /// Reads one line of a process.
    pub(super) fn read(&mut self, line: &Line<'_>, at: Timestamp, facts: &mut Facts) {
        let text = line.text;
        if self.list.is_none() && !text.contains("task") {
            return;
        }
        if let Some(rest) = after(text, STOPPED.0)
            && let Some((name, _)) = rest.split_once(STOPPED.1)
            && let Some(rank) = task(name)
        {
            let what = Statement::Ended(ExitStatus::default());
            facts.add(of_rank(line, Some(rank)), at, what);
        }
        if let Some(reached) = after(text, REACHED) {
            facts.worlds.extend(world_size_after(reached, "/"));
        }
        if let Some(first) = after(text, FIRST) {
            self.first = task(first);
        }
        let head = [(TIMED_OUT, List::TimedOut), (SILENT, List::Silent)];
        let begun = head.iter().find_map(|(head, list)| Some((after(text, head)?, *list)));
        let (names, list) = match (begun, self.list) {
            (Some(begun), _) => begun,
            (None, Some(list)) if text.trim_start().starts_with("/job:") => (text, list),
            _ => {
                self.list = None;
                return;
            }
        };
        self.list = Some(list);
        let tasks = names.split("/job:").skip(1).take(MAX_LIST).filter_map(task);
        for task in tasks {
            match list {
                List::TimedOut => {
                    let what =
                        Statement::Misses { op: Op::Barrier, ranks: vec![task], waited_ms: 1 };
                    let who = Subject { rank: self.first, ..Subject::default() };
                    facts.add(who, at, what);
                }
                List::Silent => {
                    let what = Statement::Ended(ExitStatus::default());
                    facts.add(of_rank(line, Some(task)), at, what);
                }
            }
        }
    }
}

/// The number in "/job:worker/replica:0/task:3".
fn task(name: &str) -> Option<u32> {
    rank(after(name, TASK)?)
}
