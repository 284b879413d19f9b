//! `analyze` on evidence of one job in several forms: dumps, logs and recordings.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use ddp_doctor::postmortem::{self, Analysis, Progress};
use ddp_doctor_proto::report::{CallState, Confidence, Timestamp};
use serde_json::Value;
use tempfile::TempDir;

use crate::support::dumps::{Entry, dump, findings};
use crate::support::scenario::Scenario;

const START: u64 = 1_783_000_000_000_000_000;
const WORLD: [(&str, &str); 1] = [("0", "[0, 1, 2, 3]")];

/// Dumps of these ranks of four: each has completed all_reduce 41 and is in 42, but for `behind`.
fn write_dumps(dir: &Path, ranks: &[u32], behind: u32) {
    for &rank in ranks {
        let last = if rank == behind { 41 } else { 42 };
        let entries: Vec<Entry> = (40..=last)
            .map(|seq| {
                let entry = Entry::new("nccl:all_reduce", "0", seq)
                    .with("time_created_ns", START + seq * 1_000_000_000);
                if seq == 42 { entry.open() } else { entry }
            })
            .collect();
        write(dir, rank, &dump(&WORLD, &entries));
    }
}

fn write(dir: &Path, rank: u32, dump: &Value) {
    fs::write(dir.join(format!("trace_rank_{rank}")), dump.to_string()).unwrap();
}

/// A line of a log at a time: seconds after the start, by a clock that is `zone` hours ahead.
fn label(seconds: u64, zone: i64) -> String {
    let utc = Timestamp(START).plus(Duration::from_secs(seconds));
    let at = Timestamp(utc.0.checked_add_signed(zone * 3_600_000_000_000).unwrap());
    // "2026-07-02T13:20:08.410Z"
    let text = at.to_string();
    let (date, time) = text.trim_end_matches('Z').split_once('T').unwrap();
    let day: String = date.split('-').skip(1).collect();
    format!("E{day} {}", time.get(..8).unwrap())
}

/// What watchdogs of these ranks print when they give all_reduce 42 up, ten minutes later.
fn timeouts(ranks: &[u32], zone: i64) -> String {
    let mut text = String::new();
    let at = label(42 + 600, zone);
    for rank in ranks {
        writeln!(
            text,
            "[rank{rank}]:[{at}.100000000 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught \
             collective operation timeout: WorkNCCL(SeqNum=42, OpType=ALLREDUCE, NumelIn=16, \
             NumelOut=16, Timeout(ms)=600000) ran for 600010 milliseconds before timing out."
        )
        .unwrap();
    }
    text
}

/// What a rank prints when an exception ends it.
fn exception(rank: u32, time: &str) -> String {
    format!(
        "[rank{rank}]:[{time}.000000000 reader.cpp:1] reading\n\
         [rank{rank}]: Traceback (most recent call last):\n\
         [rank{rank}]:   File \"/job/train.py\", line 31, in <module>\n\
         [rank{rank}]:     table[key]\n\
         [rank{rank}]: KeyError: 'c'\n"
    )
}

fn analyze(dir: &TempDir, log: &str) -> Analysis {
    let path = dir.path().join("job.out");
    fs::write(&path, log).unwrap();
    postmortem::analyze(&[dir.path().to_owned(), path])
}

/// Leading findings of the only report.
#[track_caller]
fn found(analysis: &Analysis) -> Vec<(String, Vec<u32>)> {
    let [report] = &analysis.reports[..] else {
        panic!("{} reports, {:?}", analysis.reports.len(), analysis.remarks);
    };
    let found = findings(report).into_iter().filter(|(code, ..)| !code.starts_with("DD9"));
    found.map(|(code, _, root)| (code, root)).collect()
}

#[test]
fn log_explains_the_rank_that_is_behind_in_dumps() {
    for zone in [0, 9, -7, 14, -12] {
        let dir = tempfile::tempdir().unwrap();
        write_dumps(dir.path(), &[0, 1, 2, 3], 2);
        let log = exception(2, &label(41, zone)) + &timeouts(&[0, 1, 3], zone);
        let analysis = analyze(&dir, &log);
        assert_eq!(found(&analysis), [("DD202".into(), vec![2])], "{zone}");
        let finding = &analysis.reports[0].findings[0];
        assert!(finding.summary.contains("KeyError"), "{finding:#?}");
        assert_eq!(finding.confidence, Confidence::Supported, "the log shows that time passed");
        assert!(finding.certificate.is_none(), "text proves nothing");
        assert!(analysis.remarks.is_empty(), "{:?}", analysis.remarks);
    }
}

