//! A black box of this node, and the process that writes it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use ddp_doctor_agent::blackbox::{Identity, Item, OpenError, Reader};
use ddp_doctor_diagnosis::event::OomKills;
use ddp_doctor_evidence::blackbox;
use ddp_doctor_evidence::digest::{self, Summary};
use ddp_doctor_host::proc;
use ddp_doctor_host::proc::Watched;
use ddp_doctor_host::sys;
use ddp_doctor_proto::report::{Exit, Timestamp};
use ddp_doctor_proto::{NoteKind, ProcessState, RecordKind, v1};
use v1::event::Kind;

use crate::follow::native_lines::{LineCache, ProcessLines};
use crate::follow::stack_lines::StackLines;
use crate::source_reader::Sources;
use crate::stack_reader::stack_sampler::StackRequest;
use crate::upload::outbox::Outbox;

/// Maximum number of records read from one box at a time, so that a busy rank does not delay the
/// others.
const MAX_RECORDS: usize = 4096;

/// A followed black box.
#[derive(Debug)]
pub struct Rank {
    /// Number of the process in messages, from 1.
    process: u64,
    path: PathBuf,
    reader: Reader,
    identity_version: u64,
    /// Identity in the box at version `identity_version`.
    identity: Identity,
    /// `None` if the process was gone when its box was found.
    watched: Option<Watched>,
    reported: Reported,
    last_change: Option<v1::ProcessChanged>,
    /// The first and the latest captured stacks.
    stacks: Vec<v1::Stacks>,
    stack_lines: StackLines,
    /// Whether the process was seen to end.
    observed_end: bool,
    /// Whether its end was reported.
    ended: bool,
    /// The note about a damaged box.
    damage: Option<v1::Note>,
}

impl Rank {
    /// Opens a box and claims it for this process; `None`: another process follows it. `known` caches
    /// the lines of native programs.
    ///
    /// # Errors
    ///
    /// If the file is not a box, or not complete yet, or this process lacks descriptors.
    pub fn open(
        process: u64,
        path: &Path,
        known: &Arc<LineCache>,
    ) -> Result<Option<Self>, OpenError> {
        let reader = Reader::open_own(path)?;
        let identity = reader.identity();
        if reader.is_damaged() {
            let path = path.to_owned();
            return Err(OpenError::NotABox { path });
        }
        let watched = Watched::new(identity.pid, identity.start_ticks)
            .map_err(|source| OpenError::Io { path: path.to_owned(), source })?;
        let us = std::process::id();
        let start_ticks = proc::Stat::read(us).map_or(0, |stat| stat.start_ticks);
        if !reader.claim(us, start_ticks) {
            return Ok(None);
        }
        let pid = watched.as_ref().map_or(identity.pid, Watched::pid);
        Ok(Some(Self {
            process,
            path: path.to_owned(),
            // A version other than the box's, so that the first poll reports the identity.
            identity_version: reader.identity_version().wrapping_sub(1),
            watched,
            reader,
            identity: identity.clone(),
            reported: Reported {
                process,
                lines: ProcessLines::new(pid, Arc::clone(known)),
                sites: Vec::new(),
                journaled: 0,
                sent: 0,
                summary: Summary::new(&identity.layer),
                is_notable: false,
                announced: None,
            },
            last_change: None,
            stacks: Vec::new(),
            stack_lines: StackLines::default(),
            observed_end: false,
            ended: false,
            damage: None,
        }))
    }

    /// The file of the box.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The process that writes the box.
    #[must_use]
    pub const fn watched(&self) -> Option<&Watched> {
        self.watched.as_ref()
    }

    /// Start of the process in its identity, by which another part of this process may watch it.
    #[must_use]
    pub const fn start(&self) -> (u32, u64) {
        (self.identity.pid, self.identity.start_ticks)
    }

    /// Watches a process that was gone when its box was found by a descriptor from before.
    pub fn watch(&mut self, from_before: Watched) {
        self.watched.get_or_insert(from_before);
    }

