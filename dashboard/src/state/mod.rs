//! State of the job, built from updates. Nothing here draws.

use std::rc::Rc;

use ddp_doctor_proto::report::{Evidence, Finding, Job, Role, Severity, Timestamp, Verdict};
use ddp_doctor_proto::viewer::Update;

use crate::feed::Link;

mod groups;
mod history;
mod ranks;
#[cfg(test)]
pub(crate) mod testing;

pub use groups::{GroupCalls, Groups, Seq};
pub use history::Moments;
pub(crate) use ranks::share;
pub use ranks::{Curve, Health, Moment, RankView, Ranks, STRIP};

/// State of the job.
#[derive(Debug, Default)]
pub struct State {
    /// The job.
    pub job: Job,
    /// Overall state of the job.
    pub verdict: Verdict,
    /// The evidence for the diagnosis.
    pub evidence: Evidence,
    /// Findings, initiating ones first.
    pub findings: Vec<Rc<Finding>>,
    /// The ranks.
    pub ranks: Ranks,
    /// The process groups.
    pub groups: Groups,
    /// Time of the latest update.
    pub at: Timestamp,
    /// Whether the last update has arrived.
    pub ended: bool,
    /// State of the connection.
    pub link: Link,
    /// Time the connection was lost; `None` while connected.
    pub disconnected_since: Option<Timestamp>,
    /// Records per second between the latest updates.
    pub records_per_second: Option<u64>,
    /// Incremented by every change.
    pub version: u64,
    /// The state predates the current connection and is replaced by its first update.
    stale: bool,
}

impl State {
    /// Applies an update.
    pub fn apply(&mut self, update: Update) {
        self.version += 1;
        if std::mem::take(&mut self.stale) {
            self.clear();
        }
        self.measure_rate(update.evidence.records, update.at);
        self.job = update.job;
        self.evidence = update.evidence;
        self.verdict = update.verdict;
        self.ended = update.ended;
        self.at = update.at;
        if let Some(findings) = update.findings {
            self.findings = findings.into_iter().map(Rc::new).collect();
        }
        self.ranks.apply(update.ranks, update.details, &self.evidence, self.at);
        self.ranks.summarize(&culprits(&self.findings));
        self.ranks.sample(self.at);
        self.groups.apply(update.groups);
    }

    /// Discards the state of the job.
    pub fn clear(&mut self) {
        *self = Self {
            link: std::mem::take(&mut self.link),
            disconnected_since: self.disconnected_since,
            version: self.version + 1,
            ..Self::default()
        };
    }

    /// Records a change of the connection at `now`, local clock.
    pub fn connected(&mut self, link: Link, now: Timestamp) {
        self.version += 1;
        match &link {
            Link::Lost { .. } => {
                self.disconnected_since.get_or_insert(now);
            }
            Link::Live => {
                self.disconnected_since = None;
                self.stale = true;
            }
            Link::Recorded => {
                self.disconnected_since = None;
                self.stale = true;
            }
            Link::Connecting => self.disconnected_since = None,
        }
        self.link = link;
    }

    /// Whether an update has arrived.
    #[must_use]
    pub const fn is_known(&self) -> bool {
        self.at.0 > 0
    }

    /// The leading finding: the most severe of the initiating ones.
    #[must_use]
    pub fn leading(&self) -> Option<&Rc<Finding>> {
        self.findings.first()
    }

    /// The finding that explains the verdict. A note does not explain the verdict of a healthy job.
    #[must_use]
    pub fn reason(&self) -> Option<&Rc<Finding>> {
        self.leading().filter(|finding| {
            finding.severity >= Severity::Warning || self.verdict != Verdict::Healthy
        })
    }

    /// Duration of the job so far, or in total, in milliseconds. `None`: its start or end is unknown.
    #[must_use]
    pub fn age_ms(&self) -> Option<u64> {
        let started = self.job.started_at?;
        // Evidence without nodes, such as dumps, does not show when the job ended.
        let is_open = !self.ended || self.job.nodes > 0;
        let until = self.job.ended_at.or(is_open.then_some(self.at))?;
        Some(until.since(started).as_millis() as u64)
    }

    fn measure_rate(&mut self, records: u64, at: Timestamp) {
        let since = at.since(self.at).as_millis() as u64;
        if self.at.0 > 0 && since >= 500 {
            let new = records.saturating_sub(self.evidence.records);
            self.records_per_second = Some(new.saturating_mul(1000) / since);
        }
    }
}

/// Root cause ranks of initiating findings of at least severity "warning", ascending.
fn culprits(findings: &[Rc<Finding>]) -> Vec<u32> {
    let wrong = findings.iter().filter(|finding| {
        finding.role == Role::Initiating && finding.severity >= Severity::Warning
    });
    let mut ranks: Vec<u32> = wrong.flat_map(|it| it.ranks.root.iter().copied()).collect();
    ranks.sort_unstable();
    ranks.dedup();
    ranks
}

#[cfg(test)]
mod tests {
    use ddp_doctor_proto::viewer::{Gauge, RankDetail};

    use super::testing::{finding, rank, update};
    use super::*;

    #[test]
    fn unknown_code_layer_and_gauge_are_kept_unchanged() {
        let mut state = State::default();
        let mut new = update(1, vec![rank(0, "running", 3)]);
        new.findings = Some(vec![finding("DD999", "moon-phase", &[0])]);
        new.evidence.layers = vec!["warp".into()];
        new.details = vec![RankDetail {
            rank: 0,
            gauges: vec![Gauge {
                name: "warp core".into(),
                unit: "B".into(),
                value: 5,
                ..Default::default()
            }],
            ..Default::default()
        }];
        state.apply(new);
        assert_eq!(state.findings[0].code, "DD999");
        assert_eq!(state.evidence.layers, ["warp"]);
        let view = state.ranks.get(0).unwrap();
        assert_eq!(view.detail.gauges[0].name, "warp core");
        assert_eq!(view.health, Health::Culprit);
    }

    #[test]
    fn old_state_stays_until_first_update_of_new_connection() {
        let mut state = State::default();
        state.connected(Link::Live, Timestamp(1));
        state.apply(update(1, vec![rank(0, "running", 1), rank(1, "running", 1)]));
        let lost = || Link::Lost { why: "gone".into() };
        state.connected(lost(), Timestamp(50));
        state.connected(lost(), Timestamp(60));
        assert_eq!(state.disconnected_since, Some(Timestamp(50)), "since the first loss");
        state.connected(Link::Live, Timestamp(70));
        assert_eq!((state.disconnected_since, state.ranks.len()), (None, 2));
        state.apply(update(80, vec![rank(0, "running", 1)]));
        assert_eq!(state.ranks.len(), 1, "the new connection reports one rank");
    }

    #[test]
    fn record_rate_is_measured_between_latest_updates() {
        let mut state = State::default();
        for (second, records) in [(1, 100), (2, 400), (4, 600)] {
            let mut new = update(second * 1_000_000_000, vec![]);
            new.evidence.records = records;
            state.apply(new);
        }
        assert_eq!(state.records_per_second, Some(100));
    }
}
