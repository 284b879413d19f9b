//! Output formats and options of commands, and what they print to standard output.

use std::fs;

use ddp_doctor_proto::report::Report;
use serde_json::Value;

use crate::support::evidence::{analyze, boxes_of, journal, replace_boot_id, stderr, stdout};
use crate::support::process::program;

#[test]
fn several_jobs_yield_one_report_each() {
    let dir = tempfile::tempdir().unwrap();
    journal(dir.path());
    boxes_of(&dir.path().join("boxes"), [1, 1], [false, false]);
    let output = analyze(dir.path(), &["node-0.ddpj", "boxes", "--format", "json"]);
    let reports: Vec<Report> = serde_json::Deserializer::from_slice(&output.stdout)
        .into_iter()
        .collect::<Result<_, _>>()
        .unwrap();
    let mut jobs: Vec<_> = reports.iter().map(|it| it.job.id.as_str()).collect();
    jobs.sort_unstable();
    assert_eq!(jobs, ["job", "scenario"]);
    assert_eq!(output.status.code(), Some(1), "status of the worst report");
    let output = analyze(dir.path(), &["node-0.ddpj", "boxes", "--format", "sarif"]);
    let sarif: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(sarif["runs"].as_array().map(Vec::len), Some(2));
}

#[test]
fn every_format_prints_the_finding_to_stdout() {
    let dir = tempfile::tempdir().unwrap();
    journal(dir.path());
    for (format, mark) in [
        ("text", "error[DD103] op-mismatch: "),
        ("json", "\"code\": \"DD103\""),
        ("markdown", "## DD103 op-mismatch: "),
        ("sarif", "\"ruleId\": \"DD103\""),
        ("html", "\"code\":\"DD103\""),
        ("perfetto", "\"name\":\"DD103 op-mismatch\""),
        ("csv", ",DD103,op-mismatch,"),
    ] {
        let output = analyze(dir.path(), &["node-0.ddpj", "--format", format]);
        assert!(stdout(&output).contains(mark), "{format}: {}", stdout(&output));
        let shows_sources = ["text", "markdown", "html"].contains(&format);
        let said = if shows_sources { "ddp-doctor: source lines are not shown: " } else { "" };
        assert!(stderr(&output).starts_with(said), "{format}: {}", stderr(&output));
        assert_eq!(stderr(&output).lines().count(), usize::from(shows_sources));
        let by_variable = program(dir.path())
            .args(["analyze", "node-0.ddpj"])
            .env("DDP_DOCTOR_FORMAT", format)
            .output();
        assert_eq!(by_variable.unwrap().stdout, output.stdout);
    }
}

#[test]
fn timelines_are_exported_whatever_the_findings() {
    let dir = tempfile::tempdir().unwrap();
    journal(dir.path());
    let export = |arguments: &[&str]| {
        let mut export = program(dir.path());
        export.arg("export").args(arguments).output().unwrap()
    };
    let output = export(&["node-0.ddpj", "--format", "perfetto"]);
    let analyzed = analyze(dir.path(), &["node-0.ddpj", "--format", "perfetto"]);
    assert_eq!(output.stdout, analyzed.stdout);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(export(&["node-0.ddpj", "--format", "html"]).status.code(), Some(2));
    let output = export(&["node-0.ddpj", "--format", "jsonl"]);
    assert_eq!(output.status.code(), Some(0));
    let text = stdout(&output);
    let lines: Vec<Value> =
        text.lines().map(serde_json::from_str).collect::<Result<_, _>>().unwrap();
    assert_eq!(lines[0]["schema"], "ddp-doctor/timeline");
    let finding = lines.iter().find(|it| it["kind"] == "finding");
    assert_eq!(finding.unwrap()["finding"]["code"], "DD103");
    let ops = lines.iter().filter(|it| it["kind"] == "call");
    assert!(ops.clone().count() >= 2 && ops.clone().all(|it| it["op"].is_string()));
    let nothing = export(&["absent", "--format", "jsonl"]);
    assert_eq!(nothing.status.code(), Some(3));
    assert!(stderr(&nothing).contains("absent"), "{nothing:?}");
    assert_eq!(export(&["node-0.ddpj"]).status.code(), Some(2), "no format");
}

