//! DD403 ready-twice: a gradient was ready twice in one backward, or a static graph changed.

use ddp_doctor_proto::catalogue;

use crate::findings::ddp::breach;
use crate::findings::draft::Draft;
use crate::situation::Situation;
use crate::situation::contract::Kind;
use crate::source::branches::{self, Use};
use crate::words::{self, Ranks};

/// DD403: errors that DDP's reducer raises in the backward.
pub(crate) fn detect(situation: &Situation<'_>) -> Vec<Draft> {
    let is = |kind: &Kind| matches!(kind, Kind::ReadyTwice | Kind::GraphChanged);
    let found = breach::of(situation, &catalogue::DD403, is);
    found
        .into_iter()
        .map(|it| {
            let mut draft = it.draft;
            let report = breach::first_report(situation, it.breach);
            let at = words::at(report.and_then(|report| report.place.as_deref()));
            let named = draft.parameters.first().map(|it| it.name.clone());
            let who = Ranks(&draft.root);
            if matches!(it.breach.kind, Kind::ReadyTwice) {
                let named = named.unwrap_or_else(|| "a parameter".into());
                draft.summary = format!("{named} was ready twice in one backward{at}, on {who}");
                draft.why = vec![
                    "DDP counts each gradient once in a backward: the second time, its bucket \
                     may have been sent already."
                        .into(),
                ];
                draft.next = vec![
                    "With checkpointing: use_reentrant=False. If each step uses the same \
                     parameters in the same way: static_graph=True, without \
                     find_unused_parameters."
                        .into(),
                    "Without it: one forward through DDP for each backward, and no use of its \
                     parameters outside."
                        .into(),
                ];
            } else {
                let total = report.map_or(0, |report| report.total);
                let named = match total {
                    0 => String::new(),
                    total => format!(" ({})", breach::names(&draft, None, total)),
                };
                draft.summary = format!(
                    "the graph of {who} changed in the backward{at}, although static_graph=True \
                     promised that it would not{named}"
                );
                draft.why = vec![
                    "With static_graph=True DDP records in the first step which gradients are \
                     computed, and how often, and relies on it."
                        .into(),
                ];
                let left_out = branches::left_out(situation, it.breach);
                draft.why.extend(left_out.iter().map(Use::sentence));
                draft.next = vec![
                    "Wrap the model without static_graph=True, with find_unused_parameters=True \
                     if it depends on the batch which parts are used."
                        .into(),
                ];
            }
            draft
        })
        .collect()
}
