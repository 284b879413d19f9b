//! Causes of calls at one line with different values: what decides on the value.

use std::sync::Arc;

use ddp_doctor_proto::report::{CauseKind, RankCall, Where};
use ddp_doctor_proto::{GuardForm, GuardSubject};

use crate::guards;
use crate::input::align::{Mismatch, by_key};
use crate::input::event::Guard;
use crate::model::{Join, Process};
use crate::situation::Situation;
use crate::stacks::is_users;
use crate::words::{self, Ranks};

use super::{
    CauseHypothesis, Detail, Mistake, Sides, Suspect, line_is_guarded, supported, suspected,
};

/// Maximum number of different roots named in a headline.
const MAX_ROOTS: usize = 3;

/// The test that decides on a value which `calls` use, all of them at one line, so that their values
/// may differ.
pub fn of_values<'a>(
    situation: &Situation<'_>,
    calls: impl IntoIterator<Item = &'a RankCall>,
) -> Option<CauseHypothesis> {
    let calls = calls.into_iter();
    let mut places = calls.filter_map(|it| Some((it.rank, it.place.as_ref()?)));
    let (rank, place) = places.next()?;
    if !places.all(|(_, other)| place.is_same_line(other)) {
        return None;
    }
    let line = Arc::new(place.clone());
    let (kind, guard) = choice(situation.model.process_of(rank)?, &line, GuardForm::Chooses)?;
    let shown = (line, guard);
    let hypothesis = suspected(kind, Some(line_is_guarded(&shown))).with_suspect(&shown);
    Some(CauseHypothesis { same_path: true, ..hypothesis })
}

/// The statement that computes from the rank the size of a tensor which a process uses at a line.
pub(crate) fn of_size(process: &Process, place: &Arc<Where>) -> Option<CauseHypothesis> {
    let shown = guards::size_of_rank(process, place)?;
    let (line, guard) = &shown;
    let because = format!(
        "The size follows from the rank: `{}` ({}).",
        guard.test,
        words::source_line(&Where { line: guard.line, ..Where::clone(line) })
    );
    let hypothesis = suspected(CauseKind::RankConditional, Some(because)).with_suspect(&shown);
    Some(CauseHypothesis { same_path: true, ..hypothesis })
}

/// The test that decides how often a loop around a line runs, unless it has the same result on all of these ranks.
pub(crate) fn of_length(
    situation: &Situation<'_>,
    process: &Process,
    place: &Arc<Where>,
    ranks: &[u32],
) -> Option<CauseHypothesis> {
    let (kind, guard) = choice(process, place, GuardForm::Bounds)?;
    if guards::is_equal_on(situation.model, guard, ranks) {
        return None;
    }
    let shown = (Arc::clone(place), guard);
    let hypothesis = suspected(kind, Some(line_is_guarded(&shown))).with_suspect(&shown);
    Some(hypothesis.with_detail(Detail::Loop))
}

