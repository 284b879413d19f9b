//! Tracebacks of Python, also interleaved ones if labels tell the processes apart.

use ddp_doctor_diagnosis::model::libc_signal::KILL;
use ddp_doctor_proto::report::{Timestamp, Where};
use ddp_doctor_proto::words::signal_name;

use super::launcher::{of_local, ray_worker};
use super::{ExitStatus, Facts, LineNumber, Statement, Subject, c10d};
use crate::logs::lines::{Label, Line, Worker, bracketed_rank, report_time};
use crate::logs::scan::{self, cut};
use crate::stack_text::{frame_bytes, python_frame, users_line};

/// Maximum number of frames kept of a traceback; the outermost ones are dropped.
const MAX_FRAMES: usize = 128;
/// Maximum number of lines kept of a message.
const MAX_LINES: usize = 8;
/// Maximum length of the text of an exception.
const MAX_TEXT: usize = 4096;

pub(super) const BEGIN: &str = "Traceback (most recent call last):";
/// How an exception that wraps one of a worker process quotes that.
const ORIGINAL: &str = "Original Traceback (most recent call last):";
const BECAUSE: &str = "The above exception was the direct cause";
const WHILE: &str = "During handling of the above exception";
/// Exceptions of launchers that report what ranks state themselves.
const REPORTS: [&str; 6] = [
    "Engine core initialization failed",
    "EngineDeadError",
    "WorkerProc initialization failed",
    "ChildFailedError",
    "SignalException",
    "ProcessRaisedException",
];
/// How a line of ACL begins that follows an exception of HCCL.
const ACL: &str = "[ERROR] ";
/// How a parent quotes the exception that ended its worker.
const QUOTES: &str = "Worker failed with error '";
/// How watchdogs report an error of NCCL.
const ASYNC: &str = "raised the following async exception: ";
/// What precedes the operation that a watchdog gave up.
const OPERATION: &str = "OpType=";
const THROWN: &str = "watchdog thread terminated with exception: ";

/// What precedes the traceback of a worker of vLLM whose exception ends its engine.
const FATAL: &str = "WorkerProc hit an exception";
/// The same in the first line of a traceback of SGLang.
const FATAL_IN_LINE: &str = "Scheduler hit an exception: ";
/// What precedes the rank whose parameters had no gradient.
const WITHOUT_GRADIENT: &str = " which did not receive grad for rank ";

/// What a process prints when it exits.
const EXITS: &str = "destroy_process_group() was not called before program exit";

/// How Ray reports that it killed a process of a node that had too little memory.
const LOW_MEMORY: &str = "killed due to the node running low on memory";

/// Exceptions that count without a traceback: no program prints them in the course of its work.
const BARE: [&str; 7] = [
    LOW_MEMORY,
    "ActorDiedError",
    "CUDA out of memory",
    "HIP out of memory",
    "Expected to have finished reduction in the prior iteration",
    "The client socket has timed out",
    "NCCL error in:",
];

/// The traceback that a process is printing.
#[derive(Debug, Default)]
pub(super) struct Traceback {
    /// Frames, outermost first.
    frames: Vec<Where>,
    /// Memory of the frames, in bytes.
    bytes: usize,
    is_open: bool,
    /// Frames of a traceback whose first line is missing.
    headless: Vec<Where>,
    is_own_rank: bool,
    /// Nothing can catch it: C++ reports it.
    is_thrown: bool,
    /// The exception and the number of its lines.
    text: String,
    lines: usize,
    at: Timestamp,
    /// The line in which the text of the exception begins.
    begins: LineNumber,
    /// The last line of the process belongs to it.
    is_last: bool,
    /// The line before is one of a logger, with its time.
    follows_log: bool,
    /// The traceback follows such a line.
    is_logged: bool,
    /// It did not end its process: that wrote further output of the program, or reports the exception as ignored.
    went_on: bool,
    /// The line before begins a report of an exception that does not end its process.
    is_ignored: bool,
    /// The line before states that the exception ends its process.
    is_fatal: bool,
    /// The traceback follows such a line.
    ends_process: bool,
    /// The process whose exception `torch.multiprocessing.spawn` prints, by its index.
    spawned: Option<u32>,
    /// The rank whose exception another one prints, as a part of a distributed checkpoint's.
    of_rank: Option<u32>,
    /// The worker of Ray that raised the exception, which the driver prints.
    of_worker: Option<Label>,
    /// The exception that caused the one being printed.
    cause: Option<(String, Vec<Where>)>,
}

