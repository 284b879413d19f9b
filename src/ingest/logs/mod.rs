//! Plain logs of a job: the output of torchrun, Slurm, NCCL and PyTorch, and stacks as text.
//!
//! A log is read line by line. Labels of launchers name the process and the time (`lines`), and the text states facts
//! (`facts`, and [`super::stack_text`]). Once all logs of a job are read, `job` finds out which rank each fact is
//! about, and `events` turns what is known of the ranks into events for the engine. `statements` does so for logs
//! that add to other evidence, and `claims` limits a report from logs alone.
//!
//! Logs are what ranks chose to print. Two rules follow. A rank is only one that the text names:
//! labels of tasks and of local ranks count if the text says which rank they are. And calls of a
//! group decide something only as far as the group's members are known: that all ranks in the text
//! agree says nothing about the others.

use std::io::{self, Cursor};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use ddp_doctor_host::input_files;
use ddp_doctor_proto::report::Timestamp;

use facts::{Facts, Statement};
use lines::Lines;

mod claims;
mod events;
mod facts;
mod folders;
mod job;
mod lines;
mod scan;
mod statements;

pub use claims::Claims;
pub use events::{Evidence, evidence};
pub use folders::{Files, find};
pub use statements::{GivenUp, OfRanks, Statements};

/// Maximum number of bytes read of one log, after decompression.
const MAX_BYTES: u64 = 8 << 30;

/// A log that was read.
#[derive(Debug)]
pub struct Log {
    /// The file.
    pub path: PathBuf,
    /// Number of bytes that were read, after decompression.
    pub bytes: u64,
    /// Why it could not be read to its end, if so.
    pub trouble: Option<String>,
    facts: Facts,
    written: Timestamp,
}

impl Log {
    /// Whether it states nothing about a job.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.facts.is_empty()
    }

    /// Whether it states that its job ended well.
    #[must_use]
    pub fn states_success(&self) -> bool {
        let mut facts = self.facts.facts.iter();
        facts.any(|fact| matches!(fact.what, Statement::Finished { .. }))
    }

    /// Whether some of its lines have a time.
    pub fn is_dated(&self) -> bool {
        self.facts.first.0 > 0
    }

    /// Moves its times into the year that is nearest to `known`, if no line states another one.
    pub fn set_year(&mut self, known: Timestamp) {
        let last = self.facts.last;
        if self.facts.guesses_year
            && let Some(moved) = lines::in_year_of(last, known)
        {
            self.shift(moved.0.wrapping_sub(last.0).cast_signed());
        }
    }

    /// Adds nanoseconds to all of its times.
    pub fn shift(&mut self, by: i64) {
        self.written.0 = self.written.0.saturating_add_signed(by);
        let facts = self.facts.facts.iter_mut().map(|fact| &mut fact.at);
        let stacks = self.facts.stacks.iter_mut().map(|it| &mut it.at);
        for at in facts.chain(stacks).chain([&mut self.facts.first, &mut self.facts.last]) {
            // Zero stands for an unknown time.
            if at.0 > 0 {
                at.0 = at.0.saturating_add_signed(by);
            }
        }
    }
}

/// Whether a file that begins like this, decompressed, may be a log.
#[must_use]
pub fn is_text(head: &[u8]) -> bool {
    lines::is_text(head)
}

/// Reads up to `limit` bytes of a log.
///
/// # Errors
///
/// Fails if the file cannot be opened or its first line cannot be read.
pub fn read(path: &Path, limit: u64) -> io::Result<Log> {
    let written = input_files::metadata(path)?
        .modified()
        .ok()
        .and_then(|it| it.duration_since(UNIX_EPOCH).ok())
        // Some file systems keep no times.
        .filter(|it| !it.is_zero())
        .map_or_else(Timestamp::now, |it| Timestamp(it.as_nanos() as u64));
    read_lines(path, written, || Lines::open(path, limit.min(MAX_BYTES)))
}

/// Reads a log from the contents of a file that was written at this time.
///
/// # Errors
///
/// Fails if the first line cannot be read.
pub fn read_contents(path: &Path, bytes: &Arc<[u8]>, written: Timestamp) -> io::Result<Log> {
    let open = || Ok(Lines::new(Box::new(Cursor::new(Arc::clone(bytes))), MAX_BYTES));
    read_lines(path, written, open)
}

fn read_lines(
    path: &Path,
    written: Timestamp,
    open: impl Fn() -> io::Result<Lines>,
) -> io::Result<Log> {
    let (facts, bytes, trouble) = facts::read(path, written, open)?;
    Ok(Log { path: path.to_owned(), bytes, trouble, facts, written })
}

#[cfg(test)]
mod tests;
