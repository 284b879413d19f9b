//! Helpers shared by the integration tests.

pub(crate) mod compiled_programs;
pub(crate) mod coordinator;
pub(crate) mod dumps;
pub(crate) mod evidence;
pub(crate) mod healthy_job;
pub(crate) mod hosts;
pub(crate) mod job_without_run;
pub(crate) mod process;
pub(crate) mod pytorch_jobs;
pub(crate) mod report;
pub(crate) mod scenario;
pub(crate) mod terminal;

use std::path::PathBuf;

/// Path of a build product beside the program: a library, or `examples/NAME`. Panics if it is
/// missing.
pub(crate) fn artifact(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let path = test.ancestors().nth(2).unwrap().join(name);
    let built = "cargo build --workspace --all-targets --all-features";
    assert!(path.exists(), "{} is missing: run `{built}`", path.display());
    path
}
