//! Invariants of the architecture.
//!
//! * `backends`: what differs between backends is in one table.
//! * `dependencies`: the crates that a package may need.
//! * `imports`: modules use each other in one direction.
//! * `forbidden_code`: I/O in the engine, and unsafe code outside the listed files.
//! * `folders`: the number of source files in a folder.
//! * `bindings`: one `let` for one name.
//! * `names`: names of functions and limits, spelling and phrases.
//! * `documents`: pages and scenarios of every finding, and tests that documents name.

mod backends;
mod bindings;
mod dependencies;
mod documents;
mod folders;
mod forbidden_code;
mod imports;
mod names;

use std::fs;
use std::path::{Path, PathBuf};

/// Folders of code.
const CODE: [&str; 6] = ["src", "agent", "proto/src", "dashboard", "tests", "benches"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn files_below(folder: &str, extension: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|found| found == extension) {
                files.push(path);
            }
        }
    }
    assert!(!files.is_empty(), "no files below {folder}");
    files
}
