//! DD602 straggler-input: a rank keeps the others waiting because its data loader is slow.

use ddp_doctor_proto::catalogue;

use crate::findings::draft::Draft;
use crate::findings::speed::straggler;
use crate::situation::Situation;
use crate::speed::lateness::Why;
use crate::words::{self, Capital, Ranks, number};

/// DD602: stragglers with a slow data loader.
pub(crate) fn detect(situation: &Situation<'_>) -> Vec<Draft> {
    let straggler = situation.straggler.iter();
    straggler
        .filter_map(|straggler| {
            let Why::Input { own, others } = straggler.why else {
                return None;
            };
            let ranks = &straggler.ranks;
            let process = situation.model.process_of(*ranks.first()?);
            let place = process.and_then(|process| process.pace.draws_at.as_deref());
            let because = number(
                ranks,
                "because its data loader is slow",
                "because their data loaders are slow",
            );
            let mut draft =
                straggler::draft(&catalogue::DD602, situation, straggler, because, place);
            draft.why.push(format!(
                "{} for batches{} about {} of the time, the others {}.",
                Capital(Ranks(ranks)).to_string() + number(ranks, " waits", " wait"),
                words::at(place),
                straggler::percent(own),
                straggler::percent(others),
            ));
            draft.next = vec![format!(
                "Give the DataLoader of {} more workers (num_workers, prefetch_factor), or check \
                 the storage that its data comes from.",
                Ranks(ranks),
            )];
            Some(draft)
        })
        .collect()
}
