//! Offset of a node's clock from the coordinator's.
//!
//! Four times of one exchange bound it: the coordinator sends at `t1`, the node receives at `t2` and
//! answers at `t3`, and the answer arrives at `t4`. The node's clock is ahead by half of `(t2 - t1) +
//! (t3 - t4)`, with an uncertainty of half the round trip `(t4 - t1) - (t3 - t2)`, however the round trip
//! divides into the two ways. The exchange with the shortest round trip is the best one (NTP, RFC
//! 5905, sections 8 and 10).

use std::collections::VecDeque;

use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_proto::v1;

/// Number of latest exchanges from which the best is selected: clocks drift by about ten parts per
/// million.
const MAX_EXCHANGES: usize = 8;
/// Minimum offset corrected before the first exchange, in nanoseconds. The offset is then estimated
/// from a report's time of sending, which includes the unknown delay of the report.
const MIN_ESTIMATED_OFFSET: u64 = 2_000_000_000;

/// Measurements of a node's clock.
#[derive(Debug, Default)]
pub(super) struct Clock {
    /// Time in the Ping that was not answered yet.
    pending_ping: Option<u64>,
    samples: VecDeque<Estimate>,
    rough: i64,
}

/// Offset of a clock from the coordinator's, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Estimate {
    /// Offset; negative if the clock is behind.
    pub(super) ahead: i64,
    /// Uncertainty of the offset.
    pub(super) uncertainty: u64,
}

impl Clock {
    /// Creates a request for the node's time.
    pub(super) fn ping(&mut self, now: Timestamp) -> v1::Ping {
        self.pending_ping = Some(now.0);
        v1::Ping { unix_ns: now.0 }
    }

    /// Whether a request was not answered yet.
    pub(super) const fn has_pending_ping(&self) -> bool {
        self.pending_ping.is_some()
    }

    /// Number of completed exchanges kept.
    pub(super) fn exchanges(&self) -> usize {
        self.samples.len()
    }

    /// Processes the arrival of a report. Returns whether the estimate changed.
    pub(super) fn receive(&mut self, report: &v1::Report, arrived: Timestamp) -> bool {
        let Some(pong) = &report.pong else {
            if self.samples.is_empty() && self.rough == 0 {
                let ahead = difference(report.sent_unix_ns, arrived.0);
                self.rough =
                    ahead.filter(|it| it.unsigned_abs() >= MIN_ESTIMATED_OFFSET).unwrap_or(0);
            }
            return false;
        };
        // Ignore an answer without a matching request.
        if self.pending_ping != Some(pong.ping_unix_ns) {
            return false;
        }
        self.pending_ping = None;
        let sample =
            exchange([pong.ping_unix_ns, pong.received_unix_ns, report.sent_unix_ns, arrived.0]);
        let Some(sample) = sample else { return false };
        let before = self.estimate();
        if self.samples.len() == MAX_EXCHANGES {
            self.samples.pop_front();
        }
        self.samples.push_back(sample);
        before != self.estimate()
    }

    /// Estimate of the best exchange; `None`: there was none.
    pub(super) fn estimate(&self) -> Option<Estimate> {
        let best = self.samples.iter().min_by_key(|it| it.uncertainty);
        best.copied()
    }

    /// Correction of the node's times: its offset if that is certainly not zero.
    pub(super) fn correction(&self) -> i64 {
        match self.estimate() {
            Some(it) if it.ahead.unsigned_abs() > it.uncertainty => it.ahead,
            Some(_) => 0,
            None => self.rough,
        }
    }
}

/// Estimate of one exchange; `None` if its times are inconsistent.
fn exchange([t1, t2, t3, t4]: [u64; 4]) -> Option<Estimate> {
    let trip = difference(t4, t1)?.checked_sub(difference(t3, t2)?)?;
    let away = difference(t2, t1)?.checked_add(difference(t3, t4)?)?;
    Some(Estimate { ahead: away / 2, uncertainty: u64::try_from(trip).ok()?.div_ceil(2) })
}

