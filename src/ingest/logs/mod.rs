//! Plain logs of a job: the output of torchrun, Slurm, NCCL and PyTorch, and stacks as text.
//!
//! A log is read line by line (`lines`): labels of launchers name the process and the time
//! (`label`), and the text states facts (`c10d`, `nccl`, `launcher`, `traceback`, and
//! [`super::stack_text`]). Once all logs of a job are read, `names` finds out which rank each fact
//! is about, and `events` turns facts into events for the engine.
//!
//! Logs are what ranks chose to print. Two rules follow. A rank is only one that the text names:
//! labels of tasks and of local ranks count if the text says which rank they are. And calls of a
//! group decide something only as far as the group's members are known: that all ranks in the text
//! agree says nothing about the others.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use ddp_doctor_proto::report::Timestamp;

use super::stack_text::{Dump, Part};
use facts::{EndedHow, Facts, What, Who};
use label::{Label, Line, Written};
use launcher::Failure;
use lines::Lines;
use traceback::Traceback;

mod c10d;
mod ends;
mod events;
mod facts;
mod groups;
mod label;
mod launcher;
mod lines;
mod names;
mod nccl;
mod rank;
mod report;
mod scan;
mod start;
mod traceback;

pub use events::{Evidence, evidence};
pub use report::Claims;

/// Maximum number of processes that are distinguished in one file.
const MAX_STREAMS: usize = 65_536;
/// Maximum depth of the folders of a launcher.
const MAX_DEPTH: usize = 4;
/// Beginning of the names of folders for the attempts of torchrun.
const ATTEMPT: &str = "attempt_";
/// Maximum number of files read of one folder.
const MAX_FILES: usize = 65_536;

/// A log that was read.
#[derive(Debug)]
pub struct Log {
    /// The file.
    pub path: PathBuf,
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
}

/// Whether a file that begins like this may be a log.
#[must_use]
pub fn is_text(head: &[u8]) -> bool {
    lines::is_text(head)
}

/// Reads a log.
///
/// # Errors
///
/// Fails if the file cannot be opened or its first line cannot be read.
pub fn read(path: &Path) -> io::Result<Log> {
    let written = fs::metadata(path)?.modified();
    let written = written
        .ok()
        .and_then(|it| it.duration_since(UNIX_EPOCH).ok());
    let written = Timestamp(written.unwrap_or_default().as_nanos() as u64);
    let mut reader = Reader {
        facts: Facts::default(),
        streams: HashMap::new(),
        named: in_path(path),
        written: Written::at(written),
    };
    let mut lines = Lines::open(path)?;
    let mut text = String::new();
    let mut trouble = None;
    loop {
        match lines.read(&mut text) {
            Ok(true) => reader.line(&text),
            Ok(false) => break,
            Err(error) => {
                trouble = Some(format!("it could not be read to its end: {error}"));
                break;
            }
        }
    }
    Ok(Log {
        path: path.to_owned(),
        trouble,
        facts: reader.finish(),
        written,
    })
}

/// Files that may be logs in a folder, and in those that torchrun creates in it. Of the attempts that
/// torchrun keeps apart, only the last one counts.
#[must_use]
pub fn find(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    collect(dir, MAX_DEPTH, &mut found);
    found.sort_unstable();
    let attempt = |path: &PathBuf| numbered(path, ATTEMPT);
    let last = found.iter().filter_map(attempt).max();
    found.retain(|path| attempt(path) == last || attempt(path).is_none());
    found
}

fn collect(dir: &Path, depth: usize, found: &mut Vec<PathBuf>) {
    for entry in entries(dir) {
        let path = entry.path();
        if found.len() >= MAX_FILES {
            return;
        }
        // Links could lead around in circles.
        match entry.file_type() {
            Ok(kind) if kind.is_dir() && depth > 0 && is_torchruns(&path) => {
                collect(&path, depth - 1, found);
            }
            Ok(kind) if kind.is_dir() => {}
            Ok(_) if path.is_file() => found.push(path),
            _ => {}
        }
    }
}

fn entries(dir: &Path) -> impl Iterator<Item = fs::DirEntry> {
    fs::read_dir(dir).into_iter().flatten().flatten()
}

