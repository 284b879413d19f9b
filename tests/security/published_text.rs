//! What other users can read of a run, and what evidence can do to the terminal of its reader.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use ddp_doctor::host::files;

use crate::support::process::{program, run_to_end};

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn others_read_only_a_report_that_is_published() {
    let dir = tempfile::tempdir().unwrap();
    let kept = dir.path().join("kept");
    fs::create_dir(&kept).unwrap();
    fs::set_permissions(&kept, fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = program(dir.path());
    let inside =
        "umask 000; exec \"$0\" run --run-dir kept --report published.json -- true --key secret";
    let path = command.get_program().to_owned();
    command = {
        let mut shell = std::process::Command::new("sh");
        shell.current_dir(dir.path()).envs(command.get_envs().filter_map(|(k, v)| Some((k, v?))));
        shell.arg("-c").arg(inside).arg(path);
        shell
    };
    let finished = run_to_end(command);
    assert_eq!(finished.status, Some(0), "{finished}");
    for name in ["run.json", "report.json"] {
        let file = kept.join(name);
        assert!(!file.exists() || mode(&file) == 0o600, "{name}: {:o}", mode(&file));
    }
    assert_eq!(mode(&dir.path().join("published.json")), 0o644);
}

#[test]
fn report_in_place_of_a_link_to_a_device_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let link = dir.path().join("stdout");
    symlink("/dev/null", &link).unwrap();
    let error = files::publish(&link, b"report").unwrap_err();
    assert!(error.to_string().ends_with("is not a regular file"), "{error}");
    assert!(link.is_symlink());
}

#[test]
fn error_does_not_control_the_terminal() {
    let dir = tempfile::tempdir().unwrap();
    let name = "x\u{1b}]0;title\u{7}\nddp-doctor: all is well\u{9b}31m";
    let mut command = program(dir.path());
    command.args(["status", name]);
    let finished = run_to_end(command);
    assert_eq!(finished.status, Some(3), "{finished}");
    let is_control = |c: char| c.is_control() && c != '\n';
    assert!(!finished.stderr.contains(is_control), "{finished}");
    assert!(finished.stderr.lines().skip(1).all(|line| line.starts_with("    ")), "{finished}");
}
