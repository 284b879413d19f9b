//! Reads a log line by line: the lines of each process in turn.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::time::Duration;

use ddp_doctor_proto::report::Timestamp;

use super::accounting::Accounting;
use super::container_prefixes::Prefixes;
use super::dialects::{self, Dialects, Section};
use super::exit_status::End;
use super::failed_call::{self, FailedCall};
use super::traceback::{self, Traceback};
use super::{
    ExitStatus, Facts, LineNumber, Statement, Subject, c10d, caught, launcher, name_resolution,
    nccl, stated_rank,
};
use crate::file_names;
use crate::logs::lines::{Form, Label, Line, Lines, Year, of_title};
use crate::logs::{folders, scan};
use crate::stack_text::{Dump, Part};

/// What precedes stacks of a process in SGLang's log.
const STACKS: &str = "Pyspy dump for PID ";
/// Maximum number of processes that are distinguished in one file.
const MAX_STREAMS: usize = 65_536;
/// Maximum memory of tracebacks and stacks that are not complete, of all processes, in bytes.
const MAX_OPEN_BYTES: usize = 64 << 20;

/// Reads the facts of a log that was written at this time. `open` begins to read its lines; it is called again if a
/// line shows that those before it were read wrongly. Returns also how many bytes it has, and why it could not be read to
/// its end, if so.
pub(in super::super) fn read(
    path: &Path,
    written: Timestamp,
    open: impl Fn() -> io::Result<Lines>,
) -> io::Result<(Facts, u64, Option<String>)> {
    let mut reader = Reader::new(path, Form::new(Year::Before(written)));
    let mut lines = open()?;
    let mut text = String::new();
    let mut trouble = None;
    loop {
        match lines.read(&mut text) {
            Ok(true) => reader.line(&text),
            Ok(false) => {
                reader.form.terminal = reader.form.terminal.or(lines.terminal());
                let is_broken = lines.terminal().is_some();
                if is_broken {
                    reader.begins_anew = true;
                } else if !reader.finds_containers() {
                    break;
                }
            }
            Err(error) => {
                trouble = Some(format!("it could not be read to its end: {error}"));
                break;
            }
        }
        if reader.begins_anew {
            lines = open()?.broken_at(reader.form.terminal);
            reader = Reader::new(path, reader.form);
        }
    }
    trouble = lines.detect_cut().or(trouble);
    let facts = reader.finish();
    if facts.is_incomplete {
        let text = "it reports more failures or stacks than are kept: the earliest failures and \
                    the latest stacks were dropped";
        trouble.get_or_insert_with(|| text.into());
    }
    Ok((facts, lines.bytes(), trouble))
}

/// The process that a path names: "rank3.log", "`local_rank3.log`", or "attempt_0/3/stderr.log" of
/// torchrun, where 3 is the rank on its node.
fn in_path(path: &Path) -> Label {
    let name = path.file_name().and_then(|it| it.to_str()).unwrap_or_default();
    let stated = file_names::ranks(name);
    let is_output = matches!(name, "stdout.log" | "stderr.log" | "error.json");
    let folder = path.parent().and_then(|it| it.file_name()?.to_str());
    let local = folder.filter(|_| is_output && folders::attempt_of(path).is_some());
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
    dialects: Dialects,
    dump: Dump,
    dumped_at: Timestamp,
}

/// Maximum time between the last line of a log and that of its file, in any time zone. Files that are older were
/// copied.
const MAX_AGE: Duration = Duration::from_secs(2 * 86_400);

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
    /// The process that lists ranks in lines which begin as those of tasks do.
    lists: Option<Label>,
    /// The process whose message of several lines is being read.
    speaker: Option<Label>,
    /// The rank whose output a launcher is repeating.
    section: Option<u32>,
    /// The process whose error of NCCL is being read, the reason of which follows in lines without a label.
    reporter: Option<Label>,
    end: End,
    accounting: Accounting,
}

impl Reader {
    fn new(path: &Path, form: Form) -> Self {
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        Self {
            facts: Facts { file: scan::cut(&file, 256).into(), ..Facts::default() },
            streams: HashMap::new(),
            open_bytes: 0,
            max_open_bytes: MAX_OPEN_BYTES,
            named: in_path(path),
            form,
            prefixes: Prefixes::default(),
            has_guessed: false,
            begins_anew: false,
            lists: None,
            speaker: None,
            section: None,
            reporter: None,
            end: End::default(),
            accounting: Accounting::default(),
        }
    }

