//! The states of a program and the transitions between them.
//!
//! Independent of the engine: calls are numbered by counting, and complete by the rules of their
//! transport. A call that *may* complete early (a leaf of a rooted collective, a call that a dead
//! peer had begun) completes in some executions and not in others.

use super::program::{Call, End, Op, Program, Step, Transport};

/// Maximum number of threads of a program. The other constants limit calls, ranks and groups.
pub(crate) const THREADS: usize = 10;
const CALLS: usize = 64;
const RANKS: usize = 5;
const GROUPS: usize = 4;

/// A program with its calls numbered.
pub(crate) struct Machine<'a> {
    pub(crate) program: &'a Program,
    /// Every call of the program, with its thread.
    pub(crate) calls: Vec<Made>,
    /// By thread and step: index of the call that the step issues or waits for.
    index: Vec<Vec<Option<u8>>>,
    /// By group and rank: indices of the rank's collectives in the group.
    places: Vec<Vec<Vec<u8>>>,
}

/// A call of the program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Made {
    pub(crate) thread: u8,
    pub(crate) rank: u8,
    pub(crate) call: Call,
}

/// State of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Life {
    Runs,
    /// With status 0.
    Exited,
    /// With another status, by a signal, or by an exception.
    Died(u8),
    Stopped,
}

/// State of an execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    /// Index of each thread's next step.
    pub(crate) at: [u8; THREADS],
    /// Bit set of the threads that are blocked in the call of the previous step.
    pub(crate) waits: u16,
    pub(crate) lives: [Life; RANKS],
    /// Sequence number of each call in its group; 0 until it is issued.
    pub(crate) seq: [u8; CALLS],
    /// Bit set of complete calls.
    pub(crate) complete: u64,
    /// By group, bit set of the ranks that left it.
    pub(crate) left: [u8; GROUPS],
}

/// A transition of an execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// A thread takes its next step.
    Step(u8),
    /// A thread returns from a wait whose call is complete.
    Wake(u8),
    /// A call completes.
    Complete(u8),
    /// A rank whose threads have finished exits with status 0.
    Finish(u8),
    /// A rank is killed.
    Kill(u8),
}

impl<'a> Machine<'a> {
    /// Returns `None` if the program is too large.
    pub(crate) fn new(program: &'a Program) -> Option<Self> {
        let mut calls = Vec::new();
        let mut index: Vec<Vec<Option<u8>>> = Vec::new();
        let mut places = vec![vec![Vec::new(); usize::from(program.world)]; program.groups.len()];
        for (t, thread) in program.threads.iter().enumerate() {
            let mut own = Vec::new();
            for step in &thread.steps {
                own.push(match step {
                    Step::Call(call) => {
                        let at = calls.len() as u8;
                        if !call.op.is_message() {
                            places[usize::from(call.group)][usize::from(thread.rank)].push(at);
                        }
                        calls.push(Made { thread: t as u8, rank: thread.rank, call: *call });
                        Some(at)
                    }
                    Step::Wait(label) => (0..calls.len())
                        .find(|&i| {
                            let made: Made = calls[i];
                            usize::from(made.thread) == t && made.call.label == *label
                        })
                        .map(|i| i as u8),
                    Step::Destroy(_) | Step::End(_) => None,
                });
            }
            index.push(own);
        }
        let fits = program.threads.len() <= THREADS
            && calls.len() <= CALLS
            && usize::from(program.world) <= RANKS
            && program.groups.len() <= GROUPS;
        fits.then_some(Self { program, calls, index, places })
    }

    pub(crate) fn start(&self) -> State {
        State {
            at: [0; THREADS],
            waits: 0,
            lives: [Life::Runs; RANKS],
            seq: [0; CALLS],
            complete: 0,
            left: [0; GROUPS],
        }
    }

    /// The next step of a thread.
    pub(crate) fn next(&self, state: &State, thread: u8) -> Option<Step> {
        let steps = &self.program.threads[usize::from(thread)].steps;
        steps.get(usize::from(state.at[usize::from(thread)])).copied()
    }

    /// The call that a thread is blocked in.
    pub(crate) fn awaited(&self, state: &State, thread: u8) -> Option<u8> {
        let t = usize::from(thread);
        (state.waits & 1 << t != 0).then(|| self.index[t][usize::from(state.at[t]) - 1]).flatten()
    }

    pub(crate) fn life(&self, state: &State, rank: u8) -> Life {
        state.lives[usize::from(rank)]
    }

