//! Conversion of stacks between messages and the engine, with limits.

use std::time::Duration;

use ddp_doctor_proto::report::{Timestamp, Where};
use ddp_doctor_proto::v1;

use super::values::{name, text};
use crate::diagnosis::event::{Stacks, ThreadStack};

/// Maximum number of threads kept per process: OpenMP and autograd create dozens.
const MAX_THREADS: usize = 512;
/// Maximum number of frames kept per thread, from the innermost.
const MAX_FRAMES: usize = 256;

/// Decodes stacks that a node sent.
#[must_use]
pub fn decode(stacks: &v1::Stacks) -> Stacks {
    Stacks {
        at: Timestamp(stacks.unix_ns),
        threads: stacks
            .threads
            .iter()
            .take(MAX_THREADS)
            .map(thread)
            .collect(),
        trouble: text(&stacks.trouble),
    }
}

/// Encodes stacks as a message about a process.
#[must_use]
pub fn encode(process: u64, stacks: &Stacks) -> v1::Stacks {
    let frames = |frames: &[Where]| -> Vec<v1::Frame> {
        let frame = |frame: &Where| v1::Frame {
            file: frame.file.clone(),
            line: frame.line,
            function: frame.function.clone(),
        };
        frames.iter().map(frame).collect()
    };
    let thread = |thread: &ThreadStack| v1::ThreadStack {
        tid: thread.tid,
        name: thread.name.to_string(),
        state: thread.state.map(String::from).unwrap_or_default(),
        wait_channel: thread.wait_channel.as_deref().unwrap_or_default().into(),
        cpu_ns: thread.cpu_time.map(|time| time.as_nanos() as u64),
        holds_gil: thread.holds_gil,
        python: frames(&thread.python),
        native: frames(&thread.native),
    };
    v1::Stacks {
        process,
        unix_ns: stacks.at.0,
        threads: stacks.threads.iter().map(thread).collect(),
        trouble: stacks.trouble.to_string(),
    }
}

fn thread(thread: &v1::ThreadStack) -> ThreadStack {
    ThreadStack {
        tid: thread.tid,
        name: name(&thread.name),
        state: thread.state.chars().next(),
        wait_channel: (!thread.wait_channel.is_empty()).then(|| name(&thread.wait_channel)),
        cpu_time: thread.cpu_ns.map(Duration::from_nanos),
        holds_gil: thread.holds_gil,
        python: frames(&thread.python),
        native: frames(&thread.native),
    }
}

fn frames(frames: &[v1::Frame]) -> Vec<Where> {
    frames
        .iter()
        .take(MAX_FRAMES)
        .map(|frame| Where {
            file: name(&frame.file).as_ref().into(),
            line: frame.line,
            function: name(&frame.function).as_ref().into(),
            ..Where::default()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_stacks_equal_the_decoded_message() {
        let frame = |line| v1::Frame {
            file: "train.py".into(),
            line,
            function: "f".into(),
        };
        let thread = v1::ThreadStack {
            tid: 7,
            name: "python".into(),
            state: "S".into(),
            wait_channel: "futex_do_wait".into(),
            cpu_ns: Some(8),
            holds_gil: Some(true),
            python: vec![frame(1), frame(2)],
            native: vec![frame(0)],
        };
        let stacks = v1::Stacks {
            process: 3,
            unix_ns: 9,
            threads: vec![thread, v1::ThreadStack::default()],
            trouble: "little".into(),
        };
        assert_eq!(encode(3, &decode(&stacks)), stacks);
    }
}
