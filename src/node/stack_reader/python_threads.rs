//! The Python threads of a process, and what its main thread runs.

use ddp_doctor_proto::report::Where;

use super::maps::{self, Loaded};
use super::memory::{self, Memory, Pages, ProcessMemory};
use super::python::{Integers, Interpreter, NoInterpreter, PythonThread};
use super::{elf, tasks};

/// The Python frames of the main thread of a process, innermost first; `None` if they cannot be read.
#[must_use]
pub fn python_frames(pid: u32) -> Option<Vec<Where>> {
    let memory = ProcessMemory::open(pid).ok()?;
    let threads = python_threads(pid, &memory, &maps::images(pid).ok()?).ok()?;
    let (main, _) = tasks::list(pid).ok()?;
    let inner = main.first()?.inner_tid;
    let mut threads = threads.into_iter();
    threads.find(|(tid, _)| *tid == Some(inner)).map(|(_, thread)| thread.frames)
}

/// The Python frames of the main thread of a process, innermost first, each with those of its variables that have one
/// of these names and are integers: its local ones, or those of a module. Empty if they cannot be read.
#[must_use]
pub fn integers(pid: u32, names: &[&str]) -> Vec<(Where, Integers)> {
    let read = || {
        let memory = ProcessMemory::open(pid).ok()?;
        let interpreter = interpreter(pid, &memory, &maps::images(pid).ok()?).ok()?;
        let (main, _) = tasks::list(pid).ok()?;
        let inner = main.first()?.inner_tid;
        let is_main =
            |thread: &PythonThread| number(&mut Pages::new(&memory), thread) == Some(inner);
        interpreter.integers(&memory, is_main, names).ok()
    };
    read().unwrap_or_default()
}

/// The Python threads of a process, each with its thread id in the process' pid namespace.
pub(super) fn python_threads(
    pid: u32,
    memory: &ProcessMemory,
    images: &[Loaded],
) -> Result<Vec<(Option<u32>, PythonThread)>, String> {
    let threads = interpreter(pid, memory, images)?
        .threads(memory)
        .map_err(|fault| NoInterpreter::Fault(fault).to_string())?;
    if threads.is_empty() {
        return Err("its Python interpreter has exited or has not started".into());
    }
    let mut pages = Pages::new(memory);
    Ok(threads.into_iter().map(|thread| (number(&mut pages, &thread), thread)).collect())
}

/// The interpreter of a process.
fn interpreter(pid: u32, memory: &ProcessMemory, images: &[Loaded]) -> Result<Interpreter, String> {
    let program = maps::program(pid);
    let mut candidates: Vec<&Loaded> = images
        .iter()
        .filter(|it| it.file_name().contains("python") || Some(&it.path) == program.as_ref())
        .collect();
    // A program that is linked with libpython contains no interpreter itself.
    candidates.sort_by_key(|image| !image.file_name().starts_with("libpython"));
    let mut pages = Pages::new(memory);
    for image in candidates {
        let interpreter = Interpreter::find(&mut pages, image);
        if let Some(interpreter) = interpreter.map_err(|reason| reason.to_string())? {
            return Ok(interpreter);
        }
    }
    let is_static = |it: &Loaded| {
        Some(&it.path) == program.as_ref() && elf::Image::at(&mut pages, it.start).is_err()
    };
    Err(if images.iter().any(is_static) {
        "its program is statically linked, so its Python interpreter, if any, cannot be found: use \
         a dynamically linked Python"
            .into()
    } else {
        "it does not run Python".into()
    })
}

/// The id of a Python thread in the operating system, in the process' pid namespace.
fn number<M: Memory>(pages: &mut Pages<'_, M>, thread: &PythonThread) -> Option<u32> {
    match thread.native_id {
        Some(id) => u32::try_from(id).ok(),
        None => tid_of_pthread(pages, thread.pthread),
    }
}

/// Thread id in glibc's thread descriptor (`struct pthread`, `tid`), at the same offset in all
/// versions in use.
fn tid_of_pthread<M: Memory>(pages: &mut Pages<'_, M>, pthread: u64) -> Option<u32> {
    let offset = match std::env::consts::ARCH {
        "x86_64" => 0x2d0,
        "aarch64" => 0xd0,
        _ => return None,
    };
    pages.u32(memory::at(pthread, offset).ok()?).ok()
}
