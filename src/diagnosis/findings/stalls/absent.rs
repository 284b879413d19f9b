//! Shared by the findings about a live rank that is missing: the stall, and the rank's last line.

use ddp_doctor_proto::catalogue::Code;
use ddp_doctor_proto::report::{Confidence, Timestamp};

use crate::findings::draft::Draft;
use crate::findings::stalls::message;
use crate::findings::stalls::timeout::limit;
use crate::input::event::Call;
use crate::model::Process;
use crate::situation::{Situation, Stall};
use crate::stacks;
use crate::words::{self, Ranks, number};

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
    /// They have ended since: sentences about what they did use the past tense.
    pub(crate) have_ended: bool,
    /// They were watched, none of their records is lost, and the job was not interrupted.
    all_seen: bool,
    /// What they do may end by itself, and the wait for them with it.
    pub(crate) may_end: bool,
}

impl<'a> Absent<'a> {
    /// The absent ranks of a stall: `ranks`, or all missing ones if `ranks` is empty.
    pub(crate) fn new(situation: &Situation<'a>, ranks: &[u32], stall: &'a Stall) -> Option<Self> {
        let missing = || stall.missing.iter().map(|absent| absent.rank).collect();
        let ranks = if ranks.is_empty() { missing() } else { ranks.to_vec() };
        let members = situation.model.members(stall.group, &ranks);
        let processes: Vec<&Process> = members.map(|(_, process)| process).collect();
        let mut calls = situation.calls(stall).into_iter();
        let (_, waiting) = calls.find(|(rank, _)| stall.waiting.contains(rank))?;
        let due = situation.overdue_at(stall);
        let mut ends_of_watch = processes.iter().map(|process| process.unwatched);
        let watched = ends_of_watch.all(|end| end.is_none_or(|since| since >= due));
        let cut_short = situation.is_cut_short(stall);
        let is_past = cut_short || processes.iter().any(|process| process.unwatched.is_some());
        let all_seen = processes.iter().all(|process| process.lost == 0) && watched && !cut_short;
        let may_end = situation.may_end(stall, &ranks);
        let have_ended = !processes.is_empty() && processes.iter().all(|it| it.has_ended());
        let call = &waiting.call;
        Some(Self {
            ranks,
            processes,
            stall,
            call,
            watched,
            is_past,
            have_ended,
            all_seen,
            may_end,
        })
    }

    /// The absent ranks of the first of these stalls that is overdue; `None` if a test on the rank
    /// explains it.
    pub(crate) fn of_overdue(
        situation: &Situation<'a>,
        ranks: &[u32],
        mut stalls: impl Iterator<Item = &'a Stall>,
    ) -> Option<Self> {
        let stall = stalls.find(|stall| situation.is_overdue(stall))?;
        if stall.rank_guard.is_some() {
            return None;
        }
        Self::new(situation, ranks, stall)
    }

    /// A draft without sentences: they are the root cause, ranks that wait in `stalls` its victims.
    pub(crate) fn draft(
        &self,
        situation: &Situation<'_>,
        code: &'static Code,
        stalls: &[&Stall],
        evidence_at: Timestamp,
    ) -> Draft {
        let mut draft = message::draft(situation, code, self.stall, self.call, evidence_at);
        draft.root = self.ranks.clone();
        if !self.all_seen {
            draft.confidence = Confidence::Suspected;
        }
        draft.root_confidence = draft.confidence;
        if self.may_end {
            draft.confidence = Confidence::Suspected;
        }
        draft.set_victims(Stall::victims(stalls));
        // An absent rank is shown at the line of its stack.
        draft.show_at(|rank| {
            let process = self.processes.iter().find(|process| process.rank == Some(rank))?;
            stacks::activity(process, &situation.model.timing)?.line
        });
        draft
    }

    /// "all_reduce #5 of the default group needs all its ranks."
    pub(crate) fn needs_all(&self, situation: &Situation<'_>) -> String {
        message::needs(situation, self.stall, self.call)
    }

    /// "rank 0 waits for it in all_reduce #5"
    pub(crate) fn awaited(&self, draft: &Draft) -> String {
        format!("{} in {}", draft.waits_for_root(), words::call(self.call))
    }

    /// When the waiting ranks give up: "Rank 0 gives up at 12:31:07, 30 min after its call."
    pub(crate) fn gives_up(&self, situation: &Situation<'_>) -> String {
        let group = situation.model.group(self.stall.group);
        let (length, timeout) = limit(group, &self.stall.waiting);
        let waiting = Ranks(&self.stall.waiting);
        let gave_up = self.stall.failed || self.stall.timed_out.is_some();
        format!(
            "{} at {}: the timeout of {} is {timeout}.",
            words::begin(if gave_up {
                waiting.with("gave up", "gave up")
            } else {
                waiting.with("gives up", "give up")
            }),
            words::clock(self.stall.since.plus(length)),
            words::group(&group.info),
        )
    }

    /// Whether the wait has outlived the timeout of the group, or all earlier waits by far.
    pub(crate) fn is_late_by_far(&self, situation: &Situation<'_>) -> bool {
        /// Times the longest earlier wait, and times the stall limit.
        const FAR: u32 = 10;
        let stall = self.stall;
        let (length, _) = limit(situation.model.group(stall.group), &stall.waiting);
        let usual = situation.usual_wait(stall);
        let multiple = usual.max(situation.config.stall_after) * FAR;
        let far = if usual.is_zero() { length } else { multiple.min(length) };
        let gave_up = stall.failed || stall.timed_out.is_some();
        gave_up || stall.since.plus(far) <= situation.until
    }

    /// "Rank 1 is", "Ranks 1 and 2 are"; "was", "were" in the past.
    pub(crate) fn are(&self) -> String {
        format!("{} {}", words::begin(Ranks(&self.ranks)), self.copula())
    }

    /// "is" or "are", "was" or "were".
    pub(crate) fn copula(&self) -> &'static str {
        if self.is_past {
            number(&self.ranks, "was", "were")
        } else {
            number(&self.ranks, "is", "are")
        }
    }
}
