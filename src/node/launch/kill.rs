//! Ends a job that hangs, for `--on-hang kill`.

use std::time::{Duration, Instant};

use ddp_doctor_host::proc;
use ddp_doctor_host::processes;
use ddp_doctor_host::processes::PidFd;
use ddp_doctor_proto::report::{Confidence, Effect, Finding, Severity};
use ddp_doctor_proto::v1;

use crate::launch::descendants;
use crate::timing::Timing;

/// Time limit for killing the processes of a job without pidfds, and the interval of attempts.
const MAX_KILL: Duration = Duration::from_secs(5);
const KILL_INTERVAL: Duration = Duration::from_millis(5);

/// Time for which a finding has to persist before the job is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KillAfter {
    /// For a proved finding.
    pub proved: Duration,
    /// For a supported finding.
    pub supported: Duration,
    /// Time between the captures that confirm a supported finding.
    pub confirmation_interval: Duration,
}

impl KillAfter {
    /// The time that the user set for both, or the defaults.
    #[must_use]
    pub fn new(seconds: Option<Duration>, timing: &Timing) -> Self {
        Self {
            proved: seconds.unwrap_or(timing.kill_after_proved),
            supported: seconds.unwrap_or(timing.kill_after_supported),
            confirmation_interval: timing.confirmation_interval,
        }
    }
}

/// Decides when a job has hung for long enough.
#[derive(Debug)]
pub struct HangTimer {
    kill_after: KillAfter,
    /// Findings that count, each with the time when it appeared.
    current: Vec<(v1::KillReason, Instant)>,
    due: Option<(Instant, v1::KillReason)>,
}

impl HangTimer {
    /// Creates a timer without findings.
    #[must_use]
    pub const fn new(kill_after: KillAfter) -> Self {
        Self { kill_after, current: Vec::new(), due: None }
    }

    /// Replaces the current findings.
    pub fn update(&mut self, findings: &[Finding], now: Instant) {
        let mut current = Vec::new();
        self.due = None;
        for finding in findings.iter().filter(|finding| is_hang(finding)) {
            let group = finding.group.as_ref().map(|group| group.name.clone());
            let identity = v1::KillReason {
                code: finding.code.clone(),
                group: group.unwrap_or_default(),
                seq: finding.seq.unwrap_or(0),
            };
            let before = self.current.iter().filter(|(other, _)| are_of_one_wait(other, &identity));
            let since = before.map(|(_, since)| *since).min().unwrap_or(now);
            let kill_after = match finding.confidence {
                Confidence::Proved => self.kill_after.proved,
                _ => self.kill_after.supported,
            };
            let due = since + kill_after;
            if self.due.as_ref().is_none_or(|(earlier, _)| due < *earlier) {
                self.due = Some((due, identity.clone()));
            }
            current.push((identity, since));
        }
        self.current = current;
    }

    /// Time between the captures that confirm a supported finding.
    #[must_use]
    pub const fn confirmation_interval(&self) -> Duration {
        self.kill_after.confirmation_interval
    }

    /// Time at which the job has to be ended if the findings do not change.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        self.due.as_ref().map(|(due, _)| *due)
    }

    /// The finding because of which the job has to be ended by now, if there is one.
    #[must_use]
    pub fn reason(&self, now: Instant) -> Option<&v1::KillReason> {
        self.due.as_ref().filter(|(due, _)| *due <= now).map(|(_, reason)| reason)
    }
}

/// Whether two findings are of one wait: what is known of it may change.
fn are_of_one_wait(a: &v1::KillReason, b: &v1::KillReason) -> bool {
    (&a.group, a.seq) == (&b.group, b.seq) && (a.seq > 0 || a.code == b.code)
}

/// Whether the job hangs.
#[must_use]
pub fn hangs(findings: &[Finding]) -> bool {
    findings.iter().any(is_hang)
}

/// Whether a hang is proved.
#[must_use]
pub fn is_proved(findings: &[Finding]) -> bool {
    findings.iter().any(|it| is_hang(it) && it.confidence == Confidence::Proved)
}

fn is_hang(finding: &Finding) -> bool {
    finding.effect == Effect::Blocks
        && finding.severity >= Severity::Error
        && finding.confidence >= Confidence::Supported
}

/// The processes of a job that was asked to end, which are killed later.
#[derive(Debug)]
pub struct TerminatedJob {
    root: u32,
    processes: Vec<(u32, u64)>,
}

impl TerminatedJob {
    /// `root`, the processes that are below it now, and the remembered ones.
    #[must_use]
    pub fn new(root: u32, remembered: Vec<(u32, u64)>) -> Self {
        let mut processes = remembered;
        processes.extend(descendants::below(root));
        processes.extend(proc::Stat::read(root).map(|stat| (root, stat.start_ticks)));
        Self { root, processes }
    }

