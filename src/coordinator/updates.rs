//! What one viewer is told: everything once, then what changed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ddp_doctor_proto::report::{Finding, Rank, Report};
use ddp_doctor_proto::v1;
use tokio::sync::watch;

use super::session::Published;

/// The updates of one job for one viewer.
#[derive(Debug)]
pub struct Updates {
    published: watch::Receiver<Arc<Published>>,
    /// What this viewer has; `None`: nothing yet.
    has: Option<Has>,
    ended: bool,
    /// Where this viewer is counted.
    counters: Vec<Arc<AtomicUsize>>,
}

#[derive(Debug)]
struct Has {
    findings: Vec<Finding>,
    ranks: BTreeMap<u32, Rank>,
}

impl Updates {
    pub(super) fn new(
        mut published: watch::Receiver<Arc<Published>>,
        counters: Vec<Arc<AtomicUsize>>,
    ) -> Self {
        for counter in &counters {
            counter.fetch_add(1, Ordering::Relaxed);
        }
        published.mark_changed();
        Self {
            published,
            has: None,
            ended: false,
            counters,
        }
    }

    /// The next update; `None` once the job has ended or its session is gone.
    pub async fn next(&mut self) -> Option<v1::Update> {
        while !self.ended {
            self.published.changed().await.ok()?;
            let published = self.published.borrow_and_update().clone();
            self.ended = published.ended;
            if let Some(report) = &published.report {
                return Some(self.update(report, &published));
            }
        }
        None
    }

    /// What `report` says that the viewer does not know.
    fn update(&mut self, report: &Report, published: &Published) -> v1::Update {
        let findings_changed = self
            .has
            .as_ref()
            .is_none_or(|has| has.findings != report.findings);
        let has_rank = |rank: &Rank| {
            self.has
                .as_ref()
                .is_some_and(|has| has.ranks.get(&rank.rank) == Some(rank))
        };
        let update = v1::Update {
            unix_ns: published.at.0,
            job: Some(v1::Job::from(&report.job)),
            verdict: report.verdict.to_string(),
            evidence: Some(v1::Evidence::from(&report.evidence)),
            findings_changed,
            findings: if findings_changed {
                report.findings.iter().map(v1::Finding::from).collect()
            } else {
                Vec::new()
            },
            ranks: report
                .ranks
                .iter()
                .filter(|rank| !has_rank(rank))
                .map(v1::RankStatus::from)
                .collect(),
            ended: published.ended,
        };
        self.has = Some(Has {
            findings: report.findings.clone(),
            ranks: report
                .ranks
                .iter()
                .map(|rank| (rank.rank, rank.clone()))
                .collect(),
        });
        update
    }
}

impl Drop for Updates {
    fn drop(&mut self) {
        for counter in &self.counters {
            counter.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
