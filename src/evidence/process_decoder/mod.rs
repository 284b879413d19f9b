//! State of the decoder for one process: the order of its records, and how it ends.
//!
//! [`sites`] and [`groups`] hold what its records refer to, [`records`] converts them into events.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use ddp_doctor_diagnosis::event::{Call, Event, GroupInfo, ProcessId, ThreadId};
use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_proto::{RecordKind, v1};

use self::groups::Groups;
use self::sites::Sites;
use super::limits::Limits;

mod groups;
mod records;
mod sites;

/// A call whose split sizes may still follow.
#[derive(Debug)]
struct Held {
    call: Box<Call>,
    since: Instant,
}

/// A process and its black box, as known from messages.
#[derive(Debug)]
pub(super) struct Process {
    layer: Arc<str>,
    identity: v1::ProcessJoined,
    sites: Sites,
    groups: Groups,
    phases: HashMap<String, Arc<str>>,
    /// Ticket of the next record, if none is lost or repeated.
    next_ticket: u64,
    /// Number of lost records that were announced and not yet passed.
    announced: u64,
    /// An `all_to_all` whose split sizes may still follow.
    held_call: Option<Held>,
    /// Time of the latest record.
    latest: Timestamp,
    /// Time of the latest record before those that are lost or left out; `None`: none are.
    gap_since: Option<Timestamp>,
    /// Exit status that the process announced, and when.
    announced_status: Option<(i32, Timestamp)>,
    /// Kind of the latest record.
    latest_kind: RecordKind,
    /// Thread that announced the exit.
    announced_by: u32,
    /// Whether that thread is inside a call made after the announcement.
    is_delayed: bool,
    ended: bool,
    /// Offset of the node's clock from the coordinator's when the process joined, in nanoseconds; positive:
    /// ahead.
    ahead: i64,
    /// Current training step.
    step: u64,
}

impl Process {
    pub(super) fn new(layer: Arc<str>, ahead: i64) -> Self {
        Self {
            ahead,
            layer,
            identity: v1::ProcessJoined::default(),
            sites: Sites::default(),
            groups: Groups::default(),
            phases: HashMap::new(),
            next_ticket: 0,
            announced: 0,
            held_call: None,
            latest: Timestamp::default(),
            gap_since: None,
            announced_status: None,
            latest_kind: RecordKind::default(),
            announced_by: 0,
            is_delayed: false,
            ended: false,
            step: 0,
        }
    }

    pub(super) const fn layer(&self) -> &Arc<str> {
        &self.layer
    }

    pub(super) const fn identity(&self) -> &v1::ProcessJoined {
        &self.identity
    }

    pub(super) const fn next_record(&self) -> u64 {
        self.next_ticket
    }

    pub(super) const fn latest(&self) -> Timestamp {
        self.latest
    }

    pub(super) const fn is_inside(&self) -> bool {
        matches!(self.latest_kind, RecordKind::Issued | RecordKind::WaitBegin | RecordKind::Splits)
    }

    pub(super) const fn announced_status(&self) -> Option<(i32, Timestamp)> {
        if self.is_delayed {
            return None;
        }
        self.announced_status
    }

    pub(super) const fn has_ended(&self) -> bool {
        self.ended
    }

    /// Stores the identity. Returns whether it is new or changed.
    pub(super) fn join(&mut self, joined: &v1::ProcessJoined, is_new: bool) -> bool {
        let mut joined = joined.clone();
        joined.layer.clear();
        let changed = is_new || joined != self.identity;
        self.identity = joined;
        changed
    }

    pub(super) fn define_site(
        &mut self,
        process: ProcessId,
        site: v1::SiteDefined,
        limits: &mut Limits,
        out: &mut Vec<Event>,
    ) -> Option<()> {
        self.sites.define(process, site, limits, out)
    }

    pub(super) fn define_group(
        &mut self,
        process: ProcessId,
        group: v1::GroupDefined,
        limits: &mut Limits,
        out: &mut Vec<Event>,
    ) -> Option<()> {
        self.groups.define(process, &self.layer, group, limits, out)
    }

    pub(super) fn group(&self, id: u32) -> Option<&Arc<GroupInfo>> {
        self.groups.get(id)
    }

    /// Announces that `count` records will be missing before the next one.
    pub(super) const fn announce_loss(&mut self, count: u64) {
        self.announced = self.announced.saturating_add(count);
        self.begin_gap();
    }

