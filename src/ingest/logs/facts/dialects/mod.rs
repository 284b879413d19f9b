//! Lines of other stacks than PyTorch and NCCL that state which rank is missing, or which device failed: one
//! file per dialect, with its words as data.

use ddp_doctor_proto::Op;
use ddp_doctor_proto::report::Timestamp;

use super::{Facts, Subject};
use crate::logs::lines::Line;

mod devices;
mod engines;
mod hccl;
mod horovod;
mod jax;
mod kubernetes;
mod megatron;
mod ras;
mod statements;

/// Whether a line is the head of a list of ranks, whose lines begin as those of tasks do: "3: [a, b]".
pub(super) fn begins_list(text: &str) -> bool {
    horovod::is_head(text)
}

pub(super) use engines::{Section, section};
pub(in super::super) use statements::KERNEL;
pub(super) use statements::unresponsive;

/// What the dialects remember of the lines of one process.
#[derive(Debug, Default)]
pub(super) struct Dialects {
    horovod: horovod::Stalled,
    jax: jax::Tasks,
    megatron: megatron::Timers,
    pods: kubernetes::Pods,
    ras: ras::Report,
}

impl Dialects {
    /// Reads one line of a process.
    pub(super) fn read(&mut self, line: &Line<'_>, at: Timestamp, facts: &mut Facts) {
        hccl::read(line, at, facts);
        devices::read(line, at, facts);
        self.horovod.read(line, at, facts);
        self.jax.read(line, at, facts);
        self.ras.read(line, at, facts);
        self.megatron.read(line, at, facts);
        self.pods.read(line, at, facts);
        engines::read(line, at, facts);
        statements::read(line, at, facts);
    }

    /// Adds what the end of the text completes.
    pub(super) fn finish(&mut self, facts: &mut Facts) {
        let at = facts.last;
        self.ras.finish(facts, at);
        self.megatron.finish(facts, at);
        self.pods.finish(facts, at);
    }

    /// Memory of what is not complete, in bytes.
    pub(super) const fn bytes(&self) -> usize {
        self.ras.bytes()
    }
}

/// Parts of names of operations, in lower case.
const OPS: [(&str, Op); 8] = [
    ("allreduce", Op::AllReduce),
    ("allgather", Op::AllGather),
    ("reducescatter", Op::ReduceScatter),
    ("reduce_scatter", Op::ReduceScatter),
    ("alltoall", Op::AllToAll),
    ("broadcast", Op::Broadcast),
    ("barrier", Op::Barrier),
    ("all_reduce", Op::AllReduce),
];

/// The operation that a name contains: "HorovodAllreduce_grads_0", "`AllReduce_10.0.0.7`".
fn op_in(name: &str) -> Op {
    let lower = name.to_ascii_lowercase();
    let mut ops = OPS.iter();
    ops.find(|(part, _)| lower.contains(part)).map_or(Op::Unspecified, |(_, op)| *op)
}

/// The process of a line, as this rank if the text names it.
fn of_rank(line: &Line<'_>, rank: Option<u32>) -> Subject {
    Subject { rank, ..line.label.into() }
}
