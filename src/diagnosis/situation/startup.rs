//! Worlds that ranks begin to form: which ranks expect each other, and where.
//!
//! Ranks meet at a *place*, the store of rank 0, and wait inside `init_process_group` until all
//! have arrived. Processes at one place at one time belong to one world, however they describe it.
//! Processes at different places belong to one world if together they are each rank of it exactly
//! once, and no place has all ranks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ddp_doctor_proto::report::{Fact, JoinFact, Timestamp};

use crate::model::{Attempt, Init, Model, Place, Process};
use crate::words;

/// A process that joins a world, or has joined it.
#[derive(Clone, Copy, Debug)]
pub struct Joiner<'a> {
    /// The process.
    pub process: &'a Process,
    /// Its initialization of the world.
    pub init: &'a Init,
    /// The rank that it requests.
    pub rank: u32,
    /// Where it meets the others.
    pub place: &'a Place,
}

/// Processes that were present at one time, at least one of which has not returned from joining.
#[derive(Clone, Debug)]
pub struct Forming<'a> {
    /// The joiners in the order in which they began.
    pub joiners: Vec<Joiner<'a>>,
}

/// Worlds that are forming, or failed to form: joiners at one place.
pub fn by_place(model: &Model) -> Vec<Forming<'_>> {
    if !model.processes.values().any(Process::is_joining) {
        return Vec::new();
    }
    let mut worlds = worlds(model);
    worlds.retain(Forming::is_open);
    worlds
}

/// Worlds that have formed although two processes joined one as the same rank, both of which are inside a call: a
/// backend that connects its ranks at their first call does not wait for them before.
pub fn formed_twice(model: &Model) -> Vec<Forming<'_>> {
    let mut ranks: BTreeSet<u32> = BTreeSet::new();
    let inside = model.processes.values().filter(|process| is_inside(process));
    let is_twice = inside.filter_map(|process| process.rank).any(|rank| !ranks.insert(rank));
    if !is_twice {
        return Vec::new();
    }
    let mut worlds = worlds(model);
    worlds.retain(|forming| !forming.is_open());
    for forming in &mut worlds {
        forming.joiners.retain(|joiner| is_inside(joiner.process));
    }
    worlds
}

/// Whether a process is alive and inside a call.
fn is_inside(process: &Process) -> bool {
    !process.has_ended() && process.is_inside_a_call()
}

/// All worlds, including complete ones.
pub fn worlds(model: &Model) -> Vec<Forming<'_>> {
    let mut places: BTreeMap<(Attempt, u32, String), Vec<Joiner<'_>>> = BTreeMap::new();
    // Ranks of one attempt may start on one node before those of the last have ended on another.
    let attempts = model.attempts();
    for joiner in model.processes.values().filter_map(Joiner::new) {
        let attempt = attempts.of_process(joiner.process);
        let place = (attempt, joiner.init.nth, joiner.where_it_looks());
        places.entry(place).or_default().push(joiner);
    }
    places.into_values().flat_map(at_one_time).collect()
}

/// Joiners at several places that together are each rank of one world exactly once.
pub fn by_launch(model: &Model) -> Vec<Forming<'_>> {
    /// A launcher, by its host and process id.
    type Launcher<'a> = (&'a str, u32);
    let mut launches: BTreeMap<(u32, Option<Launcher<'_>>), Vec<Joiner<'_>>> = BTreeMap::new();
    let joining: Vec<Joiner<'_>> = model
        .processes
        .values()
        .filter(|process| process.is_joining())
        .filter_map(Joiner::new)
        .collect();
    // Several launchers on one host may start different worlds.
    let mut launchers: BTreeMap<&str, BTreeSet<Option<u32>>> = BTreeMap::new();
    for joiner in &joining {
        let known = launchers.entry(&joiner.process.host).or_default();
        known.insert(joiner.init.launcher);
    }
    let several = launchers.values().any(|known| known.len() > 1);
    for joiner in joining {
        let launcher =
            joiner.init.launcher.filter(|_| several).map(|pid| (&*joiner.process.host, pid));
        let launch = launches.entry((joiner.init.nth, launcher)).or_default();
        launch.push(joiner);
    }
    let at_one_time = launches.into_values().flat_map(at_one_time);
    at_one_time
        .filter(|forming| forming.is_open() && forming.is_one_world_at_several_places())
        .collect()
}

