//! The ring: overwritten, delayed and lost records, and its extension.

use super::*;

#[test]
fn every_record_is_delivered_or_counted_as_lost() {
    // In a small ring, slots are often overwritten while they are read.
    for records in [1, 2, 64] {
        write_and_read_at_once(Capacities { records, max_records: records, ..small() });
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
                        op: Op::AllReduce.number(),
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
        reader.poll(20, &mut |item| count += usize::from(matches!(item, Item::Record(_)))),
        20
    );
    assert_eq!(count, 20);
    assert_eq!(reader.poll(0, &mut |_| {}), 0);
    assert_eq!(records(&poll(&mut reader))[0].ticket, 20);
}

/// Overwrites a word of a box, as a delayed or dead writer might have left it.
fn poke(writer: &Writer, at: usize, value: u64) {
    let file = std::fs::OpenOptions::new().write(true).open(writer.path()).unwrap();
    file.write_all_at(&value.to_le_bytes(), (at * WORD) as u64).unwrap();
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
    // 50 records in 100 s: 64 are enough for 30 s.
    reader.extend_ring(began + Duration::from_secs(100)).unwrap();
    issue(&writer, 70);
    assert_eq!(lost(&poll(&mut reader)), 6);
    // 70 records in 20 s: 105 fill two steps.
    reader.extend_ring(began + Duration::from_secs(120)).unwrap();
    issue(&writer, 125);
    let items = poll(&mut reader);
    assert_eq!((records(&items).len(), lost(&items)), (125, 0));
    let tickets: Vec<u64> = records(&items).iter().map(|it| it.ticket).collect();
    assert!(tickets.is_sorted_by(|a, b| a + 1 == *b), "{tickets:?}");
    // 125 in 1 s are more than all of it can hold for 30 s.
    reader.extend_ring(began + Duration::from_secs(121)).unwrap();
    assert_eq!(reader.used_bytes(), all);
    assert!(reserved() >= all, "space is reserved before it is used");
    issue(&writer, 190);
    assert_eq!(lost(&poll(&mut reader)), 0);

    // A copy may end with the records, and holds the same.
    let bytes = std::fs::read(writer.path()).unwrap();
    let copy = directory.path().join("copy.box");
    std::fs::write(&copy, &bytes[..reader.used_bytes() as usize]).unwrap();
    let mut items = Vec::new();
    Reader::open(&copy).unwrap().finish(&mut |it| items.push(it));
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
    reader.extend_ring(Instant::now() + Duration::from_secs(1)).unwrap();
    issue(&writer, 10);
    let mut items = Vec::new();
    let mut later = Reader::open(writer.path()).unwrap();
    later.finish(&mut |it| items.push(it));
    assert_eq!(records(&items).len() as u64 + lost(&items), 110);
    // The ten went to unused slots: all that the smaller ring held is still there.
    assert_eq!(records(&items).len(), 74);
}
