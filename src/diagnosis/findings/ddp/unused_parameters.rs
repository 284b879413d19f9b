//! DD401 unused-parameters: the same parameters have no gradient on any rank.

use crate::findings::ddp::breach;
use crate::findings::draft::Draft;
use crate::situation::{Breach, Situation};
use crate::words::{self, Ranks};

/// DD401: gradients missing on all ranks.
pub(crate) fn complete_draft(
    situation: &Situation<'_>,
    breach: &Breach,
    mut draft: Draft,
) -> Option<Draft> {
    let (at, count) = breach::first_report(situation, breach);
    let names = breach::names(&draft, None, count);
    let group = &situation.model.group(breach.group).info;
    let is_of_all = !group.unstated.members && breach.root.len() == group.key.members.len();
    let lacking = Ranks(&breach.root).with("has no", "have no");
    let who = if is_of_all { "no rank has a".to_owned() } else { lacking };
    draft.summary = format!("{who} gradient for {names} after the backward{at}");
    let on = if is_of_all { "the same on every rank" } else { "as far as the evidence goes" };
    let plural = if count.total == 1 { "" } else { "s" };
    let count = words::begin(count);
    draft.say(format!(
        "DDP averages gradients once it has all of them. {count} parameter{plural} of the model had none \
         when the backward finished, {on}: averaging did not complete, and DDP \
         raises at the next forward."
    ));
    if !is_of_all {
        draft.say(format!(
            "Whether the other ranks have these gradients is unknown: a rank that has them waits for {}.",
            Ranks(&breach.root)
        ));
    }
    draft.why.extend(breach::uses(situation, breach));
    draft.advise(
        "Delete these parameters, or freeze them before the model is wrapped; or make what they compute \
         part of the loss.",
    );
    draft.advise(
        "If that depends on the batch: DistributedDataParallel(…, find_unused_parameters=True).",
    );
    Some(draft)
}
