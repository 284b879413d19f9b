//! A job with tensor, pipeline and data parallelism over a simulated NCCL: its ranks issue calls
//! without waiting for the device, until a fault stops one of them.

/// A process group: members by global rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) name: String,
    pub(crate) description: &'static str,
    pub(crate) members: Vec<u32>,
}

/// What a call does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Collective(&'static str),
    /// To a global rank; the n-th one between these ranks in the group.
    Send(u32, u64),
    /// From a global rank.
    Recv(u32, u64),
}

/// A call of one rank.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) group: usize,
    pub(crate) what: What,
    /// Number among the collectives of its group, or among its messages.
    pub(crate) seq: u64,
    /// Calls that the device has to complete before.
    after: Vec<usize>,
    /// It is a message of `batch_isend_irecv`.
    pub(crate) is_batched: bool,
    /// Tick at which it was issued.
    pub(crate) issued: Option<u64>,
    pub(crate) is_complete: bool,
}

/// An entry of a rank's program.
#[derive(Clone, Debug)]
enum Item {
    Call(usize),
    /// The host waits until its device has completed all calls.
    Synchronize,
}

/// The program of one rank, and how far it got.
#[derive(Debug, Default)]
pub(crate) struct Rank {
    pub(crate) calls: Vec<Call>,
    items: Vec<Item>,
    /// Index of the next item.
    next: usize,
    /// Latest call that later ones of the compute stream wait for.
    last: Option<usize>,
}

/// What is wrong with the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The host of the rank makes no further call after this many.
    Host { rank: u32, after: usize },
    /// The device of the rank completes no further call after this many, and its host makes `more`
    /// calls after that.
    Device { rank: u32, after: usize, more: usize },
}

/// Size of a job.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) tensor: u32,
    pub(crate) data: u32,
    pub(crate) pipeline: u32,
    pub(crate) steps: u32,
    pub(crate) micro_batches: u32,
    /// Messages are sent by `batch_isend_irecv`.
    pub(crate) batched: bool,
    /// Data-parallel collectives do not delay the compute stream.
    pub(crate) overlaps: bool,
    /// Sends delay the compute stream, as `dist.send` does.
    pub(crate) sends_delay: bool,
    /// Hosts wait for every message that they receive.
    pub(crate) waits: bool,
}

/// A simulated job.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) groups: Vec<Group>,
    pub(crate) ranks: Vec<Rank>,
    shape: Shape,
}

impl Job {
    /// A job whose ranks have made no call yet.
    pub(crate) fn new(shape: Shape) -> Self {
        let world = shape.tensor * shape.data * shape.pipeline;
        let mut job = Self {
            groups: groups(shape),
            ranks: (0..world).map(|_| Rank::default()).collect(),
            shape,
        };
        for step in 0..shape.steps {
            for _ in 0..shape.micro_batches {
                job.forward_and_backward(shape);
            }
            job.finish_step(shape, step);
        }
        job
    }

    /// Index of the group of this kind that contains a rank.
    fn group_of(&self, rank: u32, description: &str) -> usize {
        let is_it =
            |group: &Group| group.description == description && group.members.contains(&rank);
        self.groups.iter().position(is_it).unwrap_or(0)
    }

    fn collective(&mut self, rank: u32, group: usize, op: &'static str, delays: bool) {
        if self.groups[group].members.len() > 1 {
            self.call(rank, group, What::Collective(op), delays);
        }
    }

    fn call(&mut self, rank: u32, group: usize, what: What, delays: bool) {
        let program = &mut self.ranks[rank as usize];
        let is_message = !matches!(what, What::Collective(_));
        let of_kind = |call: &&Call| {
            call.group == group && is_message != matches!(call.what, What::Collective(_))
        };
        let last = program.calls.iter().rev().find(of_kind);
        let seq = last.map_or(1, |it| it.seq + 1);
        let at = program.calls.len();
        // Collectives of one communicator run in order.
        let previous =
            program.calls.iter().rposition(|it| it.group == group).filter(|_| !is_message);
        program.calls.push(Call {
            group,
            what,
            seq,
            after: previous.into_iter().chain(program.last).collect(),
            is_batched: is_message && self.shape.batched,
            issued: None,
            is_complete: false,
        });
        program.items.push(Item::Call(at));
        if delays {
            program.last = Some(at);
        }
    }

    /// A message from one rank to another: both ends.
    fn message(&mut self, from: u32, to: u32) {
        let group = self.group_of(from, "pipeline");
        let sends = self.ranks[from as usize].calls.iter();
        let before =
            sends.filter(|it| matches!(it.what, What::Send(peer, _) if peer == to)).count();
        let nth = before as u64 + 1;
        self.call(from, group, What::Send(to, nth), self.shape.sends_delay);
        self.call(to, group, What::Recv(from, nth), true);
        if self.shape.waits {
            self.ranks[to as usize].items.push(Item::Synchronize);
        }
    }

    fn forward_and_backward(&mut self, shape: Shape) {
        let per_stage = shape.tensor * shape.data;
        let stages: Vec<u32> = (0..shape.pipeline).collect();
        for backward in [false, true] {
            let order: Vec<u32> =
                if backward { stages.iter().rev().copied().collect() } else { stages.clone() };
            for (at, &stage) in order.iter().enumerate() {
                for rank in stage * per_stage..(stage + 1) * per_stage {
                    let tensor = self.group_of(rank, "tensor");
                    let expert = self.group_of(rank, "expert");
                    self.collective(rank, tensor, "_all_gather_base", true);
                    self.collective(rank, expert, "all_to_all", true);
                    self.collective(rank, tensor, "_reduce_scatter_base", true);
                }
                let Some(&next) = order.get(at + 1) else {
                    continue;
                };
                for offset in 0..per_stage {
                    let ends = (stage * per_stage + offset, next * per_stage + offset);
                    self.message(ends.0, ends.1);
                }
            }
        }
    }

