//! Dumps as bytes: dialects, damage, and files made to exhaust the reader.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use ddp_doctor_diagnosis::Engine;
use ddp_doctor_proto::report::Timestamp;
use flate2::Compression;
use flate2::write::GzEncoder;
use ruzstd::encoding::CompressionLevel;

use super::{Contents, Found, read_all};
use crate::flight_recorder::calls::Groups;
use crate::flight_recorder::document::{Document, Invalid};
use crate::flight_recorder::dump::{Dump, KIND, Room};
use crate::flight_recorder::{diagnose, dumped_jobs};
use crate::{Observer, Progress};

/// Reads a dump, with room for its entries.
fn parse(bytes: Vec<u8>, damage: Option<String>) -> Result<Dump, Invalid> {
    super::parse(bytes, damage, &Room::new(1 << 20, u64::MAX))
}

/// Writes the opcodes that PyTorch's pickler writes.
#[derive(Default)]
struct Pickle(Vec<u8>);

impl Pickle {
    fn text(mut self, text: &str) -> Self {
        self.0.push(b'X');
        self.0.extend((text.len() as u32).to_le_bytes());
        self.0.extend(text.as_bytes());
        self
    }

    fn op(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }
}

/// A dump with two calls: numbers of all widths, a shared text, a tuple and frames.
fn pickled() -> Vec<u8> {
    let entry = |p: Pickle, seq: u8, state: &str| {
        p.op(b"}(")
            .text("record_id")
            .op(&[b'K', seq - 1])
            .text("pg_id")
            .op(&[b'M', 0, 1])
            .text("process_group")
            .text("0")
            .text("default_pg")
            .op(&[0x86])
            .text("collective_seq_id")
            .op(&[b'J', seq, 0, 0, 0])
            .text("profiling_name")
            .text("nccl:all_reduce")
            .op(b"q\x00")
            .text("time_created_ns")
            .op(&[0x8a, 8, 0, 0, 0, 0, 0, 0, 0, 0x10])
            .text("input_sizes")
            .op(b"](](K\x04K\x02ee")
            .text("input_dtypes")
            .op(b"](")
            .text("Float")
            .op(b"e")
            .text("duration_ms")
            .op(&[b'G', 0x3f, 0xf0, 0, 0, 0, 0, 0, 0])
            .text("time_discovered_started_ns")
            .op(b"N")
            .text("retired")
            .op(&[0x89])
            .text("is_p2p")
            .op(&[0x89])
            .text("state")
            .text(state)
            .text("frames")
            .op(b"](}(")
            .text("filename")
            .text("/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py")
            .text("line")
            .op(b"K\x07u}(")
            .text("filename")
            .text("/job/train.py")
            .text("line")
            .op(b"K\x09")
            .text("name")
            .text("step")
            .op(b"ueu")
    };
    let head = Pickle::default()
        .op(&[0x80, 2])
        .op(b"}(")
        .text("version")
        .text("2.9")
        .text("pg_status")
        .op(b"}(")
        .text("256")
        .op(b"}(")
        .text("last_enqueued_collective")
        .op(b"K\x02")
        .text("last_completed_collective")
        .op(&[b'J', 0xff, 0xff, 0xff, 0xff])
        .op(b"uu")
        .text("entries")
        .op(b"](");
    let first = entry(head, 1, "completed");
    entry(first, 2, "started").op(b"eu.").0
}

#[track_caller]
fn rejected(bytes: Vec<u8>, reason: &str) {
    let error = parse(bytes, None).unwrap_err().to_string();
    assert!(error.contains(reason), "{error}");
}

struct Silent;

impl Observer for Silent {
    fn evaluated(&mut self, _: &Engine, _: Timestamp, _: bool) {}
}

