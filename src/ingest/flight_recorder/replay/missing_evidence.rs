//! Notes on missing evidence: dumps, calls, and groups that are left out.

use std::collections::{BTreeMap, BTreeSet};

use ddp_doctor_diagnosis::event::{Call, CallId, Event};
use ddp_doctor_proto::NoteKind;
use ddp_doctor_proto::report::Timestamp;

use super::Replay;
use crate::logs::OfRanks;

impl Replay<'_> {
    /// Notes on ranks without a dump that others may be waiting for, or whose dump is unreadable.
    /// `stated`: what logs state about ranks.
    pub(super) fn missing_dumps(&self, stated: &OfRanks) -> Vec<Event> {
        /// Maximum number of ranks that are listed.
        const LISTED: usize = 1024;
        let mut texts: BTreeMap<u32, String> = BTreeMap::new();
        let unreadable = self.job.unreadable.iter();
        texts.extend(unreadable.map(|(&rank, text)| (rank, text.clone())));
        let mut awaited: BTreeSet<u32> = BTreeSet::new();
        for (at, call) in self.waits_for_missing() {
            let members = self.groups.all[at].info.key.members.iter();
            for &rank in members.filter(|rank| !self.job.ranks.contains_key(rank)) {
                let text = texts.entry(rank).or_insert_with(|| "there is no dump".into());
                if awaited.insert(rank) {
                    text.push_str(&call);
                }
            }
        }
        let is_missing = |rank: u32| {
            rank < self.groups.world_size
                && !self.job.ranks.contains_key(&rank)
                && !stated.is_gone(rank)
        };
        texts.retain(|&rank, _| is_missing(rank));
        let notes = texts.into_iter().take(LISTED).map(|(rank, text)| Event::Note {
            process: None,
            kind: NoteKind::Unreadable,
            rank: Some(rank),
            pid: None,
            text: text.into(),
            at: Timestamp(self.end),
        });
        notes.collect()
    }

    /// A note on dumps that contain no readable call.
    pub(super) fn no_calls(&self) -> Option<Event> {
        let is_without = self.job.ranks.values().all(|dump| dump.count == 0);
        is_without.then(|| self.note("the dumps contain no call that can be read".into()))
    }

    /// A note on groups whose calls are left out.
    pub(super) fn left_out_groups(&self) -> Option<Event> {
        let count = self.groups.left_out();
        (count > 0).then(|| {
            self.note(format!(
                "the calls of {count} process groups are left out: together the groups have too many members"
            ))
        })
    }

    /// A note on the whole job.
    fn note(&self, text: String) -> Event {
        Event::Note {
            process: None,
            kind: NoteKind::Unreadable,
            rank: None,
            pid: None,
            text: text.into(),
            at: Timestamp(self.end),
        }
    }

    /// Groups whose ranks with a dump have all made a call that is not complete, with a sentence on
    /// the call: of the groups of each rank without a dump, the one with the earliest call.
    fn waits_for_missing(&self) -> Vec<(usize, String)> {
        let mut found: Vec<(Call, usize)> = Vec::new();
        for (at, group) in self.groups.all.iter().enumerate() {
            let Some((rank, unit)) = &self.first_open[at] else {
                continue;
            };
            let is_incomplete = group.progress.len() < group.info.key.members.len();
            if is_incomplete && group.is_made_by_all(unit.seq) {
                found.push((self.call(*rank, unit, CallId(0)), at));
            }
        }
        found.sort_by_key(|(call, _)| call.at);
        let mut listed: BTreeSet<u32> = BTreeSet::new();
        found.retain(|(_, at)| {
            let members = self.groups.all[*at].info.key.members.iter();
            let missing = members.filter(|rank| !self.job.ranks.contains_key(rank));
            let new: Vec<u32> = missing.copied().filter(|rank| !listed.contains(rank)).collect();
            listed.extend(&new);
            !new.is_empty()
        });
        let sentence = |(call, at): (Call, usize)| {
            let group = &self.groups.all[at].info;
            let text = format!(
                "; {} #{} of {} is not complete, and all of its ranks with a dump have made that call",
                call.op, call.seq, group.description,
            );
            (at, text)
        };
        found.into_iter().map(sentence).collect()
    }
}
