//! Captures the stacks of all ranks of a job, twice.

use std::thread;
use std::time::{Duration, Instant};

use ddp_doctor_proto::v1;

use super::find::RankProcess;
use super::sleep::ProcessorClocks;
use crate::node::stacks::{self, native::FunctionCache};

/// One capture of all ranks, in their order.
pub type Look = Vec<v1::Stacks>;

/// Captures the stacks of all ranks at once, some time apart. No rank is stopped.
#[must_use]
pub fn looks(ranks: &[RankProcess], count: usize, apart: Duration, cache: &FunctionCache) -> Vec<Look> {
    let mut looks = Vec::with_capacity(count);
    for number in 0..count {
        let started = Instant::now();
        looks.push(look(ranks, cache));
        if number + 1 < count {
            thread::sleep(apart.saturating_sub(started.elapsed()));
        }
    }
    looks
}

fn look(ranks: &[RankProcess], cache: &FunctionCache) -> Look {
    let of = |it: &RankProcess| {
        let mut stacks = stacks::capture(it.pid, it.start_ticks, cache);
        let mut clocks = ProcessorClocks::default();
        let asleep = stacks.threads.iter_mut().filter(|thread| thread.state != "R");
        for thread in asleep {
            let time = clocks.asleep(it.pid, thread.tid);
            thread.asleep_ns = time.and_then(|it| u64::try_from(it.as_nanos()).ok());
        }
        stacks
    };
    thread::scope(|scope| {
        let captures: Vec<_> = ranks.iter().map(|it| scope.spawn(|| of(it))).collect();
        captures.into_iter().map(|it| it.join().unwrap_or_default()).collect()
    })
}
