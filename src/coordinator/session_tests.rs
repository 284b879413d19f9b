//! The recordings of real jobs, diagnosed from records and from digests with pulls.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use ddp_doctor_evidence::digest::{INTERVAL, Summary, is_covered, is_notable};
use ddp_doctor_evidence::journal;
use ddp_doctor_proto::report::{Confidence, Finding};
use flate2::read::GzDecoder;
use tokio::sync::Semaphore;
use v1::event::Kind;

use super::{
    Arc, Duration, Input, Instant, Memory, Published, Report, Session, Timestamp, mpsc, v1, watch,
};

#[path = "../../tests/support/simulated_node.rs"]
mod simulated_node;

use simulated_node::Node;

#[path = "simulated_tests.rs"]
mod simulated;

/// Interval of a node's reports.
const TICK: Duration = Duration::from_millis(50);
const UNLIMITED: u64 = u64::MAX;
/// Time after the end of a random program's execution.
const AFTERWARDS: Duration = Duration::from_secs(5);

/// Records of a process in a pull that leaves most of a random program's out.
const FEW: u64 = 4;

/// The monotonic clock does not advance: looks take no time.
static STARTED: LazyLock<Instant> = LazyLock::new(Instant::now);

thread_local! {
    static NOW: Cell<Timestamp> = const { Cell::new(Timestamp(0)) };
}

/// What a node observed, by the time of its reports, and the offset of its monotonic clock.
struct Evidence {
    reports: Vec<(Timestamp, Vec<Kind>)>,
    behind: u64,
}

/// The evidence of a recording.
fn recorded(path: &Path) -> Evidence {
    let mut bytes = Vec::new();
    GzDecoder::new(File::open(path).unwrap()).read_to_end(&mut bytes).unwrap();
    let end = bytes.iter().position(|&byte| byte == b'\n').unwrap();
    let scratch = tempfile::tempdir().unwrap();
    let file = scratch.path().join("journal");
    fs::write(&file, &bytes[end + 1..]).unwrap();
    journaled(&file)
}

/// The evidence of a journal.
fn journaled(file: &Path) -> Evidence {
    let mut reader = journal::Reader::open(file).unwrap();
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
    Evidence { reports, behind }
}

/// The evidence of a random program, and of the time after its execution.
fn executed(file: &Path) -> Evidence {
    let mut evidence = journaled(file);
    let end = evidence.reports.last().unwrap().0;
    evidence.reports.push((end.plus(AFTERWARDS), Vec::new()));
    evidence
}

/// What a node sends.
#[derive(Clone, Copy)]
struct Limits {
    /// Records a second above which digests are requested.
    above: u64,
    /// Maximum number of records of a process in a pull.
    most: u64,
    /// Number of records that a ring holds.
    kept: usize,
}

/// Every record is sent.
const ALL: Limits = Limits { above: UNLIMITED, most: UNLIMITED, kept: usize::MAX };

/// A job's diagnosis.
struct Diagnosis {
    report: Report,
    /// Codes of the findings that were published at any time.
    codes: BTreeSet<String>,
    /// Number of records that the coordinator received.
    received: usize,
}

/// A session with a node that has attached.
struct Attached {
    session: Session,
    published: watch::Receiver<Arc<Published>>,
    requests: mpsc::Receiver<v1::Request>,
}

impl Attached {
    fn new(hello: v1::Hello) -> Self {
        let (publisher, published) = watch::channel(Arc::default());
        let tables = Arc::new(Memory::new(usize::MAX));
        let mut session = Session::new(&hello, publisher, Arc::default(), tables);
        session.now = || NOW.get();
        session.monotonic = || *STARTED;
        let (asked, requests) = mpsc::channel(64);
        session.handle(Input::Attached {
            attachment: 1,
            hello,
            welcome: v1::Welcome::default(),
            requests: asked,
        });
        Self { session, published, requests }
    }

