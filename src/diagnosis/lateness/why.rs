//! What takes a straggler so long: its own work, its input, or its host.
//!
//! Compared is what it spends more than its peers, against what they lose by waiting for it. So nothing is
//! said of a loader that is as slow on all ranks, or of a host that lets nobody run.

use std::time::Duration;

use ddp_doctor_proto::Spending;
use ddp_doctor_proto::report::Timestamp;

use crate::diagnosis::model::{Model, Process};

/// The share of what is lost that a cause has to make up for.
const EXPLAINS: f64 = 0.5;
/// The same for stops, of which short ones are not seen, while those that are seen leave no doubt.
const STOPPED_EXPLAINS: f64 = 0.2;
/// A host is busy where everything takes its ranks so many times as long as it would alone.
const BUSY: f64 = 1.33;
/// A rank is worse off there than its peers if everything takes it so many times as long as them.
const WORSE: f64 = 1.5;
/// It has more to do if it runs for so many times as long.
const MORE_WORK: f64 = 1.3;
/// The same where the host is busy: who gets how much of it is a matter of luck.
const MORE_WORK_ON_A_BUSY_HOST: f64 = 2.0;
/// Pages a second that have to be read from a disk for a process that swaps.
const PAGING: f64 = 100.0;

/// What takes them so long. Times are shares of the whole.
#[derive(Clone, Debug, PartialEq)]
pub enum Why {
    /// Its own work.
    Work {
        /// How much of the time its main thread had a processor, and its peers' had.
        ran: Option<(f64, f64)>,
    },
    /// It waits for its input.
    Input {
        /// So much of the time, …
        own: f64,
        /// … and its peers so much.
        others: f64,
    },
    /// Its host.
    Host(Host),
}

/// What a host does to a rank.
#[derive(Clone, Debug, PartialEq)]
pub enum Host {
    /// It was stopped for so much of the time.
    Stopped(f64),
    /// Its cgroup had used up its quota.
    Throttled(f64),
    /// It was ready to run and others had its processors.
    Queued {
        /// So much of the time, …
        own: f64,
        /// … and its peers so much.
        others: f64,
        /// The processors that it may run on.
        processors: Option<String>,
        /// For so much of the time something in its cgroup, or on its host, waited for one.
        pressure: Option<f64>,
    },
    /// A hypervisor gave its host's processors to others for so much of the time.
    Stolen(f64),
    /// Its interpreter collected garbage.
    Garbage(f64),
    /// Pages a second were read from a disk for it.
    Paging(f64),
    /// Something there waited for memory for so much of the time.
    Memory(f64),
}

