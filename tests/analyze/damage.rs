//! Files that are damaged, cut off, or no evidence.

use std::fs;
use std::os::unix::fs::FileExt;
use std::process::Command;

use ddp_doctor::postmortem;
use ddp_doctor_proto::blackbox::{WORD, header};

use crate::support::evidence::{
    analyze, boxes_of, journal, replace_boot_id, report, stderr, stdout,
};
use crate::support::report::with_effect;

// --- Damaged, foreign or missing evidence --------------------------------------------------------

#[test]
fn truncated_journal_yields_no_false_findings() {
    let dir = tempfile::tempdir().unwrap();
    let path = journal(dir.path());
    let whole = fs::read(&path).unwrap();
    let (mut found_at, mut last) = (None, 0);
    for cut in 0..=whole.len() {
        fs::write(&path, &whole[..cut]).unwrap();
        let analysis = postmortem::analyze(std::slice::from_ref(&path));
        let Some(report) = analysis.reports.first() else {
            assert!(found_at.is_none() && !analysis.remarks.is_empty(), "{cut}");
            continue;
        };
        for finding in &report.findings {
            let is_known = ["DD103", "DD901", "DD902"].contains(&finding.code.as_str());
            assert!(is_known, "{cut}: {finding:#?}");
            if finding.code == "DD103" {
                found_at.get_or_insert(cut);
                assert_eq!(finding.ranks.root, [0, 1]);
            }
        }
        let codes: Vec<_> = report.findings.iter().map(|it| it.code.as_str()).collect();
        assert_eq!(codes.contains(&"DD103"), found_at.is_some(), "{cut}: once found, it stays");
        // A job without a recorded end is not healthy.
        if cut < whole.len() && found_at.is_none() {
            assert_eq!(report.verdict.as_str(), "insufficient", "{cut}: {report:#?}");
        }
        let records = report.evidence.records;
        assert!(records >= last, "{cut}");
        last = records;
        // A cut inside a frame is reported for that file.
        for remark in &analysis.remarks {
            assert_eq!(remark.path, path);
            assert!(remark.text.contains("was read up to byte"), "{remark}");
        }
    }
    assert!(found_at.is_some());
}

#[test]
fn corrupted_byte_never_panics() {
    let dir = tempfile::tempdir().unwrap();
    let path = journal(dir.path());
    let whole = fs::read(&path).unwrap();
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x5a;
        fs::write(&path, bytes).unwrap();
        let analysis = postmortem::analyze(std::slice::from_ref(&path));
        assert!(!analysis.remarks.is_empty(), "{at}: no remark");
    }
    // The words of a box have no checksum; reading it must not panic either.
    let dir = tempfile::tempdir().unwrap();
    let path = boxes_of(dir.path(), [3, 3], [true, false]).remove(0);
    replace_boot_id(&path);
    let whole = fs::read(&path).unwrap();
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    // The header is empty after its last counter.
    for word in 0..=header::RING_DROPPED {
        for value in [0, 1, u64::MAX, 1 << 40] {
            let at = (word * WORD) as u64;
            file.write_all_at(&value.to_le_bytes(), at).unwrap();
            let analysis = postmortem::analyze(std::slice::from_ref(&path));
            assert!(analysis.reports.len() <= 1);
            file.write_all_at(&whole[word * WORD..][..WORD], at).unwrap();
        }
    }
}

#[test]
fn unusable_file_is_named_with_a_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let newer = {
        let path = journal(dir.path());
        let mut bytes = fs::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        bytes[4] = 9;
        bytes
    };
    let boxed = {
        let path = boxes_of(&at("some"), [1, 1], [false, false]).remove(0);
        let bytes = fs::read(&path).unwrap();
        fs::remove_dir_all(at("some")).unwrap();
        bytes
    };
    let mut newer_box = boxed.clone();
    newer_box[header::VERSION * WORD] = 9;
    let mut forged = boxed.clone();
    forged[header::RING_AT * WORD..][..WORD].copy_from_slice(&[0xff; WORD]);
    let files: [(&str, &[u8], &str); 13] = [
        ("empty", b"", "the file is empty"),
        ("notes.txt", b"hello", "nothing in this text states how a job ended"),
        ("zeros", &[0; 5000], "not evidence of a known kind"),
        ("short.ddpj", b"DDPJ", "not a journal"),
        ("bare.ddpj", b"DDPJ\x01\0\0\0", "cut off before it identifies its job"),
        ("newer.ddpj", &newer, "with the ddp-doctor that wrote it"),
        ("cut.box", &boxed[..1000], "is truncated (1000 of "),
        ("newer.box", &newer_box, "read it with the ddp-doctor that wrote it"),
        ("forged.box", &forged, "copy it again, or leave it out"),
        ("nccl_trace_rank_0", b"\x80\x02}q\0(X\x07\0\0\0version", "it ends after 18 bytes"),
        (
            "fr.json",
            br#"{"version":"2.9","pg_config":{},"entries":[]}"#,
            "neither groups nor calls",
        ),
        (
            "report.json",
            br#"{"schema": "ddp-doctor/report"}"#,
            "pass the evidence that it was made from",
        ),
        (
            "run.json",
            br#"{"boot_id": "x", "start_ticks": 1}"#,
            "pass the directory that contains it",
        ),
    ];
    for (name, content, expected) in files {
        fs::write(at(name), content).unwrap();
        let output = analyze(dir.path(), &[name]);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(3), "{name}: {said}");
        assert_eq!(stdout(&output), "", "{name}");
        let [line, last] = said.lines().collect::<Vec<_>>()[..] else {
            panic!("{name}: expected two lines: {said}")
        };
        let head = format!("ddp-doctor: {name}: ");
        assert!(line.starts_with(&head) && line.contains(expected), "{name}: {said}");
        assert_eq!(last, "ddp-doctor: nothing to analyze: no PATH contains usable evidence");
        fs::remove_file(at(name)).unwrap();
    }

    fs::create_dir_all(at("nothing")).unwrap();
    fs::create_dir_all(at("runs/a")).unwrap();
    fs::write(at("runs/a/journal.ddpj"), b"").unwrap();
    fs::create_dir_all(at("gone")).unwrap();
    fs::write(at("gone/report.json"), b"{}").unwrap();
    let pipe = Command::new("mkfifo").arg(at("pipe")).status().unwrap();
    assert!(pipe.success());
    for (name, expected) in [
        ("nothing", "and no Flight Recorder dump here or in its subdirectories"),
        ("runs", "there is one in it: runs/a"),
        ("gone", "journal and black boxes are gone"),
        ("pipe", "neither a directory nor a regular file"),
        ("never", "no such file or directory"),
        ("\x1b[31mred", "no such file or directory"),
    ] {
        let output = analyze(dir.path(), &[name]);
        let said = stderr(&output);
        assert!(said.contains(expected), "{name}: {said}");
        assert!(!said.contains('\x1b'), "{said:?}");
        assert_eq!(output.status.code(), Some(3), "{name}");
    }
    assert_eq!(analyze(dir.path(), &["x", "--format", "xml"]).status.code(), Some(2));
}

