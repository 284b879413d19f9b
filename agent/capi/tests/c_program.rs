//! The C library: a C program compiled against the header, the black box it leaves, and the
//! library's dynamic dependencies and exports.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use ddp_doctor_agent::MemorySample;
use ddp_doctor_agent::blackbox::{GroupCreation, Item, ReadRecord, Reader};
use ddp_doctor_proto::blackbox::flags;
use ddp_doctor_proto::{
    DType, ExceptionKind, NoteKind, Op, ParameterFact, RecordKind as Kind, ReduceOp, Spending,
};

/// Path of the library. Cargo does not build a cdylib for a test of its own package.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let built = Command::new(env!("CARGO"))
            .args(["build", "--offline", "--locked", "--package", "ddp-doctor-capi"])
            .args(["--message-format", "json"])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output()
            .unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        let messages = String::from_utf8(built.stdout).unwrap();
        let path = messages.split('"').find(|it| it.ends_with("/libddp_doctor.so"));
        PathBuf::from(path.unwrap())
    })
}

/// Compiles and runs `program.c`, and reads the one box that it leaves.
fn run(directory: &Path) -> (Reader, Vec<Item>) {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = directory.join("program");
    let compiled = Command::new("gcc")
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"])
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
    let left: Vec<_> = boxes.read_dir().unwrap().map(|it| it.unwrap().path()).collect();
    assert_eq!(left.len(), 1, "{left:?}");
    let mut reader = Reader::open(&left[0]).unwrap();
    let mut items = Vec::new();
    reader.finish(&mut |item| items.push(item));
    (reader, items)
}

#[test]
fn c_program_writes_the_expected_records() {
    let directory = tempfile::tempdir().unwrap();
    let (reader, items) = run(directory.path());
    let identity = reader.identity();
    assert_eq!(
        (identity.rank, identity.world_size, identity.local_rank),
        (Some(1), Some(4), Some(0))
    );
    assert_eq!((identity.layer.as_str(), identity.job.as_str()), ("c", "my job"));
    assert_eq!(identity.attempt, 2);
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
            Kind::GroupTimeout,
            Kind::Exception,
            Kind::Note,
            Kind::InputEnded,
            Kind::InputEnded,
            Kind::Spent,
            Kind::Setting,
            Kind::Parameters,
            Kind::InputEnded,
            Kind::Issued,
            Kind::Issued,
            Kind::Returned,
            Kind::GroupDestroyed,
            Kind::Exit,
        ]
    );
    let issued = &records[2].record;
    // The point-to-point flag is set by the library alone.
    assert_eq!(issued.flags, flags::NUMEL | flags::SHAPE);
    assert_eq!((issued.op, issued.seq, issued.group, issued.site), (Op::AllReduce, 1, 1, 1));
    assert_eq!(records[2].phase, "checkpoint");
    assert_eq!(records[10].splits, [4, 0, u32::MAX]);
    let nonsense = &records[12].record;
    assert_eq!((nonsense.op, nonsense.group, nonsense.site), (Op::Unspecified, 0, 0));
    assert_eq!(nonsense.shape(), None);
    assert_eq!(records[17].text, "E\u{fffd}: x");
    assert_eq!((records[19].record.flags, records[19].record.numel), (flags::NUMEL, 12));
    let spent = &records[21].record;
    assert_eq!((spent.code, spent.numel), (1, 5_000_000));
    assert_eq!(records[22].text, "nccl=2.27=3");
    let parameters = &records[23].record;
    assert_eq!((parameters.code, parameters.group, parameters.seq), (1, 1, 1));
    assert_eq!((parameters.tensors, parameters.numel), (0, 2));
    assert_eq!(parameters.dtype, DType::Float32);
    assert_eq!(parameters.shape(), Some(&[7, 8][..]));
    assert_eq!(records[23].text, "float32 8,4 a\nint8 - b\n");
    let sample = MemorySample {
        device: Some(3),
        used: Some(1000),
        total: None,
        allocated: Some(600),
        reserved: Some(1 << 40),
        peak: Some(700),
        split: None,
        retries: Some(2),
        ooms: Some(0),
        largest: Some(9),
        nccl: None,
    };
    // Recorded with a smaller `size`, as by a caller that knows only the first fields.
    let older = MemorySample { device: Some(3), used: Some(1000), ..MemorySample::default() };
    let samples: Vec<_> = items
        .iter()
        .filter_map(|item| match item {
            Item::Memory { sample, .. } => Some(*sample),
            _ => None,
        })
        .collect();
    assert_eq!(samples, [sample, older]);
    let line = include_str!("program.c").lines().position(|line| line.contains("THE LINE"));
    let here = items.iter().find_map(|item| match item {
        Item::Site { id, file, function, line, .. } if *id == records[24].record.site => {
            Some((file.ends_with("program.c"), function.as_str(), *line as usize))
        }
        _ => None,
    });
    assert_eq!(here, Some((true, "main", line.unwrap() + 1)));
    let at_thread_end = &records[25].record;
    assert_eq!((at_thread_end.op, at_thread_end.seq), (Op::Barrier, 3));
    assert_ne!(at_thread_end.thread, issued.thread);
    let creating = records[26];
    assert_eq!((creating.record.op, creating.record.group), (Op::NewGroup, 0));
    let made = GroupCreation {
        name: "new".into(),
        description: String::new(),
        backend: "gloo".into(),
        takes_all: true,
        epoch: 2,
        members: vec![1, 3],
        seat: None,
    };
    assert_eq!(creating.creation.as_deref(), Some(&made));
    assert_eq!((records[29].text.as_str(), records[29].record.code), ("main returned", 0));
}

