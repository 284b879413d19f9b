//! Plain logs of a job: the output of torchrun, Slurm, NCCL and PyTorch, and stacks as text.
//!
//! A log is read line by line (`lines`): labels of launchers name the process and the time
//! (`label`, `containers`, `stamps`), and the text states facts (`c10d`, `nccl`, `launcher`, `traceback`, and
//! [`super::stack_text`]). Once all logs of a job are read, `names` finds out which rank each fact
//! is about, and `events` turns facts into events for the engine.
//!
//! Logs are what ranks chose to print. Two rules follow. A rank is only one that the text names:
//! labels of tasks and of local ranks count if the text says which rank they are. And calls of a
//! group decide something only as far as the group's members are known: that all ranks in the text
//! agree says nothing about the others.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::io::{self, Cursor};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ddp_doctor_proto::report::Timestamp;

use super::file_names;
use super::stack_text::{Dump, Part};
use containers::Prefixes;
use facts::{ExitStatus, Facts, LineNumber, Statement, Subject};
use failed_call::FailedCall;
use label::{Form, Label, Line};
use lines::{Lines, MAX_BYTES};
use stamps::Year;
use traceback::Traceback;

mod c10d;
mod containers;
mod ends;
mod events;
mod facts;
mod failed_call;
mod groups;
mod label;
mod launcher;
mod lines;
mod names;
mod nccl;
mod outcome;
mod rank;
mod report;
mod scan;
mod stamps;
mod start;
mod statements;
mod times;
mod traceback;
mod unknown;

pub use events::{Evidence, evidence};
pub use report::Claims;
pub use statements::{GivenUp, OfRanks, Statements};

