//! What GPUs do while their ranks are inside a collective that does not complete.

use std::time::Duration;

use ddp_doctor_proto::report::{DeviceActivity, Timestamp};

use crate::model::{GroupId, Process};
use crate::situation::Situation;
use crate::words::{Ranks, number};

/// Maximum age of a sample that holds. A node repeats it every minute.
const MAX_AGE: Duration = Duration::from_secs(90);

/// Ranks by what their GPUs do; those of other ranks are unknown.
#[derive(Debug, Default)]
pub(crate) struct States {
    spinning: Vec<u32>,
    computing: Vec<u32>,
    idle: Vec<u32>,
    /// The GPUs of some ranks are unknown, or what they do.
    is_incomplete: bool,
}

impl States {
    /// The states of the GPUs of all members since a collective began.
    pub(crate) fn of_members(situation: &Situation<'_>, group: GroupId, since: Timestamp) -> Self {
        let mut states = Self::default();
        let ranks = situation.model.group(group).members.keys();
        for (rank, process) in situation.model.members(group, ranks) {
            match activity(situation, process, since) {
                DeviceActivity::Spinning => states.spinning.push(rank),
                DeviceActivity::Computing => states.computing.push(rank),
                DeviceActivity::Idle => states.idle.push(rank),
                DeviceActivity::Unknown => states.is_incomplete = true,
            }
        }
        states
    }

    /// Ranks that the others wait for, if the GPUs show it: all others wait in the collective.
    pub(crate) fn awaited(&self) -> Option<Vec<u32>> {
        let mut awaited = [&self.computing[..], &self.idle].concat();
        awaited.sort_unstable();
        let is_shown = !self.is_incomplete && !self.spinning.is_empty() && !awaited.is_empty();
        is_shown.then_some(awaited)
    }

    /// Sentences on what the GPUs do, and what that excludes.
    pub(crate) fn why(&self) -> Vec<String> {
        let Self { spinning, computing, idle, .. } = self;
        let mut why = Vec::new();
        let of = |ranks: &[u32], one: &str, several: &str| {
            let gpus = number(ranks, "The GPU", "The GPUs");
            format!("{gpus} of {} {}", Ranks(ranks), number(ranks, one, several))
        };
        if !spinning.is_empty() {
            why.push(format!(
                "{}: a kernel runs that uses neither memory bandwidth nor much power, like the kernel of \
                 a collective that waits for its peers.",
                of(spinning, "spins", "spin")
            ));
        }
        if !computing.is_empty() {
            why.push(format!(
                "{}: a kernel before the call has not ended.",
                of(computing, "computes", "compute")
            ));
        }
        if !idle.is_empty() {
            why.push(format!(
                "{} idle: the call was never enqueued on {}, or has already completed there.",
                of(idle, "is", "are"),
                number(idle, "it", "them")
            ));
        }
        if self.is_incomplete || spinning.is_empty() {
            return why;
        }
        why.push(match self.awaited() {
            None => {
                "No GPU executes earlier work: the fault is in the network, or between the GPUs."
                    .into()
            }
            Some(awaited) => format!(
                "The other GPUs wait for {}: the network is unlikely to be the cause.",
                number(&awaited, "it", "them")
            ),
        });
        why
    }

    /// What to do.
    pub(crate) fn advice(&self) -> Option<String> {
        let awaited = self.awaited()?;
        Some(format!(
            "Find out what work was enqueued on {} {} before the call: the stacks of its threads (ddp-doctor dump) \
             show the line that waits for it.",
            number(&awaited, "the GPU of", "the GPUs of"),
            Ranks(&awaited),
        ))
    }
}

/// What the GPU of a process does; unknown unless it was measured during the stall, or lately.
fn activity(situation: &Situation<'_>, process: &Process, since: Timestamp) -> DeviceActivity {
    let gpu = situation.model.gpus.used_by(process);
    let Some((gpu, at)) = gpu.and_then(|gpu| Some((gpu, gpu.sample.as_ref()?.0))) else {
        return DeviceActivity::Unknown;
    };
    let is_valid = at >= since || situation.now.since(at) <= MAX_AGE;
    if is_valid { gpu.activity() } else { DeviceActivity::Unknown }
}
