//! `analyze` on the dumps of real jobs over NCCL and Gloo.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use ddp_doctor::postmortem::{self, Analysis};
use ddp_doctor_proto::report::{CallState, Confidence, Report, Verdict};
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;

use super::analyze_contents;
use crate::support::dumps::{findings, report};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// The bytes of a rank's dump of the NCCL job.
fn nccl_dump(rank: u32) -> Vec<u8> {
    let path = fixture("nccl-flight-recorder").join(format!("_dump_{rank}.gz"));
    let mut bytes = Vec::new();
    GzDecoder::new(File::open(path).unwrap()).read_to_end(&mut bytes).unwrap();
    bytes
}

/// The dumps of the NCCL job, in files with these names; `None`: without the file of that rank.
fn nccl_files(name: impl Fn(u32) -> Option<String>) -> Vec<(String, Vec<u8>)> {
    let named = (0..16).filter_map(|rank| Some((name(rank)?, nccl_dump(rank))));
    named.collect()
}

/// Asserts that the injected ranks, and no others, are named.
#[track_caller]
fn names_the_injected_ranks(analysis: &Analysis) -> &Report {
    let report = report(analysis);
    let mut roots: Vec<u32> = Vec::new();
    for finding in &report.findings {
        assert!(finding.confidence < Confidence::Proved, "{finding:#?}");
        roots.extend(&finding.ranks.root);
    }
    roots.sort_unstable();
    roots.dedup();
    assert_eq!((roots, report.verdict), (vec![9, 14], Verdict::Hang), "{report:#?}");
    report
}

// --- The NCCL job --------------------------------------------------------------------------------

#[test]
fn injected_ranks_are_named_and_no_others() {
    let analysis = postmortem::analyze(&[fixture("nccl-flight-recorder")]);
    let report = names_the_injected_ranks(&analysis);
    assert_eq!(analysis.remarks, []);
    let expected = |rank| ("DD116".to_owned(), "supported".to_owned(), vec![rank]);
    let mut found = findings(report);
    found.sort();
    assert_eq!(found, [expected(9), expected(14)]);
    let finding = &report.findings[0];
    let states = finding.per_rank.iter().map(|it| it.state);
    let waiting = states.filter(|state| *state == CallState::Waiting).count();
    assert_eq!((finding.seq, waiting), (Some(87749), 1), "stuck on its device");
    assert_eq!((report.job.world_size, report.evidence.records), (Some(16), 278));
}

#[test]
fn file_names_do_not_affect_the_diagnosis() {
    for pattern in
        ["nccl_trace_rank_host17_R", "R.pickle", "rank-R_20260101", "comm_lib_trace_rank_R"]
    {
        let files = nccl_files(|rank| Some(pattern.replace('R', &rank.to_string())));
        names_the_injected_ranks(&analyze_contents(&files));
    }
    // The rank is in the contents.
    let letters = nccl_files(|rank| Some(format!("trace-{}", char::from(b'a' + rank as u8))));
    names_the_injected_ranks(&analyze_contents(&letters));
    let wrong = nccl_files(|rank| Some(format!("_dump_{}", 15 - rank)));
    let analysis = analyze_contents(&wrong);
    names_the_injected_ranks(&analysis);
    assert!(analysis.remarks[0].text.contains("its contents are those of rank"));
}

#[test]
fn archive_is_read_like_its_files() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("dumps.tar.gz");
    let mut archive = GzEncoder::new(File::create(&path).unwrap(), Compression::fast());
    for rank in 0..16 {
        let dump = nccl_dump(rank);
        let mut header = [0_u8; 512];
        let name = format!("traces/_dump_{rank}");
        header[..name.len()].copy_from_slice(name.as_bytes());
        header[124..135].copy_from_slice(format!("{:011o}", dump.len()).as_bytes());
        header[156] = b'0';
        header[257..262].copy_from_slice(b"ustar");
        archive.write_all(&header).unwrap();
        archive.write_all(&dump).unwrap();
        archive.write_all(&vec![0; dump.len().next_multiple_of(512) - dump.len()]).unwrap();
    }
    archive.write_all(&[0; 1024]).unwrap();
    archive.finish().unwrap();
    names_the_injected_ranks(&postmortem::analyze(&[path]));
}

