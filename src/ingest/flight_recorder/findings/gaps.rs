//! Findings on missing evidence, in the words for dumps.

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::{CallState, Finding};

use crate::diagnosis::words::{Ranks, number};
use crate::ingest::flight_recorder::dump::Dump;
use crate::ingest::flight_recorder::replay::{Replay, WaitDuration};

/// Makes the sentences of a finding on missing evidence those of dumps.
pub(super) fn explain(finding: &mut Finding, replay: &Replay<'_>) {
    if is_about_ends(finding) {
        let ranks = std::mem::take(&mut finding.ranks.root);
        // A rank whose last call is complete may be behind the others.
        for call in &mut finding.per_rank {
            if matches!(call.state, CallState::Returned | CallState::Completed) {
                call.state = CallState::NotIssued;
            }
        }
        let (what, why) = match replay.wait_duration {
            WaitDuration::AtMost(most) => (
                "whether the job hangs",
                format!(
                    "The dumps were written at most {} s after the first call that is not \
                     complete: the job may go on.",
                    most.as_secs() + 1,
                ),
            ),
            _ => (
                "which rank the others wait for",
                "A dump shows its process at one moment. Calls of these ranks are incomplete."
                    .into(),
            ),
        };
        finding.summary = format!("the dumps of {} do not show {what}", Ranks(&ranks));
        finding.ranks.victims = ranks;
        finding.why = vec![why];
        finding.next = vec![
            "Compare the calls in which the ranks wait with those of dumps written later, or with \
             the stacks of the ranks (py-spy dump)."
                .into(),
        ];
    } else if catalogue::is_gap(&finding.code) {
        finding.why = vec![
            "A process that ends abruptly writes no dump, and a dump shows no later calls.".into(),
        ];
        finding.next = vec![
            "Add dumps of these ranks that were written with the others (TORCH_FR_DUMP_TEMP_FILE \
             names where), or look into the logs of these ranks."
                .into(),
        ];
    }
    if finding.code == catalogue::DD902.code {
        finding.summary = about_lost(&finding.ranks.root, replay);
    }
}

/// A sentence on calls that are not among the entries of dumps.
fn about_lost(ranks: &[u32], replay: &Replay<'_>) -> String {
    let lossy = ranks.iter().filter_map(|rank| replay.job.ranks.get(rank));
    let lossy: Vec<&Dump> = lossy.collect();
    let skipped: usize = lossy.iter().map(|dump| dump.skipped).sum();
    let of = format!("{} of {}", number(ranks, "dump", "dumps"), Ranks(ranks));
    if skipped > 0 {
        format!("calls in the {of} cannot be read ({skipped} in all): they are unknown")
    } else if lossy.iter().any(|dump| dump.cut.is_some()) {
        format!("the {of} {} early: later calls are unknown", number(ranks, "ends", "end"))
    } else {
        format!("incomplete calls are missing from the {of}: counters alone show them")
    }
}

/// Whether a finding states that the ends of processes were not recorded, which holds for all
/// dumps.
pub(super) fn is_about_ends(finding: &Finding) -> bool {
    finding.code == catalogue::DD901.code && finding.summary.starts_with("it is unknown how")
}
