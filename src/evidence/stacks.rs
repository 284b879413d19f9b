//! Stacks as a node sent them → as the engine knows them, bounded.

use std::time::Duration;

use ddp_doctor_proto::report::{Timestamp, Where};
use ddp_doctor_proto::v1;

use super::decode::{name, text};
use crate::diagnosis::event::{Stacks, ThreadStack};

/// Most threads of a process that are kept: OpenMP and autograd make dozens.
const MAX_THREADS: usize = 512;
/// Most frames of a thread that are kept, from the innermost on.
const MAX_FRAMES: usize = 256;

pub(super) fn decode(taken: &v1::Stacks) -> Stacks {
    Stacks {
        at: Timestamp(taken.unix_ns),
        threads: taken.threads.iter().take(MAX_THREADS).map(thread).collect(),
        trouble: text(&taken.trouble),
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
        })
        .collect()
}
