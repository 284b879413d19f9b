//! Progress of a device with the calls enqueued on its streams.
//!
//! Calls on NCCL return at once; streams wait for them. Completion is reported if events are
//! recorded after the calls. Otherwise the only sign is a thread of the program that waits for the
//! device inside the driver, and has made no call of NCCL since.

use std::sync::Arc;

use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_proto::vocabulary::Direction;

use crate::input::event::{Call, Stacks};
use crate::model::{Group, JoinedCall, Model, Process, Side};
use crate::stacks::{self, IDLE, What, is_in_driver};
use crate::timing::Timing;

/// Progress of a device with a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It is complete.
    Complete,
    /// Since this time the stream has been in the call, or in preceding work other than calls of
    /// NCCL.
    Within(Timestamp),
    /// The stream is in an earlier call.
    Behind,
    /// Unknown.
    Unknown,
}

/// Progress of the device of a process with one of its calls.
pub fn progress(process: &Process, call: &Call, timing: &Timing) -> Progress {
    let Some(on) = call.queued_on() else { return Progress::Unknown };
    // A call with a stalled transfer is not complete.
    if let Some(at) = process.standing_of(call.id).map(|(.., at)| at).max() {
        return Progress::Within(at);
    }
    let is_earlier = |queued: &&Arc<Call>| {
        queued.id <= call.id && queued.on_stream.is_some_and(|it| it.stream == on.stream)
    };
    let mut before = process.queued.iter().filter(is_earlier);
    let Some(first) = before.clone().next() else {
        // Completed calls leave the queue, but so do calls beyond its limit.
        return if process.queue_cut { Progress::Unknown } else { Progress::Complete };
    };
    if !before.any(|queued| process.followed.contains(&queued.id)) {
        let is_last = process.has_last_issued(call);
        let rests = is_last.then(|| rests_on_device(process, timing)).flatten();
        return rests.map_or(Progress::Unknown, Progress::Within);
    }
    if process.queue_cut {
        return Progress::Unknown;
    }
    let together = on.launch != 0 && first.on_stream.is_some_and(|it| it.launch == on.launch);
    if first.id == call.id || together {
        Progress::Within(process.completed_at.map_or(call.at, |at| at.max(call.at)))
    } else {
        Progress::Behind
    }
}

/// Whether the device of a process is in an earlier call that it waits for, and that another rank has not made: it
/// has not begun this one.
pub fn is_behind_open_call(model: &Model, process: &Process, rank: u32, call: &Call) -> bool {
    process.groups().map(|id| model.group(id)).filter(|it| it.backend.is_on_stream).any(|group| {
        let from = group.first_open().unwrap_or(u64::MAX);
        let mut joins = group.joins.range(from..);
        let is_earlier = |it: &JoinedCall| {
            let op = it.call.op;
            it.call.id < call.id
                && it.is_awaited()
                && op.direction() == Direction::Symmetric
                && !group.holds_threads(op)
        };
        let mut lones = group.traffic.open().filter(|unmatched| unmatched.rank == rank);
        joins.any(|(&seq, join)| {
            join.calls.get(&rank).is_some_and(is_earlier) && !model.missing(group, seq).is_empty()
        }) || lones.any(|unmatched| {
            let is_awaited =
                unmatched.sure && unmatched.side == Side::Receive && unmatched.is_awaited();
            is_awaited && unmatched.joined.call.id < call.id
        })
    })
}

/// Since when a process has only waited for its device, according to two captures after its latest
/// record; `None` if it does not, or they do not show it.
pub fn rests_on_device(process: &Process, timing: &Timing) -> Option<Timestamp> {
    let [first, last] = stacks::two(&process.stacks, process.last_at, timing)?;
    rests(first, last).then_some(process.last_at)
}

/// Whether the program may be waiting for its device, according to two captures after its latest
/// record.
///
/// Most such waits poll: the thread stays at one line of the program, in a function that is not
/// Python's, and a running thread has no native frames. A computation looks the same, so this is
/// meaningful only if the device has calls that cannot be complete.
pub fn is_waited_for(process: &Process, timing: &Timing) -> bool {
    rests_on_device(process, timing).is_some()
        || stacks::activity(process, timing).is_some_and(|outside| {
            let unknown = outside.inner.is_none() && outside.thread.native.is_empty();
            outside.stays
                && match outside.what {
                    What::Gpu => true,
                    What::Lock | What::Queue | What::Unknown => unknown,
                    _ => false,
                }
        })
}

