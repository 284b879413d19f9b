//! Small distributed programs: a list of steps for each thread of each rank.

use std::fmt;

/// The backend, which decides when calls may complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    /// Calls of a group are independent of each other; waiting for one blocks the thread.
    Gloo,
    /// A call begins once the earlier calls of its communicator are complete on its rank; waiting
    /// for it does not block the thread, except for a barrier.
    Nccl,
}

/// A program of a whole job.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) transport: Transport,
    pub(crate) world: u8,
    /// Members of each group; the first is the default group, of all ranks.
    pub(crate) groups: Vec<Vec<u8>>,
    pub(crate) threads: Vec<Thread>,
    /// A rank that is killed at some time.
    pub(crate) victim: Option<u8>,
}

/// The steps of one thread.
#[derive(Clone, Debug)]
pub(crate) struct Thread {
    pub(crate) rank: u8,
    /// From 1, within its rank.
    pub(crate) number: u8,
    pub(crate) steps: Vec<Step>,
}

/// One step of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Call(Call),
    /// Waits for the asynchronous call with this label, issued by the same thread.
    Wait(u8),
    /// Leaves a group.
    Destroy(u8),
    End(End),
}

/// How a rank leaves the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// With status 0.
    Exits,
    /// With another status.
    Fails,
    Killed,
    /// An uncaught exception.
    Raises,
    /// It is stopped and never continues.
    Stops,
    /// It stays alive and does nothing more.
    Sleeps,
}

/// A collective or a message as issued by one thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    /// Identifies the call within its rank; also its line in the program.
    pub(crate) label: u8,
    pub(crate) group: u8,
    pub(crate) op: Op,
    pub(crate) numel: u8,
    pub(crate) wide: bool,
    pub(crate) max: bool,
    /// Rank of the root or the peer, a member of the group.
    pub(crate) root: u8,
    /// Tag of a message, which only Gloo matches.
    pub(crate) tag: u8,
    pub(crate) is_async: bool,
}

/// Operation of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    AllReduce,
    AllGather,
    ReduceScatter,
    AllToAll,
    Barrier,
    Broadcast,
    Scatter,
    Reduce,
    Gather,
    Send,
    Recv,
}

impl Op {
    /// The collectives.
    pub(crate) const ALL: [Self; 9] = [
        Self::AllReduce,
        Self::AllGather,
        Self::ReduceScatter,
        Self::AllToAll,
        Self::Barrier,
        Self::Broadcast,
        Self::Scatter,
        Self::Reduce,
        Self::Gather,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::AllGather => "all_gather",
            Self::ReduceScatter => "reduce_scatter",
            Self::AllToAll => "all_to_all",
            Self::Barrier => "barrier",
            Self::Broadcast => "broadcast",
            Self::Scatter => "scatter",
            Self::Reduce => "reduce",
            Self::Gather => "gather",
            Self::Send => "send",
            Self::Recv => "recv",
        }
    }

    pub(crate) const fn is_rooted(self) -> bool {
        self.is_from_root() || self.is_to_root()
    }

    pub(crate) const fn is_from_root(self) -> bool {
        matches!(self, Self::Broadcast | Self::Scatter)
    }

    pub(crate) const fn is_to_root(self) -> bool {
        matches!(self, Self::Reduce | Self::Gather)
    }

    pub(crate) const fn is_message(self) -> bool {
        matches!(self, Self::Send | Self::Recv)
    }

    pub(crate) const fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::ReduceScatter | Self::Reduce)
    }

    /// Whether all ranks must pass the same number of elements.
    const fn is_even(self, transport: Transport) -> bool {
        match self {
            Self::Barrier | Self::AllToAll => false,
            Self::AllGather | Self::ReduceScatter => matches!(transport, Transport::Gloo),
            _ => true,
        }
    }
}

impl Call {
    /// Whether two calls can form one collective.
    pub(crate) fn fits(&self, other: &Self, transport: Transport) -> bool {
        self.op == other.op
            && (self.numel == other.numel || !self.op.is_even(transport))
            && (self.root == other.root || !self.op.is_rooted())
    }

    /// Whether the size of a send is valid for its receive.
    pub(crate) fn has_room(send: &Self, receive: &Self, transport: Transport) -> bool {
        let bytes = |call: &Self| if call.wide { 8 } else { 4 } * u32::from(call.numel);
        match transport {
            Transport::Gloo => bytes(send) <= bytes(receive),
            Transport::Nccl => bytes(send) == bytes(receive),
        }
    }

    /// Whether two calls that can form one collective yield a wrong result.
    pub(crate) fn contradicts(&self, other: &Self) -> bool {
        self.op == other.op
            && ((self.wide != other.wide && self.op != Op::Barrier)
                || (self.max != other.max && self.op.reduces()))
    }

    /// Members whose call has to be issued before this call of `rank` can complete.
    pub(crate) fn needs(&self, rank: u8, members: &[u8]) -> Vec<u8> {
        let others = || members.iter().copied().filter(|&member| member != rank);
        if self.op.is_message() {
            return vec![self.root];
        }
        if self.op.is_from_root() {
            others().filter(|&member| member == self.root).collect()
        } else if self.op.is_to_root() && self.root != rank {
            Vec::new()
        } else {
            others().collect()
        }
    }

    /// Whether waiting for the call blocks the thread until it is complete.
    pub(crate) fn holds(&self, transport: Transport) -> bool {
        transport == Transport::Gloo || self.op == Op::Barrier
    }
}

/// Name of a group in scenarios.
pub(crate) fn group_name(group: u8) -> String {
    match group {
        0 => "0".into(),
        other => {
            ('a'..='z').nth(usize::from(other) - 1).map_or_else(|| other.to_string(), String::from)
        }
    }
}

/// The call in the notation of a scenario.
impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.op.name())?;
        if self.group > 0 {
            write!(f, "/{}", group_name(self.group))?;
        }
        if self.is_async {
            f.write_str(" async")?;
        }
        write!(f, " as c{}", self.label)?;
        if self.op != Op::Barrier {
            write!(f, " {}[{}]", if self.wide { "f64" } else { "f32" }, self.numel)?;
        }
        if self.op.reduces() {
            f.write_str(if self.max { " max" } else { " sum" })?;
        }
        if self.op.is_rooted() {
            write!(f, " root={}", self.root)?;
        }
        if self.op.is_message() {
            write!(f, " peer={} tag={}", self.root, self.tag)?;
        }
        Ok(())
    }
}

/// A deterministic generator of random numbers (SplitMix64).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`, which must not be 0.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// True with a probability of `percent` per cent.
    pub(crate) fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }
}
