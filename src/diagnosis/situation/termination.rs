//! Ends of ranks that are not faults: a launcher ends them by SIGTERM and starts them again when a node joins;
//! a program kills its workers once they are done.

use std::time::Duration;

use ddp_doctor_proto::report::{Exit, Timestamp};

use crate::model::{Process, libc_signal};
use crate::situation::stall::Stall;
use crate::situation::stall_origins::Stalls;

impl Stalls<'_> {
    /// When the end of a process shows that something went wrong; `None`: it does not.
    pub(crate) fn end_is_fault_at(&self, process: &Process) -> Option<Timestamp> {
        let (attempts, timing) = (&self.attempts, &self.model.timing);
        if self.is_unneeded_end(process) {
            let ended_well = self.model.ended.is_some() && !self.model.has_failed;
            if ended_well {
                return None;
            }
            if self.model.has_left_its_groups(process) {
                // Whether a status was an error is up to the program that started the rank.
                return self.model.over().filter(|_| has_failed_status(process));
            }
            if !is_terminated(process) && self.has_ended_whole(process) {
                let at = process.end?.at.plus(timing.restart);
                return Some(self.model.over().map_or(at, |over| over.min(at)));
            }
        }
        let time = match attempts.all_requested(process) {
            None => return Some(Timestamp::default()),
            Some(_) if attempts.is_over(attempts.of_process(process)) => return None,
            Some(true) => timing.restart,
            Some(false) => timing.termination,
        };
        let at = process.end?.at.plus(time);
        Some(self.model.over().map_or(at, |over| over.min(at)))
    }

    /// Whether a process was killed, or ended in an unknown way or with a status after it had left its groups, while no
    /// rank needed it: no rank of the job waits, except for its next work, and none failed by itself. Programs end their
    /// workers in these ways.
    fn is_unneeded_end(&self, process: &Process) -> bool {
        let Some(end) = process.end else { return false };
        let is_killed = end.exit.signal == Some(libc_signal::KILL) || is_terminated(process);
        let is_unknown = end.exit == Exit::default() && process.unwatched.is_none();
        let kills = [end.oom_kills.in_cgroup, end.oom_kills.on_host];
        // A launcher that starts the ranks again took the status for an error.
        let attempts = &self.attempts;
        let has_left = |other: &Process| {
            has_failed_status(other)
                && self.model.has_left_its_groups(other)
                && !attempts.is_over(attempts.of_process(other))
        };
        let failed = |other: &Process| {
            let raised = other.exceptions.iter().any(|it| !it.asks_to_end());
            let exit = other.end.map(|end| end.exit).unwrap_or_default();
            let by_itself = has_failed_status(other) && !has_left(other)
                || exit
                    .signal
                    .is_some_and(|it| ![libc_signal::KILL, libc_signal::TERM].contains(&it));
            raised || by_itself
        };
        (is_killed || is_unknown || has_left(process))
            && !process.is_from_text()
            // From outside, calls in which ranks wait are not all seen.
            && !process.is_attached()
            && !kills.iter().flatten().any(|&count| count > 0)
            && self.stalls.iter().all(|stall| self.is_for_work(stall))
            && self.divergences.is_empty()
            && !self.model.has_unseen()
            && !self.model.processes.values().any(failed)
    }

    /// Whether a stall is that of workers which wait for their next work, and which were killed together with
    /// the rank that would send it.
    fn is_for_work(&self, stall: &Stall) -> bool {
        /// A program kills its workers one after the other.
        const TOGETHER: Duration = Duration::from_secs(1);
        let ranks: Vec<u32> = stall.missing.iter().map(|absent| absent.rank).collect();
        let all = [&ranks[..], &stall.waiting[..]].concat();
        let ends: Vec<Timestamp> = self
            .model
            .members(stall.group, &all)
            .filter_map(|(_, process)| {
                let end = process.end?;
                (end.exit.signal == Some(libc_signal::KILL)).then_some(end.at)
            })
            .collect();
        let (Some(first), Some(last)) = (ends.iter().min(), ends.iter().max()) else {
            return false;
        };
        ends.len() == all.len()
            && last.since(*first) <= TOGETHER
            && ranks.iter().all(|&rank| self.begins(stall, rank))
    }

    /// Whether every process of the world has ended.
    fn has_ended_whole(&self, process: &Process) -> bool {
        let mut world = self.model.processes.values().filter(|it| it.world == process.world);
        world.all(Process::has_ended)
    }
}

fn has_failed_status(process: &Process) -> bool {
    process.end.and_then(|end| end.exit.code).is_some_and(|code| code != 0)
}

fn is_terminated(process: &Process) -> bool {
    process.end.is_some_and(|end| end.exit.signal == Some(libc_signal::TERM))
}
