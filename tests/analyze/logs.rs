//! `analyze` on plain logs and stacks as text.
//!
//! `tests/fixtures/logs` has excerpts in the structure of real logs, with other names and numbers.
//! The truth of each is in a file beside it: the facts that follow from the excerpt, and one line about
//! the outcome of the incident.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use ddp_doctor::postmortem::{self, Progress};
use ddp_doctor_proto::report::{CallState, Confidence, Finding, Report, Role, Severity};
use flate2::Compression;
use flate2::write::GzEncoder;
use serde::Deserialize;

use crate::support::dumps::{Entry, dump};
use crate::support::process::program;

/// The truth of an excerpt.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Truth {
    /// Outcome of the incident, for readers.
    incident: String,
    verdict: String,
    /// Codes that must be found, the leading one first; empty: there is no finding.
    codes: Vec<String>,
    /// Root of the leading finding if it is at least supported …
    #[serde(default)]
    root: Vec<u32>,
    /// … or if it is suspected.
    #[serde(default)]
    suspects: Vec<u32>,
    /// Ranks that wait for them.
    victims: Option<Vec<u32>>,
    /// Call of the leading finding.
    op: Option<String>,
    seq: Option<u64>,
    /// A line of the leading finding: "train.py:9".
    line: Option<String>,
    /// Ranks that the report has, at most.
    ranks: Option<Vec<u32>>,
    /// Number of nodes; 0: unknown.
    nodes: Option<u32>,
    /// The longest wait of the leading finding; 0: unknown.
    waited_ms: Option<u64>,
    /// Members of the group of the leading finding; empty: unknown.
    members: Option<Vec<u32>>,
    /// The first time that the text states.
    began: Option<String>,
    /// A part of the summary of the leading finding.
    summary: Option<String>,
    /// A part of a sentence of some finding.
    says: Option<String>,
    /// Ranks that are shown as returned from a call.
    returned: Option<Vec<u32>>,
    /// A part that no sentence of a finding has.
    omits: Option<String>,
}

impl Truth {
    /// The truth of an excerpt.
    pub(super) fn read(path: &Path) -> Self {
        let truth = fs::read_to_string(path.with_extension("toml")).unwrap();
        toml::from_str(&truth).unwrap()
    }
}

/// All excerpts of one file.
pub(super) fn excerpts() -> Vec<PathBuf> {
    let mut paths = all();
    paths.retain(|path| path.is_file());
    paths
}

/// All excerpts: files, and folders with the files of one job.
fn all() -> Vec<PathBuf> {
    let entries = fs::read_dir(folder()).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let is_excerpt =
        |path: &PathBuf| path.is_dir() || path.extension().is_some_and(|it| it == "log");
    let mut paths: Vec<PathBuf> = paths.filter(is_excerpt).collect();
    paths.sort();
    paths
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/logs")
}

/// The only report about a log.
pub(super) fn report_of(path: &Path) -> Result<Report, String> {
    let mut analysis = postmortem::analyze(&[path.to_owned()]);
    match (analysis.reports.pop(), analysis.reports.len()) {
        (Some(report), 0) => Ok(report),
        (_, others) => Err(format!("{} reports: {:?}", others, analysis.remarks)),
    }
}

