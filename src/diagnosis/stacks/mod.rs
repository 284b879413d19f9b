//! What a process does outside collectives, and whether it moves, by comparing its stacks at two
//! moments.
//!
//! A process is *stuck* if, between two captures some time apart, its threads and the processes
//! below it used almost no CPU time and no thread that runs the user's code changed its line. A thread that computes
//! at one line is not stuck: a long computation cannot be distinguished from an endless
//! one. Nor does an idle thread whose line changes: it reads, slowly.
//!
//! What it is doing is determined from library frames below the user's line, from native frames,
//! and from the kernel function in which a thread sleeps, as far as these were captured.

use std::sync::Arc;
use std::time::Duration;

use ddp_doctor_proto::report::{BlockedOn, Timestamp, Where};

use crate::input::event::{Call, ChildProcess, Stacks, ThreadStack};
use crate::model::{Model, Process};
use crate::timing::Timing;

mod code;
mod occupation;
mod sort;

pub(crate) use code::is_users;
pub use occupation::Occupation;
pub use sort::What;
pub use sort::is_in_driver;

/// A process or thread that uses less than this fraction of the time (its inverse) is idle.
pub(crate) const IDLE: u32 = 20;

/// Activity of a process outside collectives.
#[derive(Debug)]
pub struct Activity<'a> {
    /// The thread that runs the program, in the latest capture.
    pub thread: &'a ThreadStack,
    /// What it does or waits for.
    pub what: What,
    /// Line in the user's program.
    pub line: Option<&'a Where>,
    /// The innermost frame below that line, if there is one.
    pub inner: Option<&'a Where>,
    /// Whether the process progressed between the captures.
    pub moves: bool,
    /// How its wait can end, or that it computes.
    pub occupation: Occupation,
    /// When its wait ends by itself at the latest: it is one sleep, or one wait with a timeout.
    pub waits_until: Option<Timestamp>,
    /// Whether the thread that runs the program was at the same place in both captures, whatever
    /// CPU time it used.
    pub stays: bool,
    /// Times of the two captures.
    pub looks: [Timestamp; 2],
    /// Lines of other threads that run the user's code.
    pub others: Vec<&'a Where>,
    /// The processes below it.
    pub children: &'a [ChildProcess],
}

/// The activity of a process, from two captures after its latest record; `None` if there are no
/// two, or if they show it inside a collective that was not recorded.
pub fn activity<'a>(process: &'a Process, timing: &Timing) -> Option<Activity<'a>> {
    of_looks(&process.stacks, process.progressed_at(), process.training_tid(), timing)
}

/// The same from `looks`, oldest first; those before `since` do not count. `trains`: the thread that runs
/// the program, if it is not the main thread.
pub fn of_looks<'a>(
    looks: &'a [Arc<Stacks>],
    since: Timestamp,
    trains: Option<u32>,
    timing: &Timing,
) -> Option<Activity<'a>> {
    let [first, last] = two(looks, since, timing)?;
    let thread = program_thread(last, trains)?;
    let frames = code::Frames::new(thread);
    let what = sort::what([first, last], thread, &frames)?;
    let is_there = |stacks: &Stacks| {
        program_thread(stacks, trains).is_some_and(|before| {
            before.tid == thread.tid && code::Frames::new(before).standing() == frames.standing()
        })
    };
    let waits = |stacks: &Stacks| {
        thread_in(stacks, thread.tid).is_some_and(|it| it.state != Some('R')) && is_there(stacks)
    };
    let stays = is_there(first);
    let earliest = looks.iter().find(|stacks| stacks.at >= since && waits(stacks)).map(|it| &**it);
    let occupation = occupation::find([first, last], thread, what, stays, earliest);
    let polls = what == What::Sleep && occupation == Occupation::Listening;
    Some(Activity {
        thread,
        what: if polls { What::Poll } else { what },
        line: frames.line,
        inner: frames.below.first().filter(|_| frames.line.is_some()),
        moves: moves(first, last),
        occupation,
        waits_until: earliest
            .and_then(|earliest| occupation::end(earliest, [first, last], thread, what)),
        stays,
        looks: [first.at, last.at],
        others: other_lines(last, thread, frames.line),
        children: &last.children,
    })
}

/// Whether no thread goes on by itself: two captures after the latest record show that none has moved,
/// and the main thread waits for another one, as in `Thread.join`, or is inside a collective, such as one of these.
pub(crate) fn threads_wait<'a>(
    process: &Process,
    blocked: impl Iterator<Item = &'a Call>,
    timing: &Timing,
) -> bool {
    let looks = two(&process.stacks, process.progressed_at(), timing);
    if looks.is_none_or(|[first, last]| moves(first, last)) {
        return false;
    }
    let Some(activity) = activity(process, timing) else { return true };
    let mut places = blocked.filter_map(|call| call.place.as_ref());
    activity.what.is_of_threads()
        || places.any(|it| activity.line.is_some_and(|line| it.is_same_line(line)))
}