#[test]
fn readable_files_are_analyzed_beside_unreadable_ones() {
    let dir = tempfile::tempdir().unwrap();
    journal(dir.path());
    fs::write(dir.path().join("junk"), b"junk").unwrap();
    fs::write(dir.path().join("cut.box"), b"DDPDBOX\n").unwrap();
    let paths = ["node-0.ddpj", "junk", "cut.box", "node-0.ddpj", "--format", "json"];
    let output = analyze(dir.path(), &paths);
    assert_eq!(with_effect(&report(&output)), [("DD103", &[0, 1][..])]);
    assert_eq!(stderr(&output).lines().count(), 2, "{}", stderr(&output));
    assert_eq!(output.status.code(), Some(1));

    fs::remove_file(dir.path().join("junk")).unwrap();
    fs::remove_file(dir.path().join("cut.box")).unwrap();
    let twice = analyze(dir.path(), &[".", "node-0.ddpj", ".", "--format", "json"]);
    assert_eq!(stderr(&twice), "", "a path given twice is not an error");

    let copy = fs::copy(dir.path().join("node-0.ddpj"), dir.path().join("copy")).unwrap();
    assert!(copy > 0);
    let output = analyze(dir.path(), &["node-0.ddpj", "copy", "--format", "json"]);
    assert!(stderr(&output).contains("copy: it belongs to the same node and run as node-0.ddpj"));
    let one = report(&analyze(dir.path(), &["copy", "--format", "json"]));
    assert_eq!(report(&output).evidence, one.evidence);
}

#[test]
fn dump_with_countless_groups_takes_little_memory() {
    let dir = tempfile::tempdir().unwrap();
    let groups: Vec<String> = (0..1_000_000).map(|number| format!("\"{number:x}\":0")).collect();
    let text =
        format!("{{\"version\":\"2.10\",\"pg_config\":{{{}}},\"entries\":[]}}", groups.join(","));
    fs::write(dir.path().join("nccl_trace_rank_0"), text).unwrap();
    // Address space, in KiB.
    let script = format!("ulimit -v 1000000; exec {} analyze .", crate::support::process::PROGRAM);
    let output = Command::new("sh")
        .args(["-c", &script])
        .env("DDP_DOCTOR_FORMAT", "text")
        .current_dir(dir.path())
        .output()
        .unwrap();
    let bytes = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&bytes);
    assert!(
        output.status.code().is_some_and(|it| [1, 3, 4].contains(&it)),
        "{:?}: {said}",
        output.status
    );
    assert!(said.contains("it has 1000000 process groups, of which 16384 are read"), "{said}");
}

#[test]
fn sequence_number_that_cannot_exist_is_unknown() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("job.out");
    let call = |rank: u32, op: &str| {
        format!(
            "Rank {rank} is running collective: CollectiveFingerPrint(SequenceNumber={}, OpType={op}, TensorShape=[1])",
            u64::MAX
        )
    };
    let text = format!(
        "[rank1]: RuntimeError: Detected mismatch between collectives on ranks. {}, but {}.\n",
        call(1, "BROADCAST"),
        call(0, "BARRIER"),
    );
    fs::write(&path, text).unwrap();
    let analysis = postmortem::analyze(&[path]);
    let [report] = &analysis.reports[..] else { panic!("{:?}", analysis.remarks) };
    assert_eq!(report.findings[0].code, "DD103");
}
