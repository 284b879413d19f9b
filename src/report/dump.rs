//! Stacks of ranks as text: equal stacks grouped, the smallest group first.

use std::collections::BTreeMap;
use std::io::{self, Write};

use ddp_doctor_diagnosis::event::{Stacks, ThreadStack};
use ddp_doctor_diagnosis::input::place;
use ddp_doctor_diagnosis::words;
use ddp_doctor_host::source_files::{SourceFolders, SourceLines};
use ddp_doctor_proto::dump::{Dump, FrameGroup, Process, SCHEMA, SCHEMA_VERSION, Thread};
use ddp_doctor_proto::report::{BlockedOn, Job, Rank, RankState, Timestamp, Tool, Where};
use ddp_doctor_proto::words::of_group;

use super::markdown::escaped;
use super::text::{Style, duration, ended, plain, short_path};

/// Maximum length of a native function's name shown, in characters.
const MAX_FUNCTION_CHARS: usize = 60;

/// A dump of a job without processes.
#[must_use]
pub fn of_job(job: Option<Job>, taken_at: Timestamp, missing_ranks: Vec<u32>) -> Dump {
    Dump {
        schema: SCHEMA.into(),
        schema_version: SCHEMA_VERSION.into(),
        tool: Tool::this(),
        job,
        taken_at,
        missing_ranks,
        groups: Vec::new(),
        processes: Vec::new(),
    }
}

/// The process of a rank, with its stacks or the reason why there are none.
#[must_use]
pub fn of_rank(rank: &Rank, stacks: Result<&Stacks, &str>) -> Process {
    let mut process = Process {
        rank: Some(rank.rank),
        host: rank.host.clone(),
        pid: rank.pid,
        state: rank.state,
        exit: rank.exit,
        step: Some(rank.step),
        waiting_in: rank.waiting_in.clone(),
        ..Process::default()
    };
    match stacks {
        Ok(stacks) => add(&mut process, stacks),
        Err(why) => process.trouble = Some(why.into()),
    }
    process
}

/// A dump of processes of one host, given by rank, pid and stacks.
#[must_use]
pub fn of_processes(host: &str, processes: Vec<(Option<u32>, u32, Stacks)>) -> Dump {
    let times = processes.iter().map(|(.., stacks)| stacks.at);
    let mut dump = of_job(None, times.max().unwrap_or_default(), Vec::new());
    for (rank, pid, stacks) in processes {
        let state = match stacks.threads.first().and_then(|main| main.state) {
            None | Some('Z') => RankState::Unknown,
            Some('T' | 't') => RankState::Stopped,
            Some(_) => RankState::Running,
        };
        let mut process = Process { rank, host: host.to_owned(), pid, state, ..Process::default() };
        add(&mut process, &stacks);
        dump.processes.push(process);
    }
    grouped(dump)
}

fn add(process: &mut Process, stacks: &Stacks) {
    let thread = |thread: &ThreadStack| Thread {
        tid: thread.tid,
        name: thread.name.to_string(),
        state: thread.state.map(String::from),
        wait_channel: thread.wait_channel.as_deref().map(String::from),
        cpu_ms: thread.cpu_time.map(|time| time.as_millis() as u64),
        holds_gil: thread.holds_gil,
        python: thread.python.clone(),
        native: thread.native.clone(),
        blocked_on: thread.blocked_on.as_ref().map(|on| BlockedOn {
            kind: on.kind.to_string(),
            what: on.what.to_string(),
            rank: on.rank,
            pid: on.pid,
            for_ms: thread.asleep.map(|it| it.as_millis() as u64),
        }),
    };
    process.taken_at = Some(stacks.at);
    process.trouble = (!stacks.trouble.is_empty()).then(|| stacks.trouble.to_string());
    process.threads = stacks.threads.iter().map(thread).collect();
}

/// Sorts the processes by rank, and adds the groups, the smallest first. A process without stacks
/// belongs to no group.
#[must_use]
pub fn grouped(mut dump: Dump) -> Dump {
    dump.processes.sort_by_key(|process| process.rank);
    let mut groups: BTreeMap<&[Where], Vec<usize>> = BTreeMap::new();
    for (index, process) in dump.processes.iter().enumerate() {
        if let Some(main) = process.threads.first() {
            groups.entry(&main.python).or_default().push(index);
        }
    }
    let group = |(frames, processes): (&[Where], Vec<usize>)| FrameGroup {
        processes,
        frames: frames.to_vec(),
    };
    let mut groups: Vec<FrameGroup> = groups.into_iter().map(group).collect();
    groups.sort_by_key(|group| (group.processes.len(), group.processes[0]));
    dump.groups = groups;
    dump
}

