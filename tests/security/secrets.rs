//! Secrets of the environment: they are never printed, and the processes of a job do not inherit them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::process::Command;

use crate::support::compiled_programs::training;
use crate::support::coordinator::Coordinator;
use crate::support::process::{PROGRAM, program, run_to_end, without_own_variables};

const TOKEN: &str = "the-token-of-this-job";
const METRICS_TOKEN: &str = "the-token-of-its-metrics";
/// A webhook without a scheme, as it is pasted by mistake.
const INVALID: &str = "hooks.example.com/services/the-secret-path";

#[test]
fn invalid_webhook_is_never_printed() {
    let dir = tempfile::tempdir().unwrap();
    for arguments in [
        &["run", "--", "true"][..],
        &["coordinator", "--listen", "127.0.0.1:0"],
        &["run", "--webhook", INVALID, "--", "true"],
        &["coordinator", "--webhook", INVALID],
        &["coordinator", "--help"],
    ] {
        let mut command = program(dir.path());
        command.env("DDP_DOCTOR_WEBHOOK", INVALID).args(arguments);
        let finished = run_to_end(command);
        assert!(!finished.to_string().contains("secret-path"), "{arguments:?}: {finished}");
        if arguments[0] == "run" && arguments[1] == "--" {
            assert_eq!(finished.status, Some(0), "{finished}");
            let line = "ddp-doctor: DDP_DOCTOR_WEBHOOK is ignored: not a valid value\n";
            assert!(finished.stderr.contains(line), "{finished}");
        } else if !arguments.contains(&"--help") {
            assert_eq!(finished.status, Some(2), "{finished}");
            assert!(finished.stderr.contains("not a URL like https://"), "{finished}");
        }
    }
}

/// The secret of the metrics crosses the network in plain text.
#[test]
fn metrics_have_no_token_of_the_coordinator() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    fs::write(&file, TOKEN).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let file = file.to_str().unwrap();
    for arguments in
        [&["--token-file", file][..], &["--token-file", file, "--metrics-token-file", file]]
    {
        let mut command = program(dir.path());
        command.env("DDP_DOCTOR_METRICS_TOKEN", TOKEN).args([
            "coordinator",
            "--metrics",
            "127.0.0.1:0",
        ]);
        command.args(["--listen", "127.0.0.1:0"]).args(arguments);
        let finished = run_to_end(command);
        assert_eq!(finished.status, Some(3), "{arguments:?}: {finished}");
    }
}

#[test]
fn ranks_do_not_inherit_secrets() {
    let dir = tempfile::tempdir().unwrap();
    let script = "env; echo mode $(stat -c %a \"$DDP_DOCTOR_TOKEN_FILE\"); \
                  echo token $(cat \"$DDP_DOCTOR_TOKEN_FILE\")";
    for switch in ["1", "0"] {
        let mut command = program(dir.path());
        command
            .env("DDP_DOCTOR", switch)
            .env("DDP_DOCTOR_TOKEN", format!("{TOKEN}\n"))
            .env("DDP_DOCTOR_METRICS_TOKEN", METRICS_TOKEN)
            .env("DDP_DOCTOR_WEBHOOK", "http://127.0.0.1:9/the-secret-path")
            .args(["run", "--run-dir", "kept", "--", "sh", "-c", script]);
        let finished = run_to_end(command);
        assert_eq!(finished.status, Some(0), "{finished}");
        let environment = finished.stdout.replace(&format!("token {TOKEN}\n"), "");
        for secret in [TOKEN, METRICS_TOKEN, "secret-path"] {
            assert!(!environment.contains(secret), "{finished}");
        }
        if switch == "1" {
            let file = format!("mode 600\ntoken {TOKEN}\n");
            assert!(finished.stdout.ends_with(&file), "{finished}");
        }
    }
    assert!(!dir.path().join("kept/token").exists());
    for file in ["run.json", "journal.ddpj", "report.json"] {
        let content = fs::read(dir.path().join("kept").join(file)).unwrap();
        assert!(!String::from_utf8_lossy(&content).contains(TOKEN), "{file}");
    }
}

