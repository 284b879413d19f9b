//! DD405 ddp-bypassed: gradients that DDP does not average.

use crate::findings::ddp::breach;
use crate::findings::draft::Draft;
use crate::situation::contract::Kind;
use crate::situation::{Breach, Situation};
use crate::words::Ranks;

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
             consecutive steps. DDP averages only the gradients of parameters that required one then.",
        );
        draft.advise(
            "Wrap the model again after parameters begin to require gradients, and recreate the optimizer; or \
             freeze them after the wrapping, with find_unused_parameters=True.",
        );
    } else {
        draft.summary = format!(
            "the gradients of {root} come from a backward without DDP's forward{at}: they are not averaged",
        );
        draft.say(format!(
            "In three consecutive steps {root} made no forward of the wrapped model before the backward, \
             but the backward left gradients. DDP averages only gradients of its own forward.",
        ));
        draft.advise("Call the wrapped model itself, not its .module or a method of that.");
    }
    draft.advise("Continue from an earlier checkpoint: the parameters of the ranks have diverged.");
    Some(draft)
}