/// The latest capture, and the one before it from which it is far enough; those before `since` do not
/// count.
pub(crate) fn two<'a>(
    looks: &'a [Arc<Stacks>],
    since: Timestamp,
    timing: &Timing,
) -> Option<[&'a Stacks; 2]> {
    let mut looks = looks.iter().rev().filter(|stacks| stacks.at >= since);
    let last = looks.next()?;
    let first = looks.find(|first| last.at.since(first.at) >= timing.capture_separation)?;
    Some([first, last])
}

/// The function of PyTorch in which the program waits, from two captures after its latest record,
/// and the user's line: a collective or message that was not recorded, or a function that leads to
/// one.
pub fn unseen_call<'a>(
    process: &'a Process,
    timing: &Timing,
) -> Option<(&'a Where, Option<&'a Where>)> {
    let [first, last] = two(&process.stacks, process.progressed_at(), timing)?;
    let trains = process.training_tid();
    let (before, now) = (program_thread(first, trains)?, program_thread(last, trains)?);
    let used = now.cpu_time?.saturating_sub(before.cpu_time?);
    let (before, now) = (code::Frames::new(before), code::Frames::new(now));
    let stays = before.standing() == now.standing() && used * IDLE < last.at.since(first.at);
    let called = now.collective().filter(|_| stays)?;
    Some((called, now.line))
}

/// What the main thread of a process waits for, from the latest capture after its latest record.
pub(crate) fn blocked_on(model: &Model, process: &Process) -> Option<BlockedOn> {
    let last = process
        .stacks
        .last()
        .filter(|it| it.at >= process.progressed_at() && !process.has_ended())?;
    let thread = last.threads.first()?;
    let on = thread.blocked_on.as_ref()?;
    let is_other = |it: &&Process| it.host == process.host && Some(it.pid) == on.pid;
    let other = model.processes.values().find(is_other).and_then(|it| it.rank);
    Some(BlockedOn {
        kind: on.kind.to_string(),
        what: on.what.to_string(),
        rank: on.rank.or(other),
        pid: on.pid,
        for_ms: thread.asleep.map(|it| it.as_millis() as u64),
    })
}

/// Why the stacks of a process could not be read since its latest record; `None` if they were, or were not requested.
pub(crate) fn unread(process: &Process) -> Option<&str> {
    let last = process.stacks.last().filter(|it| it.at >= process.progressed_at())?;
    (last.threads.is_empty() && !last.trouble.is_empty()).then_some(&last.trouble)
}

/// The line of the thread that keeps the GIL, in the latest capture: the user's, or else the innermost.
pub(crate) fn lock_keeper(process: &Process) -> Option<&Where> {
    let threads = &process.stacks.last()?.threads;
    let keeper = threads.iter().find(|thread| thread.holds_gil == Some(true))?;
    code::Frames::new(keeper).line.or_else(|| keeper.python.first())
}

/// The user's line in one capture. `trains`: the thread that runs the program, if it is not the main thread.
pub fn line_of(stacks: &Stacks, trains: Option<u32>) -> Option<&Where> {
    program_thread(stacks, trains).and_then(|thread| code::Frames::new(thread).line)
}

/// All of the user's lines in the thread that runs the program, innermost first.
pub fn lines_of(stacks: &Stacks) -> Vec<&Where> {
    let frames = program_thread(stacks, None).map(|thread| &thread.python[..]);
    let line = line_of(stacks, None);
    let is_own = |it: &&Where| is_users(&it.file) || Some(*it) == line;
    frames.unwrap_or_default().iter().filter(is_own).collect()
}

/// The frames of the user's program in one capture, innermost first.
pub(crate) fn users_frames(stacks: &Stacks, trains: Option<u32>) -> impl Iterator<Item = &Where> {
    let frames = program_thread(stacks, trains).into_iter().flat_map(|it| &it.python);
    frames.filter(|frame| is_users(&frame.file))
}

/// The thread that runs the program: the one that trains, or else the main thread, if it runs Python.
fn program_thread(stacks: &Stacks, trains: Option<u32>) -> Option<&ThreadStack> {
    let runs_python = |thread: &&ThreadStack| !thread.python.is_empty();
    let trains = trains.and_then(|tid| thread_in(stacks, tid)).filter(runs_python);
    trains.or_else(|| stacks.threads.first().filter(runs_python))
}

/// Whether a process progressed from one capture to the next.
pub fn move_between(first: &Stacks, last: &Stacks) -> bool {
    moves(first, last)
}

fn moves(first: &Stacks, last: &Stacks) -> bool {
    let before = |thread: &ThreadStack| thread_in(first, thread.tid);
    let apart = last.at.since(first.at);
    let mut used = Duration::ZERO;
    for thread in &last.threads {
        let Some(before) = before(thread) else {
            // A new thread that runs the user's code is progress.
            if code::Frames::new(thread).line.is_some() {
                return true;
            }
            continue;
        };
        match (before.cpu_time, thread.cpu_time) {
            (Some(before), Some(now)) => used += now.saturating_sub(before),
            _ if before.state == Some('R') || thread.state == Some('R') => return true,
            // Without a state it may be running.
            _ if thread.state.is_none() => return true,
            _ => {}
        }
        let (old, new) = (code::Frames::new(before), code::Frames::new(thread));
        if old.line.is_some() || new.line.is_some() {
            // It would run if it had a processor.
            let runs = before.state == Some('R') && thread.state == Some('R');
            if runs || old.standing() != new.standing() {
                return true;
            }
        }
    }
    used * IDLE >= apart || children_time(first, last) * IDLE >= apart
}

