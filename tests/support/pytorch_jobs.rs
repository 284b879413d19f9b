//! The programs in `tests/jobs`, and the Python environment that runs them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The folder of the programs.
pub(crate) fn jobs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/jobs")
}

/// A variant of a Python program, such as `faulty/op_mismatch.py`.
pub(crate) fn variant(name: &str) -> PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let folder = variants();
        let written = Command::new("python3").arg(jobs().join("variants.py")).arg(&folder).status();
        assert!(written.unwrap().success());
        folder
    });
    folder.join(name)
}

/// Directory of the variants; each test binary has its own.
pub(crate) fn variants() -> PathBuf {
    let name = format!("jobs-{}", env!("CARGO_CRATE_NAME"));
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// The command that starts ranks of a Python program through `tests/jobs/support/launch.py`.
pub(crate) fn launch(ranks: u32, program: &Path) -> Vec<PathBuf> {
    let launcher = jobs().join("support/launch.py");
    vec!["python".into(), launcher, ranks.to_string().into(), program.into()]
}

/// The Python environment with PyTorch, or `None` without one.
///
/// Panics instead of returning `None` if `DDP_DOCTOR_REQUIRE_PYTORCH` is set.
pub(crate) fn venv() -> Option<&'static Path> {
    static VENV: OnceLock<Option<PathBuf>> = OnceLock::new();
    VENV.get_or_init(|| {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/pytorch-env");
        let found = Command::new(script).arg("--find").output().unwrap();
        if found.status.success() {
            return Some(PathBuf::from(String::from_utf8(found.stdout).unwrap().trim()));
        }
        let is_required = std::env::var_os("DDP_DOCTOR_REQUIRE_PYTORCH").is_some();
        assert!(!is_required, "{}", String::from_utf8_lossy(&found.stderr));
        eprintln!("skipped: {}", String::from_utf8_lossy(&found.stderr).trim());
        None
    })
    .as_deref()
}
