//! Messages about files on standard error.

use std::io::{self, Write};
use std::path::PathBuf;

use crate::postmortem::Remark;
use crate::report::text::plain;

/// Prints messages about files, unless `quiet` is 2.
pub(in super::super) fn print(remarks: &[Remark], quiet: u8) {
    for remark in remarks.iter().filter(|_| quiet < 2) {
        let line = plain(&remark.to_string());
        // Standard error may be closed: the result counts.
        drop(writeln!(io::stderr(), "ddp-doctor: {line}"));
    }
}

/// A message about files without evidence.
pub(in super::super) fn nothing_in(paths: &[PathBuf]) -> String {
    let paths: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    format!("no evidence of a job in {}", paths.join(", "))
}
