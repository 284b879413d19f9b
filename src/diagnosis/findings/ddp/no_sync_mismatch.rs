//! DD406 no-sync-mismatch: ranks leave `no_sync` at different training forwards.

use std::sync::Arc;

use ddp_doctor_proto::GuardForm;
use ddp_doctor_proto::report::{CauseKind, Where};

use crate::findings::draft::Draft;
use crate::guards;
use crate::input::event::Guard;
use crate::situation::contract::{Boundary, Kind};
use crate::situation::{Breach, Situation};
use crate::source::cause::{self, Mistake};
use crate::words::{self, Ranks, number};

/// DD406: different boundaries of gradient accumulation.
pub(crate) fn complete_draft(
    situation: &Situation<'_>,
    breach: &Breach,
    mut draft: Draft,
) -> Option<Draft> {
    let Kind::Boundaries(boundary) = &breach.kind else { return None };
    let (some, others) = (&boundary.synchronize, &boundary.accumulate);
    let group = &situation.model.group(breach.group).info;
    let call = match (draft.op, draft.place) {
        (Some(op), Some((_, seq))) => format!(", in {op} #{seq}{}", words::of_group(group)),
        _ => String::new(),
    };
    draft.summary = format!(
        "at their training forward {}, {} gradients and {} only {}; {}{call}",
        boundary.forward,
        Ranks(some).with("averages", "average"),
        Ranks(others),
        number(others, "accumulates", "accumulate"),
        Ranks(some).with("waits", "wait"),
    );
    draft.set_victims(some.iter().chain(others).copied());
    let apart = apart_since(situation, boundary);
    draft.say(format!(
        "A backward pass that only accumulates sends nothing, so all ranks must average at the same forward.{}",
        match (boundary.agreed, apart) {
            (0, Some(first)) => format!(
                " They have not done so since forward {first}: until forward {}, averages of different batches were paired \
                 without an error.",
                boundary.forward,
            ),
            (0, None) => String::new(),
            (agreed, _) => format!(" They did up to forward {agreed}."),
        },
    ));
    if apart.is_some() {
        draft.advise(
            "Continue from an earlier checkpoint: gradients averaged so far mix different batches.",
        );
    }
    draft.advise(
        "Decide from values that all ranks share which backward pass averages: for example the batch index, with the same \
         number of batches on every rank.",
    );
    draft.mistake = boundary_at(situation, boundary, &draft);
    let calls = draft.per_rank.iter();
    let backwards = calls.filter(|it| some.contains(&it.rank));
    let chosen = cause::of_values(situation, backwards);
    draft.explain(chosen.unwrap_or(cause::suspected(CauseKind::LocalDecision, None)));
    Some(draft)
}

/// The first forward at which some of the ranks averaged gradients, if all of them have done so before this one, and never
/// at the same forward.
fn apart_since(situation: &Situation<'_>, boundary: &Boundary) -> Option<u64> {
    let first_of = |ranks: &[u32]| {
        let process = situation.model.process_of(*ranks.first()?)?;
        process.accumulation.first_synchronized().filter(|first| *first < boundary.forward)
    };
    let (one, other) = (first_of(&boundary.synchronize)?, first_of(&boundary.accumulate)?);
    (boundary.agreed == 0).then(|| one.min(other))
}

/// The backward that averages gradients on some ranks only, and the test that decides on it if the source shows one.
fn boundary_at(situation: &Situation<'_>, boundary: &Boundary, draft: &Draft) -> Option<Mistake> {
    let (some, others) = (&boundary.synchronize, &boundary.accumulate);
    let averages = draft.per_rank.iter().find(|it| some.contains(&it.rank))?;
    let line = Arc::new(averages.place.clone()?);
    let process = situation.model.process_of(averages.rank)?;
    // A test chooses between two ways to run the backward only if it has another branch.
    let chooses = |(at, test): &(Arc<Where>, &Guard)| {
        at.is_same_line(&line)
            && test.other.is_some()
            && matches!(test.form, GuardForm::Holds | GuardForm::Fails)
    };
    let test = guards::around(process, &line)
        .find(chooses)
        .map(|(_, it)| format!(" (`{}`, line {})", it.test, it.line));
    let clause = format!(
        "at training forward {}, {} gradients at {}, and {} only {} them{}",
        boundary.forward,
        Ranks(some).with("averages", "average"),
        words::source_line(&line),
        Ranks(others),
        number(others, "accumulates", "accumulate"),
        test.unwrap_or_default(),
    );
    Some(Mistake::new(&[], clause))
}
