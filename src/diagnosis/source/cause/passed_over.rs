//! A cause of which the number of calls is the evidence, and the source the reason: one side continued after fewer calls at
//! a line, and one test alone decides on that line.

use std::sync::Arc;

use ddp_doctor_proto::report::{CauseKind, Where};
use ddp_doctor_proto::{GuardForm, GuardSubject};

use crate::guards;
use crate::input::event::Guard;
use crate::model::Process;
use crate::situation::Situation;
use crate::words::{self, Ranks};

use super::loops::is_same_test;
use super::{
    CauseHypothesis, Detail, Mistake, Sides, line_is_guarded, meaning, numbers, supported,
    suspected,
};

/// One side has made its next call, and the other side one more at its line before.
pub(super) struct WentOn<'p> {
    /// The first process of the side that has gone on, and the one of the other side.
    pub(super) first: &'p Process,
    pub(super) other: &'p Process,
    /// The line to which the first one has gone on, and that of the other one.
    pub(super) after: Arc<Where>,
    pub(super) within: Arc<Where>,
    /// How often each of them has made the call at `within`.
    pub(super) calls: [u64; 2],
}

impl Sides<'_> {
    /// Whether `past` has gone on after fewer calls at the line that `in_it` is at. Both had been as often at the line to which
    /// it has gone on.
    pub(super) fn went_on<'p>(
        &self,
        past: &[&'p Process],
        in_it: &[&'p Process],
    ) -> Option<WentOn<'p>> {
        let (first, other) = (*past.first()?, *in_it.first()?);
        let (after, within) = (self.line_at(first)?, self.line_at(other)?);
        let calls = [first, other].map(|it| self.calls_at(it, &within));
        let has_gone_on = self.calls_at(first, &after) == self.calls_at(other, &after) + 1;
        let is_past = after != within && calls[0] < calls[1] && has_gone_on;
        is_past.then_some(WentOn { first, other, after, within, calls })
    }

    /// The same if the two lines differ, and not only the ways through a library from one of them.
    pub(super) fn went_on_to_another_line<'p>(
        &self,
        past: &[&'p Process],
        in_it: &[&'p Process],
    ) -> Option<WentOn<'p>> {
        self.went_on(past, in_it).filter(|it| !it.after.is_same_line(&it.within))
    }

    /// One side has passed over a call that the other side is in, and made the next one instead.
    pub(super) fn passed_over(&self) -> Option<CauseHypothesis> {
        if self.all_left() {
            return None;
        }
        let over = |past: &[&Process], in_it: &[&Process]| {
            let WentOn { first, other, after, within, calls } =
                self.went_on_to_another_line(past, in_it)?;
            if !are_in_one_loop(first, &after, other, &within) {
                return None;
            }
            let (line, guard) = self.only_test(other, &within)?;
            let (here, elsewhere) = (numbers(in_it), numbers(past));
            // A rank that skipped an earlier iteration has the same numbers of calls.
            if guard.subject == GuardSubject::Rank
                && !guards::fits(self.situation.model, guard, &here, &elsewhere)
            {
                return None;
            }
            let kind = meaning(guard, false)?;
            let sides = [&numbers(past)[..], &numbers(in_it)];
            let mistake = Mistake::passed_over(sides, &line, guard, calls[0] > 0);
            let shown = (line, guard);
            if let Some(waited) = self.waited_meanwhile(first, other, &within, guard) {
                let (past, in_it) = (numbers(past), numbers(in_it));
                let because = format!(
                    "{} After this condition, the call of {} was paired with that of {} at {}: {} there while {}.",
                    line_is_guarded(&shown),
                    Ranks(&in_it),
                    Ranks(&past),
                    words::source_line(&waited),
                    Ranks(&past).with("waits", "wait"),
                    Ranks(&in_it).with("decides", "decide"),
                );
                let hypothesis = supported(kind, Some(because)).with_mistake(mistake);
                return Some(hypothesis.with_detail(Detail::Awaited));
            }
            let because = format!(
                "{}. {}",
                counted(&numbers(past), &numbers(in_it), &within, calls),
                line_is_guarded(&shown),
            );
            let hypothesis = supported(kind, Some(because)).with_mistake(mistake);
            Some(self.in_branches(hypothesis.of_test(&shown), &shown))
        };
        over(&self.odd, &self.others).or_else(|| over(&self.others, &self.odd))
    }

    /// The line at which the side that continued waited for the other side when that came to its first call behind the test:
    /// both lines are those of roles, which meet by design. A decision cannot be agreed on there.
    fn waited_meanwhile(
        &self,
        past: &Process,
        in_it: &Process,
        within: &Arc<Where>,
        test: &Guard,
    ) -> Option<Arc<Where>> {
        let (group, seq) = self.place?;
        let history = &self.situation.model.group(group).history;
        let before = history.recent().find(|it| it.seq < seq)?;
        let (own, theirs) = (before.place_of(in_it.rank?)?, before.place_of(past.rank?)?);
        let has_role = |process: &Process, line: &Arc<Where>| {
            let mut around = guards::around(process, line);
            around.any(|(at, it)| at == *line && it.subject == GuardSubject::Rank)
        };
        let is_behind = own == within || guards::around(in_it, own).any(|(_, it)| it == test);
        let are_roles = has_role(in_it, own) && has_role(past, theirs);
        (is_behind && are_roles && !own.is_same_line(theirs)).then(|| Arc::clone(theirs))
    }

    /// One side has not made the call that the other side is in, which is in a `try` block that continues after an exception, and
    /// is outside of it: nothing else in the source leads around the call.
    pub(super) fn left_try(&self) -> Option<CauseHypothesis> {
        let over = |past: &[&Process], in_it: &[&Process]| {
            let WentOn { first, other, after, within, calls } =
                self.went_on_to_another_line(past, in_it)?;
            let mut around = guards::around(other, &within);
            let shown = around.find(|(_, it)| it.form == GuardForm::Catches)?;
            if guards::around(first, &after).any(|(_, it)| it == shown.1) {
                return None;
            }
            let because = format!(
                "{}. {}",
                counted(&numbers(past), &numbers(in_it), &within, calls),
                line_is_guarded(&shown),
            );
            Some(suspected(CauseKind::SwallowedException, Some(because)).with_suspect(&shown))
        };
        if self.all_left() {
            return None;
        }
        over(&self.odd, &self.others).or_else(|| over(&self.others, &self.odd))
    }

    /// The test that decides on the line of `process`, if it is the only one that does not decide on the other side's
    /// line as well.
    fn only_test<'a>(
        &'a self,
        process: &Process,
        within: &Arc<Where>,
    ) -> Option<(Arc<Where>, &'a Guard)> {
        use GuardForm::{Fails, Handles, Holds, Leaves, Returns, Skips};
        let is_around = |found: &(Arc<Where>, &Guard)| {
            let mut around = guards::around(process, within);
            around.any(|(line, guard)| line == found.0 && guard == found.1)
        };
        let mut tests = self.missed();
        tests.retain(is_around);
        let (line, first) = tests.first().cloned()?;
        let is_it = |(at, guard): &(Arc<Where>, &Guard)| *at == line && guard.line == first.line;
        let decides = matches!(first.form, Fails | Handles | Holds | Leaves | Returns | Skips);
        (decides && first.form != Handles && tests.iter().all(is_it)).then_some((line, first))
    }
}

