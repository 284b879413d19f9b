//! DD405 ddp-bypassed: gradients are computed without DDP's forward and are not averaged.

use ddp_doctor_proto::catalogue;

use crate::findings::ddp::breach;
use crate::findings::draft::Draft;
use crate::situation::Situation;
use crate::situation::contract::{self, Kind};
use crate::words::{self, Ranks, number};

/// DD405: gradients that DDP does not average.
pub(crate) fn detect(situation: &Situation<'_>) -> Vec<Draft> {
    let found = breach::of(situation, &catalogue::DD405, |kind| {
        matches!(kind, Kind::Bypassed)
    });
    found
        .into_iter()
        .map(|it| {
            let mut draft = it.draft;
            let first = it.breach.root.first();
            let said = first.and_then(|&rank| contract::said_of(situation, it.breach, rank));
            let at = words::at(said.and_then(|said| said.place.as_deref()));
            let root = &draft.root;
            draft.summary = format!(
                "the gradients of {} come from a backward without DDP's forward{at}: they are \
                 not averaged",
                Ranks(root),
            );
            draft.why = vec![format!(
                "In three consecutive steps {} {} no forward of the wrapped model before the \
                 backward, but the backward left gradients. DDP averages only gradients of its \
                 own forward.",
                Ranks(root),
                number(root, "made", "made"),
            )];
            draft.next = vec![
                "Call the wrapped model itself, not its .module or a method of that.".into(),
                "Continue from an earlier checkpoint: the parameters of the ranks have diverged."
                    .into(),
            ];
            draft
        })
        .collect()
}
