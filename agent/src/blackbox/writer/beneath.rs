//! Records of what calls are made of: the layer below tells, from inside of them.

use std::time::Duration;

use ddp_doctor_proto::blackbox::{Record, flags, group, inside};
use ddp_doctor_proto::{Op, RecordKind};

use super::{Call, Writer};
use crate::blackbox::nesting::Frame;
use crate::blackbox::threads::Local;
use crate::sync::Ordering;
use crate::sys;

/// What the calling thread is inside of, as far as this box knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outer {
    /// The user's own code.
    Nothing,
    /// A collective or a message, with this id.
    Call(u64),
    /// A wait, or a call that contains others, such as the making of a group.
    Other,
}

impl Writer {
    /// What the calling thread is inside of.
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

    /// Records what the collective that the calling thread is inside of asks of the layer below, on a
    /// communicator of so many ranks: the first time, and only where its group is as large. What is not
    /// the whole group's is not what the ranks of the group agree on.
    pub fn beneath(&self, asked: &Call, ranks: u32) {
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
                kind: RecordKind::Beneath,
                op: asked.op,
                dtype: asked.dtype,
                reduce_op: asked.reduce_op,
                flags: asked.flags & !flags::P2P,
                group: known.group,
                seq: known.seq,
                call: frame.call,
                tensors: asked.tensors,
                root_or_peer: asked.root_or_peer,
                numel: asked.numel,
                dims: asked.dims,
                ..Record::default()
            },
        );
    }

    /// A device will tell when it has done a part of a call; whether that is still of use. What is asked for
    /// after the call came back is not: of that, nobody said how much it is.
    pub fn follow(&self, call: u64) -> bool {
        self.calls.follow(call)
    }

    /// A device has done a part of a call that is followed. The call is complete once it has come back and
    /// all its parts are done.
    pub fn part_done(&self, call: u64) {
        if self.calls.part_done(call) {
            self.completed(call);
        }
    }

    /// The calling thread enters a function of the layer below in which it may be kept; without a name: it
    /// has come back.
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

/// A transfer over the network, of what a call is made of, that stands, or goes on again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The call.
    pub call: u64,
    /// Which way it goes.
    pub is_send: bool,
    /// The other end, by its rank in the communicator.
    pub peer: i32,
    /// The channel.
    pub channel: u8,
    /// Steps that are done, …
    pub done: u32,
    /// … and all of them.
    pub steps: u32,
    /// One of [`transfer`](ddp_doctor_proto::blackbox::transfer).
    pub waits_for: i32,
    /// For how long it has not moved.
    pub stood: Duration,
}

impl Writer {
    /// A transfer of a call stands, or goes on again. By a thread of ours: what it says is not the thread's.
    pub fn transfer(&self, standing: &Standing) {
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
    /// A collective or a message, and no wait for it.
    fn is_work(&self) -> bool {
        self.kind == inside::CALL && self.level() == 1
    }
}
