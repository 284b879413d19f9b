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
    let reader = Reader::open(writer.path()).unwrap();
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
        op: Op::AllReduce,
        dtype: DType::Float32,
        reduce_op: ReduceOp::Sum,
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
    assert_eq!(
        (inside.op, inside.group, inside.call),
        (Op::AllReduce, group, 1)
    );
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
    writer.input_ended(site);
    writer.spent(Spending::Garbage, 7_000_000, site);
    writer.group_timeout(group, 600_000);
    writer.group_destroyed(group);
    writer.exit(3, b"os._exit");

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
            K::Spent,
            K::GroupTimeout,
            K::GroupDestroyed,
            K::Exit
        ]
    );
    assert_eq!(
        (read[12].record.numel, read[12].record.code),
        (7_000_000, 2)
    );
    assert_eq!(
        (read[13].record.group, read[13].record.code),
        (group, 600_000)
    );
    let issued = &read[2].record;
    assert_eq!(
        (issued.seq, issued.call, issued.site, issued.step),
        (1, 1, site, 1)
    );
    assert_eq!(issued.shape(), Some(&[2, 3][..]));
    assert_eq!(read[2].phase, "warmup");
    assert_eq!((read[3].record.seq, read[3].record.group), (1, group));
    assert_eq!(read[6].text, "warmup");
    assert_eq!(read[7].splits, (0..20).collect::<Vec<_>>());
    assert_eq!(read[8].splits, (20..25).collect::<Vec<_>>());
    assert_eq!(
        (read[8].record.seq, read[8].record.flags),
        (20, flags::OUTPUT)
    );
    assert_eq!(
        (read[9].text.as_str(), read[9].record.code),
        ("ValueError: no", 3)
    );
    assert_eq!(
        (read[15].text.as_str(), read[15].record.code),
        ("os._exit", 3)
    );
    assert_eq!(read[15].phase, "");
    assert!(items.contains(&Item::Group {
        id: group,
        name: "world".into(),
        description: "default_pg".into(),
        backend: "gloo".into(),
        epoch: 1,
        ordinal: 0,
        members: vec![0, 2, 4, 6],
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
    assert_eq!(
        (identity.local_rank, identity.pid),
        (None, std::process::id())
    );
    assert_eq!(
        (identity.layer.as_str(), identity.job.as_str()),
        ("test", "job")
    );
    assert!(!identity.closed);
    let version = reader.identity_version();
    writer.close();
    assert!(reader.identity().closed && reader.identity_version() != version);
    assert_eq!(
        reader.frontiers(),
        [Frontier {
            group,
            issued: 1,
            p2p_issued: 0
        }]
    );
}

#[test]
fn every_record_is_delivered_or_counted_as_lost() {
    // In a small ring, slots are often overwritten while they are read.
    for records in [1, 2, 64] {
        write_and_read_at_once(Capacities {
            records,
            max_records: records,
            ..small()
        });
    }
}

fn write_and_read_at_once(capacities: Capacities) {
    let (_directory, writer, mut reader) = pair(capacities);
    const WRITERS: u64 = 4;
    const EACH: u64 = 20_000;
    let left = AtomicU64::new(WRITERS);
    std::thread::scope(|scope| {
        for name in 0..WRITERS {
            let (writer, left) = (&writer, &left);
            scope.spawn(move || {
                for i in 0..EACH {
                    // All fields are derived from one number, so a torn record would be detected.
                    let mark = (name << 32 | i) as u32;
                    writer.issued(&Call {
                        op: Op::AllReduce,
                        tensors: mark,
                        root_or_peer: mark.cast_signed(),
                        tag: mark.cast_signed(),
                        numel: u64::from(mark),
                        dims: [mark; 10],
                        ..Call::default()
                    });
                }
                left.fetch_sub(1, Ordering::Release);
            });
        }
        let (mut delivered, mut lost, mut next) = (0, 0, 0);
        let mut sink = |item| match item {
            Item::Record(ReadRecord { ticket, record, .. }) => {
                assert!(ticket >= next);
                next = ticket + 1;
                let mark = record.tensors;
                assert_eq!(record.dims, [mark; 10]);
                assert_eq!(record.numel, u64::from(mark));
                assert_eq!(record.tag.cast_unsigned(), mark);
                delivered += 1;
            }
            Item::Lost(count) => lost += count,
            _ => {}
        };
        while left.load(Ordering::Acquire) != 0 {
            reader.poll(32, &mut sink);
        }
        reader.finish(&mut sink);
        assert_eq!(delivered + lost, WRITERS * EACH);
        assert_eq!(reader.lost(), lost);
        assert!(delivered >= 1);
    });
}

fn issue(writer: &Writer, times: u64) {
    for _ in 0..times {
        let call = writer.issued(&Call {
            op: Op::Barrier,
            ..Call::default()
        });
        assert_ne!(call, 0);
    }
}

fn lost(items: &[Item]) -> u64 {
    items
        .iter()
        .map(|item| match item {
            Item::Lost(count) => *count,
            _ => 0,
        })
        .sum()
}

#[test]
fn overwritten_records_are_counted_once() {
    let (_directory, writer, mut reader) = pair(small());
    issue(&writer, 10);
    assert_eq!(records(&poll(&mut reader)).len(), 10);
    issue(&writer, 100);
    let items = poll(&mut reader);
    assert_eq!((records(&items).len(), lost(&items)), (64, 36));
    assert!(matches!(
        items.iter().find(|it| !matches!(it, Item::Thread { .. })),
        Some(Item::Lost(36))
    ));

    reader.rewind();
    let items = poll(&mut reader);
    assert_eq!((records(&items).len(), lost(&items)), (64, 0));
    assert!(items.iter().any(|item| matches!(item, Item::Thread { .. })));
    reader.rewind_to(100);
    let items = poll(&mut reader);
    assert_eq!(records(&items)[0].ticket, 100);
    assert!(!items.iter().any(|item| matches!(item, Item::Thread { .. })));
    reader.rewind_to(u64::MAX);
    assert_eq!(poll(&mut reader), []);
    assert_eq!(reader.lost(), 36);
}

#[test]
fn poll_delivers_no_more_than_its_budget() {
    let (_directory, writer, mut reader) = pair(small());
    issue(&writer, 50);
    let mut count = 0;
    assert_eq!(
        reader.poll(20, &mut |item| count +=
            usize::from(matches!(item, Item::Record(_)))),
        20
    );
    assert_eq!(count, 20);
    assert_eq!(reader.poll(0, &mut |_| {}), 0);
    assert_eq!(records(&poll(&mut reader))[0].ticket, 20);
}

/// Overwrites a word of a box, as a delayed or dead writer might have left it.
fn poke(writer: &Writer, at: usize, value: u64) {
    let file = std::fs::OpenOptions::new()
        .write(true)
        .open(writer.path())
        .unwrap();
    file.write_all_at(&value.to_le_bytes(), (at * WORD) as u64)
        .unwrap();
}

#[test]
fn delayed_writer_does_not_block_other_records() {
    let (_directory, writer, mut reader) = pair(small());
    let ring_at = small().layout().ring_at;
    issue(&writer, 10);
    // A writer has taken ticket 10 and claimed its slot, and is delayed.
    poke(&writer, header::RING_HEAD, 11);
    poke(&writer, ring_at + 10 * RECORD_WORDS, writing(10));
    assert_eq!(records(&poll(&mut reader)).len(), 10);
    assert_eq!(poll(&mut reader), []);
    issue(&writer, 5);
    // After a while the reader skips the record.
    let items = loop {
        let items = poll(&mut reader);
        if !items.is_empty() {
            break items;
        }
        std::thread::yield_now();
    };
    assert_eq!(items[0], Item::Lost(1));
    assert_eq!(records(&items).len(), 5);

    // A lap later the slot is still claimed: only the record for that slot is dropped.
    issue(&writer, 80);
    let mut items = Vec::new();
    reader.finish(&mut |item| items.push(item));
    assert_eq!(records(&items).len() as u64 + lost(&items), 80);
    assert!(records(&items).iter().all(|it| it.ticket != 74));
    assert_eq!(records(&items).last().unwrap().ticket, 95);
}

#[test]
fn ring_is_extended_to_the_rate_of_records() {
    let (directory, writer, mut reader) = pair(small());
    let began = Instant::now();
    let reserved = || std::fs::metadata(writer.path()).unwrap().blocks() * 512;
    let all = (small().layout().words * WORD) as u64;
    assert!(reserved() < all, "the rest of the ring takes no space");
    reader.extend_ring(began).unwrap();
    issue(&writer, 50);
    assert_eq!(records(&poll(&mut reader)).len(), 50);
    // 50 records in 100 s: 64 are enough for 15 s.
    reader
        .extend_ring(began + Duration::from_secs(100))
        .unwrap();
    issue(&writer, 70);
    assert_eq!(lost(&poll(&mut reader)), 6);
    // 70 records in 10 s: 105 fill two steps.
    reader
        .extend_ring(began + Duration::from_secs(110))
        .unwrap();
    issue(&writer, 125);
    let items = poll(&mut reader);
    assert_eq!((records(&items).len(), lost(&items)), (125, 0));
    let tickets: Vec<u64> = records(&items).iter().map(|it| it.ticket).collect();
    assert!(tickets.is_sorted_by(|a, b| a + 1 == *b), "{tickets:?}");
    // 125 in 1 s are more than all of it can hold for 15 s.
    reader
        .extend_ring(began + Duration::from_secs(111))
        .unwrap();
    assert_eq!(reader.used_bytes(), all);
    assert!(reserved() >= all, "space is reserved before it is used");
    issue(&writer, 190);
    assert_eq!(lost(&poll(&mut reader)), 0);

    // A copy may end with the records, and holds the same.
    let bytes = std::fs::read(writer.path()).unwrap();
    let copy = directory.path().join("copy.box");
    std::fs::write(&copy, &bytes[..reader.used_bytes() as usize]).unwrap();
    let mut items = Vec::new();
    Reader::open(&copy)
        .unwrap()
        .finish(&mut |it| items.push(it));
    assert_eq!(records(&items).last().unwrap().ticket, 434);
    assert!(records(&items).len() >= 190);
}

/// Records written before the ring was extended are read by a reader that comes later.
#[test]
fn records_of_a_smaller_ring_are_found() {
    let (_directory, writer, mut reader) = pair(small());
    reader.extend_ring(Instant::now()).unwrap();
    issue(&writer, 100);
    poll(&mut reader);
    reader
        .extend_ring(Instant::now() + Duration::from_secs(1))
        .unwrap();
    issue(&writer, 10);
    let mut items = Vec::new();
    let mut later = Reader::open(writer.path()).unwrap();
    later.finish(&mut |it| items.push(it));
    assert_eq!(records(&items).len() as u64 + lost(&items), 110);
    // The ten went to unused slots: all that the smaller ring held is still there.
    assert_eq!(records(&items).len(), 74);
}

#[test]
fn dead_threads_entry_is_reused_with_a_new_number() {
    let capacities = Capacities {
        threads: 2,
        ..small()
    };
    let (_directory, writer, mut reader) = pair(capacities);
    issue(&writer, 1);
    for _ in 0..6 {
        let task = std::thread::scope(|scope| {
            let work = || {
                issue(&writer, 1);
                std::fs::read_link("/proc/thread-self").unwrap()
            };
            let named = std::thread::Builder::new().name("worker".into());
            named.spawn_scoped(scope, work).unwrap().join().unwrap()
        });
        // The kernel may remove a thread shortly after `join` returns.
        while Path::new("/proc").join(&task).exists() {
            std::thread::yield_now();
        }
    }
    let items = poll(&mut reader);
    let threads: Vec<u32> = records(&items).iter().map(|it| it.record.thread).collect();
    let mut distinct = threads.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), 7, "{threads:?}");
    // All but the last worker had ended before the first poll; they are delivered as well.
    for id in threads {
        let defined = items
            .iter()
            .position(|it| matches!(it, Item::Thread { id: it, .. } if *it == id));
        let used = items
            .iter()
            .position(|it| matches!(it, Item::Record(it) if it.record.thread == id));
        assert!(defined.unwrap() < used.unwrap());
    }
    let now = reader.threads();
    assert_eq!(now.len(), 2);
    assert_eq!(now[1].name, "worker");
    assert_eq!(reader.definitions_dropped(), 0);
}

