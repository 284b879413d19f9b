//! The programs in `tests/jobs/nccl`, each of which compiles to a faulty and a healthy variant.

use std::path::Path;

/// Name of the compiled variant of a program, and the compiler options for it.
pub(crate) fn variant(source: &Path, is_faulty: bool) -> (String, &'static [&'static str]) {
    let name = source.file_stem().unwrap().to_str().unwrap();
    let is_rust = source.extension().is_some_and(|it| it == "rs");
    match (is_faulty, is_rust) {
        (false, _) => (format!("healthy-{name}"), &[]),
        (true, true) => (format!("faulty-{name}"), &["--cfg=faulty"]),
        (true, false) => (format!("faulty-{name}"), &["-DFAULTY"]),
    }
}
