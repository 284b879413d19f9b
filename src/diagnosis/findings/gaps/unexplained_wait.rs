//! DD901 evidence-incomplete: a wait beyond the stall limit for which the evidence names no missing rank.

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::{Confidence, Timestamp};

use crate::findings::draft::{Draft, KeyPlace};
use crate::findings::stalls::unexplained::unexplained;
use crate::findings::view::last_call;
use crate::input::event::Call;
use crate::model::Process;
use crate::situation::Situation;
use crate::words::{self, Ranks, number};

/// DD901: ranks that wait for longer than the stall limit although no stall explains it. Without
/// another finding, the job cannot be judged.
pub(crate) fn detect(situation: &Situation<'_>) -> Option<Draft> {
    // Ranks that were never seen are reported as such.
    if situation.model.has_unseen() {
        return None;
    }
    let processes = situation.model.processes.values();
    let waits: Vec<(&Process, (&Call, Timestamp))> =
        processes.filter_map(|process| Some((process, unexplained(situation, process)?))).collect();
    let (_, (call, _)) = *waits.first()?;
    let mut ranks: Vec<u32> = waits.iter().filter_map(|(process, _)| process.rank).collect();
    ranks.sort_unstable();
    ranks.dedup();
    let due = waits.iter().map(|(_, (_, due))| *due).min()?;
    let mut draft = Draft::new(&catalogue::DD901, KeyPlace::Ranks(ranks.clone()), due);
    draft.summary = format!(
        "{} waited in {} for longer than the stall limit, and the evidence does not show what {} for",
        Ranks(&ranks).with("has", "have"),
        words::call_at(call),
        number(&ranks, "it waits", "they wait"),
    );
    draft.say(
        "No member of the group is known to be missing from the call, so the other ranks may not be \
         captured, or may count as another job.",
    );
    draft.advise("Find out what all ranks do now: ddp-doctor dump.");
    draft.blame(ranks, Confidence::Suspected);
    draft.per_rank =
        waits.iter().filter_map(|(process, _)| Some(last_call(process.rank?, process))).collect();
    draft.confidence = Confidence::Supported;
    Some(draft)
}