#[test]
fn year_of_a_log_is_that_of_its_dumps() {
    let dir = tempfile::tempdir().unwrap();
    write_dumps(dir.path(), &[0, 1, 2, 3], 2);
    let path = dir.path().join("job.out");
    fs::write(&path, exception(2, &label(41, 0)) + &timeouts(&[0, 1, 3], 0)).unwrap();
    // A copy that is three years younger.
    let copied = UNIX_EPOCH + Duration::from_nanos(START) + Duration::from_secs(3 * 365 * 86_400);
    File::options().write(true).open(&path).unwrap().set_modified(copied).unwrap();
    let analysis = postmortem::analyze(&[dir.path().to_owned(), path]);
    assert_eq!(found(&analysis), [("DD202".into(), vec![2])], "{:?}", analysis.remarks);
}

#[test]
fn clocks_of_one_job_may_differ_by_less_than_half_its_timeout() {
    for (minutes, is_one) in [(4, true), (6, false), (-4, true)] {
        let dir = tempfile::tempdir().unwrap();
        write_dumps(dir.path(), &[0, 1, 2, 3], 2);
        let at = (42 + 600_i64).checked_add(minutes * 60).unwrap().unsigned_abs();
        let log = timeouts(&[0, 1, 3], 0).replace(&label(42 + 600, 0), &label(at, 0));
        let analysis = analyze(&dir, &log);
        assert_eq!(analysis.reports.len() == 1, is_one, "{minutes} {:?}", analysis.remarks);
    }
}

#[test]
fn log_explains_the_rank_without_a_dump() {
    let dir = tempfile::tempdir().unwrap();
    write_dumps(dir.path(), &[0, 1, 3], 2);
    let log = exception(2, &label(41, 0)) + &timeouts(&[0, 1, 3], 0);
    let analysis = analyze(&dir, &log);
    assert_eq!(found(&analysis), [("DD202".into(), vec![2])]);
    assert_eq!(analysis.reports[0].findings[0].ranks.victims, [0, 1, 3]);
}

#[test]
fn log_beside_dumps_is_read_and_its_rank_awaited_where_it_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    write_dumps(dir.path(), &[0, 1, 3], 2);
    let log = exception(2, &label(41, 0)) + &timeouts(&[0, 1, 3], 0);
    fs::write(dir.path().join("job.out"), log).unwrap();
    let analysis = postmortem::analyze(&[dir.path().to_owned()]);
    assert_eq!(found(&analysis), [("DD202".into(), vec![2])]);
    let finding = &analysis.reports[0].findings[0];
    let waiting: Vec<_> =
        finding.per_rank.iter().filter(|it| it.rank != 2).map(|it| (it.state, it.seq)).collect();
    assert_eq!(waiting, [(CallState::Waiting, Some(42)); 3]);
}

#[test]
fn exception_after_the_timeout_is_no_cause() {
    let dir = tempfile::tempdir().unwrap();
    write_dumps(dir.path(), &[0, 1, 2, 3], 2);
    let log = timeouts(&[0, 1, 3], 0) + &exception(1, &label(700, 0));
    let analysis = analyze(&dir, &log);
    assert_eq!(found(&analysis), [("DD101".into(), vec![2])]);
}

#[test]
fn log_that_names_a_rank_without_a_dump_does_not_blame_it() {
    let dir = tempfile::tempdir().unwrap();
    write_dumps(dir.path(), &[0, 1, 2], 2);
    let analysis = analyze(&dir, &timeouts(&[0, 1, 3], 0));
    assert_eq!(found(&analysis), [("DD101".into(), vec![2])]);
}

