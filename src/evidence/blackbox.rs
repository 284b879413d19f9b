//! Conversion of the content of a black box into the messages that its node sends.

use std::path::Path;

use ddp_doctor_agent::blackbox::{
    Frontier, GroupCreation, Identity, Item, OpenError, ReadRecord, Reader, Seat,
};
use ddp_doctor_host::input_files;
use ddp_doctor_proto::blackbox::{flags, on_stream};
use ddp_doctor_proto::v1;
use v1::event::Kind;

use super::members;

/// Opens a black box, like any other evidence.
///
/// # Errors
///
/// As [`input_files::open`] and [`Reader::of_file`].
pub fn open(path: &Path) -> Result<Reader, OpenError> {
    let opened = input_files::open(path)
        .map_err(|source| OpenError::Io { path: path.to_owned(), source })?;
    Reader::of_file(opened.into_inner(), path)
}

/// The message about the process of a box.
#[must_use]
pub fn joined(process: u64, identity: Identity) -> v1::ProcessJoined {
    v1::ProcessJoined {
        process,
        pid: identity.pid,
        start_ticks: identity.start_ticks,
        rank: identity.rank,
        world_size: identity.world_size,
        local_rank: identity.local_rank,
        layer: identity.layer,
        world: identity.world,
        anchor_mono_ns: identity.anchor_mono_ns,
        anchor_unix_ns: identity.anchor_unix_ns,
        attempt: identity.attempt,
    }
}

/// The message for an item of a process's box.
#[must_use]
pub fn message(process: u64, item: Item) -> Kind {
    match item {
        Item::Site { id, file, function, line, caller, library } => {
            Kind::SiteDefined(v1::SiteDefined {
                process,
                id,
                file,
                line,
                function,
                caller,
                guards: Vec::new(),
                reading: false,
                library,
            })
        }
        Item::Group { id, name, description, backend, epoch, ordinal, members, seat: place } => {
            let (members, runs) = members::encode(members);
            Kind::GroupDefined(v1::GroupDefined {
                process,
                id,
                name,
                description,
                backend,
                epoch,
                ordinal,
                members,
                runs,
                seat: place.map(seat),
            })
        }
        Item::Thread { id, tid, name } => {
            Kind::ThreadDefined(v1::ThreadDefined { process, id, tid, name })
        }
        Item::Memory { ticket, mono_ns, sample } => Kind::MemorySample(v1::MemorySample {
            process,
            ticket: Some(ticket),
            mono_ns,
            device: sample.device,
            gpu_used: sample.used,
            gpu_total: sample.total,
            gpu_allocated: sample.allocated,
            gpu_reserved: sample.reserved,
            gpu_peak: sample.peak,
            gpu_split: sample.split,
            gpu_retries: sample.retries,
            gpu_ooms: sample.ooms,
            gpu_largest: sample.largest,
            gpu_nccl: sample.nccl,
            ..v1::MemorySample::default()
        }),
        Item::Record(read) => Kind::Record(record(process, read)),
        Item::Lost(count) => Kind::RecordsLost(v1::RecordsLost { process, count }),
        Item::Frontier(it) => Kind::GroupFrontier(frontier(process, it, true)),
    }
}

/// The message about the counters of a group. `final`: the process has ended.
#[must_use]
pub fn frontier(process: u64, frontier: Frontier, r#final: bool) -> v1::GroupFrontier {
    let Frontier { group, issued, p2p_issued } = frontier;
    v1::GroupFrontier { process, group, issued, p2p_issued, r#final }
}

const fn seat(seat: Seat) -> v1::Seat {
    let Seat { rank, size } = seat;
    v1::Seat { rank, size }
}

fn creation(group: GroupCreation) -> v1::GroupCreation {
    let (members, runs) = members::encode(group.members);
    v1::GroupCreation {
        name: group.name,
        description: group.description,
        backend: group.backend,
        takes_all: group.takes_all,
        epoch: group.epoch,
        members,
        runs,
        seat: group.seat.map(seat),
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
        creation: read.creation.map(|group| Box::new(creation(*group))),
        on_stream: has(flags::STREAM).then(|| {
            let (stream, launch) = on_stream::unpack(&record.dims);
            v1::OnStream { stream, launch }
        }),
    }
}
