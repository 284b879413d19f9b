//! Waits in which ranks name others, as the text states them: for the world to form, and in monitored barriers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use ddp_doctor_diagnosis::event::NoteText;
use ddp_doctor_diagnosis::words::Ranks;
use ddp_doctor_proto::Op;
use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_proto::vocabulary::Direction;

use super::before;
use crate::logs::facts::Statement;

/// What to do if ranks are missing, whichever they are.
pub(in super::super) const LAUNCH: &str = "Compare what was launched (nodes × processes per node) with the size of the world, and check for \
     nodes that did not start.";

/// What ranks stated about such waits.
#[derive(Debug, Default)]
pub(in super::super) struct Joins {
    /// Ranks that waited for the world, by rank.
    pub(in super::super) waiting: BTreeMap<u32, Wait>,
    /// World size and number of ranks that had joined.
    pub(in super::super) counted: Option<(u32, u32)>,
    /// Key of the barrier in the store at which they waited.
    key: u64,
    /// Ranks that joined such barriers: the key, and when if that is stated.
    joined: Vec<(u32, u64, Option<Timestamp>)>,
    clients: Option<(u32, u32)>,
    /// The store that waited for clients is that of launchers: one for each node.
    pub(super) are_launchers: bool,
    /// Ranks whose stores waited for clients.
    servers: BTreeMap<u32, Wait>,
    /// Ranks whose address did not appear.
    pub(in super::super) addresses: BTreeSet<u32>,
    /// Barriers, by the rank that waited in them.
    pub(in super::super) barriers: BTreeMap<u32, Barrier>,
    /// Ranks whose watchdog was blocked, and for how long.
    stuck: BTreeMap<u32, Option<u64>>,
    /// Ranks that lost their connection to the store, and its address.
    without_store: BTreeSet<u32>,
    store: Option<Arc<str>>,
    notes: Vec<NoteText>,
    /// Monitored barriers are of groups of some of the ranks, in which ranks have other numbers.
    are_in_groups: bool,
}

/// A call in which a rank waited for others that it names.
#[derive(Clone, Debug)]
pub(in super::super) struct Barrier {
    pub(in super::super) op: Op,
    pub(in super::super) missing: Vec<u32>,
    pub(in super::super) wait: Wait,
}

#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Wait {
    pub(in super::super) since: Timestamp,
    lasted: Duration,
}

/// Whether an exception states what a fact of this module states.
pub(super) fn is_about_a_wait(text: &str) -> bool {
    [
        "store based barrier",
        "waiting for clients",
        "wait timeout after",
        "monitoredBarrier",
        "from remote rank [",
        "timed out task names: ",
    ]
    .iter()
    .any(|it| text.contains(it))
}

/// For how long the wait that a fact states lasted.
pub(in super::super) const fn waited_ms(what: &Statement) -> u64 {
    match what {
        Statement::Joins { waited_ms, .. }
        | Statement::Clients { waited_ms, .. }
        | Statement::MissesAddress { waited_ms, .. }
        | Statement::Misses { waited_ms, .. } => *waited_ms,
        _ => 0,
    }
}

impl Joins {
    /// Whether the watchdog of some rank was blocked: it aborts its process.
    pub(super) fn has_stuck(&self) -> bool {
        !self.stuck.is_empty()
    }

