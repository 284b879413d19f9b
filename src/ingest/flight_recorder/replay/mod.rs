//! Passes the calls of a job to the engine.
//!
//! [`Replay`] holds what is known of a job. `calls` shows its calls as the engine counts them,
//! `wait_duration` estimates for how long they have been incomplete, `events` passes them to the engine,
//! `missing_evidence` states what the dumps lack, and `provenance` what else they show.

use std::collections::BTreeMap;
use std::time::Duration;

use ddp_doctor_diagnosis::timing::Timing;

use super::calls::{Calls, Groups, Messages, Unit};
use super::dump::{Dump, Entry};
use crate::flight_recorder::dumped_jobs::DumpedJob;
use crate::flight_recorder::wait_graph::Waits;

mod calls;
mod events;
mod missing_evidence;
mod provenance;
mod wait_duration;

pub(super) use wait_duration::WaitDuration;

/// A job as the engine sees it.
pub(super) struct Replay<'a> {
    pub(super) job: &'a DumpedJob,
    pub(super) groups: Groups,
    pub(super) calls: BTreeMap<u32, Calls<'a>>,
    pub(super) messages: Messages,
    pub(super) waits: Waits,
    /// For each group, the first collective that a rank has not completed, with that rank.
    first_open: Vec<Option<(u32, Unit)>>,
    /// For coalesced groups, the entry that differs between ranks, by group and number.
    shown: BTreeMap<(usize, u64), usize>,
    /// When the dumps were written, in nanoseconds since the Unix epoch.
    pub(super) end: u64,
    /// When the first wait reached its timeout.
    first_timeout: u64,
    stall_after: Duration,
    /// How long calls have been incomplete, as far as the dumps show it.
    pub(super) wait_duration: WaitDuration,
}

impl<'a> Replay<'a> {
    pub(super) fn new(job: &'a DumpedJob, groups: Groups) -> Self {
        let mut calls: BTreeMap<u32, Calls<'_>> =
            job.ranks.iter().map(|(&rank, dump)| (rank, Calls::new(rank, dump, &groups))).collect();
        let messages = Messages::new(job, &groups, &calls);
        messages.complete(&mut calls);
        let waits = Waits::new(job, &groups, &calls, &messages);
        let mut replay = Self {
            job,
            groups,
            calls,
            messages,
            waits,
            first_open: Vec::new(),
            shown: BTreeMap::new(),
            end: 0,
            first_timeout: 0,
            stall_after: Timing::default().default_stall_after,
            wait_duration: WaitDuration::Unknown,
        };
        replay.first_open = replay.find_first_open();
        replay.shown = replay.representatives();
        replay.set_end();
        replay.wait_duration = WaitDuration::new(&replay);
        replay
    }

    /// Dumps are written when a wait reaches its timeout, and do not contain the time. It is that
    /// of the first call whose timeout is over, and not before the latest call.
    fn set_end(&mut self) {
        let latest = self.job.period().1;
        let open = self.open_entries().filter(|entry| entry.created > 0);
        // Old versions do not record it.
        let known = self.open_entries().filter_map(|entry| entry.timeout_ms).min();
        let timeout = |entry: &Entry<'_>| entry.timeout_ms.or(known).map(Duration::from_millis);
        let first = open
            .min_by_key(|entry| entry.created.saturating_add(nanos(timeout(entry))))
            // Without any time, numbers alone show the order of calls.
            .or_else(|| self.open_entries().next().filter(|_| latest == 0));
        let Some(first) = first else {
            self.end = latest;
            self.first_timeout = latest;
            return;
        };
        let timeout = timeout(&first).unwrap_or(self.stall_after);
        self.stall_after = self.stall_after.min(timeout);
        let waited = first.created.saturating_add(nanos(Some(timeout)));
        self.first_timeout = waited;
        let last_open = self.open_entries().map(|entry| entry.created).max();
        // Every open call is reportable at the end.
        let last = last_open.unwrap_or(0).saturating_add(nanos(Some(self.stall_after)));
        self.end = latest.max(waited).max(last);
    }

    /// Entries that are not complete.
    fn open_entries(&self) -> impl Iterator<Item = Entry<'a>> {
        self.open_in_dumps().map(|(_, entry)| entry)
    }

    /// Entries that are not complete, with their dumps.
    fn open_in_dumps(&self) -> impl Iterator<Item = (&'a Dump, Entry<'a>)> {
        self.calls.iter().flat_map(|(rank, calls)| {
            let dump = &self.job.ranks[rank];
            let open = calls.units.iter().filter(|unit| !unit.is_complete);
            open.map(move |unit| (dump, *calls.entry(unit)))
        })
    }

    fn find_first_open(&self) -> Vec<Option<(u32, Unit)>> {
        let mut first: Vec<Option<(u32, Unit)>> = vec![None; self.groups.all.len()];
        for (&rank, calls) in &self.calls {
            let collectives = calls.units.iter().filter(|unit| !unit.is_message);
            for unit in collectives.filter(|unit| !unit.is_complete) {
                let known = &mut first[unit.group];
                if known.as_ref().is_none_or(|(_, known)| unit.seq < known.seq) {
                    *known = Some((rank, unit.clone()));
                }
            }
        }
        first
    }
}

fn nanos(duration: Option<Duration>) -> u64 {
    duration.map_or(0, |it| u64::try_from(it.as_nanos()).unwrap_or(u64::MAX))
}