/// Writes a dump for a terminal. Source lines are read below `folders`.
///
/// # Errors
///
/// Fails if `out` cannot be written.
pub fn text(
    out: &mut dyn Write,
    dump: &Dump,
    style: Style,
    all_threads: bool,
    folders: &SourceFolders,
) -> io::Result<()> {
    let (on, off) = style.label();
    if let Some(head) = head(dump) {
        writeln!(out, "{head}")?;
    }
    let mut sources = SourceLines::below(folders);
    for group in &dump.groups {
        let members = members(dump, group);
        writeln!(out, "\n{on}{}{off}", who(&members))?;
        let frames = stack_rows(&members, &group.frames, &mut sources);
        for row in aligned(&frames) {
            writeln!(out, "    {row}")?;
        }
        if frames.is_empty() {
            writeln!(out, "    no frames")?;
        }
        writeln!(out)?;
        for row in aligned(&members.iter().map(|it| state_row(it, dump)).collect::<Vec<_>>()) {
            writeln!(out, "  {row}")?;
        }
    }
    if all_threads {
        for (who, threads) in other_threads(dump) {
            writeln!(out, "\n{on}{who}{off}")?;
            let row = thread_words(threads);
            writeln!(out, "    {row}")?;
            for row in aligned(&thread_rows(threads, &mut sources)) {
                writeln!(out, "    {row}")?;
            }
        }
    }
    let gaps = gaps(dump);
    if !gaps.is_empty() {
        writeln!(out)?;
    }
    for remark in gaps {
        writeln!(out, "{remark}")?;
    }
    Ok(())
}

/// Writes a dump as Markdown, for an issue or a chat. Source lines are read below `folders`.
///
/// # Errors
///
/// Fails if `out` cannot be written.
pub fn markdown(
    out: &mut dyn Write,
    dump: &Dump,
    all_threads: bool,
    folders: &SourceFolders,
) -> io::Result<()> {
    writeln!(out, "# Stacks\n")?;
    if let Some(head) = head(dump) {
        writeln!(out, "{}", escaped(&head))?;
    }
    let mut sources = SourceLines::below(folders);
    for group in &dump.groups {
        let members = members(dump, group);
        writeln!(out, "\n## {}\n", escaped(&who(&members)))?;
        writeln!(out, "| | state | main thread | CPU |\n|---|---|---|---|")?;
        for member in &members {
            let cells = state_row(member, dump).map(|cell| escaped(&cell));
            writeln!(out, "| {} |", cells.join(" | "))?;
        }
        block(out, &stack_rows(&members, &group.frames, &mut sources))?;
    }
    if all_threads {
        for (who, thread) in other_threads(dump) {
            let row = thread_words(thread);
            writeln!(out, "\n## {}\n\n{}", escaped(&who), escaped(&row))?;
            block(out, &thread_rows(thread, &mut sources))?;
        }
    }
    for remark in gaps(dump) {
        writeln!(out, "\n- {}", escaped(&remark))?;
    }
    Ok(())
}

/// Writes rows as a code block, or nothing if there are no rows.
fn block<const N: usize>(out: &mut dyn Write, rows: &[[String; N]]) -> io::Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    // No row has as many backquotes in a row as the fence.
    let runs = rows.as_flattened().iter().flat_map(|cell| cell.split(|c| c != '`'));
    let fence = "`".repeat(runs.map(str::len).max().unwrap_or_default().max(2) + 1);
    writeln!(out, "\n{fence}text")?;
    for row in aligned(rows) {
        writeln!(out, " {row}")?;
    }
    writeln!(out, "{fence}")
}

fn head(dump: &Dump) -> Option<String> {
    let job = dump.job.as_ref()?;
    let ranks = dump.processes.len() + dump.missing_ranks.len();
    let id = plain(&job.id);
    Some(format!("job {id}, {ranks} ranks · {}", dump.taken_at))
}

