//! Invalid, truncated and forged black boxes: a reader returns an error or skips the invalid parts.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;

use ddp_doctor_agent::blackbox::{Call, Creation, Item, OpenError, Options, Place, Reader, Writer};
use ddp_doctor_proto::blackbox::{Capacities, LAYOUT_VERSION, MAGIC, WORD, flags, header};
use ddp_doctor_proto::{ExceptionKind, Op};
use tempfile::TempDir;

const CAPACITIES: Capacities = Capacities {
    records: 16,
    max_records: 16,
    strings: 16,
    heap_words: 64,
    sites: 8,
    groups: 4,
    threads: 4,
};

/// In memory if possible, since some disks flush every overwritten file.
fn scratch() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// A box with an entry in every table.
fn valid(directory: &Path) -> Vec<u8> {
    let options = Options {
        layer: "test".into(),
        job: "job".into(),
        capacities: CAPACITIES,
        ..Options::default()
    };
    let writer = Writer::create(&Place::within(directory), &options).unwrap();
    let group = writer.group(b"world", b"all", b"gloo", 0, &[0, 1, 5]);
    let site = writer.site(b"train.py", b"main", 3);
    for _ in 0..10 {
        let call = writer.issued(&Call {
            op: Op::AllToAll.number(),
            flags: flags::SHAPE,
            ndim: 2,
            group,
            site,
            ..Call::default()
        });
        writer.splits(call, false, 0..7);
    }
    let members = [0, 1, 5];
    writer.creating(&Creation {
        op: Op::NewGroup,
        name: b"1",
        description: b"pair",
        backend: b"gloo",
        takes_all: true,
        epoch: 0,
        members: &members,
        seat: None,
        site,
    });
    writer.exception(ExceptionKind::Uncaught, b"RuntimeError: x", site);
    let bytes = fs::read(writer.path()).unwrap();
    fs::remove_file(writer.path()).unwrap();
    assert_eq!(bytes.len(), CAPACITIES.layout().words * WORD);
    bytes
}

#[test]
fn box_of_another_user_is_no_evidence_about_a_live_job() {
    let directory = scratch();
    let path = directory.path().join("1.2.c10d.box");
    fs::write(&path, valid(directory.path())).unwrap();
    assert!(Reader::open_own(&path).is_ok());
    let link = directory.path().join("1.3.c10d.box");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    assert!(Reader::open(&link).is_ok());
    assert!(Reader::open_own(&link).is_err());
    if std::os::unix::fs::chown(&path, Some(65534), None).is_err() {
        return; // only root can change the owner
    }
    let error = Reader::open_own(&path).unwrap_err().to_string();
    assert!(error.contains("belongs to another user"), "{error}");
    assert!(Reader::open(&path).is_ok());
}

/// Calls every function of a reader.
fn read(path: &Path) -> Result<usize, OpenError> {
    let mut reader = Reader::open(path)?;
    let mut count = 0;
    let mut sink = |item| {
        if let Item::Record(record) = item {
            if let Some(group) = record.creation {
                assert!(group.name.len() + group.description.len() <= 6 * 4096);
                assert!((1..=1 << 17).contains(&group.members.len()) || group.seat.is_some());
            }
            assert!(record.text.len() <= 3 * 4096);
            assert!(record.splits.len() <= 20);
            count += 1;
        }
    };
    drop((reader.identity(), reader.threads(), reader.frontiers()));
    reader.poll(100, &mut sink);
    reader.rewind_to(3);
    reader.poll(5, &mut sink);
    reader.rewind();
    reader.finish(&mut sink);
    Ok(count)
}

/// A deterministic pseudo-random sequence (xorshift64).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}

#[test]
fn truncated_box_is_an_error_at_every_length() {
    let directory = scratch();
    let bytes = valid(directory.path());
    let path = directory.path().join("cut.box");
    for length in (0..bytes.len()).filter(|it| *it < 64 || it % 61 == 0 || it % 4096 < 2) {
        fs::write(&path, &bytes[..length]).unwrap();
        match read(&path) {
            Err(OpenError::NotABox { .. }) => assert!(length < WORD),
            Err(OpenError::Truncated { found, .. }) => assert_eq!(found, length as u64),
            other => panic!("{length}: {other:?}"),
        }
    }
    fs::write(&path, &bytes).unwrap();
    let whole = read(&path).unwrap();
    assert!(whole >= 16);
    // Trailing bytes are ignored.
    fs::write(&path, [&bytes[..], &[7; 13]].concat()).unwrap();
    assert_eq!(read(&path).unwrap(), whole);
}

