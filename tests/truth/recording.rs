//! Recordings of live runs: the journal of a run, from which the engine reproduces its report.
//!
//! `tests/recordings/FAMILY/PROGRAM[.SCENARIO].VARIANT[.nccl].gz` is gzip of one line of JSON ([`Meta`])
//! and the journal; those with `.nccl` are of runs over NCCL on a GPU. `tests/recordings/layout.txt` lists the fields of the recorded messages and the
//! version of the black box. A recording is stale if its program has changed; all are stale if a
//! listed field has changed or was removed. `FAMILY/PROGRAM.nccl.py` is the program of recordings over NCCL that
//! has changed since: without a GPU it cannot be recorded again.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use ddp_doctor::evidence::journal;
use ddp_doctor::postmortem::{self, Progress};
use ddp_doctor::report::json::Assembler;
use ddp_doctor::report::text::{self, Style};
use ddp_doctor_proto::blackbox::LAYOUT_VERSION;
use ddp_doctor_proto::report::{Confidence, Finding, Job};
use ddp_doctor_proto::v1::{self, event::Kind};
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use protox::prost::Message;
use protox::prost_reflect::{
    DescriptorPool, DynamicMessage, FieldDescriptor, MessageDescriptor, Value,
};
use serde::{Deserialize, Serialize};

use crate::check::Outcome;
use crate::program::{Backend, Case, Program};
use crate::reread::reread;
use crate::support::pytorch_jobs::jobs;

const JOURNAL: &str = "journal.ddpj";
/// Name of the message in a frame of the journal.
const FRAME: &str = "ddpdoctor.v1.Report";

/// Header of a recording.
#[derive(Debug, Serialize, Deserialize)]
struct Meta {
    /// The [`fingerprint`] of the program.
    program: u32,
    /// Exit status of `ddp-doctor run`; `None` if the run was ended from outside.
    status: Option<i32>,
    /// Versions of the software that was run.
    versions: String,
    /// Number of lines of the table at the program's head; `None`: as many as now without second truths.
    #[serde(default)]
    head: Option<usize>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recordings")
}

fn path(case: &Case) -> PathBuf {
    let scenario = case.scenario.iter().map(String::as_str);
    let words: Vec<&str> = [case.program.name.as_str()]
        .into_iter()
        .chain(scenario)
        .chain([case.variant.name()])
        .chain((case.backend == Backend::Nccl).then_some("nccl"))
        .chain(["gz"])
        .collect();
    root().join(&case.program.family).join(words.join("."))
}

/// The program of which a case was recorded over NCCL, if it was kept.
fn kept_program(case: &Case) -> PathBuf {
    root().join(&case.program.family).join(format!("{}.nccl.py", case.program.name))
}

/// The case as it was recorded: with the program that was kept, if there is one.
pub(crate) fn as_recorded(case: Case) -> Case {
    let kept = Program::read(kept_program(&case)).filter(|_| case.backend == Backend::Nccl);
    let Some(kept) = kept else {
        return case;
    };
    let id = case.to_string();
    let cases = kept.in_place_of(&case.program).cases();
    cases.into_iter().find(|it| it.to_string() == id).unwrap_or(case)
}

/// Whether a case is tested: every one over its own backend, and those over NCCL that have a recording or a second
/// truth.
pub(crate) fn is_tested(case: &Case) -> bool {
    case.backend == Backend::Own || case.has_second_truth || path(case).exists()
}

/// Keys of a truth that do not affect a run: what selects live runs, and the words that are expected.
const NOT_OF_A_RUN: [&str; 4] = ["quick", "says", "why", "headline"];

/// CRC-32 of the program, without second truths and lines of the truth that do not affect a run, and of the modules of
/// `tests/jobs/support` that it names.
fn fingerprint(case: &Case) -> u32 {
    let text = &case.program.text;
    let head = case.program.head_lines();
    let mut hasher = crc32fast::Hasher::new();
    let affects_a_run = |index: &usize, line: &str| {
        let key = line.trim_start_matches(['#', '*', ' ']).split(" = ").next();
        !head.contains(index) || key.is_none_or(|key| !NOT_OF_A_RUN.contains(&key))
    };
    let lines = text.split_inclusive('\n').zip(case.program.second_truths()).enumerate();
    for (_, (line, _)) in
        lines.filter(|(index, (line, is_second))| affects_a_run(index, line) && !is_second)
    {
        hasher.update(line.as_bytes());
    }
    for entry in fs::read_dir(jobs().join("support")).unwrap() {
        let path = entry.unwrap().path();
        let module = path.file_stem().unwrap().to_str().unwrap();
        if text.contains(&format!("support.{module} ")) {
            hasher.update(&fs::read(&path).unwrap());
        }
    }
    hasher.finalize()
}

