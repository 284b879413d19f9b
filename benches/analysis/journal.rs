//! Measures what `analyze` costs by the number of records in a journal: two ranks that make 500 calls a
//! second each, for 80 s to 20 minutes.
//!
//! ```text
//! cargo bench --bench journal                                      # the table in docs/performance.md
//! cargo bench --bench journal -- --records 640 --fault straggler   # thousands of records
//! cargo bench --bench journal -- --records 640 --keep FILE         # keeps the journal, for a profiler
//! ```
//!
//! The faults are those of the benchmark of the engine. With `--without-steps`, the ranks announce no
//! training steps, so that the engine has to find the rounds of their loop.
#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark prints its results and needs no error handling"
)]

#[expect(dead_code, reason = "the benchmark of the engine uses all of it")]
#[path = "../engine/job.rs"]
mod job;

#[path = "../coordinator/encode.rs"]
mod encode;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ddp_doctor::diagnosis::event::Event;
use ddp_doctor::evidence::journal::Writer;
use ddp_doctor::postmortem;
use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_proto::v1::{self, event::Kind};

use encode::Encoder;
use job::{Fault, Job, Layout, MILLISECOND};

/// Thousands of records, by row of the table.
const TABLE: [u64; 4] = [160, 640, 1_600, 2_400];
const RANKS: u32 = 2;
/// Duration of a step of 40 calls.
const STEP: u64 = 80 * MILLISECOND;
/// Records of all ranks in a second: each step has a beginning, and each call two records, or three.
const RECORDS_A_SECOND: u64 = 2_100;
/// Interval of the reports of a node.
const TICK: u64 = 50 * MILLISECOND;
/// Start of the job, in Unix ns.
const BEGAN: u64 = 1_700_000_000_000_000_000;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let value = |name: &str| {
        let at = arguments.iter().position(|it| it == name)?;
        arguments.get(at + 1).cloned()
    };
    let fault = value("--fault").map(|it| Fault::named(&it).unwrap());
    let layout = Layout { ranks: RANKS, step: STEP, seed: 1, fault };
    let has_steps = !arguments.iter().any(|it| it == "--without-steps");
    let rows = value("--records").map_or_else(|| TABLE.to_vec(), |it| vec![it.parse().unwrap()]);
    println!("| records | journal | processor time | one record | findings |");
    println!("|--:|--:|--:|--:|---|");
    for thousands in rows {
        let dir = tempfile::tempdir().unwrap();
        let path = value("--keep").map_or_else(|| dir.path().join("job.ddpj"), PathBuf::from);
        let records = write(&path, layout, has_steps, thousands * 1_000 / RECORDS_A_SECOND);
        let began = used();
        let analysis = postmortem::analyze(std::slice::from_ref(&path));
        let took = used().saturating_sub(began);
        let findings = &analysis.reports[0].findings;
        let codes: Vec<&str> = findings.iter().map(|it| it.code.as_str()).collect();
        println!(
            "| {records} | {} MB | {:.2} s | {:.2} µs | {} |",
            fs::metadata(&path).unwrap().len() / 1_000_000,
            took.as_secs_f64(),
            took.as_secs_f64() * 1e6 / records as f64,
            codes.join(", ")
        );
    }
}

/// Writes the journal of a job of this many seconds. Returns the number of its records.
fn write(path: &Path, layout: Layout, has_steps: bool, seconds: u64) -> u64 {
    let mut job = Job::start(layout, seconds);
    let mut encoder = Encoder::default();
    let mut writer = Writer::create(path).unwrap();
    let mut records = 0;
    let hello = Kind::Hello(v1::Hello {
        job: "simulated".into(),
        started_unix_ns: BEGAN,
        host: "node-0".into(),
        boot_id: "boot of node-0".into(),
        ..v1::Hello::default()
    });
    let mut events = job.joined();
    let mut kinds = vec![hello];
    for tick in 1..=seconds * 1_000 * MILLISECOND / TICK {
        kinds.extend(events.iter().flat_map(|event| encoder.encode(event, BEGAN)));
        records += kinds.iter().filter(|it| matches!(it, Kind::Record(_))).count() as u64;
        let report = v1::Report {
            sent_unix_ns: BEGAN + tick * TICK,
            events: kinds.drain(..).map(|kind| v1::Event { kind: Some(kind) }).collect(),
            ..v1::Report::default()
        };
        writer.append(&report).unwrap();
        events = job.until(Timestamp(tick * TICK));
        events.retain(|event| has_steps || !matches!(event, Event::Step { .. }));
    }
    records
}

/// Processor time of this process.
fn used() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap()
}
