//! Restarts of the ranks by their launcher: the attempt that each process belongs to.
//!
//! `torchrun` counts the restarts per node: a node that restarts its ranks because those of another
//! node failed does not count that, and no node counts a restart for a node that joins. Attempts are
//! therefore numbered by the worlds that follow each other within one launch, and the largest count in a
//! world is a lower bound. A count of zero after a world whose ranks did not all end by SIGTERM is that of
//! another program.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ddp_doctor_proto::report::Timestamp;

use crate::model::{Model, Process, World, libc_signal};

/// A world by the layer that captured it: each layer numbers the generations by itself.
type LayerWorld<'a> = (&'a Arc<str>, &'a World);

/// The attempts of a job.
#[derive(Clone, Debug, Default)]
pub struct Attempts {
    /// Attempt of each world, by layer; empty: there was no restart.
    by_world: BTreeMap<(Arc<str>, World), Attempt>,
    /// When each attempt began, ascending.
    begun: Vec<(Timestamp, Attempt)>,
    /// Index of the last attempt of each program that the job has run.
    last: Vec<u32>,
    /// Worlds of which no rank ended but by SIGTERM, by layer.
    terminated: BTreeMap<(Arc<str>, World), Terminated>,
}

/// One start of the ranks by their launcher.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Attempt {
    /// Number of earlier programs of the job.
    program: u32,
    /// Number of earlier starts of the ranks of this program.
    pub index: u32,
}

/// A world of which no rank ended but by SIGTERM.
#[derive(Clone, Copy, Debug)]
struct Terminated {
    /// Whether all ranks have ended.
    is_whole: bool,
    /// Whether a rank raised an exception.
    has_raised: bool,
}

/// The processes of a world.
struct Start {
    /// When the first of them joined.
    at: Timestamp,
    /// When the last of them ended.
    until: Timestamp,
    /// Largest number of restarts that the launcher counts for one of them.
    counted: u32,
    /// Whether all ranks were ended by SIGTERM.
    is_requested: bool,
}

