//! Explains why the memory of a process may not be read, and how to allow it.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

use ddp_doctor_host::sys;

/// The facts that the kernel's decision depends on.
#[derive(Clone, Copy, Debug)]
struct Facts {
    us: u32,
    owner: Option<u32>,
    /// `kernel.yama.ptrace_scope`, if it exists.
    scope: Option<u32>,
}

/// Explains the error for a process that could not be opened.
#[must_use]
pub fn explain(pid: u32, error: &io::Error) -> String {
    if error.kind() != io::ErrorKind::PermissionDenied {
        return match error.kind() {
            io::ErrorKind::NotFound => "the process has ended".into(),
            _ => format!("its memory cannot be read: {error}"),
        };
    }
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope");
    let facts = Facts {
        us: sys::user_id(),
        owner: fs::metadata(format!("/proc/{pid}")).ok().map(|metadata| metadata.uid()),
        scope: scope.ok().and_then(|text| text.trim().parse().ok()),
    };
    format!("its memory may not be read: {}", facts.reason())
}

impl Facts {
    fn reason(self) -> String {
        let Self { us, owner, scope } = self;
        match (owner, scope) {
            (Some(owner), _) if us != 0 && owner != us => {
                // `/proc/PID` of a process that is not dumpable belongs to root, whatever its user.
                format!(
                    "it belongs to user {owner}, or was started with set-user-id or file \
                     capabilities, and the current user is {us}; run this as that \
                     user, or with CAP_SYS_PTRACE (sudo)"
                )
            }
            (_, Some(3)) => {
                "kernel.yama.ptrace_scope is 3: access is denied until a reboot with a \
                             different setting"
                    .into()
            }
            (_, Some(2)) if us != 0 => {
                "kernel.yama.ptrace_scope is 2: access needs CAP_SYS_PTRACE \
                                        (sudo), or sysctl kernel.yama.ptrace_scope=1 and a job \
                                        started by `ddp-doctor run`"
                    .into()
            }
            (_, Some(1)) if us != 0 => {
                "kernel.yama.ptrace_scope is 1: only a parent process has access; use sudo, set \
                 sysctl kernel.yama.ptrace_scope=0, or start the job with `ddp-doctor run`, which \
                 `ddp-doctor dump` then asks for its stacks"
                    .into()
            }
            _ => {
                "it has privileges that this user lacks; run this with CAP_SYS_PTRACE (sudo; in a \
                  container --cap-add SYS_PTRACE)"
                    .into()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_names_a_remedy() {
        let reason = |us, owner, scope| Facts { us, owner, scope }.reason();
        let cases = [
            (reason(1000, Some(0), None), "run this as that user"),
            (reason(1000, Some(1000), Some(1)), "ptrace_scope=0"),
            (reason(1000, Some(1000), Some(2)), "CAP_SYS_PTRACE"),
            (reason(0, Some(0), Some(3)), "until a reboot"),
            (reason(0, Some(0), Some(1)), "--cap-add SYS_PTRACE"),
            (reason(1000, None, None), "--cap-add SYS_PTRACE"),
        ];
        for (text, expected) in cases {
            assert!(text.contains(expected), "{text}");
        }
        let gone = io::ErrorKind::NotFound.into();
        assert_eq!(explain(1, &gone), "the process has ended");
    }
}