    /// A rank's collective in a group by its sequence number.
    pub(crate) fn call_at(&self, state: &State, group: u8, rank: u8, seq: u8) -> Option<u8> {
        let places = &self.places[usize::from(group)][usize::from(rank)];
        places.iter().copied().find(|&c| state.seq[usize::from(c)] == seq)
    }

    /// Whether two messages are numbered together: the same rank, peer and direction, and on Gloo
    /// the same tag.
    fn in_one_lane(&self, one: &Made, other: &Made) -> bool {
        let tags = self.program.transport == Transport::Gloo;
        one.rank == other.rank
            && one.call.group == other.call.group
            && one.call.op == other.call.op
            && one.call.root == other.call.root
            && (one.call.tag == other.call.tag || !tags)
    }

    /// Number of messages issued in the lane of this one.
    pub(crate) fn issued_in_lane(&self, state: &State, one: &Made) -> u8 {
        let like = |(c, other): (usize, &Made)| self.in_one_lane(one, other).then(|| state.seq[c]);
        let seqs = self.calls.iter().enumerate().filter_map(like);
        seqs.max().unwrap_or(0)
    }

    /// The call of another rank that matches this call.
    pub(crate) fn counterpart(&self, state: &State, call: u8, other: u8) -> Option<u8> {
        let made = self.calls[usize::from(call)];
        let seq = state.seq[usize::from(call)];
        if !made.call.op.is_message() {
            return self.call_at(state, made.call.group, other, seq);
        }
        let op = match made.call.op {
            Op::Send => Op::Recv,
            _ => Op::Send,
        };
        let (rank, root) = (made.call.root, made.rank);
        let call = Call { op, root, ..made.call };
        let wanted = Made { rank, call, ..made };
        let fits = |(c, it): (usize, &Made)| self.in_one_lane(&wanted, it) && state.seq[c] == seq;
        let found = self.calls.iter().enumerate().position(fits);
        found.map(|c| c as u8)
    }

    /// Whether a call fits its counterpart `by`, so that it can complete.
    pub(crate) fn is_served(&self, call: u8, by: u8) -> bool {
        let (one, other) = (&self.calls[usize::from(call)].call, &self.calls[usize::from(by)].call);
        let transport = self.program.transport;
        match one.op {
            // A send on Gloo completes even if its receive fails.
            Op::Send => transport == Transport::Gloo || Call::has_room(one, other, transport),
            Op::Recv => Call::has_room(other, one, transport),
            _ => one.fits(other, transport),
        }
    }

    /// Number of collectives that a rank has issued in a group.
    pub(crate) fn issued(&self, state: &State, group: u8, rank: u8) -> u8 {
        let places = &self.places[usize::from(group)][usize::from(rank)];
        places.iter().map(|&c| state.seq[usize::from(c)]).max().unwrap_or(0)
    }

    pub(crate) fn is_complete(state: &State, call: u8) -> bool {
        state.complete & 1 << call != 0
    }

    /// Whether a call was issued and has begun; on NCCL a collective begins after the earlier ones
    /// are complete.
    pub(crate) fn has_begun(&self, state: &State, call: u8) -> bool {
        let made = &self.calls[usize::from(call)];
        let seq = state.seq[usize::from(call)];
        let any_order = self.program.transport == Transport::Gloo || made.call.op.is_message();
        seq > 0 && (any_order || self.is_next(state, made, seq))
    }

    /// Whether all calls of the rank in the group with lower numbers are complete.
    pub(crate) fn is_next(&self, state: &State, made: &Made, seq: u8) -> bool {
        self.places[usize::from(made.call.group)][usize::from(made.rank)].iter().all(|&c| {
            let other = state.seq[usize::from(c)];
            other == 0 || other >= seq || Self::is_complete(state, c)
        })
    }

    /// Whether a call may complete now.
    pub(crate) fn may_complete(&self, state: &State, call: u8) -> bool {
        let made = &self.calls[usize::from(call)];
        let seq = state.seq[usize::from(call)];
        if seq == 0 || Self::is_complete(state, call) || !self.has_begun(state, call) {
            return false;
        }
        // A send on NCCL may complete before its receive is posted.
        if made.call.op == Op::Send && self.program.transport == Transport::Nccl {
            return true;
        }
        let members = &self.program.groups[usize::from(made.call.group)];
        made.call.needs(made.rank, members).iter().all(|&needed| {
            self.counterpart(state, call, needed)
                .is_some_and(|peer| self.has_begun(state, peer) && self.is_served(call, peer))
        })
    }

