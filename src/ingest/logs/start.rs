//! Waits in which ranks name others: for the world to form, and in monitored barriers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use ddp_doctor_proto::Op;
use ddp_doctor_proto::report::Timestamp;

use super::events::{Job, Topic, were};
use super::facts::Statement;
use super::groups::MONITORED;
use super::{before, events};
use crate::diagnosis::event::{Call, CallId, Event, ThreadId};
use crate::diagnosis::words::Ranks;
use crate::ingest::process;

/// Where ranks meet, if the text does not say it.
const STORE: &str = "their store";

/// What to do if ranks are missing, whichever they are.
const LAUNCH: &str = "Compare what was launched (nodes × processes per node) with the size of the world, and check \
                      for nodes that did not start.";

/// What ranks stated about such waits.
#[derive(Debug, Default)]
pub(super) struct Joins {
    /// Ranks that waited for the world, by rank.
    waiting: BTreeMap<u32, Wait>,
    /// World size and number of ranks that had joined.
    counted: Option<(u32, u32)>,
    /// Key of the barrier in the store at which they waited.
    key: u64,
    /// Ranks that joined such barriers: the key, and when if that is stated.
    joined: Vec<(u32, u64, Option<Timestamp>)>,
    clients: Option<(u32, u32)>,
    /// Ranks whose stores waited for clients.
    servers: BTreeMap<u32, Wait>,
    /// Ranks whose address did not appear.
    addresses: BTreeSet<u32>,
    /// Barriers, by the rank that waited in them.
    barriers: BTreeMap<u32, (Vec<u32>, Wait)>,
    /// Ranks whose watchdog was blocked, and for how long.
    stuck: BTreeMap<u32, Option<u64>>,
    /// Ranks that lost their connection to the store, and its address.
    without_store: BTreeSet<u32>,
    store: Option<Arc<str>>,
    notes: Vec<String>,
}

#[derive(Clone, Copy, Debug)]
struct Wait {
    since: Timestamp,
    lasted: Duration,
}

/// Whether an exception states what a fact of this module states.
pub(super) fn is_about_a_wait(text: &str) -> bool {
    ["store based barrier", "waiting for clients", "wait timeout after", "monitoredBarrier"]
        .iter()
        .any(|it| text.contains(it))
}

/// For how long the wait that a fact states lasted.
pub(super) const fn waited_ms(what: &Statement) -> u64 {
    match what {
        Statement::Joins { waited_ms, .. }
        | Statement::Clients { waited_ms, .. }
        | Statement::MissesAddress { waited_ms, .. }
        | Statement::MissesAtBarrier { waited_ms, .. } => *waited_ms,
        _ => 0,
    }
}

impl Joins {
    /// Takes a fact; `rank`: the rank that states it, if that is known.
    pub(super) fn take(&mut self, rank: Option<u32>, what: &Statement, at: Timestamp) {
        let lasted = Duration::from_millis(waited_ms(what));
        let wait = Wait { since: before(at, lasted), lasted };
        match what {
            Statement::Joins { world_size, joined, key, .. } => {
                self.key = *key;
                let joined = self.counted.map_or(*joined, |known| known.1.max(*joined));
                self.counted = Some((*world_size, joined));
                self.waiting.extend(rank.map(|rank| (rank, wait)));
            }
            Statement::Clients { expected, joined, .. } => {
                self.clients = Some((*expected, *joined));
                self.servers.extend(rank.map(|rank| (rank, wait)));
            }
            Statement::MissesAddress { of, .. } => {
                self.addresses.insert(*of);
                self.waiting.extend(rank.map(|rank| (rank, wait)));
            }
            Statement::MissesAtBarrier { ranks, .. } => {
                // Only the first rank of a group names others.
                let first = rank.filter(|it| !ranks.contains(it));
                self.barriers.extend(first.map(|it| (it, (ranks.clone(), wait))));
            }
            Statement::WatchdogStuck { seconds } => {
                self.notes.push(format!(
                    "the watchdog of a rank that the text does not identify was blocked{}",
                    lasted_for(*seconds)
                ));
            }
            _ => {}
        }
    }

    pub(super) fn stuck(&mut self, rank: u32, seconds: Option<u64>) {
        let known = self.stuck.entry(rank).or_default();
        *known = seconds.max(*known);
    }

