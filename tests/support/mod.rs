//! What tests share.

pub(crate) mod coordinator;
pub(crate) mod jobs;
pub(crate) mod process;
pub(crate) mod report;
pub(crate) mod scenario;
pub(crate) mod tmux;

use std::path::PathBuf;

/// A file that the build of the workspace has left beside the program: a library, or `examples/NAME`.
pub(crate) fn artifact(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let path = test.ancestors().nth(2).unwrap().join(name);
    let built = "cargo build --workspace --all-targets --all-features";
    assert!(
        path.exists(),
        "{} is missing: run `{built}`",
        path.display()
    );
    path
}
