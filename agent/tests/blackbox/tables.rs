//! Tables of threads, groups, sites and texts.

use super::*;

#[test]
fn dead_threads_entry_is_reused_with_a_new_number() {
    let capacities = Capacities { threads: 2, ..small() };
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
        let defined =
            items.iter().position(|it| matches!(it, Item::Thread { id: it, .. } if *it == id));
        let used =
            items.iter().position(|it| matches!(it, Item::Record(it) if it.record.thread == id));
        assert!(defined.unwrap() < used.unwrap());
    }
    let now = reader.threads();
    assert_eq!(now.len(), 2);
    assert_eq!(now[1].name, "worker");
    assert_eq!(reader.definitions_dropped(), 0);
}

#[test]
fn threads_beyond_the_table_are_counted() {
    let capacities = Capacities { threads: 1, ..small() };
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
    let (_directory, writer, mut reader) =
        pair(Capacities { strings: 4, sites: 2, groups: 2, ..small() });
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
    let to = |op: Op, group, peer| {
        writer.issued(&Call {
            op: op.number(),
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
    let seqs: Vec<u64> = records(&poll(&mut reader)).iter().map(|it| it.record.seq).collect();
    assert_eq!(seqs, [1, 1, 1, 2, 1, 1, 2, 0, 0, 0]);
    assert_eq!(
        reader.frontiers(),
        [
            Frontier { group: a, issued: 2, p2p_issued: 6 },
            Frontier { group: b, issued: 1, p2p_issued: 0 },
        ]
    );
}

#[test]
fn long_strings_and_splits_are_cut() {
    let (_directory, writer, mut reader) = pair(Capacities { heap_words: 2048, ..small() });
    let long = "é".repeat(3000);
    writer.exception(ExceptionKind::Uncaught, long.as_bytes(), 0);
    writer.splits(1, false, 0..100_000);
    let items = poll(&mut reader);
    let records = records(&items);
    assert_eq!(records[0].text.chars().count(), 2048);
    let sizes: usize = records.iter().map(|it| it.splits.len()).sum();
    assert_eq!(sizes, 1000);
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
                        op: Op::Barrier.number(),
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