    /// Whether any of the processes is alive.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.processes.iter().any(|(pid, start_ticks)| proc::is_alive(*pid, *start_ticks))
    }

    /// Kills every process that is alive. A process that reuses one of the pids is not affected.
    pub fn kill(mut self) {
        if processes::pidfds().is_err() {
            return kill_children();
        }
        self.processes.extend(descendants::below(self.root));
        self.processes.sort_unstable();
        self.processes.dedup();
        for (pid, start_ticks) in self.processes {
            // Opened before the check, so that the checked process is the one that is killed.
            let Ok(fd) = PidFd::open(pid) else { continue };
            if proc::is_alive(pid, start_ticks) {
                // An error means that it has exited by now.
                drop(fd.signal(libc::SIGKILL));
            }
        }
    }
}

/// Kills every process below this one, where there are no pidfds. Only children are killed: the
/// children of a killed one become children of this process, which is the subreaper of the job.
fn kill_children() {
    let started = Instant::now();
    while started.elapsed() < MAX_KILL {
        let mut children = proc::children(std::process::id());
        children.retain(|&pid| processes::is_living_child(pid));
        if children.is_empty() {
            return;
        }
        for pid in children {
            // An error means that it has been reaped by now.
            drop(processes::signal_child(pid, libc::SIGKILL));
        }
        std::thread::sleep(KILL_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use ddp_doctor_proto::report::{Blame, Role, Timestamp};

    use super::*;

    fn finding(code: &str, confidence: Confidence) -> Finding {
        Finding {
            code: code.into(),
            name: "n".into(),
            severity: Severity::Error,
            effect: Effect::Blocks,
            confidence,
            role: Role::Initiating,
            attempt: 0,
            caused_by: Vec::new(),
            headline: None,
            summary: String::new(),
            cause: None,
            ranks: Blame { root: vec![1], root_confidence: confidence, victims: Vec::new() },
            group: None,
            seq: Some(3),
            op: None,
            per_rank: Vec::new(),
            parameters: Vec::new(),
            certificate: None,
            why: Vec::new(),
            next: Vec::new(),
            blocked_at: None,
            detected_at: Timestamp(1),
            held: Vec::new(),
            latency_ms: 0,
        }
    }

    #[test]
    fn kill_is_due_after_a_finding_persists() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut timer = HangTimer::new(KillAfter::new(None, &Timing::default()));
        timer.update(&[finding("DD101", Confidence::Supported)], start);
        assert_eq!(timer.due(), Some(after(30)));
        timer.update(&[finding("DD101", Confidence::Supported)], after(10));
        assert_eq!(timer.due(), Some(after(30)), "the finding persisted");
        timer.update(&[finding("DD101", Confidence::Proved)], after(11));
        assert_eq!(timer.due(), Some(after(5)), "already overdue");
        timer.update(&[], after(12));
        assert_eq!(timer.due(), None);
        timer.update(&[finding("DD101", Confidence::Proved)], after(20));
        assert_eq!(timer.due(), Some(after(25)), "the time starts again");
        assert_eq!(timer.reason(after(24)), None);
        let reason = timer.reason(after(25)).map(|reason| (&*reason.code, reason.seq));
        assert_eq!(reason, Some(("DD101", 3)));
    }

    #[test]
    fn wait_that_is_understood_otherwise_does_not_begin_again() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut timer = HangTimer::new(KillAfter::new(None, &Timing::default()));
        timer.update(&[finding("DD101", Confidence::Supported)], start);
        timer.update(&[finding("DD204", Confidence::Supported)], after(10));
        assert_eq!(timer.due(), Some(after(30)));
        let other = Finding { seq: Some(4), ..finding("DD204", Confidence::Supported) };
        timer.update(&[other], after(20));
        assert_eq!(timer.due(), Some(after(50)), "another wait");
        let nowhere = |code| Finding { seq: None, ..finding(code, Confidence::Supported) };
        timer.update(&[nowhere("DD301")], after(30));
        timer.update(&[nowhere("DD303")], after(40));
        assert_eq!(timer.due(), Some(after(70)), "of no call");
    }

    #[test]
    fn only_supported_blocking_errors_count() {
        let mut timer = HangTimer::new(KillAfter::new(Some(Duration::ZERO), &Timing::default()));
        let mut crash = finding("DD201", Confidence::Proved);
        crash.effect = Effect::Crashes;
        let mut warning = finding("DD115", Confidence::Proved);
        warning.severity = Severity::Warning;
        let findings = [crash, warning, finding("DD101", Confidence::Suspected)];
        timer.update(&findings, Instant::now());
        assert_eq!(timer.due(), None);
    }
}
