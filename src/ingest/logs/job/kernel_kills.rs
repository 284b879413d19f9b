//! Processes that the kernel killed for lack of memory. In a container, a process has another id than for the kernel.

use std::sync::Arc;
use std::time::Duration;

use ddp_doctor_diagnosis::event::NoteText;
use ddp_doctor_diagnosis::model::libc_signal::KILL;
use ddp_doctor_proto::report::Timestamp;

use super::unidentified_processes::{LESS_MEMORY, name};
use super::{LoggedJob, Raised, Rank, Topic};
use crate::logs::facts::{ExitStatus, Subject};

/// Beginnings of names of processes that may be those of ranks. The kernel keeps 15 letters.
const NAMES: [&str; 6] =
    ["python", "pt_main_thread", "VLLM::Worker", "ray::", "sglang", "torchrun"];
/// Maximum number of kills that are kept.
const MAX_KILLS: usize = 256;
/// Maximum time between a kill and the end of its process, in other time zones.
const MAX_APART: Duration = Duration::from_secs(15 * 3600);

/// How PyTorch reports that the worker of a data loader was killed.
const LOST_LOADER: [&str; 2] = ["DataLoader worker (pid", "is killed by signal: Killed"];

/// A process that the kernel killed.
#[derive(Debug)]
pub(super) struct KernelKill {
    who: Subject,
    name: Arc<str>,
    /// When, as the line of the kernel reads.
    on: Option<Timestamp>,
    at: Timestamp,
}

impl LoggedJob {
    /// Takes the kill of a process that the text does not identify otherwise.
    pub(super) fn killed_by_kernel(
        &mut self,
        who: &Subject,
        name: &Arc<str>,
        on: Option<Timestamp>,
        at: Timestamp,
    ) {
        if self.kernel_kills.len() < MAX_KILLS {
            let (who, name) = (who.clone(), Arc::clone(name));
            self.kernel_kills.push(KernelKill { who, name, on, at });
        }
    }

    /// Takes the only process that the kernel killed as the only rank that was killed by an unknown sender. Others
    /// are noted.
    pub(super) fn assign_kernel_kills(&mut self) {
        let mut kills = std::mem::take(&mut self.kernel_kills);
        // The kernel prints two lines, of which one names the task.
        kills.retain(|it| it.who.pid.is_none_or(|pid| !self.killed_pids.contains(&pid)));
        let end = |rank: &Rank| {
            let end = rank.ended.or(rank.failed);
            let may_be = |how: ExitStatus| how == ExitStatus::default() || how.signal == Some(KILL);
            let is_open = rank.stopped.is_none() && rank.killed_for_memory.is_none();
            end.filter(|(_, how)| is_open && may_be(*how)).map(|it| it.0)
        };
        let ranks = self.ranks.iter().filter_map(|(&rank, known)| Some((rank, end(known)?)));
        if let ([kill], [(rank, ended)]) = (&kills[..], &ranks.collect::<Vec<_>>()[..])
            && kill.may_be_of_a_rank()
            && kill.on.is_none_or(|on| Duration::from_nanos(on.0.abs_diff(ended.0)) <= MAX_APART)
        {
            self.ranks.entry(*rank).or_default().killed_for_memory = Some(kill.at);
            return;
        }
        for kill in kills {
            let called = match &*kill.name {
                "" => String::new(),
                name => format!(" ({name})"),
            };
            let text = format!("the kernel killed {}{called} for lack of memory", name(&kill.who));
            self.note(Topic::End, NoteText::new(text, LESS_MEMORY));
        }
    }
}

impl LoggedJob {
    /// States in the exception of a rank that the container killed the worker of its data loader for lack of memory: it is
    /// the only rank of a pod with that exception.
    pub(super) fn join_killed_loaders(&mut self) {
        let mut ends = std::mem::take(&mut self.unidentified_ends);
        ends.retain(|(who, how)| {
            let pod = who.label.worker.filter(|_| how.for_memory);
            pod.is_none_or(|pod| !self.join_killed_loader(&pod.name.to_string()))
        });
        self.unidentified_ends = ends;
    }

    fn join_killed_loader(&mut self, pod: &str) -> bool {
        let is_lost = |it: &&mut Raised| LOST_LOADER.iter().all(|part| it.text.contains(part));
        let names = &self.names;
        let on_pod = self.ranks.iter_mut().filter(|(rank, _)| names.is_on(**rank, pod));
        let raised = on_pod.filter_map(|(_, rank)| rank.raised.iter_mut().find(is_lost));
        let mut lost: Vec<&mut Raised> = raised.collect();
        let [only] = &mut lost[..] else { return false };
        let (class, message) = only.text.split_once(": ").unwrap_or(("RuntimeError", &*only.text));
        let text =
            format!("{class}: its container exceeded its memory limit (OOMKilled): {message}");
        only.text = text.into();
        true
    }
}

impl KernelKill {
    fn may_be_of_a_rank(&self) -> bool {
        NAMES.iter().any(|it| self.name.starts_with(it))
    }
}
