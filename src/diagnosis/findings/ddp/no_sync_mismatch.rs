//! DD406 no-sync-mismatch: ranks leave `no_sync` at different training forwards.

use ddp_doctor_proto::report::CauseKind;

use crate::findings::draft::Draft;
use crate::situation::contract::Kind;
use crate::situation::{Breach, Situation};
use crate::source::cause;
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
    draft.say(format!(
        "Under no_sync a backward sends nothing, so ranks must leave it at the same forward.{}",
        match boundary.agreed {
            0 => String::new(),
            agreed => format!(" They did up to forward {agreed}."),
        },
    ));
    draft.advise(
        "Derive the boundary from the index of the batch on every rank, and give all ranks the same \
         number of batches.",
    );
    let calls = draft.per_rank.iter();
    let backwards = calls.filter(|it| some.contains(&it.rank));
    let chosen = cause::of_values(situation, backwards);
    draft.explain(chosen.unwrap_or(cause::suspected(CauseKind::LocalDecision, None)));
    Some(draft)
}
