//! What NCCL's records add to a finding about a c10d call: the NCCL function that ranks are in.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::findings::draft::Draft;
use crate::model::Target;
use crate::situation::Situation;
use crate::words::{Capital, Ranks, number};

/// Sentences that are appended to `why`.
pub(crate) fn why(situation: &Situation<'_>, draft: &Draft) -> Vec<String> {
    let Some((group, seq)) = draft.place else {
        return Vec::new();
    };
    let place = Target::Join(group, seq);
    let mut why = Vec::new();
    let enough = situation.model.timing.function_wait;
    let mut standing: BTreeMap<&Arc<str>, Vec<u32>> = BTreeMap::new();
    for &rank in &draft.victims {
        let process = situation.model.member(group, rank);
        let threads = process.into_iter().flat_map(|it| it.threads.values());
        for thread in threads {
            let of_place = thread
                .last_call
                .as_ref()
                .is_some_and(|call| process.and_then(|it| it.target(call.id)) == Some(place));
            if let Some((function, since)) = &thread.within
                && of_place
                && since.plus(enough) <= situation.now
            {
                standing.entry(function).or_default().push(rank);
            }
        }
    }
    for (function, ranks) in standing {
        let keeps = if function.contains("Init") || function.contains("Split") {
            "the communicator is still being created, which needs all its ranks"
        } else {
            "NCCL has not returned from it"
        };
        why.push(format!(
            "{} {} in {function}, which the call leads to: {keeps}.",
            Capital(Ranks(&ranks)),
            number(&ranks, "stands", "stand"),
        ));
    }
    why
}
