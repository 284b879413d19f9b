//! Lets the process that follows the black box of this process read its stacks.
//!
//! Where `kernel.yama.ptrace_scope` is 1, only ancestors may read the memory of a process, and the reporter that a rank
//! starts is none. `PR_SET_PTRACER` admits one more process (Linux, Documentation/admin-guide/LSM/Yama.rst). The setting
//! is made when the box is created, and never later: libraries that share memory between ranks (Open MPI, UCX) admit
//! any process when they start, which must not be narrowed again.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use crate::blackbox::Writer;
use crate::{facts, sys};

/// The setting that restricts reading to ancestors. Systems without Yama have no such file.
const SCOPE: &str = "/proc/sys/kernel/yama/ptrace_scope";
/// Time limit for the reporter to begin to follow the box: on a busy host, or from a slow disk, a program starts slowly.
const MAX_WAIT: Duration = Duration::from_secs(15);
/// The same once the reporter that this process started has ended. The one that runs already looks for boxes every
/// 100 ms.
const MAX_WAIT_FOR_ANOTHER: Duration = Duration::from_secs(2);
const INTERVAL: Duration = Duration::from_millis(2);

/// Admits the process that follows this box, once it does. Returns at once where no admission is needed. `reporter`: the
/// one that this process has started.
pub(crate) fn admit_follower(writer: &Writer, reporter: u32) {
    if !is_limited_to_ancestors(&fs::read_to_string(SCOPE).unwrap_or_default()) {
        return;
    }
    let limits = [MAX_WAIT, MAX_WAIT_FOR_ANOTHER];
    let follower = wait_for_follower(|| writer.followed_by(), || is_running(reporter), limits);
    // The pid is one of the follower's namespace, where it may be that of another process here.
    if let Some((pid, start_ticks)) = follower
        && facts::start_ticks_of(pid) == Some(start_ticks)
    {
        sys::admit_reader(pid);
    }
}

/// Waits until a process follows the box: for the first of these limits, and for the second one after the reporter has
/// ended.
fn wait_for_follower<T>(
    followed_by: impl Fn() -> Option<T>,
    is_reporter_running: impl Fn() -> bool,
    [limit, limit_for_another]: [Duration; 2],
) -> Option<T> {
    let started = Instant::now();
    let mut ended: Option<Instant> = None;
    loop {
        if let Some(follower) = followed_by() {
            return Some(follower);
        }
        if ended.is_none() && !is_reporter_running() {
            ended = Some(Instant::now());
        }
        let is_late = ended.is_some_and(|it| it.elapsed() >= limit_for_another);
        if is_late || started.elapsed() >= limit {
            return None;
        }
        thread::sleep(INTERVAL);
    }
}

/// Whether a process exists and has not ended: in a container, a first process that reaps nothing leaves it as a zombie.
fn is_running(pid: u32) -> bool {
    let bytes = fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name of a process may have any bytes.
    let stat = String::from_utf8_lossy(&bytes);
    let state = stat.rsplit(')').next().and_then(|rest| rest.trim_start().chars().next());
    state.is_some_and(|it| !matches!(it, 'Z' | 'X'))
}

fn is_limited_to_ancestors(scope: &str) -> bool {
    scope.trim() == "1"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reporter_that_starts_slowly_is_awaited() {
        let started = Instant::now();
        let follows = || (started.elapsed() > Duration::from_millis(200)).then_some(7);
        let limits = [Duration::from_secs(60), Duration::from_millis(20)];
        assert_eq!(wait_for_follower(follows, || true, limits), Some(7));
        // Another reporter may follow the box soon after the own one has ended, and not much later.
        let soon = || (started.elapsed() > Duration::from_millis(400)).then_some(8);
        let limits = [Duration::from_secs(60), Duration::from_secs(30)];
        assert_eq!(wait_for_follower(soon, || false, limits), Some(8));
        let begun = Instant::now();
        let limits = [Duration::from_secs(60), Duration::from_millis(20)];
        assert_eq!(wait_for_follower(|| None::<u32>, || false, limits), None);
        let limits = [Duration::from_millis(20), Duration::from_secs(60)];
        assert_eq!(wait_for_follower(|| None::<u32>, || true, limits), None);
        assert!(begun.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn zombie_is_not_running() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        assert!(is_running(child.id()));
        child.kill().unwrap();
        let until = Instant::now() + Duration::from_secs(20);
        while is_running(child.id()) && Instant::now() < until {
            thread::sleep(INTERVAL);
        }
        assert!(!is_running(child.id()));
        child.wait().unwrap();
        assert!(!is_running(u32::MAX));
    }

    #[test]
    fn only_scope_1_needs_an_admission() {
        assert!(is_limited_to_ancestors("1\n"));
        for scope in ["", "0\n", "2\n", "3\n", "11\n"] {
            assert!(!is_limited_to_ancestors(scope), "{scope}");
        }
    }
}
