//! Where all threads of a process stand, seen from outside.
//!
//! Nothing runs in the process, nothing stops it, no lock of it is waited for: its memory is read
//! through `/proc`, as a debugger's would be, without attaching. So it makes no difference whether it
//! runs, holds the interpreter's lock for minutes, winds down, has just forked, or is stopped; and
//! what it does cannot be changed by it. The price: it moves while it is read ([`python`]), and the
//! kernel must permit it ([`access`]).

use std::io;

use ddp_doctor_proto::report::{Timestamp, Where};
use ddp_doctor_proto::v1;

pub mod access;
pub mod elf;
pub mod layout;
pub mod lines;
pub mod maps;
pub mod memory;
pub mod python;
pub mod taker;
pub mod tasks;

use super::proc;
use maps::Loaded;
use memory::{Memory, Pages, ProcessMemory};
use python::{Gap, Interpreter, MOST_FRAMES, NoInterpreter, PythonThread};
use tasks::Task;

/// Longest name of a frame that is passed on, in bytes.
const MOST_NAME: usize = 1024;
/// Bytes of frames that are passed on for one process.
const MOST_BYTES: usize = 2 << 20;

/// Takes the stacks of the process with this number and start time. Whatever cannot be had is said in
/// `trouble`; the number of the process in messages is not set.
#[must_use]
pub fn take(pid: u32, start_ticks: u64) -> v1::Stacks {
    let unix_ns = Timestamp::now().0;
    let (tasks, python, mut trouble) = match look(pid, start_ticks) {
        Ok(seen) => seen,
        Err(error) => (Vec::new(), Vec::new(), vec![access::explain(pid, &error)]),
    };
    let threads = join(tasks, python, &mut trouble);
    v1::Stacks {
        process: 0,
        unix_ns,
        threads,
        trouble: trouble.join("; "),
    }
}

type Seen = (Vec<Task>, Vec<(Option<u32>, PythonThread)>, Vec<String>);

fn look(pid: u32, start_ticks: u64) -> io::Result<Seen> {
    let mut trouble = Vec::new();
    // Opened first: what is read through it is then of the process that is looked at next.
    let memory = ProcessMemory::open(pid);
    let (tasks, left_out) = tasks::of(pid)?;
    if left_out > 0 {
        trouble.push(format!("{left_out} more threads were not looked at"));
    }
    if proc::Stat::of(pid)?.start_ticks != start_ticks {
        return Err(io::ErrorKind::NotFound.into());
    }
    let python = match memory {
        Ok(memory) => python(pid, &memory).unwrap_or_else(|reason| {
            trouble.push(reason);
            Vec::new()
        }),
        Err(error) => {
            trouble.push(access::explain(pid, &error));
            Vec::new()
        }
    };
    if !proc::is_alive(pid, start_ticks) {
        return Err(io::ErrorKind::NotFound.into());
    }
    Ok((tasks, python, trouble))
}

/// Python's threads, with the number that each has in the pid namespace of its process.
fn python(pid: u32, memory: &ProcessMemory) -> Result<Vec<(Option<u32>, PythonThread)>, String> {
    let mut images = maps::images(pid).map_err(|error| access::explain(pid, &error))?;
    let program = maps::program(pid);
    images.retain(|image| {
        image.file_name().contains("python") || Some(&image.path) == program.as_ref()
    });
    // A program may be linked with the library and have no interpreter of its own.
    images.sort_by_key(|image: &Loaded| !image.file_name().starts_with("libpython"));
    let mut pages = Pages::new(memory);
    for image in &images {
        let interpreter = Interpreter::find(&mut pages, image);
        if let Some(interpreter) = interpreter.map_err(|reason| reason.to_string())? {
            let threads = interpreter.threads(memory);
            let threads = threads.map_err(|fault| NoInterpreter::Fault(fault).to_string())?;
            if threads.is_empty() {
                return Err("its Python interpreter has ended, or has not begun".into());
            }
            let number = |thread: &PythonThread| match thread.native_id {
                Some(id) => u32::try_from(id).ok(),
                None => tid_of_pthread(&mut pages, thread.pthread),
            };
            return Ok(numbered(threads, number));
        }
    }
    Err("it runs no Python, and native frames are not read".into())
}

fn numbered(
    threads: Vec<PythonThread>,
    mut number: impl FnMut(&PythonThread) -> Option<u32>,
) -> Vec<(Option<u32>, PythonThread)> {
    threads
        .into_iter()
        .map(|thread| (number(&thread), thread))
        .collect()
}

/// What glibc keeps in a thread's descriptor (`struct pthread`, `tid`), at the same place in all versions
/// that are in use.
fn tid_of_pthread<M: Memory>(pages: &mut Pages<'_, M>, pthread: u64) -> Option<u32> {
    let offset = match std::env::consts::ARCH {
        "x86_64" => 0x2d0,
        "aarch64" => 0xd0,
        _ => return None,
    };
    pages.u32(memory::at(pthread, offset).ok()?).ok()
}

