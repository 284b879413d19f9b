//! Ends a job that hangs, where the user asked for it.

use std::time::{Duration, Instant};

use ddp_doctor_proto::report::{Confidence, Effect, Finding, Severity};

use super::sys::PidFd;
use super::timing::Timing;
use super::{descendants, proc};

/// How long a finding has to stand before the job is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// If it is proved.
    pub proved: Duration,
    /// If it is supported.
    pub supported: Duration,
}

impl Patience {
    /// The user's, or the default.
    #[must_use]
    pub fn new(seconds: Option<Duration>, timing: &Timing) -> Self {
        Self {
            proved: seconds.unwrap_or(timing.kill_after_proved),
            supported: seconds.unwrap_or(timing.kill_after_supported),
        }
    }
}

/// Decides when a job has hung for long enough.
#[derive(Debug)]
pub struct Judge {
    patience: Patience,
    /// Findings that count, and since when they stand.
    standing: Vec<(Identity, Instant)>,
    due: Option<Instant>,
}

/// What makes it the same finding in another update.
type Identity = (String, Option<String>, Option<u64>);

impl Judge {
    /// A judge with that much patience.
    #[must_use]
    pub const fn new(patience: Patience) -> Self {
        Self {
            patience,
            standing: Vec::new(),
            due: None,
        }
    }

    /// These are the findings now.
    pub fn consider(&mut self, findings: &[Finding], now: Instant) {
        let mut standing = Vec::new();
        self.due = None;
        for finding in findings.iter().filter(|finding| blocks_for_sure(finding)) {
            let group = finding.group.as_ref().map(|group| group.name.clone());
            let identity = (finding.code.clone(), group, finding.seq);
            let before = self.standing.iter().find(|(other, _)| *other == identity);
            let since = before.map_or(now, |(_, since)| *since);
            let patience = match finding.confidence {
                Confidence::Proved => self.patience.proved,
                _ => self.patience.supported,
            };
            self.due = Some(
                self.due
                    .map_or(since + patience, |due| due.min(since + patience)),
            );
            standing.push((identity, since));
        }
        self.standing = standing;
    }

    /// When the job is to be ended, if nothing changes.
    #[must_use]
    pub const fn due(&self) -> Option<Instant> {
        self.due
    }
}

fn blocks_for_sure(finding: &Finding) -> bool {
    finding.effect == Effect::Blocks
        && finding.severity >= Severity::Error
        && finding.confidence >= Confidence::Supported
}

/// What is left of a job that was told to end, and is then made to.
#[derive(Debug)]
pub struct Condemned {
    root: u32,
    processes: Vec<(u32, u64)>,
}

impl Condemned {
    /// `root`, the processes below it now, and those that were below it before.
    #[must_use]
    pub fn new(root: u32, remembered: Vec<(u32, u64)>) -> Self {
        let mut processes = remembered;
        processes.extend(descendants::below(root));
        processes.extend(proc::Stat::of(root).map(|stat| (root, stat.start_ticks)));
        Self { root, processes }
    }

    /// Whether any of them is still there.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.processes
            .iter()
            .any(|(pid, start_ticks)| proc::is_alive(*pid, *start_ticks))
    }

    /// Kills every one that is still there. Nothing else: a number that was given to another
    /// process meanwhile is left alone.
    pub fn kill(mut self) {
        self.processes.extend(descendants::below(self.root));
        self.processes.sort_unstable();
        self.processes.dedup();
        for (pid, start_ticks) in self.processes {
            // Opened first, checked then: what is checked is what is killed.
            let Ok(fd) = PidFd::open(pid) else { continue };
            if proc::is_alive(pid, start_ticks) {
                // If it is gone by now, all the better.
                drop(fd.signal(libc::SIGKILL));
            }
        }
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
            caused_by: Vec::new(),
            summary: String::new(),
            cause: None,
            ranks: Blame {
                root: vec![1],
                root_confidence: confidence,
                victims: Vec::new(),
            },
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
            latency_ms: 0,
        }
    }

    #[test]
    fn a_finding_has_to_stand() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut judge = Judge::new(Patience::new(None, &Timing::default()));
        judge.consider(&[finding("DD101", Confidence::Supported)], start);
        assert_eq!(judge.due(), Some(after(30)));
        judge.consider(&[finding("DD101", Confidence::Supported)], after(10));
        assert_eq!(judge.due(), Some(after(30)), "it stood all the time");
        judge.consider(&[finding("DD101", Confidence::Proved)], after(11));
        assert_eq!(judge.due(), Some(after(5)), "it has stood for long enough");
        judge.consider(&[], after(12));
        assert_eq!(judge.due(), None);
        judge.consider(&[finding("DD101", Confidence::Proved)], after(20));
        assert_eq!(judge.due(), Some(after(25)), "it began anew");
    }

    #[test]
    fn only_what_surely_blocks_counts() {
        let mut judge = Judge::new(Patience::new(Some(Duration::ZERO), &Timing::default()));
        let mut crash = finding("DD201", Confidence::Proved);
        crash.effect = Effect::Crashes;
        let mut warning = finding("DD115", Confidence::Proved);
        warning.severity = Severity::Warning;
        let findings = [crash, warning, finding("DD101", Confidence::Suspected)];
        judge.consider(&findings, Instant::now());
        assert_eq!(judge.due(), None);
    }
}
