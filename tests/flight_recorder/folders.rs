//! `analyze` on dumps of several folders.

use std::fs;

use ddp_doctor::postmortem;
use serde_json::{Value, json};

use super::files::{SECOND, all_reduce, analyze_files, behind, roots, waits};
use crate::support::dumps::{dump, report};

/// A dump whose calls were made this much later.
fn shifted(dump: &Value, hours: u64) -> Value {
    let mut dump = dump.clone();
    for entry in dump["entries"].as_array_mut().unwrap() {
        let at = entry["time_created_ns"].as_u64().unwrap();
        entry["time_created_ns"] = (at + hours * 3600 * SECOND).into();
    }
    dump
}

#[test]
fn dumps_below_a_folder_with_dumps_are_read() {
    let (waits, behind) = (waits(), behind());
    let files = [("trace_rank_0", &waits), ("node1/trace_rank_1", &behind)];
    let (dir, _) = analyze_files(&files);
    let (elsewhere, _) = analyze_files(&[("trace_rank_2", &waits)]);
    std::os::unix::fs::symlink(elsewhere.path(), dir.path().join("node2")).unwrap();
    // Links in a circle.
    std::os::unix::fs::symlink(dir.path(), dir.path().join("node1/all")).unwrap();
    std::os::unix::fs::symlink("node1", dir.path().join("a_link")).unwrap();
    // A link out of the folder is followed only if it is named.
    let node2 = dir.path().join("node2");
    let analysis = postmortem::analyze(&[dir.path().to_owned()]);
    assert_eq!(roots(&analysis), [("DD101".into(), vec![1]), ("DD901".into(), vec![2])]);
    assert_eq!(analysis.remarks.iter().map(|it| &it.path).collect::<Vec<_>>(), [&node2]);
    let analysis = postmortem::analyze(&[dir.path().to_owned(), node2]);
    assert_eq!(roots(&analysis), [("DD101".into(), vec![1])]);
    assert_eq!(report(&analysis).evidence.ranks_reporting, 3);
}

#[test]
fn attempts_of_several_hosts_are_two_jobs() {
    let (waits, behind) = (waits(), behind());
    let later = [&waits, &behind].map(|it| shifted(it, 1));
    let (_dir, analysis) = analyze_files(&[
        ("attempt_0/node0/trace_rank_0", &waits),
        ("attempt_0/node0/trace_rank_1", &behind),
        ("attempt_0/node1/trace_rank_2", &waits),
        ("attempt_1/node0/trace_rank_0", &later[0]),
        ("attempt_1/node0/trace_rank_1", &later[0]),
        ("attempt_1/node1/trace_rank_2", &later[1]),
    ]);
    let shown: Vec<_> = analysis
        .reports
        .iter()
        .map(|it| {
            let roots = it.findings.iter().map(|it| it.ranks.root.clone());
            (it.job.id.as_str(), roots.collect::<Vec<_>>())
        })
        .collect();
    assert_eq!(shown, [("attempt_0", vec![vec![1]]), ("attempt_1", vec![vec![2]])]);
    assert_eq!(analysis.remarks, []);
}

#[test]
fn jobs_in_folders_of_one_name_have_different_names() {
    let (waits, behind) = (waits(), behind());
    let later = shifted(&behind, 1);
    let (_dir, analysis) = analyze_files(&[
        ("a/dumps/trace_rank_0", &waits),
        ("a/dumps/trace_rank_1", &behind),
        ("b/dumps/trace_rank_0", &later),
        ("b/dumps/trace_rank_1", &later),
    ]);
    let names: Vec<&str> = analysis.reports.iter().map(|it| it.job.id.as_str()).collect();
    assert_eq!(names, ["a/dumps", "b/dumps"]);
}

#[test]
fn hosts_of_another_world_or_day_are_another_job() {
    let (waits, behind) = (waits(), behind());
    let world = [("0", "[0, 1, 2, 3]")];
    let other_world = dump(&world, &[all_reduce(1), all_reduce(2).open()]);
    for other in [other_world, shifted(&waits, 24)] {
        let (_dir, analysis) = analyze_files(&[
            ("host0/trace_rank_0", &waits),
            ("host0/trace_rank_1", &behind),
            ("host1/trace_rank_2", &other),
        ]);
        assert_eq!(analysis.reports.len(), 2, "{:?}", analysis.remarks);
    }
}

#[test]
fn copies_of_dumps_are_one_job() {
    let (waits, behind) = (waits(), behind());
    let mut without_lines = waits.clone();
    let mut with_lines = waits.clone();
    let frames = json!([{ "name": "main", "filename": "/job/train.py", "line": 7 }]);
    for entry in with_lines["entries"].as_array_mut().unwrap() {
        entry["frames"] = frames.clone();
    }
    without_lines["version"] = "2.7".into();
    let (_dir, analysis) = analyze_files(&[
        ("a/trace_rank_0", &without_lines),
        ("a/trace_rank_1", &behind),
        ("a/trace_rank_2", &waits),
        ("b/trace_rank_0", &with_lines),
        ("b/trace_rank_1", &behind),
        ("b/trace_rank_2", &waits),
    ]);
    assert_eq!(roots(&analysis), [("DD101".into(), vec![1])]);
    let calls = &report(&analysis).findings[0].per_rank;
    let lines = calls.iter().filter_map(|it| Some(it.place.as_ref()?.line));
    assert_eq!(lines.collect::<Vec<_>>(), [7]);
    let texts: Vec<&str> = analysis.remarks.iter().map(|it| it.text.as_str()).collect();
    assert_eq!(texts.len(), 1, "{texts:?}");
    assert!(texts[0].contains("several dumps of 3 ranks with the same calls"));
}

#[test]
fn empty_and_packed_files_beside_dumps_are_reported() {
    let waits = waits();
    let (dir, _) = analyze_files(&[("trace_rank_0", &waits), ("trace_rank_1", &waits)]);
    fs::write(dir.path().join("trace_rank_2"), "").unwrap();
    fs::write(dir.path().join("host1.tar.xz"), b"\xfd7zXZ\0").unwrap();
    // They are not dumps by their names.
    fs::write(dir.path().join("lock"), "").unwrap();
    fs::write(dir.path().join("weights.bin"), [0xff; 64]).unwrap();
    let analysis = postmortem::analyze(&[dir.path().to_owned()]);
    let remarks: Vec<String> = analysis.remarks.iter().map(ToString::to_string).collect();
    assert_eq!(remarks.len(), 2, "{remarks:?}");
    let has =
        |texts: [&str; 2]| remarks.iter().any(|it| texts.iter().all(|text| it.contains(text)));
    assert!(has(["trace_rank_2", "it is empty"]), "{remarks:?}");
    assert!(has(["host1.tar.xz", "unpack it"]), "{remarks:?}");
    let summary = &report(&analysis).findings[0].summary;
    assert!(summary.contains("rank 2 are unknown: the dump cannot be read"), "{summary}");
}

#[test]
fn run_directory_below_dumps_is_reported() {
    let waits = waits();
    let (dir, _) = analyze_files(&[("dumps/trace_rank_0", &waits)]);
    let run = dir.path().join("run");
    fs::create_dir(&run).unwrap();
    fs::write(run.join("journal.ddpj"), "DDPJ").unwrap();
    let analysis = postmortem::analyze(&[dir.path().to_owned()]);
    let remark = analysis.remarks[0].to_string();
    assert!(remark.contains("1 run directory below it is left out"), "{remark}");
}
