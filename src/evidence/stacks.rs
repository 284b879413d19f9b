//! Conversion of stacks from messages to the engine, with limits.

use std::sync::Arc;
use std::time::Duration;

use ddp_doctor_diagnosis::event::{Blocked, ChildProcess, Stacks, ThreadStack};
use ddp_doctor_proto::report::{Timestamp, Where};
use ddp_doctor_proto::{BlockKind, v1};

use super::values::{name, number, text};

/// Maximum number of threads kept per process: OpenMP and autograd create dozens.
const MAX_THREADS: usize = 512;
/// Maximum number of frames kept per thread, from the innermost.
const MAX_FRAMES: usize = 256;
/// Maximum number of child processes kept per process.
const MAX_CHILDREN: usize = 256;
/// Maximum number of file locks kept per process.
const MAX_LOCKS: usize = 8;

/// Decodes stacks that a node sent.
#[must_use]
pub fn decode(stacks: &v1::Stacks) -> Stacks {
    Stacks {
        at: Timestamp(stacks.unix_ns),
        threads: stacks.threads.iter().take(MAX_THREADS).map(thread).collect(),
        trouble: text(&stacks.trouble),
        children: stacks.children.iter().take(MAX_CHILDREN).map(child).collect(),
        held_locks: stacks.held_locks.iter().take(MAX_LOCKS).map(|it| text(it)).collect(),
    }
}

fn child(child: &v1::ChildProcess) -> ChildProcess {
    ChildProcess {
        pid: child.pid,
        parent: child.parent,
        name: name(&child.name),
        state: child.state.chars().next(),
        wait_channel: (!child.wait_channel.is_empty()).then(|| name(&child.wait_channel)),
        cpu_time: Duration::from_nanos(child.cpu_ns),
        ends_in: child.ends_in_ns.map(Duration::from_nanos),
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
        asleep: thread.asleep_ns.map(Duration::from_nanos),
        blocked_on: thread.blocked_on.as_ref().map(|it| Arc::new(blocked(it))),
    }
}

fn blocked(on: &v1::BlockedOn) -> Blocked {
    Blocked {
        kind: number(on.kind, BlockKind::from_number),
        what: text(&on.what),
        pid: (on.pid != 0).then_some(on.pid),
        rank: on.rank,
        ends_in: on.ends_in_ns.map(Duration::from_nanos),
        is_circle: on.is_circle,
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
