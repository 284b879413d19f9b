//! Shared by the findings about a live rank that is missing: the stall, and the rank's last line.

use ddp_doctor_proto::catalogue::Code;
use ddp_doctor_proto::report::{Confidence, RankCall, Timestamp};

use crate::evidence::event::Call;
use crate::findings::draft::Draft;
use crate::findings::hang::message;
use crate::findings::view::with_place;
use crate::model::Process;
use crate::situation::{Situation, Stall};
use crate::stacks;
use crate::timing::Timing;
use crate::words::{self, Capital, Ranks, number};

/// Live ranks that others wait for.
pub(crate) struct Absent<'a> {
    /// The ranks.
    pub(crate) ranks: Vec<u32>,
    /// Their processes.
    pub(crate) processes: Vec<&'a Process>,
    /// The stall that they cause.
    pub(crate) stall: &'a Stall,
    /// A call in which a rank waits for them.
    pub(crate) call: &'a Call,
    /// Their processes were watched until the stall became reportable. A process that is not
    /// watched may have ended.
    pub(crate) watched: bool,
    /// One of them is no longer watched, or the job was interrupted: sentences use the past tense.
    pub(crate) is_past: bool,
    /// They were watched, none of their records is lost, and the job was not interrupted.
    all_seen: bool,
}

impl<'a> Absent<'a> {
    /// The absent ranks of a stall: `ranks`, or all missing ones if `ranks` is empty.
    pub(crate) fn of(situation: &Situation<'a>, ranks: &[u32], stall: &'a Stall) -> Option<Self> {
        let missing = || stall.missing.iter().map(|absent| absent.rank).collect();
        let ranks = if ranks.is_empty() { missing() } else { ranks.to_vec() };
        let processes: Vec<&Process> =
            ranks.iter().filter_map(|&rank| situation.model.member(stall.group, rank)).collect();
        let mut calls = situation.calls(stall).into_iter();
        let (_, waiting) = calls.find(|(rank, _)| stall.waiting.contains(rank))?;
        let due = situation.overdue_at(stall);
        let mut ends_of_watch = processes.iter().map(|process| process.unwatched);
        let watched = ends_of_watch.all(|end| end.is_none_or(|since| since >= due));
        let cut_short = situation.is_cut_short(stall);
        let is_past = cut_short || processes.iter().any(|process| process.unwatched.is_some());
        let all_seen = processes.iter().all(|process| process.lost == 0) && watched && !cut_short;
        Some(Self { ranks, processes, stall, call: &waiting.call, watched, is_past, all_seen })
    }

    /// A draft without sentences: they are the root cause, ranks that wait in `stalls` its victims.
    pub(crate) fn draft(
        &self,
        situation: &Situation<'_>,
        code: &'static Code,
        stalls: &[&Stall],
        evidence_at: Timestamp,
    ) -> Draft {
        let stall = self.stall;
        let mut draft = Draft::new(code, message::key(stall), evidence_at);
        draft.place = Some((stall.group, stall.seq));
        draft.op = Some(self.call.op);
        draft.root = self.ranks.clone();
        draft.confidence = self.confidence();
        draft.root_confidence = self.confidence();
        draft.victims = Stall::victims(stalls);
        draft.victims.retain(|rank| !self.ranks.contains(rank));
        let calls = message::stalled_calls(situation, stall);
        draft.per_rank =
            calls.into_iter().map(|call| self.at_its_line(call, &situation.model.timing)).collect();
        draft.blocked_at = Some(stall.since);
        draft
    }

    /// Confidence of a finding about them.
    pub(crate) const fn confidence(&self) -> Confidence {
        if self.all_seen { Confidence::Supported } else { Confidence::Suspected }
    }

    /// The row of a rank, at the line of its stack if the rank is absent and its stack shows one.
    fn at_its_line(&self, call: RankCall, timing: &Timing) -> RankCall {
        let mut processes = self.processes.iter();
        match processes.find(|process| process.rank == Some(call.rank)) {
            Some(process) => {
                let line = stacks::of(process, timing).and_then(|outside| outside.line);
                with_place(call, line)
            }
            None => call,
        }
    }

    /// "all_reduce #5 of the default group needs all its ranks."
    pub(crate) fn needs_all(&self, situation: &Situation<'_>) -> String {
        message::needs(situation, self.stall, self.call)
    }

    /// "rank 0 waits for it in all_reduce #5"
    pub(crate) fn awaited(&self, victims: &[u32]) -> String {
        format!(
            "{} {} for {} in {}",
            Ranks(victims),
            number(victims, "waits", "wait"),
            number(&self.ranks, "it", "them"),
            words::call(self.call)
        )
    }

    /// "Rank 1 is", "Ranks 1 and 2 are"; "was", "were" in the past.
    pub(crate) fn are(&self) -> String {
        format!("{} {}", Capital(Ranks(&self.ranks)), self.be())
    }

    /// "is" or "are", "was" or "were".
    pub(crate) fn be(&self) -> &'static str {
        if self.is_past {
            number(&self.ranks, "was", "were")
        } else {
            number(&self.ranks, "is", "are")
        }
    }
}
