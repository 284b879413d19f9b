//! DD401 unused-parameters: the same parameters have no gradient on any rank.

use ddp_doctor_proto::catalogue;

use crate::findings::ddp::breach;
use crate::findings::draft::Draft;
use crate::situation::Situation;
use crate::situation::contract::Kind;
use crate::source::branches::{self, Use};
use crate::words;

/// DD401: gradients missing on all ranks.
pub(crate) fn detect(situation: &Situation<'_>) -> Vec<Draft> {
    let found = breach::of(situation, &catalogue::DD401, |kind| matches!(kind, Kind::Unused));
    found
        .into_iter()
        .map(|it| {
            let mut draft = it.draft;
            let report = breach::first_report(situation, it.breach);
            let total = report.map_or(0, |report| report.total);
            let names = breach::names(&draft, None, total);
            let at = words::at(report.and_then(|report| report.place.as_deref()));
            draft.summary = format!("no rank has a gradient for {names} after the backward{at}");
            let parameters = match total {
                1 => "1 parameter".to_owned(),
                total => format!("{total} parameters"),
            };
            draft.why = vec![format!(
                "DDP averages gradients once it has all of them. {parameters} of the model had \
                 none when the backward was over, the same on every rank: averaging did not \
                 complete, and DDP raises at the next forward."
            )];
            let left_out = branches::left_out(situation, it.breach);
            draft.why.extend(left_out.iter().map(Use::sentence));
            draft.next = vec![
                "Delete these parameters, or freeze them before the model is wrapped; or let \
                 what they compute be part of the loss."
                    .into(),
                "If that depends on the batch: DistributedDataParallel(…, \
                 find_unused_parameters=True)."
                    .into(),
            ];
            draft
        })
        .collect()
}