#[test]
fn changed_words_do_not_crash_the_reader() {
    let directory = scratch();
    let bytes = valid(directory.path());
    let path = directory.path().join("forged.box");
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    let words = bytes.len() / WORD;
    let mut opened = 0;
    for round in 0..6000 {
        let mut forged = bytes.clone();
        for _ in 0..=numbers.below(4) {
            // In every second round, in the used part of the header.
            let at = if round % 2 == 0 { numbers.below(48) } else { numbers.below(words) };
            let found = u64::from_le_bytes(*forged[at * WORD..].first_chunk().unwrap());
            let value = match numbers.below(7) {
                0 => u64::MAX,
                1 => 0,
                2 => 1 << numbers.below(64),
                3 => found ^ 1 << numbers.below(64),
                4 => found.wrapping_add(numbers.next() % 64),
                5 => found | 1 << 63,
                _ => numbers.next(),
            };
            forged[at * WORD..][..WORD].copy_from_slice(&value.to_le_bytes());
        }
        fs::write(&path, &forged).unwrap();
        opened += usize::from(read(&path).is_ok());
    }
    assert!(opened > 3000, "{opened}");
}

#[test]
fn random_tables_do_not_crash_the_reader() {
    let directory = scratch();
    let bytes = valid(directory.path());
    let path = directory.path().join("noise.box");
    let mut numbers = Numbers(4711);
    for _ in 0..500 {
        let mut noise = bytes.clone();
        for byte in &mut noise[header::WORDS * WORD..] {
            *byte = numbers.next() as u8;
        }
        for count in [
            header::RING_HEAD,
            header::STRINGS_COUNT,
            header::SITES_COUNT,
            header::GROUPS_COUNT,
            header::THREADS_COUNT,
        ] {
            let value = numbers.next() >> numbers.below(64);
            noise[count * WORD..][..WORD].copy_from_slice(&value.to_le_bytes());
        }
        fs::write(&path, &noise).unwrap();
        read(&path).unwrap();
    }
}

#[test]
fn invalid_file_error_states_the_reason() {
    let directory = scratch();
    let bytes = valid(directory.path());
    let path = directory.path().join("a.box");

    fs::write(&path, b"{\"pickle\": 1}").unwrap();
    let error = read(&path).unwrap_err();
    assert!(matches!(error, OpenError::NotABox { .. }));
    let message = error.to_string();
    assert!(message.contains("another version wrote it"), "{message}");

    let mut newer = bytes.clone();
    newer[header::VERSION * WORD] = LAYOUT_VERSION as u8 + 1;
    // A later layout may differ completely after the version.
    newer[2 * WORD..].fill(0xee);
    fs::write(&path, &newer).unwrap();
    let error = read(&path).unwrap_err();
    assert!(matches!(error, OpenError::NewerLayout { found: 3, .. }));
    let message = error.to_string();
    assert!(
        message.contains("a.box has layout 3") && message.contains("or a later one"),
        "{message}"
    );
    fs::write(&path, &newer[..2 * WORD]).unwrap();
    assert!(matches!(read(&path), Err(OpenError::NewerLayout { .. })));

    let mut older = bytes;
    older[header::VERSION * WORD] = 0;
    fs::write(&path, &older).unwrap();
    assert!(matches!(read(&path), Err(OpenError::Damaged { .. })));
    fs::write(&path, MAGIC.to_le_bytes()).unwrap();
    assert!(matches!(read(&path), Err(OpenError::Truncated { found: 8, .. })));

    assert!(matches!(read(directory.path()), Err(OpenError::Io { .. })));
    assert!(matches!(read(Path::new("/dev/zero")), Err(OpenError::Io { .. })));
    let missing = read(&directory.path().join("none.box")).unwrap_err();
    assert!(missing.to_string().contains("none.box"));
}