/// Whether the main thread was in the driver in both captures, and used no CPU time in
/// between.
fn rests(first: &Stacks, last: &Stacks) -> bool {
    let (Some(before), Some(now)) = (first.threads.first(), last.threads.first()) else {
        return false;
    };
    let used = now.cpu_time.zip(before.cpu_time);
    let idle = used
        .is_some_and(|(now, before)| now.saturating_sub(before) * IDLE < last.at.since(first.at));
    before.tid == now.tid && is_in_driver(before) && is_in_driver(now) && idle
}

/// When the last member of a group on NCCL issued the group's last collective, if it is the latest
/// call of every member, and at least one member will not report its completion. No rank is missing:
/// the devices are working, or stuck.
pub fn settled_at(model: &Model, group: &Group) -> Option<Timestamp> {
    let (_, join) = group.entered.last_key_value()?;
    let is_followed = |(rank, joined): (u32, &JoinedCall)| {
        let process = model.member(group.id, rank);
        process.is_some_and(|it| it.followed.contains(&joined.call.id))
    };
    let is_last = |(rank, joined): (u32, &JoinedCall)| {
        let process = model.member(group.id, rank);
        joined.call.on_stream.is_some()
            && !joined.call.is_async
            // The waits of c10d are more informative.
            && joined.call.lower_call.is_none()
            && process.is_some_and(|it| it.has_last_issued(&joined.call))
    };
    let is_settled = join.by_rank().all(is_last) && !join.by_rank().all(is_followed);
    is_settled.then(|| join.last_at())
}

#[cfg(test)]
mod tests {
    use ddp_doctor_proto::report::Where;

    use crate::input::event::ThreadStack;
    use std::time::Duration;

    use super::*;

    fn thread(frames: &[(&str, &str)], cpu: f64) -> ThreadStack {
        let frame = |&(file, function): &(&str, &str)| Where {
            file: file.into(),
            line: 0,
            function: function.into(),
            ..Where::default()
        };
        ThreadStack {
            tid: 7,
            state: Some('S'),
            cpu_time: Some(Duration::from_secs_f64(cpu)),
            native: frames.iter().map(frame).collect(),
            ..ThreadStack::default()
        }
    }

    fn look(at: u64, thread: ThreadStack) -> Stacks {
        Stacks { at: Timestamp(at * 1_000_000_000), threads: vec![thread], ..Stacks::default() }
    }

    const WAITS: [(&str, &str); 4] = [
        ("/usr/lib/libc.so.6", "pthread_cond_wait"),
        ("/usr/lib/libcuda.so.1", ""),
        ("/usr/lib/libcuda.so.1", "cuStreamSynchronize"),
        ("/job/train", "main"),
    ];

    #[test]
    fn thread_waiting_for_its_device_is_inside_the_driver() {
        assert!(is_in_driver(&thread(&WAITS, 0.0)));
        assert!(is_in_driver(&thread(&WAITS[..2], 0.0)), "no frames further out");
        let runtime =
            [("/usr/lib/libc.so.6", "ioctl"), ("/x/libcudart.so.12", "cudaDeviceSynchronize")];
        assert!(is_in_driver(&thread(&runtime, 0.0)));
        let elsewhere =
            [("/usr/lib/libc.so.6", "read"), ("/job/libcuda.so.1/train", "cuStreamSynchronize")];
        assert!(!is_in_driver(&thread(&elsewhere, 0.0)));
        assert!(!is_in_driver(&thread(&[], 0.0)));
    }

    #[test]
    fn thread_without_cpu_time_rests() {
        let at = |at, cpu| look(at, thread(&WAITS, cpu));
        assert!(rests(&at(1, 1.0), &at(6, 1.01)));
        assert!(!rests(&at(1, 1.0), &at(6, 5.0)), "polls or computes");
        assert!(!rests(&at(1, 1.0), &look(6, thread(&[], 1.0))));
        let unknown = ThreadStack { cpu_time: None, ..thread(&WAITS, 0.0) };
        assert!(!rests(&look(1, unknown.clone()), &look(6, unknown)));
    }
}