fn members<'a>(dump: &'a Dump, group: &FrameGroup) -> Vec<&'a Process> {
    group.processes.iter().filter_map(|&index| dump.processes.get(index)).collect()
}

/// Names of the processes: "rank 1", "ranks 0, 2–7", "process 123".
fn who(processes: &[&Process]) -> String {
    let ranks: Vec<u32> = processes.iter().filter_map(|process| process.rank).collect();
    match (&ranks[..], processes) {
        ([], [process, ..]) => format!("process {}", process.pid),
        (ranks, _) => words::Ranks(ranks).to_string(),
    }
}

/// Rows of the main threads' stack. Native frames are those of the first member: the group has only
/// its Python frames in common.
fn stack_rows(
    members: &[&Process],
    frames: &[Where],
    sources: &mut SourceLines,
) -> Vec<[String; 3]> {
    let first = members.first().and_then(|process| process.threads.first());
    match first {
        Some(main) => thread_rows(main, sources),
        None => frame_rows(frames, sources),
    }
}

/// The native frames called from Python, then the Python frames; without Python, all native frames.
pub(super) fn thread_rows(thread: &Thread, sources: &mut SourceLines) -> Vec<[String; 3]> {
    let is_interpreter = |frame: &&Where| file_name(&frame.file).contains("python");
    let called = if thread.python.is_empty() {
        thread.native.len()
    } else {
        thread.native.iter().take_while(|it| !is_interpreter(it)).count()
    };
    // Names of template instances can fill whole screens.
    let short = |name: &str| match name.char_indices().nth(MAX_FUNCTION_CHARS) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.to_owned(),
    };
    let row = |frame: &Where| {
        let function = match frame.function.as_str() {
            "" => "?".into(),
            name => short(&plain(name)),
        };
        [function, plain(file_name(&frame.file)), String::new()]
    };
    let mut rows: Vec<[String; 3]> = thread.native[..called].iter().map(row).collect();
    rows.extend(frame_rows(&thread.python, sources));
    rows
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}

/// Function, place, and the source line if it is the user's code.
fn frame_rows(frames: &[Where], sources: &mut SourceLines) -> Vec<[String; 3]> {
    let row = |frame: &Where| {
        let source = place::is_users(&frame.file).then(|| sources.line(frame)).flatten();
        [
            plain(&frame.function),
            plain(&library_path(&short_path(frame))),
            source.unwrap_or_default(),
        ]
    };
    frames.iter().map(row).collect()
}

/// Shortens library paths: `…/site-packages/torch/nn/x.py:3` → `torch/nn/x.py:3`,
/// `…/lib/python3.11/queue.py:1` → `queue.py:1`.
fn library_path(path: &str) -> String {
    let package = path.split_once("-packages/").map(|(_, rest)| rest);
    let own = || {
        let (_, rest) = path.split_once("/lib/python3.")?;
        Some(rest.split_once('/')?.1)
    };
    package.or_else(own).unwrap_or(path).to_owned()
}

/// Rank, call or state, state of the main thread, and its CPU time. Hosts are named if the dump
/// is of several.
fn state_row(process: &Process, dump: &Dump) -> [String; 4] {
    let mut name = process.rank.map_or_else(String::new, |rank| format!("rank {rank}"));
    if dump.processes.iter().any(|other| other.host != process.host) {
        name.push_str(&format!(" on {}", plain(&process.host)));
    }
    let mut state = match &process.waiting_in {
        Some(waiting) => {
            let seq = waiting.seq.map(|seq| format!(" #{seq}")).unwrap_or_default();
            let group = of_group(&waiting.group);
            let waited = waiting.waited_ms.map(|ms| format!(" for {}", duration(ms)));
            format!("in {}{seq}{group}{}", plain(&waiting.op), waited.unwrap_or_default())
        }
        None => process.state.to_string(),
    };
    if let Some(step) = process.step.filter(|&step| step > 0) {
        state.push_str(&format!(", step {step}"));
    }
    let main = process.threads.first();
    [
        name,
        state,
        main.map(thread_state).unwrap_or_default(),
        main.and_then(|main| main.cpu_ms)
            .map_or_else(String::new, |ms| format!("CPU {}", duration(ms))),
    ]
}