fn difference(a: u64, b: u64) -> Option<i64> {
    i64::try_from(i128::from(a) - i128::from(b)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const DAY: u64 = 86_400_000 * MS;

    /// An exchange with a node whose clock is ahead by `ahead`, with the given delays of both ways.
    fn exchanged(clock: &mut Clock, ahead: i64, there: u64, back: u64) {
        let start = Timestamp(1000 * DAY);
        let ping = clock.ping(start);
        let theirs = |ours: u64| ours.checked_add_signed(ahead).unwrap();
        let report = v1::Report {
            sent_unix_ns: theirs(start.0 + there + 5 * MS),
            events: Vec::new(),
            pong: Some(v1::Pong {
                ping_unix_ns: ping.unix_ns,
                received_unix_ns: theirs(start.0 + there),
            }),
            ..v1::Report::default()
        };
        clock.receive(&report, Timestamp(start.0 + there + 5 * MS + back));
    }

    #[test]
    fn offset_is_within_the_uncertainty_for_any_delays() {
        for ahead in [0, 7, -300_000_000, 90_000_000_000_i64] {
            for (there, back) in [(MS, MS), (MS, 40 * MS), (40 * MS, MS), (0, 0)] {
                let mut clock = Clock::default();
                exchanged(&mut clock, ahead, there, back);
                let found = clock.estimate().unwrap();
                assert!(found.ahead.abs_diff(ahead) <= found.uncertainty + 1, "{found:?}");
                assert_eq!(found.uncertainty, (there + back).div_ceil(2));
            }
        }
    }

    #[test]
    fn shortest_round_trip_determines_the_estimate() {
        let mut clock = Clock::default();
        exchanged(&mut clock, 500, 30 * MS, 80 * MS);
        exchanged(&mut clock, 500, MS, MS);
        exchanged(&mut clock, 500, 90 * MS, 2 * MS);
        let found = clock.estimate().unwrap();
        assert_eq!((found.ahead, found.uncertainty), (500, MS));
    }

    #[test]
    fn offset_that_may_be_zero_is_not_corrected() {
        let mut clock = Clock::default();
        exchanged(&mut clock, 0, MS, 40 * MS);
        assert_eq!(clock.correction(), 0);
        exchanged(&mut clock, 3_000_000_000, MS, 2 * MS);
        assert!(clock.correction().abs_diff(3_000_000_000) <= 2 * MS);
    }

    #[test]
    fn only_large_offset_is_corrected_before_first_exchange() {
        let sent =
            |at| v1::Report { sent_unix_ns: at, events: Vec::new(), ..v1::Report::default() };
        let mut clock = Clock::default();
        clock.receive(&sent(1000 * DAY), Timestamp(1000 * DAY + 90 * MS));
        assert_eq!(clock.correction(), 0);
        let mut clock = Clock::default();
        clock.receive(&sent(999 * DAY), Timestamp(1000 * DAY));
        assert_eq!(clock.correction(), -(DAY as i64));
    }

    #[test]
    fn unrequested_and_inconsistent_answers_are_ignored() {
        let mut clock = Clock::default();
        let report = |ping, received, sent| v1::Report {
            sent_unix_ns: sent,
            events: Vec::new(),
            pong: Some(v1::Pong { ping_unix_ns: ping, received_unix_ns: received }),
            ..v1::Report::default()
        };
        assert!(!clock.receive(&report(5, 6, 7), Timestamp(8)));
        for (received, sent) in [(0, u64::MAX), (u64::MAX, 0), (9, 5)] {
            let ping = clock.ping(Timestamp(5));
            clock.receive(&report(ping.unix_ns, received, sent), Timestamp(6));
            let found = clock.estimate();
            assert!(found.is_none_or(|it| it.uncertainty < DAY), "{found:?}");
        }
        let ping = clock.ping(Timestamp(5));
        clock.receive(&report(ping.unix_ns, 6, 7), Timestamp(8));
        let exchanges = clock.exchanges();
        clock.receive(&report(ping.unix_ns, 6, 7), Timestamp(8));
        assert_eq!(clock.exchanges(), exchanges, "an answer counts once");
    }
}
