//! Processes that wait for each other.

use ddp_doctor_proto::{BlockKind, v1};

use super::{Waiter, wait_of};
use crate::host::proc;
use crate::host::proc::Stat;
use crate::node::stack_reader::memory::ProcessMemory;
use crate::node::stack_reader::python_frames;

/// Maximum number of waits that are followed, and of processes between a process and one below it.
const MAX_LENGTH: usize = 4;
const MAX_DEPTH: usize = 8;

/// Follows the wait of a process for one below it, such as a child, to what that one waits for. Another rank is the end:
/// what it waits for is known from its own stacks.
pub(super) fn to_its_end(pid: u32, mut on: v1::BlockedOn) -> v1::BlockedOn {
    for _ in 0..MAX_LENGTH {
        let next = if is_below(on.pid, pid) { wait_of_process(on.pid) } else { None };
        let Some(next) = next else { break };
        let what = format!("{}; that process waits for: {}", on.what, next.what);
        on = v1::BlockedOn { what, ..next };
    }
    on
}

/// What the main thread of a process of this user waits for. A sleep adds nothing to the command that sleeps.
fn wait_of_process(pid: u32) -> Option<v1::BlockedOn> {
    if !proc::is_own(pid) {
        return None;
    }
    let memory = ProcessMemory::open(pid).ok()?;
    let python = python_frames(pid).unwrap_or_default();
    let on = wait_of(Waiter { pid, tid: pid, python: &python, native: &[] }, &memory)?;
    (on.kind != i32::from(BlockKind::Sleep.number())).then_some(on)
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
    use std::process::{Child, Command};
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
            let on = to_its_end(std::process::id(), exit_of(child));
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

    #[test]
    fn child_that_sleeps_is_the_end() {
        let child = Command::new("sleep").arg("60").spawn().unwrap();
        std::thread::sleep(Duration::from_millis(100));
        let on = to_its_end(std::process::id(), exit_of(&child));
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
