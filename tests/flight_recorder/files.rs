//! `analyze` on dumps by their names, damage and times.

use std::fs::{self, File};
use std::time::{Duration, UNIX_EPOCH};

use ddp_doctor::postmortem::{self, Analysis};
use ddp_doctor_proto::report::{CallState, Confidence, RankState, Severity, Timestamp, Verdict};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::dumps::{Entry, analyze, analyze_ranks, dump, findings, report};

const WORLD: [(&str, &str); 1] = [("0", "[0, 1, 2]")];
/// When calls of [`Entry`] were made, but for their numbers in milliseconds.
const START: u64 = 1_700_000_000_000_000_000;
pub(super) const SECOND: u64 = 1_000_000_000;

pub(super) fn all_reduce(seq: u64) -> Entry {
    Entry::new("nccl:all_reduce", "0", seq)
}

/// The dump of a rank that is in its last two calls; the first of them timed out.
pub(super) fn waits() -> Value {
    let timed_out = all_reduce(2).open().with("retired", true);
    dump(&WORLD, &[all_reduce(1), timed_out, all_reduce(3).open()])
}

/// The dump of a rank that has made one call.
pub(super) fn behind() -> Value {
    dump(&WORLD, &[all_reduce(1)])
}

pub(super) fn analyze_files(files: &[(&str, &Value)]) -> (TempDir, Analysis) {
    let dir = tempfile::tempdir().unwrap();
    for (name, dump) in files {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, dump.to_string()).unwrap();
    }
    let analysis = postmortem::analyze(&[dir.path().to_owned()]);
    (dir, analysis)
}

pub(super) fn roots(analysis: &Analysis) -> Vec<(String, Vec<u32>)> {
    let found = findings(report(analysis)).into_iter();
    found.map(|(code, _, root)| (code, root)).collect()
}

// --- Names and folders ---------------------------------------------------------------------------

#[test]
fn number_that_is_no_member_is_not_a_rank() {
    for names in [
        ["node100_trace.pickle", "node101_trace.pickle", "node102_trace.pickle"],
        ["job_7/a.pickle", "job_7/b.pickle", "job_7/c.pickle"],
        ["job_1/a.pickle", "job_1/b.pickle", "job_1/c.pickle"],
    ] {
        let (waits, behind) = (waits(), behind());
        let files = [(names[0], &waits), (names[1], &behind), (names[2], &waits)];
        let (_dir, analysis) = analyze_files(&files);
        assert!(analysis.reports.is_empty(), "{:?}", analysis.reports);
        let remarks = analysis.remarks.iter();
        let named = remarks.filter(|it| it.text.contains("end the name with the rank"));
        assert_eq!(named.count(), 3, "{:?}", analysis.remarks);
    }
}

#[test]
fn dumps_in_folders_of_hosts_are_one_job() {
    let (waits, behind) = (waits(), behind());
    let (dir, analysis) = analyze_files(&[
        ("host0/trace_rank_0", &waits),
        ("host0/trace_rank_1", &behind),
        ("host1/trace_rank_2", &waits),
    ]);
    assert_eq!(roots(&analysis), [("DD101".into(), vec![1])]);
    let name = dir.path().file_name().unwrap().to_str().unwrap();
    assert_eq!(report(&analysis).job.id, name);
}

/// Dumps of a job that hangs, and of one that is `done`, by the beginnings of their names.
#[track_caller]
fn assert_are_two_jobs(done: &Value) {
    let (waits, behind) = (waits(), behind());
    let (_dir, analysis) = analyze_files(&[
        ("a_rank_0", &waits),
        ("a_rank_1", &behind),
        ("a_rank_2", &waits),
        ("b_rank_0", done),
        ("b_rank_1", done),
        ("b_rank_2", done),
    ]);
    assert_eq!(analysis.remarks, []);
    let reports = analysis.reports.iter();
    let verdicts: Vec<_> = reports.map(|it| (it.job.id.as_str(), it.verdict)).collect();
    assert_eq!(verdicts, [("a", Verdict::Hang), ("b", Verdict::Healthy)]);
}

