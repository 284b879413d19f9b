//! How long a rank may stay away from its peers: what it waits for, or that it computes.

use std::time::Duration;

use ddp_doctor_proto::report::Timestamp;

use crate::input::event::{ChildProcess, Stacks, ThreadStack};
use crate::input::place::is_of_capture;
use crate::stacks::code::{Frames, is_stdlib};
use crate::stacks::sort::{self, What};
use crate::stacks::{IDLE, moves, thread_in};

/// What a rank does while others wait for it. It bounds the confidence of findings about the rank,
/// and so whether a job may be ended for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Occupation {
    /// Its stack changes, or CPU time is used.
    Computing,
    /// It waits for work: for a message, a socket, or another thread that may still produce an
    /// item; or it checks for something again and again.
    Listening,
    /// It waits for something outside of the job that ends by itself or not: the answer of a
    /// service, a file, a device; or for something unknown.
    External,
    /// It has not run at all since it began to wait: one sleep, or one request to a file system or a
    /// device. A rank that starts the work of others may be idle in this way; any other is stuck.
    Dormant,
    /// It waits for what other ranks release: a key of a store, a locked file.
    Shared,
    /// Nothing in the process can end its wait.
    Blocked,
}

/// The occupation of a process whose `thread` runs the program and does `what`; `stays`: at the same
/// place in both captures; `earliest`: the capture in which the thread was first seen waiting there.
pub(super) fn find(
    looks: [&Stacks; 2],
    thread: &ThreadStack,
    what: What,
    stays: bool,
    earliest: Option<&Stacks>,
) -> Occupation {
    use Occupation::{Blocked, Computing, Dormant, External, Listening, Shared};
    let [first, last] = looks;
    let ran = earliest.and_then(|stacks| processor_time(stacks, thread));
    let used = processor_time(first, thread);
    let is_idle = used.is_some_and(|used| used * IDLE < last.at.since(first.at));
    // A sleep or a wait that lasts uses no CPU time at all.
    let polls = [used, ran].into_iter().flatten().any(|it| !it.is_zero());
    match what {
        What::Message | What::Workers | What::Network if is_idle || stays => Listening,
        What::Sleep if is_idle && polls => Listening,
        What::Lock | What::Queue if is_idle && (polls || is_released_by_another(looks, thread)) => {
            Listening
        }
        What::Circle | What::DeadChild if is_released_by_another(looks, thread) => Listening,
        // The message may be of another process.
        What::DeadChild if !sort::waits_in_circle(last, thread.tid) => {
            let works = !is_idle && !stays && moves(first, last);
            if works { Computing } else { Listening }
        }
        What::Circle | What::DeadChild => Blocked,
        _ if moves(first, last) => Computing,
        What::Lock | What::Queue if is_released_by_another(looks, thread) => Listening,
        What::DataLoader | What::Child if last.children.iter().any(may_go_on) => {
            let has_slept = |child| earliest.is_some_and(|since| has_slept(since, looks, child));
            let mut awake = last.children.iter().filter(|it| may_go_on(it));
            if awake.all(has_slept) { Dormant } else { External }
        }
        What::Lock | What::Queue | What::Gil | What::DataLoader | What::Child => Blocked,
        What::Store | What::FileLock | What::BuildLock => Shared,
        What::Message | What::Workers | What::Network => Listening,
        What::Sleep if ran == Some(Duration::ZERO) => Dormant,
        What::File if ran == Some(Duration::ZERO) && is_in_file_system(thread) => Dormant,
        _ => External,
    }
}

