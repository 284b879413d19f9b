//! Progress of network transfers, for "kernels".
//!
//! NCCL's proxy reports every step of every transfer, too much to record. The reports only update
//! the time of the last progress. A thread polls these times and records transfers that have
//! stalled, and that they continue or end.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ddp_doctor_agent::blackbox::TransferProgress;
use ddp_doctor_proto::blackbox::transfer;

use super::events::{self, Event};
use super::layout::{ProxyOp, kind, state};
use crate::cuda::driver;
use crate::recording::black_box;

/// A transfer without progress for this long is recorded; any step takes much less.
const LONG: Duration = Duration::from_secs(2);
/// Polling interval.
const EVERY: Duration = Duration::from_millis(250);
/// Maximum number of stalled transfers that are recorded at a time.
const MAX_RECORDED: usize = 64;

/// Progress of a transfer or of one of its steps.
#[derive(Debug)]
pub(super) struct Progress {
    /// Time of the last progress in nanoseconds of [`now`]; 0: unknown, or the event has ended.
    moved_at: AtomicU64,
    is_send: AtomicBool,
    channel: AtomicU8,
    /// Rank of the peer in the communicator.
    peer: AtomicI32,
    /// Transfer: number of steps. Step: its index.
    steps: AtomicI32,
    /// Number of completed steps.
    done: AtomicU32,
    /// State of a step, one of [`state`].
    state: AtomicI32,
}

impl Progress {
    pub(super) const fn new() -> Self {
        Self {
            moved_at: AtomicU64::new(0),
            is_send: AtomicBool::new(false),
            channel: AtomicU8::new(0),
            peer: AtomicI32::new(-1),
            steps: AtomicI32::new(0),
            done: AtomicU32::new(0),
            state: AtomicI32::new(0),
        }
    }

    /// Called when the event ends.
    pub(super) fn forget(&self) {
        self.moved_at.store(0, Ordering::Release);
    }

    fn moves(&self) {
        self.moved_at.store(now(), Ordering::Release);
    }
}

/// Nanoseconds since the first call of this function, plus 1.
fn now() -> u64 {
    static BEGINNING: OnceLock<Instant> = OnceLock::new();
    let beginning = BEGINNING.get_or_init(Instant::now);
    u64::try_from(beginning.elapsed().as_nanos()).map_or(u64::MAX, |it| it.saturating_add(1))
}

/// Transfers are monitored.
static IS_ON: AtomicBool = AtomicBool::new(false);

/// Whether transfers are monitored.
pub(super) fn is_on() -> bool {
    IS_ON.load(Ordering::Relaxed)
}

/// Starts to monitor transfers.
pub(super) fn watch() {
    if IS_ON.swap(true, Ordering::AcqRel) {
        return;
    }
    now();
    /// Stack size of the thread.
    const STACK: usize = 256 << 10;
    let builder = thread::Builder::new().name("ddp-nccl-net".into()).stack_size(STACK);
    let start = || {
        builder.spawn(|| {
            let mut recorded = Vec::with_capacity(MAX_RECORDED);
            loop {
                thread::sleep(EVERY);
                look(&mut recorded);
            }
        })
    };
    drop(driver::without_signals(start));
}

// --- Reports of the proxy ------------------------------------------------------------------------

/// Called when a transfer begins.
pub(super) fn begins(event: &Event, op: &ProxyOp) {
    let progress = &event.progress;
    progress.is_send.store(op.is_send != 0, Ordering::Relaxed);
    progress.channel.store(op.channel, Ordering::Relaxed);
    progress.peer.store(op.peer, Ordering::Relaxed);
    progress.steps.store(op.steps, Ordering::Relaxed);
    progress.done.store(0, Ordering::Relaxed);
    progress.moves();
}

/// Called when a step of a transfer begins.
pub(super) fn step_begins(event: &Event, number: i32) {
    let progress = &event.progress;
    progress.steps.store(number, Ordering::Relaxed);
    progress.state.store(0, Ordering::Relaxed);
    progress.moves();
    with_transfer(event, Progress::moves);
}

/// Called when the state of a step or a transfer changes.
pub(super) fn comes_to(event: &Event, state: i32) {
    event.progress.state.store(state, Ordering::Relaxed);
    event.progress.moves();
    if event.kind() == kind::PROXY_STEP {
        with_transfer(event, Progress::moves);
    }
}

/// Called when a step is complete.
pub(super) fn step_ends(event: &Event) {
    with_transfer(event, |transfer| {
        transfer.done.fetch_add(1, Ordering::Relaxed);
        transfer.moves();
    });
}

/// Runs `work` on the transfer of a step.
fn with_transfer(step: &Event, work: impl FnOnce(&Progress)) {
    let of = events::find(step.parent.load(Ordering::Relaxed));
    if let Some(of) = of.filter(|it| it.kind() == kind::PROXY_OP) {
        work(&of.progress);
    }
}

