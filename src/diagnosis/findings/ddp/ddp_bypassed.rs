//! DD405 ddp-bypassed: gradients are computed without DDP's forward and are not averaged.

use crate::findings::ddp::breach;
use crate::findings::draft::Draft;
use crate::situation::{Breach, Situation};
use crate::words::Ranks;

/// DD405: gradients that DDP does not average.
pub(crate) fn tell(situation: &Situation<'_>, breach: &Breach, mut draft: Draft) -> Option<Draft> {
    let (at, _) = breach::first_report(situation, breach);
    let root = Ranks(&draft.root);
    draft.summary = format!(
        "the gradients of {root} come from a backward without DDP's forward{at}: they are not averaged",
    );
    draft.say(format!(
        "In three consecutive steps {root} made no forward of the wrapped model before the backward, \
         but the backward left gradients. DDP averages only gradients of its own forward.",
    ));
    draft.advise("Call the wrapped model itself, not its .module or a method of that.");
    draft.advise("Continue from an earlier checkpoint: the parameters of the ranks have diverged.");
    Some(draft)
}