/// When a thread's wait ends by itself at the latest, if it is the same one since `earliest`: each wakeup uses processor
/// time. Where a timeout was given as a duration, each capture states an upper limit.
pub(super) fn end(
    earliest: &Stacks,
    looks: [&Stacks; 2],
    thread: &ThreadStack,
    what: What,
) -> Option<Timestamp> {
    let [_, last] = looks;
    let latest = |ends_in: &dyn Fn(&Stacks) -> Option<Duration>| {
        let ends = [earliest, last].map(|stacks| ends_in(stacks).map(|it| stacks.at.plus(it)));
        ends.into_iter().flatten().min()
    };
    match what {
        What::Child => {
            let ends = last.children.iter().filter(|it| may_go_on(it)).map(|child| {
                let ends_in = |stacks: &Stacks| child_in(stacks, child.pid)?.ends_in;
                latest(&ends_in).filter(|_| has_slept(earliest, looks, child))
            });
            ends.collect::<Option<Vec<Timestamp>>>()?.into_iter().max()
        }
        What::Sleep | What::Lock | What::Queue => {
            let stays = processor_time(earliest, thread) == Some(Duration::ZERO);
            let ends_in =
                |stacks: &Stacks| thread_in(stacks, thread.tid)?.blocked_on.as_ref()?.ends_in;
            latest(&ends_in).filter(|_| stays)
        }
        _ => None,
    }
}

fn child_in(stacks: &Stacks, pid: u32) -> Option<&ChildProcess> {
    stacks.children.iter().find(|it| it.pid == pid)
}

/// Whether the kernel makes a thread wait for a file system or a device.
fn is_in_file_system(thread: &ThreadStack) -> bool {
    let channel = thread.wait_channel.as_deref().and_then(sort::of_channel);
    channel == Some(What::File) || thread.state == Some('D')
}

/// Whether a child process that uses no CPU time waits for something outside of the job.
fn may_go_on(child: &ChildProcess) -> bool {
    let channel = child.wait_channel.as_deref().and_then(sort::of_channel);
    let waits_outside = matches!(channel, Some(What::Sleep | What::Network | What::File));
    waits_outside || matches!(child.state, Some('D' | 'R'))
}

/// Whether a child process sleeps for a time, as it did in these captures and in the one `since`, and has used no
/// CPU time in between: one sleep, since each wakeup uses some.
fn has_slept(since: &Stacks, looks: [&Stacks; 2], child: &ChildProcess) -> bool {
    let sleeps = |it: &ChildProcess| {
        let channel = it.wait_channel.as_deref().and_then(sort::of_channel);
        channel == Some(What::Sleep) && it.cpu_time == child.cpu_time
    };
    [since, looks[0], looks[1]]
        .into_iter()
        .all(|stacks| child_in(stacks, child.pid).is_some_and(sleeps))
}

/// Processor time that a thread used since an earlier capture.
pub(super) fn processor_time(first: &Stacks, thread: &ThreadStack) -> Option<Duration> {
    let before = thread_in(first, thread.tid)?;
    Some(thread.cpu_time?.saturating_sub(before.cpu_time?))
}

/// The other threads of the program that run Python.
fn others<'a>(stacks: &'a Stacks, thread: &ThreadStack) -> impl Iterator<Item = &'a ThreadStack> {
    let tid = thread.tid;
    stacks.threads.iter().filter(move |other| {
        let is_captures = || other.python.iter().any(|frame| is_of_capture(&frame.file));
        other.tid != tid && !other.python.is_empty() && !is_captures()
    })
}

/// Whether another Python thread may release a lock or produce an item: one that runs, or waits for
/// something other than a lock.
fn is_released_by_another(looks: [&Stacks; 2], thread: &ThreadStack) -> bool {
    let [first, last] = looks;
    others(last, thread).any(|other| {
        let frames = Frames::new(other);
        let runs =
            processor_time(first, other).is_some_and(|used| used * IDLE >= last.at.since(first.at));
        // The thread that feeds a queue between processes waits for an item of its own process.
        let is_locked = other.python.first().is_some_and(|it| is_stdlib(&it.file, "/threading.py"))
            && other.wait_channel.as_deref().is_some_and(|it| it.starts_with("futex"));
        let what = sort::what(looks, other, &frames);
        runs || !what.is_some_and(|it| it.is_of_threads() || is_locked)
    })
}