    fn report(&mut self, kinds: Vec<Kind>) {
        let events = kinds.into_iter().map(|kind| v1::Event { kind: Some(kind) });
        let room = Arc::new(Semaphore::new(2));
        let permit = || Arc::clone(&room).try_acquire_owned().unwrap();
        self.session.handle(Input::Report {
            attachment: 1,
            report: v1::Report {
                sent_unix_ns: NOW.get().0,
                events: events.collect(),
                ..v1::Report::default()
            },
            at: NOW.get(),
            _room: [permit(), permit()],
        });
    }
}

/// Diagnoses what a node observed.
fn diagnose(Evidence { reports, behind }: Evidence, limits: Limits) -> Diagnosis {
    let Some(Kind::Hello(hello)) = reports[0].1.first().cloned() else {
        panic!("no hello");
    };
    NOW.set(reports[0].0);
    let mut it = Attached::new(v1::Hello { digest_above: Some(limits.above), ..hello });
    let mut node = Node::new(limits.most, limits.kept);
    let (mut received, mut codes) = (0, BTreeSet::new());
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
                let is_record = |it: &&Kind| matches!(it, Kind::Record(_));
                received += kinds.iter().filter(is_record).count();
                if !kinds.is_empty() {
                    it.report(kinds);
                }
                it.session.advance_time();
                it.session.conclude(false);
                let published = it.published.borrow();
                let findings = published.report.iter().flat_map(|it| &it.findings);
                codes.extend(findings.map(|it| it.code.clone()));
                let mut is_asked = false;
                while let Ok(request) = it.requests.try_recv() {
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
    Diagnosis { report: it.session.engine.report(), codes, received }
}

fn recordings() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/recordings");
    let families = fs::read_dir(root).unwrap().map(|it| it.unwrap().path());
    let paths = families.filter(|it| it.is_dir()).flat_map(|family| {
        let files = fs::read_dir(family).unwrap();
        files.map(|it| it.unwrap().path())
    });
    // Some programs are kept beside their recordings.
    let mut files: Vec<PathBuf> =
        paths.filter(|it| it.extension().is_some_and(|it| it == "gz")).collect();
    files.sort();
    files
}

/// What must not depend on how the evidence arrived.
fn essence(report: &Report) -> Vec<String> {
    let essence = |it: &Finding| {
        let lines: Vec<String> =
            it.per_rank.iter().map(|call| format!("{}: {:?}", call.rank, call.place)).collect();
        let cause = it.cause.map(|cause| (cause.kind, cause.confidence));
        format!(
            "{} {:?} {:?} {:?} {:?} {cause:?} {lines:?}",
            it.code, it.role, it.confidence, it.ranks.root, it.ranks.root_confidence
        )
    };
    report.findings.iter().map(essence).collect()
}

