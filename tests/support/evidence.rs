//! Evidence of small jobs, and `analyze` on it.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Output;

use ddp_doctor_agent::blackbox::{Call, Options, Place, Writer};
use ddp_doctor_proto::Op;
use ddp_doctor_proto::blackbox::{Capacities, WORD, header};
use ddp_doctor_proto::report::Report;

use super::process::program;
use super::scenario::Scenario;

/// Runs `analyze` in `dir`.
#[track_caller]
pub(crate) fn analyze(dir: &Path, arguments: &[&str]) -> Output {
    program(dir).arg("analyze").args(arguments).output().unwrap()
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// The report that `analyze` printed as JSON.
#[track_caller]
pub(crate) fn report(output: &Output) -> Report {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}\n{}\n{}", stdout(output), stderr(output)))
}

/// Writes black boxes of two ranks, which issued `calls` barriers and are waiting in the last one
/// where `inside` is set.
pub(crate) fn boxes_of(dir: &Path, calls: [u64; 2], inside: [bool; 2]) -> Vec<PathBuf> {
    let place = Place::within(dir);
    let write = |rank: u32| {
        let options = Options {
            layer: "c10d".into(),
            job: "job".into(),
            rank: Some(rank),
            world_size: Some(2),
            capacities: Capacities {
                records: 64,
                max_records: 64,
                strings: 64,
                heap_words: 512,
                sites: 16,
                groups: 8,
                threads: 4,
            },
            ..Options::default()
        };
        let writer = Writer::create(&place, &options).unwrap();
        let group = writer.group(b"0", b"default_pg", b"gloo", 0, &[0, 1]);
        let site = writer.site(b"train.py", b"main", 7);
        let calls = calls[rank as usize];
        for call in 1..=calls {
            let id =
                writer.issued(&Call { op: Op::Barrier.number(), group, site, ..Call::default() });
            writer.returned(id);
            writer.wait_begin(id, site);
            if call < calls || !inside[rank as usize] {
                writer.wait_end(id);
            }
        }
        writer.path().to_owned()
    };
    [0, 1].map(write).to_vec()
}

/// Makes a black box one of another boot: its process cannot be checked.
pub(crate) fn replace_boot_id(path: &Path) {
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(&[7; 16], (header::BOOT_ID * WORD) as u64).unwrap();
}

const MISMATCH: &str = r#"
about = "two ranks call different things"
world = 2
events = """
1.0 0 all_reduce f32[8] sum @train.py:9
1.5 1 barrier @train.py:12
1.6 0 lost 1
1.7 1 step 3
3.0 - ends
"""
[[expect]]
code = "DD103"
"#;

/// Writes the journal of a job whose two ranks make different calls.
pub(crate) fn journal(dir: &Path) -> PathBuf {
    let scenario = Scenario::parse(MISMATCH).unwrap();
    scenario.journals(dir, 1).unwrap().remove(0)
}
