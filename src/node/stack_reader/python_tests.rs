use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ddp_doctor_host::proc::Stat;
use ddp_doctor_proto::v1;

use super::super::native::FunctionCache;
use super::*;

/// Interpreters to test with: those in `DDP_DOCTOR_TEST_PYTHONS`, separated by colons, or
/// `python3`.
fn interpreters() -> Vec<PathBuf> {
    if let Some(named) = std::env::var_os("DDP_DOCTOR_TEST_PYTHONS") {
        return std::env::split_paths(&named).collect();
    }
    let is_there = Command::new("python3").arg("--version").output().is_ok();
    let needed = std::env::var_os("DDP_DOCTOR_REQUIRE_PYTORCH").is_some();
    assert!(is_there || !needed, "there is no python3");
    if !is_there {
        eprintln!("skipped: there is no python3");
    }
    is_there.then(|| "python3".into()).into_iter().collect()
}

/// A Python program that has printed "ready", and its output before that.
struct Program {
    child: Child,
    said: Vec<String>,
}

impl Program {
    fn start(python: &PathBuf, text: &str) -> Self {
        let mut child = Command::new(python)
            .args(["-c", text])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = Vec::new();
        for line in BufReader::new(child.stdout.take().unwrap()).lines() {
            match line.unwrap().as_str() {
                "ready" => return Self { child, said },
                line => said.push(line.to_owned()),
            }
        }
        panic!("it ended with {:?}, saying {said:?}", child.wait());
    }

