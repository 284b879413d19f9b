//! Why a straggler is late: its own work, its input, or its host.
//!
//! Its excess over its peers is compared with the time that those lose by waiting. So a loader that
//! is equally slow on all ranks, or a host that delays all ranks, is not a cause.

use std::time::Duration;

use ddp_doctor_proto::Spending;
use ddp_doctor_proto::report::Timestamp;

use crate::model::{Gaps, Model, Process, Quantity};

/// Minimum share of the loss that a cause must account for.
const EXPLAINS: f64 = 0.5;
/// The same for stops: short ones are missed, while recorded ones are certain.
const STOPPED_EXPLAINS: f64 = 0.2;
/// A host is busy if its ranks take this many times as long as they would alone.
const BUSY: f64 = 1.33;
/// A rank is worse off than its peers if it is slowed down by this factor more.
const WORSE: f64 = 1.5;
/// A rank has more work if it runs for this many times as long.
const MORE_WORK: f64 = 1.3;
/// The same on a busy host, where the distribution of CPU time is arbitrary.
const MORE_WORK_ON_A_BUSY_HOST: f64 = 2.0;
/// Pages per second read from disk for a process that swaps.
const PAGING: f64 = 100.0;

/// Why ranks are late. Times are shares of the window.
#[derive(Clone, Debug, PartialEq)]
pub enum Why {
    /// Its own work.
    Work {
        /// Shares of the time in which the main threads of the late ranks and of their peers ran.
        ran: Option<(f64, f64)>,
    },
    /// Waiting for input.
    Input {
        /// Share of the time of the late ranks …
        own: f64,
        /// … and of their peers.
        others: f64,
    },
    /// Its host.
    Host(Host),
}

/// How a host delays a rank.
#[derive(Clone, Debug, PartialEq)]
pub enum Host {
    /// Share of the time in which it was stopped.
    Stopped(f64),
    /// Share of the time in which its control group had used up its quota.
    Throttled(f64),
    /// Share of the time in which it was ready but had no processor.
    Queued {
        /// Of the late ranks …
        own: f64,
        /// … and of their peers.
        others: f64,
        /// Processors that the late ranks may run on, if their peers may run on others.
        processors: Option<String>,
        /// Share of the time in which something in its control group or on its host waited for a
        /// processor.
        pressure: Option<f64>,
    },
    /// Share of the CPU time of its host that a hypervisor gave to others.
    Stolen(f64),
    /// Share of the time spent on garbage collection.
    Garbage(f64),
    /// Pages per second read from disk.
    Paging(f64),
    /// Share of the time in which something on its host waited for memory.
    Memory(f64),
}

/// The cause; `None`: a busy host delays different ranks at different times, and none is to blame.
pub(super) fn why(
    model: &Model,
    late: &[u32],
    others: &[u32],
    window: (Timestamp, Timestamp),
    lost: f64,
) -> Option<Why> {
    let processes = |ranks: &[u32]| -> Vec<&Process> {
        ranks.iter().filter_map(|&rank| model.process_of(rank)).collect()
    };
    let (late, others) = (processes(late), processes(others));
    let ranks = Compared { late, others, gaps: &model.gaps, window, lost };
    if let Some(host) = ranks.withheld() {
        return Some(Why::Host(host));
    }
    let ran = |all: &[&Process]| ranks.rate(all, Quantity::Ran);
    let runs = (ran(&ranks.late), ran(&ranks.others));
    if let Some(queued) = ranks.more(Quantity::Queued) {
        let (own, theirs) = (runs.0?, runs.1.unwrap_or(0.0));
        if let Some(host) = ranks.queued(queued, (own, theirs)) {
            return Some(Why::Host(host));
        }
        if own < MORE_WORK * theirs {
            return None;
        }
    }
    if let Some(why) = ranks.slowed() {
        return Some(why);
    }
    let runs = runs.0.zip(runs.1);
    if let Some((own, theirs)) = runs
        && (ranks.is_busy(&ranks.late) || ranks.is_busy(&ranks.others))
        && (own < MORE_WORK_ON_A_BUSY_HOST * theirs || own - theirs < EXPLAINS * lost)
    {
        return None;
    }
    Some(Why::Work { ran: runs })
}

/// The late ranks and their peers.
struct Compared<'a> {
    late: Vec<&'a Process>,
    others: Vec<&'a Process>,
    gaps: &'a Gaps,
    window: (Timestamp, Timestamp),
    /// Share of the time that the peers lose by waiting.
    lost: f64,
}

