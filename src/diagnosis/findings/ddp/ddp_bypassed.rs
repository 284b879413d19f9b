//! DD405 ddp-bypassed: gradients that DDP does not average.

use crate::findings::ddp::breach;
use crate::findings::draft::Draft;
use crate::situation::contract::Kind;
use crate::situation::{Breach, Situation};
use crate::words::{Ranks, number};

/// DD405: gradients from outside DDP's forward, or of parameters that DDP does not know.
pub(crate) fn complete_draft(
    situation: &Situation<'_>,
    breach: &Breach,
    mut draft: Draft,
) -> Option<Draft> {
    let (at, count) = breach::first_report(situation, breach);
    let root = Ranks(&draft.root);
    if matches!(breach.kind, Kind::Thawed) {
        let names = breach::names(&draft, None, count);
        draft.summary = format!("the gradients of {names}{at} are not averaged on {root}");
        draft.say(
            "These parameters were frozen when DDP wrapped the model, and have received gradients in three \
             consecutive steps. DDP averages only the gradients of parameters that required gradients at \
             that time.",
        );
        draft.advise(
            "Wrap the module again (DistributedDataParallel(model.module)) after parameters begin to require \
             gradients, and add them to the optimizer if it lacks them; or freeze them after wrapping, with \
             find_unused_parameters=True.",
        );
    } else {
        draft.summary = format!(
            "{} backward without DDP's forward{at}: {} gradients are not averaged",
            Ranks(&draft.root).with("runs", "run"),
            number(&draft.root, "its", "their"),
        );
        draft.say(format!(
            "In three consecutive steps, {root} ran no forward of the wrapped model before backward, yet backward \
             produced gradients. DDP averages only gradients of its own forward.",
        ));
        draft.advise("Call the wrapped model itself, not model.module or one of its methods.");
    }
    draft.advise("Continue from an earlier checkpoint: the parameters of the ranks have diverged.");
    Some(draft)
}
