//! The programs of `tests/jobs/nccl`, each of which is a fault and its healthy twin in one.

use std::path::{Path, PathBuf};

use crate::harness::Doubles;

/// Compiles a program with its fault, or as its healthy twin.
pub(crate) fn compile(doubles: &Doubles, source: &Path, is_faulty: bool) -> PathBuf {
    let name = source.file_stem().unwrap().to_str().unwrap();
    let kind = source.extension().unwrap().to_str().unwrap();
    match (is_faulty, kind) {
        (false, _) => doubles.compile(source, &format!("healthy-{name}"), &[]),
        (true, "rs") => doubles.compile(source, &format!("faulty-{name}"), &["--cfg=faulty"]),
        (true, _) => doubles.compile(source, &format!("faulty-{name}"), &["-DFAULTY"]),
    }
}