impl Attempts {
    /// The attempts of all processes that joined.
    pub(in crate::model) fn new(model: &Model) -> Self {
        let has_restarted = model.processes.values().any(|it| it.restarts > 0);
        if !has_restarted && !model.processes.values().any(is_terminated) {
            return Self::default();
        }
        let mut worlds: BTreeMap<LayerWorld<'_>, Vec<&Process>> = BTreeMap::new();
        for process in model.processes.values() {
            worlds.entry((&process.layer, &process.world)).or_default().push(process);
        }
        let mut attempts = Self::default();
        let mut launches: BTreeMap<&str, Vec<(LayerWorld<'_>, Start)>> = BTreeMap::new();
        for ((layer, world), processes) in worlds {
            let terminated = Terminated::new(&processes);
            let start = Start::new(&processes, terminated.is_some_and(|it| it.is_whole));
            launches.entry(launch(&world.name)).or_default().push(((layer, world), start));
            let ended = terminated.map(|it| ((Arc::clone(layer), world.clone()), it));
            attempts.terminated.extend(ended);
        }
        if attempts.terminated.is_empty() && !has_restarted {
            return attempts;
        }
        for launch in launches.into_values() {
            attempts.number(launch);
        }
        attempts.begun.sort_unstable();
        attempts
    }

    /// Numbers the worlds of one launch.
    fn number(&mut self, mut worlds: Vec<(LayerWorld<'_>, Start)>) {
        worlds.sort_by_key(|(_, start)| start.at);
        let mut attempt: Option<Attempt> = None;
        let mut until = Timestamp::default();
        // Whether all worlds of the attempt were ended by SIGTERM.
        let mut was_requested = true;
        let mut current: BTreeSet<(&Arc<str>, &Arc<str>)> = BTreeSet::new();
        for ((layer, world), start) in worlds {
            // Ranks that use different ports form several worlds of one attempt.
            let is_next = start.at > until || current.contains(&(layer, &world.name));
            let counted = start.counted;
            let number = match attempt {
                Some(it) if !is_next => Attempt { index: counted.max(it.index), ..it },
                Some(it) if counted > 0 || was_requested => {
                    Attempt { index: counted.max(it.index.saturating_add(1)), ..it }
                }
                _ => {
                    self.last.push(0);
                    Attempt { program: self.last.len() as u32 - 1, index: counted }
                }
            };
            if is_next || attempt.is_none() {
                current.clear();
                until = Timestamp::default();
                was_requested = true;
            }
            was_requested &= start.is_requested;
            current.insert((layer, &world.name));
            until = until.max(start.until);
            attempt = Some(number);
            self.last[number.program as usize] = number.index;
            self.begun.push((start.at, number));
            let world = (Arc::clone(layer), world.clone());
            self.by_world.insert(world, number);
        }
    }

    /// The attempt that a process belongs to.
    pub fn of_process(&self, process: &Process) -> Attempt {
        let world = (Arc::clone(&process.layer), process.world.clone());
        self.by_world.get(&world).copied().unwrap_or_default()
    }

    /// Whether SIGTERM ended the process and all other ranks of its world; `None`: it did not end the
    /// process, or another rank failed.
    pub fn all_requested(&self, process: &Process) -> Option<bool> {
        if !is_terminated(process) {
            return None;
        }
        let key = (Arc::clone(&process.layer), process.world.clone());
        let world = self.terminated.get(&key)?;
        (!world.has_raised).then_some(world.is_whole)
    }

    /// The attempt that was in progress at a time.
    pub fn at(&self, at: Timestamp) -> Attempt {
        let earlier = self.begun.iter().rev().find(|(begun, _)| *begun <= at);
        let attempt = earlier.or_else(|| self.begun.first());
        attempt.map_or_else(Attempt::default, |(_, attempt)| *attempt)
    }

    /// Index of the last attempt of the program that this attempt belongs to.
    pub fn last(&self, attempt: Attempt) -> u32 {
        let last = self.last.get(attempt.program as usize);
        last.map_or(attempt.index, |last| (*last).max(attempt.index))
    }

    /// Whether the launcher has restarted the ranks since this attempt.
    pub fn is_over(&self, attempt: Attempt) -> bool {
        attempt.index < self.last(attempt)
    }
}

/// Whether SIGTERM ended the process.
fn is_terminated(process: &Process) -> bool {
    let signal = process.end.and_then(|end| end.exit.signal);
    signal == Some(libc_signal::TERM)
}

impl Terminated {
    /// `None`: no process of the world has ended, or one in another way.
    fn new(processes: &[&Process]) -> Option<Self> {
        let (ended, running): (Vec<&Process>, Vec<&Process>) =
            processes.iter().partition(|it| it.end.is_some());
        if ended.is_empty() || !ended.iter().all(|it| is_terminated(it)) {
            return None;
        }
        let ranks: BTreeSet<u32> = ended.iter().filter_map(|it| it.rank).collect();
        let size = ended.iter().filter_map(|it| it.world_size).max().unwrap_or(0);
        let is_complete = size > 0 && ranks.len() as u32 == size;
        Some(Self {
            is_whole: is_complete && running.is_empty(),
            has_raised: processes.iter().any(|it| !it.exceptions.is_empty()),
        })
    }
}

impl Start {
    fn new(processes: &[&Process], is_requested: bool) -> Self {
        let end = |it: &&Process| it.end.map_or(Timestamp(u64::MAX), |end| end.at);
        Self {
            at: processes.iter().map(|it| it.joined_at).min().unwrap_or_default(),
            until: processes.iter().map(end).max().unwrap_or_default(),
            counted: processes.iter().map(|it| it.restarts).max().unwrap_or_default(),
            is_requested,
        }
    }
}

/// The launcher's id of the launch in the name of a world, which may contain a port before it.
fn launch(world: &str) -> &str {
    world.split_once('/').map_or(world, |(_, launch)| launch)
}
