//! What child processes do.

use std::fs;

use ddp_doctor_host::proc;
use ddp_doctor_host::proc::Stat;
use ddp_doctor_proto::report::Where;

use super::Waiter;
use crate::stack_reader::python_threads::python_frames;

/// Maximum number of data-loader workers whose stacks are read.
const MAX_WORKERS: usize = 32;
/// Maximum length of a command line that is shown, in characters.
const MAX_COMMAND: usize = 80;
/// Modules of PyTorch in which a program waits for a data-loader worker, and in which a worker makes a sample.
const LOADER: &str = "/torch/utils/data/dataloader.py";
const FETCH: &str = "/torch/utils/data/_utils/fetch.py";

/// Name of a process that another one waits for: "process 17 (sleep 3600)". The command of a process of another user is
/// not read, since that user decides how long it takes.
pub(super) fn process(waiter: u32, pid: u32) -> String {
    let arguments = if is_shown(waiter, pid) { proc::arguments(pid) } else { Vec::new() };
    // Programs given as arguments have lines.
    let words: Vec<&str> = arguments.iter().flat_map(|it| it.split_whitespace()).collect();
    let command: String = words.join(" ").chars().take(MAX_COMMAND).collect();
    if command.is_empty() { format!("process {pid}") } else { format!("process {pid} ({command})") }
}

/// Where a process that another one waits for is, if it belongs to this user and runs Python:
/// ", which is in load() at data.py:17".
pub(super) fn place(waiter: u32, pid: u32) -> Option<String> {
    let frames = is_shown(waiter, pid).then(|| python_frames(pid))??;
    let mut users = frames.iter().filter(|it| !it.file.starts_with('<'));
    let place = users.find(|it| ddp_doctor_diagnosis::input::place::is_users(&it.file))?;
    Some(format!(", which is in {}", shown(place)))
}

/// Whether what a process does may stand in a report about another one: root reads the ranks of any user, and its own
/// processes are none of that user's business.
pub(super) fn is_shown(waiter: u32, pid: u32) -> bool {
    proc::is_own(pid) && proc::owner(waiter) == proc::owner(pid)
}

fn shown(place: &Where) -> String {
    let file = place.file.rsplit('/').next().unwrap_or_default();
    format!("{}() at {file}:{}", place.function, place.line)
}

/// The only child of a process.
pub(super) fn only(pid: u32) -> Option<u32> {
    let mut children = list(pid).into_iter();
    let first = children.next()?;
    children.next().is_none().then_some(first)
}

fn list(pid: u32) -> Vec<u32> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return Vec::new();
    };
    let lists = tasks.flatten().map(|task| fs::read_to_string(task.path().join("children")));
    let listed: Vec<u32> = lists
        .flatten()
        .flat_map(|list| {
            list.split_whitespace().filter_map(|it| it.parse().ok()).collect::<Vec<_>>()
        })
        .collect();
    if !listed.is_empty() {
        return listed;
    }
    // Kernels without these lists.
    let all = proc::pids().unwrap_or_default();
    all.into_iter().filter(|&it| Stat::read(it).is_ok_and(|stat| stat.parent == pid)).collect()
}

/// The data-loader worker that a thread waits for, and where it is.
pub(super) fn data_loader_worker(waiter: &Waiter<'_>) -> Option<(u32, String)> {
    let mut frames = waiter.python.iter();
    frames.find(|frame| frame.file.ends_with(LOADER))?;
    // Another user can make a read of its memory block forever.
    let user = proc::owner(waiter.pid);
    let mut own =
        list(waiter.pid).into_iter().filter(|it| proc::owner(*it) == user).take(MAX_WORKERS);
    own.find_map(|pid| {
        let frames = python_frames(pid)?;
        let place = place_in_sample(&frames)?;
        Some((pid, format!("data-loader worker {pid}, which is in {}", shown(place))))
    })
}

/// The innermost line of the program in a worker that makes a sample.
fn place_in_sample(frames: &[Where]) -> Option<&Where> {
    let fetch = frames.iter().position(|frame| frame.file.ends_with(FETCH))?;
    let mut below = frames[..fetch].iter();
    let is_users = |frame: &&Where| ddp_doctor_diagnosis::input::place::is_users(&frame.file);
    below.find(is_users).or(frames[..fetch].last())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn child_is_named_by_its_command() {
        let mut child = Command::new("sleep").arg("31").spawn().unwrap();
        // The arguments of a program are set a moment after it has begun.
        let names = std::iter::repeat_with(|| {
            std::thread::yield_now();
            process(std::process::id(), child.id())
        });
        let name = names.take(100_000).find(|it| it.contains('(')).unwrap_or_default();
        let is_child = list(std::process::id()).contains(&child.id());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(name.ends_with("(sleep 31)"), "{name}");
        assert!(is_child);
        assert_eq!(process(std::process::id(), u32::MAX), format!("process {}", u32::MAX));
    }

    #[test]
    fn place_of_a_worker_is_in_the_sample() {
        let frame = |file: &str, line| Where { file: file.into(), line, ..Where::default() };
        let frames = [
            frame("/v/lib/python3.11/site-packages/PIL/Image.py", 9),
            frame("/job/data.py", 17),
            frame("/v/lib/python3.11/site-packages/torch/utils/data/_utils/fetch.py", 54),
            frame("/v/lib/python3.11/site-packages/torch/utils/data/_utils/worker.py", 300),
            frame("/job/train.py", 3),
        ];
        assert_eq!(place_in_sample(&frames[1..]).map(|it| it.line), Some(17));
        assert_eq!(place_in_sample(&frames[3..]), None, "an idle worker");
    }
}
