//! Captures the stacks of all ranks of a job.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use ddp_doctor_host::sys;
use ddp_doctor_node::stack_reader::{self, native::FunctionCache};
use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_proto::v1;
use prost::Message;

use super::find::RankProcess;
use super::outside::{self, Question};
use super::sleep::ProcessorClocks;

/// Time limit for the capture of one process: a device that does not respond can keep its memory map locked.
const MAX_CAPTURE: Duration = Duration::from_secs(2);
/// Time limit on a host whose processors are all busy.
const MAX_BUSY_CAPTURE: Duration = Duration::from_secs(20);

/// One capture of all ranks, in their order.
pub type StackRound = Vec<v1::Stacks>;

/// Captures the stacks of all ranks at once. No rank is stopped. `cache` caches the functions of files.
#[must_use]
pub fn capture_round(ranks: &[RankProcess], cache: &Arc<FunctionCache>) -> StackRound {
    if ranks.iter().any(|it| outside::is_of_another_user(it.pid)) {
        let processes: Vec<(u32, u64)> = ranks.iter().map(|it| (it.pid, it.start_ticks)).collect();
        return of_others(&processes);
    }
    thread::scope(|scope| {
        let capture = |it: &RankProcess| capture_own(it.pid, it.start_ticks, Arc::clone(cache));
        let captures: Vec<_> = ranks.iter().map(|it| scope.spawn(move || capture(it))).collect();
        captures.into_iter().map(|it| it.join().unwrap_or_default()).collect()
    })
}

/// Captures the stacks of one process.
#[must_use]
pub fn capture(pid: u32, start_ticks: u64, cache: &FunctionCache) -> v1::Stacks {
    if outside::is_of_another_user(pid) {
        return of_others(&[(pid, start_ticks)]).pop().unwrap_or_default();
    }
    stack_reader::capture(pid, start_ticks, cache)
}

/// The stacks of processes of other users, with these start times.
fn of_others(processes: &[(u32, u64)]) -> StackRound {
    let questions: Vec<(u32, Question)> = processes
        .iter()
        .map(|&(pid, start_ticks)| (pid, Question::Stacks { start_ticks }))
        .collect();
    let answers = outside::ask(&questions, MAX_CAPTURE);
    let stacks = answers.into_iter().map(|it| v1::Stacks::decode(&it?[..]).ok());
    stacks.map(|it| it.unwrap_or_else(late)).collect()
}

/// The stacks of a process, and how long its threads have been asleep.
pub(super) fn stacks_of(pid: u32, start_ticks: u64, cache: &FunctionCache) -> v1::Stacks {
    let mut stacks = stack_reader::capture(pid, start_ticks, cache);
    let mut clocks = ProcessorClocks::default();
    for thread in stacks.threads.iter_mut().filter(|thread| thread.state != "R") {
        let asleep = clocks.asleep(pid, thread.tid);
        thread.asleep_ns = asleep.and_then(|it| u64::try_from(it.as_nanos()).ok());
    }
    stacks
}

fn capture_own(pid: u32, start_ticks: u64, cache: Arc<FunctionCache>) -> v1::Stacks {
    let capture = move || stacks_of(pid, start_ticks, &cache);
    let captured = sys::within_unless_busy(MAX_CAPTURE, MAX_BUSY_CAPTURE, capture);
    captured.unwrap_or_else(late)
}

/// The result for a process that could not be read in time.
fn late() -> v1::Stacks {
    v1::Stacks {
        unix_ns: Timestamp::now().0,
        trouble: format!("its memory could not be read within {} s", MAX_CAPTURE.as_secs()),
        ..v1::Stacks::default()
    }
}
