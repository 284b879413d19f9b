//! DD902 records-lost: records of ranks were overwritten or dropped before they were read.

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::{Confidence, Fact};

use crate::findings::draft::{Draft, KeyPlace};
use crate::findings::view::last_calls;
use crate::input::provenance::Dumps;
use crate::model::Process;
use crate::situation::Situation;
use crate::words::{NEXT_FOR_DUMPS, Ranks, WHY_FOR_DUMPS, joined, number};

/// DD902: gaps in the records of ranks.
pub(crate) fn draft(situation: &Situation<'_>) -> Option<Draft> {
    let mut lossy: Vec<(u32, &Process)> = situation
        .model
        .processes
        .values()
        .filter(|process| process.lost > 0)
        .filter_map(|process| Some((process.rank?, process)))
        .collect();
    lossy.sort_by_key(|(rank, process)| (*rank, process.pid));
    let &(rank, first) = lossy.first()?;
    let earliest = lossy.iter().map(|(_, process)| process.lost_at).min()?;
    // A process that lost its first records has no earlier time.
    let since = earliest.max(situation.model.started.unwrap_or_default());
    let lost = lossy.iter().fold(0_u64, |sum, (_, process)| sum.saturating_add(process.lost));
    let mut ranks: Vec<u32> = lossy.iter().map(|(rank, _)| *rank).collect();
    ranks.dedup();
    let they = number(&ranks, "it", "they");

    let mut draft = Draft::new(&catalogue::DD902, KeyPlace::Job, since);
    draft.per_rank = last_calls(situation, &ranks);
    let what = format!("{} records", first.lost);
    let missing = vec![Fact::Missing { rank: Some(rank), pid: Some(first.pid), what }];
    if let Some(dumps) = situation.config.provenance.dumps() {
        draft.summary = lost_in_dumps(dumps, &ranks);
        draft.say(WHY_FOR_DUMPS);
        draft.advise(NEXT_FOR_DUMPS);
        draft.blame(ranks, Confidence::Proved);
        return Some(draft.observed(missing));
    }
    draft.summary = format!(
        "{lost} {} of {} {} lost before they were read: what {they} did then is unknown",
        if lost == 1 { "record" } else { "records" },
        Ranks(&ranks),
        if lost == 1 { "was" } else { "were" },
    );
    let each = lossy.iter().map(|(rank, process)| format!("{} of rank {rank}", process.lost));
    draft.say(format!(
        "A black box keeps the latest records of its process, and new records overwrite old ones \
         that were not read in time. Lost: {}.",
        joined(each, ", ")
    ));
    draft.say(format!(
        "How many calls {they} made in each group is counted separately and is not lost. Findings that \
         depend on what {they} did in between have lower confidence, and none of them is proved.",
    ));
    draft.advise(
        "Leave CPU time for ddp-doctor, which reads the black boxes: a core that no rank uses, or \
         less load on the node.",
    );
    draft.blame(ranks, Confidence::Proved);
    Some(draft.observed(missing))
}

/// A sentence on calls that are not among the entries of dumps.
fn lost_in_dumps(dumps: &Dumps, ranks: &[u32]) -> String {
    let lossy = || ranks.iter().filter_map(|rank| dumps.ranks.get(rank));
    let skipped: usize = lossy().map(|dump| dump.skipped).sum();
    let of = format!("{} of {}", number(ranks, "dump", "dumps"), Ranks(ranks));
    if skipped > 0 {
        let (calls, are) = if skipped == 1 { ("call", "is") } else { ("calls", "are") };
        format!("{skipped} {calls} in the {of} cannot be read and {are} unknown")
    } else if lossy().any(|dump| dump.is_cut) {
        format!("the {of} {} early: later calls are unknown", number(ranks, "ends", "end"))
    } else {
        format!("incomplete calls are missing from the {of}: counters alone show them")
    }
}