#[test]
fn threads_beyond_the_table_are_counted() {
    let capacities = Capacities {
        threads: 1,
        ..small()
    };
    let (_directory, writer, mut reader) = pair(capacities);
    issue(&writer, 1);
    std::thread::scope(|scope| {
        scope.spawn(|| issue(&writer, 2));
    });
    let items = poll(&mut reader);
    let threads: Vec<u32> = records(&items).iter().map(|it| it.record.thread).collect();
    assert_eq!(threads, [1, 0, 0]);
    assert_eq!(reader.definitions_dropped(), 1);
}

#[test]
fn definitions_without_room_are_counted() {
    let (_directory, writer, mut reader) = pair(Capacities {
        strings: 4,
        sites: 2,
        groups: 2,
        ..small()
    });
    let group = writer.group(b"world", b"", b"gloo", 0, &[0, 1]);
    assert_eq!(group, 1);
    // The strings of this group exist already.
    assert_eq!(writer.group(b"world", b"", b"gloo", 0, &[0, 1]), 2);
    assert_eq!(writer.group(b"world", b"", b"gloo", 0, &[0, 1]), 0);
    assert_eq!(writer.site(b"world", b"", 1), 1);
    assert_eq!(writer.site(b"world", b"", 2), 2);
    assert_eq!(writer.site(b"world", b"", 3), 0);
    assert_eq!(writer.string(b"last"), 4);
    assert_eq!(writer.string(b"none"), 0);
    assert_eq!(reader.definitions_dropped(), 3);
    issue(&writer, 1);
    let items = poll(&mut reader);
    let ordinals: Vec<u32> = items
        .iter()
        .filter_map(|item| match item {
            Item::Group { ordinal, .. } => Some(*ordinal),
            _ => None,
        })
        .collect();
    assert_eq!(ordinals, [0, 1]);
    // The list of members is not delivered as a string.
    let strings = items
        .iter()
        .filter(|it| matches!(it, Item::String { .. }))
        .count();
    assert_eq!(strings, 3);
}