impl Traceback {
    /// Memory of the frames so far, in bytes.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Reads one line of a process.
    pub(super) fn read(&mut self, line: &Line<'_>, at: Timestamp, facts: &mut Facts) {
        if !line.text.trim().is_empty() && !scan::has(line.text, EXITS) {
            if facts.awaits_progress() && is_progress(line) {
                facts.progresses(line.time);
            }
            self.is_last = self.part(line, at, facts);
        }
    }

    /// Reads a line that is not empty. Returns whether it belongs to a traceback.
    fn part(&mut self, line: &Line<'_>, at: Timestamp, facts: &mut Facts) -> bool {
        let text = line.text;
        if let Some(index) = spawned(text) {
            self.finish(line.label, facts);
            self.spawned = Some(index);
            return true;
        }
        if text.ends_with(ORIGINAL) {
            // The exception that wraps the original one says less.
            self.text.clear();
        }
        let is_ignored = std::mem::replace(&mut self.is_ignored, ends_no_process(text));
        let is_fatal = std::mem::replace(&mut self.is_fatal, text.contains(FATAL));
        let follows_log = std::mem::replace(&mut self.follows_log, is_log(line));
        let of_rank = failed_rank(text);
        if text.ends_with(BEGIN) || of_rank.is_some() || is_box(text) {
            let spawned = self.spawned.filter(|_| self.text.is_empty());
            // The exception that follows has a cause, which was printed before.
            if !self.text.is_empty() || self.cause.is_none() {
                self.finish(line.label, facts);
            }
            self.spawned = spawned;
            self.of_rank = of_rank;
            self.bytes -= size_of_frames(&self.frames);
            self.frames.clear();
            self.is_open = true;
            self.is_own_rank = line.is_own_rank;
            self.ends_process = is_fatal || text.contains(FATAL_IN_LINE);
            self.went_on |= is_ignored;
            self.is_logged = follows_log || self.cause.is_some() && self.is_logged;
            self.at = at;
            return true;
        }
        let thrown = scan::after(text, THROWN)
            .or_else(|| scan::after(text, ASYNC))
            .or_else(|| text.trim_start().strip_prefix("what():  "));
        if let Some(thrown) = thrown {
            // The watchdog reports its timeouts separately.
            self.finish(line.label, facts);
            if !is_timeout_of_watchdog(thrown) {
                self.is_thrown = true;
                self.of_rank = c10d::rank_in_world(text).or_else(|| bracketed_rank(text));
                self.begin_message(thrown, at, facts);
            } else if !thrown.contains(OPERATION) {
                let who = Subject { rank: bracketed_rank(text), ..c10d::who(line) };
                facts.add(who, at, c10d::unstated_timeout());
            }
            return true;
        }
        if self.is_open {
            return self.inside(text, at, facts);
        }
        let is_complete = self.lines == MAX_LINES;
        if self.text.is_empty() || is_complete {
            let is_alone = is_exception(text) && is_error(text);
            let is_bare = !line.is_own_rank && BARE.iter().any(|it| text.contains(it));
            let headless = self.headless(text);
            if is_alone && (line.is_own_rank || is_bare || !headless.is_empty()) {
                self.finish(line.label, facts);
                self.bytes += size_of_frames(&headless);
                self.frames = headless;
                self.is_own_rank = line.is_own_rank;
                self.begin_message(text, at, facts);
                return true;
            }
            if self.text.is_empty() {
                return false;
            }
        }
        if text.starts_with(BECAUSE) || text.starts_with(WHILE) {
            self.begin_next(text.starts_with(BECAUSE));
            return true;
        }
        let goes_on = !is_complete && self.is_message(line);
        if goes_on {
            self.lines += 1;
            self.text.push(' ');
            self.text.push_str(text.trim());
        } else {
            self.lines = MAX_LINES;
            if !self.is_thrown && self.spawned.is_none() && is_progress(line) {
                self.went_on = true;
                self.finish(line.label, facts);
            }
        }
        goes_on
    }

