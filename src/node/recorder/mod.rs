//! PyTorch's own recorder of collectives (its Flight Recorder), read from outside.
//!
//! Where PyTorch has no hooks, its collectives are in no black box. The package then starts a server
//! of PyTorch's on a socket of this user's, and says where in the box. Here somebody asks there, in a
//! thread for each process: one that does not answer holds up nobody else.
//!
//! What a box says of a process and what its recorder says must be told in the order in which it
//! happened, since the end of a process comes after its last call. So what a box says is held back until
//! the recorder was asked after that, but not for long.
//!
//! Each question costs the process the time to write all that its recorder holds, in a thread of its
//! own. Questions keep a distance by that: they take no more than one part in fifty of one processor.

mod http;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fs::{self, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_proto::{NoteKind, v1};
use v1::event::Kind;

use super::outbox::Outbox;
use super::sys;
use crate::evidence::recorder::{self, MAX_BODY, Recorded};

/// The setting by which a process says where its socket is.
const SETTING: &str = "flight recorder";
/// Whether the recorder of NCCL's calls is read, too: that asks the CUDA driver about events, which
/// spoils the capture of a CUDA graph that goes on at that moment.
const NCCL: &str = "DDP_DOCTOR_NCCL_RECORDER";
/// Time between two questions, at least …
const EVERY: Duration = Duration::from_millis(200);
/// … and at least so many times what the last one took …
const SPARING: u32 = 50;
/// … but no more than that.
const AT_LEAST_EVERY: Duration = Duration::from_secs(2);
/// How long the box's records are held back for an answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long a process may leave questions unanswered before it is said that its calls are not known.
const SILENCE: Duration = Duration::from_secs(10);
/// How long an answer may take.
const ANSWER: Duration = Duration::from_secs(5);
/// Longest time by which a call is later than the question: more, and the clock was set.
const CLOCK_WAS_SET: u64 = 10_000_000_000;
/// Records of the box that are held back, at most.
const MAX_HELD: usize = 65_536;
/// Calls that are told again to a coordinator that attaches later.
const KEPT: usize = 4096;
/// What the file is called in which a process leaves its last words, behind the name of the socket.
const LAST_WORDS: &str = ".json";

/// The recorder of one process, and what of its box waits for it.
#[derive(Debug)]
pub struct Recorder {
    process: u64,
    socket: PathBuf,
    /// `None`: there is nobody to ask any more.
    asker: Option<Asker>,
    /// When the question was asked that is not answered yet.
    asked: Option<Instant>,
    /// When to ask next.
    next: Instant,
    /// Since when there was no answer.
    failing: Option<Instant>,
    said_so: bool,
    /// What the box says, in order: when it happened, and whether only a coordinator has to hear it.
    held: VecDeque<Held>,
    /// What was told, by recorder.
    told: HashMap<String, Told>,
    /// The latest calls that were told, and until when nothing is held back.
    kept: VecDeque<v1::RecorderCall>,
    told_until: u64,
}

#[derive(Debug)]
struct Held {
    unix_ns: u64,
    kind: Kind,
    live_only: bool,
}

#[derive(Debug, Default)]
struct Told {
    next: u64,
    open: BTreeSet<u64>,
}

#[derive(Debug)]
struct Asker {
    questions: Sender<()>,
    answers: Receiver<Answer>,
}

#[derive(Debug)]
struct Answer {
    /// When the question was asked: nothing is missing up to then.
    asked: Timestamp,
    said: Result<Vec<Recorded>, String>,
    took: Duration,
}

/// The socket that a setting names, if that is what it is about.
#[must_use]
pub fn named_by(setting: &str) -> Option<&Path> {
    let (name, socket) = setting.split_once('=')?;
    (name == SETTING && socket.starts_with('/')).then(|| Path::new(socket))
}

impl Recorder {
    /// The recorder of a process that has said where its socket is.
    #[must_use]
    pub fn new(process: u64, socket: &Path) -> Self {
        Self {
            process,
            asker: Asker::start(socket),
            socket: socket.to_owned(),
            asked: None,
            next: Instant::now(),
            failing: None,
            said_so: false,
            held: VecDeque::new(),
            told: HashMap::new(),
            kept: VecDeque::new(),
            told_until: 0,
        }
    }

    /// Takes what the box says, to be told when the recorder was asked after it. `at`: when that was;
    /// `None`: as what came before. `live_only`: the journal has it.
    pub fn hold(&mut self, at: Option<Timestamp>, kind: Kind, live_only: bool) {
        let before = self.held.back().map_or(0, |held| held.unix_ns);
        self.held.push_back(Held {
            unix_ns: at.map_or(before, |at| at.0.max(before)),
            kind,
            live_only,
        });
    }