/// Whether a folder is one of `torchrun --log-dir`: "ID/attempt_0/3".
fn is_torchruns(dir: &Path) -> bool {
    let name = |path: &Path| {
        path.file_name()
            .and_then(|it| it.to_str())
            .map(str::to_owned)
    };
    let is_attempt = |name: &String| name.starts_with(ATTEMPT);
    let is_part = |name: &String| is_attempt(name) || name.bytes().all(|it| it.is_ascii_digit());
    name(dir).is_some_and(|it| is_part(&it))
        || entries(dir).any(|entry| name(&entry.path()).is_some_and(|it| is_attempt(&it)))
}

/// The number of the folder "attempt_2" in a path.
fn numbered(path: &Path, prefix: &str) -> Option<u32> {
    let mut names = path.iter().filter_map(|it| it.to_str());
    names.find_map(|name| name.strip_prefix(prefix)?.parse().ok())
}

/// The process that a path names: "rank3.log", or "attempt_0/3/stderr.log" of torchrun, where 3 is
/// the rank on its node.
fn in_path(path: &Path) -> Label {
    let name = path
        .file_name()
        .and_then(|it| it.to_str())
        .unwrap_or_default();
    let rank = name.to_ascii_lowercase();
    let rank = rank.match_indices("rank").find_map(|(at, key)| {
        let rest = &rank[at + key.len()..];
        let digits = rest.strip_prefix(['_', '-']).unwrap_or(rest);
        scan::number(digits).and_then(|it| u32::try_from(it).ok())
    });
    let is_output = matches!(name, "stdout.log" | "stderr.log");
    let folder = path.parent().and_then(|it| it.file_name()?.to_str());
    let local = folder.filter(|_| is_output && numbered(path, ATTEMPT).is_some());
    Label {
        rank: rank.filter(|&it| it < crate::diagnosis::model::MAX_WORLD),
        local: local.and_then(|it| it.parse().ok()),
        task: None,
    }
}

/// What one process is printing.
#[derive(Debug, Default)]
struct Stream {
    traceback: Traceback,
    failure: Failure,
    dump: Dump,
    dumped_at: Timestamp,
}

struct Reader {
    facts: Facts,
    streams: HashMap<Label, Stream>,
    /// Process that the path names.
    named: Label,
    written: Written,
}

impl Reader {
    fn line(&mut self, text: &str) {
        let mut line = Line::of(text, self.written);
        if line.label == Label::default() {
            line.label = self.named;
        }
        let at = self.facts.last.max(line.time.unwrap_or_default());
        self.facts.last = at;
        self.facts.name(line.label);
        if !self.streams.contains_key(&line.label) && self.streams.len() >= MAX_STREAMS {
            return;
        }
        let facts = &mut self.facts;
        let stream = self.streams.entry(line.label).or_default();
        match stream.dump.part(line.text) {
            Part::Begin => {
                stream.flush(line.label, facts);
                stream.dump.read(line.text);
                stream.dumped_at = at;
                return;
            }
            Part::Inside => {
                stream.dump.read(line.text);
                return;
            }
            Part::Foreign if stream.dump.has_threads() => stream.flush(line.label, facts),
            Part::Foreign => {}
        }
        launcher::torchrun(&line, at, &mut stream.failure, facts);
        let _is_known = c10d::read(&line, at, facts)
            || nccl::read(&line, at, facts)
            || launcher::slurm(&line, at, facts);
        stream.traceback.read(&line, at, facts);
    }

    fn finish(mut self) -> Facts {
        let mut streams: Vec<(Label, Stream)> = self.streams.into_iter().collect();
        streams.sort_unstable_by_key(|(label, _)| *label);
        for (label, mut stream) in streams {
            stream.traceback.finish(label, &mut self.facts);
            stream.flush(label, &mut self.facts);
        }
        self.facts
    }
}

impl Stream {
    /// Adds the stacks that were read.
    fn flush(&mut self, label: Label, facts: &mut Facts) {
        let dump = std::mem::take(&mut self.dump);
        let who = Who {
            label,
            pid: dump.pid,
            ..Who::default()
        };
        let signal = dump.signal;
        if signal.is_some() {
            let how = EndedHow {
                code: None,
                signal,
                for_memory: false,
            };
            facts.add(who.clone(), self.dumped_at, What::Ended(how));
        }
        if let Some(stacks) = dump.stacks(self.dumped_at) {
            facts.add_stacks(who, self.dumped_at, stacks, signal);
        }
    }
}

/// The time before `at`.
fn before(at: Timestamp, by: Duration) -> Timestamp {
    Timestamp(at.0.saturating_sub(by.as_nanos() as u64))
}

#[cfg(test)]
mod tests;
