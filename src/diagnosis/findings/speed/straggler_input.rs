//! DD602 straggler-input: ranks keep the others waiting because their data loaders are slow.

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::Where;

use crate::delays::lateness::Why;
use crate::findings::draft::Draft;
use crate::findings::speed::coarse::percent;
use crate::findings::speed::straggler::{self, Reason};
use crate::situation::Situation;
use crate::words::{self, Ranks, number};

/// DD602: late ranks that wait for batches.
pub(crate) fn draft(situation: &Situation<'_>) -> Option<Draft> {
    let late = situation.losses.straggler.as_ref()?;
    let Why::Input { own, others } = late.why else { return None };
    let process = late.ranks.first().and_then(|&rank| situation.model.process_of(rank));
    let place = process.and_then(|process| process.pace.draws_at.as_deref());
    let reason = reason(&late.ranks, place, own, others);
    Some(straggler::draft(situation, &catalogue::DD602, late, place, reason))
}

fn reason(ranks: &[u32], place: Option<&Where>, own: f64, others: f64) -> Reason {
    Reason {
        because: number(
            ranks,
            "because its data loader is slow",
            "because their data loaders are slow",
        ),
        measured: Some(format!(
            "{} for batches{} about {} of the time, the others {}.",
            words::begin(Ranks(ranks).with("waits", "wait")),
            words::at(place),
            percent(own),
            percent(others),
        )),
        advice: format!(
            "Give the DataLoader of {} more workers (num_workers, prefetch_factor), or check the \
             storage that its data comes from.",
            Ranks(ranks),
        ),
    }
}