/// The test on the rank that leads `past` around a line which `inside` have reached, although they have been there before:
/// no other value of it fits these ranks.
pub(crate) fn of_test_on_rank(
    situation: &Situation<'_>,
    place: &Arc<Where>,
    inside: &[u32],
    past: &[u32],
) -> Option<CauseHypothesis> {
    let process = situation.model.process_of(*inside.first()?)?;
    let (line, guard) = guards::fitting(situation.model, process, place, inside, past)?;
    let mut others = past.iter().filter_map(|&rank| situation.model.process_of(rank));
    if !others.all(|it| guards::has_passed(it, &line)) {
        return None;
    }
    let because = line_is_guarded(&(Arc::clone(&line), guard));
    let mistake = Mistake::passed_over([past, inside], &line, guard, true);
    Some(supported(CauseKind::RankConditional, Some(because)).with_mistake(mistake))
}

/// How often both sides made the call at a line.
fn counted(past: &[u32], in_it: &[u32], line: &Where, [fewer, more]: [u64; 2]) -> String {
    let line = words::line(line);
    if fewer == 0 {
        let has = words::begin(Ranks(past).with("has not made", "have not made"));
        return format!("{has} the call at {line}");
    }
    let plural = if fewer == 1 { "" } else { "s" };
    format!(
        "{} made {fewer} call{plural} at {line} before going on, {} made {more}",
        words::begin(Ranks(past)),
        Ranks(in_it),
    )
}

/// Whether the loops around the line `within` of one process are also around the line `after` of another one, so that
/// none of them can have ended earlier.
fn are_in_one_loop(
    past: &Process,
    after: &Arc<Where>,
    in_it: &Process,
    within: &Arc<Where>,
) -> bool {
    let loops = |process, line| {
        use GuardForm::{Bounds, Ends, Iterates, Repeats};
        let all = guards::all_around(process, line);
        all.filter(|(_, it)| matches!(it.form, Bounds | Ends | Iterates | Repeats))
    };
    loops(in_it, within).all(|(at, over)| {
        let mut others = loops(past, after);
        others.any(|(line, it)| line.file == at.file && is_same_test(it, over))
    })
}