    /// Whether it descends from another process of the same rank, such as a process that writes
    /// checkpoints in its own world.
    #[must_use]
    pub fn is_helper_of(&self, other: &Self) -> bool {
        let (own, theirs) = (&self.identity, &other.identity);
        // The parent is known even after both have ended; other ancestors only while they live.
        let descends = || {
            let (Some(own), Some(theirs)) = (&self.watched, &other.watched) else {
                return false;
            };
            !other.ended && proc::ancestors(own.pid()).any(|pid| pid == theirs.pid())
        };
        own.rank == theirs.rank && (own.parent_pid == Some(theirs.pid) || descends())
    }

    /// Global rank, if it is known.
    #[must_use]
    pub const fn rank(&self) -> Option<u32> {
        self.identity.rank
    }

    /// Number of the process in messages.
    #[must_use]
    pub const fn process(&self) -> u64 {
        self.process
    }

    /// Target for a capture of its stacks; `None` if it has ended.
    #[must_use]
    pub fn stack_request(&self) -> Option<StackRequest> {
        let watched = self.watched.as_ref().filter(|_| !self.ended)?;
        Some(StackRequest {
            process: self.process,
            pid: watched.pid(),
            start_ticks: watched.start_ticks(),
        })
    }

    /// Whether it has made no call for a while: it may wait inside of one.
    #[must_use]
    pub fn may_wait(&self) -> bool {
        !self.ended && self.reported.summary.is_quiet(sys::monotonic_ns())
    }

    /// Whether its end was reported.
    #[must_use]
    pub const fn has_ended(&self) -> bool {
        self.ended
    }

    /// Its exit status, as far as it is known.
    #[must_use]
    pub fn exit(&self) -> Exit {
        self.last_change.as_ref().filter(|_| self.ended).map_or_else(Exit::default, |change| Exit {
            code: change.exit_code,
            signal: change.exit_signal,
        })
    }

    /// Marks the process as ended after its pidfd has become readable.
    pub const fn notice_end(&mut self) {
        self.observed_end = true;
    }

    /// Whether the process has ended.
    #[must_use]
    pub fn is_process_gone(&self) -> bool {
        match &self.watched {
            None => true,
            Some(watched) if watched.fd().is_none() => watched.has_ended(),
            Some(_) => self.observed_end,
        }
    }

    /// The state that was reported last.
    #[must_use]
    pub fn state(&self) -> ProcessState {
        let state = self.last_change.as_ref().map_or(0, |change| change.state);
        ProcessState::from_number(u8::try_from(state).unwrap_or(0))
    }

    /// Reads and reports new records of the box; returns their number.
    pub fn poll(&mut self, out: &mut Outbox) -> usize {
        let version = self.reader.identity_version();
        let identity = (version != self.identity_version).then(|| self.reader.identity());
        if self.report_damage(out) {
            return 0;
        }
        if let Some(identity) = identity {
            self.identity_version = version;
            self.identity = identity;
            out.push(Kind::ProcessJoined(self.joined()));
        }
        let Self { reader, reported, .. } = self;
        let read = reader.poll(MAX_RECORDS, &mut |item| reported.report(item, out));
        // Without memory for it the ring stays as it is; losses are counted.
        drop(reader.extend_ring(Instant::now()));
        read
    }

    /// Reports that the box was truncated, if it was: then it is read no further, and the result is `true`.
    fn report_damage(&mut self, out: &mut Outbox) -> bool {
        if self.damage.is_none() && self.reader.is_damaged() {
            let note = v1::Note {
                process: self.process,
                kind: i32::from(NoteKind::Unreadable.number()),
                rank: self.identity.rank,
                pid: self.watched.as_ref().map_or(0, Watched::pid),
                text: format!("{} was truncated while it was in use", self.path.display()),
                unix_ns: Timestamp::now().0,
            };
            out.push(Kind::ProcessJoined(self.joined()));
            for kind in damage(&note) {
                out.push(kind);
            }
            self.damage = Some(note);
        }
        self.damage.is_some()
    }

    /// Reports the digest of the records since the previous one.
    pub fn digest(&mut self, now: u64, out: &mut Outbox) {
        if let Some(digest) = self.reported.summary.digest(self.process, now) {
            out.push_live(Kind::Digest(digest));
        }
    }

