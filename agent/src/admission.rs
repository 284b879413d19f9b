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
/// Time limit for the reporter to begin to follow the box. One that runs already looks for boxes every 100 ms.
const MAX_WAIT: Duration = Duration::from_secs(2);
const INTERVAL: Duration = Duration::from_millis(2);

/// Admits the process that follows this box, once it does. Returns at once where no admission is needed.
pub(crate) fn admit_follower(writer: &Writer) {
    if !is_limited_to_ancestors(&fs::read_to_string(SCOPE).unwrap_or_default()) {
        return;
    }
    let started = Instant::now();
    while started.elapsed() < MAX_WAIT {
        if let Some((pid, start_ticks)) = writer.followed_by() {
            // The pid is one of the follower's namespace, where it may be that of another process here.
            if facts::start_ticks_of(pid) == Some(start_ticks) {
                sys::admit_reader(pid);
            }
            return;
        }
        thread::sleep(INTERVAL);
    }
}

fn is_limited_to_ancestors(scope: &str) -> bool {
    scope.trim() == "1"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_scope_1_needs_an_admission() {
        assert!(is_limited_to_ancestors("1\n"));
        for scope in ["", "0\n", "2\n", "3\n", "11\n"] {
            assert!(!is_limited_to_ancestors(scope), "{scope}");
        }
    }
}