    fn finish_step(&mut self, shape: Shape, step: u32) {
        for rank in 0..self.ranks.len() as u32 {
            let data = self.group_of(rank, "data");
            self.collective(rank, data, "_reduce_scatter_base", !shape.overlaps);
            self.collective(rank, data, "_all_gather_base", true);
            if step.is_multiple_of(2) {
                self.collective(rank, 0, "all_reduce", true);
            }
            self.ranks[rank as usize].items.push(Item::Synchronize);
        }
    }

    /// Runs the job until nothing goes on.
    pub(crate) fn run(&mut self, fault: Fault) {
        let mut tick = 0;
        loop {
            tick += 1;
            let issued = self.issue(fault, tick);
            let completed = self.complete(fault);
            if !issued && !completed {
                return;
            }
        }
    }

    /// Whether a call of a rank other than `rank` is not complete.
    pub(crate) fn hangs_beside(&self, rank: u32) -> bool {
        let others = self.ranks.iter().zip(0..).filter(|(_, it)| *it != rank);
        let mut calls = others.flat_map(|(it, _)| &it.calls);
        calls.any(|it| it.issued.is_some() && !it.is_complete)
    }

    /// Every host makes its calls until it waits. One call of each at a time.
    fn issue(&mut self, fault: Fault, tick: u64) -> bool {
        let mut any = false;
        for (program, rank) in self.ranks.iter_mut().zip(0..) {
            let limit = match fault {
                Fault::Host { rank: at, after } if at == rank => after,
                Fault::Device { rank: at, after, more } if at == rank => after + more,
                _ => usize::MAX,
            };
            match program.items.get(program.next) {
                Some(&Item::Call(at)) if at < limit => {
                    program.calls[at].issued = Some(tick);
                }
                Some(Item::Synchronize) if program.is_idle() => {}
                _ => continue,
            }
            program.next += 1;
            any = true;
        }
        any
    }

    /// Completes calls that all of their ranks have reached.
    fn complete(&mut self, fault: Fault) -> bool {
        let ready = |program: &Rank, rank: u32, at: usize| {
            let stopped = matches!(fault, Fault::Device { rank: it, after, .. }
                if it == rank && at >= after);
            let call = &program.calls[at];
            let mut after = call.after.iter();
            call.issued.is_some() && !stopped && after.all(|&it| program.calls[it].is_complete)
        };
        let mut done = Vec::new();
        for (program, rank) in self.ranks.iter().zip(0..) {
            for (at, call) in program.calls.iter().enumerate() {
                if call.is_complete || !ready(program, rank, at) {
                    continue;
                }
                let has = |peer: u32, what: &What, seq: Option<u64>| {
                    let program = &self.ranks[peer as usize];
                    let is_it = |it: &Call| {
                        it.group == call.group
                            && it.what == *what
                            && seq.is_none_or(|seq| it.seq == seq)
                    };
                    let found = program.calls.iter().position(is_it);
                    found.is_some_and(|at| ready(program, peer, at))
                };
                let mut members = self.groups[call.group].members.iter();
                let is_met = match call.what {
                    What::Collective(_) => {
                        members.all(|&peer| has(peer, &call.what, Some(call.seq)))
                    }
                    What::Send(to, nth) => has(to, &What::Recv(rank, nth), None),
                    What::Recv(from, nth) => has(from, &What::Send(rank, nth), None),
                };
                if is_met {
                    done.push((rank, at));
                }
            }
        }
        for &(rank, at) in &done {
            self.ranks[rank as usize].calls[at].is_complete = true;
        }
        !done.is_empty()
    }
}

impl Rank {
    fn is_idle(&self) -> bool {
        let mut issued = self.calls.iter().filter(|it| it.issued.is_some());
        issued.all(|it| it.is_complete)
    }
}

/// The groups of a job. Ranks are numbered by tensor, data and pipeline rank, as Megatron does.
fn groups(shape: Shape) -> Vec<Group> {
    let Shape { tensor, data, pipeline, .. } = shape;
    let world = tensor * data * pipeline;
    let stage = tensor * data;
    let mut groups = vec![(0..world).collect::<Vec<_>>()];
    let mut kinds = vec!["default_pg"];
    let mut add = |kind, members: Vec<u32>| {
        groups.push(members);
        kinds.push(kind);
    };
    for first in (0..world).step_by(tensor as usize) {
        add("tensor", (first..first + tensor).collect());
    }
    for first in (0..world).step_by(stage as usize) {
        add("expert", (first..first + stage).collect());
        for offset in 0..tensor {
            add("data", (0..data).map(|it| first + offset + it * tensor).collect());
        }
    }
    for offset in 0..stage {
        add("pipeline", (0..pipeline).map(|it| offset + it * stage).collect());
    }
    let numbered = groups.into_iter().zip(kinds).enumerate();
    let named = numbered.map(|(at, (members, description))| Group {
        name: (at * 7).to_string(),
        description,
        members,
    });
    named.collect()
}