impl Sides<'_> {
    /// Both sides made the call at one line, with different values.
    pub(super) fn values(&self) -> Option<CauseHypothesis> {
        let (group, seq) = self.place?;
        let join = self.situation.join(group, seq)?;
        let call_of = |side: &[&Process]| {
            let rank = side.first()?.rank?;
            Some((rank, &join.calls.get(&rank)?.call))
        };
        join.mismatch?;
        let ((a, odd), (b, other)) = (call_of(&self.odd)?, call_of(&self.others)?);
        let (line, there) = (odd.place.as_ref()?, other.place.as_ref()?);
        if !is_users(&line.file) || !line.is_same_line(there) {
            return None;
        }
        let [its, theirs] = [odd, other].map(|call| words::signature(call));
        // Sizes of calls with splits differ by design.
        let is_of_splits = matches!(join.mismatch, Some((Mismatch::Splits, _)));
        let calls = (its != theirs && !is_of_splits).then(|| {
            let [here, below] = [line, there].map(|it| words::line(it));
            if here == below {
                return format!("At the line {here}, rank {a} calls {its}, and rank {b} {theirs}.");
            }
            let [its, theirs] = [(its, line), (theirs, there)].map(|(call, line)| {
                let feature = line.features().pop().map(|it| format!(" (in {})", it.function));
                call + &feature.unwrap_or_default()
            });
            let line = words::source_line(line);
            format!("At the line {line}, rank {a} calls {its}, and rank {b} {theirs}.")
        });
        let process = self.odd.first()?;
        let is_of_size = matches!(join.mismatch, Some((Mismatch::Size, _)));
        if is_of_size
            && line == there
            && let Some(sized) = of_size(process, line)
        {
            let because = words::joined(calls.into_iter().chain(sized.because), " ");
            return Some(CauseHypothesis { because: Some(because), ..sized });
        }
        if matches!(join.mismatch, Some((Mismatch::Root, _)))
            && line == there
            && let Some(rooted) = self.root(join, line)
        {
            return Some(rooted);
        }
        let chosen = choice(process, line, GuardForm::Chooses);
        // Different ways through a library are not a difference of values.
        if line != there && chosen.is_none() {
            return None;
        }
        let mut around = guards::around(process, line);
        let unordered = around.find(|(_, guard)| guard.form == GuardForm::Iterates);
        let (kind, shown, same_path) = match (chosen, unordered) {
            (Some((kind, guard)), _) => (kind, Some((Arc::clone(line), guard)), true),
            (None, Some(unordered)) => (CauseKind::SwappedCalls, Some(unordered), false),
            // That values differ does not show why.
            (None, None) => (CauseKind::Unknown, None, true),
        };
        // Where a value comes from: one assignment back. That of a gradient follows from its parameter.
        let is_of_value = !odd.is_bucket()
            && matches!(join.mismatch, Some((Mismatch::Size | Mismatch::DType, _)));
        let computed = guards::computed(process, line)
            .find(|_| is_of_value && shown.is_none())
            .map(|it| format!("The value is computed at line {}: `{}`.", it.line, it.test));
        let guarded = shown.as_ref().map(line_is_guarded);
        let because = words::joined(calls.into_iter().chain(guarded).chain(computed), " ");
        let hypothesis = suspected(kind, Some(because).filter(|it| !it.is_empty()));
        let suspect = shown.map(|(line, guard)| Suspect::new(&line, guard));
        Some(CauseHypothesis { same_path, suspect, ..hypothesis })
    }

    /// The root of the call at a line follows from the rank: an expression in the source has the value of each root.
    fn root(&self, join: &Join, line: &Arc<Where>) -> Option<CauseHypothesis> {
        let process = *self.odd.first()?;
        let named = join.calls.iter().map(|(&rank, it)| Some((rank, it.call.root?)));
        let roots: Vec<(u32, u32)> = named.collect::<Option<_>>()?;
        let (at, it) = guards::root_of_rank(self.situation.model, process, line, &roots)?;
        let computed = words::source_line(&Where { line: it.line, ..Where::clone(&at) });
        let because = format!(
            "The root is the value of `{}` ({computed}), which differs between ranks.",
            it.test
        );
        let op = join.calls.values().next()?.call.op;
        let classes = by_key(roots.iter().copied(), |root| *root);
        let named = classes.iter().take(MAX_ROOTS);
        let each = named.map(|(root, ranks)| format!("{root} on {}", Ranks(ranks)));
        let more = classes.len().checked_sub(MAX_ROOTS).filter(|it| *it > 0);
        let each = each.chain(more.map(|more| format!("{more} others")));
        let clause = format!(
            "{op} at {} takes its root from the rank (`{}`): {}",
            words::source_line(line),
            it.test,
            words::joined(each, ", ")
        );
        let hypothesis = supported(CauseKind::RankConditional, Some(because))
            .with_mistake(Mistake::new(&[], clause));
        Some(CauseHypothesis { same_path: true, ..hypothesis })
    }
}

/// The first test of this form that decides on a value which differs between ranks, and the kind of
/// cause that it indicates. A test on the rank comes first.
pub(super) fn choice<'a>(
    process: &'a Process,
    line: &Arc<Where>,
    form: GuardForm,
) -> Option<(CauseKind, &'a Guard)> {
    let choices = || guards::choices(process, line, form);
    let of_rank = choices().find(|it| it.subject == GuardSubject::Rank);
    let guard = of_rank.or_else(|| choices().find(|it| decided_by(it).is_some()))?;
    Some((decided_by(guard)?, guard))
}

/// The kind of cause that the subject of a test or of a collection indicates, if values follow from it.
pub(super) const fn decided_by(guard: &Guard) -> Option<CauseKind> {
    use GuardSubject::{Clock, Data, Finite, Rank, State};
    match guard.subject {
        Rank => Some(CauseKind::RankConditional),
        Data | Finite => Some(CauseKind::DataDependentPath),
        State | Clock => Some(CauseKind::LocalDecision),
        _ => None,
    }
}
