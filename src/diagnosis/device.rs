//! How far a device has come with the calls that were put on its streams.
//!
//! A call of NCCL comes back at once; what waits for it is a stream. That a call is complete is told where
//! events are put behind calls. Where they are not, there is one thing to go by: a thread of the program
//! that stands in the driver and waits for the device, while nothing was asked of NCCL since.

use std::sync::Arc;

use ddp_doctor_proto::report::{Timestamp, Where};

use super::event::{Call, Stacks, ThreadStack};
use super::model::{Group, Model, Process};
use super::outside::{self, What};
use super::timing::Timing;

/// A thread that uses less than one part in so many of the time waits.
const IDLE: u32 = 20;
/// Libraries that wait for a device on behalf of a program.
const DRIVERS: [&str; 2] = ["libcuda.so", "libcudart.so"];

/// How far a device has come with a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It is complete.
    Complete,
    /// The stream is in it, or in what is before it and no call of NCCL's, since then.
    Within(Timestamp),
    /// The stream is in an earlier call.
    Behind,
    /// Nobody knows.
    Unknown,
}

/// How far the device of a process has come with a call of its.
#[must_use]
pub fn progress(process: &Process, call: &Call, timing: &Timing) -> Progress {
    let Some(on) = call.queued_on() else {
        return Progress::Unknown;
    };
    // What is under way on the network is not complete.
    if let Some(at) = process.standing_of(call.id).map(|(.., at)| at).max() {
        return Progress::Within(at);
    }
    let before = |queued: &&Arc<Call>| {
        queued.id <= call.id && queued.on_stream.is_some_and(|it| it.stream == on.stream)
    };
    let mut before = process.queued.iter().filter(before);
    let Some(first) = before.clone().next() else {
        // What is complete is taken out of the queue, and what is too much.
        return match process.queue_cut {
            true => Progress::Unknown,
            false => Progress::Complete,
        };
    };
    if !before.any(|queued| process.followed.contains(&queued.id)) {
        let is_last = process
            .last_call
            .as_ref()
            .is_some_and(|last| last.id == call.id);
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

/// Since when a process has done nothing but wait for its device, by two looks since it last wrote a
/// record; `None`: it does not, or they do not show it.
#[must_use]
pub fn rests_on_device(process: &Process, timing: &Timing) -> Option<Timestamp> {
    let mut looks = process.stacks.iter().rev();
    let mut looks = looks.by_ref().filter(|look| look.at >= process.last_at);
    let last = looks.next()?;
    let first = looks.find(|first| last.at.since(first.at) >= timing.capture_separation)?;
    rests(first, last).then_some(process.last_at)
}

/// Whether a program stands where it waits for its device, by two looks since it last wrote a record.
///
/// Who waits for a device mostly does so by looking at it again and again, without a pause: it stays at one line of
/// its program, in a function that is not Python's, and of a thread that runs no native frames are to be had. So
/// does one that computes. Therefore this says something of a program only that has given its device what cannot be
/// complete.
#[must_use]
pub fn is_waited_for(process: &Process, timing: &Timing) -> bool {
    rests_on_device(process, timing).is_some()
        || outside::of(process, timing).is_some_and(|outside| {
            let unknown = outside.inner.is_none() && outside.thread.native.is_empty();
            outside.stays
                && match outside.what {
                    What::Gpu => true,
                    What::Lock | What::Unknown => unknown,
                    _ => false,
                }
        })
}

/// Whether the program's main thread stood in the driver at both looks, and used no time in between.
fn rests(first: &Stacks, last: &Stacks) -> bool {
    let (Some(before), Some(now)) = (first.threads.first(), last.threads.first()) else {
        return false;
    };
    let used = now.cpu_time.zip(before.cpu_time);
    let idle = used
        .is_some_and(|(now, before)| now.saturating_sub(before) * IDLE < last.at.since(first.at));
    before.tid == now.tid && is_in_driver(before) && is_in_driver(now) && idle
}

/// Whether a thread that sleeps was called from the driver. By which function the program asked it is not
/// always to be had: what is below it may be built without what leads outwards.
pub(super) fn is_in_driver(thread: &ThreadStack) -> bool {
    let is_driver = |frame: &Where| {
        let name = frame.file.rsplit('/').next().unwrap_or_default();
        DRIVERS.iter().any(|driver| name.starts_with(driver))
    };
    thread.native.iter().any(is_driver)
}

/// The last collective of a group of NCCL's, where it is the last thing that each of its members has asked
/// of NCCL, and when the last of them did: nobody is waited for, and the devices are at work, or stand.
#[must_use]
pub fn settled_at(model: &Model, group: &Group) -> Option<(u64, Timestamp)> {
    let (&seq, join) = group.entered.last_key_value()?;
    let is_last = |(rank, joined): (u32, &super::model::JoinedCall)| {
        let process = model.member(group.id, rank);
        let last = process.and_then(|process| process.last_call.as_ref());
        joined.call.on_stream.is_some()
            && !joined.call.is_async
            // c10d's own waits tell more.
            && joined.call.beneath.is_none()
            && last.is_some_and(|last| last.id == joined.call.id)
    };
    join.all().all(is_last).then(|| (seq, join.last_at()))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn thread(frames: &[(&str, &str)], cpu: f64) -> ThreadStack {
        let frame = |&(file, function): &(&str, &str)| Where {
            file: file.into(),
            line: 0,
            function: function.into(),
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
        Stacks {
            at: Timestamp(at * 1_000_000_000),
            threads: vec![thread],
            ..Stacks::default()
        }
    }

    const WAITS: [(&str, &str); 4] = [
        ("/usr/lib/libc.so.6", "pthread_cond_wait"),
        ("/usr/lib/libcuda.so.1", ""),
        ("/usr/lib/libcuda.so.1", "cuStreamSynchronize"),
        ("/job/train", "main"),
    ];

    #[test]
    fn a_thread_that_waits_for_its_device_is_known_by_the_driver() {
        assert!(is_in_driver(&thread(&WAITS, 0.0)));
        assert!(
            is_in_driver(&thread(&WAITS[..2], 0.0)),
            "it leads no further"
        );
        let runtime = [
            ("/usr/lib/libc.so.6", "ioctl"),
            ("/x/libcudart.so.12", "cudaDeviceSynchronize"),
        ];
        assert!(is_in_driver(&thread(&runtime, 0.0)));
        let elsewhere = [
            ("/usr/lib/libc.so.6", "read"),
            ("/job/libcuda.so.1/train", "cuStreamSynchronize"),
        ];
        assert!(!is_in_driver(&thread(&elsewhere, 0.0)));
        assert!(!is_in_driver(&thread(&[], 0.0)));
    }

    #[test]
    fn it_rests_where_it_used_no_time() {
        let at = |at, cpu| look(at, thread(&WAITS, cpu));
        assert!(rests(&at(1, 1.0), &at(6, 1.01)));
        assert!(!rests(&at(1, 1.0), &at(6, 5.0)), "it polls, or computes");
        assert!(!rests(&at(1, 1.0), &look(6, thread(&[], 1.0))));
        let unknown = ThreadStack {
            cpu_time: None,
            ..thread(&WAITS, 0.0)
        };
        assert!(!rests(&look(1, unknown.clone()), &look(6, unknown)));
    }
}