/// State of a thread: "sleeping in futex_do_wait, holds the GIL".
pub(super) fn thread_state(thread: &Thread) -> String {
    let mut text = match thread.state.as_deref() {
        Some("R") => "running".to_owned(),
        Some("S") => "sleeping".to_owned(),
        Some("D") => "waiting for a device".to_owned(),
        Some("T" | "t") => "stopped".to_owned(),
        Some("I") => "idle".to_owned(),
        Some(other) => format!("state {}", plain(other)),
        None => "state unknown".to_owned(),
    };
    if let Some(channel) = &thread.wait_channel {
        text.push_str(&format!(" in {}", plain(channel)));
    }
    if thread.holds_gil == Some(true) {
        text.push_str(", holds the GIL");
    }
    if let Some(on) = &thread.blocked_on {
        text.push_str(&format!(", waits for {}", plain(&on.what)));
    }
    text
}

fn thread_words(thread: &Thread) -> String {
    let cpu = thread.cpu_ms.map(|ms| format!(", CPU {}", duration(ms)));
    format!("{}{}", thread_state(thread), cpu.unwrap_or_default())
}

/// Threads of several processes with equal names, states and Python frames.
struct ThreadGroup<'a> {
    /// One of the threads.
    thread: &'a Thread,
    /// Name without the number that distinguishes the threads of a pool.
    name: &'a str,
    /// Number of such threads per process, by index of the process.
    counts: BTreeMap<usize, usize>,
}

/// Threads other than main threads, equal ones of all processes grouped: a title, and one of the
/// threads. Threads with Python frames come first.
fn other_threads(dump: &Dump) -> Vec<(String, &Thread)> {
    let mut kinds: BTreeMap<_, ThreadGroup<'_>> = BTreeMap::new();
    for (index, process) in dump.processes.iter().enumerate() {
        for thread in process.threads.iter().skip(1) {
            let is_number = |c: char| c.is_ascii_digit() || "_-".contains(c);
            let name = thread.name.trim_end_matches(is_number);
            let is_native = thread.python.is_empty();
            let kind = (is_native, thread_state(thread), name, &thread.python);
            let alike = kinds.entry(kind).or_insert_with(|| ThreadGroup {
                thread,
                name,
                counts: BTreeMap::new(),
            });
            *alike.counts.entry(index).or_insert(0) += 1;
        }
    }
    let titled = |alike: &ThreadGroup<'_>| {
        let indexes = alike.counts.keys();
        let of: Vec<&Process> = indexes.map(|&index| &dump.processes[index]).collect();
        let count: usize = alike.counts.values().sum();
        let threads = if count == 1 { "thread" } else { "threads" };
        format!("{}: {count} {threads} {}", who(&of), plain(alike.name))
    };
    let alike = kinds.values();
    alike.map(|alike| (titled(alike), alike.thread)).collect()
}

/// Missing evidence, one line per reason.
fn gaps(dump: &Dump) -> Vec<String> {
    let mut by_text: BTreeMap<String, Vec<&Process>> = BTreeMap::new();
    for process in &dump.processes {
        let text = match &process.trouble {
            Some(_) if matches!(process.state, RankState::Exited | RankState::Dead) => {
                ended(process.exit)
            }
            Some(trouble) => plain(trouble),
            None => continue,
        };
        by_text.entry(text).or_default().push(process);
    }
    let mut gaps: Vec<String> = by_text
        .into_iter()
        .map(|(text, processes)| format!("{}: {text}", who(&processes)))
        .collect();
    if !dump.missing_ranks.is_empty() {
        let missing = words::Ranks(&dump.missing_ranks);
        gaps.push(format!("{missing}: never seen"));
    }
    gaps
}

/// Formats rows as lines with aligned columns.
fn aligned<const N: usize>(rows: &[[String; N]]) -> Vec<String> {
    let width = |column: usize| {
        let widths = rows.iter().map(|row| row[column].chars().count());
        widths.max().unwrap_or_default()
    };
    let widths: Vec<usize> = (0..N).map(width).collect();
    let line = |row: &[String; N]| {
        let mut line = String::new();
        for (cell, &width) in row.iter().zip(&widths).filter(|(_, width)| **width > 0) {
            line.push_str(&format!("{cell:<width$}   "));
        }
        line.trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
#[path = "dump_tests.rs"]
mod tests;
