//! Records of groups that are about to be created, and the room that they leave for others.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use ddp_doctor_agent::blackbox::{Creation, GroupCreation, Item, Options, Place, Reader, Writer};
use ddp_doctor_proto::blackbox::Capacities;
use ddp_doctor_proto::{Op, RecordKind};

fn pair() -> (tempfile::TempDir, Writer, Reader) {
    let directory = tempfile::tempdir().unwrap();
    let options = Options {
        layer: "test".into(),
        job: "job".into(),
        capacities: Capacities {
            records: 256,
            max_records: 256,
            strings: 32,
            heap_words: 512,
            sites: 8,
            groups: 4,
            threads: 4,
        },
        ..Options::default()
    };
    let writer = Writer::create(&Place::within(directory.path()), &options).unwrap();
    let reader = Reader::open(writer.path()).unwrap();
    (directory, writer, reader)
}

fn creating(writer: &Writer, name: &str, members: &[u32]) -> u64 {
    writer.creating(&Creation {
        op: Op::NewGroup,
        name: name.as_bytes(),
        description: b"pairs",
        backend: b"gloo",
        takes_all: true,
        epoch: 3,
        members,
        seat: None,
        site: 0,
    })
}

fn items(reader: &mut Reader) -> Vec<Item> {
    let mut items = Vec::new();
    reader.poll(usize::MAX, &mut |item| items.push(item));
    items
}

#[test]
fn creation_is_recorded_even_if_not_a_member() {
    let (_directory, writer, mut reader) = pair();
    let call = creating(&writer, "7", &[4, 6, 8]);
    writer.returned(call);
    let found = items(&mut reader);
    let creation = found.iter().find_map(|item| match item {
        Item::Record(read) => Some((read, read.creation.as_deref()?)),
        _ => None,
    });
    let (read, group) = creation.unwrap();
    assert_eq!(
        (read.record.kind, read.record.op, read.record.call),
        (RecordKind::Issued, Op::NewGroup, call)
    );
    let told = GroupCreation {
        name: "7".into(),
        description: "pairs".into(),
        backend: "gloo".into(),
        takes_all: true,
        epoch: 3,
        members: vec![4, 6, 8],
        seat: None,
    };
    assert_eq!(*group, told);
    assert!(!found.iter().any(|item| matches!(item, Item::Group { .. })));
}

#[test]
fn creations_leave_room_for_strings_and_groups() {
    let (_directory, writer, mut reader) = pair();
    for n in 0..40 {
        let call = creating(&writer, &n.to_string(), &[n, n + 1]);
        assert_ne!(call, 0, "it is recorded all the same");
        writer.returned(call);
    }
    let told = items(&mut reader);
    let described = told
        .iter()
        .filter(|it| matches!(it, Item::Record(read) if read.creation.is_some()))
        .count();
    assert!((1..16).contains(&described), "{described}");
    let only_that = told.iter().filter(|item| match item {
        Item::Record(read) => {
            let record = read.record;
            let issued = record.op == Op::NewGroup && record.kind == RecordKind::Issued;
            issued && read.creation.is_none()
        }
        _ => false,
    });
    assert!(only_that.count() > 10);
    assert_ne!(writer.string(b"an exception"), 0);
    assert_ne!(writer.group(b"own", b"", b"gloo", 0, &[0, 1]), 0);
}