    /// Asks where it is time, and tells what was answered. `is_stopped`: the process cannot answer.
    pub fn poll(&mut self, is_stopped: bool, out: &mut Outbox) {
        let now = Instant::now();
        let Some(asker) = &self.asker else {
            return self.tell_all(out);
        };
        match asker.answers.try_recv() {
            Ok(answer) => {
                self.asked = None;
                let pause = answer.took.saturating_mul(SPARING);
                self.next = now + pause.clamp(EVERY, AT_LEAST_EVERY);
                match answer.said {
                    Ok(said) => {
                        self.failing = None;
                        self.tell(said, answer.asked, out);
                    }
                    Err(_) if self.hear_last_words(out) => self.asker = None,
                    Err(error) => self.fail(is_stopped, &error, now, out),
                }
            }
            Err(TryRecvError::Disconnected) => self.asker = None,
            Err(TryRecvError::Empty) => {
                if self.asked.is_some_and(|since| now - since >= PATIENCE) {
                    self.fail(is_stopped, "it does not answer", now, out);
                }
            }
        }
        if self.held.len() > MAX_HELD {
            self.tell_all(out);
        }
        if self.asked.is_none() && now >= self.next {
            let asks = self.asker.as_ref().map(|it| it.questions.send(()));
            if matches!(asks, Some(Ok(()))) {
                self.asked = Some(now);
            }
        }
    }

    /// The process has ended: tells what is left, with its last words if it left any.
    pub fn finish(&mut self, out: &mut Outbox) {
        if self.asker.is_some() {
            self.hear_last_words(out);
        }
        self.asker = None;
        self.tell_all(out);
        // Whatever it left is of no use any more; mostly it is gone.
        drop(fs::remove_file(&self.socket));
        drop(fs::remove_file(self.last_words()));
        let folder = self.socket.parent().filter(|folder| {
            let name = folder.file_name().unwrap_or_default();
            name.as_encoded_bytes().starts_with(b"ddp-doctor-")
        });
        // Only where it was made for the socket alone: then it is empty.
        folder.map(fs::remove_dir).and_then(Result::ok);
    }

    /// Forgets what of the box is still held: the box will be read again from its beginning.
    pub fn rewind(&mut self) {
        self.held.clear();
    }

    /// Tells a new coordinator what was told before, after the box was read from its beginning.
    pub fn repeat(&mut self, out: &mut Outbox) {
        for call in std::mem::take(&mut self.kept) {
            self.tell_held(call.unix_ns, out);
            out.push_live(Kind::RecorderCall(call.clone()));
            self.kept.push_back(call);
        }
        self.tell_held(self.told_until, out);
    }

    fn last_words(&self) -> PathBuf {
        let mut path = self.socket.clone().into_os_string();
        path.push(LAST_WORDS);
        path.into()
    }

    fn hear_last_words(&mut self, out: &mut Outbox) -> bool {
        let Ok(body) = read_private(&self.last_words()) else {
            return false;
        };
        let now = Timestamp::now();
        let Ok(said) = recorder::decode(&body, now.0) else {
            return false;
        };
        self.tell(vec![said], Timestamp(u64::MAX), out);
        true
    }

    fn fail(&mut self, is_stopped: bool, error: &str, now: Instant, out: &mut Outbox) {
        self.tell_all(out);
        if is_stopped {
            self.failing = None;
            return;
        }
        let since = *self.failing.get_or_insert(now);
        if now - since < SILENCE || self.said_so {
            return;
        }
        self.said_so = true;
        out.push(Kind::Note(v1::Note {
            process: self.process,
            kind: i32::from(NoteKind::NoHooks.number()),
            rank: None,
            pid: 0,
            text: format!("its Flight Recorder cannot be read ({error}): its calls are not seen"),
            unix_ns: Timestamp::now().0,
        }));
        out.push(Kind::RecordsLost(v1::RecordsLost {
            process: self.process,
            count: 1,
        }));
    }