    /// Whether a call that may complete certainly will: every rank that it exchanges data with has
    /// begun its call, and is alive or completed it before it ended.
    pub(crate) fn surely_completes(&self, state: &State, call: u8) -> bool {
        let made = &self.calls[usize::from(call)];
        let (op, root) = (made.call.op, made.call.root);
        let partners: Vec<u8> = if op.is_message() || (op.is_rooted() && made.rank != root) {
            vec![root]
        } else {
            self.program.groups[usize::from(made.call.group)].clone()
        };
        self.life(state, made.rank) == Life::Runs
            && partners.iter().all(|&partner| {
                let there = if partner == made.rank {
                    Some(call)
                } else {
                    self.counterpart(state, call, partner)
                };
                there.is_some_and(|peer| {
                    let lives = self.life(state, partner) == Life::Runs;
                    self.has_begun(state, peer)
                        && (peer == call || self.is_served(call, peer))
                        && (lives || Self::is_complete(state, peer))
                })
            })
    }

    /// Whether the device of a rank has completed all calls that were issued.
    pub(crate) fn is_device_idle(&self, state: &State, rank: u8) -> bool {
        self.program.transport == Transport::Gloo
            || self.calls.iter().enumerate().all(|(c, made)| {
                made.rank != rank || state.seq[c] == 0 || Self::is_complete(state, c as u8)
            })
    }

    /// All actions that are possible in a state.
    pub(crate) fn actions(&self, state: &State) -> Vec<Action> {
        let mut actions = Vec::new();
        for (t, thread) in self.program.threads.iter().enumerate() {
            if self.life(state, thread.rank) != Life::Runs {
                continue;
            }
            match self.awaited(state, t as u8) {
                Some(call) if Self::is_complete(state, call) => {
                    actions.push(Action::Wake(t as u8));
                }
                Some(_) => {}
                None => match self.next(state, t as u8) {
                    Some(Step::End(End::Sleeps)) | None => {}
                    Some(_) => actions.push(Action::Step(t as u8)),
                },
            }
        }
        for rank in 0..self.program.world {
            let through = |(t, thread): (usize, &super::program::Thread)| {
                thread.rank != rank
                    || (state.waits & 1 << t == 0 && self.next(state, t as u8).is_none())
            };
            if self.life(state, rank) == Life::Runs
                && self.program.threads.iter().enumerate().all(through)
                // On NCCL a process waits for its device before it exits.
                && self.is_device_idle(state, rank)
            {
                actions.push(Action::Finish(rank));
            }
        }
        let victim = self.program.victim;
        actions
            .extend(victim.filter(|&rank| self.life(state, rank) == Life::Runs).map(Action::Kill));
        // Also for ranks that have ended, since their calls may have completed before.
        actions.extend(
            (0..self.calls.len() as u8)
                .filter(|&call| self.may_complete(state, call))
                .map(Action::Complete),
        );
        actions
    }

    /// The state after an action.
    pub(crate) fn after(&self, state: &State, action: Action) -> State {
        let mut next = *state;
        match action {
            Action::Complete(call) => next.complete |= 1 << call,
            Action::Wake(thread) => next.waits &= !(1 << thread),
            Action::Kill(rank) => next.lives[usize::from(rank)] = Life::Died(9),
            Action::Finish(rank) => next.lives[usize::from(rank)] = Life::Exited,
            Action::Step(thread) => {
                let t = usize::from(thread);
                let rank = self.program.threads[t].rank;
                let step = self.program.threads[t].steps[usize::from(state.at[t])];
                next.at[t] += 1;
                match step {
                    Step::Call(call) => {
                        if let Some(index) = self.index[t][usize::from(state.at[t])] {
                            let made = &self.calls[usize::from(index)];
                            let before = if call.op.is_message() {
                                self.issued_in_lane(state, made)
                            } else {
                                self.issued(state, call.group, rank)
                            };
                            next.seq[usize::from(index)] = before + 1;
                        }
                        if !call.is_async && call.holds(self.program.transport) {
                            next.waits |= 1 << t;
                        }
                    }
                    Step::Wait(_) => {
                        let made = self.index[t][usize::from(state.at[t])];
                        let call = made.map(|made| self.calls[usize::from(made)].call);
                        if call.is_some_and(|call| call.holds(self.program.transport)) {
                            next.waits |= 1 << t;
                        }
                    }
                    Step::Destroy(group) => next.left[usize::from(group)] |= 1 << rank,
                    Step::End(end) => {
                        let life = &mut next.lives[usize::from(rank)];
                        match end {
                            End::Exits => *life = Life::Exited,
                            End::Fails | End::Raises => *life = Life::Died(1),
                            End::Killed => *life = Life::Died(9),
                            End::Stops => *life = Life::Stopped,
                            End::Sleeps => next.at[t] -= 1,
                        }
                    }
                }
            }
        }
        next
    }
}