/// Reason why the recording of a case cannot be used; `None` if it is valid.
pub(crate) fn staleness(case: &Case) -> Option<String> {
    let Ok(file) = fs::File::open(path(case)) else {
        return Some("there is no recording".into());
    };
    let (meta, _) = read(file);
    if meta.program != fingerprint(case) {
        return Some("the recording is stale: its program has changed".into());
    }
    let field = changed_layout().first()?;
    Some(format!("the recording is stale: the record layout has changed: {field}"))
}

fn read(file: fs::File) -> (Meta, Vec<u8>) {
    let mut bytes = Vec::new();
    GzDecoder::new(file).read_to_end(&mut bytes).unwrap();
    let end = bytes.iter().position(|&byte| byte == b'\n').unwrap();
    let journal = bytes.split_off(end + 1);
    (serde_json::from_slice(&bytes).unwrap(), journal)
}

/// Number of lines that the head of a program has more than it had when the recording was made.
fn added_lines(case: &Case, meta: &Meta) -> u32 {
    let program = &case.program;
    let second = program.second_truths().into_iter().filter(|it| *it).count();
    let now = program.head_lines().len();
    (now - meta.head.unwrap_or(now - second)).try_into().unwrap()
}

/// A recording, diagnosed again.
pub(crate) struct Replay {
    pub(crate) outcome: Outcome,
    /// The findings that were shown first, if there were any at any time, without suspicions that the truth
    /// allows.
    pub(crate) first_shown: Vec<Finding>,
}

/// Diagnoses the recording of a case again.
pub(crate) fn diagnose(case: &Case) -> Replay {
    if let Some(why) = staleness(case) {
        panic!("{case}: {why}; run `make recordings`");
    }
    let (meta, bytes) = read(fs::File::open(path(case)).unwrap());
    let added_lines = added_lines(case, &meta);
    let scratch = tempfile::tempdir().unwrap();
    fs::write(scratch.path().join(JOURNAL), bytes).unwrap();
    // A program that was kept in place of a changed one did not run as the variant that is at hand.
    if !kept_program(case).exists() {
        reread(case, added_lines, &scratch.path().join(JOURNAL));
    }
    let mut remarks = Vec::new();
    let paths = [scratch.path().to_owned()];
    let recorded = postmortem::record(&paths, &mut remarks, &Progress::default()).unwrap();
    assert_eq!(remarks, [], "{case}");
    let mut shown = Assembler::new(Job::default());
    let may_suspect = case.is_silent() && case.truth.may_suspect;
    let mut findings = recorded.updates.into_iter().map(|update| {
        shown.apply(update);
        let is_allowed = |it: &&Finding| may_suspect && it.confidence == Confidence::Suspected;
        shown.findings().iter().filter(|it| !is_allowed(it)).cloned().collect::<Vec<_>>()
    });
    let first_shown = findings.find(|it| !it.is_empty()).unwrap_or_default();
    let mut said = Vec::new();
    text::report(&mut said, &recorded.report, Style::default(), false, &Default::default())
        .unwrap();
    let text = String::from_utf8(said).unwrap();
    let outcome = Outcome { report: recorded.report, status: meta.status, text, added_lines };
    Replay { outcome, first_shown }
}

/// Diagnoses the recording of a case again. If nothing may be found, there must be no finding at any time.
pub(crate) fn replay(case: &Case) -> Outcome {
    let Replay { outcome, first_shown } = diagnose(case);
    if case.is_silent() {
        assert!(first_shown.is_empty(), "{case}: {first_shown:#?}");
    }
    outcome
}

/// The records in the recording of a case.
pub(crate) fn records(case: &Case) -> Vec<v1::Record> {
    let (_, journal) = read(fs::File::open(path(case)).unwrap());
    let events = reports(&journal).into_iter().flat_map(|it| it.events);
    let kinds = events.filter_map(|event| event.kind);
    let records = kinds.filter_map(|kind| match kind {
        Kind::Record(record) => Some(record),
        _ => None,
    });
    records.collect()
}

/// All frames of a journal.
fn reports(bytes: &[u8]) -> Vec<v1::Report> {
    let scratch = tempfile::tempdir().unwrap();
    let copy = scratch.path().join(JOURNAL);
    fs::write(&copy, bytes).unwrap();
    let mut journal = journal::Reader::open(&copy).unwrap();
    let mut reports = Vec::new();
    while let Some(report) = journal.read().unwrap() {
        reports.push(report);
    }
    reports
}

