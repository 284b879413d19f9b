//! DD405 ddp-bypassed: gradients are computed without DDP's forward and are not averaged.

use ddp_doctor_proto::catalogue;

use super::{About, Detector, Draft, breach, order};
use crate::contract::{self, Kind};
use crate::situation::Situation;
use crate::words::{self, Ranks, number};

static ABOUT: About = About {
    code: &catalogue::DD405,
    order: order::WIRE,
};

/// DD405: gradients that DDP does not average.
pub(super) struct DdpBypassed;

impl Detector for DdpBypassed {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn detect(&self, situation: &Situation<'_>) -> Vec<Draft> {
        let found = breach::of(situation, &ABOUT, |kind| matches!(kind, Kind::Bypassed));
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
}
