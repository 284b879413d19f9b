//! DD401 unused-parameters: the same parameters have no gradient on any rank.

use crate::findings::ddp::breach;
use crate::findings::draft::Draft;
use crate::situation::{Breach, Situation};

/// DD401: gradients missing on all ranks.
pub(crate) fn tell(situation: &Situation<'_>, breach: &Breach, mut draft: Draft) -> Option<Draft> {
    let (at, total) = breach::first_report(situation, breach);
    let names = breach::names(&draft, None, total);
    draft.summary = format!("no rank has a gradient for {names} after the backward{at}");
    let plural = if total == 1 { "" } else { "s" };
    draft.say(format!(
        "DDP averages gradients once it has all of them. {total} parameter{plural} of the model had \
         none when the backward was over, the same on every rank: averaging did not complete, and DDP \
         raises at the next forward."
    ));
    draft.why.extend(breach::uses(situation, breach));
    draft.advise(
        "Delete these parameters, or freeze them before the model is wrapped; or let what they \
         compute be part of the loss.",
    );
    draft.advise(
        "If that depends on the batch: DistributedDataParallel(…, find_unused_parameters=True).",
    );
    Some(draft)
}
