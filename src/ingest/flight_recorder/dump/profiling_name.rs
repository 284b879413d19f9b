//! The field `profiling_name` of an entry, which names its backend and its operation.

use ddp_doctor_proto::Op;

/// What an entry's `profiling_name` says: `nccl:all_reduce`, `nccl:send 0->1`, `nccl:recv 1<-?`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProfilingName<'a> {
    /// "nccl", "gloo", …; empty if the name has no prefix.
    pub(super) backend: &'a str,
    /// Operation; `Unspecified`: unknown.
    pub(super) op: Op,
    /// The end of a coalesced group.
    pub(super) ends_group: bool,
    /// Own rank and that of the peer within the group, for messages.
    pub(super) ends: Option<(u32, Option<u32>)>,
}

impl<'a> ProfilingName<'a> {
    pub(super) fn parse(name: &'a str) -> Self {
        let (backend, op) = name.rsplit_once(':').unwrap_or(("", name));
        let mut words = op.split_whitespace();
        let op = words.next().unwrap_or_default();
        let mut ends = words.next().map(|ends| {
            let pair = ends.split_once("->").or_else(|| ends.split_once("<-"));
            let (own, peer) = pair.unwrap_or((ends, ""));
            own.parse().ok().map(|own| (own, peer.parse().ok()))
        });
        Self {
            backend: backend.rsplit(':').next().unwrap_or_default(),
            op: op_of(op),
            ends_group: matches!(
                op,
                "coalesced"
                    | "ALLGATHER_coalesced"
                    | "REDUCE_SCATTER_coalesced"
                    | "allgather_coalesced"
            ),
            ends: ends.take().flatten(),
        }
    }
}

/// The operation that PyTorch gives this name. Variants that interoperate are one operation.
fn op_of(name: &str) -> Op {
    match name {
        "all_reduce" | "allreduce" => Op::AllReduce,
        "allreduce_coalesced" | "all_reduce_coalesced" => Op::AllReduceCoalesced,
        "all_gather" | "allgather" | "_all_gather_base" | "_allgather_base"
        | "all_gather_single" | "all_gather_v" => Op::AllGather,
        "all_gather_into_tensor_coalesced"
        | "allgather_into_tensor_coalesced"
        | "ALLGATHER_coalesced"
        | "allgather_coalesced" => Op::AllGatherCoalesced,
        "reduce_scatter"
        | "_reduce_scatter_base"
        | "reduce_scatter_single"
        | "reduce_scatter_v" => Op::ReduceScatter,
        "reduce_scatter_tensor_coalesced" | "REDUCE_SCATTER_coalesced" => {
            Op::ReduceScatterCoalesced
        }
        "all_to_all"
        | "alltoall"
        | "all_to_all_single"
        | "all_to_all_v_single"
        | "alltoall_base" => Op::AllToAll,
        "barrier" | "all_reduce_barrier" => Op::Barrier,
        "broadcast" | "_broadcast_oop" => Op::Broadcast,
        "reduce" | "_reduce_oop" => Op::Reduce,
        "gather" => Op::Gather,
        "scatter" => Op::Scatter,
        "send" => Op::Send,
        "recv" => Op::Recv,
        _ => Op::Unspecified,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_all_backends_are_parsed() {
        for backend in ["nccl", "ncclx", "gloo", "xccl", "nccl2", "c10d", "unknown_backend"] {
            let text = format!("{backend}:all_reduce");
            let name = ProfilingName::parse(&text);
            assert_eq!((name.backend, name.op), (backend, Op::AllReduce));
        }
        let name = ProfilingName::parse("weird:backend:all_reduce");
        assert_eq!((name.backend, name.op), ("backend", Op::AllReduce));
        assert_eq!(ProfilingName::parse("all_reduce").op, Op::AllReduce);
        assert_eq!(ProfilingName::parse("nccl:new_window").op, Op::Unspecified);
        assert!(ProfilingName::parse("nccl:coalesced").ends_group);
    }

    #[test]
    fn messages_name_their_ends() {
        let ends = |name| (ProfilingName::parse(name).op, ProfilingName::parse(name).ends);
        assert_eq!(ends("nccl2:send 0->1"), (Op::Send, Some((0, Some(1)))));
        assert_eq!(ends("nccl2:recv 1<-0"), (Op::Recv, Some((1, Some(0)))));
        assert_eq!(ends("nccl:recv 1<-?"), (Op::Recv, Some((1, None))));
        assert_eq!(ends("nccl:send"), (Op::Send, None));
    }
}