#[test]
fn group_ordinal_counts_equal_groups() {
    let (_directory, writer, mut reader) = pair(small());
    writer.group(b"a", b"", b"", 0, &[0, 1]);
    writer.group(b"a", b"", b"", 0, &[1, 0]);
    writer.group(b"a", b"", b"", 1, &[0, 1]);
    writer.group(b"b", b"", b"", 0, &[0, 1]);
    writer.group(b"a", b"other", b"nccl", 0, &[0, 1]);
    let ordinals: Vec<u32> = poll(&mut reader)
        .iter()
        .filter_map(|item| match item {
            Item::Group { ordinal, .. } => Some(*ordinal),
            _ => None,
        })
        .collect();
    assert_eq!(ordinals, [0, 0, 0, 0, 1]);
}

#[test]
fn sequence_numbers_count_per_group_and_peer() {
    let (_directory, writer, mut reader) = pair(small());
    let members: Vec<u32> = (0..4).collect();
    let a = writer.group(b"a", b"", b"", 0, &members);
    let b = writer.group(b"b", b"", b"", 0, &members);
    let to = |op, group, peer| {
        writer.issued(&Call {
            op,
            group,
            root_or_peer: peer,
            flags: flags::ROOT,
            ..Call::default()
        });
    };
    to(Op::AllReduce, a, 0);
    to(Op::Send, a, 1);
    to(Op::Send, a, 2);
    to(Op::Send, a, 1);
    to(Op::Recv, a, 1);
    to(Op::Broadcast, b, 3);
    to(Op::Barrier, a, 0);
    to(Op::NewGroup, a, 0);
    to(Op::Send, a, 9);
    to(Op::Send, a, -1);
    let seqs: Vec<u64> = records(&poll(&mut reader))
        .iter()
        .map(|it| it.record.seq)
        .collect();
    assert_eq!(seqs, [1, 1, 1, 2, 1, 1, 2, 0, 0, 0]);
    assert_eq!(
        reader.frontiers(),
        [
            Frontier {
                group: a,
                issued: 2,
                p2p_issued: 6
            },
            Frontier {
                group: b,
                issued: 1,
                p2p_issued: 0
            },
        ]
    );
}

