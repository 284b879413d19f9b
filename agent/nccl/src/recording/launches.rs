//! Launches: numbers of groups of calls, and the order in which the calls of a group are recorded.

use std::sync::atomic::{AtomicU32, Ordering};

use super::call_records::Work;
use crate::communicators::Communicator;

/// Number of the next launch.
static LAUNCHES: AtomicU32 = AtomicU32::new(1);

/// Returns a new launch number, never 0.
pub(crate) fn next_number() -> u32 {
    LAUNCHES.fetch_add(1, Ordering::Relaxed).max(1)
}

/// Sorts the calls of a group in the order in which all ranks record them: by communicator;
/// collectives by what ranks must agree on, messages in issue order. An insertion sort, since it is
/// stable and the calls are usually sorted already.
pub(crate) fn sort(works: &mut [(&'static Communicator, Work)]) {
    for end in 1..works.len() {
        let mut at = end;
        while at > 0 && key(&works[at]) < key(&works[at - 1]) {
            works.swap(at, at - 1);
            at -= 1;
        }
    }
}

fn key((communicator, work): &(&'static Communicator, Work)) -> impl Ord + use<> {
    (communicator.registered(), work.call.launch_key())
}