/// Maximum number of processes that are distinguished in one file.
const MAX_STREAMS: usize = 65_536;
/// Maximum memory of tracebacks and stacks that are not complete, of all processes, in bytes.
const MAX_OPEN_BYTES: usize = 64 << 20;
/// Maximum depth of the folders of a launcher.
const MAX_DEPTH: usize = 4;
/// Beginning of the names of folders for the attempts of torchrun.
const ATTEMPT: &str = "attempt_";
/// Time by which facts without one precede those with one.
const EARLIER: Duration = Duration::from_secs(1);
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

    /// Whether it states that its job ended well.
    #[must_use]
    pub fn states_success(&self) -> bool {
        let mut facts = self.facts.facts.iter();
        facts.any(|fact| fact.what == Statement::Finished)
    }

    /// Adds nanoseconds to all of its times.
    pub(crate) fn shift(&mut self, by: i64) {
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

/// Reads a log.
///
/// # Errors
///
/// Fails if the file cannot be opened or its first line cannot be read.
pub fn read(path: &Path) -> io::Result<Log> {
    let written = fs::metadata(path)?.modified();
    let written = written.ok().and_then(|it| it.duration_since(UNIX_EPOCH).ok());
    // Some file systems keep no times.
    let written = written.filter(|it| !it.is_zero());
    let written = written.map_or_else(Timestamp::now, |it| Timestamp(it.as_nanos() as u64));
    read_lines(path, written, || Lines::open(path))
}

/// Reads a log from the contents of a file that was written at this time.
///
/// # Errors
///
/// Fails if the first line cannot be read.
pub(crate) fn read_contents(path: &Path, bytes: &Arc<[u8]>, written: Timestamp) -> io::Result<Log> {
    let open = || Ok(Lines::of(Box::new(Cursor::new(Arc::clone(bytes)))));
    read_lines(path, written, open)
}

fn read_lines(
    path: &Path,
    written: Timestamp,
    open: impl Fn() -> io::Result<Lines>,
) -> io::Result<Log> {
    let mut reader = Reader::of(path, Form::new(Year::Before(written)));
    let mut lines = open()?;
    let mut text = String::new();
    let mut trouble = None;
    loop {
        match lines.read(&mut text) {
            Ok(true) => reader.line(&text),
            Ok(false) if !reader.finds_containers() => break,
            Ok(false) => {}
            Err(error) => {
                trouble = Some(format!("it could not be read to its end: {error}"));
                break;
            }
        }
        if reader.begins_anew {
            reader = Reader::of(path, reader.form);
            lines = open()?;
        }
    }
    if lines.is_cut() {
        trouble = Some(format!("only its first {} GiB were read", MAX_BYTES >> 30));
    }
    let facts = reader.finish();
    if facts.is_incomplete {
        let text = "it reports more failures or stacks than are kept: the earliest failures and \
                    the latest stacks were dropped";
        trouble.get_or_insert_with(|| text.into());
    }
    Ok(Log { path: path.to_owned(), trouble, facts, written })
}

/// Files of a folder that may be logs.
#[derive(Debug, Default)]
pub struct Files {
    /// The files to read.
    pub paths: Vec<PathBuf>,
    /// Folders of earlier launches of torchrun, and of earlier attempts, whose files are left out.
    pub earlier: Vec<PathBuf>,
}

/// Finds files that may be logs in a folder, and in those that torchrun creates in it. Torchrun keeps
/// launches and their attempts apart. The last attempt counts of the newest launch, and of those that
/// ran at the same time: each node has a launch of its own.
#[must_use]
pub fn find(dir: &Path) -> Files {
    let mut files = Files::default();
    let mut found = Vec::new();
    collect(dir, MAX_DEPTH, &mut found);
    found.sort_unstable();
    let mut launches: BTreeMap<PathBuf, Vec<PathBuf>> = BTreeMap::new();
    for path in found {
        match launch_of(&path) {
            Some(launch) => launches.entry(launch).or_default().push(path),
            None => files.paths.push(path),
        }
    }
    let mut times = BTreeMap::new();
    let mut attempts = Vec::new();
    for (launch, paths) in &mut launches {
        let attempt = |path: &PathBuf| numbered(path, ATTEMPT);
        let last = paths.iter().filter_map(attempt).max();
        let (kept, dropped): (Vec<_>, Vec<_>) =
            paths.drain(..).partition(|path| attempt(path) == last);
        *paths = kept;
        let dropped: BTreeSet<u32> = dropped.iter().filter_map(attempt).collect();
        let folders = dropped.iter().rev();
        attempts.extend(folders.map(|it| launch.join(format!("{ATTEMPT}{it}"))));
        times.insert(launch.clone(), period(paths));
    }
    let newest = times.values().max_by_key(|(_, end)| *end).copied();
    for (launch, paths) in launches {
        let end = times.get(&launch).map(|(_, end)| *end);
        if end >= newest.map(|(start, _)| start) {
            files.paths.extend(paths);
        } else {
            attempts.retain(|it: &PathBuf| !it.starts_with(&launch));
            files.earlier.push(launch);
        }
    }
    files.earlier.extend(attempts);
    files
}

/// The folder of the launch of torchrun that wrote a file: the one that contains its attempts.
fn launch_of(path: &Path) -> Option<PathBuf> {
    let is_attempt = |path: &&Path| {
        let name = path.file_name().and_then(|it| it.to_str());
        name.is_some_and(|it| it.starts_with(ATTEMPT))
    };
    let attempt = path.ancestors().filter(is_attempt).last()?;
    attempt.parent().map(Path::to_owned)
}

/// When the first of these files was created and the last one was written, as far as it is known.
/// Torchrun creates files when an attempt begins, and adds none to their folders later.
fn period(paths: &[PathBuf]) -> (SystemTime, SystemTime) {
    let written = |path: &Path| fs::metadata(path).and_then(|it| it.modified()).ok();
    let folders = paths.iter().filter_map(|path| written(path.parent()?));
    let times = paths.iter().filter_map(|path| written(path)).chain(folders);
    let (start, end) = (times.clone().min(), times.max());
    (start.unwrap_or(UNIX_EPOCH), end.unwrap_or(UNIX_EPOCH))
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
    let name = |path: &Path| path.file_name().and_then(|it| it.to_str()).map(str::to_owned);
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

/// The process that a path names: "rank3.log", "`local_rank3.log`", or "attempt_0/3/stderr.log" of
/// torchrun, where 3 is the rank on its node.
fn in_path(path: &Path) -> Label {
    let name = path.file_name().and_then(|it| it.to_str()).unwrap_or_default();
    let stated = file_names::ranks(name);
    let is_output = matches!(name, "stdout.log" | "stderr.log" | "error.json");
    let folder = path.parent().and_then(|it| it.file_name()?.to_str());
    let local = folder.filter(|_| is_output && numbered(path, ATTEMPT).is_some());
    Label {
        rank: stated.global,
        local: stated.local.or_else(|| scan::rank(local?)),
        ..Label::default()
    }
}

/// What one process is printing.
#[derive(Debug, Default)]
struct Stream {
    traceback: Traceback,
    report: launcher::Report,
    failed_call: FailedCall,
    dump: Dump,
    dumped_at: Timestamp,
}

struct Reader {
    facts: Facts,
    streams: HashMap<Label, Stream>,
    /// Memory of the tracebacks and stacks that are not complete, in bytes.
    open_bytes: usize,
    max_open_bytes: usize,
    /// Process that the path names.
    named: Label,
    form: Form,
    /// Prefixes of lines, until it is known which ones are those of containers.
    prefixes: Prefixes,
    /// Some line without a year was read.
    has_guessed: bool,
    /// A line states the form of the file in another way than the lines before it were read.
    begins_anew: bool,
    /// The process whose message of several lines is being read.
    speaker: Option<Label>,
}

impl Reader {
    fn of(path: &Path, form: Form) -> Self {
        Self {
            facts: Facts::default(),
            streams: HashMap::new(),
            open_bytes: 0,
            max_open_bytes: MAX_OPEN_BYTES,
            named: in_path(path),
            form,
            prefixes: Prefixes::default(),
            has_guessed: false,
            begins_anew: false,
            speaker: None,
        }
    }

    fn line(&mut self, text: &str) {
        let mut line = Line::of(text, &self.form);
        self.prefixes.read(line.text);
        if let (Year::Before(_), Some(at)) = (self.form.year, line.full_time()) {
            self.form.year = Year::Near(at);
            self.begins_anew = self.has_guessed;
        }
        if line.shows_role.is_some() && self.form.is_role != Some(false) {
            // Lines of the program may have a label like that of a launcher.
            self.begins_anew |= line.shows_role != self.form.is_role.or(Some(false));
            self.form.is_role = line.shows_role;
        }
        self.has_guessed |= line.is_guessed;
        let is_bare = line.label == Label::default() && line.time.is_none();
        if let Some(label) = self.speaker.filter(|_| is_bare) {
            line.label = label;
        } else {
            // The lines of a message have its label in the first one only, if it has other words in front.
            let begins = traceback::is_message(line.text) || failed_call::begins(line.text);
            self.speaker = Some(line.label).filter(|_| begins);
        }
        line.label = line.label.or(self.named);
        let at = self.facts.last.max(line.time.unwrap_or_default());
        self.facts.last = at;
        if self.facts.first == Timestamp::default() {
            self.facts.first = at;
        }
        self.facts.line =
            LineNumber { number: self.facts.line.number + 1, is_dated: line.time.is_some() };
        self.facts.name(line.label);
        if !self.streams.contains_key(&line.label) && self.streams.len() >= MAX_STREAMS {
            return;
        }
        let stream = self.streams.entry(line.label).or_default();
        let before = stream.bytes();
        stream.line(&line, at, &mut self.facts);
        self.open_bytes = self.open_bytes + stream.bytes() - before;
        if self.open_bytes > self.max_open_bytes {
            self.flush(false);
        }
    }

    /// Whether lines have the prefixes of containers, which were not known before: the file is to be read again.
    fn finds_containers(&mut self) -> bool {
        let found = std::mem::take(&mut self.prefixes).containers();
        self.begins_anew = self.form.containers.is_empty() && !found.is_empty();
        if self.begins_anew {
            self.form.containers = found;
        }
        self.begins_anew
    }

    /// Adds what is not complete; `is_end`: the text ends here.
    fn flush(&mut self, is_end: bool) {
        let mut streams: Vec<(Label, Stream)> = self.streams.drain().collect();
        streams.sort_unstable_by_key(|(label, _)| *label);
        for (label, mut stream) in streams {
            if is_end {
                stream.traceback.end(label, &mut self.facts);
            } else {
                stream.traceback.finish(label, &mut self.facts);
            }
            stream.report.finish(&mut self.facts);
            stream.flush(label, &mut self.facts);
        }
        self.open_bytes = 0;
    }

    /// Takes the rank in the name of the file as that of lines without a label, unless the file has
    /// lines of other ranks as well.
    fn name_unlabelled(&mut self) {
        let named = self.named.rank;
        let is_only = self.facts.ranks.iter().all(|it| Some(*it) == named);
        let facts = self.facts.facts.iter_mut().map(|it| &mut it.who);
        let stacks = self.facts.stacks.iter_mut().map(|it| &mut it.who);
        for who in facts.chain(stacks).filter(|it| it.label.is_of_file) {
            let is_own = is_only && who.rank.is_none_or(|rank| Some(rank) == named);
            who.label.is_of_file = false;
            who.label.rank = named.filter(|_| is_own);
        }
        if let Some(rank) = named.filter(|_| is_only) {
            self.facts.ranks.insert(rank);
        }
    }

    fn finish(mut self) -> Facts {
        self.flush(true);
        self.name_unlabelled();
        self.facts.drop_network_warnings();
        // Tracebacks are complete some lines after they begin.
        self.facts.facts.sort_by_key(|fact| fact.line.number);
        self.facts
    }
}

impl Stream {
    /// Memory of the traceback and the stacks that are not complete, in bytes.
    const fn bytes(&self) -> usize {
        self.traceback.bytes() + self.report.bytes() + self.dump.bytes()
    }

    fn line(&mut self, line: &Line<'_>, at: Timestamp, facts: &mut Facts) {
        match self.dump.part(line.text) {
            Part::Begin => {
                self.flush(line.label, facts);
                self.dump.read(line.text);
                self.dumped_at = at;
                return;
            }
            Part::Inside => return self.dump.read(line.text),
            Part::Foreign if self.dump.has_threads() => self.flush(line.label, facts),
            Part::Foreign => {}
        }
        if launcher::torchrun(line, at, &mut self.report, facts) {
            return;
        }
        c10d::read(line, at, facts);
        nccl::read(line, at, facts);
        launcher::slurm(line, at, facts);
        launcher::process(line, at, facts);
        names::read(line, at, facts);
        self.failed_call.read(line, at, facts);
        self.traceback.read(line, at, facts);
    }

    /// Adds the stacks that were read.
    fn flush(&mut self, label: Label, facts: &mut Facts) {
        let dump = std::mem::take(&mut self.dump);
        let who = Subject { pid: dump.pid, ..label.into() };
        let signal = dump.signal;
        if let Some(signal) = signal {
            let how = ExitStatus::of_status(-signal);
            facts.add(who.clone(), self.dumped_at, Statement::Ended(how));
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