#[test]
fn missing_dumps_of_the_injected_ranks_are_reported() {
    let files = nccl_files(|rank| (![9, 14].contains(&rank)).then(|| format!("_dump_{rank}")));
    let analysis = analyze_contents(&files);
    let report = report(&analysis);
    assert_eq!(report.verdict, Verdict::Insufficient);
    assert_eq!(report.evidence.missing_ranks, [9, 14]);
    let [finding] = &report.findings[..] else {
        panic!("no other rank is a culprit: {:?}", findings(report));
    };
    assert_eq!((&finding.code[..], &finding.ranks.root[..]), ("DD901", &[9, 14][..]));
    assert!(
        finding.summary.starts_with(
            "later calls of ranks 9 and 14 are unknown: there is no dump; all_to_all #44791 of \
             EXPERT_MODEL"
        ),
        "{}",
        finding.summary
    );
}

#[test]
fn missing_dump_of_another_rank_keeps_the_culprit() {
    for missing in [0, 8] {
        let files = nccl_files(|rank| (rank != missing).then(|| format!("_dump_{rank}")));
        let analysis = analyze_contents(&files);
        let blamed: Vec<u32> = report(&analysis)
            .findings
            .iter()
            .filter(|it| it.code != "DD901")
            .flat_map(|it| it.ranks.root.clone())
            .collect();
        assert!(blamed.iter().all(|rank| [9, 14].contains(rank)), "{blamed:?}");
        assert!(blamed.contains(&14), "{blamed:?}");
    }
}

#[test]
fn truncated_dump_yields_a_remark_and_no_other_culprit() {
    for victim in [3, 9, 12] {
        let mut files = nccl_files(|rank| Some(format!("_dump_{rank}")));
        let bytes = &mut files[victim].1;
        bytes.truncate(bytes.len() * 3 / 4);
        let analysis = analyze_contents(&files);
        let cut = analysis.remarks.iter().find(|it| it.text.contains("it ends after"));
        let name = format!("_dump_{victim}");
        assert!(cut.is_some_and(|it| it.path.ends_with(&name)), "{:?}", analysis.remarks);
        let report = report(&analysis);
        let blamed: Vec<u32> = report
            .findings
            .iter()
            .filter(|it| !it.code.starts_with("DD9"))
            .flat_map(|it| it.ranks.root.clone())
            .collect();
        assert!(!blamed.is_empty() && blamed.iter().all(|it| [9, 14].contains(it)), "{blamed:?}");
    }
}

#[test]
fn file_order_does_not_affect_the_diagnosis() {
    let dir = tempfile::tempdir().unwrap();
    let mut paths = Vec::new();
    for (name, bytes) in nccl_files(|rank| Some(format!("_dump_{rank}"))) {
        paths.push(dir.path().join(name));
        fs::write(&paths[paths.len() - 1], bytes).unwrap();
    }
    let summaries = |paths: &[PathBuf]| -> Vec<String> {
        let analysis = postmortem::analyze(paths);
        let findings = &report(&analysis).findings;
        findings.iter().map(|it| it.summary.clone()).collect()
    };
    let first = summaries(&paths);
    paths.reverse();
    assert_eq!(summaries(&paths), first);
}

// --- The Gloo job --------------------------------------------------------------------------------

#[test]
fn gloo_dumps_name_the_missing_rank_and_its_line() {
    for (folder, has_lines) in
        [("gloo-flight-recorder", true), ("gloo-flight-recorder/json", false)]
    {
        let analysis = postmortem::analyze(&[fixture(folder)]);
        let report = report(&analysis);
        let [finding] = &report.findings[..] else {
            panic!("{report:#?}");
        };
        assert_eq!((finding.code.as_str(), &finding.ranks.root[..]), ("DD101", &[1][..]));
        // Dumps of Gloo are written on request: ranks differ by one call in a healthy job, too.
        assert_eq!(finding.confidence, Confidence::Suspected);
        assert_eq!(finding.ranks.victims, [0, 2]);
        let lines: Vec<Option<u32>> =
            finding.per_rank.iter().map(|it| it.place.as_ref().map(|it| it.line)).collect();
        let expected = if has_lines { vec![Some(9), Some(7), Some(9)] } else { vec![None; 3] };
        assert_eq!(lines, expected, "the user's lines");
    }
}
