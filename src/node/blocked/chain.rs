//! Processes that wait for each other.

use std::fs;

use ddp_doctor_host::proc::Stat;
use ddp_doctor_proto::{BlockKind, v1};

use super::syscall::Syscall;
use super::{Enders, Wait, Waiter, children, wait_of};
use crate::stack_reader::memory::ProcessMemory;
use crate::stack_reader::python_threads::python_frames;

/// Maximum number of waits that are followed, and of processes between a process and one below it.
const MAX_LENGTH: usize = 4;
const MAX_DEPTH: usize = 8;

/// Follows the wait of a process for one below it, such as a child, to what that one waits for. Another rank is the end:
/// what it waits for is known from its own stacks.
pub(super) fn to_its_end(pid: u32, wait: Wait) -> v1::BlockedOn {
    let mut chain = vec![(pid, wait)];
    while chain.len() <= MAX_LENGTH {
        let Some((_, Wait { on, .. })) = chain.last() else { break };
        let is_known = chain.iter().any(|(it, _)| *it == on.pid);
        let is_next = !is_known && is_below(on.pid, pid);
        let Some(next) = is_next.then(|| wait_of_process(pid, on.pid)).flatten() else { break };
        chain.push((on.pid, next));
    }
    let is_circle = is_circle(&chain);
    let texts: Vec<&str> = chain.iter().map(|(_, wait)| &*wait.on.what).collect();
    let what = texts.join("; that process waits for: ");
    let at = if is_circle { chain.first() } else { chain.last() };
    let on = at.map(|(_, wait)| wait.on.clone()).unwrap_or_default();
    v1::BlockedOn { what, is_circle, ..on }
}

/// Whether these processes, each of which waits for the next one, wait for each other: no other process can end one of
/// these waits, and none has a thread that could do so. The threads of the first one are known from its stacks.
fn is_circle(chain: &[(u32, Wait)]) -> bool {
    let Some(((last, wait), [_, ..])) = chain.split_last() else { return false };
    let is_in_chain = |pid: u32| chain.iter().any(|(it, _)| *it == pid);
    let ended_within = |pid: u32, wait: &Wait| match &wait.ended_by {
        Enders::Exit(child) => is_in_chain(*child),
        Enders::Holders(ends) => {
            let mut holders = ends.iter().flat_map(|end| end.clone().holders(pid));
            holders.all(is_in_chain)
        }
        Enders::Unknown => false,
    };
    let leads_back = is_in_chain(wait.on.pid) && wait.on.pid != *last;
    leads_back
        && chain.iter().skip(1).all(|(pid, _)| has_only_locked_threads(*pid))
        && chain.iter().all(|(pid, wait)| ended_within(*pid, wait))
}

/// Whether all threads of a process but the main thread wait for locks, without a timeout.
fn has_only_locked_threads(pid: u32) -> bool {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"));
    let Some((memory, tasks)) = ProcessMemory::open(pid).ok().zip(tasks.ok()) else { return false };
    let is_locked = |tid: u32| {
        let call = Syscall::read(pid, tid).filter(|it| it.futex().is_some());
        call.is_some_and(|it| it.argument(&memory).is_none())
    };
    let mut tids = tasks.flatten().map(|it| it.file_name().to_str()?.parse().ok());
    tids.all(|tid| tid.is_some_and(|tid| tid == pid || is_locked(tid)))
}

/// What the main thread of a process waits for, if that may stand in a report about the waiter. A sleep adds nothing to
/// the command that sleeps.
fn wait_of_process(waiter: u32, pid: u32) -> Option<Wait> {
    if !children::is_shown(waiter, pid) {
        return None;
    }
    let memory = ProcessMemory::open(pid).ok()?;
    let python = python_frames(pid).unwrap_or_default();
    let wait = wait_of(Waiter { pid, tid: pid, python: &python, native: &[] }, &memory)?;
    (wait.on.kind != i32::from(BlockKind::Sleep.number())).then_some(wait)
}

