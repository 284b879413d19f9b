//! Captures the stacks of all threads of a process from outside.
//!
//! The process' memory is read through `/proc`, without attaching: no code runs in the process,
//! nothing stops it, and no lock in it is awaited. Capture therefore works while the process runs,
//! holds the GIL for minutes, finalizes, has just forked, or is stopped, and cannot
//! change its behavior. In return the process may move while it is read ([`python`]), and the
//! kernel must permit the access ([`access`]).

use std::io;
use std::time::{Duration, Instant};

use ddp_doctor_host::proc;
use ddp_doctor_proto::report::{Timestamp, Where};
use ddp_doctor_proto::{BlockKind, v1};

pub mod access;
pub mod elf;
pub mod layout;
pub mod lines;
pub mod maps;
pub mod memory;
pub mod native;
pub mod python;
pub mod python_threads;
pub mod stack_sampler;
pub mod tasks;
pub mod unwind;
pub mod values;

use crate::blocked;
use memory::ProcessMemory;
use native::{FunctionCache, Native};
pub use python::Integers;
use python::{Gap, MAX_FRAMES, PythonThread};
use python_threads::python_threads;
use tasks::Task;

/// Maximum length of a name in a reported frame, in bytes.
const MAX_NAME: usize = 1024;
/// Maximum number of threads of a process whose waits are named.
const MAX_BLOCKED: usize = 16;
/// Time after which no further thread is examined for what it waits for.
const MAX_SEARCH: Duration = Duration::from_millis(300);
/// Maximum size of the reported frames of one process, in bytes.
const MAX_FRAME_BYTES: usize = 2 << 20;

/// Captures the stacks of the process with this pid and start time. Missing parts are named in
/// `trouble`; the field `process` is left 0. `cache` caches the functions of files across
/// processes.
#[must_use]
pub fn capture(pid: u32, start_ticks: u64, cache: &FunctionCache) -> v1::Stacks {
    let unix_ns = Timestamp::now().0;
    let mut capture = Capture::default();
    if let Err(error) = capture.read(pid, start_ticks, cache) {
        capture = Capture::default();
        capture.trouble.push(access::explain(pid, &error));
    }
    let threads = capture.join();
    let children = if threads.is_empty() { Vec::new() } else { tasks::children(pid) };
    let held_locks = if threads.is_empty() { Vec::new() } else { blocked::held_locks(pid) };
    let trouble = capture.trouble.join("; ");
    v1::Stacks { process: 0, unix_ns, threads, trouble, children, held_locks }
}

/// State of a capture.
#[derive(Default)]
struct Capture {
    tasks: Vec<Task>,
    /// Native frames of each of the tasks.
    native: Vec<Vec<Where>>,
    /// Python threads, each with its thread id in the pid namespace of the process.
    python: Vec<(Option<u32>, PythonThread)>,
    /// What each of the tasks waits for.
    blocked: Vec<Option<v1::BlockedOn>>,
    /// Descriptions of missing parts.
    trouble: Vec<String>,
}