#[test]
fn log_of_another_job_has_a_report_of_its_own() {
    let other = timeouts(&[0, 1, 3], 0).replace("SeqNum=42", "SeqNum=7");
    let larger = timeouts(&[0, 1, 3, 5], 0);
    let alone = exception(2, &label(41, -24 * 30));
    let another_world = format!("[rank2]: world_size=8\n{}", exception(2, &label(41, 0)));
    let gave_up =
        "rank 0 gave up on all_reduce #42, and the dump of that rank does not, or not then";
    // The clock of no time zone is a day ahead, or 13 hours behind.
    let later = [24, -13]
        .map(|zone| exception(2, &label(41, zone)) + &timeouts(&[0, 1, 3], zone))
        .into_iter()
        .map(|log| (log, gave_up));
    let others = [
        (other, "rank 0 gave up on all_reduce #7, and the dump of that rank does not"),
        (larger, "it names rank 5, and the dumps are of a world of 4 ranks"),
        (another_world, "it states a world of 8 ranks, and the dumps one of 4"),
        (alone, "by its clock, and the dumps begin at"),
    ];
    for (log, why) in others.into_iter().chain(later) {
        let dir = tempfile::tempdir().unwrap();
        write_dumps(dir.path(), &[0, 1, 2, 3], 2);
        let analysis = analyze(&dir, &log);
        assert_eq!(analysis.reports.len(), 2);
        let remark = &analysis.remarks[0];
        assert!(remark.text.contains("it belongs to a different job from the dumps: "), "{remark}");
        assert!(remark.text.contains(why), "{remark}");
    }
}

#[test]
fn log_in_a_subdirectory_explains_the_dumps() {
    let dir = tempfile::tempdir().unwrap();
    for folder in ["dumps", "logs/host0", "logs/other"] {
        fs::create_dir_all(dir.path().join(folder)).unwrap();
    }
    write_dumps(&dir.path().join("dumps"), &[0, 1, 2, 3], 2);
    let log = exception(2, &label(41, 0)) + &timeouts(&[0, 1, 3], 0);
    let path = dir.path().join("logs/host0/job.out");
    fs::write(&path, &log).unwrap();
    let analysis = postmortem::analyze(&[dir.path().to_owned()]);
    assert_eq!(found(&analysis), [("DD202".into(), vec![2])]);
    // That of another job has no report.
    fs::write(&path, log.replace("SeqNum=42", "SeqNum=7")).unwrap();
    let analysis = postmortem::analyze(&[dir.path().to_owned()]);
    assert_eq!(found(&analysis), [("DD101".into(), vec![2])]);
    let remark = &analysis.remarks[0];
    assert!(remark.text.contains("it is left out"), "{remark}");
}

/// A tar archive of the files of a folder.
fn archive(dir: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let contents = fs::read(&path).unwrap();
        let mut header = [0_u8; 512];
        let name = path.file_name().unwrap().to_str().unwrap();
        header[..name.len()].copy_from_slice(name.as_bytes());
        header[124..135].copy_from_slice(format!("{:011o}", contents.len()).as_bytes());
        let written = format!("{:011o}", START / 1_000_000_000 + 3600);
        header[136..147].copy_from_slice(written.as_bytes());
        header[156] = b'0';
        header[257..262].copy_from_slice(b"ustar");
        bytes.extend(header);
        bytes.extend(&contents);
        bytes.resize(bytes.len().next_multiple_of(512), 0);
    }
    bytes.extend([0; 1024]);
    bytes
}

#[test]
fn log_in_an_archive_explains_the_dumps_in_it() {
    let dir = tempfile::tempdir().unwrap();
    write_dumps(dir.path(), &[0, 1, 2, 3], 2);
    let log = exception(2, &label(41, 0)) + &timeouts(&[0, 1, 3], 0);
    fs::write(dir.path().join("job.out"), log).unwrap();
    let archived = tempfile::tempdir().unwrap();
    let path = archived.path().join("all.tar");
    fs::write(&path, archive(dir.path())).unwrap();
    let analysis = postmortem::analyze(&[path]);
    assert_eq!(found(&analysis), [("DD202".into(), vec![2])]);
    assert_eq!(analysis.remarks, []);
    // Without dumps, it is analyzed like the log itself.
    for rank in 0..4 {
        fs::remove_file(dir.path().join(format!("trace_rank_{rank}"))).unwrap();
    }
    let path = archived.path().join("log.tar");
    fs::write(&path, archive(dir.path())).unwrap();
    let analysis = postmortem::analyze(&[path]);
    let unpacked = postmortem::analyze(&[dir.path().to_owned()]);
    assert_eq!(found(&analysis), found(&unpacked));
}

// --- Beside a recording --------------------------------------------------------------------------

const HANG: &str = r#"
about = "three ranks wait for rank 1"
world = 4
events = """
1.0 * all_reduce f32[8] sum @train.py:9
1.1 * done
2.0 0,2,3 all_reduce f32[8] sum @train.py:9
"""
"#;