/// Processor time that the processes below a process used from one capture to the next.
fn children_time(first: &Stacks, last: &Stacks) -> Duration {
    let used = last.children.iter().map(|child| {
        let before = first.children.iter().find(|it| it.pid == child.pid);
        child.cpu_time.saturating_sub(before.map_or(Duration::ZERO, |it| it.cpu_time))
    });
    used.sum()
}

/// The thread with this id in a capture.
fn thread_in(stacks: &Stacks, tid: u32) -> Option<&ThreadStack> {
    stacks.threads.iter().find(|thread| thread.tid == tid)
}

/// Lines of a few other threads that run the user's code.
fn other_lines<'a>(
    stacks: &'a Stacks,
    program: &ThreadStack,
    line: Option<&Where>,
) -> Vec<&'a Where> {
    /// Enough to recognize them.
    const MAX_SHOWN: usize = 2;
    let mut lines: Vec<&Where> = Vec::new();
    for thread in stacks.threads.iter().filter(|t| t.tid != program.tid) {
        if let Some(other) = code::Frames::new(thread).line
            && Some(other) != line
            && !lines.contains(&other)
            && lines.len() < MAX_SHOWN
        {
            lines.push(other);
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(text: &str) -> Where {
        let mut parts = text.split(':');
        Where {
            file: parts.next().unwrap_or_default().into(),
            line: parts.next().and_then(|n| n.parse().ok()).unwrap_or(0),
            function: parts.next().unwrap_or("f").into(),
            ..Where::default()
        }
    }

    fn look(at: u64, threads: &[(u32, f64, &[&str])]) -> Stacks {
        let thread = |&(tid, cpu, frames): &(u32, f64, &[&str])| ThreadStack {
            tid,
            state: Some('S'),
            cpu_time: Some(Duration::from_secs_f64(cpu)),
            python: frames.iter().map(|text| frame(text)).collect(),
            ..ThreadStack::default()
        };
        Stacks {
            at: Timestamp(at * 1_000_000_000),
            threads: threads.iter().map(thread).collect(),
            ..Stacks::default()
        }
    }

    #[test]
    fn idle_thread_at_one_line_stands_still() {
        let at = |second, cpu, frames: &[&str]| look(second, &[(1, cpu, frames)]);
        let here = ["/job/train.py:9:step", "/job/train.py:30:main"];
        assert!(!moves(&at(1, 5.0, &here), &at(6, 5.01, &here)));
        assert!(moves(&at(1, 5.0, &here), &at(6, 9.0, &here)), "computes");
        let further = ["/job/train.py:9:step", "/job/train.py:31:main"];
        assert!(moves(&at(1, 5.0, &here), &at(6, 5.01, &further)));
    }

    #[test]
    fn runnable_thread_without_processor_does_not_stand_still() {
        let here: &[&str] = &["/job/train.py:9:step"];
        let mut looks = [look(1, &[(1, 5.0, here)]), look(6, &[(1, 5.1, here)])];
        assert!(!moves(&looks[0], &looks[1]));
        for look in &mut looks {
            look.threads[0].state = Some('R');
        }
        assert!(moves(&looks[0], &looks[1]));
    }

    #[test]
    fn polling_wait_stands_still() {
        let polls = |inner: &'static str| {
            [
                inner,
                "/usr/lib/python3.11/multiprocessing/connection.py:930:wait",
                "/usr/lib/python3.11/multiprocessing/queues.py:113:get",
                "/x/site-packages/torch/utils/data/dataloader.py:1100:_try_get_data",
                "/job/train.py:9:main",
            ]
        };
        let one = polls("/usr/lib/python3.11/selectors.py:415:select");
        let other = polls("/usr/lib/python3.11/selectors.py:361:register");
        assert!(!moves(&look(1, &[(1, 5.0, &one)]), &look(6, &[(1, 5.0, &other)])));
    }

    #[test]
    fn thread_that_trains_runs_the_program() {
        let stacks =
            look(1, &[(1, 5.0, &["/job/actor.py:9:listen"]), (2, 1.0, &["/job/train.py:5:run"])]);
        let line = |trains| line_of(&stacks, trains).map(|line| line.line);
        assert_eq!((line(Some(2)), line(None), line(Some(3))), (Some(5), Some(9), Some(9)));
    }

    #[test]
    fn program_working_in_other_threads_moves() {
        let main = ["/job/train.py:9:main"];
        let work = ["/job/work.py:5:run"];
        let at = |second, cpu| look(second, &[(1, 5.0, &main), (2, cpu, &work)]);
        assert!(!moves(&at(1, 1.0), &at(6, 1.0)));
        assert!(moves(&at(1, 1.0), &at(6, 4.0)));
        let born = look(6, &[(1, 5.0, &main), (3, 0.0, &work)]);
        assert!(moves(&at(1, 1.0), &born));
    }
}
