//! DD602 straggler-input: a rank keeps the others waiting because its data loader is slow.

use ddp_doctor_proto::catalogue;

use super::straggler;
use super::{About, Detector, Draft, order};
use crate::lateness::Why;
use crate::situation::Situation;
use crate::words::{self, Capital, Ranks, number};

static ABOUT: About = About {
    code: &catalogue::DD602,
    order: order::HINT,
};

/// DD602: stragglers with a slow data loader.
pub(super) struct StragglerInput;

impl Detector for StragglerInput {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn detect(&self, situation: &Situation<'_>) -> Vec<Draft> {
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
                let mut draft = straggler::draft(&ABOUT, situation, straggler, because, place);
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
}