/// Groups joiners by presence: a process that ended before the others began belongs to an earlier
/// world.
fn at_one_time(mut joiners: Vec<Joiner<'_>>) -> Vec<Forming<'_>> {
    joiners.sort_by_key(|joiner| (joiner.init.call.at, joiner.process.id));
    let mut found: Vec<(Timestamp, Forming<'_>)> = Vec::new();
    for joiner in joiners {
        let end = joiner.process.end.map_or(Timestamp(u64::MAX), |end| end.at);
        match found.last_mut() {
            Some((until, forming)) if joiner.init.call.at <= *until => {
                *until = end.max(*until);
                forming.joiners.push(joiner);
            }
            _ => found.push((end, Forming { joiners: vec![joiner] })),
        }
    }
    found.into_iter().map(|(_, forming)| forming).collect()
}

impl<'a> Joiner<'a> {
    /// The attempt of a process to join; `None`: there is none, or its place is unknown.
    pub fn new(process: &'a Process) -> Option<Self> {
        let init = process.init.as_ref()?;
        Some(Self { process, init, rank: init.rank.or(process.rank)?, place: init.place.as_ref()? })
    }

    /// A name of the place that is unique across hosts.
    fn where_it_looks(&self) -> String {
        let place = words::place(self.place);
        if self.place.is_loopback() { format!("{place} on {}", self.process.host) } else { place }
    }

    /// The fact that it began to join, for certificates; `None`: text does not state its process id (0), so that it may
    /// be the same process as another.
    pub fn fact(&self) -> Option<Fact> {
        (self.process.pid > 0).then(|| {
            Fact::Joins(JoinFact {
                rank: self.rank,
                host: self.process.host.to_string(),
                pid: self.process.pid,
                world_size: self.init.world_size,
                address: self.place.address.to_string(),
                port: self.place.port,
                backend: Some(self.init.backend.to_string()).filter(|backend| !backend.is_empty()),
                launcher: self.init.launcher,
                nth: self.init.nth,
                since: self.init.call.at,
                until: self.process.end.map(|end| end.at),
            })
        })
    }

    /// Whether both were present at one time.
    pub fn meets(&self, other: &Joiner<'_>) -> bool {
        let present =
            |one: &Joiner<'_>, at: Timestamp| one.process.end.is_none_or(|end| end.at >= at);
        present(self, other.init.call.at) && present(other, self.init.call.at)
    }
}

impl<'a> Forming<'a> {
    /// Whether a joiner has not returned.
    fn is_open(&self) -> bool {
        self.joiners.iter().any(|joiner| joiner.process.is_joining())
    }

    fn is_one_world_at_several_places(&self) -> bool {
        let Some(size) = self.joiners[0].init.world_size else { return false };
        let first = self.joiners[0].where_it_looks();
        let ranks = ranks(&self.joiners);
        self.joiners.iter().any(|joiner| joiner.where_it_looks() != first)
            && self.joiners.iter().all(|joiner| joiner.init.world_size == Some(size))
            && ranks.len() == self.joiners.len()
            && ranks.into_iter().eq(0..size)
    }

    /// When the first joiner began.
    pub fn begun(&self) -> Timestamp {
        self.joiners[0].init.call.at
    }

    /// When the last joiner began.
    pub fn all_begun(&self) -> Timestamp {
        self.joiners[self.joiners.len() - 1].init.call.at
    }

    /// Ranks that have not returned, ascending.
    pub fn waiting(&self) -> Vec<u32> {
        ranks(self.joiners.iter().filter(|it| it.process.is_joining()))
    }

    /// Joiners by a property, the most frequent value first. Joiners without the property are left
    /// out.
    pub fn classes<K: Ord>(
        &self,
        of: impl Fn(&Joiner<'a>) -> Option<K>,
    ) -> Vec<(K, Vec<Joiner<'a>>)> {
        let mut classes: BTreeMap<K, Vec<Joiner<'a>>> = BTreeMap::new();
        for joiner in &self.joiners {
            if let Some(key) = of(joiner) {
                classes.entry(key).or_default().push(*joiner);
            }
        }
        let mut classes: Vec<(K, Vec<Joiner<'a>>)> = classes.into_iter().collect();
        classes.sort_by_key(|(_, joiners)| std::cmp::Reverse(joiners.len()));
        classes
    }

    /// Joiners by the requested backend, if they request one.
    pub fn backends(&self) -> Vec<(Arc<str>, Vec<Joiner<'a>>)> {
        self.classes(|joiner| {
            let backend = &joiner.init.backend;
            (!backend.is_empty() && &**backend != "undefined").then(|| Arc::clone(backend))
        })
    }
}

/// Ranks of joiners, ascending.
pub fn ranks<'a>(joiners: impl IntoIterator<Item = &'a Joiner<'a>>) -> Vec<u32> {
    let ranks: BTreeSet<u32> = joiners.into_iter().map(|joiner| joiner.rank).collect();
    ranks.into_iter().collect()
}
