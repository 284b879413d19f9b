//! Boxes that are written and read in one process.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{HashMap, HashSet};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ddp_doctor_agent::blackbox::{
    Call, Frontier, Item, Options, Place, ReadRecord, Reader, Writer,
};
use ddp_doctor_proto::blackbox::{Capacities, RECORD_WORDS, WORD, flags, header, writing};
use ddp_doctor_proto::{DType, ExceptionKind, NoteKind, Op, RecordKind, ReduceOp, Spending};

mod ring;
mod tables;

fn small() -> Capacities {
    Capacities {
        records: 64,
        max_records: 3 * 64,
        strings: 64,
        heap_words: 512,
        sites: 16,
        groups: 8,
        threads: 4,
    }
}

fn options(capacities: Capacities) -> Options {
    Options {
        layer: "test".into(),
        job: "job".into(),
        rank: Some(3),
        world_size: Some(8),
        capacities,
        ..Options::default()
    }
}

fn pair(capacities: Capacities) -> (tempfile::TempDir, Writer, Reader) {
    let directory = tempfile::tempdir().unwrap();
    let writer = Writer::create(&Place::within(directory.path()), &options(capacities)).unwrap();
    let reader = Reader::open_own(writer.path()).unwrap();
    (directory, writer, reader)
}

fn poll(reader: &mut Reader) -> Vec<Item> {
    let mut items = Vec::new();
    reader.poll(usize::MAX, &mut |item| items.push(item));
    items
}

fn records(items: &[Item]) -> Vec<&ReadRecord> {
    items
        .iter()
        .filter_map(|item| match item {
            Item::Record(record) => Some(record),
            _ => None,
        })
        .collect()
}

#[test]
fn return_address_gets_one_site() {
    let (_directory, writer, mut reader) = pair(small());
    let site = writer.native_site(0x7f00_1234_abcd);
    assert_eq!(writer.native_site(0x7f00_1234_abcd), site);
    assert_ne!(writer.native_site(0x7f00_1234_abce), site);
    assert_eq!(writer.native_site(0), 0);
    let files: Vec<String> = poll(&mut reader)
        .into_iter()
        .filter_map(|item| match item {
            Item::Site { file, .. } => Some(file),
            _ => None,
        })
        .collect();
    assert_eq!(files, ["@00007f001234abcd", "@00007f001234abce"]);
}