#[test]
fn pickle_yields_its_entries() {
    let dump = parse(pickled(), None).unwrap();
    assert_eq!((dump.version.as_str(), &dump.cut), ("2.9", &None));
    assert_eq!(dump.status[&256].enqueued, Some(2));
    assert_eq!(dump.status[&256].completed, None, "-1: none yet");
    let entries: Vec<_> = dump.entries().collect();
    let [first, second] = &entries[..] else {
        panic!("{entries:?}");
    };
    assert_eq!((first.seq, first.record, first.pg), (1, 0, 256));
    assert_eq!(first.created, 0x1000_0000_0000_0000);
    assert_eq!(first.shape.as_deref(), Some(&[4, 2][..]));
    assert_eq!((first.numel, &*first.group.backend), (Some(8), "nccl"));
    assert_eq!(second.seq, 2);
    let place = second.place.as_ref().unwrap();
    assert_eq!((&*place.file, place.line, &*place.function), ("/job/train.py", 9, "step"));
}

#[test]
fn cut_pickle_yields_the_calls_before_the_cut() {
    let whole = pickled();
    let mut calls = Vec::new();
    for len in 3..whole.len() {
        let dump = parse(whole[..len].to_vec(), None).unwrap();
        assert!(dump.cut.is_some(), "{len} bytes");
        calls.push(dump.packed.len());
    }
    assert!(calls.is_sorted());
    // The pickle ends with "u" of the last call, and "eu.": a call whose "u" was read is complete.
    assert_eq!(calls[calls.len() - 4..], [1, 2, 2, 2]);
    assert_eq!(calls[0], 0);
}

#[test]
fn cut_json_yields_the_calls_before_the_cut() {
    let text = r#"{"entries":[{"profiling_name":"gloo:barrier","process_group":["0",""],"collective_seq_id":1},
        {"profiling_name":"gloo:barrier","process_group":["0","\u0041"],"collective_seq_id":2}],
        "version":"2.10","pg_status":{"0":{"last_enqueued_collective":"2"}}}"#;
    let whole = parse(text.into(), None).unwrap();
    assert_eq!((whole.packed.len(), &*whole.kinds[1].group.description), (2, "A"));
    assert_eq!(whole.status[&0].enqueued, Some(2));
    for len in 1..text.len() {
        let cut = parse(text.as_bytes()[..len].to_vec(), None).unwrap();
        let complete = text[..len].matches('}').count().min(2);
        assert!(cut.cut.is_some(), "{len} bytes");
        assert_eq!(cut.packed.len(), complete, "{len} bytes");
    }
}

#[test]
fn pickles_that_could_run_code_are_rejected() {
    let system = b"\x80\x02cposix\nsystem\nX\x02\x00\x00\x00id\x85R.";
    rejected(system.to_vec(), "opcode 0x63 is not executed (it can run code");
    for opcode in [b'R', b'b', b'i', b'o', 0x81, 0x82, 0x92, 0x93, b'P', b'Q'] {
        rejected(vec![0x80, 2, b'N', opcode], "can run code");
    }
    rejected(b"\x80\x02B\x01\x00\x00\x00x.".to_vec(), "never contain it");
}