// --- Recording -----------------------------------------------------------------------------------

/// A stalled transfer that was recorded.
struct RecordedStall {
    /// Number of its event.
    number: usize,
    /// Time of its last progress when it was recorded.
    moved_at: u64,
    standing: TransferProgress,
}

fn look(recorded: &mut Vec<RecordedStall>) {
    recorded.retain(|it| {
        let still = moved_at(it.number) == Some(it.moved_at);
        if !still {
            record(&TransferProgress {
                waits_for: transfer::MOVES,
                stood: Duration::ZERO,
                ..it.standing
            });
        }
        still
    });
    let now = now();
    for (number, event) in events::under_way(kind::PROXY_OP) {
        let Some(moved_at) = moved_at(number) else {
            continue;
        };
        let stood = Duration::from_nanos(now.saturating_sub(moved_at));
        let is_recorded = || recorded.iter().any(|it| it.number == number);
        if stood < LONG || recorded.len() == MAX_RECORDED || is_recorded() {
            continue;
        }
        let Some(standing) = standing(number, event, stood) else {
            continue;
        };
        // The values are consistent only if there was no progress while they were read.
        if self::moved_at(number) == Some(moved_at) {
            record(&standing);
            recorded.push(RecordedStall { number, moved_at, standing });
        }
    }
}

/// Time of a transfer's last progress; `None`: it has ended.
fn moved_at(number: usize) -> Option<u64> {
    let event = events::find(number).filter(|it| it.is_under_way(number))?;
    Some(event.progress.moved_at.load(Ordering::Acquire)).filter(|&it| it != 0)
}

/// State of a stalled transfer; `None`: its call is unknown.
fn standing(number: usize, event: &Event, stood: Duration) -> Option<TransferProgress> {
    let asked = || events::find(event.parent.load(Ordering::Relaxed)).map(Event::call);
    let call = [event.call(), asked().unwrap_or(0)].into_iter().find(|&it| it != 0)?;
    let progress = &event.progress;
    let is_send = progress.is_send.load(Ordering::Relaxed);
    let steps = events::under_way(kind::PROXY_STEP)
        .filter(|(_, step)| step.parent.load(Ordering::Relaxed) == number);
    // Later steps wait for the earliest incomplete one.
    let first = steps.min_by_key(|(_, step)| step.progress.steps.load(Ordering::Relaxed));
    let state = first.map_or(0, |(_, step)| step.progress.state.load(Ordering::Relaxed));
    Some(TransferProgress {
        call,
        is_send,
        peer: progress.peer.load(Ordering::Relaxed),
        channel: progress.channel.load(Ordering::Relaxed),
        done: progress.done.load(Ordering::Relaxed),
        steps: u32::try_from(progress.steps.load(Ordering::Relaxed)).unwrap_or(0),
        waits_for: waits_for(state),
        stood,
    })
}

/// Maps the state of a step to the cause of its wait.
const fn waits_for(state: i32) -> i32 {
    match state {
        state::SEND_GPU_WAIT | state::RECV_GPU_WAIT | state::RECV_FLUSH_WAIT => transfer::DEVICE,
        state::SEND_PEER_WAIT => transfer::PEER,
        state::SEND_WAIT | state::RECV_WAIT => transfer::NETWORK,
        _ => transfer::UNKNOWN,
    }
}

fn record(standing: &TransferProgress) {
    if let Some(writer) = black_box::own() {
        writer.transfer(standing);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stall_is_that_of_the_first_incomplete_step() {
        let (call, of_call) = events::begin(kind::COLL, 0).unwrap();
        of_call.recorded(9);
        let (number, op) = events::begin(kind::PROXY_OP, call).unwrap();
        begins(op, &ProxyOp { pid: 0, channel: 3, peer: 5, steps: 8, chunk: 1, is_send: 1 });
        let step = |step: i32, state: i32| {
            let (number, event) = events::begin(kind::PROXY_STEP, number).unwrap();
            step_begins(event, step);
            comes_to(event, state);
            (number, event)
        };
        let (done, event) = step(0, state::SEND_WAIT);
        step_ends(event);
        event.end(done);
        step(1, state::SEND_WAIT);
        step(2, state::SEND_GPU_WAIT);
        let found = standing(number, op, LONG).unwrap();
        assert_eq!((found.call, found.channel, found.peer), (9, 3, 5));
        assert_eq!((found.done, found.steps), (1, 8));
        assert_eq!(found.waits_for, transfer::NETWORK);
        assert!(moved_at(number).is_some());
        op.end(number);
        assert_eq!(moved_at(number), None);
    }
}
