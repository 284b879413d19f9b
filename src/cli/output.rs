//! Standard output, with errors that name it, and lines on standard error.

use std::fmt::Display;
use std::io::{self, StdoutLock, Write};
use std::path::Path;

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

/// A path as one word of a command, for a shell.
pub(super) fn word(path: &Path) -> String {
    let text = path.to_string_lossy();
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+:@%=,".contains(c);
    if !text.is_empty() && !text.starts_with('-') && text.chars().all(is_plain) {
        return text.into_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Prints lines on standard error. Text of evidence or of another user, such as an address or the name of a file, can
/// neither control the terminal nor look like a line of its own. Standard error may be closed: the result counts.
pub(super) fn say(lines: impl Display) {
    let lines: Vec<String> = lines.to_string().lines().map(plain).collect();
    drop(writeln!(io::stderr(), "ddp-doctor: {}", lines.join("\n    ")));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shell_does_not_act_on_the_name_of_a_folder() {
        assert_eq!(word(Path::new("/runs/job-1_a")), "/runs/job-1_a");
        assert_eq!(word(Path::new("a b; $(x)")), "'a b; $(x)'");
        assert_eq!(word(Path::new("it's")), r"'it'\''s'");
        assert_eq!(word(Path::new("-rf")), "'-rf'");
    }
}