#[test]
fn jobs_of_one_folder_are_told_apart_by_name_and_time() {
    let later = |entries: &[Entry]| {
        let entries = entries
            .iter()
            .cloned()
            .zip(1_u64..)
            .map(|(it, at)| it.with("time_created_ns", START + at * 900 * SECOND));
        dump(&WORLD, &entries.collect::<Vec<_>>())
    };
    assert_are_two_jobs(&later(&[all_reduce(1), all_reduce(2)]));
    let (waits, behind) = (waits(), behind());
    // At the same time, they are dumps of one job.
    let (_dir, analysis) = analyze_files(&[
        ("a_rank_0", &waits),
        ("a_rank_1", &behind),
        ("b_rank_1", &behind),
        ("b_rank_2", &waits),
    ]);
    assert_eq!(roots(&analysis), [("DD101".into(), vec![1])]);
    assert!(analysis.remarks[0].text.contains("several dumps of rank 1"));
}

#[test]
fn jobs_at_one_time_are_told_apart_by_their_calls() {
    let later = |seq| all_reduce(seq).with("time_created_ns", START + seq * 1_000_000 + 7);
    assert_are_two_jobs(&dump(&WORLD, &[later(1), later(2)]));
}

#[test]
fn dumps_of_an_earlier_job_are_left_out() {
    let world = [("0", "[0, 1, 2, 3, 4]")];
    let earlier = |groups, hours: u64| {
        let at = START - hours * 3600 * SECOND;
        let entries = (1..=9).map(|seq| all_reduce(seq).with("time_created_ns", at));
        dump(groups, &entries.collect::<Vec<_>>())
    };
    // A job of more ranks.
    let (waits, behind, old) = (waits(), behind(), earlier(&world, 1));
    let (_dir, analysis) = analyze_files(&[
        ("trace_rank_0", &waits),
        ("trace_rank_1", &behind),
        ("trace_rank_2", &waits),
        ("trace_rank_3", &old),
        ("trace_rank_4", &old),
    ]);
    assert_eq!(roots(&analysis), [("DD101".into(), vec![1])]);
    assert_eq!(report(&analysis).job.world_size, Some(3));
    let remarks = analysis.remarks.iter();
    assert_eq!(remarks.filter(|it| it.text.contains("a different job")).count(), 2);
    // A job of as many ranks, of the day before: it came further.
    let old = earlier(&WORLD, 24);
    let (_dir, analysis) = analyze_files(&[
        ("trace_rank_0", &waits),
        ("trace_rank_1", &behind),
        ("trace_rank_2", &old),
    ]);
    assert_eq!(roots(&analysis), [("DD101".into(), vec![1]), ("DD901".into(), vec![2])]);
    assert_eq!(analysis.remarks.len(), 1, "{:?}", analysis.remarks);
}

// --- Missing and damaged dumps -------------------------------------------------------------------

#[test]
fn ranks_without_a_dump_are_one_finding() {
    let world = [("0", "[0, 1, 2, 3, 4, 5]")];
    let waits = dump(&world, &[all_reduce(1), all_reduce(2).open()]);
    let analysis = analyze_ranks(&[(0, waits.clone()), (3, waits)]);
    assert_eq!(roots(&analysis), [("DD901".into(), vec![1, 2, 4, 5])]);
    assert_eq!(report(&analysis).verdict, Verdict::Insufficient);
}

#[test]
fn dump_that_ends_before_its_calls_is_damaged() {
    let (dir, _) = analyze_files(&[("trace_rank_0", &waits()), ("trace_rank_2", &waits())]);
    let text = behind().to_string();
    fs::write(dir.path().join("trace_rank_1"), &text[..20]).unwrap();
    let analysis = postmortem::analyze(&[dir.path().to_owned()]);
    let summary = &report(&analysis).findings[0].summary;
    assert!(
        summary.starts_with("later calls of rank 1 are unknown: the dump cannot be read"),
        "{summary}"
    );
    assert!(!summary.contains("another recorder"), "{summary}");
}

#[test]
fn dumps_without_calls_are_insufficient() {
    let empty = dump(&WORLD, &[]);
    let mut counted = empty.clone();
    counted["pg_status"]["0"] = json!({
        "last_enqueued_collective": 6, "last_started_collective": 6, "last_completed_collective": 5,
    });
    for dump in [empty, counted] {
        let analysis = analyze(&[dump.clone(), dump.clone(), dump]);
        let report = report(&analysis);
        assert_eq!(report.verdict, Verdict::Insufficient);
        assert_eq!(report.findings[0].code, "DD901");
        assert_eq!(report.findings[0].severity, Severity::Error);
        assert_eq!(report.job.started_at, None);
        let mut states = report.ranks.iter().map(|it| it.state);
        assert!(states.all(|it| it == RankState::Unknown), "{report:?}");
    }
}