pub(super) fn check(report: &Report, truth: &Truth) -> Result<(), String> {
    let same = |what: &str, found: String, wanted: String| {
        if found == wanted { Ok(()) } else { Err(format!("{what} is {found}, not {wanted}")) }
    };
    same("verdict", report.verdict.to_string(), truth.verdict.clone())?;
    let codes: BTreeSet<&str> = report.findings.iter().map(|it| &*it.code).collect();
    let first = report.findings.first().map(|it| &it.code);
    same("code", format!("{first:?}"), format!("{:?}", truth.codes.first()))?;
    let Some(leading) = report.findings.first() else {
        return Ok(());
    };
    if let Some(missing) = truth.codes.iter().find(|it| !codes.contains(&***it)) {
        return Err(format!("{missing} is missing"));
    }
    let is_gap = leading.code.starts_with("DD9");
    let is_supported = leading.ranks.root_confidence >= Confidence::Supported && !is_gap;
    let (root, suspects) = match (is_gap, is_supported) {
        (true, _) => (Vec::new(), Vec::new()),
        (false, true) => (leading.ranks.root.clone(), Vec::new()),
        (false, false) => (Vec::new(), leading.ranks.root.clone()),
    };
    same("root", format!("{root:?}"), format!("{:?}", truth.root))?;
    same("suspects", format!("{suspects:?}"), format!("{:?}", truth.suspects))?;
    if let Some(victims) = &truth.victims {
        same("victims", format!("{:?}", leading.ranks.victims), format!("{victims:?}"))?;
    }
    if let Some(op) = &truth.op {
        same("op", format!("{:?}", leading.op), format!("{:?}", Some(op)))?;
    }
    if let Some(seq) = truth.seq {
        same("seq", format!("{:?}", leading.seq), format!("{:?}", Some(seq)))?;
    }
    let lines: Vec<String> = leading
        .per_rank
        .iter()
        .filter_map(|it| it.place.as_ref())
        .map(|it| format!("{}:{}", it.file.rsplit('/').next().unwrap_or_default(), it.line))
        .collect();
    if let Some(line) = truth.line.as_ref().filter(|it| !lines.contains(it)) {
        return Err(format!("{line} is not among the lines {lines:?}"));
    }
    if let Some(known) = &truth.ranks {
        let ranks: Vec<u32> = report.ranks.iter().map(|it| it.rank).collect();
        same("ranks", format!("{ranks:?}"), format!("{known:?}"))?;
    }
    if let Some(began) = &truth.began {
        let known = report.job.started_at.map(|at| at.to_string());
        same("begin", format!("{known:?}"), format!("{:?}", Some(began)))?;
    }
    if let Some(nodes) = truth.nodes {
        same("nodes", report.job.nodes.to_string(), nodes.to_string())?;
    }
    if let Some(waited) = truth.waited_ms {
        let longest =
            leading.per_rank.iter().filter_map(|it| it.waited_ms).max().unwrap_or_default();
        same("wait", longest.to_string(), waited.to_string())?;
    }
    if let Some(members) = &truth.members {
        let group = leading.group.as_ref().ok_or("no group")?;
        same("members", format!("{:?}", group.ranks), format!("{members:?}"))?;
    }
    if let Some(returned) = &truth.returned {
        let rows = leading.per_rank.iter().filter(|it| it.state == CallState::Returned);
        let ranks: Vec<u32> = rows.map(|it| it.rank).collect();
        same("returned ranks", format!("{ranks:?}"), format!("{returned:?}"))?;
    }
    check_sentences(report, truth)?;
    makes_no_further_claims(report, truth)
}

fn check_sentences(report: &Report, truth: &Truth) -> Result<(), String> {
    let texts: Vec<&str> = report.findings.iter().flat_map(sentences).collect();
    let contains = |words: &str| texts.iter().any(|text| text.contains(words));
    let has = |summary: &str| report.findings[0].summary.contains(summary);
    match truth {
        Truth { summary: Some(words), .. } if !has(words) => {
            Err(format!("the summary does not contain {words:?}"))
        }
        Truth { says: Some(words), .. } if !contains(words) => {
            Err(format!("no sentence contains {words:?}"))
        }
        Truth { omits: Some(words), .. } if contains(words) => {
            Err(format!("a sentence contains {words:?}"))
        }
        _ => Ok(()),
    }
}

fn sentences(finding: &Finding) -> Vec<&str> {
    let others = finding.why.iter().chain(&finding.next).map(String::as_str);
    std::iter::once(&*finding.summary).chain(others).collect()
}

/// Text is not proof, and no other rank is a culprit.
fn makes_no_further_claims(report: &Report, truth: &Truth) -> Result<(), String> {
    for finding in &report.findings {
        if finding.confidence == Confidence::Proved || finding.certificate.is_some() {
            return Err(format!("{} is proved", finding.code));
        }
        if finding.code.starts_with("DD9") {
            continue;
        }
        let is_new = |rank: &u32| !truth.root.contains(rank) && !truth.suspects.contains(rank);
        let is_sure = finding.ranks.root_confidence >= Confidence::Supported;
        let initiates = finding.role == Role::Initiating;
        if let Some(rank) = finding.ranks.root.iter().find(|it| is_sure && initiates && is_new(it))
        {
            return Err(format!("{} names rank {rank} as a culprit", finding.code));
        }
    }
    Ok(())
}

