//! What NCCL's records add to a finding about a c10d call: the NCCL function that ranks are in.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::findings::draft::Draft;
use crate::model::Target;
use crate::situation::Situation;
use crate::words::{Ranks, begin};

/// Sentences that are appended to `why`.
pub(crate) fn why(situation: &Situation<'_>, draft: &Draft) -> Vec<String> {
    let Some((group, seq)) = draft.place else { return Vec::new() };
    let place = Target::Join(group, seq);
    let enough = situation.model.timing.function_wait;
    let mut standing: BTreeMap<&Arc<str>, Vec<u32>> = BTreeMap::new();
    for (rank, process) in situation.model.members(group, &draft.victims) {
        for thread in process.threads.values() {
            let target = thread.last_call.as_ref().and_then(|call| process.target(call.id));
            if let Some((function, since)) = &thread.within
                && target == Some(place)
                && since.plus(enough) <= situation.now
            {
                standing.entry(function).or_default().push(rank);
            }
        }
    }
    let why = standing.into_iter().map(|(function, ranks)| {
        let keeps = if function.contains("Init") || function.contains("Split") {
            "the communicator is still being created, which needs all its ranks"
        } else {
            "NCCL has not returned from it"
        };
        let ranks_are = begin(Ranks(&ranks).with("is", "are"));
        format!("{ranks_are} in {function}, which this call invoked: {keeps}.")
    });
    why.collect()
}