#[test]
fn rank_that_is_behind_did_not_go_on() {
    let (waits, behind) = (dump(&WORLD, &[all_reduce(1), all_reduce(2).open()]), behind());
    let dir = tempfile::tempdir().unwrap();
    let written = UNIX_EPOCH + Duration::from_nanos(START + SECOND);
    for (rank, dump) in [&waits, &behind, &waits].into_iter().enumerate() {
        let path = dir.path().join(format!("trace_rank_{rank}"));
        fs::write(&path, dump.to_string()).unwrap();
        File::options().write(true).open(&path).unwrap().set_modified(written).unwrap();
    }
    let analysis = postmortem::analyze(&[dir.path().to_owned()]);
    let finding = &report(&analysis).findings[0];
    assert_eq!(finding.code, "DD901");
    let states: Vec<_> = finding
        .per_rank
        .iter()
        .map(|it| (it.rank, it.state))
        .filter(|(rank, _)| *rank == 1)
        .collect();
    assert_eq!(states, [(1, CallState::NotIssued)]);
}

#[test]
fn calls_without_times_are_compared_by_their_numbers() {
    let untimed = |seq| all_reduce(seq).with("time_created_ns", Value::Null);
    let waits = dump(&WORLD, &[untimed(1), untimed(2).open()]);
    let behind = dump(&WORLD, &[untimed(1)]);
    let analysis = analyze(&[waits.clone(), behind, waits]);
    assert_eq!(roots(&analysis), [("DD101".into(), vec![1])]);
    assert_eq!(report(&analysis).job.started_at, None);
    let remarks = analysis.remarks.iter();
    let about_times = remarks.filter(|it| it.text.contains("no usable times"));
    assert_eq!(about_times.count(), 3);
}

#[test]
fn incomplete_call_is_a_wait_without_a_known_duration() {
    let analysis = analyze(&[waits(), behind(), waits()]);
    let report = report(&analysis);
    let states: Vec<RankState> = report.ranks.iter().map(|it| it.state).collect();
    assert_eq!((states[0], states[2]), (RankState::Waiting, RankState::Waiting));
    assert_ne!(states[1], RankState::Waiting);
    let short = dump(&WORLD, &[all_reduce(1), all_reduce(2).open()]);
    let analysis = analyze(&[short.clone(), behind(), short]);
    let finding = &analysis.reports[0].findings[0];
    assert!(finding.per_rank.iter().all(|it| it.waited_ms.is_none()));
    assert_eq!(finding.detected_at, Timestamp(START + 2_000_000));
    assert_eq!(finding.latency_ms, 0);
}

#[test]
fn dump_that_was_cut_off_is_not_older() {
    let done = dump(&WORLD, &[all_reduce(1), all_reduce(2)]);
    let (dir, _) = analyze_files(&[("trace_rank_0", &done), ("trace_rank_1", &done)]);
    let text = dump(&WORLD, &[all_reduce(1), all_reduce(2)]).to_string();
    let end = text.find("\"op_id\":2").unwrap();
    fs::write(dir.path().join("trace_rank_2"), &text[..end]).unwrap();
    let analysis = postmortem::analyze(&[dir.path().to_owned()]);
    let report = report(&analysis);
    assert_eq!(report.verdict, Verdict::Insufficient);
    assert_eq!(report.evidence.ranks_reporting, 3);
    let summary = &report.findings[0].summary;
    assert_eq!(summary, "the dump of rank 2 ends early: later calls are unknown");
}

#[test]
fn calls_that_cannot_be_read_leave_the_verdict_open() {
    let done = dump(&WORLD, &[all_reduce(1), all_reduce(2)]);
    let unnamed = |entry: Entry| entry.with("profiling_name", Value::Null);
    let last = dump(&WORLD, &[all_reduce(1), unnamed(all_reduce(2).open())]);
    let all = dump(&WORLD, &[unnamed(all_reduce(1)), unnamed(all_reduce(2))]);
    for unread in [last, all] {
        let analysis = analyze(&[done.clone(), done.clone(), unread]);
        assert_eq!(roots(&analysis), [("DD902".into(), vec![2])]);
        let report = report(&analysis);
        assert_eq!(report.verdict, Verdict::Insufficient);
        let summary = &report.findings[0].summary;
        assert!(summary.contains("dump of rank 2 cannot be read"), "{summary}");
    }
    let analysis = analyze(&[done.clone(), done.clone(), done]);
    assert_eq!(report(&analysis).verdict, Verdict::Healthy);
}

