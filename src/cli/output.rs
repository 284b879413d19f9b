//! Standard output, with errors that name it, and lines on standard error.

use std::fmt::Display;
use std::io::{self, StdoutLock, Write};

pub(super) use crate::host::names::word;
use crate::report::text::plain;

/// Standard output of this process, locked.
#[derive(Debug)]
pub(super) struct Output(StdoutLock<'static>);

/// Locks standard output.
pub(super) fn output() -> Output {
    Output(io::stdout().lock())
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(named)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(named)
    }
}

/// Keeps the kind, by which a closed pipe is recognized. An interrupted write must stay as it is, since
/// callers try it again.
fn named(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::Interrupted => error,
        kind => io::Error::new(kind, format!("cannot write to standard output: {error}")),
    }
}

/// Prints lines on standard error. Text of evidence or of another user, such as an address or the name of a file, can
/// neither control the terminal nor look like a line of its own. Standard error may be closed: the result counts.
pub(super) fn say(lines: impl Display) {
    let lines: Vec<String> = lines.to_string().lines().map(plain).collect();
    drop(writeln!(io::stderr(), "ddp-doctor: {}", lines.join("\n    ")));
}
