//! Earlier states of the ranks of a job, for viewers that attach later.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use ddp_doctor_diagnosis::Engine;
use ddp_doctor_diagnosis::model::Process;
use ddp_doctor_proto::report::{Evidence, Job, Rank, RankState, Timestamp, Verdict};
use ddp_doctor_proto::viewer::{Gauge, RankDetail, Update};
use ddp_doctor_report::viewer::gauges_of;

/// Initial interval of samples. It doubles whenever the history is full.
const FIRST_INTERVAL: Duration = Duration::from_secs(1);
/// Bounds of the number of samples.
const SAMPLES: (usize, usize) = (16, 128);
/// Maximum number of states of single ranks in all samples together.
const MAX_STATES: usize = 32_768;
/// Maximum number of gauges per rank and sample.
const MAX_GAUGES: usize = 10;

/// Samples of a whole job: the longer it lasts, the further they are apart.
#[derive(Debug)]
pub(in super::super) struct History {
    samples: Vec<Arc<Moment>>,
    interval: Duration,
    /// Gauges that were seen, so that samples share their names.
    gauges: BTreeSet<Arc<GaugeName>>,
}

/// Name and unit of a gauge.
type GaugeName = (String, String);

impl Default for History {
    fn default() -> Self {
        Self { samples: Vec::new(), interval: FIRST_INTERVAL, gauges: BTreeSet::new() }
    }
}

impl History {
    /// Adds the state at a time, if a sample is due.
    pub(in super::super) fn sample(&mut self, engine: &Engine, at: Timestamp) {
        let last = self.samples.last();
        if last.is_some_and(|last| at.since(last.at) < self.interval) {
            return;
        }
        let report = engine.report();
        if report.ranks.is_empty() {
            return;
        }
        let most = (MAX_STATES / report.ranks.len()).clamp(SAMPLES.0, SAMPLES.1);
        while self.samples.len() >= most {
            self.halve();
        }
        let model = engine.model();
        let ranks = report
            .ranks
            .iter()
            .map(|it| RankMoment {
                rank: it.rank,
                state: it.state,
                step: it.step,
                gauges: model.process_of(it.rank).map(|it| self.gauges(it)).unwrap_or_default(),
            })
            .collect();
        self.samples.push(Arc::new(Moment {
            at,
            ranks,
            verdict: report.verdict,
            records: report.evidence.records,
            job: report.job,
        }));
    }

    /// Latest values of the gauges of a process.
    fn gauges(&mut self, process: &Process) -> Vec<(Arc<GaugeName>, u64)> {
        let gauges = gauges_of(process).into_iter().take(MAX_GAUGES);
        let named = gauges.map(|it| {
            let key = (it.name, it.unit);
            let name = self.gauges.get(&key).cloned().unwrap_or_else(|| Arc::new(key));
            self.gauges.insert(Arc::clone(&name));
            (name, it.value)
        });
        named.collect()
    }

    /// The samples, oldest first.
    pub(in super::super) fn samples(&self) -> Vec<Arc<Moment>> {
        self.samples.clone()
    }

    /// Drops every second sample, and keeps the latest.
    fn halve(&mut self) {
        let mut is_kept = self.samples.len().is_multiple_of(2);
        self.samples.retain(|_| {
            is_kept = !is_kept;
            is_kept
        });
        self.interval *= 2;
    }
}

/// State of the ranks at one time.
#[derive(Debug)]
pub(in super::super) struct Moment {
    at: Timestamp,
    job: Job,
    verdict: Verdict,
    records: u64,
    ranks: Vec<RankMoment>,
}

/// State of one rank at one time.
#[derive(Debug)]
struct RankMoment {
    rank: u32,
    state: RankState,
    step: u64,
    gauges: Vec<(Arc<GaugeName>, u64)>,
}

impl Moment {
    /// The state as an update, in which fields without a history have their defaults.
    pub(in super::super) fn update(&self) -> Update {
        let rank = |it: &RankMoment| Rank {
            rank: it.rank,
            state: it.state,
            step: it.step,
            ..Rank::default()
        };
        let gauge = |(name, value): &(Arc<GaugeName>, u64)| Gauge {
            name: name.0.clone(),
            unit: name.1.clone(),
            value: *value,
            ..Gauge::default()
        };
        let detail = |it: &RankMoment| RankDetail {
            rank: it.rank,
            gauges: it.gauges.iter().map(gauge).collect(),
            ..RankDetail::default()
        };
        Update {
            at: self.at,
            job: self.job.clone(),
            verdict: self.verdict,
            evidence: Evidence { records: self.records, ..Evidence::default() },
            ranks: self.ranks.iter().map(rank).collect(),
            details: self.ranks.iter().map(detail).collect(),
            ..Update::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(second: u64) -> Arc<Moment> {
        Arc::new(Moment {
            at: Timestamp(second * 1_000_000_000),
            job: Job::default(),
            verdict: Verdict::Healthy,
            records: 0,
            ranks: Vec::new(),
        })
    }

    #[test]
    fn halved_history_keeps_its_latest_sample() {
        for length in [2, 3, 16, 17] {
            let mut history =
                History { samples: (0..length).map(moment).collect(), ..History::default() };
            history.halve();
            assert_eq!(history.samples.len() as u64, length.div_ceil(2));
            assert_eq!(history.samples.last().unwrap().at, moment(length - 1).at);
            assert_eq!(history.interval, FIRST_INTERVAL * 2);
        }
    }
}