    pub(super) fn lost_store(&mut self, rank: Option<u32>, server: &Arc<str>) {
        self.without_store.extend(rank);
        self.store.get_or_insert_with(|| Arc::clone(server));
    }

    /// Counts the rank whose store waited among those that joined it, which it does itself: where no other
    /// rank had joined, all that did are known.
    fn count_servers(&mut self) {
        let all = self.servers.len() as u64;
        let alone = self.clients.filter(|it| u64::from(it.1) == all && it.1 < it.0);
        if let Some(counted) = alone.filter(|_| all == 1) {
            self.counted = self.counted.or(Some(counted));
            self.waiting.append(&mut self.servers);
            self.clients = None;
        }
    }

    /// Takes that a rank joined the barrier in the store under a key.
    pub(super) fn joined(&mut self, rank: u32, key: u64, at: Option<Timestamp>) {
        self.joined.push((rank, key, at));
    }

    /// Adds the ranks that joined the barrier at which others waited.
    fn count_joined(&mut self) {
        let first = self.waiting.values().map(|it| it.since).min();
        for (rank, _, at) in self.joined.iter().filter(|it| it.1 == self.key) {
            let wait = Wait { since: at.or(first).unwrap_or_default(), lasted: Duration::ZERO };
            self.waiting.entry(*rank).or_insert(wait);
        }
    }

    /// Ranks that others name because they did not reach a barrier.
    pub(super) fn missing_at_barriers(&self) -> BTreeSet<u32> {
        let missing = self.barriers.values().flat_map(|(missing, _)| missing);
        missing.copied().collect()
    }

    /// When this rank gave up waiting for others.
    pub(super) fn gave_up(&self, rank: u32) -> Option<Timestamp> {
        let at_barrier = self.barriers.get(&rank).map(|(_, wait)| wait);
        let waits = self.waiting.get(&rank).into_iter().chain(at_barrier);
        let waits = waits.filter(|it| !it.lasted.is_zero());
        waits.map(|it| it.since.plus(it.lasted)).max()
    }

    /// Timeouts that the text states.
    pub(super) fn timeouts(&self) -> impl Iterator<Item = Duration> {
        let barriers = self.barriers.values().map(|(_, wait)| wait);
        let waits = self.waiting.values().chain(barriers);
        waits.map(|it| it.lasted).filter(|it| !it.is_zero())
    }

    pub(super) fn notes(&self) -> Vec<String> {
        let mut notes = self.notes.clone();
        notes.truncate(1);
        if let Some((expected, joined)) = self.clients {
            notes.push(format!(
                "{joined} of {expected} ranks had joined the store when the wait for them timed out; the \
                 text does not say which\n{LAUNCH}"
            ));
        }
        if let Some(server) = &self.store {
            let ranks: Vec<u32> = self.without_store.iter().copied().collect();
            let who = if ranks.is_empty() {
                "a rank that the text does not identify".to_owned()
            } else {
                Ranks(&ranks).to_string()
            };
            notes.push(format!(
                "{who} lost the connection to the store at {server}: the process that serves it, mostly that of \
                 rank 0, had ended or could not be reached\nFind out how that process ended: add its log. At the \
                 end of a training, this is no failure."
            ));
        }
        if !self.stuck.is_empty() {
            let ranks: Vec<u32> = self.stuck.keys().copied().collect();
            let lasted = lasted_for(self.stuck.values().max().copied().flatten());
            notes.push(format!(
                "the watchdog of {} was blocked{lasted}: a call of NCCL or CUDA did not return, \
                 or another thread held the interpreter's lock in one",
                Ranks(&ranks)
            ));
        }
        notes
    }
}

/// " for 480 s", if that is known.
fn lasted_for(seconds: Option<u64>) -> String {
    seconds.map_or_else(String::new, |seconds| format!(" for {seconds} s"))
}