#[test]
fn incomplete_calls_in_counters_alone_leave_the_verdict_open() {
    let groups = [("0", "[0, 1, 2]"), ("1", "[0, 1, 2]")];
    let with_status = |completed: u64| {
        let mut dump = dump(&groups, &[all_reduce(1)]);
        dump["pg_status"]["1"] = json!({
            "last_enqueued_collective": 6, "last_started_collective": 6,
            "last_completed_collective": completed,
        });
        dump
    };
    let verdict = |completed| {
        let dumps = [6, 6, completed].map(with_status);
        report(&analyze(&dumps)).verdict
    };
    assert_eq!(verdict(5), Verdict::Insufficient);
    assert_eq!(verdict(6), Verdict::Healthy);
}

#[test]
fn rank_behind_a_rank_without_a_dump_is_no_culprit() {
    // Rank 1 is in a call with rank 2, of which nothing is known, and rank 0 waits for rank 1.
    let groups: [&[(&str, &str)]; 2] =
        [&[("1", "[0, 1]"), ("3", "[0, 2]")], &[("1", "[0, 1]"), ("2", "[1, 2]")]];
    let call = |group, seq| Entry::new("nccl:all_reduce", group, seq);
    let first = dump(groups[0], &[call("1", 1), call("1", 2).open()]);
    let second = dump(groups[1], &[call("1", 1), call("2", 1).open()]);
    let analysis = analyze_ranks(&[(0, first), (1, second)]);
    assert_eq!(roots(&analysis), [("DD901".into(), vec![2])]);
}

#[test]
fn rank_that_waits_to_send_is_no_culprit() {
    // Rank 2 waits for rank 1, which waits until rank 0 receives.
    let message = |name, nth| Entry::message(name, "0", nth);
    let dumps = [
        dump(&WORLD, &[message("nccl:recv 0<-1", 1)]),
        dump(&WORLD, &[message("nccl:send 1->0", 1), message("nccl:send 1->0", 2).open()]),
        dump(&WORLD, &[message("nccl:recv 2<-1", 1).open()]),
    ];
    assert_eq!(roots(&analyze(&dumps)), [("DD113".into(), vec![0])]);
}

// --- Times ---------------------------------------------------------------------------------------

#[test]
fn unknown_durations_are_not_stated() {
    let one = dump(&WORLD, &[all_reduce(1), all_reduce(2).open()]);
    let analysis = analyze(&[one.clone(), behind(), one]);
    let report = report(&analysis);
    assert_eq!(report.findings[0].confidence, Confidence::Suspected);
    let times = report.findings[0].per_rank.iter().map(|it| it.waited_ms);
    assert!(times.flatten().next().is_none(), "{report:#?}");
    let waiting: Vec<_> = report
        .ranks
        .iter()
        .filter_map(|it| it.waiting_in.as_ref())
        .map(|it| (it.seq, it.waited_ms))
        .collect();
    assert_eq!(waiting, [(Some(2), None); 2]);
}

#[test]
fn dumps_written_right_after_their_calls_show_no_wait() {
    let one = dump(&WORLD, &[all_reduce(1), all_reduce(2).open()]);
    let behind = behind();
    let files = [("rank_0", &one), ("rank_1", &behind), ("rank_2", &one)];
    let (dir, _) = analyze_files(&files);
    let written_at = |time: u64| {
        for (name, _) in files {
            let file = File::options().append(true).open(dir.path().join(name));
            let written = UNIX_EPOCH + Duration::from_nanos(time);
            file.unwrap().set_modified(written).unwrap();
        }
        postmortem::analyze(&[dir.path().to_owned()])
    };
    let analysis = written_at(START + 8 * SECOND);
    assert_eq!(report(&analysis).verdict, Verdict::Insufficient);
    assert_eq!(roots(&analysis), [("DD901".into(), vec![])]);
    assert_eq!(
        report(&analysis).findings[0].summary,
        "the dumps of ranks 0\u{2013}2 do not show whether the job hangs"
    );
    let why = &report(&analysis).findings[0].why[0];
    assert!(why.contains("at most 8 s after the first call"), "{why}");
    assert_eq!(roots(&written_at(START + 90 * SECOND)), [("DD101".into(), vec![1])]);
    // The clock of the files is behind.
    assert_eq!(roots(&written_at(START - 3600 * SECOND)), [("DD101".into(), vec![1])]);
}