    /// Tells what the recorder held at a time at which it was asked, and what the box said until then.
    fn tell(&mut self, said: Vec<Recorded>, asked: Timestamp, out: &mut Outbox) {
        let mut new = Vec::new();
        let mut over = Vec::new();
        for call in said.into_iter().flat_map(|recorded| recorded.calls) {
            let told = self.told.entry(call.recorder.clone()).or_default();
            let later = call.unix_ns.saturating_sub(asked.0);
            if call.id >= told.next {
                // Those that come later are told with what the box says of that time.
                if later == 0 || later > CLOCK_WAS_SET {
                    told.next = call.id + 1;
                    if call.over_unix_ns.is_none() {
                        told.open.insert(call.id);
                    }
                    new.push(call);
                }
            } else if call.over_unix_ns.is_some() && told.open.remove(&call.id) {
                over.push(call);
            }
        }
        new.sort_by_key(|call| call.unix_ns);
        for mut call in new {
            call.process = self.process;
            self.tell_held(call.unix_ns, out);
            self.keep(&call);
            out.push(Kind::RecorderCall(call));
        }
        for mut call in over {
            call.process = self.process;
            self.keep(&call);
            out.push(Kind::RecorderCall(call));
        }
        self.tell_held(asked.0, out);
        self.told_until = asked.0;
    }

    fn keep(&mut self, call: &v1::RecorderCall) {
        let mut kept = self.kept.iter_mut().rev();
        if let Some(known) = kept.find(|it| it.id == call.id && it.recorder == call.recorder) {
            known.over_unix_ns = call.over_unix_ns;
            return;
        }
        if self.kept.len() == KEPT {
            self.kept.pop_front();
        }
        self.kept.push_back(call.clone());
    }

    fn tell_all(&mut self, out: &mut Outbox) {
        if let Some(last) = self.held.back() {
            self.told_until = self.told_until.max(last.unix_ns);
        }
        self.tell_held(u64::MAX, out);
    }

    fn tell_held(&mut self, until: u64, out: &mut Outbox) {
        while let Some(held) = self.held.pop_front() {
            if held.unix_ns > until {
                return self.held.push_front(held);
            }
            if held.live_only {
                out.push_live(held.kind);
            } else {
                out.push(held.kind);
            }
        }
    }
}

impl Asker {
    /// A thread that asks; `None`: there can be none.
    fn start(socket: &Path) -> Option<Self> {
        let (questions, asked) = channel();
        let (answer, answers) = channel();
        let socket = socket.to_owned();
        let mut handlers = vec!["fr_trace_json"];
        if std::env::var_os(NCCL).is_some_and(|value| value == "1") {
            handlers.extend([
                "dump_nccl_trace_json",
                "fr_trace_json?backend=nccl2",
                "fr_trace_json?backend=nccl4py",
            ]);
        }
        let ask = move || {
            while let Ok(()) = asked.recv() {
                let begin = Instant::now();
                let asked = Timestamp::now();
                let said = read_all(&socket, &handlers);
                let took = begin.elapsed();
                if answer.send(Answer { asked, said, took }).is_err() {
                    return;
                }
            }
        };
        let thread = thread::Builder::new().name("ddp-recorder".into());
        thread.spawn(ask).ok()?;
        Some(Self { questions, answers })
    }
}

/// What the recorders of the process hold now. Not every PyTorch has each of them: 2.8 and 2.9 tell of calls
/// on NCCL alone.
fn read_all(socket: &Path, handlers: &[&str]) -> Result<Vec<Recorded>, String> {
    let said = handlers.iter().map(|handler| read(socket, handler));
    let said = said.filter_map(Result::transpose);
    let said: Vec<Recorded> = said.collect::<Result<_, _>>()?;
    if said.is_empty() {
        return Err("this PyTorch does not say what it recorded".into());
    }
    Ok(said)
}

/// What one recorder of the process holds now; `None`: there is no such recorder.
fn read(socket: &Path, handler: &str) -> Result<Option<Recorded>, String> {
    let metadata = fs::symlink_metadata(socket).map_err(|error| error.to_string())?;
    if metadata.uid() != sys::user_id() {
        return Err("its socket is somebody else's".into());
    }
    let path = format!("/handler/{handler}");
    let body = match http::post(socket, &path, ANSWER, MAX_BODY) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        body => body.map_err(|error| error.to_string())?,
    };
    let said = recorder::decode(&body, Timestamp::now().0);
    said.map(Some).map_err(|error| error.to_string())
}

/// A file of this user's, of a length that is believed.
fn read_private(path: &Path) -> io::Result<Vec<u8>> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() || metadata.uid() != sys::user_id() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let mut body = Vec::new();
    file.take(MAX_BODY as u64 + 1).read_to_end(&mut body)?;
    Ok(body)
}

#[cfg(test)]
mod tests;