/// The kernel's threads with the frames that Python has for them: the main thread first, then
/// those that run Python.
fn join(
    tasks: Vec<Task>,
    mut python: Vec<(Option<u32>, PythonThread)>,
    trouble: &mut Vec<String>,
) -> Vec<v1::ThreadStack> {
    // After a fork only one thread is left, which may still have the number it had before.
    let strangers = |(tid, _): &&(Option<u32>, PythonThread)| {
        !tasks.iter().any(|task| Some(task.inner_tid) == *tid)
    };
    if let [only] = &tasks[..]
        && python.iter().all(|thread| strangers(&thread))
    {
        let runs = python
            .iter()
            .position(|(_, thread)| thread.holds_gil)
            .unwrap_or(0);
        if let Some((tid, _)) = python.get_mut(runs) {
            *tid = Some(only.inner_tid);
        }
    }
    let mut left = MOST_BYTES;
    let mut moving = 0;
    let mut threads: Vec<v1::ThreadStack> = Vec::with_capacity(tasks.len());
    for task in tasks {
        let known = python
            .iter()
            .position(|(tid, _)| *tid == Some(task.inner_tid));
        let known = known.map(|index| python.swap_remove(index).1);
        match known.as_ref().and_then(|thread| thread.gap) {
            Some(Gap::Moving) => moving += 1,
            Some(Gap::Deeper) => trouble.push(format!(
                "thread {}: only the {MOST_FRAMES} innermost frames were read",
                task.tid
            )),
            Some(Gap::Fault(fault)) => {
                trouble.push(format!(
                    "thread {}: its frames cannot be read: {fault}",
                    task.tid
                ));
            }
            None => {}
        }
        threads.push(v1::ThreadStack {
            tid: task.tid,
            name: task.name,
            state: task.state.to_string(),
            wait_channel: task.wait_channel,
            cpu_ns: Some(task.cpu_ns),
            holds_gil: known.as_ref().map(|thread| thread.holds_gil),
            python: frames(
                known.map(|thread| thread.frames).unwrap_or_default(),
                &mut left,
            ),
            native: Vec::new(),
        });
    }
    if moving > 0 {
        trouble.push(format!(
            "{moving} of its threads moved while looked at: frames of theirs may be of different moments"
        ));
    }
    if left == 0 {
        trouble.push("there are more frames than are passed on".into());
    }
    if let Some((_, others)) = threads.split_first_mut() {
        others.sort_by_key(|thread| thread.python.is_empty());
    }
    threads
}

fn frames(frames: Vec<Where>, left: &mut usize) -> Vec<v1::Frame> {
    let mut passed = Vec::new();
    for frame in frames {
        let (file, function) = (cut(frame.file), cut(frame.function));
        let size = file.len() + function.len() + 16;
        if size > *left {
            *left = 0;
            break;
        }
        *left -= size;
        passed.push(v1::Frame {
            file,
            line: frame.line,
            function,
        });
    }
    passed
}

fn cut(mut name: String) -> String {
    if name.len() > MOST_NAME {
        let end = (0..=MOST_NAME)
            .rev()
            .find(|&end| name.is_char_boundary(end));
        name.truncate(end.unwrap_or(0));
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_forked_is_known_by_being_alone() {
        let task = |tid| Task {
            tid,
            inner_tid: tid,
            name: String::new(),
            state: 'S',
            wait_channel: String::new(),
            cpu_ns: 1,
        };
        let thread = |line, holds_gil| PythonThread {
            pthread: 0,
            native_id: None,
            holds_gil,
            frames: vec![Where {
                file: "x.py".into(),
                line,
                function: "f".into(),
            }],
            gap: None,
        };
        let line = |tasks: Vec<Task>, python| {
            let threads = join(tasks, python, &mut Vec::new());
            threads
                .iter()
                .map(|it| it.python.first().map(|it| it.line))
                .collect::<Vec<_>>()
        };
        let python = || vec![(Some(7), thread(1, false)), (Some(8), thread(2, true))];
        assert_eq!(line(vec![task(9)], python()), [Some(2)]);
        assert_eq!(line(vec![task(8)], python()), [Some(2)]);
        assert_eq!(
            line(vec![task(5), task(6), task(8)], python()),
            [None, Some(2), None]
        );
    }

    #[test]
    fn what_is_passed_on_is_bounded() {
        let frame = || Where {
            file: "é".repeat(4000),
            line: 1,
            function: "f".into(),
        };
        let mut left = 3000;
        let passed = frames((0..10).map(|_| frame()).collect(), &mut left);
        assert_eq!((passed.len(), left), (2, 0));
        assert_eq!(passed[0].file.len(), 1024);
    }
}