    fn line(&mut self, text: &str) {
        let mut line = Line::parse(text, &self.form);
        self.prefixes.read(line.text);
        let is_item = line.label.is_task_alone() && line.text.starts_with('[');
        self.lists = self.lists.filter(|_| is_item);
        if let Some(label) = self.lists {
            (line.label, line.text) = (label, text);
        }
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
        let own = self.speaker.filter(|it| line.time.is_none() && line.label.may_be(*it));
        if let Some(label) = own {
            line.label = label;
        } else {
            // The lines of a message have its label in the first one only, if it has other words in front.
            let begins = traceback::is_message(line.text)
                || failed_call::begins(line.text)
                || line.text.starts_with(STACKS);
            self.speaker = Some(line.label).filter(|_| begins);
        }
        if let Some(label) = self.reporter.filter(|_| line.label == Label::default())
            && nccl::is_reason(line.text)
        {
            line.label = label;
        } else {
            self.reporter = Some(line.label).filter(|_| traceback::begins_error(line.text));
        }
        if dialects::begins_list(line.text) {
            self.lists = Some(line.label);
        }
        match dialects::section(line.text) {
            Some(Section::Begin(rank)) => self.section = Some(rank),
            Some(Section::End) => self.section = None,
            None if line.label == Label::default() => line.label.rank = self.section,
            None => {}
        }
        line.label = line.label.or(self.named);
        let at = self.facts.last.max(line.time.unwrap_or_default());
        self.facts.last = at;
        if self.facts.first == Timestamp::default() {
            self.facts.first = at;
        }
        self.facts.line =
            LineNumber { number: self.facts.line.number + 1, is_dated: line.time.is_some() };
        self.end.read(&line, &mut self.facts);
        if line.label == Label::default() {
            self.accounting.read(line.text, at, &mut self.facts);
        }
        self.facts.name(line.label);
        if let Some(rank) = line.label.rank.filter(|_| line.is_own_rank) {
            stated_rank::read_host(text, rank, &mut self.facts);
        }
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
            stream.dialects.finish(&mut self.facts);
            stream.flush(label, &mut self.facts);
        }
        self.open_bytes = 0;
    }

    /// Takes the rank in the name of the file as that of lines without a label, unless the file has
    /// lines of other ranks as well.
    fn name_unlabeled(&mut self) {
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
        self.name_unlabeled();
        if let Year::Before(written) = self.form.year {
            self.facts.guesses_year = self.has_guessed;
            self.facts.has_no_year = self.has_guessed && written.since(self.facts.last) > MAX_AGE;
        }
        self.facts.drop_network_warnings();
        self.facts.drop_reports_on_servers();
        let calls = std::mem::take(&mut self.facts.nccl_calls);
        calls.finish(&mut self.facts);
        self.end.finish(&mut self.facts);
        // Tracebacks are complete some lines after they begin.
        self.facts.facts.sort_by_key(|fact| fact.line.number);
        self.facts
    }
}

impl Stream {
    /// Memory of the traceback and the stacks that are not complete, in bytes.
    const fn bytes(&self) -> usize {
        self.traceback.bytes() + self.report.bytes() + self.dump.bytes() + self.dialects.bytes()
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
        stated_rank::read(line, at, facts);
        self.dialects.read(line, at, facts);
        self.failed_call.read(line, at, facts);
        name_resolution::read(line, at, facts);
        self.traceback.read(line, at, facts);
        caught::read(line, at, facts);
    }

    /// Adds the stacks that were read.
    fn flush(&mut self, label: Label, facts: &mut Facts) {
        let dump = std::mem::take(&mut self.dump);
        let titled = dump.title.as_ref().and_then(|it| of_title(it, dump.pid));
        let label = titled.filter(|_| label.rank.is_none()).unwrap_or(label);
        facts.name(label);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_of_torchrun_has_the_local_rank_of_its_folder() {
        assert_eq!(in_path(Path::new("run/attempt_1/1/stderr.log")).local, Some(1));
    }

    #[test]
    fn memory_of_incomplete_tracebacks_is_limited() {
        let mut reader = Reader {
            max_open_bytes: 64 << 10,
            ..Reader::new(Path::new("a.log"), Form::new(Year::Before(Timestamp::now())))
        };
        let frame = "  File \"/job/train.py\", line 7, in step";
        for rank in 0..200 {
            reader.line(&format!("[rank{rank}]: Traceback (most recent call last):"));
            for _ in 0..10 {
                reader.line(&format!("[rank{rank}]: {frame}"));
            }
            let kept = reader.streams.values().map(Stream::bytes).sum::<usize>();
            assert_eq!(kept, reader.open_bytes);
            assert!(kept <= reader.max_open_bytes);
        }
        assert!(reader.streams.len() < 200);
    }
}
