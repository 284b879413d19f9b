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
        draft.summary =
            format!("{named} was marked ready twice in one backward pass{at}, on {who}");
        draft.say(
            "DDP expects each gradient once per backward pass: the second time, its bucket may already \
             have been sent.",
        );
        draft.advise(
            "With checkpointing: use_reentrant=False. If each step uses the same parameters in the \
             same way: static_graph=True, without find_unused_parameters.",
        );
        draft.advise(
            "Without checkpointing: run one forward through DDP per backward pass, and do not use its parameters \
             outside it.",
        );
    } else {
        let named = match count.total {
            0 => String::new(),
            _ => format!(" ({})", breach::names(&draft, None, count)),
        };
        draft.summary = format!(
            "the autograd graph of {who} changed in the backward pass{at} although the model was wrapped \
             with static_graph=True{named}"
        );
        draft.say(
            "With static_graph=True, DDP records in the first step which gradients are computed, and \
             how often, and relies on it.",
        );
        draft.why.extend(breach::uses(situation, breach));
        draft.advise(
            "Wrap the model without static_graph=True, and with find_unused_parameters=True if which \
             parts are used depends on the batch.",
        );
    }
    Some(draft)
}