#[test]
fn library_depends_on_libc_only() {
    let library = Command::new("readelf").arg("-d").arg(library()).output().unwrap();
    let text = String::from_utf8(library.stdout).unwrap();
    let needed: Vec<&str> = text
        .lines()
        .filter(|line| line.contains("(NEEDED)"))
        .filter_map(|line| Some(line.split_once('[')?.1.trim_end_matches(']')))
        .collect();
    assert!(needed.contains(&"libc.so.6"));
    for name in needed {
        // Every process has the unwinder and the loader.
        let known = ["libc.so.6", "libgcc_s.so.1"].contains(&name) || name.starts_with("ld-linux");
        assert!(known, "{name}");
    }
}

/// Functions that the header declares: lines that begin at column 0, except inline definitions.
fn declared() -> BTreeSet<&'static str> {
    let lines = include_str!("../include/ddp_doctor.h").lines();
    let declares = |line: &&str| {
        line.starts_with(|c: char| c.is_ascii_lowercase())
            && !line.starts_with("static ")
            && !line.starts_with("typedef ")
            && line.contains('(')
    };
    lines
        .filter(declares)
        .filter_map(|line| line.split('(').next()?.split([' ', '*']).next_back())
        .collect()
}

#[test]
fn exports_are_the_declared_functions() {
    let symbols =
        Command::new("nm").args(["-D", "--defined-only"]).arg(library()).output().unwrap();
    let text = String::from_utf8(symbols.stdout).unwrap();
    let exported: BTreeSet<&str> = text.lines().filter_map(|line| line.split(' ').nth(2)).collect();
    assert!(exported.len() > 25, "{exported:?}");
    let mut known = declared();
    // Used by the preloaded NCCL library to find this one.
    known.insert("ddp_doctor_services");
    assert_eq!(exported, known);
}

