//! Stacks as text: of `py-spy dump` and of Python's `faulthandler`.

use std::path::Path;

use ddp_doctor_diagnosis::event::{Stacks, ThreadStack};
use ddp_doctor_diagnosis::stacks;
use ddp_doctor_proto::report::{Timestamp, Where};

/// Maximum number of frames kept per thread, from the innermost.
const MAX_FRAMES: usize = 256;
/// Maximum number of threads kept per process.
const MAX_THREADS: usize = 512;
/// Maximum length of a name.
const MAX_NAME: usize = 1024;

/// Packages that py-spy prints without their folder.
const PACKAGES: [&str; 33] = [
    "torch/",
    "torchvision/",
    "torchdata/",
    "deepspeed/",
    "accelerate/",
    "transformers/",
    "lightning/",
    "pytorch_lightning/",
    "lightning_fabric/",
    "megatron/",
    "huggingface_hub/",
    "peft/",
    "trl/",
    "timm/",
    "vllm/",
    "sglang/",
    "numpy/",
    "pandas/",
    "pyarrow/",
    "PIL/",
    "tqdm/",
    "ray/",
    "wandb/",
    "triton/",
    "requests/",
    "urllib3/",
    "httpx/",
    "httpcore/",
    "aiohttp/",
    "botocore/",
    "boto3/",
    "fsspec/",
    "webdataset/",
];
/// Modules of the standard library that it prints so.
const STANDARD: [&str; 20] = [
    "threading.py",
    "selectors.py",
    "queue.py",
    "socket.py",
    "ssl.py",
    "subprocess.py",
    "contextlib.py",
    "functools.py",
    "runpy.py",
    "pickle.py",
    "gzip.py",
    "tarfile.py",
    "multiprocessing/",
    "concurrent/",
    "asyncio/",
    "importlib/",
    "json/",
    "http/",
    "urllib/",
    "logging/",
];

/// A dump of one process, of which some lines were read.
#[derive(Debug, Default)]
pub struct Dump {
    /// Process id, if the text states it.
    pub pid: Option<u32>,
    /// Command or title of the process, if the text states it.
    pub title: Option<String>,
    /// Signal that ended the process, from a "Fatal Python error".
    pub signal: Option<i32>,
    threads: Vec<ThreadStack>,
    bytes: usize,
}

/// What a line was to a dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// It begins the dump of another process.
    Begin,
    /// It belongs to the dump.
    Inside,
    /// It does not.
    Foreign,
}

impl Dump {
    /// Whether it has threads so far.
    #[must_use]
    pub fn has_threads(&self) -> bool {
        !self.threads.is_empty()
    }

    /// Memory of the threads so far, in bytes.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// What a line is to this dump.
    #[must_use]
    pub fn part(&self, line: &str) -> Part {
        if process(line).is_some() || fatal(line).is_some() || line.starts_with("Timeout (") {
            return Part::Begin;
        }
        // Dumps also contain native frames, local variables and remarks: all are indented.
        let continues = line.starts_with("  ") || line.is_empty();
        let inside = thread(line).is_some() || self.has_threads() && continues;
        if inside { Part::Inside } else { Part::Foreign }
    }

    /// Reads a line that begins this dump or belongs to it.
    pub fn read(&mut self, line: &str) {
        if let Some((pid, title)) = process(line) {
            self.pid = Some(pid);
            self.title = Some(cut(title).to_owned());
        } else if let Some(signal) = fatal(line) {
            self.signal = Some(signal);
        } else if let Some((tid, name, state)) = thread(line) {
            if self.threads.len() < MAX_THREADS {
                self.bytes += size_of::<ThreadStack>() + name.len();
                self.threads.push(ThreadStack {
                    tid,
                    name: name.into(),
                    state,
                    ..ThreadStack::default()
                });
            }
        } else if let Some(thread) = self.threads.last_mut()
            && let Some(frame) = spy_frame(line).or_else(|| fault_frame(line))
            && thread.python.len() < MAX_FRAMES
        {
            self.bytes += frame_bytes(&frame);
            thread.python.push(frame);
        }
    }

    /// The stacks, if there are any: the main thread first.
    #[must_use]
    pub fn stacks(mut self, at: Timestamp) -> Option<Stacks> {
        if self.threads.is_empty() {
            return None;
        }
        let is_main = |thread: &ThreadStack| {
            let outermost = thread.python.last();
            &*thread.name == "MainThread" || outermost.is_some_and(|it| it.function == "<module>")
        };
        if let Some(main) = self.threads.iter().position(is_main) {
            self.threads.swap(0, main);
        }
        Some(Stacks { at, threads: self.threads, ..Stacks::default() })
    }
}

/// Memory of a frame, in bytes.
#[must_use]
pub fn frame_bytes(frame: &Where) -> usize {
    size_of::<Where>() + frame.file.len() + frame.function.len()
}

