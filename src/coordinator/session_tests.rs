//! The recordings of real jobs, diagnosed from records and from digests with pulls.

use std::cell::Cell;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use ddp_doctor_proto::report::Finding;
use flate2::read::GzDecoder;
use tokio::sync::Semaphore;
use v1::event::Kind;

use super::{Arc, Duration, Input, Memory, Report, Session, Timestamp, mpsc, v1, watch};
use crate::evidence::journal;
use crate::node::follow::DIGEST_INTERVAL;
use crate::node::follow::digest::{Summary, is_covered, is_notable};

#[path = "../../tests/support/simulated_node.rs"]
mod simulated_node;

use simulated_node::Node;

/// Interval of a node's reports.
const TICK: Duration = Duration::from_millis(50);
const UNLIMITED: u64 = u64::MAX;

thread_local! {
    static NOW: Cell<Timestamp> = const { Cell::new(Timestamp(0)) };
}

/// The events of a recording, with the times of its reports and the offset of the monotonic clock.
fn recorded(path: &Path) -> (Vec<(Timestamp, Vec<Kind>)>, u64) {
    let mut bytes = Vec::new();
    GzDecoder::new(File::open(path).unwrap())
        .read_to_end(&mut bytes)
        .unwrap();
    let end = bytes.iter().position(|&byte| byte == b'\n').unwrap();
    let scratch = tempfile::tempdir().unwrap();
    let file = scratch.path().join("journal");
    fs::write(&file, &bytes[end + 1..]).unwrap();
    let mut reader = journal::Reader::open(&file).unwrap();
    let (mut reports, mut behind) = (Vec::new(), 0);
    while let Some(report) = reader.read().unwrap() {
        let kinds: Vec<Kind> = report.events.into_iter().filter_map(|it| it.kind).collect();
        for kind in &kinds {
            if let Kind::ProcessJoined(it) = kind {
                behind = it.anchor_unix_ns.wrapping_sub(it.anchor_mono_ns);
            }
        }
        reports.push((Timestamp(report.sent_unix_ns), kinds));
    }
    (reports, behind)
}

/// A job's diagnosis.
struct Diagnosis {
    report: Report,
    /// Number of records that the coordinator received.
    received: usize,
}

/// Diagnoses a recording. Digests are requested above a rate of records, and a pull returns at most `most`
/// records of a process.
fn diagnose(path: &Path, above: u64, most: u64) -> Diagnosis {
    let (reports, behind) = recorded(path);
    let Some(Kind::Hello(hello)) = reports[0].1.first().cloned() else {
        panic!("no hello");
    };
    let hello = v1::Hello {
        digest_above: Some(above),
        ..hello
    };
    let (publisher, _published) = watch::channel(Arc::default());
    let mut session = Session::new(
        &hello,
        publisher,
        Arc::default(),
        Arc::new(Memory::new(usize::MAX)),
    );
    session.now = || NOW.get();
    session.pause = 0;
    let (requests, mut asked) = mpsc::channel(64);
    let room = Arc::new(Semaphore::new(1 << 20));
    NOW.set(reports[0].0);
    session.handle(Input::Attached {
        attachment: 1,
        hello,
        welcome: v1::Welcome::default(),
        requests,
    });
    let mut node = Node::new(most, usize::MAX);
    let mut received = 0;
    let mut reports = reports.into_iter().peekable();
    while let Some((at, kinds)) = reports.next() {
        node.observe(kinds);
        let until = reports.peek().map_or(at, |(next, _)| *next);
        let mut now = at;
        loop {
            NOW.set(now);
            node.digest(now, now.0.wrapping_sub(behind));
            // Requests and their answers.
            loop {
                let kinds = node.take();
                received += kinds
                    .iter()
                    .filter(|it| matches!(it, Kind::Record(_)))
                    .count();
                if !kinds.is_empty() {
                    let permit = || Arc::clone(&room).try_acquire_owned().unwrap();
                    session.handle(Input::Report {
                        attachment: 1,
                        report: report(kinds, now),
                        at: now,
                        _room: [permit(), permit()],
                    });
                }
                session.advance_time();
                session.conclude(false);
                let mut is_asked = false;
                while let Ok(request) = asked.try_recv() {
                    node.answer(request.kind.unwrap());
                    is_asked = true;
                }
                if !is_asked {
                    break;
                }
            }
            now = now.plus(TICK);
            if now >= until {
                break;
            }
        }
    }
    Diagnosis {
        report: session.engine.report(),
        received,
    }
}

fn report(kinds: Vec<Kind>, at: Timestamp) -> v1::Report {
    let events = kinds.into_iter();
    v1::Report {
        sent_unix_ns: at.0,
        events: events.map(|kind| v1::Event { kind: Some(kind) }).collect(),
        pong: None,
    }
}

fn recordings() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recordings");
    let families = fs::read_dir(root).unwrap().map(|it| it.unwrap().path());
    let files = families.filter(|it| it.is_dir()).flat_map(|family| {
        let files = fs::read_dir(family).unwrap();
        files.map(|it| it.unwrap().path())
    });
    let mut files: Vec<PathBuf> = files.collect();
    files.sort();
    files
}

/// What must not depend on how the evidence arrived.
fn essence(report: &Report) -> Vec<String> {
    let essence = |it: &Finding| {
        let lines: Vec<String> = it
            .per_rank
            .iter()
            .map(|call| format!("{}: {:?}", call.rank, call.place))
            .collect();
        let cause = it.cause.map(|cause| (cause.kind, cause.confidence));
        format!(
            "{} {:?} {:?} {:?} {:?} {cause:?} {lines:?}",
            it.code, it.role, it.confidence, it.ranks.root, it.ranks.root_confidence
        )
    };
    report.findings.iter().map(essence).collect()
}

/// Ranks that skip an iteration are found by their history, which ends where records are left out.
const NEED_ALL_RECORDS: [&str; 2] = [
    "nan_skipped_then_barrier.faulty",
    "two_ranks_skip_alone.faulty",
];

/// `RECORDING` selects recordings by a part of their path, to look at one that differs.
#[track_caller]
fn is_as_from_records(most: u64, exceptions: &[&str]) {
    let only = std::env::var("RECORDING").unwrap_or_default();
    let mut wrong = Vec::new();
    let (mut all, mut sent) = (0, 0);
    let recordings = recordings();
    let named = |path: &&PathBuf| path.to_str().unwrap().contains(&only);
    for path in recordings.iter().filter(named) {
        let records = diagnose(path, UNLIMITED, UNLIMITED);
        let digests = diagnose(path, 0, most);
        all += records.received;
        sent += digests.received;
        let (expected, found) = (essence(&records.report), essence(&digests.report));
        let is_exception = exceptions
            .iter()
            .any(|it| path.to_str().unwrap().contains(it));
        if expected != found && !is_exception {
            wrong.push(format!("{}\n  {expected:#?}\n  {found:#?}", path.display()));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} differ:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    assert!(sent < all, "every one of {all} records was sent");
}

#[test]
fn digests_give_the_findings_of_records() {
    is_as_from_records(UNLIMITED, &[]);
}

/// 64 records are what one of 4 096 ranks is asked for.
#[test]
fn short_pulls_give_the_findings_of_records() {
    is_as_from_records(64, &NEED_ALL_RECORDS);
}
