//! Where the time of each rank goes: its own work, its input, waiting.

use std::cmp::{max, min};
use std::time::Duration;

use ddp_doctor_proto::Spending;
use ddp_doctor_proto::report::{Effect, Finding, Report, Role, Timestamp};

use crate::timeline::{TimedCall, Timeline, Track};

/// The time of a rank between the start and the end of [`Span`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Shares {
    /// The rest: its own work.
    pub(super) compute: Duration,
    /// Waiting for batches.
    pub(super) input: Duration,
    /// Waiting in or for calls: for peers, and for the transfer of data.
    pub(super) waiting: Duration,
    /// Garbage collection of the interpreter.
    pub(super) garbage: Duration,
}

/// The time that is examined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    /// Start …
    pub(super) from: Timestamp,
    /// … and end.
    pub(super) to: Timestamp,
}

impl Span {
    /// The time in which the calls of all ranks are known, of a job that is slow: that in which the leading
    /// finding held. `None`: the job is not slow, or less than a call of some rank is known.
    pub(super) fn new(report: &Report, timeline: &Timeline) -> Option<Self> {
        let slows = |it: &&Finding| it.effect == Effect::Slows && it.role == Role::Initiating;
        let leading = report.findings.iter().find(|it| it.effect != Effect::None)?;
        let finding = Some(leading).filter(slows)?;
        let tracks = || timeline.tracks.iter().filter(|track| !track.calls.is_empty());
        // Ranks may end one after the other, and of each another number of calls is kept.
        let first = |track: &Track| track.calls.first().map(|call| call.call.at);
        let last = |track: &Track| track.calls.last().map(|call| call.call.at);
        let (from, to) = (tracks().filter_map(first).max()?, tracks().filter_map(last).min()?);
        let latest = finding.held.iter().rev();
        let held = latest.map(|it| (it.from, it.to)).find(|it| it.0 < to && it.1 > from);
        let (since, until) = held.unwrap_or((finding.blocked_at.unwrap_or(from), to));
        let span = Self { from: max(from, since), to: min(to, until) };
        (span.from < span.to).then_some(span)
    }

    /// Length of the span.
    pub(super) fn length(&self) -> Duration {
        self.to.since(self.from)
    }

    /// Where the time of a process goes.
    pub(super) fn shares(&self, track: &Track) -> Shares {
        let input = self.covered(track, &[Spending::Input], false);
        let spent = self.covered(track, &[Spending::Input, Spending::Garbage], false);
        let other = self.covered(track, &[Spending::Input, Spending::Garbage], true);
        Shares {
            compute: self.length().saturating_sub(other),
            input,
            waiting: other.saturating_sub(spent),
            garbage: spent.saturating_sub(input),
        }
    }

    /// Time of the span that is spent on one of these, or also in waits.
    fn covered(&self, track: &Track, on: &[Spending], and_waits: bool) -> Duration {
        let spent = track.spent.iter().filter(|it| on.contains(&it.on)).map(|it| (it.from, it.to));
        let waits = track.calls.iter().filter(|_| and_waits).filter_map(|call| wait(call, self.to));
        let clipped = spent.chain(waits).map(|(from, to)| (max(from, self.from), min(to, self.to)));
        let mut intervals: Vec<_> = clipped.filter(|(from, to)| from < to).collect();
        intervals.sort_unstable();
        let mut known = self.from;
        let mut sum = Duration::ZERO;
        for (from, to) in intervals {
            sum += to.since(max(from, known));
            known = max(known, to);
        }
        sum
    }
}

/// The time in which a thread waited in a call or for it.
fn wait(call: &TimedCall, end: Timestamp) -> Option<(Timestamp, Timestamp)> {
    match call.wait {
        Some((from, to)) => Some((from, to.unwrap_or(end))),
        None if call.call.is_async || call.call.hidden => None,
        None => Some((call.call.at, call.returned?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeline::Spent;

    const SPAN: Span = Span { from: Timestamp(100), to: Timestamp(200) };

    fn spent(on: Spending, from: u64, to: u64) -> Spent {
        Spent { on, from: Timestamp(from), to: Timestamp(to) }
    }

    #[test]
    fn shares_add_up_and_count_no_time_twice() {
        let nanos = Duration::from_nanos;
        let mut track = Track::default();
        assert_eq!(SPAN.shares(&track), Shares { compute: nanos(100), ..Shares::default() });
        track.spent = vec![
            spent(Spending::Input, 90, 120),
            spent(Spending::Garbage, 110, 130),
            spent(Spending::Input, 190, 250),
        ];
        let mut call = crate::testing::timeline().tracks[0].calls[0].clone();
        call.wait = Some((Timestamp(125), Some(Timestamp(165))));
        track.calls = vec![call];
        let shares = SPAN.shares(&track);
        assert_eq!(
            shares,
            Shares { compute: nanos(25), input: nanos(30), waiting: nanos(35), garbage: nanos(10) }
        );
    }
}