/// Ranks that skip an iteration are found by their history, and so is the cause that one rank alone was at an earlier
/// line: it ends where records are left out.
const NEED_ALL_RECORDS: [&str; 3] = [
    "fsdp_evaluated_by_one_rank.faulty",
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
        let records = diagnose(recorded(path), ALL);
        let limits = Limits { above: 0, most, ..ALL };
        let digests = diagnose(recorded(path), limits);
        all += records.received;
        sent += digests.received;
        let (expected, found) = (essence(&records.report), essence(&digests.report));
        let is_exception = exceptions.iter().any(|it| path.to_str().unwrap().contains(it));
        if expected != found && !is_exception {
            wrong.push(format!("{}\n  {expected:#?}\n  {found:#?}", path.display()));
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
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

/// Executions of random programs without a finding, of which a pull leaves out a message, all calls of a thread, or
/// the end of a wait.
#[test]
fn records_that_are_left_out_accuse_nobody() {
    for name in ["message", "thread", "wait"] {
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../tests/executions/{name}.gz"));
        let scratch = tempfile::tempdir().unwrap();
        let journal = scratch.path().join("journal");
        let mut file = File::create(&journal).unwrap();
        io::copy(&mut GzDecoder::new(File::open(path).unwrap()), &mut file).unwrap();
        let limits = Limits { above: 0, most: FEW, ..ALL };
        let records = diagnose(executed(&journal), ALL);
        let digests = diagnose(executed(&journal), limits);
        assert!(digests.received < records.received, "{name}: all were sent");
        // In one of them, others wait for a process that is stopped.
        let known = essence(&records.report);
        let expected: &[&str] = if name == "wait" { &["DD203"] } else { &[] };
        let codes = known.iter().filter_map(|it| it.split(' ').next());
        assert!(codes.eq(expected.iter().copied()), "{name}: {known:?}");
        let found = essence(&digests.report);
        assert!(found.is_empty() || found == known, "{name}: {found:?}");
    }
}

/// `make oracle-digests`: the journals of random programs in the folder `ORACLE_JOURNALS`, most of which hang.
#[test]
#[ignore = "needs a folder: make oracle-digests"]
fn digests_of_random_programs_give_the_findings_of_records() {
    let folder = std::env::var("ORACLE_JOURNALS").unwrap();
    let (mut programs, mut findings, mut wrong) = (0, 0, Vec::new());
    let (mut all, mut sent, mut few) = (0, 0, 0);
    for program in fs::read_dir(folder).unwrap() {
        let path = program.unwrap().path().join("node-0.ddpj");
        let limits = |most| Limits { above: 0, most, ..ALL };
        let records = diagnose(executed(&path), ALL);
        let digests = diagnose(executed(&path), limits(UNLIMITED));
        let short = diagnose(executed(&path), limits(FEW));
        all += records.received;
        sent += short.received;
        let (expected, found) = (essence(&records.report), essence(&digests.report));
        programs += 1;
        findings += expected.len();
        few += short.report.findings.len();
        if expected != found {
            wrong.push(format!("{}\n  {expected:#?}\n  {found:#?}", path.display()));
        }
        if proves_more(&short.report, &records.report) {
            let found = essence(&short.report);
            wrong.push(format!("{}, {FEW} records\n  {expected:#?}\n  {found:#?}", path.display()));
        }
    }
    println!("{programs} programs, {findings} findings; {few} findings in {sent} of {all} records");
    let differ = wrong.len();
    assert!(wrong.is_empty(), "{differ} differ:\n{}", wrong.join("\n"));
}

/// Whether a few records prove anything of a job in which all records show nothing. That a process is stopped is
/// known from the operating system.
fn proves_more(few: &Report, all: &Report) -> bool {
    let is_news = |it: &Finding| it.certificate.is_some() && it.code != "DD203";
    all.findings.is_empty() && few.findings.iter().any(is_news)
}

#[test]
fn engine_pauses_after_an_evaluation() {
    thread_local! {
        static READINGS: Cell<u32> = const { Cell::new(0) };
    }
    // An evaluation takes 20 ms: its start and its end are two readings.
    let monotonic = || {
        READINGS.set(READINGS.get() + 1);
        *STARTED + Duration::from_millis(20) * READINGS.get()
    };
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/recordings/process/killed.faulty.gz");
    let Evidence { reports, .. } = recorded(&path);
    let mut reports = reports.into_iter();
    let (at, first) = reports.next().unwrap();
    NOW.set(at);
    let mut it = Attached::new(v1::Hello::default());
    it.session.monotonic = monotonic;
    it.report(first);
    it.session.look();
    for (at, mut kinds) in reports {
        NOW.set(at);
        // The end of a job is examined at once.
        kinds.retain(|kind| !matches!(kind, Kind::JobEnded(_)));
        it.report(kinds);
    }
    let looks = (0..4).map(|_| it.session.look());
    assert_eq!(looks.collect::<Vec<_>>(), [false, false, true, false]);
}