impl Capture {
    fn read(&mut self, pid: u32, start_ticks: u64, cache: &FunctionCache) -> io::Result<()> {
        // Opened before the start time is checked, so that it is the memory of the checked process.
        let memory = ProcessMemory::open(pid);
        let (tasks, left_out) = tasks::list(pid)?;
        self.tasks = tasks;
        if left_out > 0 {
            let trouble = format!("{left_out} more threads were not read");
            self.trouble.push(trouble);
        }
        if proc::Stat::read(pid)?.start_ticks != start_ticks {
            return Err(io::ErrorKind::NotFound.into());
        }
        match memory.and_then(|memory| Ok((memory, maps::images(pid)?))) {
            Ok((memory, images)) => {
                match python_threads(pid, &memory, &images) {
                    Ok(python) => self.python = python,
                    Err(reason) => self.trouble.push(reason),
                }
                let mut native = Native::new(&memory, &images, cache);
                let tids = self.tasks.iter().map(|task| task.tid);
                self.native = tids.map(|tid| native.frames(pid, tid)).collect();
                self.blocked = self.blocked(pid, &memory);
            }
            Err(error) => self.trouble.push(access::explain(pid, &error)),
        }
        if !proc::is_alive(pid, start_ticks) {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(())
    }

    /// What the main thread and other threads that run Python wait for.
    fn blocked(&self, pid: u32, memory: &ProcessMemory) -> Vec<Option<v1::BlockedOn>> {
        let mut left = MAX_BLOCKED;
        let started = Instant::now();
        let on = |(index, task): (usize, &Task)| {
            let python = self
                .python
                .iter()
                .find(|(tid, _)| *tid == Some(task.inner_tid))
                .map(|(_, thread)| &thread.frames[..])
                .unwrap_or_default();
            // The connections and descriptors of all users are searched.
            let is_late = started.elapsed() > MAX_SEARCH;
            if left == 0 || is_late || task.state == 'R' || index > 0 && python.is_empty() {
                return None;
            }
            left -= 1;
            let native = self.native.get(index).map(Vec::as_slice).unwrap_or_default();
            if let Some(holder) = self.gil_holder(task, native) {
                return Some(holder);
            }
            let waiter = blocked::Waiter { pid, tid: task.tid, python, native };
            self.mutex_holder(waiter, task, memory).or_else(|| blocked::on(waiter, memory))
        };
        self.tasks.iter().enumerate().map(on).collect()
    }

    /// The thread that holds the GIL, if this one waits for that lock.
    fn gil_holder(&self, task: &Task, native: &[Where]) -> Option<v1::BlockedOn> {
        const WAITS: [&str; 3] = ["take_gil", "PyEval_RestoreThread", "PyEval_AcquireThread"];
        native.iter().find(|frame| WAITS.iter().any(|name| frame.function.contains(name)))?;
        let (tid, holder) = self.python.iter().find(|(_, thread)| thread.holds_gil)?;
        let tid = tid.filter(|&tid| tid != task.inner_tid)?;
        Some(v1::BlockedOn {
            kind: i32::from(BlockKind::Gil.number()),
            what: format!("GIL, held by thread {tid}{}", place_of(holder)),
            ..v1::BlockedOn::default()
        })
    }

    /// The thread that holds the mutex for which this one waits.
    fn mutex_holder(
        &self,
        waiter: blocked::Waiter<'_>,
        task: &Task,
        memory: &ProcessMemory,
    ) -> Option<v1::BlockedOn> {
        let owner = blocked::mutex_owner(waiter, memory)?;
        // A thread that ended without releasing it, or another layout of a mutex, names none.
        let holder = self.tasks.iter().find(|it| it.inner_tid == owner)?;
        let whose = if holder.tid == task.tid { "held by this thread itself" } else { "held by" };
        let python = self.python.iter().find(|(tid, _)| *tid == Some(owner));
        let place = python.map(|(_, thread)| place_of(thread)).unwrap_or_default();
        let other = if holder.tid == task.tid {
            String::new()
        } else {
            format!(" thread {} ({}){place}", holder.tid, holder.name)
        };
        Some(v1::BlockedOn {
            kind: i32::from(BlockKind::Thread.number()),
            what: format!("mutex, {whose}{other}"),
            ..v1::BlockedOn::default()
        })
    }

    /// The kernel's threads with their frames: the main thread first, then those with Python
    /// frames.
    fn join(&mut self) -> Vec<v1::ThreadStack> {
        let Self { tasks, native, python, blocked, trouble } = self;
        // After a fork only one thread is left, which Python may still know by its previous id.
        if let [only] = &tasks[..]
            && python.iter().all(|(tid, _)| *tid != Some(only.inner_tid))
        {
            let runs = python.iter().position(|(_, thread)| thread.holds_gil);
            if let Some((tid, _)) = python.get_mut(runs.unwrap_or(0)) {
                *tid = Some(only.inner_tid);
            }
        }
        let mut left = MAX_FRAME_BYTES;
        let mut moving = 0;
        let mut threads: Vec<v1::ThreadStack> = Vec::with_capacity(tasks.len());
        let native = native.drain(..).chain(std::iter::repeat_with(Vec::new));
        let blocked = blocked.drain(..).chain(std::iter::repeat(None));
        for ((task, native), blocked_on) in tasks.drain(..).zip(native).zip(blocked) {
            let known = python
                .iter()
                .position(|(tid, _)| *tid == Some(task.inner_tid))
                .map(|index| python.swap_remove(index).1);
            match known.as_ref().and_then(|thread| thread.gap) {
                Some(Gap::Moving) => moving += 1,
                Some(Gap::Deeper) => trouble.push(format!(
                    "thread {}: only the {MAX_FRAMES} innermost frames were read",
                    task.tid
                )),
                Some(Gap::Fault(fault)) => {
                    trouble
                        .push(format!("thread {}: its frames cannot be read: {fault}", task.tid));
                }
                None => {}
            }
            let group = known.as_ref().and_then(|it| it.group.clone()).map(|it| v1::CallGroup {
                name: it.name,
                members: it.members,
                partner: it.partner,
            });
            threads.push(v1::ThreadStack {
                tid: task.tid,
                name: task.name,
                state: task.state.to_string(),
                wait_channel: task.wait_channel,
                cpu_ns: Some(task.cpu_ns),
                holds_gil: known.as_ref().map(|thread| thread.holds_gil),
                python: frames(known.map(|it| it.frames).unwrap_or_default(), &mut left),
                native: frames(native, &mut left),
                asleep_ns: None,
                blocked_on,
                group,
            });
        }
        if moving > 0 {
            trouble.push(format!(
                "{moving} of its threads ran during the capture: their frames may be inconsistent"
            ));
        }
        if left == 0 {
            trouble.push("further frames are omitted".into());
        }
        if let Some((_, others)) = threads.split_first_mut() {
            others.sort_by_key(|thread| thread.python.is_empty());
        }
        threads
    }
}

/// Where a thread is: ", which is in load() at data.py:17"; empty: unknown.
fn place_of(thread: &PythonThread) -> String {
    let place = thread.frames.first().map(|frame| {
        let file = frame.file.rsplit('/').next().unwrap_or_default();
        format!(", which is in {}() at {file}:{}", frame.function, frame.line)
    });
    place.unwrap_or_default()
}

fn frames(frames: Vec<Where>, left: &mut usize) -> Vec<v1::Frame> {
    let mut passed = Vec::new();
    for frame in frames {
        let (file, function) = (cut(frame.file), cut(frame.function));
        let size = file.len() + function.len() + 16;
        if size > *left {
            *left = 0;
            break;
        }
        *left -= size;
        passed.push(v1::Frame { file, line: frame.line, function });
    }
    passed
}

fn cut(mut name: String) -> String {
    if name.len() > MAX_NAME {
        let end = (0..=MAX_NAME).rev().find(|&end| name.is_char_boundary(end));
        name.truncate(end.unwrap_or(0));
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_thread_after_a_fork_gets_the_python_frames() {
        let task = |tid| Task {
            tid,
            inner_tid: tid,
            name: String::new(),
            state: 'S',
            wait_channel: String::new(),
            cpu_ns: 1,
        };
        let thread = |line, holds_gil| PythonThread {
            pthread: 0,
            native_id: None,
            holds_gil,
            frames: vec![Where {
                file: "x.py".into(),
                line,
                function: "f".into(),
                ..Where::default()
            }],
            gap: None,
            group: None,
        };
        let line = |tasks: Vec<Task>, python| {
            let mut capture = Capture { tasks, python, ..Capture::default() };
            let threads = capture.join();
            threads.iter().map(|it| it.python.first().map(|it| it.line)).collect::<Vec<_>>()
        };
        let python = || vec![(Some(7), thread(1, false)), (Some(8), thread(2, true))];
        assert_eq!(line(vec![task(9)], python()), [Some(2)]);
        assert_eq!(line(vec![task(8)], python()), [Some(2)]);
        assert_eq!(line(vec![task(5), task(6), task(8)], python()), [None, Some(2), None]);
    }

    #[test]
    fn reported_frames_are_bounded() {
        let frame =
            || Where { file: "é".repeat(4000), line: 1, function: "f".into(), ..Where::default() };
        let mut left = 3000;
        let passed = frames((0..10).map(|_| frame()).collect(), &mut left);
        assert_eq!((passed.len(), left), (2, 0));
        assert_eq!(passed[0].file.len(), 1024);
    }
}
