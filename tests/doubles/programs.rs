//! The programs of `tests/jobs/nccl`, each of which is a fault and its healthy twin in one.

use std::path::Path;

/// What a program is to be called when it is compiled with its fault, or as its healthy twin, and the
/// compiler's options for that.
pub(crate) fn variant(source: &Path, is_faulty: bool) -> (String, &'static [&'static str]) {
    let name = source.file_stem().unwrap().to_str().unwrap();
    let is_rust = source.extension().is_some_and(|it| it == "rs");
    match (is_faulty, is_rust) {
        (false, _) => (format!("healthy-{name}"), &[]),
        (true, true) => (format!("faulty-{name}"), &["--cfg=faulty"]),
        (true, false) => (format!("faulty-{name}"), &["-DFAULTY"]),
    }
}