    /// Takes a line outside of tracebacks. Returns the frames directly above it, if it is none of them.
    fn headless(&mut self, text: &str) -> Vec<Where> {
        match python_frame(text) {
            Some(frame) if self.headless.len() < MAX_FRAMES => {
                self.bytes += frame_bytes(&frame);
                self.headless.push(frame);
            }
            _ if text.starts_with("    ") => {}
            _ => {
                let frames = std::mem::take(&mut self.headless);
                self.bytes = self.bytes.saturating_sub(size_of_frames(&frames));
                return frames;
            }
        }
        Vec::new()
    }

    /// Reads a line below the beginning of a traceback. Returns whether it belongs to it.
    fn inside(&mut self, text: &str, at: Timestamp, facts: &mut Facts) -> bool {
        if let Some(frame) = python_frame(text).or_else(|| boxed_frame(text)) {
            self.bytes += frame_bytes(&frame);
            self.frames.push(frame);
            if self.frames.len() > 2 * MAX_FRAMES {
                let dropped: Vec<Where> = self.frames.drain(..MAX_FRAMES).collect();
                self.bytes -= size_of_frames(&dropped);
            }
            return true;
        }
        if text.starts_with(|it: char| it.is_whitespace() || matches!(it, '│' | '╰')) {
            return true;
        }
        if is_exception(text) {
            self.is_open = false;
            self.begin_message(text, at, facts);
            return true;
        }
        if let Some(worker) = worker_of_ray(text) {
            self.of_worker = Some(worker);
            return true;
        }
        // Another process wrote between the lines.
        false
    }

    /// Begins the exception that was raised while this one was handled, or because of it: `is_cause`.
    fn begin_next(&mut self, is_cause: bool) {
        let is_cause =
            is_cause || ddp_doctor_diagnosis::input::allocation::failed(&self.text).is_some();
        let before = (std::mem::take(&mut self.text), std::mem::take(&mut self.frames));
        self.cause = is_cause.then(|| self.cause.take().unwrap_or(before));
        let kept = self.cause.as_ref().map(|(_, frames)| frames);
        self.bytes = kept.map_or(0, |frames| size_of_frames(frames));
        self.lines = 0;
    }

    fn begin_message(&mut self, text: &str, at: Timestamp, facts: &mut Facts) {
        self.begins = facts.line;
        facts.has_progressed = false;
        self.text = cut(text.trim(), MAX_TEXT).to_owned();
        self.lines = 1;
        if self.at == Timestamp::default() {
            self.at = at;
        }
    }

    /// Whether a line continues the message: messages of NCCL and DDP have several lines.
    fn is_message(&self, line: &Line<'_>) -> bool {
        let known = [
            "NCCL",
            "DistBackendError",
            "finished reduction",
            "monitoredBarrier",
            "ActorDiedError",
            "Hccl",
            "hccl api failed",
            "Graph execution error",
            LOW_MEMORY,
        ];
        known.iter().any(|it| self.text.contains(it))
            && line.time.is_none()
            && self.text.len() < MAX_TEXT
            && !line.text.contains(" NCCL INFO ")
            && !line.text.contains(" NCCL WARN ")
            && (!begins_another_message(line.text)
                || self.is_of_hccl() && line.text.starts_with(ACL))
            && !line.text.contains("torch.distributed.")
            && !line.text.starts_with("Exception raised from")
    }

    /// Whether HCCL raised it, whose reason follows in lines of their own.
    fn is_of_hccl(&self) -> bool {
        self.text.contains("Hccl")
    }

    /// Adds the exception to the facts at the end of the text: one that is the last output of its process, and
    /// after which no other states its progress, or the traceback that is cut off there.
    pub(super) fn end(&mut self, label: Label, facts: &mut Facts) {
        if self.is_open && self.is_last && self.is_own_rank && self.cause.is_none() {
            let innermost = std::mem::take(&mut self.frames).into_iter().rev();
            let place = users_line(innermost.collect());
            facts.add(label.into(), self.at, Statement::CutOff { place });
        }
        let is_last = self.is_last && self.begins.number > facts.progress;
        self.add(label, is_last, facts);
    }

    /// Adds the exception to the facts, if there is one.
    pub(super) fn finish(&mut self, label: Label, facts: &mut Facts) {
        self.add(label, false, facts);
    }