/// Adds the waits of ranks for others that they or the arithmetic name. Returns whether there are any.
pub(super) fn joins(job: &mut Job) -> bool {
    barriers(job);
    let at_barriers = !job.joins.barriers.is_empty();
    job.joins.count_servers();
    if job.joins.counted.is_some() {
        job.joins.count_joined();
    }
    let came: BTreeSet<u32> = job.joins.waiting.keys().copied().collect();
    if let Some((size, joined)) = job.joins.counted {
        let named = came.len() as u64 == u64::from(joined);
        if joined < size && named {
            world(job, size);
        } else {
            let ranks: Vec<u32> = came.iter().copied().collect();
            let why = if joined >= size {
                "another attempt or another job uses the same store\nGive each job and each attempt a port or a \
                 file of its own."
                    .to_owned()
            } else {
                format!("the text does not name all of those that joined\n{LAUNCH}")
            };
            job.note(Topic::Startup, format!(
                "{} waiting for the world to form when {joined} of {size} workers had joined: {why}",
                were(&ranks)
            ));
        }
        return at_barriers || joined < size && named;
    }
    let missing: BTreeSet<u32> = job.joins.addresses.difference(&came).copied().collect();
    let all: BTreeSet<u32> = came.union(&missing).copied().collect();
    let Some(&highest) = all.last() else {
        return at_barriers;
    };
    let size = job.names.world.unwrap_or(highest + 1);
    let named = !missing.is_empty() && all.len() as u64 == u64::from(size);
    if named {
        world(job, size);
    } else if !came.is_empty() {
        let (ranks, missing): (Vec<u32>, Vec<u32>) =
            (came.into_iter().collect(), missing.into_iter().collect());
        job.note(Topic::Startup, format!(
            "{} waiting for the address of {}; the text does not say which other ranks had joined",
            were(&ranks),
            Ranks(&missing)
        ));
    }
    at_barriers || named
}

/// Adds that ranks were joining a world of this size.
fn world(job: &mut Job, size: u32) {
    let waiting: Vec<(u32, Wait)> =
        job.joins.waiting.iter().map(|(&rank, &wait)| (rank, wait)).collect();
    for (rank, wait) in waiting {
        let settings = [
            ("init.rank", rank.to_string()),
            ("init.world_size", size.to_string()),
            ("init.address", STORE.to_owned()),
        ];
        for (name, value) in settings {
            let setting = Event::Setting {
                process: process(rank),
                name: name.into(),
                value: value.into(),
                at: wait.since,
            };
            job.events.push((wait.since, setting));
        }
        let init = call(Op::InitProcessGroup, wait.since, 0);
        let issued = Event::Issued { process: process(rank), call: Arc::new(init) };
        job.events.push((wait.since, issued));
    }
}

/// Adds the devices that ranks use, which NCCL compared when it connected them.
pub(super) fn devices(job: &mut Job) {
    let used = job.ranks.iter();
    let used = used.filter_map(|(&rank, known)| Some((rank, known.device.clone()?)));
    let at = job.begins();
    for (rank, device) in used.collect::<Vec<_>>() {
        let process = process(rank);
        let settings = [("init.backend", "nccl".into()), ("gpu", device)];
        for (name, value) in settings {
            let setting = Event::Setting { process, name: name.into(), value, at };
            job.events.push((at, setting));
        }
        let init = Arc::new(call(Op::InitProcessGroup, at, 0));
        let returned =
            Event::Returned { process, thread: init.thread, call: init.id, followed: false, at };
        let issued = Event::Issued { process, call: init };
        job.events.extend([(at, issued), (at, returned)]);
    }
}

/// Adds the waits in monitored barriers.
fn barriers(job: &mut Job) {
    let barriers = std::mem::take(&mut job.joins.barriers);
    for (&rank, (missing, wait)) in &barriers {
        let mut members = missing.clone();
        members.push(rank);
        members.sort_unstable();
        members.dedup();
        let group = events::group(MONITORED, "", "gloo", members.clone());
        for member in members {
            if !job.ranks.contains_key(&member) {
                continue;
            }
            let joined = Event::GroupJoined { process: process(member), group: Arc::clone(&group) };
            job.events.push((wait.since, joined));
        }
        let raised = job.ranks.get(&rank).and_then(|it| it.raised.last()?.place.clone());
        let call = Call {
            group: Some(Arc::clone(&group)),
            place: raised.map(Arc::new),
            ..call(Op::Barrier, wait.since, 1)
        };
        let issued = Event::Issued { process: process(rank), call: Arc::new(call) };
        job.events.push((wait.since, issued));
    }
    job.joins.barriers = barriers;
}

fn call(op: Op, at: Timestamp, seq: u64) -> Call {
    Call { seq, ..Call::new(CallId(1), at, ThreadId(1), op) }
}
