//! One black box of this node, and the process that writes it.

use std::path::{Path, PathBuf};

use ddp_doctor_agent::blackbox::{Item, OpenError, ReadRecord, Reader};
use ddp_doctor_proto::report::{Exit, Timestamp};
use ddp_doctor_proto::{ProcessState, RecordKind, blackbox::flags, v1};
use v1::event::Kind;

use super::outbox::Outbox;
use super::proc::{self, Watched};

/// Records taken from one box at a time, so that a busy rank does not hide the others.
const BUDGET: usize = 4096;

/// A black box that is followed.
#[derive(Debug)]
pub struct Rank {
    /// Names it in messages, from 1.
    process: u64,
    path: PathBuf,
    reader: Reader,
    identity_version: u64,
    /// `None`: the process was gone when its box was found.
    watched: Option<Watched>,
    /// Records before this one are in the journal.
    journaled: u64,
    /// The status that the process announced.
    announced: Option<i32>,
    last_change: Option<v1::ProcessChanged>,
    /// The process was seen to end.
    over: bool,
    /// Its end was reported.
    ended: bool,
}

impl Rank {
    /// Opens a box and tells its writer that it is read.
    ///
    /// # Errors
    ///
    /// When it is no box, or not one yet.
    pub fn open(process: u64, path: &Path) -> Result<Self, OpenError> {
        let reader = Reader::open(path)?;
        let identity = reader.identity();
        let us = std::process::id();
        if let Ok(stat) = proc::Stat::of(us) {
            reader.claim(us, stat.start_ticks);
        }
        Ok(Self {
            process,
            path: path.to_owned(),
            // Not what the box says: the first look finds it changed.
            identity_version: reader.identity_version().wrapping_sub(1),
            watched: Watched::new(identity.pid, identity.start_ticks),
            reader,
            journaled: 0,
            announced: None,
            last_change: None,
            over: false,
            ended: false,
        })
    }

    /// The file of the box.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What the operating system says of its process.
    #[must_use]
    pub const fn watched(&self) -> Option<&Watched> {
        self.watched.as_ref()
    }

    /// Whether it was started by another one that is the same rank: not the rank, but a helper that
    /// has a world of its own, such as one that writes checkpoints.
    #[must_use]
    pub fn is_helper_of(&self, other: &Self) -> bool {
        let (own, theirs) = (self.reader.identity(), other.reader.identity());
        // Its parent is known also when both are gone; who was between them only as long as they live.
        let descends = || {
            let (Some(own), Some(theirs)) = (&self.watched, &other.watched) else {
                return false;
            };
            !other.ended && proc::ancestors(own.pid()).any(|pid| pid == theirs.pid())
        };
        own.rank == theirs.rank && (own.parent_pid == Some(theirs.pid) || descends())
    }

    /// Whether its end was reported.
    #[must_use]
    pub const fn has_ended(&self) -> bool {
        self.ended
    }

    /// Its pidfd says that it has ended.
    pub const fn notice_end(&mut self) {
        self.over = true;
    }

    /// Whether the process has ended.
    #[must_use]
    pub fn is_over(&self) -> bool {
        match &self.watched {
            None => true,
            Some(watched) if watched.fd().is_none() => watched.has_ended(),
            Some(_) => self.over,
        }
    }

    /// The state that was reported last.
    #[must_use]
    pub fn state(&self) -> ProcessState {
        let state = self.last_change.as_ref().map_or(0, |change| change.state);
        ProcessState::from_number(u8::try_from(state).unwrap_or(0))
    }

    /// Takes what is new in the box; how many records that was.
    pub fn poll(&mut self, out: &mut Outbox) -> usize {
        let version = self.reader.identity_version();
        if version != self.identity_version {
            self.identity_version = version;
            out.push(Kind::ProcessJoined(self.joined()));
        }
        let Self {
            reader,
            process,
            journaled,
            announced,
            ..
        } = self;
        reader.poll(BUDGET, &mut |item| {
            pass(*process, item, journaled, announced, out);
        })
    }

    /// The process is gone: takes what is left in the box, and then says so.
    pub fn end(&mut self, out: &mut Outbox) {
        self.poll(out);
        self.drain(out);
        self.ended = true;
        let mut exit = self.watched.as_ref().map(Watched::exit).unwrap_or_default();
        if exit == Exit::default() {
            exit.code = self.announced;
        }
        self.change(ProcessState::Dead, exit, Timestamp::now(), out);
    }