    fn add(&mut self, label: Label, is_last: bool, facts: &mut Facts) {
        let Self {
            frames,
            text,
            at,
            begins,
            cause,
            is_own_rank,
            is_thrown,
            spawned,
            of_rank,
            of_worker,
            went_on,
            is_ignored,
            is_fatal,
            is_logged,
            follows_log,
            ends_process,
            ..
        } = std::mem::take(self);
        (self.is_ignored, self.is_fatal) = (is_ignored, is_fatal);
        self.follows_log = follows_log;
        let causes = cause.iter().flat_map(|(_, frames)| frames);
        let by_launcher = frames.iter().chain(causes).any(|it| is_launcher(&it.file));
        // A cause in a library has the line that led to the exception which it caused.
        let outer = users_line(frames.iter().rev().cloned().collect());
        let (text, frames) = cause.unwrap_or((text, frames));
        if let Some(quoted) = scan::after(&text, QUOTES) {
            let text = quoted.split("',").next().unwrap_or(quoted).into();
            facts.add(Subject::default(), at, Statement::Quoted { text });
            return;
        }
        if read_end_of_child(&text, at, facts)
            || text.is_empty()
            || REPORTS.iter().any(|it| text.contains(it))
        {
            return;
        }
        let named = stated_rank(&text).filter(|_| label.rank.is_none());
        let of_rank = of_rank.or(named);
        let is_ddps = text.contains(WITHOUT_GRADIENT);
        let is_own = is_own_rank || of_worker.is_some() || named.is_some() && (is_last || is_ddps);
        let innermost: Vec<Where> = frames.into_iter().rev().collect();
        let what = Statement::Raised {
            text: reason_first(&without_module(cut(&text, MAX_TEXT))).into(),
            place: users_line(innermost).or(outer),
            uncaught: is_thrown || ends_process || spawned.is_some() || is_own && !went_on,
            went_on,
            is_last,
            is_logged,
            by_launcher,
        };
        let who = match of_rank {
            Some(_) => Label { rank: of_rank, ..Label::default() },
            None => of_worker.unwrap_or(Label { local: label.local.or(spawned), ..label }),
        };
        let line = std::mem::replace(&mut facts.line, begins);
        facts.add(who.into(), at, what);
        facts.line = line;
    }
}

/// The worker in "ray.exceptions.RayTaskError(KeyError): ray::WorkerDict.f() (pid=6021, ip=10.9.0.2, …)".
fn worker_of_ray(text: &str) -> Option<Label> {
    let task = scan::after(scan::after(text, "RayTaskError(")?, ": ray::")?;
    let (name, process) = task.split_once(" (pid=")?;
    let pid = scan::small(process)?;
    let host = scan::after(process, " ip=").map(|it| scan::until(it, &[',', ')']));
    let class = name.split(['.', '(']).next().unwrap_or_default();
    let worker = Worker::of_ray(class, pid, host);
    worker.is_some().then(|| Label { worker, ..Label::default() })
}

/// The rank on which an exception was raised, as its message states it: DDP and Megatron name theirs.
fn stated_rank(text: &str) -> Option<u32> {
    let by_ddp = scan::after(text, WITHOUT_GRADIENT);
    let by_megatron = || {
        let (_, own) = text.split_once(": ")?.1.split_once("Rank ").filter(|it| it.0.is_empty())?;
        let digits = own.bytes().take_while(u8::is_ascii_digit).count();
        own[digits..].starts_with([':', ',']).then_some(own)
    };
    scan::rank(by_ddp.or_else(by_megatron)?)
}

fn size_of_frames(frames: &[Where]) -> usize {
    frames.iter().map(frame_bytes).sum()
}