impl Compared<'_> {
    /// A delay by stops, by the quota of a container, or by a hypervisor.
    fn withheld(&self) -> Option<Host> {
        let stops = |process: &Process| Some(stopped(process, self.window));
        let by_stops = self.excess(stops, STOPPED_EXPLAINS).map(|(own, _)| Host::Stopped(own));
        by_stops
            .or_else(|| self.more(Quantity::Throttled).map(|(own, _)| Host::Throttled(own)))
            .or_else(|| self.more(Quantity::Stolen).map(|(own, _)| Host::Stolen(own)))
    }

    /// A lack of processors, if it delays the late ranks more than their peers. The shares of the time
    /// are those of the late ranks and of their peers.
    fn queued(&self, queued: (f64, f64), ran: (f64, f64)) -> Option<Host> {
        let (own, theirs) = queued;
        let they_are_slowed = slowdown(theirs, ran.1);
        let confined = confined(&self.late, &self.others);
        let is_worse = slowdown(own, ran.0) >= WORSE * they_are_slowed;
        (is_worse && (they_are_slowed < BUSY || confined.is_some())).then(|| Host::Queued {
            own,
            others: theirs,
            processors: confined,
            pressure: self.rate(&self.late, Quantity::CpuPressure),
        })
    }

    /// A delay by garbage collection, paging, memory pressure or input.
    fn slowed(&self) -> Option<Why> {
        let spent = |on: Spending| {
            let spent = move |process: &Process| Some(spent(process, on, self.gaps, self.window));
            self.excess(spent, EXPLAINS)
        };
        if let Some((own, _)) = spent(Spending::Garbage) {
            return Some(Why::Host(Host::Garbage(own)));
        }
        let faults = |all: &[&Process]| {
            let rate = self.rate(all, Quantity::MajorFaults);
            rate.unwrap_or(0.0) * 1000.0
        };
        let paging = faults(&self.late);
        if paging >= PAGING && paging >= 4.0 * faults(&self.others) {
            return Some(Why::Host(Host::Paging(paging)));
        }
        // Memory pressure mostly concerns a whole host or container: it is a cause only if the
        // others are outside.
        if let Some((own, _)) = self.more(Quantity::MemoryPressure) {
            return Some(Why::Host(Host::Memory(own)));
        }
        let (own, others) = spent(Spending::Input)?;
        Some(Why::Input { own, others })
    }

    /// Whether a lack of processors can account for the loss.
    fn is_busy(&self, all: &[&Process]) -> bool {
        let queued = self.rate(all, Quantity::Queued);
        let runs = queued.zip(self.rate(all, Quantity::Ran));
        runs.is_some_and(|(queued, ran)| {
            slowdown(queued, ran) >= BUSY && queued >= EXPLAINS * self.lost
        })
    }

    /// [`Self::excess`] of a quantity.
    fn more(&self, of: Quantity) -> Option<(f64, f64)> {
        self.excess(|process| self.share(process, of), EXPLAINS)
    }

    /// Values of the late ranks and of their peers (0 if unknown), if the difference explains the
    /// loss.
    fn excess(&self, value: impl Fn(&Process) -> Option<f64>, explains: f64) -> Option<(f64, f64)> {
        let own = typical(&self.late, &value)?;
        let others = typical(&self.others, &value).unwrap_or(0.0);
        (own - others >= explains * self.lost).then_some((own, others))
    }

    fn rate(&self, all: &[&Process], of: Quantity) -> Option<f64> {
        typical(all, |process| self.share(process, of))
    }

    fn share(&self, process: &Process, of: Quantity) -> Option<f64> {
        process.pace.share(of, self.window.0, self.window.1)
    }
}

/// Factor by which everything is slowed down.
fn slowdown(queued: f64, ran: f64) -> f64 {
    (queued + ran) / ran.max(0.001)
}

/// Median of the known values.
fn typical(all: &[&Process], value: impl Fn(&Process) -> Option<f64>) -> Option<f64> {
    let mut values: Vec<f64> = all.iter().filter_map(|process| value(process)).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// The processors of the late ranks, if their peers may run on others.
fn confined(late: &[&Process], others: &[&Process]) -> Option<String> {
    let processors = late.first()?.pace.processors()?;
    let mut theirs = others.iter().filter_map(|other| other.pace.processors());
    theirs.any(|it| it != processors).then(|| processors.to_owned())
}

/// Share of the time spent on this. Threads without calls that draw batches in advance delay no
/// rank; garbage collection stops all threads.
fn spent(process: &Process, on: Spending, gaps: &Gaps, (from, to): (Timestamp, Timestamp)) -> f64 {
    let matters = |thread| on == Spending::Garbage || process.threads.contains_key(thread);
    let spent = process.pace.spent.iter().filter(|spent| spent.on == on && matters(&spent.thread));
    let sum: Duration =
        spent.map(|spent| gaps.seen_for(spent.from.max(from), spent.to.min(to))).sum();
    sum.as_secs_f64() / gaps.seen_for(from, to).as_secs_f64().max(1e-9)
}

/// Share of the time in which the process was stopped.
fn stopped(process: &Process, (from, to): (Timestamp, Timestamp)) -> f64 {
    let stops = process.pace.stops.iter();
    let sum: Duration =
        stops.map(|(stop, go)| go.unwrap_or(to).min(to).since((*stop).max(from))).sum();
    sum.as_secs_f64() / to.since(from).as_secs_f64().max(1e-9)
}