    /// The step of a digest.
    pub(super) fn reached(&self, process: ProcessId, digest: &v1::Digest) -> Event {
        Event::StepReached { process, step: u64::from(digest.step), at: self.time(digest.mono_ns) }
    }

    /// The records before this ticket that have not arrived are left out.
    pub(super) fn leave_out(
        &mut self,
        process: ProcessId,
        left_out: &v1::RecordsLeftOut,
        out: &mut Vec<Event>,
    ) {
        let before = left_out.before;
        if !self.ended && before > self.next_ticket && before != u64::MAX {
            self.release(process, out);
            self.next_ticket = before;
            self.announced = 0;
            self.begin_gap();
            let of = |threads: &[u32]| threads.iter().map(|&it| ThreadId(it)).collect();
            out.push(Event::RecordsLeftOut {
                process,
                inside: of(&left_out.threads_inside),
                threads: of(&left_out.threads),
            });
        }
    }

    /// Marks the process as ended: no records follow.
    pub(super) fn end(&mut self, process: ProcessId, out: &mut Vec<Event>) {
        self.release(process, out);
        self.ended = true;
    }

    /// Whether an event waits for split sizes that may follow.
    pub(super) const fn holds(&self) -> bool {
        self.held_call.is_some()
    }

    /// Releases the event that waits.
    pub(super) fn release(&mut self, process: ProcessId, out: &mut Vec<Event>) {
        if let Some(held) = self.held_call.take() {
            out.push(Event::Issued { process, call: Arc::from(held.call) });
        }
    }

    /// Releases the event that waits if it has waited since then.
    pub(super) fn release_held_since(
        &mut self,
        since: Instant,
        process: ProcessId,
        out: &mut Vec<Event>,
    ) {
        if self.held_call.as_ref().is_some_and(|held| held.since <= since) {
            self.release(process, out);
        }
    }

    /// Whether the ticket is new; `None`: invalid. Emits an event for records lost before it.
    fn accept(&mut self, process: ProcessId, ticket: u64, out: &mut Vec<Event>) -> Option<bool> {
        if self.ended || ticket == u64::MAX {
            return None;
        }
        if ticket < self.next_ticket {
            return Some(false);
        }
        let missing = (ticket - self.next_ticket).saturating_sub(self.announced);
        if missing > 0 {
            self.begin_gap();
            out.push(Event::RecordsLost { process, count: missing });
        }
        self.announced = 0;
        self.next_ticket = ticket + 1;
        Some(true)
    }

    const fn begin_gap(&mut self) {
        if self.gap_since.is_none() {
            self.gap_since = Some(self.latest);
        }
    }

    /// Updates the time of the latest record. Emits an event for a gap before it.
    fn advance(&mut self, process: ProcessId, at: Timestamp, out: &mut Vec<Event>) {
        self.latest = self.latest.max(at);
        if let Some(from) = self.gap_since.take() {
            out.push(Event::Gap { process, from, to: at });
        }
    }

    /// Tracks an announced exit. A call made afterwards delays it; activity of another thread
    /// revokes it.
    fn track_exit(&mut self, kind: RecordKind, record: &v1::Record, at: Timestamp) {
        match kind {
            RecordKind::Exit => {
                self.announced_status = Some((record.code, at));
                self.announced_by = record.thread;
                self.is_delayed = false;
            }
            _ if self.announced_status.is_none() => {}
            _ if record.thread != self.announced_by => self.announced_status = None,
            RecordKind::Issued | RecordKind::WaitBegin => self.is_delayed = true,
            RecordKind::Returned | RecordKind::WaitEnd => self.is_delayed = false,
            _ => {}
        }
    }

    /// Converts a time of the host's monotonic clock to the coordinator's clock.
    fn time(&self, mono_ns: u64) -> Timestamp {
        let offset = i128::from(mono_ns) - i128::from(self.identity.anchor_mono_ns);
        let unix = i128::from(self.identity.anchor_unix_ns) + offset;
        self.to_coordinator_clock(unix.clamp(0, i128::from(u64::MAX)) as u64)
    }

    /// Converts a time of the node to the coordinator's clock.
    pub(super) const fn to_coordinator_clock(&self, unix_ns: u64) -> Timestamp {
        Timestamp(unix_ns.saturating_add_signed(self.ahead.saturating_neg()))
    }
}
