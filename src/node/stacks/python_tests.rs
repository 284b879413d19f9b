use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ddp_doctor_proto::v1;

use super::super::{memory::ProcessMemory, take};
use super::*;
use crate::node::proc::Stat;

/// Interpreters to test with: those that `DDP_DOCTOR_TEST_PYTHONS` names, separated by colons, or the
/// `python3` that is there.
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

/// A Python program that has come to the point where it prints "ready".
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

    fn take(&self) -> v1::Stacks {
        stacks_of(self.child.id())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn stacks_of(pid: u32) -> v1::Stacks {
    take(pid, Stat::of(pid).unwrap().start_ticks)
}

/// Frames as `function:line`, innermost first.
fn words(thread: &v1::ThreadStack) -> String {
    let frame = |frame: &v1::Frame| format!("{}:{}", frame.function, frame.line);
    thread.python.iter().map(frame).collect::<Vec<_>>().join(" ")
}

/// Takes stacks until it is as expected: what a program said last it may not have finished saying.
#[track_caller]
fn eventually(program: &Program, is_so: impl Fn(&v1::Stacks) -> bool) -> v1::Stacks {
    let started = Instant::now();
    loop {
        let stacks = program.take();
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
fn frames_are_those_that_python_itself_sees() {
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
            let thread = stacks.threads.iter().find(|it| it.tid.to_string() == tid);
            let thread = thread.unwrap();
            assert_eq!(words(thread), expected, "{}", python.display());
            assert_eq!((thread.state.as_str(), thread.holds_gil), ("S", Some(false)));
            assert!(thread.cpu_ns > Some(0), "{thread:?}");
        }
        let unicode = stacks.threads.iter().flat_map(|it| &it.python);
        let unicode = unicode.filter(|frame| frame.file == "/tmp/dätei.py");
        assert_eq!(unicode.count(), 2);
        // Two looks at what stands still give the same.
        let again = program.take();
        for (a, b) in stacks.threads.iter().zip(&again.threads) {
            assert_eq!((&a.tid, &a.python), (&b.tid, &b.python));
        }
    }
}