#[test]
fn long_strings_and_splits_are_cut() {
    let (_directory, writer, mut reader) = pair(Capacities {
        heap_words: 2048,
        ..small()
    });
    let long = "é".repeat(3000);
    let id = writer.string(long.as_bytes());
    assert_ne!(id, 0);
    writer.splits(1, false, 0..100_000);
    let items = poll(&mut reader);
    let text = items.iter().find_map(|item| match item {
        Item::String { id: it, value } if *it == id => Some(value),
        _ => None,
    });
    assert_eq!(text.map(|it| it.chars().count()), Some(2048));
    let sizes: usize = records(&items).iter().map(|it| it.splits.len()).sum();
    assert_eq!(sizes, 1000);
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

#[test]
fn definitions_come_before_records_that_use_them() {
    let capacities = Capacities {
        records: 256,
        max_records: 256,
        strings: 8192,
        heap_words: 32 * 1024,
        sites: 4096,
        groups: 64,
        threads: 8,
    };
    let (_directory, writer, mut reader) = pair(capacities);
    let left = AtomicU64::new(3);
    std::thread::scope(|scope| {
        for name in 0..3 {
            let (writer, left) = (&writer, &left);
            scope.spawn(move || {
                for i in 0..1200 {
                    let text = format!("{name}.{i}");
                    let site = writer.site(text.as_bytes(), b"f", i);
                    let group = if i % 100 == 0 {
                        writer.group(text.as_bytes(), b"", b"", 0, &[0, name])
                    } else {
                        0
                    };
                    let value = writer.string(format!("text {name}.{i}").as_bytes());
                    writer.phase_begin(value);
                    writer.issued(&Call {
                        op: Op::Barrier,
                        group,
                        site,
                        tensors: i,
                        ..Call::default()
                    });
                }
                left.fetch_sub(1, Ordering::Release);
            });
        }
        let (mut sites, mut groups, mut threads) = (HashMap::new(), HashSet::new(), HashSet::new());
        let mut used = 0;
        let mut sink = |item| match item {
            Item::Site { id, line, .. } => assert_eq!(sites.insert(id, line), None),
            Item::Group { id, .. } => assert!(groups.insert(id)),
            Item::Thread { id, .. } => assert!(threads.insert(id)),
            Item::Record(ReadRecord { record, text, .. }) => {
                assert!(threads.contains(&record.thread));
                if record.kind == RecordKind::Issued {
                    assert_eq!(sites[&record.site], record.tensors);
                    assert!(record.group == 0 || groups.contains(&record.group));
                    used += 1;
                } else {
                    assert!(text.starts_with("text "));
                }
            }
            _ => {}
        };
        while left.load(Ordering::Acquire) != 0 {
            reader.poll(7, &mut sink);
        }
        reader.finish(&mut sink);
        assert!(used > 0);
        assert_eq!((sites.len(), groups.len()), (3600, 36));
    });
}
