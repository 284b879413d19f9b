//! Comparison of the digests of a job's processes.

use std::collections::{BTreeMap, HashMap};

use ddp_doctor_diagnosis::event::ProcessId;
use ddp_doctor_evidence::decode::Decoder;
use ddp_doctor_evidence::digest::EVERY;
use ddp_doctor_proto::report::GroupRef;
use ddp_doctor_proto::v1;

/// Sequence numbers at which the hash of a group is kept: more than ranks are apart.
const MAX_CHECKS: usize = 16;

/// The latest digests.
#[derive(Debug, Default)]
pub(super) struct Digests {
    /// Number of records of each process that digests cover.
    through: HashMap<ProcessId, u64>,
    /// Place in `groups` of a process's groups, by their number.
    places: HashMap<(ProcessId, u32, bool), usize>,
    /// The same by world and identity.
    by_identity: HashMap<(String, GroupRef, bool), usize>,
    groups: Vec<Checks>,
}

/// What the members of a group report of their calls.
#[derive(Debug, Default)]
struct Checks {
    /// Hash by sequence number.
    hashes: BTreeMap<u64, u64>,
    /// Members disagreed once: from then on their hashes differ for long.
    disagreed: bool,
    /// The latest sequence number and hash that a member stated while it waited.
    waiting: (u64, u64),
    /// Members that waited disagreed once.
    waited_differently: bool,
}

/// What a digest says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct News {
    /// Number of records since the previous digest of the process.
    pub(super) records: u64,
    /// The calls of a group disagree, for the first time.
    pub(super) disagrees: bool,
    /// The same of members that wait in their latest call.
    pub(super) waits_differently: bool,
}

impl Digests {
    /// Number of processes that have sent digests.
    pub(super) fn processes(&self) -> usize {
        self.through.len()
    }

    /// Adds a digest of a node whose messages this decoder decodes.
    pub(super) fn add(&mut self, digest: &v1::Digest, decoder: &Decoder) -> News {
        let Some((process, world)) = decoder.process_and_world(digest.process) else {
            return News::default();
        };
        let through = self.through.entry(process).or_insert(digest.through);
        let records = digest.through.saturating_sub(*through);
        *through = digest.through;
        let (mut disagrees, mut waits_differently) = (false, false);
        for group in &digest.groups {
            let key = (process, group.group, group.values);
            let known = self.places.get(&key).copied();
            let Some(place) = known.or_else(|| {
                let info = decoder.group(digest.process, group.group)?;
                let identity = (world.to_owned(), info.key.clone(), group.values);
                let next = self.groups.len();
                let place = *self.by_identity.entry(identity).or_insert(next);
                if place == next {
                    self.groups.push(Checks::default());
                }
                self.places.insert(key, place);
                Some(place)
            }) else {
                continue;
            };
            for check in &group.checks {
                if check.below.is_multiple_of(EVERY) {
                    disagrees |= self.groups[place].add(check);
                } else {
                    waits_differently |= self.groups[place].add_waiting(check);
                }
            }
        }
        News { records, disagrees, waits_differently }
    }
}

impl Checks {
    /// Returns whether the members disagree for the first time.
    fn add(&mut self, check: &v1::Check) -> bool {
        if self.disagreed {
            return false;
        }
        self.disagreed = *self.hashes.entry(check.below).or_insert(check.hash) != check.hash;
        if self.hashes.len() > MAX_CHECKS {
            self.hashes.pop_first();
        }
        self.disagreed
    }

    /// The same of a check of all calls of a member that waits.
    fn add_waiting(&mut self, check: &v1::Check) -> bool {
        let (below, hash) = std::mem::replace(&mut self.waiting, (check.below, check.hash));
        let differs = below == check.below && hash != check.hash;
        let is_news = differs && !self.disagreed && !self.waited_differently;
        self.waited_differently |= is_news;
        is_news
    }
}