/// A folder with the journal of a job, and dumps of its calls `later` nanoseconds after them.
fn recorded(later: u64) -> (TempDir, Vec<PathBuf>) {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    fs::create_dir(&run).unwrap();
    Scenario::parse(HANG).unwrap().journals(&run, 1).unwrap();
    let timeline = &postmortem::analyze(std::slice::from_ref(&run)).timelines[0];
    for track in &timeline.tracks {
        let calls = track.calls.iter().filter(|it| it.call.op.to_string() == "all_reduce");
        let entries: Vec<Entry> = (1..)
            .zip(calls)
            .map(|(seq, it)| {
                Entry::new("gloo:all_reduce", "0", seq)
                    .with("time_created_ns", it.call.at.0 + later)
            })
            .collect();
        write(dir.path(), track.rank, &dump(&WORLD, &entries));
    }
    let paths = vec![run, dir.path().to_owned()];
    (dir, paths)
}

#[test]
fn dumps_of_a_recorded_job_are_left_out() {
    let (_dir, paths) = recorded(200_000);
    let analysis = postmortem::analyze(&paths);
    assert_eq!(analysis.reports.len(), 1);
    let remark = &analysis.remarks[0];
    assert!(remark.text.contains("the recording states more"), "{remark}");
}

#[test]
fn dumps_of_another_time_have_a_report_of_their_own() {
    let (_dir, paths) = recorded(3_600_000_000_000);
    let analysis = postmortem::analyze(&paths);
    assert_eq!(analysis.reports.len(), 2);
    let [remark] = &analysis.remarks[..] else {
        panic!("{:?}", analysis.remarks);
    };
    assert!(remark.text.contains("it has a separate report"), "{remark}");
}

// --- In the dashboard ----------------------------------------------------------------------------

#[test]
fn dumps_are_shown_as_one_limited_update() {
    let dir = tempfile::tempdir().unwrap();
    write_dumps(dir.path(), &[0, 1, 2, 3], 2);
    let recording =
        postmortem::record(&[dir.path().to_owned()], &mut Vec::new(), &Progress::default())
            .unwrap();
    let [update] = &recording.updates[..] else {
        panic!("{} updates", recording.updates.len());
    };
    assert!(update.ended);
    let finding = &update.findings.as_ref().unwrap()[0];
    assert_eq!(finding.code, "DD101");
    assert_eq!(finding.confidence, Confidence::Suspected);
    assert!(update.ranks.iter().any(|it| it.rank == 2), "{:?}", update.ranks);
}

/// A failure as torchrun lists it.
fn killed(rank: u32, pid: u32) -> String {
    format!(
        "Root Cause (first observed failure):\n[0]:\n  host      : node-a\n  rank      : {rank} (local_rank: {rank})\n  \
         exitcode  : -9 (pid: {pid})\n  error_file: <N/A>\n"
    )
}

#[test]
fn log_that_contradicts_nothing_is_of_the_job_of_the_dumps() {
    let dated = exception(2, &label(41, 0));
    let in_another_zone = exception(2, &label(41, 9));
    let undated = dated.split_once('\n').unwrap().1.to_owned();
    for log in [dated, in_another_zone, undated] {
        for ranks in [&[0, 1, 3][..], &[0, 1, 2, 3]] {
            let dir = tempfile::tempdir().unwrap();
            write_dumps(dir.path(), ranks, 2);
            let analysis = analyze(&dir, &log);
            assert_eq!(found(&analysis), [("DD202".into(), vec![2])], "{ranks:?} {log}");
            assert!(analysis.remarks.is_empty(), "{:?}", analysis.remarks);
        }
    }
    let dir = tempfile::tempdir().unwrap();
    write_dumps(dir.path(), &[0, 1, 3], 2);
    assert_eq!(found(&analyze(&dir, &killed(2, 4100))), [("DD201".into(), vec![2])]);
}

#[test]
fn log_of_more_ranks_than_the_dumps_is_of_another_job() {
    let dir = tempfile::tempdir().unwrap();
    write_dumps(dir.path(), &[0, 1, 3], 2);
    let analysis = analyze(&dir, &killed(7, 4100));
    assert_eq!(analysis.reports.len(), 2, "{:?}", analysis.remarks);
}
