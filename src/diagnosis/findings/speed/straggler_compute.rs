//! DD601 straggler-compute: ranks keep the others waiting because their own work takes longer.

use ddp_doctor_proto::catalogue;

use crate::delays::lateness::Why;
use crate::findings::draft::Draft;
use crate::findings::speed::coarse::percent;
use crate::findings::speed::straggler::{self, Reason};
use crate::situation::Situation;
use crate::words::{self, Ranks, number};

/// Share of the time, of 1, below which it is not known that a rank works.
const IDLE: f64 = 0.05;

/// DD601: late ranks that wait for nothing.
pub(crate) fn draft(situation: &Situation<'_>) -> Option<Draft> {
    let late = situation.losses.straggler.as_ref()?;
    let Why::Work { ran } = late.why else { return None };
    let reason = reason(&late.ranks, ran);
    Some(straggler::draft(situation, &catalogue::DD601, late, None, reason))
}

fn reason(ranks: &[u32], ran: Option<(f64, f64)>) -> Reason {
    let measured = ran.map(|(own, others)| {
        format!(
            "{} neither for input nor for a CPU: {} {} of the time, those of the others {}.",
            words::begin(Ranks(ranks).with("waits", "wait")),
            number(ranks, "its main thread runs", "their main threads run"),
            percent(own),
            percent(others),
        )
    });
    // Other threads may compute, a device may, or it sleeps.
    let is_idle = ran.is_some_and(|(own, _)| own < IDLE);
    Reason {
        because: if is_idle {
            number(
                ranks,
                "because it takes longer between two collectives",
                "because they take longer between two collectives",
            )
        } else {
            number(
                ranks,
                "because its own work takes longer",
                "because their own work takes longer",
            )
        },
        measured,
        advice: format!(
            "Compare what {} and another rank do between two collectives: ddp-doctor dump, or a \
             profiler on both. Give all ranks equal work.",
            Ranks(ranks),
        ),
    }
}