/// Stores a run directory as the recording of a case. `hidden` has texts specific to this machine,
/// such as paths, and their replacements in the recording.
pub(crate) fn keep(
    case: &Case,
    run_dir: &Path,
    status: Option<i32>,
    versions: &str,
    hidden: &[(String, &str)],
) {
    let scratch = tempfile::tempdir().unwrap();
    let copy = scratch.path().join(JOURNAL);
    let frame = frame();
    let mut from = journal::Reader::open(&run_dir.join(JOURNAL)).unwrap();
    let mut to = journal::Writer::create(&copy).unwrap();
    while let Some(report) = from.read().unwrap() {
        let bytes = report.encode_to_vec();
        let mut report = DynamicMessage::decode(frame.clone(), bytes.as_slice()).unwrap();
        hide(&mut report, hidden);
        to.append(&report.transcode_to().unwrap()).unwrap();
    }
    let head = Some(case.program.head_lines().len());
    let meta = Meta { program: fingerprint(case), status, versions: versions.into(), head };
    let mut bytes = serde_json::to_vec(&meta).unwrap();
    bytes.push(b'\n');
    bytes.extend(fs::read(&copy).unwrap());
    let path = path(case);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let mut file = GzEncoder::new(fs::File::create(path).unwrap(), Compression::best());
    file.write_all(&bytes).unwrap();
    file.finish().unwrap();
    if case.backend == Backend::Nccl {
        // The recording is of the present program.
        drop(fs::remove_file(kept_program(case)));
    }
}

/// Replaces texts in all strings of a message.
fn hide(message: &mut DynamicMessage, hidden: &[(String, &str)]) {
    for (_, value) in message.fields_mut() {
        hide_value(value, hidden);
    }
}

fn hide_value(value: &mut Value, hidden: &[(String, &str)]) {
    match value {
        Value::String(text) => {
            for (secret, instead) in hidden {
                *text = text.replace(secret, instead);
            }
        }
        Value::Message(message) => hide(message, hidden),
        Value::List(values) => values.iter_mut().for_each(|it| hide_value(it, hidden)),
        Value::Map(values) => values.values_mut().for_each(|it| hide_value(it, hidden)),
        _ => {}
    }
}

/// Recordings that belong to none of these cases.
pub(crate) fn orphans(cases: &[Case]) -> Vec<PathBuf> {
    let known: BTreeSet<PathBuf> =
        cases.iter().flat_map(|case| [path(case), kept_program(case)]).collect();
    let mut found = Vec::new();
    for family in fs::read_dir(root()).into_iter().flatten() {
        for file in fs::read_dir(family.unwrap().path()).into_iter().flatten() {
            found.push(file.unwrap().path());
        }
    }
    found.retain(|path| !known.contains(path));
    found
}

// --- The layout of records -----------------------------------------------------------------------

fn schema() -> DescriptorPool {
    let proto = Path::new(env!("CARGO_MANIFEST_DIR")).join("proto");
    let mut compiler = protox::Compiler::new([proto]).unwrap();
    compiler.open_file("ddpdoctor/v1/agent.proto").unwrap();
    compiler.descriptor_pool()
}

fn frame() -> MessageDescriptor {
    schema().get_message_by_name(FRAME).unwrap()
}

/// The line of a version of the black box.
fn black_box(version: u64) -> String {
    format!("black box {version}")
}

/// Number, name and type of a field, as one line.
fn describe(field: &FieldDescriptor) -> String {
    let (message, name) = (field.parent_message(), field.name());
    let (cardinality, kind) = (field.cardinality(), field.kind());
    format!("{}.{name} = {} {cardinality:?} {kind:?}", message.name(), field.number())
}

/// All fields that a journal may have, and the versions of the black box that can be read.
fn layout() -> BTreeSet<String> {
    let mut lines: BTreeSet<String> = (1..=LAYOUT_VERSION).map(black_box).collect();
    let mut open = vec![frame()];
    while let Some(message) = open.pop() {
        for field in message.fields() {
            if lines.insert(describe(&field)) {
                open.extend(field.kind().as_message().cloned());
            }
        }
    }
    lines
}

fn recorded_layout() -> BTreeSet<String> {
    let text = fs::read_to_string(root().join("layout.txt")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// Fields of the recordings that have changed or were removed.
fn changed_layout() -> &'static [String] {
    static CHANGED: OnceLock<Vec<String>> = OnceLock::new();
    CHANGED.get_or_init(|| recorded_layout().difference(&layout()).cloned().collect())
}

/// Writes the fields of the recordings of these cases to `layout.txt`.
pub(crate) fn keep_layout(cases: &[Case]) {
    let frame = frame();
    let mut lines = BTreeSet::from([black_box(LAYOUT_VERSION)]);
    for case in cases {
        let Ok(file) = fs::File::open(path(case)) else {
            continue;
        };
        for report in reports(&read(file).1) {
            let bytes = report.encode_to_vec();
            let report = DynamicMessage::decode(frame.clone(), bytes.as_slice()).unwrap();
            list_fields(&report, &mut lines);
        }
    }
    let lines: Vec<String> = lines.into_iter().collect();
    fs::write(root().join("layout.txt"), lines.join("\n") + "\n").unwrap();
}

fn list_fields(message: &DynamicMessage, lines: &mut BTreeSet<String>) {
    for (field, value) in message.fields() {
        lines.insert(describe(&field));
        match value {
            Value::Message(message) => list_fields(message, lines),
            Value::List(values) => {
                let messages = values.iter().filter_map(Value::as_message);
                messages.for_each(|message| list_fields(message, lines));
            }
            _ => {}
        }
    }
}