/// Whether a process is a child of another one, or a child of such a child.
fn is_below(pid: u32, above: u32) -> bool {
    let parent = |pid: &u32| Some(Stat::read(*pid).ok()?.parent).filter(|&it| it > 1);
    let mut parents = std::iter::successors(parent(&pid), parent).take(MAX_DEPTH);
    pid != 0 && parents.any(|it| it == above)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{BufRead, BufReader};
    use std::os::fd::AsRawFd;
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    use super::*;

    fn exit_of(child: &Child) -> v1::BlockedOn {
        let kind = i32::from(BlockKind::Child.number());
        v1::BlockedOn {
            kind,
            what: "exit of it".into(),
            pid: child.id(),
            ..v1::BlockedOn::default()
        }
    }

    /// The end of the chain, once it is of this kind.
    fn end_of_kind(child: &Child, kind: BlockKind) -> v1::BlockedOn {
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            let on = to_its_end(std::process::id(), exit_of(child).into());
            if on.kind == i32::from(kind.number()) || Instant::now() > until {
                return on;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn end(mut child: Child) {
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// A rank may wait for a process below it that has become root's.
    #[test]
    fn wait_of_a_process_of_another_user_is_not_followed() {
        if ddp_doctor_host::sys::user_id() != 0 {
            return; // only root starts processes of other users
        }
        let own = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let other = Command::new("sleep").arg("60").uid(65534).spawn().unwrap();
        let until = Instant::now() + Duration::from_secs(20);
        let followed = |waiter: u32| wait_of_process(waiter, own.id()).is_some();
        while !followed(std::process::id()) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
        }
        let found = (followed(std::process::id()), followed(other.id()));
        end(own);
        end(other);
        assert_eq!(found, (true, false));
    }

    #[test]
    fn holder_of_the_lock_that_a_child_of_a_child_waits_for_is_the_end() {
        let directory = tempfile::tempdir().unwrap();
        let lock = directory.path().join("cache.lock");
        let held = File::create(&lock).unwrap();
        held.lock().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "flock \"$0\" true; true"]).arg(&lock);
        let child = command.spawn().unwrap();
        let on = end_of_kind(&child, BlockKind::FileLock);
        // Its child ends with the lock.
        drop(held);
        end(child);
        assert_eq!(on.pid, std::process::id(), "{on:?}");
        for part in ["exit of it; that process waits for: exit of process", "(flock ", "cache.lock"]
        {
            assert!(on.what.contains(part), "{on:?}");
        }
    }

    /// A child that has taken its standard input and output, and what this process waits for, once that is a circle.
    fn circle_with(script: &str, wait: impl Fn(&Child) -> Wait) -> v1::BlockedOn {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let until = Instant::now() + Duration::from_secs(20);
        let on = loop {
            let on = to_its_end(std::process::id(), wait(&child));
            if on.is_circle || Instant::now() > until {
                break on;
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        // Pipes are closed after the child has ended, or it would go on.
        child.kill().unwrap();
        child.wait().unwrap();
        on
    }

    #[test]
    fn parent_that_does_not_read_its_child_is_in_a_circle() {
        let on = circle_with("exec cat /dev/zero", |child| Wait {
            on: exit_of(child),
            ended_by: Enders::Exit(child.id()),
        });
        assert!(on.is_circle, "{on:?}");
        let own = std::process::id();
        let expected = format!(
            "exit of it; that process waits for: write to a pipe, whose other end is process {own} ("
        );
        assert!(on.what.starts_with(&expected), "{on:?}");
    }

    #[test]
    fn wait_that_another_process_can_end_is_no_circle() {
        let reader = |child: &Child| {
            let fd = child.stdout.as_ref().unwrap().as_raw_fd();
            super::super::on_descriptor(std::process::id(), "read of", fd as u32).unwrap()
        };
        // Each reads what the other one does not write.
        let on = circle_with("exec cat", reader);
        assert!(on.is_circle, "{on:?}");
        // A process beside the child has its output, too.
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 30 & echo $!; exec cat"]).stdin(Stdio::piped());
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let comm = || fs::read_to_string(format!("/proc/{}/comm", child.id())).unwrap();
        while comm() != "cat\n" {
            std::thread::sleep(Duration::from_millis(5));
        }
        std::thread::sleep(Duration::from_millis(50));
        let on = to_its_end(std::process::id(), reader(&child));
        Command::new("kill").arg(line.trim()).status().unwrap();
        end(child);
        assert!(
            !on.is_circle && on.what.contains("; that process waits for: read of a pipe"),
            "{on:?}"
        );
    }

    #[test]
    fn child_that_sleeps_is_the_end() {
        let child = Command::new("sleep").arg("60").spawn().unwrap();
        std::thread::sleep(Duration::from_millis(100));
        let on = to_its_end(std::process::id(), exit_of(&child).into());
        assert_eq!(on, exit_of(&child));
        end(child);
    }

    #[test]
    fn only_processes_below_are_followed() {
        let own = std::process::id();
        let child = Command::new("sleep").arg("60").spawn().unwrap();
        assert!(is_below(child.id(), own));
        assert!(!is_below(own, child.id()) && !is_below(own, own) && !is_below(0, own));
        end(child);
    }
}
