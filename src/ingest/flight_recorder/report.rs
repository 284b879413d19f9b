//! The report, with the times and states that dumps show.

use ddp_doctor_proto::report::{RankState, Report, Timestamp};

use super::replay::{Replay, WaitDuration};

/// The report of the engine, without the durations that dumps do not show, and with the first incomplete call
/// of each rank.
pub(super) fn limited(mut report: Report, replay: &Replay<'_>) -> Report {
    let is_long = replay.wait_duration == WaitDuration::Reportable;
    let waited = |rank: u32, known: Option<u64>| {
        let most = replay.longest_wait(rank).unwrap_or(u64::MAX);
        known.filter(|_| is_long).map(|known| known.min(most))
    };
    let entries = replay.job.ranks.values().map(|dump| dump.count as u64);
    report.evidence.records = entries.sum();
    // Dumps name no hosts.
    report.job.nodes = 0;
    report.job.started_at = report.job.started_at.filter(|at| at.0 > 0);
    for rank in &mut report.ranks {
        let may_wait = matches!(rank.state, RankState::Running | RankState::Unknown);
        if let Some(waiting) = replay.waiting_in(rank.rank).filter(|_| may_wait) {
            rank.waiting_in = Some(waiting);
            rank.state = RankState::Waiting;
        } else if may_wait && replay.job.ranks.get(&rank.rank).is_some_and(|it| it.count == 0) {
            rank.state = RankState::Unknown;
        }
        if let Some(waiting) = &mut rank.waiting_in {
            waiting.waited_ms = waited(rank.rank, waiting.waited_ms);
        }
    }
    for finding in &mut report.findings {
        if !is_long {
            // When the wait became reportable is unknown: the last call is the latest known time.
            finding.detected_at = Timestamp(replay.job.period().1);
            finding.latency_ms = 0;
        }
        for call in &mut finding.per_rank {
            call.waited_ms = waited(call.rank, call.waited_ms);
        }
    }
    report
}