#[test]
fn excerpts_of_real_logs_lead_to_their_truths() {
    let only = std::env::var("LOG").ok();
    let names = all();
    assert!(names.len() >= 15, "{names:?}");
    let mut failures = Vec::new();
    for path in names {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        if only.as_ref().is_some_and(|it| *it != name) {
            continue;
        }
        let truth = Truth::read(&path);
        assert!(truth.incident.ends_with('.'), "{name}");
        let report = report_of(&path);
        let result = report.as_ref().map_err(Clone::clone).and_then(|it| check(it, &truth));
        if let Err(failure) = result {
            let shown = report.map(|it| {
                let findings = it.findings.iter().map(|it| {
                    format!(
                        "{} {:?} {:?} {:?} {}",
                        it.code, it.role, it.ranks.root, it.ranks.root_confidence, it.summary
                    )
                });
                findings.collect::<Vec<_>>().join("\n    ")
            });
            failures.push(format!("{name}: {failure}\n    {}", shown.unwrap_or_default()));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

/// Findings at the level of errors that have no root of their own, beside the first one.
fn further_errors(report: &Report) -> Vec<&str> {
    let is_loud = |it: &&Finding| it.severity >= Severity::Error && it.role == Role::Initiating;
    let loud: Vec<&Finding> = report.findings.iter().filter(is_loud).collect();
    let is_distinct = |index: usize| {
        let own = &loud[index].ranks.root;
        let mut others = loud[..index].iter();
        !own.is_empty() && others.all(|it| it.ranks.root.iter().all(|rank| !own.contains(rank)))
    };
    let further = (1..loud.len()).filter(|&index| !is_distinct(index));
    further.map(|index| &*loud[index].summary).collect()
}

#[test]
fn one_error_is_loud_in_a_report() {
    for path in excerpts() {
        let report = report_of(&path).unwrap_or_else(|it| panic!("{}: {it}", path.display()));
        let further = further_errors(&report);
        assert!(further.is_empty(), "{}: {further:?}", path.display());
        // That the end of a rank is unknown is not as useful as anything else.
        let ends = |it: &&Finding| it.summary.starts_with("it is unknown how ");
        let loud = report.findings.iter().filter(ends).find(|it| it.severity >= Severity::Error);
        assert!(loud.is_none() || report.findings.len() == 1, "{}", path.display());
    }
}

#[test]
fn playback_of_a_log_proves_nothing() {
    let path = folder().join("killed_rank_of_torchrun.log");
    let updates =
        postmortem::record(&[path], &mut Vec::new(), &Progress::default()).unwrap().updates;
    let findings: Vec<_> = updates.into_iter().filter_map(|it| it.findings).flatten().collect();
    assert!(findings.iter().any(|it| it.code == "DD201"));
    for finding in findings.iter().filter(|it| !it.code.starts_with("DD9")) {
        assert_ne!(finding.confidence, Confidence::Proved);
        assert_eq!(finding.certificate, None);
    }
}

// --- Damaged and large files ---------------------------------------------------------------------

/// The excerpt of which damaged copies are made.
fn excerpt() -> Vec<u8> {
    fs::read(folder().join("rank_that_never_enqueued.log")).unwrap()
}

/// Code of the leading finding and its root, for a file with these bytes.
fn leading(bytes: &[u8]) -> (String, Vec<u32>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("job.out");
    fs::write(&path, bytes).unwrap();
    let report = report_of(&path).unwrap();
    let finding = &report.findings[0];
    (finding.code.clone(), finding.ranks.root.clone())
}

fn compressed(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn damaged_log_is_read_as_far_as_it_goes() {
    let missing = ("DD101".to_owned(), vec![2]);
    let text = excerpt();
    assert_eq!(leading(&compressed(&text)), missing);
    // Most of the members of the excerpt are in its first part.
    let cut = compressed(&[text.clone(), text.clone()].concat());
    assert_eq!(leading(&cut[..cut.len() - 40]), missing);
    let lines = String::from_utf8(text.clone()).unwrap();
    let colored = lines.replace('\n', "\x1b[0m\r\n\x1b[31m");
    assert_eq!(leading(colored.as_bytes()), missing);
    let mut dirty = text.clone();
    dirty.extend([b"\xff\xfe caf\xe9\n".as_slice(), &[b'x'; 1 << 20], b"\n[rank"].concat());
    assert_eq!(leading(&dirty), missing);
    let structured = b"{\"level\": \"info\", \"config\": {\"lr\": 0.1}}\n";
    assert_eq!(leading(&[&structured[..], &text].concat()), missing);
    let unfinished = &text[..text.len() - 100];
    assert_eq!(leading(unfinished), missing);
}

#[test]
fn large_log_is_read_to_its_end() {
    let mut text = Vec::new();
    for step in 0..100_000 {
        writeln!(text, "[rank{}]: step {step} loss 2.31 lr 9.1e-06", step % 4).unwrap();
    }
    text.extend(excerpt());
    assert_eq!(leading(&text), ("DD101".to_owned(), vec![2]));
}

#[test]
fn file_without_evidence_is_named_with_what_was_expected() {
    let dir = tempfile::tempdir().unwrap();
    let mut state = 7_u32;
    let noise: Vec<u8> = std::iter::repeat_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    })
    .take(100_000)
    .collect();
    for (name, bytes) in [
        ("noise.bin", noise.clone()),
        ("noise.gz", compressed(&noise)),
        ("broken.gz", vec![0x1f, 0x8b, 8, 0, 1]),
        ("notes.txt", b"step 1\nstep 2\nall is well\n".to_vec()),
    ] {
        fs::write(dir.path().join(name), bytes).unwrap();
        let output = program(dir.path()).args(["analyze", name]).output().unwrap();
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(3), "{name}: {message}");
        // Compressed bytes may also be a dump.
        let expected = ["logs of a job", "Flight Recorder dump"];
        let names_it = expected.iter().any(|it| message.contains(it));
        assert!(message.contains(name) && names_it, "{message}");
    }
}

#[test]
fn log_of_a_job_that_ended_well_is_healthy() {
    let dir = tempfile::tempdir().unwrap();
    let log = include_bytes!("../fixtures/job_that_ended_well.log");
    fs::write(dir.path().join("train.log"), log).unwrap();
    for path in ["train.log", "."] {
        let output = program(dir.path()).args(["analyze", path]).output().unwrap();
        let (out, message) = (String::from_utf8(output.stdout), String::from_utf8(output.stderr));
        let (out, message) = (out.unwrap(), message.unwrap());
        assert_eq!(output.status.code(), Some(0), "{message}");
        assert!(out.starts_with("healthy: ") && out.contains("no problems found"), "{out}");
        assert!(
            message.contains("this text does not state a failure: its job ended normally"),
            "{message}"
        );
    }
    // A log with a failure decides on the verdict.
    fs::write(dir.path().join("node1.log"), excerpt()).unwrap();
    let output = program(dir.path()).args(["analyze", "."]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn equal_errors_at_two_lines_are_two_findings() {
    let raised = |rank: u32, line: &str| {
        format!(
            "[rank{rank}]: Traceback (most recent call last):\n[rank{rank}]:   File \"/srv/{line}, in <module>\n"
        )
    };
    let error = |rank: u32| format!("[rank{rank}]: OSError: [Errno 116] Stale file handle\n");
    let text = [
        raised(0, "fit.py\", line 19"),
        error(0),
        raised(1, "save.py\", line 7"),
        error(1),
        // Its line is unknown, and may be either.
        error(2),
    ];
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.concat().as_bytes()).unwrap();
    let report = report_of(file.path()).unwrap();
    let roots: Vec<&[u32]> = report.findings.iter().map(|it| &*it.ranks.root).collect();
    assert_eq!(roots, [&[0], &[1], &[2]]);
}

#[test]
fn job_of_files_in_the_current_folder_has_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("job7");
    fs::create_dir(&folder).unwrap();
    let entries = [Entry::new("nccl:all_reduce", "0", 1)];
    for rank in 0..2 {
        fs::write(folder.join(format!("rank{rank}.err")), excerpt()).unwrap();
        let dump = dump(&[("0", "[0, 1]")], &entries).to_string();
        fs::write(folder.join(format!("trace_rank_{rank}")), dump).unwrap();
    }
    for paths in [["rank0.err", "rank1.err"], ["trace_rank_0", "trace_rank_1"]] {
        let output = program(&folder).args(["analyze", "--format", "json"]).args(paths).output();
        let report: Report = serde_json::from_slice(&output.unwrap().stdout).unwrap();
        assert_eq!(report.job.id, "job7", "{paths:?}");
    }
}

#[test]
fn logs_of_ranks_in_one_folder_are_one_job() {
    let dir = tempfile::tempdir().unwrap();
    let text = String::from_utf8(excerpt()).unwrap();
    for rank in 0..4 {
        let label = format!("[rank{rank}]:");
        let init = format!(" rank {rank} nranks ");
        let own: Vec<&str> =
            text.lines().filter(|line| line.starts_with(&label) || line.contains(&init)).collect();
        fs::write(dir.path().join(format!("rank{rank}.err")), own.join("\n")).unwrap();
    }
    let report = report_of(dir.path()).unwrap();
    assert_eq!(report.findings[0].code, "DD101");
    assert_eq!(report.findings[0].ranks.root, [2]);
    assert_eq!(report.findings[0].ranks.victims, [0, 1, 3]);
}

#[test]
fn exception_that_ends_the_file_of_a_rank_is_its_end() {
    let raises = |text: &str| {
        format!(
            "Traceback (most recent call last):\n  File \"/srv/app/rows.py\", line 5, in next\n{text}\n"
        )
    };
    let lost =
        raises("torch.distributed.DistBackendError: NCCL error in: a.cpp:1, remote process exited");
    let own = raises("IndexError: row 9 of 8");
    let report = |others: &str| {
        let dir = tempfile::tempdir().unwrap();
        for (rank, text) in [others, others, &own].into_iter().enumerate() {
            fs::write(dir.path().join(format!("rank_{rank}.txt")), text).unwrap();
        }
        report_of(dir.path()).unwrap()
    };
    let crash = report(&lost);
    assert_eq!(crash.findings[0].code, "DD202");
    assert_eq!(crash.findings[0].ranks.root, [2]);
    // The others did not stop: it may have been caught.
    let unknown = report("step 8\n");
    assert_eq!(unknown.verdict.to_string(), "insufficient");
}

/// The stacks of two ranks: rank 0 waits in a collective, rank 1 does something else.
const OWN_DUMP: &str = r#"{
  "schema": "ddp-doctor/dump", "schema_version": "1.0",
  "tool": {"name": "ddp-doctor", "version": "0.1.0"}, "job": null,
  "taken_at": "2026-01-31T12:00:00.000Z", "missing_ranks": [],
  "groups": [{"processes": [0], "frames": []}],
  "processes": [
    {"rank": 0, "host": "a", "pid": 7, "state": "waiting", "exit": {}, "step": 3, "waiting_in": null,
     "taken_at": "2026-01-31T12:00:00.000Z", "trouble": null, "threads": [
      {"tid": 7, "name": "python", "state": "S", "wait_channel": null, "cpu_ms": 1, "holds_gil": false, "native": [], "python": [
        {"file": "/opt/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", "line": 2810, "function": "all_reduce"},
        {"file": "/job/train.py", "line": 9, "function": "step"},
        {"file": "/job/train.py", "line": 30, "function": "<module>"}]}]},
    {"rank": 1, "host": "a", "pid": 8, "state": "running", "exit": {}, "step": 3, "waiting_in": null,
     "taken_at": "2026-01-31T12:00:00.000Z", "trouble": null, "threads": [
      {"tid": 8, "name": "python", "state": "R", "wait_channel": null, "cpu_ms": 1, "holds_gil": true, "native": [], "python": [
        {"file": "/job/train.py", "line": 22, "function": "evaluate"},
        {"file": "/job/train.py", "line": 31, "function": "<module>"}]}]}]
}"#;

#[test]
fn own_dump_of_stacks_is_analyzed() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("stacks.json"), OWN_DUMP).unwrap();
    let output =
        program(dir.path()).args(["analyze", "stacks.json", "--format", "json"]).output().unwrap();
    let report: Report = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
    let said: Vec<&str> = report.findings.iter().map(|it| it.summary.as_str()).collect();
    let expected =
        "rank 0 was in all_reduce at train.py:9, called at train.py:30; rank 1 was at train.py:22";
    assert!(said.iter().any(|it| it.starts_with(expected)), "{said:#?}");
}
