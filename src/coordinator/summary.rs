//! The numbers of jobs that metrics consist of.

use std::collections::BTreeMap;

use ddp_doctor_proto::report::{RankState, Report, Role, Severity, Timestamp, Verdict};

/// Numbers of one job at one moment: no text of ranks, and of bounded size.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// Verdict of the diagnosis.
    pub verdict: Verdict,
    /// Number of initiating findings by code and severity.
    pub findings: BTreeMap<(String, Severity), u64>,
    /// Number of ranks by state.
    pub ranks: BTreeMap<RankState, u64>,
    /// World size, once known.
    pub ranks_expected: Option<u32>,
    /// Lowest training step of the ranks that have not ended; `None`: no rank reports steps.
    pub step: Option<u64>,
    /// Records read.
    pub records: u64,
    /// Records lost.
    pub records_lost: u64,
    /// Start of the job.
    pub started_at: Option<Timestamp>,
    /// End of the job; `None` while it is running.
    pub ended_at: Option<Timestamp>,
}

/// State of a job.
#[derive(Clone, Debug)]
pub struct JobState {
    /// Id of the job, which earlier jobs may have had, too.
    pub id: String,
    /// Its numbers; `None`: it has not reported yet.
    pub summary: Option<Summary>,
    /// Number of connected nodes.
    pub nodes: u64,
    /// Whether a session diagnoses the job.
    pub is_running: bool,
    /// Whether the numbers are of this moment, or final.
    pub is_current: bool,
}

/// State of a coordinator.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// Jobs, newest first.
    pub jobs: Vec<JobState>,
    /// Number of jobs since the start.
    pub jobs_started: u64,
}

impl Summary {
    /// Summarizes a report.
    #[must_use]
    pub fn new(report: &Report) -> Self {
        let mut findings = BTreeMap::new();
        for finding in &report.findings {
            if finding.role == Role::Initiating {
                *findings.entry((finding.code.clone(), finding.severity)).or_default() += 1;
            }
        }
        let mut ranks = BTreeMap::new();
        for rank in &report.ranks {
            *ranks.entry(rank.state).or_default() += 1;
        }
        let is_alive = |state| !matches!(state, RankState::Exited | RankState::Dead);
        let living = report.ranks.iter().filter(|rank| is_alive(rank.state));
        Self {
            verdict: report.verdict,
            findings,
            ranks,
            ranks_expected: report.evidence.ranks_expected,
            step: living.map(|rank| rank.step).min().filter(|step| *step > 0),
            records: report.evidence.records,
            records_lost: report.evidence.records_lost,
            started_at: report.job.started_at,
            ended_at: report.job.ended_at,
        }
    }
}