/// A rank that `run` does not follow, such as one on another host, starts a reporter, which reads the token
/// from the file.
#[test]
fn reporter_below_a_run_finds_the_token() {
    let coordinator = Coordinator::start_remote(TOKEN);
    let dir = tempfile::tempdir().unwrap();
    let boxes = dir.path().join("boxes");
    let script = "unset DDP_DOCTOR_RUN_DIR; exec \"$0\" 2";
    let mut command = program(dir.path());
    command
        // Blanks around a secret do not belong to it.
        .env("DDP_DOCTOR_TOKEN", format!("  {TOKEN} \n"))
        .args(["run", "--job", "outer", "--", "env"])
        .arg(format!("DDP_DOCTOR_BOX_DIR={}", boxes.display()))
        .arg(format!("DDP_DOCTOR_COORDINATOR=0.0.0.0:{}", coordinator.port()))
        .arg(format!("DDP_DOCTOR_PROGRAM={}", env!("CARGO_BIN_EXE_ddp-doctor")))
        .args(["DDP_DOCTOR_JOB=elsewhere", "sh", "-c", script, training()]);
    let finished = run_to_end(command);
    assert_eq!(finished.status, Some(0), "{finished}");
    let report = coordinator.until("elsewhere", |report| report.ranks.len() == 2);
    assert_eq!(report.job.id, "elsewhere");
}

/// A core file would contain the token. The job has the limit that `run` was started with.
#[test]
fn program_with_secrets_leaves_no_core_file() {
    let dir = tempfile::tempdir().unwrap();
    let script = r#"
        ulimit -c unlimited || exit 0
        chmod 700 .
        "$PROGRAM" run -- sh -c 'ulimit -c; grep "core file" /proc/$PPID/limits'
        "$PROGRAM" coordinator --listen 127.0.0.1:0 > address &
        while [ ! -s address ]; do sleep 0.05; done
        grep 'core file' /proc/$!/limits
        kill -ABRT $!
        wait $!
        "$PROGRAM" status "$SILENT" 2> status &
        while [ -e /proc/$!/limits ] && ! grep 'core file size  *1 ' /proc/$!/limits; do sleep 0.05; done
        kill $!
        ls
    "#;
    // Accepts connections, and does not answer.
    let silent = dir.path().join("silent.sock");
    let _silent = UnixListener::bind(&silent).unwrap();
    let mut command = Command::new("sh");
    without_own_variables(&mut command);
    command.current_dir(dir.path()).args(["-c", script]);
    command.env("PROGRAM", PROGRAM).env("DDP_DOCTOR_TOKEN", TOKEN);
    command.env("SILENT", format!("unix:{}", silent.display()));
    let finished = run_to_end(command);
    let limits = finished.stdout.matches("Max core file size        1 ").count();
    assert!(finished.stdout.is_empty() || limits == 3, "{finished}");
    assert!(finished.stdout.is_empty() || finished.stdout.starts_with("unlimited\n"), "{finished}");
    assert!(!finished.stdout.lines().any(|line| line.starts_with("core")), "{finished}");
}

#[test]
fn users_own_token_file_in_the_run_directory_stays() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("kept")).unwrap();
    fs::write(dir.path().join("kept/token"), "of another program").unwrap();
    let mut command = program(dir.path());
    command.env("DDP_DOCTOR_TOKEN", TOKEN);
    command.args(["run", "--run-dir", "kept", "--", "sh", "-c", "cat kept/token"]);
    let finished = run_to_end(command);
    assert_eq!(finished.stdout, "of another program", "{finished}");
    assert_eq!(fs::read_to_string(dir.path().join("kept/token")).unwrap(), "of another program");
}