    /// Says that the state of the process changed.
    pub fn change(&mut self, state: ProcessState, exit: Exit, at: Timestamp, out: &mut Outbox) {
        let change = v1::ProcessChanged {
            process: self.process,
            state: i32::from(state.number()),
            unix_ns: at.0,
            exit_code: exit.code,
            exit_signal: exit.signal,
        };
        out.push(Kind::ProcessChanged(change));
        self.last_change = Some(change);
    }

    /// Says everything again to a coordinator that may know nothing.
    pub fn repeat(&mut self, out: &mut Outbox) {
        out.push_live(Kind::ProcessJoined(self.joined()));
        self.reader.rewind();
        if self.ended {
            self.drain(out);
        } else {
            while self.poll(out) == BUDGET {}
        }
        if let Some(change) = self.last_change {
            out.push_live(Kind::ProcessChanged(change));
        }
    }

    /// Repeats records if this is the box that is meant.
    pub fn repeat_from(&mut self, process: u64, ticket: u64) {
        if process == self.process {
            self.reader.rewind_to(ticket);
        }
    }

    fn drain(&mut self, out: &mut Outbox) {
        let Self {
            reader,
            process,
            journaled,
            announced,
            ..
        } = self;
        reader.finish(&mut |item| pass(*process, item, journaled, announced, out));
    }

    fn joined(&self) -> v1::ProcessJoined {
        let identity = self.reader.identity();
        v1::ProcessJoined {
            process: self.process,
            pid: identity.pid,
            start_ticks: identity.start_ticks,
            rank: identity.rank,
            world_size: identity.world_size,
            local_rank: identity.local_rank,
            layer: identity.layer,
            world: identity.world,
            anchor_mono_ns: identity.anchor_mono_ns,
            anchor_unix_ns: identity.anchor_unix_ns,
        }
    }
}

/// One item of a box as a message.
fn pass(
    process: u64,
    item: Item,
    journaled: &mut u64,
    announced: &mut Option<i32>,
    out: &mut Outbox,
) {
    match item {
        // Records carry their texts.
        Item::String { .. } => {}
        Item::Site {
            id,
            file,
            function,
            line,
        } => {
            out.push(Kind::SiteDefined(v1::SiteDefined {
                process,
                id,
                file,
                line,
                function,
            }));
        }
        Item::Group {
            id,
            name,
            description,
            backend,
            epoch,
            ordinal,
            members,
        } => {
            out.push(Kind::GroupDefined(v1::GroupDefined {
                process,
                id,
                name,
                description,
                backend,
                epoch,
                ordinal,
                members,
            }));
        }
        Item::Thread { id, tid, name } => {
            out.push(Kind::ThreadDefined(v1::ThreadDefined {
                process,
                id,
                tid,
                name,
            }));
        }
        Item::Record(read) => {
            if read.record.kind == RecordKind::Exit {
                *announced = Some(read.record.code);
            }
            let is_new = read.ticket >= *journaled;
            let record = Kind::Record(record(process, read));
            if is_new {
                if let Kind::Record(record) = &record {
                    *journaled = record.ticket + 1;
                }
                out.push(record);
            } else {
                out.push_live(record);
            }
        }
        Item::Lost(count) => out.push(Kind::RecordsLost(v1::RecordsLost { process, count })),
        Item::Frontier(frontier) => out.push(Kind::GroupFrontier(v1::GroupFrontier {
            process,
            group: frontier.group,
            issued: frontier.issued,
            p2p_issued: frontier.p2p_issued,
            r#final: true,
        })),
    }
}

fn record(process: u64, read: ReadRecord) -> v1::Record {
    let record = read.record;
    let has = |flag: u16| record.flags & flag != 0;
    v1::Record {
        process,
        ticket: read.ticket,
        mono_ns: record.mono_ns,
        kind: i32::from(record.kind.number()),
        thread: record.thread,
        group: record.group,
        seq: record.seq,
        call: record.call,
        site: record.site,
        op: i32::from(record.op.number()),
        dtype: i32::from(record.dtype.number()),
        reduce_op: i32::from(record.reduce_op.number()),
        flags: u32::from(record.flags),
        root: has(flags::ROOT).then_some(record.root_or_peer),
        tag: has(flags::TAG).then_some(record.tag),
        numel: has(flags::NUMEL).then_some(record.numel),
        dims: record.shape().unwrap_or_default().to_vec(),
        shape_known: record.shape().is_some(),
        tensors: record.tensors,
        step: record.step,
        text: read.text,
        code: record.code,
        phase: read.phase,
        splits: read.splits,
        creation: read.creation.map(|group| v1::GroupCreation {
            name: group.name,
            description: group.description,
            backend: group.backend,
            epoch: group.epoch,
            members: group.members,
        }),
    }
}