    fn capture(&self) -> v1::Stacks {
        stacks_of(self.child.id())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn capture(pid: u32, start_ticks: u64) -> v1::Stacks {
    static KNOWN: std::sync::LazyLock<FunctionCache> =
        std::sync::LazyLock::new(FunctionCache::default);
    super::super::capture(pid, start_ticks, &KNOWN)
}

fn stacks_of(pid: u32) -> v1::Stacks {
    capture(pid, Stat::read(pid).unwrap().start_ticks)
}

/// Frames as `function:line`, innermost first.
fn words(thread: &v1::ThreadStack) -> String {
    let frame = |frame: &v1::Frame| format!("{}:{}", frame.function, frame.line);
    thread.python.iter().map(frame).collect::<Vec<_>>().join(" ")
}

/// Captures stacks until they meet a condition, since a program that printed a line may not have
/// blocked yet.
#[track_caller]
fn eventually(program: &Program, is_so: impl Fn(&v1::Stacks) -> bool) -> v1::Stacks {
    let started = Instant::now();
    loop {
        let stacks = program.capture();
        if is_so(&stacks) {
            return stacks;
        }
        assert!(started.elapsed() < Duration::from_secs(20), "{stacks:#?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

const PLACES: &str = r#"
import asyncio, sys, threading, time

def wait_in_comprehension(lock):
    return [lock.acquire()
            for _ in range(1)]

class Läufer:
    def run(self, lock):
        with lock:
            pass

def generator(lock):
    yield 1
    lock.acquire(
    )

async def inner(lock):
    await asyncio.sleep(0)
    lock.acquire()

async def outer(lock):
    await inner(lock)

def deep(lock, n):
    if n:
        deep(lock, n - 1)
    else:
        lock.acquire()

def exec_unicode(lock):
    exec(compile("def größe_Δ_𝒳(lock):\n\n  lock.acquire()\ngröße_Δ_𝒳(lock)", "/tmp/dätei.py", "exec"), {"lock": lock})

lock = threading.Lock()
lock.acquire()
targets = [
    lambda: wait_in_comprehension(lock),
    lambda: Läufer().run(lock),
    lambda: list(generator(lock)),
    lambda: asyncio.run(outer(lock)),
    lambda: deep(lock, 100),
    lambda: exec_unicode(lock),
]
threads = [threading.Thread(target=target, daemon=True) for target in targets]
for thread in threads:
    thread.start()

def places(frame):
    while frame:
        name = getattr(frame.f_code, "co_qualname", frame.f_code.co_name)
        yield f"{name}:{frame.f_lineno}"
        frame = frame.f_back

def all_places():
    frames = sys._current_frames()
    return [list(places(frames[thread.ident])) for thread in threads]

before = None
while before != (now := all_places()):
    before = now
    time.sleep(0.2)
sys.stdout.reconfigure(encoding="utf-8")
for thread, place in zip(threads, now):
    print(thread.native_id, *place)
print("ready", flush=True)
lock.acquire()
"#;

#[test]
fn frames_equal_those_that_python_reports() {
    for python in interpreters() {
        let program = Program::start(&python, PLACES);
        let stacks = eventually(&program, |stacks| {
            stacks.threads[0].python.len() == 1 && stacks.threads[0].state == "S"
        });
        assert_eq!(stacks.trouble, "", "{}", python.display());
        assert_eq!(stacks.threads[0].tid, program.child.id());
        let last = 1 + PLACES.matches('\n').count() as u32 - 1;
        assert_eq!(words(&stacks.threads[0]), format!("<module>:{last}"));
        assert_eq!(program.said.len(), 6);
        for said in &program.said {
            let (tid, expected) = said.split_once(' ').unwrap();
            let thread = stacks.threads.iter().find(|it| it.tid.to_string() == tid).unwrap();
            assert_eq!(words(thread), expected, "{}", python.display());
            assert_eq!((thread.state.as_str(), thread.holds_gil), ("S", Some(false)));
            assert!(thread.cpu_ns > Some(0), "{thread:?}");
        }
        let unicode = stacks
            .threads
            .iter()
            .flat_map(|it| &it.python)
            .filter(|frame| frame.file == "/tmp/dätei.py");
        assert_eq!(unicode.count(), 2);
        // Two captures of a blocked process agree.
        let again = program.capture();
        for (a, b) in stacks.threads.iter().zip(&again.threads) {
            assert_eq!((&a.tid, &a.python), (&b.tid, &b.python));
        }
    }
}

#[test]
fn thread_holding_the_gil_in_c_is_detected() {
    let text = r#"
import ctypes, threading
def hold():
    print("ready", flush=True)
    ctypes.PyDLL(None).usleep(30_000_000)
def want():
    while True:
        pass
threading.Thread(target=want, daemon=True).start()
hold()
"#;
    for python in interpreters() {
        let program = Program::start(&python, text);
        // The thread may not have entered the call yet.
        let stacks = eventually(&program, |stacks| {
            words(&stacks.threads[0]) == "hold:5 <module>:10" && stacks.threads[0].state == "S"
        });
        assert_eq!(stacks.trouble, "", "{}", python.display());
        let holds: Vec<_> = stacks.threads.iter().map(|it| it.holds_gil).collect();
        assert_eq!(holds, [Some(true), Some(false)], "{stacks:#?}");
        assert_ne!(stacks.threads[1].python.len(), 0);
    }
}

#[test]
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn native_frames_lead_from_the_kernel_to_the_program() {
    let text = r#"
import time
def nap():
    print("ready", flush=True)
    time.sleep(60)
nap()
"#;
    for python in interpreters() {
        let program = Program::start(&python, text);
        let asleep = |it: &v1::Stacks| words(&it.threads[0]) == "nap:5 <module>:6";
        let stacks = eventually(&program, |it| asleep(it) && !it.threads[0].native.is_empty());
        let native = &stacks.threads[0].native;
        let named = |name: &str| native.iter().position(|frame| frame.function == name);
        let places = ["PyEval_EvalCode", "Py_RunMain", "Py_BytesMain"].map(named);
        let show = || format!("{}: {native:#?}", python.display());
        // With a Python that was built with frame pointers the frames end early.
        let whole = places.iter().all(Option::is_some) && places.is_sorted();
        let is_python = |frame: &v1::Frame| frame.file.contains("python");
        let is_cut = native.len() <= 8 && native.last().is_some_and(is_python);
        assert!(whole || is_cut, "{}", show());
        // The sleeping function depends on the version of Python, and its symbol on that of glibc.
        let sleeps = |frame: &v1::Frame| {
            let names = ["nanosleep", "select"];
            frame.file.contains("libc.so") && names.iter().any(|it| frame.function.contains(it))
        };
        assert!(native.iter().take(4).any(sleeps), "{}", show());
        let last = native.last().unwrap();
        assert!(last.file.contains("python") || last.file.contains("libc.so"), "{}", show());
    }
}

#[test]
fn forked_child_has_python_frames() {
    let text = r#"
import os, threading
lock = threading.Lock()
lock.acquire()
def in_child():
    lock.acquire(timeout=60)
def fork():
    child = os.fork()
    if child == 0:
        in_child()
    print(child)
threading.Thread(target=lock.acquire, daemon=True).start()
thread = threading.Thread(target=fork)
thread.start()
thread.join()
print("ready", flush=True)
os.wait()
"#;
    for python in interpreters() {
        let program = Program::start(&python, text);
        let child: u32 = program.said[0].parse().unwrap();
        let started = Instant::now();
        loop {
            let stacks = stacks_of(child);
            let words: Vec<_> = stacks.threads.iter().map(words).collect();
            if words.len() == 1 && words[0].starts_with("in_child:6 fork:10 ") {
                assert_eq!(stacks.trouble, "");
                break;
            }
            assert!(started.elapsed() < Duration::from_secs(20), "{stacks:#?}");
            std::thread::sleep(Duration::from_millis(10));
        }
        let status = Command::new("kill").arg("-KILL").arg(child.to_string()).status();
        assert!(status.unwrap().success());
    }
}

#[test]
fn finalizing_interpreter_can_be_captured() {
    let at_exit = r#"
import atexit, threading
def last_words():
    print("ready", flush=True)
    lock.acquire()
lock = threading.Lock()
lock.acquire()
atexit.register(last_words)
"#;
    let in_del = r#"
import time
class Late:
    def __del__(self, sleep=time.sleep, print=print):
        print("ready", flush=True)
        sleep(60)
late = Late()
"#;
    let ended = r#"
import ctypes
libc = ctypes.CDLL(None)
libc.__cxa_atexit(libc.pause, None, None)
print("ready", flush=True)
"#;
    for python in interpreters() {
        let program = Program::start(&python, at_exit);
        eventually(&program, |it| words(&it.threads[0]) == "last_words:5" && it.trouble.is_empty());
        let program = Program::start(&python, in_del);
        eventually(&program, |it| {
            words(&it.threads[0]).starts_with("Late.__del__:6")
                || words(&it.threads[0]).starts_with("__del__:6")
        });
        let program = Program::start(&python, ended);
        let stacks = eventually(&program, |it| {
            it.trouble.contains("has exited") && it.threads[0].state == "S"
        });
        assert_eq!((stacks.threads.len(), stacks.threads[0].state.as_str()), (1, "S"));
    }
}

#[test]
fn many_threads_and_deep_recursion_are_bounded() {
    let text = r#"
import sys, threading
lock = threading.Lock()
lock.acquire()
def wait(): lock.acquire()
threads = [threading.Thread(target=wait, daemon=True) for _ in range(150)]
for thread in threads: thread.start()
sys.setrecursionlimit(5000)
def deep(n):
    if n == 0:
        print("ready", flush=True)
        lock.acquire()
    deep(n - 1)
deep(2000)
"#;
    for python in interpreters() {
        let program = Program::start(&python, text);
        let stacks = eventually(&program, |stacks| {
            let waits = |it: &&v1::ThreadStack| words(it).starts_with("wait:5 ");
            words(&stacks.threads[0]).starts_with("deep:12 deep:13")
                && stacks.threads.iter().filter(waits).count() == 150
        });
        assert_eq!(stacks.threads[0].python.len(), MAX_FRAMES);
        let pid = program.child.id();
        let said = format!("thread {pid}: only the {MAX_FRAMES} innermost frames were read");
        assert_eq!(stacks.trouble, said);
    }
}

#[test]
fn capture_does_not_disturb_a_running_process() {
    /// Number of captures. During development the test ran with 10 000.
    const LOOKS: usize = 300;
    // Calls, generators, threads, garbage and forks, with a sum whose result is checked.
    let text = r#"
import os, sys, threading
def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)
def ones():
    while True:
        yield 1
def work(until):
    total = 0
    for n, one in zip(range(10 ** 9), ones()):
        total += sum(one for _ in range(20)) + fib(8)
        if until(n): return total, n
done = []
stop = threading.Event()
def side():
    while not stop.is_set():
        done.append(work(lambda n: n == 50)[0])
        threading.Thread(target=fib, args=(10,)).start()
threads = [threading.Thread(target=side) for _ in range(3)]
for thread in threads: thread.start()
def forks():
    while not stop.is_set():
        child = os.fork()
        if child == 0: os._exit(0)
        os.waitpid(child, 0)
forker = threading.Thread(target=forks)
forker.start()
print("ready", flush=True)
import select
total, n = work(lambda n: n % 10 == 0 and select.select([sys.stdin], [], [], 0)[0])
stop.set()
forker.join()
for thread in threads: thread.join()
right = total == 41 * (n + 1) and set(done) <= {41 * 51}
sys.exit(0 if right else 1)
"#;
    let looks =
        std::env::var("DDP_DOCTOR_TEST_LOOKS").ok().and_then(|it| it.parse().ok()).unwrap_or(LOOKS);
    for python in interpreters() {
        let mut program = Program::start(&python, text);
        let mut whole = 0;
        let started = Instant::now();
        for _ in 0..looks {
            let stacks = program.capture();
            assert_eq!(stacks.threads[0].tid, program.child.id());
            // The outermost frame stays the same while the inner ones change.
            whole += usize::from(words(&stacks.threads[0]).ends_with("<module>:29"));
        }
        eprintln!("{}: {looks} looks in {:?}", python.display(), started.elapsed());
        drop(program.child.stdin.take());
        assert_eq!(program.child.wait().unwrap().code(), Some(0), "its results are right");
        assert!(whole * 10 >= looks * 9, "{whole} of {looks}");
        std::mem::forget(program);
    }
}

#[test]
fn process_may_exit_during_capture() {
    for python in interpreters() {
        for _ in 0..10 {
            let mut child = Command::new(&python).args(["-c", "import threading"]).spawn().unwrap();
            let start = Stat::read(child.id()).unwrap().start_ticks;
            while child.try_wait().unwrap().is_none() {
                drop(capture(child.id(), start));
            }
            assert_eq!(capture(child.id(), start).trouble, "the process has ended");
        }
    }
    let own = std::process::id();
    let stacks = capture(own, Stat::read(own).unwrap().start_ticks + 1);
    assert_eq!((stacks.threads.len(), stacks.trouble.as_str()), (0, "the process has ended"));
}

#[test]
fn process_without_python_still_has_threads() {
    let stacks = stacks_of(std::process::id());
    assert!(stacks.threads.len() > 1);
    assert!(stacks.trouble.contains("it does not run Python"), "{}", stacks.trouble);
}

/// Memory with pseudo-random content.
struct Garbage {
    seed: u64,
    /// Value of every word, instead of a pseudo-random one.
    constant: Option<u64>,
    reads: std::cell::Cell<usize>,
}

impl Memory for Garbage {
    fn read(&self, address: u64, buffer: &mut [u8]) -> bool {
        self.reads.set(self.reads.get() + 1);
        for (i, word) in buffer.chunks_mut(8).enumerate() {
            // The mixing function of splitmix64.
            let mut x = (address.wrapping_add(8 * i as u64) ^ self.seed)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15);
            x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            x ^= x >> 31;
            // Small numbers, null, and pointers into one small region, so that chains form.
            let value = match x & 7 {
                0 => 0,
                1 | 2 => x >> 56,
                3 => x,
                _ => 0x10_0000 + (x >> 50 & !7),
            };
            let bytes = self.constant.unwrap_or(value).to_le_bytes();
            word.copy_from_slice(&bytes[..word.len()]);
        }
        !self.seed.is_multiple_of(5) || address.is_multiple_of(3)
    }
}

#[test]
fn random_memory_terminates() {
    let versions = [(3, 9), (3, 10), (3, 11), (3, 12)];
    let layouts: Vec<Layout> = versions.into_iter().filter_map(Layout::for_version).collect();
    let constants = [Some(0), Some(u64::MAX), Some(0x10_0000), Some(1 << 47), Some(0x20)];
    let mut found = 0;
    for (i, layout) in layouts.iter().enumerate() {
        let seeds = (1..600).map(|seed| (seed, None));
        for (seed, constant) in constants.map(|it| (1, it)).into_iter().chain(seeds) {
            let memory = Garbage { seed, constant, reads: std::cell::Cell::new(0) };
            let interpreter = Interpreter {
                version: versions[i],
                runtime: 0x10_0000 + 8 * seed,
                layout: layout.clone(),
            };
            if let Ok(threads) = interpreter.threads(&memory) {
                assert!(threads.len() <= MAX_THREADS);
                assert!(threads.iter().all(|it| it.frames.len() <= MAX_FRAMES));
                found += threads.len();
            }
            assert!(memory.reads.get() < 40_000, "{}", memory.reads.get());
            let mut pages = Pages::new(&memory);
            for start in [0, 0x10_0000, u64::MAX] {
                let path = String::from("/usr/bin/python3.11");
                let id = Default::default();
                drop(Interpreter::find(&mut pages, &Loaded { start, end: start, path, id }));
            }
            drop(Layout::published(&mut pages, seed, (3, 13)));
        }
    }
    assert!(found > 0, "no content resembles a thread");
}

/// The main thread waits for a mutex that another thread holds.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
const MUTEX: &str = "
import ctypes, threading, time
libc = ctypes.CDLL(None)
mutex = ctypes.create_string_buffer(64)
held = threading.Event()
def holds_it():
    libc.pthread_mutex_lock(mutex)
    held.set()
    time.sleep(600)
threading.Thread(target=holds_it, daemon=True).start()
held.wait()
print('ready', flush=True)
libc.pthread_mutex_lock(mutex)
";

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[test]
fn holder_of_a_mutex_is_named() {
    for python in interpreters() {
        let program = Program::start(&python, MUTEX);
        let started = Instant::now();
        let mut named = String::new();
        while !named.starts_with("mutex, held by thread ")
            && started.elapsed() < Duration::from_secs(20)
        {
            let main = program.capture().threads.into_iter().next();
            named = main.and_then(|it| it.blocked_on).map(|it| it.what).unwrap_or_default();
        }
        assert!(named.ends_with(", which is in holds_it() at <string>:9"), "{named:?}");
    }
}

const MAKER: &str = r#"
import threading
LOCK = threading.Lock()
LOCK.acquire()
_pg_names, _pg_group_ranks = {"all": "0"}, {"all": {0: 0, 1: 1}}
source = """
def _new_process_group_helper(global_ranks_in_group, group_name):
    LOCK.acquire()
    pg = None

def _new_group_with_tag(ranks):
    group_name = "7"
    _new_process_group_helper(ranks, group_name)

def new_subgroups(group):
    _new_group_with_tag(RANKS)
"""
exec(compile(source, "/v/torch/distributed/distributed_c10d.py", "exec"))
print('ready', flush=True)
new_subgroups(None)
"#;

#[test]
fn group_that_a_call_creates_is_read_from_its_frame() {
    for python in interpreters() {
        let group = |ranks: &str| {
            let program = Program::start(&python, &format!("RANKS = {ranks}\n{MAKER}"));
            let waits = |it: &v1::Stacks| {
                let main = it.threads.first().map(words).unwrap_or_default();
                main.starts_with("_new_process_group_helper:3 ")
            };
            eventually(&program, waits).threads.swap_remove(0).group
        };
        let found = group("[2, 0, 300]").unwrap();
        assert_eq!((&*found.name, &found.members[..]), ("7", &[2, 0, 300][..]), "{python:?}");
        // Neither the group of all ranks nor that of the caller is created.
        for unknown in ["None", "[]", "['a']", "(1, 2)"] {
            assert_eq!(group(unknown), None, "{python:?}: {unknown}");
        }
    }
}