    /// Takes a fact; `rank`: the rank that states it, if that is known.
    pub(in super::super) fn take(&mut self, rank: Option<u32>, what: &Statement, at: Timestamp) {
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
            Statement::Misses { op, ranks, .. } => match rank {
                _ if ranks.is_empty() => self.are_in_groups = true,
                // Of a monitored barrier, only the first rank of a group names others.
                // Which rank is its root is unknown.
                _ if op.direction() != Direction::Symmetric => {
                    let call = op.name().unwrap_or("a call");
                    let (all, were) = (Ranks(ranks), Ranks(ranks).with("was", "were"));
                    self.notes.push(NoteText::new(
                        format!("{all} had not reached {call}, in which other ranks waited"),
                        format!("Find out where {were} instead: add the logs."),
                    ));
                }
                Some(rank) if !ranks.contains(&rank) => {
                    let new = Barrier { op: *op, missing: Vec::new(), wait };
                    let known = self.barriers.entry(rank).or_insert(new);
                    if known.op == *op {
                        known.missing.extend(ranks);
                    }
                }
                None if *op != Op::MonitoredBarrier => {
                    let text = format!(
                        "{} had not reached {op}, in which a rank that the text does not identify waited",
                        Ranks(ranks)
                    );
                    let advice = "Find out where that was: add its log.";
                    self.notes.push(NoteText::new(text, advice));
                }
                _ => {}
            },
            Statement::WatchdogStuck { seconds } => {
                let text = format!(
                    "the watchdog of a rank that the text does not identify was blocked{}",
                    lasted_for(*seconds)
                );
                self.notes.push(text.into());
            }
            _ => {}
        }
    }

    pub(in super::super) fn stuck(&mut self, rank: u32, seconds: Option<u64>) {
        let known = self.stuck.entry(rank).or_default();
        *known = seconds.max(*known);
    }

    /// Takes away for how long the watchdog of a rank was blocked, if it was.
    pub(in super::super) fn take_stuck(&mut self, rank: u32) -> Option<Option<u64>> {
        self.stuck.remove(&rank)
    }

    /// Whether some rank lost its connection to the store.
    pub(super) fn has_lost_store(&self) -> bool {
        !self.without_store.is_empty()
    }

    pub(super) fn lost_store(&mut self, rank: Option<u32>, server: &Arc<str>) {
        self.without_store.extend(rank);
        self.store.get_or_insert_with(|| Arc::clone(server));
    }

    /// Counts the rank whose store waited among those that joined it, which it does itself: where no other
    /// rank had joined, all that did are known.
    pub(in super::super) fn count_servers(&mut self) {
        let all = self.servers.len() as u64;
        let alone = self.clients.filter(|it| u64::from(it.1) == all && it.1 < it.0);
        if let Some(counted) = alone.filter(|_| all == 1) {
            self.counted = self.counted.or(Some(counted));
            self.waiting.append(&mut self.servers);
            self.clients = None;
        }
    }

    /// Takes that a rank joined the barrier in the store under a key.
    pub(in super::super) fn joined(&mut self, rank: u32, key: u64, at: Option<Timestamp>) {
        self.joined.push((rank, key, at));
    }

    /// Adds the ranks that joined the barrier at which others waited.
    pub(in super::super) fn count_joined(&mut self) {
        let first = self.waiting.values().map(|it| it.since).min();
        for (rank, _, at) in self.joined.iter().filter(|it| it.1 == self.key) {
            let wait = Wait { since: at.or(first).unwrap_or_default(), lasted: Duration::ZERO };
            self.waiting.entry(*rank).or_insert(wait);
        }
    }

    /// Ranks that others name because they did not reach a barrier.
    pub(super) fn missing_at_barriers(&self) -> BTreeSet<u32> {
        let missing = self.barriers.values().flat_map(|it| &it.missing);
        missing.copied().collect()
    }

    /// When this rank gave up waiting for others.
    pub(in super::super) fn gave_up(&self, rank: u32) -> Option<Timestamp> {
        let at_barrier = self.barriers.get(&rank).map(|it| &it.wait);
        let waits =
            self.waiting.get(&rank).into_iter().chain(at_barrier).filter(|it| !it.lasted.is_zero());
        waits.map(|it| it.since.plus(it.lasted)).max()
    }

    /// Drops what ranks stated in numbers of their groups.
    pub(in super::super) fn drop_numbers_in_groups(&mut self) {
        if self.are_in_groups {
            self.barriers.retain(|_, barrier| barrier.op != Op::MonitoredBarrier);
        }
    }

    /// Timeouts that the text states.
    pub(in super::super) fn timeouts(&self) -> impl Iterator<Item = Duration> {
        let barriers = self.barriers.values().map(|it| &it.wait);
        let waits = self.waiting.values().chain(barriers);
        waits.map(|it| it.lasted).filter(|it| !it.is_zero())
    }

    pub(in super::super) fn notes(&self) -> Vec<NoteText> {
        let mut notes = self.notes.clone();
        notes.truncate(1);
        if let Some((expected, joined)) = self.clients {
            let whose = if self.are_launchers { "nodes" } else { "ranks" };
            let text = format!(
                "{joined} of {expected} {whose} had joined the store when the wait for them timed out; the \
                 text does not say which"
            );
            notes.push(NoteText::new(text, LAUNCH));
        }
        if let Some(server) = &self.store {
            let ranks: Vec<u32> = self.without_store.iter().copied().collect();
            let who = if ranks.is_empty() {
                "a rank that the text does not identify".to_owned()
            } else {
                Ranks(&ranks).to_string()
            };
            let text = format!(
                "{who} lost the connection to the store at {server}: the process that serves it, usually that of \
                 rank 0, had ended or could not be reached"
            );
            let advice = "Find out how that process ended: add its log. At the end of training, this is not a failure.";
            notes.push(NoteText::new(text, advice));
        }
        if !self.stuck.is_empty() {
            let ranks: Vec<u32> = self.stuck.keys().copied().collect();
            let lasted = lasted_for(self.stuck.values().max().copied().flatten());
            let text = format!(
                "the watchdog of {} was blocked{lasted}: a call into NCCL or CUDA did not return, \
                 or another thread held the GIL during such a call",
                Ranks(&ranks)
            );
            notes.push(text.into());
        }
        notes
    }
}

/// " for 480 s", if that is known.
fn lasted_for(seconds: Option<u64>) -> String {
    seconds.map_or_else(String::new, |seconds| format!(" for {seconds} s"))
}
