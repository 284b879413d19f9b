//! DD601 straggler-compute: a rank keeps the others waiting because its own work takes longer.

use ddp_doctor_proto::catalogue;

use crate::findings::draft::Draft;
use crate::findings::speed::straggler;
use crate::situation::Situation;
use crate::speed::lateness::Why;
use crate::words::{Capital, Ranks, number};

/// DD601: stragglers whose own work takes longer.
pub(crate) fn detect(situation: &Situation<'_>) -> Vec<Draft> {
    let straggler = situation.straggler.iter();
    straggler
        .filter_map(|straggler| {
            let Why::Work { ran } = straggler.why else {
                return None;
            };
            let ranks = &straggler.ranks;
            let because = number(
                ranks,
                "because its own work takes longer",
                "because their own work takes longer",
            );
            let mut draft =
                straggler::draft(&catalogue::DD601, situation, straggler, because, None);
            if let Some((own, others)) = ran {
                draft.why.push(format!(
                    "{} neither for input nor for a processor: the main thread runs {} of the \
                     time there, {} on the others.",
                    Capital(Ranks(ranks)).to_string() + number(ranks, " waits", " wait"),
                    straggler::percent(own),
                    straggler::percent(others),
                ));
            }
            draft.next = vec![format!(
                "Compare what {} between two collectives with another rank: ddp-doctor dump, or a \
                 profiler on both. Give all ranks equal work.",
                Ranks(ranks).to_string() + number(ranks, " does", " do"),
            )];
            Some(draft)
        })
        .collect()
}
