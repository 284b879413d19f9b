//! Captures the stacks of all ranks of a job.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_proto::v1;

use super::find::RankProcess;
use super::sleep::ProcessorClocks;
use crate::host::sys;
use crate::node::stacks::{self, native::FunctionCache};

/// Time limit for the capture of one process: a device that does not respond can keep its memory map locked.
const MAX_CAPTURE: Duration = Duration::from_secs(2);

/// One capture of all ranks, in their order.
pub type StackRound = Vec<v1::Stacks>;

/// Captures the stacks of all ranks at once. No rank is stopped. `cache` caches the functions of files.
#[must_use]
pub fn capture_round(ranks: &[RankProcess], cache: &Arc<FunctionCache>) -> StackRound {
    thread::scope(|scope| {
        let captures: Vec<_> = ranks.iter().map(|it| scope.spawn(|| capture(it, cache))).collect();
        captures.into_iter().map(|it| it.join().unwrap_or_default()).collect()
    })
}

fn capture(rank: &RankProcess, cache: &Arc<FunctionCache>) -> v1::Stacks {
    let (pid, start_ticks, cache) = (rank.pid, rank.start_ticks, Arc::clone(cache));
    let captured = sys::within(MAX_CAPTURE, move || {
        let mut stacks = stacks::capture(pid, start_ticks, &cache);
        let mut clocks = ProcessorClocks::default();
        for thread in stacks.threads.iter_mut().filter(|thread| thread.state != "R") {
            let asleep = clocks.asleep(pid, thread.tid);
            thread.asleep_ns = asleep.and_then(|it| u64::try_from(it.as_nanos()).ok());
        }
        stacks
    });
    captured.unwrap_or_else(|| v1::Stacks {
        unix_ns: Timestamp::now().0,
        trouble: format!("its memory could not be read within {} s", MAX_CAPTURE.as_secs()),
        ..v1::Stacks::default()
    })
}