/// Finds it; `None`: a busy host keeps now this rank and now that one from running, and nobody is to blame.
pub(super) fn why(
    model: &Model,
    late: &[u32],
    others: &[u32],
    window: (Timestamp, Timestamp),
    lost: f64,
) -> Option<Why> {
    let late = processes(model, late);
    let others = processes(model, others);
    let of = |all: &[&Process], value: &dyn Fn(&Process) -> Option<f64>| {
        median(all.iter().filter_map(|process| value(process)).collect())
    };
    // How much more of its time goes there than of its peers', who may not be seen.
    let excess = |value: &dyn Fn(&Process) -> Option<f64>, explains: f64| {
        let own = of(&late, value)?;
        let others = of(&others, value).unwrap_or(0.0);
        (own - others >= explains * lost).then_some((own, others))
    };
    let more = |value: &dyn Fn(&Process) -> Option<f64>| excess(value, EXPLAINS);

    let stopped = |process: &Process| Some(stopped(process, window));
    if let Some((own, _)) = excess(&stopped, STOPPED_EXPLAINS) {
        return Some(Why::Host(Host::Stopped(own)));
    }
    if let Some((own, _)) = more(&|process| rate(process, window, |it| it.throttled_permille)) {
        return Some(Why::Host(Host::Throttled(own)));
    }
    if let Some((own, _)) = more(&|process| rate(process, window, |it| it.stolen_permille)) {
        return Some(Why::Host(Host::Stolen(own)));
    }
    let queued = |process: &Process| rate(process, window, |it| it.queued_permille);
    let ran = |process: &Process| rate(process, window, |it| it.ran_permille);
    // How many times as long everything takes.
    let slowed = |queued: f64, ran: f64| (queued + ran) / ran.max(0.001);
    if let Some((own, theirs)) = more(&queued) {
        let (own_ran, their_ran) = (of(&late, &ran)?, of(&others, &ran).unwrap_or(0.0));
        let they_are_slowed = slowed(theirs, their_ran);
        let confined = confined(&late, &others);
        if slowed(own, own_ran) >= WORSE * they_are_slowed
            && (they_are_slowed < BUSY || confined.is_some())
        {
            return Some(Why::Host(Host::Queued {
                own,
                others: theirs,
                processors: confined,
                pressure: of(&late, &|process| {
                    rate(process, window, |it| it.cpu_pressure)
                }),
            }));
        }
        if own_ran < MORE_WORK * their_ran {
            return None;
        }
    }
    let spent = |on: Spending| move |process: &Process| Some(spent(process, on, window));
    if let Some((own, _)) = more(&spent(Spending::Garbage)) {
        return Some(Why::Host(Host::Garbage(own)));
    }
    let faults =
        |process: &Process| rate(process, window, |it| it.major_faults).map(|rate| rate * 1000.0);
    let paging = of(&late, &faults).unwrap_or(0.0);
    if paging >= PAGING && paging >= 4.0 * of(&others, &faults).unwrap_or(0.0) {
        return Some(Why::Host(Host::Paging(paging)));
    }
    // It is a whole host's, or a whole container's, as a rule: only one that the others are not in explains it.
    if let Some((own, _)) = more(&|process| rate(process, window, |it| it.memory_pressure)) {
        return Some(Why::Host(Host::Memory(own)));
    }
    if let Some((own, others)) = more(&spent(Spending::Input)) {
        return Some(Why::Input { own, others });
    }
    let is_busy = |all: &[&Process]| {
        let (queued, ran) = (of(all, &queued)?, of(all, &ran)?);
        // Only what it takes from them may be what is lost.
        Some(slowed(queued, ran) >= BUSY && queued >= EXPLAINS * lost)
    };
    let runs = of(&late, &ran).zip(of(&others, &ran));
    if let Some((own, theirs)) = runs
        && (is_busy(&late) == Some(true) || is_busy(&others) == Some(true))
        && (own < MORE_WORK_ON_A_BUSY_HOST * theirs || own - theirs < EXPLAINS * lost)
    {
        return None;
    }
    Some(Why::Work { ran: runs })
}

fn processes<'a>(model: &'a Model, ranks: &[u32]) -> Vec<&'a Process> {
    let processes = ranks.iter().filter_map(|&rank| model.process_of(rank));
    processes.collect()
}

/// The processors of the late ranks, where their peers may run on others.
fn confined(late: &[&Process], others: &[&Process]) -> Option<String> {
    let processors = late.first()?.pace.processors()?;
    let mut theirs = others.iter().filter_map(|other| other.pace.processors());
    theirs
        .any(|it| it != processors)
        .then(|| processors.to_owned())
}

fn rate(
    process: &Process,
    (from, to): (Timestamp, Timestamp),
    of: impl Fn(&crate::diagnosis::event::SchedulingSample) -> Option<u32>,
) -> Option<f64> {
    process.pace.share(of, from, to)
}

/// The share of the time that went there. A thread that makes no calls and draws batches ahead of time
/// keeps nobody waiting; garbage is collected for all of them.
fn spent(process: &Process, on: Spending, (from, to): (Timestamp, Timestamp)) -> f64 {
    let matters = |thread| on == Spending::Garbage || process.threads.contains_key(thread);
    let spent = process.pace.spent.iter();
    let spent = spent.filter(|spent| spent.on == on && matters(&spent.thread));
    let sum: Duration = spent
        .map(|spent| spent.to.min(to).since(spent.from.max(from)))
        .sum();
    sum.as_secs_f64() / to.since(from).as_secs_f64().max(1e-9)
}

/// The share of the time in which it was stopped.
fn stopped(process: &Process, (from, to): (Timestamp, Timestamp)) -> f64 {
    let stops = process.pace.stops.iter();
    let sum: Duration = stops
        .map(|(stop, go)| go.unwrap_or(to).min(to).since((*stop).max(from)))
        .sum();
    sum.as_secs_f64() / to.since(from).as_secs_f64().max(1e-9)
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}