#[test]
fn files_that_are_no_dumps_are_named_as_such() {
    rejected(b"\x80\x02]K\x01a.".to_vec(), "not a Flight Recorder dump: expected a dictionary");
    rejected(br#"{"loss": 3}"#.to_vec(), "not a Flight Recorder dump");
    rejected(b"epoch,loss\n1,2\n".to_vec(), "neither a pickle of protocol 2 or later nor JSON");
    rejected(Vec::new(), "it is empty");
    rejected(b"\x80\x02.".to_vec(), "an opcode needs a value");
    rejected(b"\x80\x02e.".to_vec(), "a list or dictionary ends that has no beginning");
    rejected(b"\x80\x02NK\x01a.".to_vec(), "appends to a value that is not a list");
    rejected(br#"{"entries": what}"#.to_vec(), "no JSON value");
}

#[test]
fn deep_nesting_is_an_error() {
    let mut nested = vec![0x80, 2];
    nested.extend(b"](".repeat(1 << 20));
    rejected(nested, "nested more than 64 deep");
    rejected([&b"{\"entries\":"[..], &b"[".repeat(1 << 20)].concat(), "nested more than 64 deep");
    // Nesting without marks grows the data alone, and nothing recurses into it.
    let inside =
        [&[0x80, 2][..], &b"]".repeat(1 << 20), &b"a".repeat((1 << 20) - 1), b"."].concat();
    rejected(inside, "not a Flight Recorder dump");
}

#[test]
fn list_that_contains_itself_is_harmless() {
    let key = Pickle::default().op(b"\x80\x02}(").text("entries").0;
    let bytes = [&key[..], b"]q\x00(h\x00h\x00eu."].concat();
    let dump = parse(bytes, None).unwrap();
    assert_eq!((dump.packed.len(), dump.skipped), (0, 2));
}

#[test]
fn memo_is_limited_to_values_in_order() {
    rejected(b"\x80\x02Nr\xff\xff\xff\xff.".to_vec(), "value 4294967295 is remembered after 0");
    rejected(b"\x80\x02h\x05.".to_vec(), "value 5 is not remembered");
}

#[test]
fn shared_values_do_not_multiply() {
    // Each list contains the one before it twice, and so 2^60 values if they were copied.
    let mut bytes = b"\x80\x02]q\x00".to_vec();
    for at in 0..60 {
        bytes.extend([b']', b'q', at + 1, b'(', b'h', at, b'h', at, b'e']);
    }
    bytes.push(b'.');
    rejected(bytes, "not a Flight Recorder dump");
}

#[test]
fn entries_of_all_dumps_are_limited() {
    // A list with one entry 1000 times, as a pickle of a few kilobytes can have it millions of times.
    let entry =
        r#"{"profiling_name":"nccl:barrier","process_group":["0",""],"collective_seq_id":1}"#;
    let text = format!("{{\"entries\":[{}]}}", [entry; 1000].join(","));
    let room = Room::new(1500, u64::MAX);
    let dumps = [0, 1, 2].map(|_| super::parse(text.clone().into(), None, &room).unwrap());
    let counts = dumps.each_ref().map(|it| it.packed.len());
    // The room of its only kind of call is that of entries, in both dumps.
    assert_eq!(counts, [1000, 500 - 2 * KIND, 0]);
    let is_cut = dumps.each_ref().map(|it| it.cut.is_some());
    assert_eq!(is_cut, [false, true, true]);
}

#[test]
fn dumps_share_equal_lists_of_members() {
    let text = |ranks: &str| {
        format!(r#"{{"pg_config":{{"0":{{"desc":"w","ranks":"{ranks}"}}}},"entries":[]}}"#)
    };
    let room = Room::new(1, u64::MAX);
    let members = ["[0, 1, 2]", "[0, 1, 2]", "[0, 1]"].map(|ranks| {
        let dump = super::parse(text(ranks).into(), None, &room).unwrap();
        Arc::clone(&dump.groups["0"].members)
    });
    assert!(Arc::ptr_eq(&members[0], &members[1]) && *members[0] == [0, 1, 2]);
    assert_eq!(*members[2], [0, 1]);
}

#[test]
fn equal_shapes_and_groups_are_stored_once() {
    let text = r#"{"profiling_name":"nccl:all_reduce","process_group":["0","w"],"collective_seq_id":1,"input_sizes":[[4,4]]}"#;
    let dump = parse(format!("{{\"entries\":[{text},{text}]}}").into(), None).unwrap();
    let entries: Vec<_> = dump.entries().collect();
    let [one, other] = &entries[..] else {
        panic!("{entries:?}");
    };
    let shapes = [one, other].map(|it| it.shape.clone().unwrap());
    assert!(Arc::ptr_eq(&shapes[0], &shapes[1]) && *shapes[0] == [4, 4]);
    assert!(Arc::ptr_eq(&one.group, &other.group));
}

#[test]
fn members_of_groups_are_limited() {
    let numbers: Vec<String> = (0..1 << 17).map(|rank| rank.to_string()).collect();
    let ranks = numbers.join(",");
    // One text, to which many groups refer.
    let mut bytes = Pickle::default().op(b"\x80\x02}(").text("pg_config").op(b"}(");
    bytes = bytes.text("0").op(b"}(").text("ranks").text(&ranks).op(b"q\x00u");
    for name in 1..=32 {
        bytes = bytes.text(&name.to_string()).op(b"}(").text("ranks").op(b"h\x00u");
    }
    rejected(bytes.op(b"uu.").0, "more than 4194304 members");
}

#[test]
fn groups_of_a_claimed_world_are_limited() {
    // Calls in many groups that no dump describes, of a world that one rank claims.
    let calls = (0..1000).map(|group| {
        format!(r#"{{"profiling_name":"nccl:barrier","process_group":["{group}","default_pg"],"collective_seq_id":1}}"#)
    });
    let entries: Vec<String> = calls.collect();
    let text = format!(
        r#"{{"pg_config":{{"x":{{"ranks":"[0, 131071]"}}}},"entries":[{}]}}"#,
        entries.join(",")
    );
    let dump = parse(text.into(), None).unwrap();
    let path = "/job/_dump_0".into();
    let contents = Contents { dumps: vec![Found { path, dump }], ..Contents::default() };
    let jobs = dumped_jobs::assemble(vec![contents], &mut Vec::new());
    let groups = Groups::new(&jobs[0]);
    let members = groups.all.iter().map(|it| it.info.key.members.len());
    assert!(members.sum::<usize>() <= 1 << 24);
    assert!(groups.left_out() > 500);
}

#[test]
fn long_texts_and_many_values_are_errors() {
    rejected(b"\x80\x02X\xff\xff\xff\x7f".to_vec(), "a text of 2147483647 bytes");
    let number = b"\x80\x02\x8a\x10aaaaaaaaaaaaaaaa.";
    rejected(number.to_vec(), "not a Flight Recorder dump");
    let many = [&b"\x80\x02"[..], &vec![b'N'; (1 << 24) + 1]].concat();
    rejected(many, "more than 16777216 values");
    let lists = [&b"\x80\x02"[..], &vec![b']'; (1 << 22) + 1]].concat();
    rejected(lists, "more than 4194304 lists");
}

// --- Files ---------------------------------------------------------------------------------------

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// A tar archive with these members.
fn zstd(bytes: &[u8]) -> Vec<u8> {
    ruzstd::encoding::compress_to_vec(bytes, CompressionLevel::Fastest)
}

fn tar(members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut archive = Vec::new();
    for (name, bytes) in members {
        let mut header = [0; 512];
        header[..name.len()].copy_from_slice(name.as_bytes());
        header[124..135].copy_from_slice(format!("{:011o}", bytes.len()).as_bytes());
        header[156] = b'0';
        header[257..262].copy_from_slice(b"ustar");
        archive.extend(header);
        archive.extend(*bytes);
        archive.resize(archive.len().next_multiple_of(512), 0);
    }
    archive.extend([0; 1024]);
    archive
}

/// Reads one file with these contents: numbers of calls of its dumps, and messages.
fn in_file(bytes: &[u8]) -> (Vec<(PathBuf, usize)>, Vec<String>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("dump");
    std::fs::write(&path, bytes).unwrap();
    let contents = read_all(&[path], &Progress::default()).remove(0);
    let calls = contents.dumps.into_iter().map(|it| {
        let inner = it.path.strip_prefix(dir.path()).unwrap().to_owned();
        (inner, it.dump.packed.len())
    });
    let messages = contents.unreadable.into_iter().map(|(_, text)| text);
    (calls.collect(), messages.collect())
}

#[test]
fn compressed_files_and_archives_are_read() {
    let dump = pickled();
    assert_eq!(in_file(&gzip(&dump)).0, [("dump".into(), 2)]);
    // Several frames, one of them without data, are one file.
    let (begin, rest) = dump.split_at(dump.len() / 2);
    let skippable = [&[0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0][..], b"any"].concat();
    let frames = [zstd(begin), skippable, zstd(rest)].concat();
    assert_eq!(in_file(&frames).0, [("dump".into(), 2)]);
    let (packed, packed_too) = (gzip(&dump), zstd(&dump));
    let members: [(&str, &[u8]); 5] = [
        ("run/_dump_0", &dump),
        ("run/_dump_1.gz", &packed),
        ("run/_dump_3.zst", &packed_too),
        ("run/README.md", b"About these dumps"),
        ("run/_dump_2", b""),
    ];
    let expected = [
        ("dump/run/_dump_0".into(), 2),
        ("dump/run/_dump_1.gz".into(), 2),
        ("dump/run/_dump_3.zst".into(), 2),
    ];
    assert_eq!(in_file(&tar(&members)).0, expected);
    assert_eq!(in_file(&gzip(&tar(&members))), (expected.to_vec(), vec![]));
    assert_eq!(in_file(&zstd(&tar(&members))), (expected.to_vec(), vec![]));
}

#[test]
fn member_of_an_archive_has_the_time_of_its_header() {
    let dump = pickled();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("dump.tar");
    let mut archive = tar(&[("_dump_0", &dump), ("_dump_1", &dump)]);
    // The archive is written now, its first member was last changed in 2023.
    archive[136..147].copy_from_slice(format!("{:011o}", 1_700_000_000).as_bytes());
    std::fs::write(&path, archive).unwrap();
    let dumps = read_all(&[path], &Progress::default()).remove(0).dumps;
    let written: Vec<Option<u64>> = dumps.into_iter().map(|it| it.dump.written).collect();
    assert_eq!(written, [Some(1_700_000_000_000_000_000), None]);
}

#[test]
fn damaged_archives_keep_what_was_read() {
    let dump = pickled();
    let packed = gzip(&dump);
    let (dumps, _) = in_file(&packed[..packed.len() - 9]);
    assert_eq!(dumps.len(), 1);
    let archive = tar(&[("_dump_0", &dump), ("_dump_1", &dump)]);
    let second = 512 + dump.len().next_multiple_of(512);
    let (dumps, _) = in_file(&archive[..second + 512 + 900]);
    assert_eq!(dumps.len(), 2, "the second one is cut off");
    let (dumps, messages) = in_file(&archive[..second + 100]);
    assert_eq!(dumps.len(), 1);
    assert!(messages[0].contains("the archive is cut off"), "{messages:?}");
    let mut archive = archive;
    archive[second + 124..second + 135].fill(b'9');
    let (dumps, messages) = in_file(&archive);
    assert_eq!((dumps.len(), messages.len()), (1, 1), "{messages:?}");
}

#[test]
fn compression_bombs_are_errors() {
    // 140 MiB of spaces in less than 1 MiB.
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    let spaces = vec![b' '; 1 << 20];
    for _ in 0..140 {
        encoder.write_all(&spaces).unwrap();
    }
    let bomb = encoder.finish().unwrap();
    let other = zstd(&vec![b' '; 140 << 20]);
    assert!(bomb.len() < 1 << 20 && other.len() < 1 << 20);
    for bytes in
        [bomb.clone(), tar(&[("_dump_0.gz", &bomb)]), tar(&[("_dump_0.zst", &other)]), other]
    {
        let (dumps, messages) = in_file(&bytes);
        assert!(dumps.is_empty());
        let is_limited =
            |it: &String| it.contains("more than 128 MiB") || it.contains("more than 256 times");
        assert!(messages.iter().any(is_limited), "{messages:?}");
    }
}

#[test]
fn members_of_an_archive_share_the_limit_of_its_size() {
    let begin = [&b"{\"entries\": ["[..], &vec![b' '; 5 << 20]].concat();
    let packed = gzip(&begin);
    let members: Vec<(&str, &[u8])> = ["_dump_0.gz"; 8].map(|name| (name, &packed[..])).into();
    let archive = gzip(&tar(&members));
    assert!(archive.len() < 64 << 10, "{}", archive.len());
    let (dumps, messages) = in_file(&archive);
    assert_eq!(dumps.len(), 3, "15 MiB of 16");
    assert!(messages[0].contains("more than 256 times"), "{messages:?}");
}

#[test]
fn hole_in_a_text_is_not_read() {
    let begin = br#"{"version": "2.9", "entries": [{"record_id": 0}, "#;
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), begin).unwrap();
    file.as_file().set_len(200 << 20).unwrap();
    let room = Room::new(1 << 20, 3 << 20);
    let contents = super::read(file.path(), &room, &mut Document::default());
    assert_eq!(contents.unreadable, []);
    let cut = contents.dumps[0].dump.cut.clone();
    assert_eq!(cut, Some(format!("it ends after {} bytes", begin.len())));
}

#[test]
fn bytes_of_all_dumps_are_limited() {
    let dump = pickled();
    let file = tempfile::NamedTempFile::new().unwrap();
    for bytes in [dump.clone(), gzip(&dump)] {
        std::fs::write(file.path(), bytes).unwrap();
        let room = Room::new(1 << 20, dump.len() as u64 * 2 - 1);
        assert_eq!(super::read(file.path(), &room, &mut Document::default()).dumps.len(), 1);
        let second = super::read(file.path(), &room, &mut Document::default());
        assert!(second.dumps.is_empty(), "{second:?}");
        assert!(second.unreadable[0].1.contains("64 GiB of dumps were read"), "{second:?}");
    }
}

/// The header of POSIX that names the next member.
fn pax(name: &str) -> Vec<u8> {
    let record = |key: &str, value: &str| {
        let rest = format!(" {key}={value}\n");
        let len = (1..).find(|len: &usize| len.to_string().len() + rest.len() == *len);
        format!("{}{rest}", len.unwrap())
    };
    let records = record("mtime", "1700000000.5") + &record("path", name) + &record("uid", "7");
    let mut header = tar(&[("PaxHeader", records.as_bytes())]);
    header[156] = b'x';
    header.truncate(header.len() - 1024);
    header
}

#[test]
fn long_names_in_archives_are_read() {
    let dump = pickled();
    let folder = "f".repeat(120);
    let mut archive = Vec::new();
    for rank in 0..2 {
        archive.extend(pax(&format!("{folder}/_dump_{rank}")));
        let member = tar(&[(&folder[..100], &dump)]);
        archive.extend(&member[..member.len() - 1024]);
    }
    archive.extend([0; 1024]);
    let expected = [0, 1].map(|rank| (format!("dump/{folder}/_dump_{rank}").into(), 2));
    assert_eq!(in_file(&archive), (expected.to_vec(), vec![]));
}

#[test]
fn frame_with_a_huge_window_is_an_error() {
    // A window of 2 GiB.
    let (dumps, messages) = in_file(b"\x28\xb5\x2f\xfd\x00\xa8\x01\x00\x00");
    assert!(dumps.is_empty());
    assert!(messages[0].contains("indow"), "{messages:?}");
}

#[test]
fn archive_without_dumps_is_named() {
    let (_, messages) = in_file(&gzip(&tar(&[("job.log", b"step 1\n")])));
    assert!(messages[0].contains("neither a Flight Recorder dump nor a log"), "{messages:?}");
}

#[test]
fn archive_with_a_huge_member_ends_early() {
    let mut archive = tar(&[("_dump_0", b"x")]);
    archive[124..135].copy_from_slice(b"77777777777");
    let (dumps, _) = in_file(&archive);
    assert!(dumps.is_empty());
}

#[test]
fn random_damage_never_panics() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let whole = pickled();
    for _ in 0..3000 {
        let mut bytes = whole.clone();
        for _ in 0..1 + random() % 4 {
            let at = random() as usize % bytes.len();
            bytes[at] = random() as u8;
        }
        // Neither the reader of pickles nor that of JSON.
        drop(Document::default().read([b"{", &bytes[1..]].concat()));
        let dumps = [bytes, whole.clone()].into_iter().enumerate().filter_map(|(rank, bytes)| {
            let path = format!("/job/_dump_{rank}").into();
            let dump = parse(bytes, None).ok()?;
            Some(Found { path, dump })
        });
        let contents = Contents { dumps: dumps.collect(), ..Contents::default() };
        for job in dumped_jobs::assemble(vec![contents], &mut Vec::new()) {
            drop(diagnose(job, &mut Silent));
        }
    }
}

#[test]
fn unreadable_file_is_named() {
    let path: PathBuf = "/nonexistent/_dump_0".into();
    let contents = read_all(std::slice::from_ref(&path), &Progress::default()).remove(0);
    assert!(contents.dumps.is_empty());
    assert_eq!(contents.unreadable[0].0, path);
}
