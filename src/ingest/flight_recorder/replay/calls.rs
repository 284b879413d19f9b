//! The calls of a job: by rank, group and number, and as findings and the engine show them.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use ddp_doctor_diagnosis::event::{Call, CallId, OnStream};
use ddp_doctor_proto::report::{Timestamp, WaitingIn, Where};
use ddp_doctor_proto::{DType, Op};

use super::Replay;
use crate::flight_recorder::calls::Unit;
use crate::flight_recorder::dump::Entry;

impl Replay<'_> {
    /// The line of a call.
    pub(in super::super) fn place(&self, rank: u32, unit: &Unit) -> Option<&Where> {
        self.calls[&rank].entry(unit).kind.place.as_deref()
    }

    /// Ranks by the line of their calls, those of most first; empty: a line is unknown.
    pub(in super::super) fn ranks_by_line(&self, calls: &[(u32, &Unit)]) -> Vec<Vec<u32>> {
        let mut by_line: BTreeMap<(&str, u32), Vec<u32>> = BTreeMap::new();
        for (rank, unit) in calls {
            let Some(place) = self.place(*rank, unit) else {
                return Vec::new();
            };
            let ranks = by_line.entry((&place.file, place.line)).or_default();
            ranks.push(*rank);
        }
        let mut lines: Vec<Vec<u32>> = by_line.into_values().collect();
        lines.sort_by_key(|ranks| Reverse(ranks.len()));
        lines
    }

    /// The first incomplete call of a rank.
    pub(in super::super) fn waiting_in(&self, rank: u32) -> Option<WaitingIn> {
        let units = &self.calls.get(&rank)?.units;
        let at = units.iter().position(|it| !it.is_complete)?;
        let call = self.numbered_call(rank, at);
        let waited = Timestamp(self.end).since(call.at);
        Some(WaitingIn {
            group: self.groups.all[units[at].group].info.key.name.clone(),
            seq: Some(call.seq).filter(|&seq| seq > 0),
            op: call.op.to_string(),
            waited_ms: Some(waited.as_millis() as u64),
        })
    }

    /// A call, with the number that it has among the messages to its peer if it is one.
    pub(in super::super) fn numbered_call(&self, rank: u32, at: usize) -> Call {
        let mut call = self.call(rank, &self.calls[&rank].units[at], CallId(0));
        if let Some(placed) = self.messages.placed(rank, at) {
            placed.apply(&mut call);
        }
        call
    }

    /// A call, without what dumps do not contain.
    pub(super) fn call(&self, rank: u32, unit: &Unit, id: CallId) -> Call {
        let calls = &self.calls[&rank];
        let group = &self.groups.all[unit.group];
        let shown = self.shown.get(&(unit.group, unit.seq)).copied().unwrap_or(0);
        let at = unit.entries.start + shown.min(unit.entries.len() - 1);
        let entry = &calls.entries[at];
        let stream = if calls.one_stream { 1 } else { unit.group as u64 + 2 };
        Call {
            id,
            seq: unit.seq,
            shape: entry.shape.as_ref().map(|it| it.to_vec()),
            on_stream: (!entry.group.is_on_host)
                .then_some(OnStream { stream, launch: unit.launch }),
            place: entry.place.clone(),
            ..entry.content(&group.info)
        }
    }

    /// For each coalesced group of collectives, the first entry that differs between ranks.
    pub(super) fn representatives(&self) -> BTreeMap<(usize, u64), usize> {
        let signatures = |rank: u32, unit: &Unit| -> Vec<Signature> {
            let entries = &self.calls[&rank].entries[unit.entries.clone()];
            let signature = |it: &Entry<'_>| (it.op, it.numel, it.dtype);
            entries.iter().map(signature).collect()
        };
        let mut first: BTreeMap<(usize, u64), Vec<Signature>> = BTreeMap::new();
        let mut shown = BTreeMap::new();
        for (&rank, calls) in &self.calls {
            let several = calls.units.iter().filter(|unit| unit.entries.len() > 1);
            for unit in several.filter(|unit| !unit.is_message) {
                let own = signatures(rank, unit);
                let known = first.entry((unit.group, unit.seq)).or_insert_with(|| own.clone());
                let pairs = own.iter().zip(known.iter());
                let differs = pairs.enumerate().find(|(_, (a, b))| a != b);
                if let Some((at, _)) = differs {
                    let at_first = shown.entry((unit.group, unit.seq)).or_insert(at);
                    *at_first = at.min(*at_first);
                }
            }
        }
        shown
    }
}

/// What the entries of a coalesced group must agree on.
type Signature = (Op, Option<u64>, DType);
