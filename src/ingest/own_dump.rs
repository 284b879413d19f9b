//! Stacks that `ddp-doctor dump --format json` wrote, as a log with the stacks of each process.

use std::io::{self, Read};
use std::path::Path;

use ddp_doctor_host::input_files;
use ddp_doctor_proto::dump::{Dump, Process, Thread};
use ddp_doctor_proto::words::plain;

use crate::logs::{self, Log};

/// Maximum size of a dump, in bytes.
const MAX_BYTES: u64 = 128 << 20;

/// Reads a dump.
///
/// # Errors
///
/// Fails if the file cannot be read, or is not a complete dump.
pub fn read(path: &Path) -> io::Result<Log> {
    let mut bytes = Vec::new();
    input_files::decompressed(input_files::open(path)?)?.take(MAX_BYTES).read_to_end(&mut bytes)?;
    let dump: Dump = serde_json::from_slice(&bytes)?;
    let mut text = String::new();
    for process in &dump.processes {
        add(&mut text, process);
    }
    logs::read_contents(path, &text.into_bytes().into(), dump.taken_at)
}

/// Adds the stacks of a process in the form of `py-spy dump`, with the label of its rank.
fn add(text: &mut String, process: &Process) {
    let label = process.rank.map_or_else(String::new, |rank| format!("[rank{rank}]: "));
    let mut line = |line: &str| text.push_str(&format!("{label}{}\n", plain(line)));
    line(&format!("Process {}: {}", process.pid, plain(&process.host)));
    for (index, Thread { tid, name, state, python, .. }) in process.threads.iter().enumerate() {
        let name = if index == 0 { "MainThread" } else { name };
        let state = if state.as_deref() == Some("R") { "active" } else { "idle" };
        line(&format!("Thread {tid} ({state}): \"{name}\""));
        for frame in python {
            line(&format!("    {} ({}:{})", frame.function, frame.file, frame.line));
        }
    }
}
