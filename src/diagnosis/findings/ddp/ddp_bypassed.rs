//! DD405 ddp-bypassed: gradients are computed without DDP's forward and are not averaged.

use ddp_doctor_proto::catalogue;

use crate::findings::ddp::breach;
use crate::findings::draft::Draft;
use crate::situation::Situation;
use crate::situation::contract::Kind;
use crate::words::{self, Ranks};

/// DD405: gradients that DDP does not average.
pub(crate) fn detect(situation: &Situation<'_>) -> Vec<Draft> {
    let found = breach::of(situation, &catalogue::DD405, |kind| matches!(kind, Kind::Bypassed));
    found
        .into_iter()
        .map(|it| {
            let mut draft = it.draft;
            let report = breach::first_report(situation, it.breach);
            let at = words::at(report.and_then(|report| report.place.as_deref()));
            let root = &draft.root;
            draft.summary = format!(
                "the gradients of {} come from a backward without DDP's forward{at}: they are \
                 not averaged",
                Ranks(root),
            );
            draft.why = vec![format!(
                "In three consecutive steps {} made no forward of the wrapped model before the \
                 backward, but the backward left gradients. DDP averages only gradients of its \
                 own forward.",
                Ranks(root),
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
