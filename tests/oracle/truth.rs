//! The truth about a state, whatever happens next.
//!
//! Hopeless waits are determined in two independent ways. [`explore`] visits every execution of
//! this program. [`Closure`] considers all programs: every thread that is not blocked may issue any
//! call that others need. A proof must hold for all programs, since the next step of a thread is
//! unknown; a wait that is hopeless for all programs is hopeless for this one.

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hasher};

use super::machine::{Action, Life, Machine, State};
use super::program::Transport;

/// Result of visiting all executions from a state.
#[derive(Debug)]
pub(crate) struct Explored {
    /// States reached.
    pub(crate) states: usize,
    /// Bit set of the calls that complete in some execution.
    pub(crate) completable: u64,
    /// Whether all ranks exit with status 0 in some execution, and leave no call behind on their devices.
    pub(crate) may_end_well: bool,
}

/// Visits all executions from a state; returns `None` if they have more than `limit` states.
///
/// With `reduced`, an action that commutes with all others is taken alone, before them. The order
/// does not change what completes: a step of a rank's only thread, and a completion, enable other
/// actions and disable none.
pub(crate) fn explore(
    machine: &Machine<'_>,
    from: State,
    limit: usize,
    reduced: bool,
) -> Option<Explored> {
    let mut seen: HashSet<State, BuildHasherDefault<Mixer>> = HashSet::default();
    let mut found = Explored { states: 0, completable: 0, may_end_well: false };
    let mut open = vec![from];
    seen.insert(from);
    while let Some(state) = open.pop() {
        found.completable |= state.complete;
        let mut ranks = 0..machine.program.world;
        found.may_end_well |= state.waits == 0
            && ranks.all(|rank| {
                machine.life(&state, rank) == Life::Exited && machine.is_device_idle(&state, rank)
            });
        let mut actions = machine.actions(&state);
        if let Some(&one) =
            actions.iter().find(|action| commutes(machine, **action)).filter(|_| reduced)
        {
            actions = vec![one];
        }
        for action in actions {
            let next = machine.after(&state, action);
            if seen.insert(next) {
                open.push(next);
            }
        }
        if seen.len() > limit {
            return None;
        }
    }
    found.states = seen.len();
    Some(found)
}

fn commutes(machine: &Machine<'_>, action: Action) -> bool {
    match action {
        Action::Wake(_) | Action::Complete(_) => true,
        Action::Finish(rank) => machine.program.victim != Some(rank),
        Action::Kill(_) => false,
        Action::Step(thread) => {
            let threads = &machine.program.threads;
            let rank = threads[usize::from(thread)].rank;
            if machine.program.victim == Some(rank) {
                return false;
            }
            threads.iter().filter(|other| other.rank == rank).count() == 1
        }
    }
}

/// What any program could still reach from a state.
#[derive(Debug)]
pub(crate) struct Closure {
    /// Bit set of the calls that complete if every free rank issues the calls that others need.
    pub(crate) completable: u64,
    /// Ranks with a thread that is blocked in a call which never completes.
    pub(crate) stuck: Vec<u8>,
}

impl Closure {
    pub(crate) fn new(machine: &Machine<'_>, state: &State) -> Self {
        let mut state = *state;
        let mut free: Vec<bool> = Vec::new();
        loop {
            let before = (state.complete, state.waits);
            free.clear();
            free.extend((0..machine.program.world).map(|rank| is_free(machine, &state, rank)));
            for call in 0..machine.calls.len() as u8 {
                if could_complete(machine, &state, call, &free) {
                    state.complete |= 1 << call;
                }
            }
            for t in 0..machine.program.threads.len() as u8 {
                if machine.awaited(&state, t).is_some_and(|call| Machine::is_complete(&state, call))
                {
                    state.waits &= !(1 << t);
                }
            }
            if before == (state.complete, state.waits) {
                break;
            }
        }
        let mut stuck: Vec<u8> = (0..machine.program.threads.len() as u8)
            .filter(|&t| machine.awaited(&state, t).is_some())
            .map(|t| machine.program.threads[usize::from(t)].rank)
            .filter(|&rank| machine.life(&state, rank) == Life::Runs)
            .collect();
        stuck.sort_unstable();
        stuck.dedup();
        Self { completable: state.complete, stuck }
    }
}

/// Whether a rank runs and has a thread that is not blocked.
fn is_free(machine: &Machine<'_>, state: &State, rank: u8) -> bool {
    machine.life(state, rank) == Life::Runs
        && machine
            .program
            .threads
            .iter()
            .enumerate()
            .any(|(t, thread)| thread.rank == rank && state.waits & 1 << t == 0)
}

/// Whether a call could complete if the free ranks issued the calls that it needs.
fn could_complete(machine: &Machine<'_>, state: &State, call: u8, free: &[bool]) -> bool {
    let made = machine.calls[usize::from(call)];
    let seq = state.seq[usize::from(call)];
    if seq == 0 || Machine::is_complete(state, call) || !machine.has_begun(state, call) {
        return false;
    }
    if machine.may_complete(state, call) {
        return true;
    }
    let group = made.call.group;
    let members = &machine.program.groups[usize::from(group)];
    made.call.needs(made.rank, members).iter().all(|&needed| {
        match machine.counterpart(state, call, needed) {
            // A message of a wrong size still meets its receive, where it shows as a mismatch.
            Some(peer) => {
                machine.has_begun(state, peer)
                    && (made.call.op.is_message() || machine.is_served(call, peer))
            }
            None => {
                let left = state.left[usize::from(group)] & 1 << needed != 0;
                // On NCCL a new call would queue behind the incomplete ones.
                let behind = machine.program.transport == Transport::Nccl
                    && !made.call.op.is_message()
                    && (1..seq).any(|earlier| {
                        machine
                            .call_at(state, group, needed, earlier)
                            .is_some_and(|c| !Machine::is_complete(state, c))
                    });
                free[usize::from(needed)] && !left && !behind
            }
        }
    })
}

/// Whether no action is left that must happen; completions that may or may not happen can remain.
pub(crate) fn is_quiet(machine: &Machine<'_>, state: &State) -> bool {
    machine.actions(state).iter().all(|action| match action {
        Action::Complete(call) => !machine.surely_completes(state, *call),
        Action::Step(_) | Action::Wake(_) | Action::Finish(_) | Action::Kill(_) => false,
    })
}

/// A fast hasher (FxHash), since hashing dominates the search.
#[derive(Default)]
pub(crate) struct Mixer(u64);

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        let mut chunks = bytes.chunks_exact(8);
        for chunk in &mut chunks {
            let mut word = [0; 8];
            word.copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
        for &byte in chunks.remainder() {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u8(&mut self, value: u8) {
        self.write_u64(u64::from(value));
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0.rotate_left(5) ^ value).wrapping_mul(0x517c_c1b7_2722_0a95);
    }

    fn write_usize(&mut self, value: usize) {
        self.write_u64(value as u64);
    }
}
