//! Messages about files on standard error.

use std::path::PathBuf;

use crate::cli::output::say;
use crate::postmortem::Remark;

/// Prints messages about files, unless `quiet` is 2.
pub(in super::super) fn print(remarks: &[Remark], quiet: u8) {
    for remark in remarks.iter().filter(|_| quiet < 2) {
        say(remark);
    }
}

/// A message about files without evidence.
pub(in super::super) fn nothing_in(paths: &[PathBuf]) -> String {
    let paths: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    format!("no evidence of a job in {}", paths.join(", "))
}