    /// Whether a record was read since the last call that no digest covers.
    pub const fn take_notable(&mut self) -> bool {
        std::mem::replace(&mut self.reported.is_notable, false)
    }

    /// Sends the records that only the journal has: at most `most` of them, and those of calls under way. If the
    /// ring has overwritten some of these, the coordinator counts them as lost, since they are missing after
    /// `before`.
    pub fn catch_up(&mut self, most: u64, out: &mut Outbox) {
        if self.ended || self.damage.is_some() {
            return;
        }
        let (sent, next) = (self.reported.sent, self.reader.next_ticket());
        // The other half is room for what was written since the ring was read.
        let most = most.min(self.reader.ring_size() as u64 / 2);
        let latest = next.saturating_sub(most).max(sent);
        let oldest = self.reader.oldest();
        let entered = self.reported.summary.inside().map(|(_, ticket)| ticket);
        let (kept, overwritten): (Vec<u64>, Vec<u64>) = entered
            .filter(|ticket| (sent..latest).contains(ticket))
            .partition(|&ticket| ticket >= oldest);
        let from = kept.into_iter().fold(latest, u64::min);
        let leaves_out = from > sent;
        let before = from - overwritten.len() as u64;
        if before > sent {
            let inside = self.reported.summary.inside().filter(|&(_, ticket)| ticket < sent);
            out.push_live(Kind::RecordsLeftOut(v1::RecordsLeftOut {
                process: self.process,
                before,
                threads_inside: inside.map(|(thread, _)| thread).collect(),
                threads: self.reported.summary.threads().collect(),
            }));
        }
        self.reader.rewind_to(from);
        let Self { reader, reported, .. } = self;
        while reader.poll(MAX_RECORDS, &mut |item| reported.report(item, out)) == MAX_RECORDS {}
        if leaves_out {
            let frontiers = self.reader.frontiers().into_iter();
            for it in frontiers.filter(|it| it.issued > 0 || it.p2p_issued > 0) {
                let frontier = blackbox::frontier(self.process, it, false);
                out.push_live(Kind::GroupFrontier(frontier));
            }
        }
    }

    /// Returns the sites found since the last call.
    pub fn take_sites(&mut self) -> Vec<v1::SiteDefined> {
        std::mem::take(&mut self.reported.sites)
    }

    /// Reports the remaining records of a process that is gone, and then its end.
    pub fn end(&mut self, mut exit: Exit, oom_kills: OomKills, at: Timestamp, out: &mut Outbox) {
        self.poll(out);
        self.drain(out);
        self.ended = true;
        if exit == Exit::default() {
            // A process that announced success may have failed on its way out.
            exit.code = self.reported.announced.filter(|&code| code > 0);
        }
        let change = self.changed(ProcessState::Dead, exit, at);
        self.report_change(
            v1::ProcessChanged {
                oom_kills_in_cgroup: oom_kills.in_cgroup,
                oom_kills_on_host: oom_kills.on_host,
                ..change
            },
            out,
        );
    }

    /// Its exit status according to the kernel. It must be called at once: the status may be lost
    /// when the parent reaps the process.
    #[must_use]
    pub fn status(&self) -> Exit {
        self.watched.as_ref().map(Watched::exit).unwrap_or_default()
    }

    /// Reports a change of the state of the process.
    pub fn change(&mut self, state: ProcessState, exit: Exit, at: Timestamp, out: &mut Outbox) {
        self.report_change(self.changed(state, exit, at), out);
    }

    fn changed(&self, state: ProcessState, exit: Exit, at: Timestamp) -> v1::ProcessChanged {
        v1::ProcessChanged {
            process: self.process,
            state: i32::from(state.number()),
            unix_ns: at.0,
            exit_code: exit.code,
            exit_signal: exit.signal,
            ..v1::ProcessChanged::default()
        }
    }

    fn report_change(&mut self, change: v1::ProcessChanged, out: &mut Outbox) {
        out.push(Kind::ProcessChanged(change));
        self.last_change = Some(change);
    }

