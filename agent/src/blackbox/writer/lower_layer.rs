//! Records of the layer below a call: the NCCL calls, blocking functions and network transfers that
//! implement it.

use std::time::Duration;

use ddp_doctor_proto::blackbox::{Call, Record, flags, group, inside};
use ddp_doctor_proto::{Op, RecordKind};

use super::Writer;
use crate::blackbox::nesting::Frame;
use crate::blackbox::threads::Local;
use crate::sync::Ordering;
use crate::sys;

/// The innermost call of the calling thread, according to this box.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outer {
    /// The user's own code.
    Nothing,
    /// A collective or a message, with this id.
    Call(u64),
    /// A wait, or a call that contains others, such as the creation of a group.
    Other,
}

impl Writer {
    /// The innermost call of the calling thread.
    #[inline]
    #[must_use]
    pub fn outer(&self) -> Outer {
        match self.frame() {
            None => Outer::Nothing,
            Some(frame) if frame.is_work() => Outer::Call(frame.call),
            Some(_) => Outer::Other,
        }
    }

    #[inline]
    fn frame(&self) -> Option<Frame> {
        Local::with(|local| {
            let known = local.belongs_to(self.name);
            known.then(|| local.nesting.top()).flatten()
        })
        .flatten()
    }

    /// Records the NCCL call with which the current collective of this thread is implemented. Only
    /// the first one is recorded, and only if its communicator has as many ranks as the group:
    /// others do not show what the ranks of the group agree on.
    pub fn lower_call(&self, asked: &Call, ranks: u32) {
        let Some(frame) = self.frame() else { return };
        if !frame.is_work() || frame.op.is_point_to_point() {
            return;
        }
        let is_whole = self.group_words(frame.group).is_some_and(|words| {
            words[group::ORDINAL_AND_SIZE].load(Ordering::Relaxed) >> 32 == u64::from(ranks)
        });
        if !is_whole || !self.calls.describe(frame.call) {
            return;
        }
        let known = self.calls.recall(frame.call);
        self.record(
            None,
            Record {
                mono_ns: sys::monotonic_ns(),
                kind: RecordKind::LowerCall,
                flags: asked.flags & !flags::P2P,
                group: known.group,
                seq: known.seq,
                call: frame.call,
                ..Record::from(asked)
            },
        );
    }

    /// Announces that the completion of a part of a call will be reported. Returns false if the
    /// call has already returned, since the number of its parts is then unknown, or cannot be
    /// tracked.
    pub fn follow(&self, call: u64) -> bool {
        self.calls.follow(call)
    }

    /// Counts a completed part of a tracked call. The call is complete once it has returned and all
    /// parts are complete.
    pub fn part_done(&self, call: u64) {
        if self.calls.part_done(call) {
            self.completed(call);
        }
    }

    /// Records that the calling thread enters a function of the layer below that may block; an
    /// empty name: it returned.
    pub fn within(&self, function: &[u8]) {
        let call = self.frame().filter(|it| it.is_work());
        let text = self.string(function);
        self.record(
            None,
            Record {
                mono_ns: sys::monotonic_ns(),
                kind: RecordKind::Within,
                call: call.map_or(0, |frame| frame.call),
                text,
                ..Record::default()
            },
        );
    }
}

/// Progress of a network transfer that is part of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferProgress {
    /// Id of the call.
    pub call: u64,
    /// Direction.
    pub is_send: bool,
    /// Rank of the peer in the communicator.
    pub peer: i32,
    /// NCCL channel.
    pub channel: u8,
    /// Number of completed steps.
    pub done: u32,
    /// Total number of steps.
    pub steps: u32,
    /// A constant of [`transfer`](ddp_doctor_proto::blackbox::transfer).
    pub waits_for: i32,
    /// Time since the last progress.
    pub stood: Duration,
}

impl Writer {
    /// Records that a transfer stalled, continues or ended. The recording thread is not the call's.
    pub fn transfer(&self, standing: &TransferProgress) {
        let stood = u64::try_from(standing.stood.as_nanos()).unwrap_or(u64::MAX);
        self.record(
            None,
            Record {
                mono_ns: sys::monotonic_ns().saturating_sub(stood),
                kind: RecordKind::Transfer,
                op: [Op::Recv, Op::Send][usize::from(standing.is_send)],
                flags: flags::ROOT | flags::TAG | flags::NUMEL,
                call: standing.call,
                root_or_peer: standing.peer,
                tag: i32::from(standing.channel),
                numel: u64::from(standing.done),
                tensors: standing.steps,
                code: standing.waits_for,
                ..Record::default()
            },
        );
    }
}

impl Frame {
    /// Whether this is a collective or a message, and not a wait.
    fn is_work(&self) -> bool {
        self.kind == inside::CALL && self.level() == 1
    }
}
