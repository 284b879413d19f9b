//! How long the calls of dumps have been incomplete. Dumps do not contain the time at which they were
//! written. Clocks of hosts differ, so that only times of one dump are compared.

use std::time::Duration;

use ddp_doctor_diagnosis::timing::Timing;

use super::Replay;
use crate::flight_recorder::dump::{Dump, Entry, State};

/// How long calls have been incomplete, at most or at least.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum WaitDuration {
    /// A call has been incomplete for long enough to be reported: it timed out, the rank made
    /// another one much later, or a log states it.
    Reportable,
    /// The files were changed too soon after the calls: no call has been incomplete for longer than
    /// this.
    AtMost(Duration),
    Unknown,
}

impl WaitDuration {
    pub(super) fn new(replay: &Replay<'_>) -> Self {
        let limit = Timing::default().default_stall_after.as_nanos() as u64;
        let is_long = |(dump, entry): (&Dump, Entry<'_>)| {
            let timed_out = entry.retired && !entry.group.is_on_host;
            let is_old = entry.created > 0 && dump.period.1.saturating_sub(entry.created) >= limit;
            (timed_out && entry.state != State::Completed) || is_old
        };
        if replay.job.gave_up || replay.open_in_dumps().any(is_long) {
            return Self::Reportable;
        }
        let ages = replay.open_in_dumps().map(|(dump, entry)| {
            // Of another clock, the file seems to be older than its calls.
            let written = dump.written?.saturating_add(limit);
            let is_known = entry.created > 0 && written >= dump.period.1;
            is_known.then(|| (written - limit).saturating_sub(entry.created))
        });
        let most = ages.collect::<Option<Vec<u64>>>().and_then(|ages| ages.into_iter().max());
        // A job of which a rank has failed does not go on.
        most.map(Duration::from_nanos)
            .filter(|most| *most < replay.stall_after && !replay.job.has_failed)
            .map_or(Self::Unknown, Self::AtMost)
    }

    /// Whether no call can have been incomplete for long.
    pub(in super::super) const fn is_recent(self) -> bool {
        matches!(self, Self::AtMost(_))
    }
}

impl Replay<'_> {
    /// Longest wait of a rank in a call that is not complete, in milliseconds: until its timeout, or until
    /// the last call of its dump. Clocks of other ranks may be later.
    pub(in super::super) fn longest_wait(&self, rank: u32) -> Option<u64> {
        let dump = self.job.ranks.get(&rank)?;
        let calls = self.calls.get(&rank)?;
        let open = calls.units.iter().filter(|it| !it.is_complete);
        let waits = open.map(|unit| {
            let entry = calls.entry(unit);
            let until_last = dump.period.1.saturating_sub(entry.created) / 1_000_000;
            Some(entry.timeout_ms?.max(until_last))
        });
        waits.collect::<Option<Vec<u64>>>()?.into_iter().max()
    }
}