    /// Reports captured stacks, and requests the source around the lines in them.
    pub fn add_stacks(&mut self, stacks: v1::Stacks, out: &mut Outbox) {
        /// Number of captures that are compared with each other.
        const MAX_CAPTURES: usize = 3;
        let process = self.process();
        self.reported.sites.extend(self.stack_lines.sites(process, &stacks));
        if self.stacks.len() == MAX_CAPTURES {
            self.stacks.remove(1);
        }
        self.stacks.push(stacks.clone());
        out.push(Kind::Stacks(stacks));
    }

    /// Sends everything again to a new coordinator.
    pub fn repeat(&mut self, out: &mut Outbox) {
        out.push_live(Kind::ProcessJoined(self.joined()));
        self.reader.rewind();
        if let Some(note) = &self.damage {
            for kind in damage(note) {
                out.push_live(kind);
            }
        } else if self.ended {
            self.drain(out);
        } else {
            let Self { reader, reported, .. } = self;
            while reader.poll(MAX_RECORDS, &mut |item| reported.report(item, out)) == MAX_RECORDS {}
        }
        self.stack_lines = StackLines::default();
        for stacks in &self.stacks {
            self.reported.sites.extend(self.stack_lines.sites(self.process, stacks));
            out.push_live(Kind::Stacks(stacks.clone()));
        }
    }

    /// Repeats the last change of its state, after everything else about it: nothing may follow its end.
    pub fn repeat_state(&self, out: &mut Outbox) {
        if let Some(change) = self.last_change {
            out.push_live(Kind::ProcessChanged(change));
        }
    }

    /// Rewinds to a record if `process` is this box.
    pub fn repeat_from(&mut self, process: u64, ticket: u64) {
        if process == self.process {
            self.reader.rewind_to(ticket);
        }
    }

    fn drain(&mut self, out: &mut Outbox) {
        if self.damage.is_some() {
            return;
        }
        let Self { reader, reported, .. } = self;
        reader.finish(&mut |item| reported.report(item, out));
    }

    fn joined(&self) -> v1::ProcessJoined {
        blackbox::joined(self.process, self.identity.clone())
    }
}

/// The events that report a damaged box. At least one of its records is lost; the number is
/// unknown.
fn damage(note: &v1::Note) -> [Kind; 2] {
    let lost = v1::RecordsLost { process: note.process, count: 1 };
    [Kind::RecordsLost(lost), Kind::Note(note.clone())]
}

/// State of reporting the contents of a box.
#[derive(Debug)]
struct Reported {
    process: u64,
    /// Lines of its native code.
    lines: ProcessLines,
    /// Sites since the last [`Rank::take_sites`].
    sites: Vec<v1::SiteDefined>,
    /// First record that is not in the journal.
    journaled: u64,
    /// First record that was not sent to the coordinator.
    sent: u64,
    summary: Summary,
    /// A record was read that no digest covers.
    is_notable: bool,
    /// Exit status that the process announced.
    announced: Option<i32>,
}

impl Reported {
    /// Reports an item of the box. Items that are already in the journal go only to the coordinator.
    fn report(&mut self, item: Item, out: &mut Outbox) {
        if let Item::Record(read) = &item
            && read.record.kind == RecordKind::Exit
        {
            self.announced = Some(read.record.code);
        }
        let mut kind = blackbox::message(self.process, item);
        if let Kind::SiteDefined(site) = &mut kind {
            if !self.lines.resolve(site) {
                return;
            }
            self.sites.push(site.clone());
            site.reading = Sources::may_have_guards(site);
        }
        let ticket = match &kind {
            Kind::Record(record) => Some(record.ticket),
            Kind::MemorySample(sample) => sample.ticket,
            _ => None,
        };
        let is_journaled = ticket.is_some_and(|ticket| ticket < self.journaled);
        if !is_journaled {
            self.summary.add(&kind);
            self.is_notable |= digest::is_notable(&kind);
        }
        if let Some(ticket) = ticket {
            self.journaled = self.journaled.max(ticket + 1);
            if !out.sends_digests() {
                self.sent = self.sent.max(ticket + 1);
            }
        }
        if is_journaled {
            out.push_live(kind);
        } else {
            out.push(kind);
        }
    }
}

#[cfg(test)]
#[path = "rank_tests.rs"]
mod tests;