#[test]
fn written_records_are_read_back() {
    let (_directory, writer, mut reader) = pair(small());
    let group = writer.group(b"world", b"default_pg", b"gloo", 1, &[0, 2, 4, 6]);
    let site = writer.site(b"train.py", b"main", 42);
    let call = Call {
        op: Op::AllReduce.number(),
        dtype: DType::Float32.number(),
        reduce_op: ReduceOp::Sum.number(),
        flags: flags::NUMEL | flags::SHAPE,
        ndim: 2,
        group,
        site,
        tensors: 1,
        numel: 6,
        dims: [2, 3, 0, 0, 0, 0, 0, 0, 0, 0],
        ..Call::default()
    };
    assert_eq!(writer.step(), 1);
    let phase = writer.string(b"warmup");
    writer.phase_begin(phase);
    let id = writer.issued(&call);
    assert_eq!(id, 1);
    let inside = reader.threads()[0].inside.unwrap();
    assert_eq!((inside.op, inside.group, inside.call), (Op::AllReduce, group, 1));
    assert_eq!((inside.site, inside.is_wait), (site, false));
    writer.returned(id);
    assert_eq!(reader.threads()[0].inside, None);
    writer.wait_begin(id, site);
    assert!(reader.threads()[0].inside.unwrap().is_wait);
    writer.wait_end(id);
    writer.phase_end(phase);
    writer.splits(id, true, 0..25);
    writer.exception(ExceptionKind::LeftBackward, b"ValueError: no", site);
    writer.note(NoteKind::NoHooks, b"old");
    writer.last_input(8, site);
    writer.input_ended(site);
    writer.spent(Spending::Garbage, 7_000_000, site);
    writer.group_timeout(group, 600_000);
    writer.group_destroyed(group);
    writer.exit(3, b"os._exit", 0);

    let items = poll(&mut reader);
    let read = records(&items);
    let kinds: Vec<_> = read.iter().map(|it| it.record.kind).collect();
    use RecordKind as K;
    assert_eq!(
        kinds,
        [
            K::Step,
            K::PhaseBegin,
            K::Issued,
            K::Returned,
            K::WaitBegin,
            K::WaitEnd,
            K::PhaseEnd,
            K::Splits,
            K::Splits,
            K::Exception,
            K::Note,
            K::InputEnded,
            K::InputEnded,
            K::Spent,
            K::GroupTimeout,
            K::GroupDestroyed,
            K::Exit
        ]
    );
    let ends = [11, 12].map(|it| (read[it].record.flags & flags::NUMEL, read[it].record.numel));
    assert_eq!(ends, [(flags::NUMEL, 8), (0, 0)]);
    assert_eq!((read[13].record.numel, read[13].record.code), (7_000_000, 2));
    assert_eq!((read[14].record.group, read[14].record.code), (group, 600_000));
    let issued = &read[2].record;
    assert_eq!((issued.seq, issued.call, issued.site, issued.step), (1, 1, site, 1));
    assert_eq!(issued.shape(), Some(&[2, 3][..]));
    assert_eq!(read[2].phase, "warmup");
    assert_eq!((read[3].record.seq, read[3].record.group), (1, group));
    assert_eq!(read[6].text, "warmup");
    assert_eq!(read[7].splits, (0..20).collect::<Vec<_>>());
    assert_eq!(read[8].splits, (20..25).collect::<Vec<_>>());
    assert_eq!((read[8].record.seq, read[8].record.flags), (20, flags::OUTPUT));
    assert_eq!((read[9].text.as_str(), read[9].record.code), ("ValueError: no", 3));
    assert_eq!((read[16].text.as_str(), read[16].record.code), ("os._exit", 3));
    assert_eq!(read[16].phase, "");
    assert!(items.contains(&Item::Group {
        id: group,
        name: "world".into(),
        description: "default_pg".into(),
        backend: "gloo".into(),
        epoch: 1,
        ordinal: 0,
        members: vec![0, 2, 4, 6],
        seat: None,
    }));
    assert!(items.contains(&Item::Site {
        id: site,
        file: "train.py".into(),
        function: "main".into(),
        line: 42,
        caller: 0,
        library: false,
    }));
    let identity = reader.identity();
    assert_eq!((identity.rank, identity.world_size), (Some(3), Some(8)));
    assert_eq!((identity.local_rank, identity.pid), (None, std::process::id()));
    assert_eq!((identity.layer.as_str(), identity.job.as_str()), ("test", "job"));
    assert!(!identity.closed);
    let version = reader.identity_version();
    writer.close();
    assert!(reader.identity().closed && reader.identity_version() != version);
    assert_eq!(reader.frontiers(), [Frontier { group, issued: 1, p2p_issued: 0 }]);
}

fn issue(writer: &Writer, times: u64) {
    for _ in 0..times {
        let call = writer.issued(&Call { op: Op::Barrier.number(), ..Call::default() });
        assert_ne!(call, 0);
    }
}

#[test]
fn box_has_one_follower_at_a_time() {
    let (_directory, writer, reader) = pair(small());
    let second = Reader::open_own(writer.path()).unwrap();
    assert_eq!(reader.claimed_by(), None);
    assert!(reader.claim(77, 1234));
    assert_eq!(second.claimed_by(), Some((77, 1234)));
    assert!(!second.claim(78, 5678));
    assert_eq!(second.claimed_by(), Some((77, 1234)));
    drop(reader);
    assert!(second.claim(78, 5678));
    assert_eq!(second.claimed_by(), Some((78, 5678)));
}

#[test]
fn identity_can_be_set_later() {
    let (_directory, writer, reader) = pair(small());
    let before = reader.identity_version();
    writer.set_identity(Some(0), Some(2), Some(0));
    assert_ne!(reader.identity_version(), before);
    writer.set_identity(None, Some(4), None);
    let identity = reader.identity();
    assert_eq!(
        (identity.rank, identity.world_size, identity.local_rank),
        (Some(0), Some(4), Some(0))
    );
}
