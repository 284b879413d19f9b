//! Why ranks of a cycle wait for each other: each of them makes the call that another one needs, but only after its own.

use std::collections::BTreeSet;
use std::sync::Arc;

use ddp_doctor_proto::report::{CauseKind, Where};
use ddp_doctor_proto::{GuardForm, GuardSubject};

use crate::findings::stalls::cycle::common_line;
use crate::input::event::Guard;
use crate::model::{Process, Side};
use crate::situation::Situation;
use crate::source::cause::{self, CauseHypothesis, Detail, Mistake};
use crate::source::guards;
use crate::waits::Blocked;
use crate::words::{self, Ranks};

/// A rank of a cycle with its line.
type Standing<'a> = (&'a Process, &'a Arc<Where>);

/// All ranks of the cycle are at one line of an exchange, where each sends, or each receives. It is their first one, or one
/// of them has exchanged messages in another branch before.
pub(crate) fn of_exchange(situation: &Situation<'_>, cycle: &[Blocked]) -> Option<CauseHypothesis> {
    let line = common_line(cycle)?;
    let all = standing(situation, cycle)?;
    let first = cycle.first()?.message.as_ref()?.side;
    let messages = || cycle.iter().filter_map(|wait| wait.message.as_ref());
    let is_alike = messages().all(|it| it.side == first && it.peer.is_some());
    if messages().count() < cycle.len() || !is_alike || !guards::have_one_way(&all) {
        return None;
    }
    let ranks: Vec<u32> = {
        let distinct: BTreeSet<u32> = cycle.iter().map(|wait| wait.rank).collect();
        distinct.into_iter().collect()
    };
    let (does, not) = match first {
        Side::Send => ("send before they receive", "posted a receive"),
        Side::Receive => ("receive before they send", "sent a message"),
    };
    let at = words::at(Some(line));
    let every = if ranks.len() == 2 { "both" } else { "all" };
    let (because, clause) = if messages().all(|it| it.nth == 1) {
        (
            format!(
                "All of these ranks wait at the same line, in the first call between them: none has {not} yet.",
            ),
            format!("{} {every} {does}{at}", Ranks(&ranks)),
        )
    } else {
        let mut changed = all.iter().filter_map(|it| other_branch(it));
        let (rank, guard) = changed.next()?;
        if changed.next().is_some() {
            return None;
        }
        let branch = if guard.form == GuardForm::Fails { "branch" } else { "`else` branch" };
        let test = format!("`if {}` (line {})", guard.test, guard.line);
        (
            format!(
                "Rank {rank} took the {branch} of {test} before. In the branch that it is in now, all ranks of the cycle \
                 {does}.",
            ),
            format!(
                "rank {rank} left the {branch} of {test} that it took before: {} now {every} {does}{at}",
                Ranks(&ranks)
            ),
        )
    };
    let reading = cause::supported(CauseKind::SwappedCalls, Some(because));
    Some(reading.with_mistake(Mistake::new(&[], clause)).with_detail(Detail::Exchange))
}

/// One of two ranks is in a branch of a test on the rank, and the source shows that the branch of the other one makes the
/// counterpart of its call as well, but after the call in which that rank waits.
pub(crate) fn of_branches(situation: &Situation<'_>, cycle: &[Blocked]) -> Option<CauseHypothesis> {
    let [one, other] = cycle else { return None };
    let of = |first: &Blocked, second: &Blocked| {
        let process = situation.model.member(first.group, first.rank)?;
        let (here, there) = (first.call.place.as_ref()?, second.call.place.as_ref()?);
        let is_one_function = (&here.file, &here.function) == (&there.file, &there.function);
        let follows = |guard: &Guard| {
            guard.other.filter(|it| it.makes_call).filter(|it| {
                let contains = (it.first..=it.last).contains(&there.line);
                contains || here.line < there.line && there.line < it.first
            })
        };
        let mut tests = guards::around(process, here);
        let (guard, branch) = tests.find_map(|(line, guard)| {
            let is_own = line == *here && guard.subject == GuardSubject::Rank;
            Some((guard, follows(guard).filter(|_| is_own)?))
        })?;
        if !is_one_function {
            return None;
        }
        let lines = if branch.first == branch.last {
            format!("line {}", branch.first)
        } else {
            format!("lines {}–{}", branch.first, branch.last)
        };
        let (a, b) = (first.rank, second.rank);
        let because = format!(
            "The test `{}` (line {}) leads rank {a} to its {} first. The branch of rank {b} ({lines}) makes the counterpart as \
             well, but rank {b} gets there only after its {} at line {}.",
            guard.test, guard.line, first.call.op, second.call.op, there.line,
        );
        let clause = format!(
            "rank {a} calls {} at {} before {}, rank {b} calls {} at line {} first",
            first.call.op,
            words::source_line(here),
            second.call.op,
            second.call.op,
            there.line,
        );
        let reading = cause::supported(CauseKind::SwappedCalls, Some(because));
        Some(reading.with_mistake(Mistake::new(&[], clause)))
    };
    of(one, other).or_else(|| of(other, one))
}

/// All ranks of the cycle came to one line for the first time, each with another group.
pub(crate) fn of_groups(situation: &Situation<'_>, cycle: &[Blocked]) -> Option<CauseHypothesis> {
    let line = common_line(cycle)?;
    let all = standing(situation, cycle)?;
    let groups: BTreeSet<_> = cycle.iter().map(|wait| wait.group).collect();
    let is_first = |(process, place): &Standing<'_>| process.places.calls(place) == 1;
    if groups.len() < cycle.len() || !all.iter().all(is_first) || !guards::have_one_way(&all) {
        return None;
    }
    let because =
        format!("Each of these ranks has come to {} once, with another group.", words::line(line));
    Some(cause::suspected(CauseKind::SwappedCalls, Some(because)))
}

/// The ranks of a cycle with their lines, if all are known.
fn standing<'a>(situation: &'a Situation<'_>, cycle: &'a [Blocked]) -> Option<Vec<Standing<'a>>> {
    let all = cycle.iter().map(|wait| {
        let process = situation.model.member(wait.group, wait.rank)?;
        Some((process, wait.call.place.as_ref()?))
    });
    all.collect()
}

/// The nearest test around the line of a rank in whose other branch the rank has made calls before.
fn other_branch<'a>(standing: &Standing<'a>) -> Option<(u32, &'a Guard)> {
    let (process, place) = *standing;
    let mut tests = guards::around(process, place);
    let (_, guard) = tests.find(|(line, guard)| guards::has_been_beside(process, line, guard))?;
    Some((process.rank?, guard))
}
