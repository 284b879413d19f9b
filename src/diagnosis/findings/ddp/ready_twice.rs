//! DD403 ready-twice: a gradient was ready twice in one backward, or a static graph changed.

use crate::findings::ddp::breach;
use crate::findings::draft::Draft;
use crate::situation::contract::Kind;
use crate::situation::{Breach, Situation};
use crate::words::Ranks;

/// DD403: errors that DDP's reducer raises in the backward.
pub(crate) fn complete_draft(
    situation: &Situation<'_>,
    breach: &Breach,
    mut draft: Draft,
) -> Option<Draft> {
    let (at, count) = breach::first_report(situation, breach);
    let who = Ranks(&draft.root);
    if matches!(breach.kind, Kind::ReadyTwice) {
        let named = draft.parameters.first().map_or("a parameter", |it| &it.name);
        draft.summary = format!("{named} was ready twice in one backward{at}, on {who}");
        draft.say(
            "DDP counts each gradient once in a backward: the second time, its bucket may have been \
             sent already.",
        );
        draft.advise(
            "With checkpointing: use_reentrant=False. If each step uses the same parameters in the \
             same way: static_graph=True, without find_unused_parameters.",
        );
        draft.advise(
            "Without checkpointing: one forward through DDP for each backward, and no use of its parameters \
             outside.",
        );
    } else {
        let named = match count.total {
            0 => String::new(),
            _ => format!(" ({})", breach::names(&draft, None, count)),
        };
        draft.summary = format!(
            "the graph of {who} changed in the backward{at}, although static_graph=True promised that \
             it would not{named}"
        );
        draft.say(
            "With static_graph=True DDP records in the first step which gradients are computed, and \
             how often, and relies on it.",
        );
        draft.why.extend(breach::uses(situation, breach));
        draft.advise(
            "Wrap the model without static_graph=True, with find_unused_parameters=True if it depends \
             on the batch which parts are used.",
        );
    }
    Some(draft)
}