#[test]
fn fail_on_sets_the_exit_status() {
    let dir = tempfile::tempdir().unwrap();
    journal(dir.path());
    for (fail_on, status) in
        [("never", 0), ("note", 1), ("warning", 1), ("error", 1), ("critical", 0)]
    {
        let output = analyze(dir.path(), &["node-0.ddpj", "--fail-on", fail_on]);
        assert_eq!(output.status.code(), Some(status), "{fail_on}");
        let by_variable = program(dir.path())
            .args(["analyze", "node-0.ddpj"])
            .env("DDP_DOCTOR_FAIL_ON", fail_on)
            .output();
        assert_eq!(by_variable.unwrap().status.code(), Some(status));
    }
    let insufficient = tempfile::tempdir().unwrap();
    for path in boxes_of(insufficient.path(), [1, 1], [true, true]) {
        replace_boot_id(&path);
    }
    for fail_on in ["never", "note", "critical"] {
        let output = analyze(insufficient.path(), &[".", "--fail-on", fail_on]);
        assert_eq!(output.status.code(), Some(4), "{fail_on}");
    }
}

#[test]
fn color_and_quiet_options_are_honored() {
    let dir = tempfile::tempdir().unwrap();
    journal(dir.path());
    let colored = |arguments: &[&str], no_color: &str| {
        let mut command = program(dir.path());
        command.args(["analyze", "node-0.ddpj"]).args(arguments);
        let output = command.env("NO_COLOR", no_color).output().unwrap();
        stdout(&output).contains('\x1b')
    };
    assert!(!colored(&[], ""), "no terminal");
    assert!(colored(&["--color", "always"], ""));
    assert!(colored(&["--color", "always"], "1"), "the option wins");
    assert!(!colored(&["--color", "never"], ""));

    let whole = stdout(&analyze(dir.path(), &["node-0.ddpj"]));
    assert!(whole.starts_with("hang: job scenario, 2 ranks on 1 node"), "{whole}");
    let quiet = stdout(&analyze(dir.path(), &["node-0.ddpj", "-q"]));
    assert!(!quiet.contains("job scenario") && quiet.contains("[DD103]"), "{quiet}");
    let silent = analyze(dir.path(), &["node-0.ddpj", "never", "-qq"]);
    assert_eq!((stdout(&silent), stderr(&silent)), (String::new(), String::new()));
    assert_eq!(silent.status.code(), Some(1));
    let by_variable = program(dir.path())
        .args(["analyze", "node-0.ddpj", "never"])
        .env("DDP_DOCTOR_QUIET", "2")
        .output()
        .unwrap();
    assert_eq!((stdout(&by_variable), stderr(&by_variable)), (String::new(), String::new()));
}

#[test]
fn explain_accepts_codes_and_names() {
    let dir = tempfile::tempdir().unwrap();
    let explain =
        |arguments: &[&str]| program(dir.path()).arg("explain").args(arguments).output().unwrap();
    let by_code = explain(&["dd102"]);
    assert_eq!(by_code.status.code(), Some(0));
    assert!(stdout(&by_code).starts_with("DD102 early-exit: "));
    assert_eq!(explain(&["Early-Exit"]).stdout, by_code.stdout);
    let unknown = explain(&["early-exot"]);
    assert_eq!(unknown.status.code(), Some(3));
    assert!(stderr(&unknown).contains("DD102 early-exit"), "{}", stderr(&unknown));
    assert!(stdout(&explain(&[])).lines().count() > 50);
}

#[test]
fn full_standard_output_is_named() {
    let dir = tempfile::tempdir().unwrap();
    for arguments in [&["explain"][..], &["explain", "DD101"], &["check", "--format", "json"]] {
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let output = program(dir.path()).args(arguments).stdout(full).output().unwrap();
        assert_eq!(output.status.code(), Some(3), "{arguments:?}");
        let expected = "ddp-doctor: cannot write to standard output: No space left on device";
        assert!(stderr(&output).contains(expected), "{output:?}");
    }
}
