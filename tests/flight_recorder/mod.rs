//! `analyze` on Flight Recorder dumps.
//!
//! * `recorded_jobs`: dumps of real jobs.
//! * `generated_dumps`: dumps of rare situations.
//! * `waits`: ranks that wait for each other.
//! * `entry_forms`: the sides of one call, as backends record them.
//! * `files`: names, damage and times of dumps.
//! * `folders`: dumps in several folders.
//! * `pytorch_vectors`: the test vectors of PyTorch's analyzer, with the verdicts of `analyze`.
//! * `simulated_jobs`: simulated jobs with a known faulty rank.

mod entry_forms;
mod files;
mod folders;
mod generated_dumps;
mod pytorch_vectors;
mod recorded_jobs;
mod simulated_jobs;
mod waits;

use std::fs;

use ddp_doctor::postmortem::{self, Analysis};

/// Analyzes files with these names and contents in one directory.
fn analyze_contents(files: &[(String, Vec<u8>)]) -> Analysis {
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        fs::write(dir.path().join(name), bytes).unwrap();
    }
    postmortem::analyze(&[dir.path().to_owned()])
}