#[test]
fn header_constants_match_the_vocabulary() {
    let header = include_str!("../include/ddp_doctor.h");
    let numbers = |prefix: &str| -> BTreeMap<String, u8> {
        let lines = header.lines().filter_map(|line| line.trim().strip_prefix(prefix));
        lines
            .filter_map(|line| {
                let (name, number) = line.split_once(" = ")?;
                let number = number.split(|c: char| !c.is_ascii_digit()).next()?;
                Some((name.to_owned(), number.parse().ok()?))
            })
            .collect()
    };
    let words = |words: &mut dyn Iterator<Item = (&'static str, u8)>| -> BTreeMap<String, u8> {
        let upper = |name: &str| name.to_uppercase().replace([' ', '-'], "_");
        words.map(|(name, number)| (upper(name), number)).collect()
    };
    macro_rules! same {
        ($prefix:literal, $words:ident) => {
            let mut known = $words::ALL.iter().map(|it| (it.name().unwrap(), it.number()));
            assert_eq!(numbers($prefix), words(&mut known));
        };
    }
    same!("DDP_DOCTOR_OP_", Op);
    same!("DDP_DOCTOR_DTYPE_", DType);
    same!("DDP_DOCTOR_REDUCE_", ReduceOp);
    same!("DDP_DOCTOR_NOTE_", NoteKind);
    same!("DDP_DOCTOR_PARAMETERS_", ParameterFact);
    same!("DDP_DOCTOR_SPENT_", Spending);
    let kinds = numbers("DDP_DOCTOR_EXCEPTION_");
    assert_eq!(kinds.len(), ExceptionKind::ALL.len());
    for kind in ExceptionKind::ALL {
        let name = kind
            .name()
            .unwrap()
            .to_uppercase()
            .replace(" A COLLECTIVE", " COLLECTIVE")
            .replace(" A ", " ");
        assert_eq!(kinds.get(&name.replace(' ', "_")), Some(&kind.number()), "{name}");
    }
    for (name, flag) in [
        ("ASYNC", flags::ASYNC),
        ("HIDDEN", flags::HIDDEN),
        ("P2P", flags::P2P),
        ("NUMEL", flags::NUMEL),
        ("SHAPE", flags::SHAPE),
        ("ROOT", flags::ROOT),
        ("TAG", flags::TAG),
        ("BORROWED_SITE", flags::BORROWED_SITE),
    ] {
        assert_eq!(numbers("DDP_DOCTOR_").get(name), Some(&(flag as u8)), "{name}");
    }
}

#[test]
fn header_compiles_as_c_and_cpp() {
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("source");
    let program = "#include \"ddp_doctor.h\"\nint main(void) { return ddp_doctor_is_open() + (int)DDP_DOCTOR_HERE; }\n";
    std::fs::write(&source, program).unwrap();
    for (compiler, language, standard) in [
        ("gcc", "c", "-std=c99"),
        ("gcc", "c", "-std=c17"),
        ("g++", "c++", "-std=c++11"),
        ("g++", "c++", "-std=c++20"),
    ] {
        let compiled = Command::new(compiler)
            .args([standard, "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror"])
            .args(["-fsyntax-only", "-x", language])
            .arg(&source)
            .arg("-I")
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("include"))
            .status();
        match compiled {
            Ok(status) => assert!(status.success(), "{language} {standard}"),
            // A C++ compiler may be missing.
            Err(_) => assert_eq!(compiler, "g++"),
        }
    }
}

#[test]
fn library_has_few_dependencies() {
    let tree = Command::new(env!("CARGO"))
        .args(["tree", "--offline", "--locked", "--edges", "normal", "--prefix", "none"])
        .args(["--package", "ddp-doctor-capi", "--format", "{p}"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
    let tree = String::from_utf8(tree.stdout).unwrap();
    let mut crates: Vec<&str> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
    crates.sort_unstable();
    crates.dedup();
    assert_eq!(
        crates,
        [
            "cfg-if",
            "cudarc",
            "ddp-doctor-agent",
            "ddp-doctor-capi",
            "ddp-doctor-proto",
            "libc",
            "libloading",
        ]
    );
}
