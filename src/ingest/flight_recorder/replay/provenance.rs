//! What the dumps of a job show beside calls, for the engine.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ddp_doctor_diagnosis::event::{CallId, GroupInfo};
use ddp_doctor_diagnosis::input::align::{OddOnes, odd_ones};
use ddp_doctor_diagnosis::input::provenance::{
    CreatedGroup, DumpedCollective, Dumps, RankDump, StuckMessage,
};
use ddp_doctor_proto::report::Where;

use super::{Replay, WaitDuration};
use crate::flight_recorder::calls::{Calls, DumpedGroup, GroupAt, Progress, Unit};
use crate::flight_recorder::dump::{Dump, State};

/// The collectives of a rank, by group and number.
type Collectives<'a> = BTreeMap<(GroupAt, u64), &'a Unit>;

impl Replay<'_> {
    /// What the dumps show beside calls.
    pub(super) fn provenance(&self) -> Dumps {
        let at_most = match self.wait_duration {
            WaitDuration::AtMost(most) => Some(most),
            WaitDuration::Reportable | WaitDuration::Unknown => None,
        };
        let are_long = self.wait_duration == WaitDuration::Reportable;
        let dumps = self.job.ranks.iter();
        Dumps {
            are_lasting: are_long
                || self.job.has_failed
                || self.groups.all.iter().any(is_device_behind),
            at_most,
            ranks: dumps.map(|(&rank, dump)| (rank, self.dump_of(rank, dump))).collect(),
            collectives: self.collectives(),
            disagreements: self.waits.contradictions.clone(),
            stuck_message: self.stuck_message().filter(|_| at_most.is_none()),
        }
    }

    fn dump_of(&self, rank: u32, dump: &Dump) -> RankDump {
        let created = dump.groups.iter().map(|(name, config)| CreatedGroup {
            name: Arc::clone(name),
            description: Arc::clone(&config.description),
            members: Arc::clone(&config.members),
        });
        let calls = &self.calls[&rank];
        let counted = calls.entries.iter().take_while(|it| it.is_counted()).filter_map(|it| {
            let group = &self.groups.all[self.groups.of_kind(rank, it)?];
            Some((Arc::clone(&group.info), group.seq(it)))
        });
        let incomplete = calls.units.iter().filter(|it| !it.is_message && !it.is_complete);
        let waits_in = self.waits.calls.get(&rank);
        RankDump {
            skipped: dump.skipped,
            is_cut: dump.cut.is_some(),
            created: created.collect(),
            counted: counted.collect(),
            incomplete: incomplete.map(|it| self.number_of(it)).collect(),
            waits_in: waits_in.map(|&at| self.call(rank, &calls.units[at], CallId(0))),
            stopped_after: self.stopped_after(calls),
        }
    }

    /// Group and number of a collective.
    fn number_of(&self, unit: &Unit) -> (Arc<GroupInfo>, u64) {
        (Arc::clone(&self.groups.all[unit.group].info), unit.seq)
    }

    fn stopped_after(&self, calls: &Calls<'_>) -> Option<(Arc<GroupInfo>, u64)> {
        let is_idle = calls.units.iter().all(|unit| unit.is_complete);
        let last = calls.units.last().filter(|unit| is_idle && !unit.is_message)?;
        Some(self.number_of(last))
    }

    /// Collectives that all members have made, and that are incomplete or have sizes that do not fit.
    fn collectives(&self) -> Vec<DumpedCollective> {
        let by_rank: BTreeMap<u32, Collectives<'_>> = self
            .calls
            .iter()
            .map(|(&rank, calls)| {
                let collectives = calls.units.iter().filter(|unit| !unit.is_message);
                // Of calls with one number, the first counts.
                let of_rank = collectives.rev().map(|unit| ((unit.group, unit.seq), unit));
                (rank, of_rank.collect())
            })
            .collect();
        let mut found = Vec::new();
        for (at, group) in self.groups.all.iter().enumerate() {
            let members = &group.info.key.members;
            let first = members.first().and_then(|rank| by_rank.get(rank));
            let numbers = first.into_iter().flat_map(|own| own.range((at, 0)..(at + 1, 0)));
            for (&(_, seq), _) in numbers {
                let calls =
                    members.iter().map(|rank| Some((*rank, *by_rank.get(rank)?.get(&(at, seq))?)));
                let Some(calls) = calls.collect::<Option<Vec<(u32, &Unit)>>>() else { continue };
                let totals = self.totals(&calls).filter(|[sent, expected]| sent != expected);
                if totals.is_none() && calls.iter().all(|(_, unit)| unit.is_complete) {
                    continue;
                }
                let by_line = self.ranks_by_line(&calls);
                found.push(DumpedCollective {
                    group: group.info.key.clone(),
                    seq,
                    totals,
                    not_started: self.not_started(&calls),
                    at_unfamiliar_line: self.at_unfamiliar_line(&calls, &by_line, &by_rank),
                    by_line,
                });
            }
        }
        found
    }

    /// The elements that all members of an `all_to_all` send and expect.
    fn totals(&self, calls: &[(u32, &Unit)]) -> Option<[u64; 2]> {
        let [mut sent, mut expected] = [0_u64; 2];
        for (rank, unit) in calls {
            let entry = self.calls[rank].entry(unit);
            let (own_sent, own_expected) = entry.exchanged?;
            sent = sent.checked_add(own_sent)?;
            expected = expected.checked_add(own_expected)?;
        }
        Some([sent, expected])
    }

    /// Ranks whose dumps record starts, and not that of the call. None if they are more than the others, or
    /// if it is unknown whether a rank has started the call.
    fn not_started(&self, calls: &[(u32, &Unit)]) -> Vec<u32> {
        let mut not_started = Vec::new();
        for (rank, unit) in calls {
            let dump = &self.job.ranks[rank];
            if self.calls[rank].entry(unit).state == State::Scheduled {
                let records_starts = dump.status.values().any(|it| it.started.is_some());
                // The start of a batch is not recorded in its messages.
                if !records_starts || unit.is_message && unit.launch != 0 {
                    return Vec::new();
                }
                not_started.push(*rank);
            }
        }
        if 2 * not_started.len() > calls.len() { Vec::new() } else { not_started }
    }

    /// Ranks at a different line from most, if earlier calls of the group were at one of these lines, and the two
    /// never matched.
    fn at_unfamiliar_line(
        &self,
        calls: &[(u32, &Unit)],
        by_line: &[Vec<u32>],
        by_rank: &BTreeMap<u32, Collectives<'_>>,
    ) -> Vec<u32> {
        let OddOnes { ranks: odd, is_minority: true } = odd_ones(by_line) else {
            return Vec::new();
        };
        let Some(most) = calls.iter().find(|(rank, _)| !odd.contains(rank)) else {
            return Vec::new();
        };
        let is_unfamiliar = |rank: &u32| {
            let own = calls.iter().find(|it| it.0 == *rank);
            own.is_some_and(|own| self.never_matched(*most, *own, by_rank))
        };
        if odd.iter().all(is_unfamiliar) { odd } else { Vec::new() }
    }

    /// Whether the lines of two calls of one collective never matched before, although one was in use.
    fn never_matched(
        &self,
        (one, unit): (u32, &Unit),
        (other, of_other): (u32, &Unit),
        by_rank: &BTreeMap<u32, Collectives<'_>>,
    ) -> bool {
        let lines = self.place(one, unit).zip(self.place(other, of_other));
        let Some((line, line_of_other)) = lines else {
            return false;
        };
        let mut was_in_use = false;
        for (number, earlier) in by_rank[&one].range((unit.group, 0)..(unit.group, unit.seq)) {
            let Some(partner) = by_rank[&other].get(number) else { continue };
            let places = self.place(one, earlier).zip(self.place(other, partner));
            let Some((place, place_of_other)) = places else { continue };
            let is_same = |a: &Where, b: &Where| a.is_same_line(b);
            match [is_same(place, line), is_same(place_of_other, line_of_other)] {
                [true, true] => return false,
                [false, false] => {}
                _ => was_in_use = true,
            }
        }
        was_in_use
    }

    /// A message that both ranks have made, and whose devices have completed everything before it.
    fn stuck_message(&self) -> Option<StuckMessage> {
        let transfers = self.waits.transfers.iter();
        let ranks: BTreeSet<u32> = transfers.clone().map(|(rank, _)| *rank).collect();
        let sides = transfers.copied().find_map(|(rank, at)| {
            let placed = self.messages.placed(rank, at)?;
            let (peer, partner) = (placed.peer?, placed.partner?);
            ranks.contains(&peer).then_some([(rank, at), (peer, partner)])
        })?;
        let calls = sides.map(|(rank, at)| (rank, &self.calls[&rank].units[at]));
        Some(StuckMessage {
            sides: sides.map(|(rank, at)| (rank, self.numbered_call(rank, at))),
            not_started: self.not_started(&calls),
        })
    }
}

/// Whether the device of a rank has not completed a collective that others completed, although these
/// have made two more than the rank.
fn is_device_behind(group: &DumpedGroup) -> bool {
    let most = |of: fn(&Progress) -> u64| group.progress.values().map(of).max().unwrap_or(0);
    let (issued, completed) = (most(Progress::known), most(|it| it.completed));
    let mut ranks = group.progress.values().filter(|it| it.completed > 0);
    ranks.any(|it| it.completed < completed && it.issued.saturating_add(1) < issued)
}