/// The process id and the command in "Process 307: python train.py".
fn process(line: &str) -> Option<(u32, &str)> {
    let (pid, rest) = line.strip_prefix("Process ")?.split_once(": ")?;
    Some((pid.parse().ok()?, rest)).filter(|_| !rest.is_empty())
}

/// The signal in "Fatal Python error: Segmentation fault".
fn fatal(line: &str) -> Option<i32> {
    let error = line.strip_prefix("Fatal Python error: ")?;
    let mut signals = [
        ("Segmentation fault", 11),
        ("Aborted", 6),
        ("Bus error", 7),
        ("Floating", 8),
        ("Illegal instruction", 4),
    ]
    .into_iter();
    signals.find_map(|(words, signal)| error.starts_with(words).then_some(signal))
}

/// The thread in "Thread 42 (idle): "MainThread"", "Thread 0x7f2e (most recent call first):",
/// "Current thread 0x7f2e …" or, since Python 3.14, "Thread 0x7f2e [name] (most …".
fn thread(line: &str) -> Option<(u32, &str, Option<char>)> {
    let rest = line.strip_prefix("Thread ").or_else(|| line.strip_prefix("Current thread "))?;
    let (id, rest) = rest.split_once(' ')?;
    let id = match id.strip_prefix("0x").or_else(|| id.strip_prefix("0X")) {
        // faulthandler prints the address of the thread.
        Some(hex) => u64::from_str_radix(hex, 16).ok()? as u32,
        None => id.parse().ok()?,
    };
    let named = rest.strip_prefix('[').and_then(|it| it.rsplit_once("] "));
    let (label, rest) = named.unwrap_or(("", rest));
    let (state, rest) = rest.strip_prefix('(')?.split_once(')')?;
    let state = match state.split('+').next()? {
        "idle" => Some('S'),
        "active" => Some('R'),
        _ if state.starts_with("most recent call first") || state.starts_with("active") => None,
        _ => return None,
    };
    let name = match label {
        "" => rest.trim_start_matches(':').trim().trim_matches('"'),
        label => label,
    };
    Some((id, cut(name), state))
}

/// The frame in "    wait (threading.py:331)". Native frames are none, and variables, which
/// `py-spy dump --locals` prints, are indented further.
fn spy_frame(line: &str) -> Option<Where> {
    let inner = line.strip_prefix("    ")?;
    let (function, place) = inner.trim_end().strip_suffix(')')?.rsplit_once(" (")?;
    let (file, number) = place.rsplit_once(':')?;
    if inner.starts_with(' ') || is_native(file) {
        return None;
    }
    Some(Where {
        file: in_folder(cut(file)),
        line: number.parse().ok()?,
        function: cut(function).into(),
        ..Where::default()
    })
}

/// Whether a file is the source of native code.
fn is_native(file: &str) -> bool {
    let suffix = Path::new(file).extension().and_then(|it| it.to_str());
    let native = ["c", "cc", "cpp", "cu", "cuh", "cxx", "h", "hpp", "rs", "s", "S"];
    suffix.is_some_and(|it| native.contains(&it))
}

/// The path of a file that py-spy prints relative to a folder of the interpreter.
fn in_folder(file: &str) -> String {
    let is_of = |known: &[&str]| known.iter().any(|it| file.starts_with(it));
    if is_of(&PACKAGES) {
        format!("…/site-packages/{file}")
    } else if is_of(&STANDARD) {
        format!("…/lib/python3./{file}")
    } else {
        file.to_owned()
    }
}

/// The frame in "  File "train.py", line 9 in main" of faulthandler.
fn fault_frame(line: &str) -> Option<Where> {
    let (file, rest) = line.trim_start().strip_prefix("File \"")?.split_once("\", line ")?;
    let (number, function) = rest.split_once(" in ")?;
    frame(file, number, function)
}

/// The frame in "  File "train.py", line 9, in main" of a traceback.
#[must_use]
pub fn python_frame(line: &str) -> Option<Where> {
    let (file, rest) = line.trim_start().strip_prefix("File \"")?.split_once("\", line ")?;
    let (number, function) = rest.split_once(", in ")?;
    frame(file, number, function)
}

fn frame(file: &str, number: &str, function: &str) -> Option<Where> {
    Some(Where {
        // Windows separates folders otherwise.
        file: cut(file).replace('\\', "/"),
        line: number.trim().parse().ok()?,
        function: cut(function.trim()).into(),
        ..Where::default()
    })
}

/// The innermost line of the user's program among frames, innermost first.
#[must_use]
pub fn users_line(frames: Vec<Where>) -> Option<Where> {
    let thread = ThreadStack { python: frames, ..ThreadStack::default() };
    let stacks = Stacks { threads: vec![thread], ..Stacks::default() };
    stacks::line_of(&stacks, None).cloned()
}

fn cut(text: &str) -> &str {
    ddp_doctor_evidence::values::cut(text, MAX_NAME)
}
