//! Helpers shared by the integration tests.
//!
//! * `process`, `terminal`, `hosts`, `coordinator`: where programs under test run.
//! * `pytorch_jobs`, `compiled_programs`: the programs of jobs, in `tests/jobs` and `programs/`.
//! * `healthy_job`, `job_without_run`: jobs in the background of a test.
//! * `scenario`, `evidence`, `dumps`: evidence without a job.
//! * `report`: checks on reports.
//! * `heap`: counts allocations.
//!
//! `simulated_node.rs` is included by tests of the library and by a benchmark instead.

pub(crate) mod compiled_programs;
pub(crate) mod coordinator;
pub(crate) mod dumps;
pub(crate) mod evidence;
pub(crate) mod healthy_job;
pub(crate) mod heap;
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
