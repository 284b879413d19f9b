//! The threads of a process, from the kernel.

use std::fs;
use std::io;
use std::path::Path;

use ddp_doctor_host::proc::{self, Stat};
use ddp_doctor_host::sys;
use ddp_doctor_proto::v1;

use crate::blocked::syscall::end_of_sleep;
use crate::launch::descendants;
use crate::stack_reader::python::MAX_THREADS;

/// Maximum number of processes below a process that a capture contains.
const MAX_CHILDREN: usize = 256;

/// A thread of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// Thread id.
    pub tid: u32,
    /// Thread id in the pid namespace of the process.
    pub inner_tid: u32,
    /// Name of the thread.
    pub name: String,
    /// State letter, as in `/proc/PID/stat`.
    pub state: char,
    /// Kernel function in which it sleeps; empty if there is none, or it cannot be read.
    pub wait_channel: String,
    /// Processor time used, in ns.
    pub cpu_ns: u64,
}

/// The threads of a process, the main thread first, then by thread id; and the number of threads
/// left out.
///
/// # Errors
///
/// If there is no such process.
pub fn list(pid: u32) -> io::Result<(Vec<Task>, usize)> {
    let entries = fs::read_dir(format!("/proc/{pid}/task"))?;
    let mut tids: Vec<u32> =
        entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    tids.sort_unstable_by_key(|&tid| (tid != pid, tid));
    let left_out = tids.len().saturating_sub(MAX_THREADS);
    tids.truncate(MAX_THREADS);
    // Threads that have ended meanwhile are skipped.
    let tasks = tids.into_iter().filter_map(|tid| Task::read(pid, tid));
    Ok((tasks.collect(), left_out))
}

impl Task {
    fn read(pid: u32, tid: u32) -> Option<Self> {
        let path = format!("/proc/{pid}/task/{tid}");
        let dir = Path::new(&path);
        let stat = fs::read(dir.join("stat")).ok()?;
        let (name, state, ticks) = parse(&String::from_utf8_lossy(&stat))?;
        Some(Self {
            tid,
            inner_tid: inner_tid(dir).unwrap_or(tid),
            name,
            state,
            wait_channel: wait_channel(dir),
            cpu_ns: schedstat(dir).unwrap_or_else(|| nanoseconds(ticks)),
        })
    }
}

/// The processes below a process, parents first, at most `MAX_CHILDREN`.
pub fn children(pid: u32) -> Vec<v1::ChildProcess> {
    let below = descendants::below(pid).into_iter().take(MAX_CHILDREN);
    let children = below.filter_map(|(child, _)| {
        let dir = format!("/proc/{child}");
        let stat = fs::read(Path::new(&dir).join("stat")).ok()?;
        let (name, state, ticks) = parse(&String::from_utf8_lossy(&stat))?;
        let wait_channel = wait_channel(Path::new(&dir));
        let sleeps = wait_channel.contains("nanosleep") && proc::is_own(child);
        Some(v1::ChildProcess {
            pid: child,
            parent: Stat::read(child).ok()?.parent,
            name,
            state: state.to_string(),
            wait_channel,
            ends_in_ns: if sleeps { end_of_sleep(child) } else { None },
            cpu_ns: exact_time(Path::new(&dir)).max(nanoseconds(ticks)),
        })
    });
    children.collect()
}

/// Processor time used by the present threads of a process, in ns; 0: the kernel does not report it. Ticks are too
/// coarse to show a process that wakes up, looks, and sleeps again.
fn exact_time(dir: &Path) -> u64 {
    let tasks = fs::read_dir(dir.join("task")).into_iter().flatten().flatten().take(MAX_THREADS);
    tasks.filter_map(|task| schedstat(&task.path())).sum()
}

/// Processor time of a thread, in ns.
fn schedstat(dir: &Path) -> Option<u64> {
    let text = fs::read_to_string(dir.join("schedstat")).ok()?;
    text.split_whitespace().next()?.parse().ok()
}

/// Kernel function in which a thread or the main thread of a process sleeps; empty: none.
fn wait_channel(dir: &Path) -> String {
    let name = fs::read_to_string(dir.join("wchan")).unwrap_or_default();
    match name.trim() {
        "0" => String::new(),
        name => name.to_owned(),
    }
}

fn nanoseconds(ticks: u64) -> u64 {
    ticks.saturating_mul(1_000_000_000 / sys::ticks_per_second())
}

/// Thread id in the innermost pid namespace.
fn inner_tid(dir: &Path) -> Option<u32> {
    let status = proc::read_lossy(dir.join("status")).ok()?;
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    numbers.split_whitespace().next_back()?.parse().ok()
}

/// Name, state, and clock ticks used. The name may contain any character.
fn parse(stat: &str) -> Option<(String, char, u64)> {
    let (start, end) = (stat.find('(')?, stat.rfind(')')?);
    let name = stat.get(start + 1..end)?;
    let fields: Vec<&str> = stat[end + 1..].split_ascii_whitespace().collect();
    // `fields[0]` is field 3 of proc(5).
    let ticks = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    let used = ticks(14)?.saturating_add(ticks(15)?);
    Some((name.to_owned(), fields.first()?.chars().next()?, used))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;

    #[test]
    fn threads_are_listed_with_their_names() {
        let (done, wait) = channel::<()>();
        let thread =
            std::thread::Builder::new().name("a) S (b".into()).spawn(move || wait.recv()).unwrap();
        let pid = std::process::id();
        let asleep = || {
            let (tasks, left_out) = list(pid).unwrap();
            assert_eq!((tasks[0].tid, left_out), (pid, 0));
            tasks.into_iter().find(|task| task.name == "a) S (b" && task.state == 'S')
        };
        while asleep().is_none() {
            std::thread::sleep(Duration::from_millis(5));
        }
        drop(done);
        thread.join().unwrap().unwrap_err();
    }

    #[test]
    fn children_are_listed_with_their_parents() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let (pid, own) = (child.id(), std::process::id());
        let found = children(own).into_iter().find(|it| it.pid == pid);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(found.map(|it| it.parent), Some(own));
    }

    #[test]
    fn cpu_time_is_parsed_in_ticks() {
        let stat = format!("7 (a) R {} 12 30 {}", "0 ".repeat(10), "0 ".repeat(30));
        assert_eq!(parse(&stat), Some(("a".into(), 'R', 42)));
        for nonsense in ["", "7 (a", ") (", "7 (a) R 1 2"] {
            assert_eq!(parse(nonsense), None);
        }
    }
}