/// Adds the end of another process that an exception reports: "process 2 terminated with signal SIGSEGV" of
/// `torch.multiprocessing.spawn`, or the process and the address of Ray. Returns whether it is one.
fn read_end_of_child(text: &str, at: Timestamp, facts: &mut Facts) -> bool {
    if let Some(child) = scan::after(text, "ProcessExitedException: process ")
        && let Some(local) = scan::rank(child)
    {
        let stated = scan::after(child, "with signal ");
        let signal = (1..65).find(|it| stated == Some(&*signal_name(*it)));
        let code =
            scan::number_after(child, "with exit code ").and_then(|it| i32::try_from(it).ok());
        if let Some(status) = code.or(signal.map(|it| -it)) {
            let how = ExitStatus::of_status(status);
            facts.add(of_local(local, ""), at, Statement::Ended(how));
            return true;
        }
    }
    if let Some(task) = scan::after(text, LOW_MEMORY).and_then(|it| scan::after(it, " where the "))
        && let Some(pid) = scan::small_after(task, " pid=")
    {
        let host = scan::after(text, " (IP: ").map(|it| scan::until(it, &[',']));
        let name = scan::after(task, " name=").map_or("", |it| scan::until(it, &[',']));
        let how = ExitStatus { for_memory: true, ..ExitStatus::of_status(-KILL) };
        let label = Label { worker: Worker::of_ray(actor(name), pid, host), ..Label::default() };
        let who = Subject { pid: Some(pid), ..label.into() };
        facts.add(who, at, Statement::Ended(how));
        return true;
    }
    let is_rays = text.contains("ActorDiedError") || text.contains("RayActorError");
    let pid = scan::small_after(text, " pid: ").filter(|_| is_rays);
    if let Some(pid) = pid {
        let host = scan::after(text, " ip: ").map(|it| scan::until(it, &[' ']));
        // verl names its workers by the node and the rank there, which is the rank on the first node.
        let name = scan::after(text, " name: ").map_or("", |it| scan::until(it, &[' ']));
        let rank = scan::after(name, "WorkerDict_0:").and_then(scan::rank);
        let name = actor(name);
        let qualified = scan::after(text, "class_name: ").map_or("", |it| scan::until(it, &[' ']));
        let class = qualified.rsplit('.').next().unwrap_or(qualified);
        let name = if name.is_empty() { class } else { name };
        ray_worker(name, pid, host, rank, at, facts);
    }
    pid.is_some()
}

/// The name of an actor, without the random letters that verl puts in front.
fn actor(name: &str) -> &str {
    name.find("WorkerDict_").map_or(name, |at| &name[at..])
}

/// Whether a watchdog reports its timeout, also in a line that is cut off: "[Rank 6] Watchdog cau".
fn is_timeout_of_watchdog(thrown: &str) -> bool {
    const TIMEOUT: &str = "Watchdog caught collective operation timeout";
    let message = thrown.rsplit_once("] ").map_or(thrown, |(_, message)| message).trim();
    thrown.contains(TIMEOUT) || TIMEOUT.starts_with(message) || message.ends_with("Rank")
}

/// The index in "-- Process 1 terminated with the following error:".
fn spawned(text: &str) -> Option<u32> {
    let index =
        text.strip_prefix("-- Process ")?.strip_suffix(" terminated with the following error:")?;
    scan::rank(index)
}

/// Whether a watchdog reports an error of NCCL in this line, the reason of which follows.
pub(super) fn begins_error(text: &str) -> bool {
    (text.contains(ASYNC) || text.contains(THROWN)) && text.contains("NCCL error: ")
}

/// Whether a line is the first of a logged message with a traceback: "Step failed: Traceback (…):".
pub(super) fn is_message(text: &str) -> bool {
    text.ends_with(BEGIN) && text.len() > BEGIN.len()
}

/// Whether a line reports the exception whose traceback follows, and states that it does not end the process.
fn ends_no_process(text: &str) -> bool {
    ["Exception ignored in", "Exception in thread "].iter().any(|it| text.starts_with(it))
}

/// Whether a logger of a program wrote the line: it has a time and a level.
fn is_log(line: &Line<'_>) -> bool {
    const LEVELS: [&str; 4] = ["INFO", "WARN", "ERROR", "CRITICAL"];
    line.time.is_some() && !line.is_guessed && LEVELS.iter().any(|it| line.text.contains(it))
}

/// Whether a program wrote the line in the course of its work: it names a step, the time behind the label of
/// its rank, or its logger wrote it behind the label of a launcher, and not as an error; or it answered a request.
fn is_progress(line: &Line<'_>) -> bool {
    const STEPS: [&str; 6] = ["step", "Step", "epoch", "Epoch", "iter", "Iter"];
    let text = line.text;
    let counts = |word: &str| {
        let suffix = scan::after(text, word).unwrap_or_default();
        let rest = suffix.strip_prefix("ation").unwrap_or(suffix);
        let number = rest.trim_start_matches(['=', ':', ' ']);
        number.starts_with(|it: char| it.is_ascii_digit())
    };
    let states_error = ["ERROR", "CRITICAL"].iter().any(|it| text.contains(it));
    let is_logged = line.label.local.is_some() && is_log(line) && !states_error;
    let is_dated = is_logged || line.is_own_rank && report_time(text).is_some();
    // A bar is also drawn when its process ends. Lines of Megatron begin with a space.
    let is_megatrons = text.starts_with(" iteration ") && text.contains('|');
    let is_indented = text.starts_with(char::is_whitespace) && !is_megatrons;
    let is_line = !is_indented && !text.contains("%|") && !is_exception(text);
    let answers = scan::has(text, " HTTP/1.1\" ");
    is_line && (is_dated || answers || STEPS.into_iter().any(counts))
}