#[test]
fn clocks_of_hosts_make_no_call_old() {
    let call = |entry: Entry, at: u64| entry.with("time_created_ns", START + at * SECOND);
    let rank = |clock: u64| {
        let calls = [call(all_reduce(1), clock), call(all_reduce(2).open(), clock + 1)];
        dump(&WORLD, &calls)
    };
    let behind = dump(&WORLD, &[call(all_reduce(1), 1300)]);
    let analysis = analyze(&[rank(0), behind, rank(1200)]);
    let finding = &report(&analysis).findings[0];
    assert_eq!(finding.ranks.root, [1]);
    assert_eq!(finding.confidence, Confidence::Suspected);
    let times = finding.per_rank.iter().map(|it| it.waited_ms);
    assert_eq!(times.flatten().next(), None);
    // A call timed out after ten minutes.
    let mut timed_out = rank(0);
    timed_out["entries"][1]["retired"] = true.into();
    let behind = dump(&WORLD, &[call(all_reduce(1), 1300)]);
    let analysis = analyze(&[timed_out, behind, rank(1200)]);
    let waiting = report(&analysis).ranks.iter();
    let waits = waiting.filter_map(|it| it.waiting_in.as_ref()?.waited_ms);
    assert_eq!(waits.max(), Some(600_000));
}

#[test]
fn rank_waits_in_one_call() {
    let analysis = analyze(&[waits(), behind(), waits()]);
    let report = report(&analysis);
    assert_eq!(report.findings[0].seq, Some(2));
    let waiting: Vec<_> = report
        .ranks
        .iter()
        .filter_map(|it| it.waiting_in.as_ref())
        .map(|it| (it.seq, it.waited_ms))
        .collect();
    assert_eq!(waiting, [(Some(2), Some(600_000)); 2]);
}

#[test]
fn timeout_of_other_dumps_holds_for_those_without_one() {
    let mut old = waits();
    for entry in old["entries"].as_array_mut().unwrap() {
        entry.as_object_mut().unwrap().remove("timeout_ms");
    }
    let analysis = analyze(&[old, behind(), waits()]);
    let times: Vec<_> =
        report(&analysis).findings[0].per_rank.iter().filter_map(|it| it.waited_ms).collect();
    assert_eq!(times, [600_000, 600_000]);
}

#[test]
fn calls_end_when_their_completion_was_found() {
    let completed = START + 5 * SECOND;
    let timed = all_reduce(1).with("time_discovered_completed_ns", completed);
    let one = dump(&WORLD, &[timed, all_reduce(2).open(), all_reduce(3).open()]);
    let analysis = analyze(&[one.clone(), behind(), one]);
    let calls = &analysis.timelines[0].track(0).unwrap().calls;
    let times = |at: usize| (calls[at].returned, calls[at].completed, calls[at].is_open());
    assert_eq!(times(0), (None, Some(Timestamp(completed)), false));
    assert_eq!(times(1), (None, None, true));
    assert_eq!(times(2), (None, None, true));
    let trace = perfetto(&analysis);
    let slices = trace["traceEvents"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|it| it["ph"] == "X" && it["args"]["seq"] == json!(2));
    let mut waits = slices.map(|it| it["dur"].as_f64().unwrap());
    // In microseconds, although the next call follows after a millisecond.
    assert!(waits.all(|it| it > 599e6), "{trace:#}");
}

/// The analysis as a trace for Perfetto.
fn perfetto(analysis: &Analysis) -> Value {
    let mut out = Vec::new();
    let jobs: Vec<_> = analysis.reports.iter().zip(&analysis.timelines).collect();
    ddp_doctor::report::perfetto::trace(&mut out, &jobs).unwrap();
    serde_json::from_slice(&out).unwrap()
}

#[test]
fn group_of_one_rank_is_not_stuck_in_the_network() {
    let world = [("0", "[0]")];
    let analysis = analyze(&[dump(&world, &[all_reduce(1), all_reduce(2).open()])]);
    let codes = roots(&analysis).into_iter().map(|(code, _)| code);
    assert!(codes.clone().all(|it| it != "DD116"), "{:?}", codes.collect::<Vec<_>>());
}
