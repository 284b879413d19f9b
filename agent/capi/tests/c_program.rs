//! The library as C sees it: a program against the header, what it leaves, and what the library
//! needs to be loaded.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use ddp_doctor_agent::blackbox::{GroupCreation, Item, ReadRecord, Reader};
use ddp_doctor_proto::blackbox::flags;
use ddp_doctor_proto::{Op, RecordKind as Kind};

/// The library. Cargo builds none for a test, which cannot link with it.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let built = Command::new(env!("CARGO"))
            .args([
                "build",
                "--offline",
                "--locked",
                "--package",
                "ddp-doctor-capi",
            ])
            .args(["--message-format", "json"])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output()
            .unwrap();
        assert!(
            built.status.success(),
            "{}",
            String::from_utf8_lossy(&built.stderr)
        );
        let messages = String::from_utf8(built.stdout).unwrap();
        let path = messages
            .split('"')
            .find(|it| it.ends_with("/libddp_doctor.so"));
        PathBuf::from(path.unwrap())
    })
}

/// Compiles and runs the program, and reads the one box that it leaves.
fn run(directory: &Path) -> (Reader, Vec<Item>) {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = directory.join("program");
    let compiled = Command::new("gcc")
        .args([
            "-std=gnu11",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-pthread",
            "-o",
        ])
        .arg(&program)
        .arg(here.join("tests/program.c"))
        .arg("-I")
        .arg(here.join("include"))
        .arg(library())
        .status()
        .unwrap();
    assert!(compiled.success());
    let boxes = directory.join("boxes");
    let status = Command::new(&program)
        .env("LD_LIBRARY_PATH", library().parent().unwrap())
        .env("DDP_DOCTOR_BOX_DIR", &boxes)
        .env_remove("DDP_DOCTOR")
        .status()
        .unwrap();
    assert!(status.success());
    let left: Vec<_> = boxes
        .read_dir()
        .unwrap()
        .map(|it| it.unwrap().path())
        .collect();
    assert_eq!(left.len(), 1, "{left:?}");
    let mut reader = Reader::open(&left[0]).unwrap();
    let mut items = Vec::new();
    reader.finish(&mut |item| items.push(item));
    (reader, items)
}

#[test]
fn a_c_program_says_all_that_the_header_offers() {
    let directory = tempfile::tempdir().unwrap();
    let (reader, items) = run(directory.path());
    let identity = reader.identity();
    assert_eq!(
        (identity.rank, identity.world_size, identity.local_rank),
        (Some(1), Some(4), Some(0))
    );
    assert_eq!(identity.layer, "c");
    assert!(identity.closed);

    let records: Vec<&ReadRecord> = items
        .iter()
        .filter_map(|item| match item {
            Item::Record(record) => Some(record),
            _ => None,
        })
        .collect();
    let kinds: Vec<Kind> = records.iter().map(|it| it.record.kind).collect();
    assert_eq!(
        kinds,
        [
            Kind::Step,
            Kind::PhaseBegin,
            Kind::Issued,
            Kind::Returned,
            Kind::PhaseEnd,
            Kind::WaitBegin,
            Kind::WaitEnd,
            Kind::Completed,
            Kind::Unawaited,
            Kind::Issued,
            Kind::Splits,
            Kind::Returned,
            Kind::Issued,
            Kind::Returned,
            Kind::WaitBegin,
            Kind::WaitEnd,
            Kind::Exception,
            Kind::Note,
            Kind::InputEnded,
            Kind::Issued,
            Kind::Issued,
            Kind::Returned,
            Kind::GroupDestroyed,
            Kind::Exit,
        ]
    );
    let issued = &records[2].record;
    // The library alone says what is point to point.
    assert_eq!(issued.flags, flags::NUMEL | flags::SHAPE);
    assert_eq!(
        (issued.op, issued.seq, issued.group, issued.site),
        (Op::AllReduce, 1, 1, 1)
    );
    assert_eq!(records[2].phase, "checkpoint");
    assert_eq!(records[10].splits, [4, 0, u32::MAX]);
    let nonsense = &records[12].record;
    assert_eq!(
        (nonsense.op, nonsense.group, nonsense.site),
        (Op::Unspecified, 0, 0)
    );
    assert_eq!(nonsense.shape(), None);
    assert_eq!(records[16].text, "E\u{fffd}: x");
    let at_thread_end = &records[19].record;
    assert_eq!((at_thread_end.op, at_thread_end.seq), (Op::Barrier, 3));
    assert_ne!(at_thread_end.thread, issued.thread);
    let creating = records[20];
    assert_eq!(
        (creating.record.op, creating.record.group),
        (Op::NewGroup, 0)
    );
    let made = GroupCreation {
        name: "new".into(),
        description: String::new(),
        backend: "gloo".into(),
        epoch: 2,
        members: vec![1, 3],
    };
    assert_eq!(creating.creation.as_deref(), Some(&made));
    assert_eq!(
        (records[23].text.as_str(), records[23].record.code),
        ("main returned", 0)
    );
}

#[test]
fn the_library_needs_libc_and_nothing_else() {
    let library = Command::new("readelf")
        .arg("-d")
        .arg(library())
        .output()
        .unwrap();
    let text = String::from_utf8(library.stdout).unwrap();
    let needed: Vec<&str> = text
        .lines()
        .filter(|line| line.contains("(NEEDED)"))
        .filter_map(|line| Some(line.split_once('[')?.1.trim_end_matches(']')))
        .collect();
    assert!(needed.contains(&"libc.so.6"));
    for name in needed {
        // The unwinder and the loader come with the C library and with every C++ program.
        let known = ["libc.so.6", "libgcc_s.so.1"].contains(&name) || name.starts_with("ld-linux");
        assert!(known, "{name}");
    }
}

#[test]
fn it_exports_what_the_header_declares_and_nothing_else() {
    let header = include_str!("../include/ddp_doctor.h");
    let mut declared: Vec<&str> = header
        .split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
        .zip(header.match_indices(|c: char| !(c.is_ascii_alphanumeric() || c == '_')))
        .filter(|(word, (_, after))| word.starts_with("ddp_doctor_") && *after == "(")
        .map(|(word, _)| word)
        .collect();
    // Comments mention some of them once more.
    declared.sort_unstable();
    declared.dedup();
    let symbols = Command::new("nm")
        .args(["-D", "--defined-only"])
        .arg(library())
        .output()
        .unwrap();
    let text = String::from_utf8(symbols.stdout).unwrap();
    let mut exported: Vec<&str> = text
        .lines()
        .filter_map(|line| line.split(' ').nth(2))
        .collect();
    exported.sort_unstable();
    assert_eq!(exported, declared);
}

#[test]
fn four_crates_live_in_a_training_process() {
    let tree = Command::new(env!("CARGO"))
        .args([
            "tree",
            "--offline",
            "--locked",
            "--edges",
            "normal",
            "--prefix",
            "none",
        ])
        .args(["--package", "ddp-doctor-capi", "--format", "{p}"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(
        tree.status.success(),
        "{}",
        String::from_utf8_lossy(&tree.stderr)
    );
    let tree = String::from_utf8(tree.stdout).unwrap();
    let mut crates: Vec<&str> = tree
        .lines()
        .filter_map(|line| line.split(' ').next())
        .collect();
    crates.sort_unstable();
    crates.dedup();
    assert_eq!(
        crates,
        [
            "ddp-doctor-agent",
            "ddp-doctor-capi",
            "ddp-doctor-proto",
            "libc"
        ]
    );
}