/// Whether a line has the head of a log message, so that it continues none.
fn begins_another_message(text: &str) -> bool {
    const LEVELS: [&str; 6] = ["DEBUG", "INFO", "WARN", "ERROR", "CRITICAL", "FATAL"];
    let words = text.split([' ', ':', ']', '[', '|']).filter(|it| !it.is_empty()).take(4);
    let has_level = words.into_iter().any(|it| LEVELS.contains(&it.trim_end_matches("ING")));
    // Gloo's errors begin with the place in its source: "[../third_party/gloo/…".
    let begins_bracketed = text.strip_prefix('[').is_some_and(|it| !it.starts_with(['.', '/']));
    begins_bracketed || has_level
}

/// Whether a line begins a traceback in a box of the library Rich.
fn is_box(text: &str) -> bool {
    text.starts_with('╭') && text.contains(" Traceback (most recent call last) ")
}

/// A frame of such a traceback: "│ /a/train.py:9 in step   │".
fn boxed_frame(text: &str) -> Option<Where> {
    let inner = text.strip_prefix("│ ")?.trim_end_matches([' ', '│']);
    let (place, function) = inner.rsplit_once(" in ")?;
    let (file, line) = place.rsplit_once(':')?;
    python_frame(&format!("File \"{file}\", line {line}, in {function}"))
}

/// The rank in "Traceback (most recent call last): (RANK 5)".
fn failed_rank(text: &str) -> Option<u32> {
    let rank = text.strip_prefix(BEGIN)?.strip_prefix(" (RANK ")?;
    scan::rank(rank.strip_suffix(')')?)
}

/// Whether a line states an exception: "KeyError: 'a'", "torch.distributed.DistStoreError: …", but
/// not "INFO:root:step 12".
fn is_exception(text: &str) -> bool {
    let (name, message) = text.split_once(':').unwrap_or((text, ""));
    let is_name = |it: char| it.is_ascii_alphanumeric() || matches!(it, '_' | '.');
    let class = name.rsplit('.').next().unwrap_or_default();
    name.len() <= 128
        && name.chars().all(is_name)
        && class.starts_with(|it: char| it.is_ascii_uppercase())
        && class.contains(|it: char| it.is_ascii_lowercase())
        && (message.is_empty() || message.starts_with(' '))
}

/// Whether the class of an exception is named as an error: of a log that was searched for errors, this line of
/// a traceback is left.
fn is_error(text: &str) -> bool {
    let name = text.split(':').next().unwrap_or_default();
    name.ends_with("Error")
}

/// "torch.cuda.OutOfMemoryError: x" as "`OutOfMemoryError`: x", which is how ranks report it.
fn without_module(text: &str) -> String {
    let (name, message) = text.split_once(':').unwrap_or((text, ""));
    let is_path = name.contains('.') && is_exception(name);
    let class = name.rsplit('.').next().unwrap_or(name);
    match (is_path, message) {
        (false, _) => text.to_owned(),
        (true, "") => class.to_owned(),
        (true, message) => format!("{class}:{message}"),
    }
}

/// Moves the last error of NCCL to the front of an exception's text.
fn reason_first(text: &str) -> String {
    let Some((before, reason)) = text.split_once(" Last error: ") else {
        return text.to_owned();
    };
    let (class, message) = before.split_once(": ").unwrap_or((before, ""));
    format!("{class}: {reason} ({message})")
}

fn is_launcher(file: &str) -> bool {
    [
        "/torch/distributed/run.py",
        "/torch/distributed/launcher/",
        "/torch/distributed/elastic/agent/",
        "/torch/distributed/elastic/rendezvous/",
    ]
    .iter()
    .any(|it| file.contains(it))
}
