//! Boxes written by released versions remain readable, with the same content.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use ddp_doctor_agent::blackbox::{Call, Options, Place, Reader, Writer};
use ddp_doctor_proto::blackbox::{Capacities, LAYOUT_VERSION, WORD, flags, header};
use ddp_doctor_proto::{DType, ExceptionKind, NoteKind, Op, ReduceOp};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../proto/tests/golden").join(name)
}

/// Everything that a reader delivers about a box.
fn describe(path: &Path) -> String {
    let mut reader = Reader::open(path).unwrap();
    let mut text = format!("{:?}\n", reader.identity());
    for thread in reader.threads() {
        writeln!(text, "{thread:?}").unwrap();
    }
    reader.finish(&mut |item| writeln!(text, "{item:?}").unwrap());
    text
}

#[test]
fn boxes_of_all_layouts_are_read_unchanged() {
    for layout in 1..=LAYOUT_VERSION {
        let file = |extension| golden(&format!("blackbox-v{layout}.{extension}"));
        let expected = fs::read_to_string(file("txt")).unwrap();
        assert_eq!(describe(&file("box")), expected, "layout {layout}");
    }
}

/// Writes the box of a new layout; boxes of older layouts must not change. Run it with
/// `cargo test -p ddp-doctor-agent --test golden -- --ignored`, and store what it prints.
#[test]
#[ignore = "writes a file into the repository"]
fn make_the_box_of_a_new_layout() {
    let directory = tempfile::tempdir().unwrap();
    let options = Options {
        world: String::new(),
        layer: "c10d".into(),
        job: "golden".into(),
        attempt: 2,
        rank: Some(1),
        world_size: Some(4),
        local_rank: Some(0),
        capacities: Capacities {
            records: 16,
            max_records: 48,
            strings: 24,
            heap_words: 64,
            sites: 4,
            groups: 4,
            threads: 4,
        },
    };
    let writer = Writer::create(&Place::within(directory.path()), &options).unwrap();
    write_a_bit_of_everything(&writer);
    let mut bytes = fs::read(writer.path()).unwrap();
    // Facts about the machine that wrote the box.
    let mut set = |at: usize, word: u64| {
        bytes[at * WORD..][..WORD].copy_from_slice(&word.to_le_bytes());
    };
    set(header::PID, 4711);
    set(header::START_TICKS, 123_456);
    set(header::BOOT_ID, u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7]));
    set(header::BOOT_ID + 1, u64::from_le_bytes([8, 9, 10, 11, 12, 13, 14, 15]));
    for at in header::HOST {
        set(at, 0);
    }
    set(header::HOST.start, u64::from_le_bytes(*b"node-007"));
    let path = golden("blackbox-v2.box");
    assert!(!path.exists(), "{} is forever", path.display());
    fs::write(&path, bytes).unwrap();
    fs::write(golden("blackbox-v2.txt"), describe(&path)).unwrap();
}

fn write_a_bit_of_everything(writer: &Writer) {
    let world = writer.group(b"0", b"default_pg", b"cuda:nccl", 0, &[0, 1, 2, 3]);
    let pair = writer.group(b"pair", b"", b"gloo", 0, &[3, 1]);
    writer.group(b"pair", b"", b"gloo", 0, &[3, 1]);
    let site = writer.site("tränen.py".as_bytes(), b"train_step", 214);
    let call = Call {
        op: Op::AllReduce.number(),
        dtype: DType::BFloat16.number(),
        reduce_op: ReduceOp::Avg.number(),
        flags: flags::ASYNC | flags::NUMEL | flags::SHAPE,
        ndim: 3,
        group: world,
        site,
        tensors: 2,
        numel: 24,
        dims: [2, 3, 4, 0, 0, 0, 0, 0, 0, 0],
        ..Call::default()
    };
    // Overwritten at the end, since the ring has room for sixteen records.
    for _ in 0..3 {
        let id = writer.issued(&call);
        writer.returned(id);
    }
    writer.step();
    let phase = writer.string(b"checkpoint");
    writer.phase_begin(phase);
    let id = writer.issued(&call);
    writer.returned(id);
    writer.wait_begin(id, site);
    writer.wait_end(id);
    writer.phase_end(phase);
    let send = writer.issued(&Call {
        op: Op::Send.number(),
        flags: flags::ROOT | flags::TAG,
        group: pair,
        root_or_peer: 0,
        tag: -5,
        ..Call::default()
    });
    writer.completed(send);
    writer.splits(id, true, [5, u32::MAX, 0]);
    writer.exception(ExceptionKind::InFlight, b"ValueError: \xff", site);
    writer.note(NoteKind::NoHooks, b"torch 2.7");
    writer.input_ended(site);
    writer.group_destroyed(pair);
    writer.exit(-9, b"os._exit", 0);
    writer.issued(&Call { op: Op::Barrier.number(), group: world, ..Call::default() });
    writer.close();
}
