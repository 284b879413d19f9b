//! The calls of the members of a group that belong together.

use std::sync::Arc;

use ddp_doctor_proto::Op;
use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_proto::vocabulary::Direction;

use crate::input::align::{self, MAX_SIGNATURES, Mismatch, OddOnes, Signature};
use crate::input::event::Call;
use crate::input::splits::{self, Misfit};
use crate::model::history::Position;
use crate::model::maps::ByRank;

/// Calls that met at one sequence number.
#[derive(Debug, Default)]
pub struct Join {
    /// Calls by global rank.
    pub calls: ByRank<JoinedCall>,
    /// The first disagreement, in the order of [`Mismatch`], and the earliest time at which calls met
    /// here that disagree.
    pub mismatch: Option<(Mismatch, Timestamp)>,
    /// Time and rank of the last arrival.
    pub last: (Timestamp, u32),
    /// Different signatures of the calls, at most [`MAX_SIGNATURES`], each with the time of its first call.
    signatures: Vec<(Signature, Timestamp)>,
    /// Once every member has entered it: place of a rank whose call is still expected to change.
    pub(super) pending: Option<usize>,
}

/// One rank's call in a join.
#[derive(Clone, Debug)]
pub struct JoinedCall {
    /// The issued call.
    pub call: Arc<Call>,
    /// The wait for it.
    pub wait: Wait,
    /// Turn of the rank in which it was issued.
    pub position: Position,
    /// An exception ended that wait.
    pub failed: bool,
    /// When it returned to its caller.
    pub returned: Option<Timestamp>,
    /// A layer below will report when its device has completed it …
    pub followed: bool,
    /// … and has done so.
    pub complete: bool,
    /// DDP waits for its buckets, of which this one is the last.
    pub in_backward: bool,
    /// Set on the last of the DDP buckets that this rank waited for together.
    pub averaged: Option<Box<Averaged>>,
}

/// The buckets that DDP averages in one backward pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Buckets {
    /// Number of calls.
    pub calls: u32,
    /// Bytes that each rank contributes to all of them.
    pub bytes: u64,
}

/// The wait of a rank for the buckets of one backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Averaged {
    /// The buckets waited for.
    pub buckets: Buckets,
    /// Start of the wait …
    pub from: Timestamp,
    /// … and its end.
    pub to: Timestamp,
}

/// The wait for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// None was recorded.
    NotSeen,
    /// In progress since this time.
    Since(Timestamp),
    /// Ended at this time, successfully or not.
    Over(Timestamp),
}

/// Number of ranks whose splits of an `all_to_all` are compared with those of all others. A rank records splits for
/// fewer peers.
const MAX_COMPARED: usize = 1024;
/// Maximum number of disagreements between splits that are listed: one wrong rank makes two with each of the others.
pub const MAX_MISFITS: usize = 1 << 18;

/// Adds a signature of a call at this time. Of too many, the first are kept.
fn note(signatures: &mut Vec<(Signature, Timestamp)>, signature: Signature, at: Timestamp) {
    let is_full = signatures.len() >= MAX_SIGNATURES;
    match signatures.iter_mut().find(|(known, _)| *known == signature) {
        Some((_, first_at)) => *first_at = at.min(*first_at),
        None if is_full => {}
        None => signatures.push((signature, at)),
    }
}

impl Join {
    /// A join without calls of a group of these ranks.
    pub(in crate::model) fn new(ranks: &Arc<[u32]>) -> Self {
        Self { calls: ByRank::new(Arc::clone(ranks)), ..Self::default() }
    }

    /// Adds the call of a rank, or replaces it.
    pub(super) fn add(&mut self, rank: u32, joined: JoinedCall) {
        let call = Arc::clone(&joined.call);
        if self.calls.insert(rank, joined).is_some() {
            self.signatures.clear();
            for (_, other) in self.calls.iter().filter(|(other, _)| **other != rank) {
                let signature = Signature::from_call(&other.call);
                note(&mut self.signatures, signature, other.call.at);
            }
        }
        self.meet(&call);
        if call.op == Op::AllToAll {
            self.fit(rank, &call);
        }
        self.last = self.last.max((call.at, rank));
    }

    /// Compares a call with the other calls. Only different signatures are compared: most
    /// collectives have one.
    pub(super) fn meet(&mut self, call: &Call) {
        let signature = Signature::from_call(call);
        for (other, first_at) in &self.signatures {
            if let Some(mismatch) = signature.compare(other) {
                let paired_at = call.at.max(*first_at);
                let (first, at) = self.mismatch.unwrap_or((mismatch, paired_at));
                self.mismatch = Some((first.min(mismatch), at.min(paired_at)));
            }
        }
        note(&mut self.signatures, signature, call.at);
    }

    /// The different signatures of its calls.
    pub fn signatures(&self) -> impl Iterator<Item = &Signature> + Clone {
        self.signatures.iter().map(|(signature, _)| signature)
    }

    /// Whether further events are expected for a call of it. A call for which none is expected once is
    /// not asked about again.
    pub(super) fn update_pending(&mut self, is_expected: impl Fn(&JoinedCall) -> bool) -> bool {
        self.pending = self.calls.first_from(self.pending.unwrap_or(0), is_expected);
        self.pending.is_some()
    }

    /// Compares the splits of an `all_to_all` with those of all calls, itself included: a rank also sends to itself.
    fn fit(&mut self, rank: u32, call: &Call) {
        let disagrees = |other: u32, joined: &JoinedCall| {
            let mut misfits = splits::misfits((rank, call), (other, &joined.call));
            misfits.next().is_some()
        };
        // No call that is later than the first disagreement can lead to an earlier one.
        if self.mismatch.is_some_and(|(first, at)| first <= Mismatch::Splits && at <= call.at) {
            return;
        }
        let last = self.last_compared();
        let others = self.calls.iter().take_while(|(other, _)| rank <= last || **other <= last);
        let odd = others.filter(|&(&other, joined)| disagrees(other, joined));
        let Some(paired_at) = odd.map(|(_, other)| other.call.at.max(call.at)).min() else {
            return;
        };
        let (first, at) = self.mismatch.unwrap_or((Mismatch::Splits, paired_at));
        self.mismatch = Some((first.min(Mismatch::Splits), at.min(paired_at)));
    }

    /// The last rank whose splits are compared with those of all others.
    fn last_compared(&self) -> u32 {
        self.calls.nth_rank(MAX_COMPARED - 1).unwrap_or(u32::MAX)
    }

    /// Disagreements between the splits of an `all_to_all`; at most [`MAX_MISFITS`].
    pub fn misfits(&self) -> Vec<Misfit> {
        let mut calls = self.calls.iter();
        let last = self.last_compared();
        let compared =
            std::iter::from_fn(|| {
                let with = calls.clone();
                let (&a, first) = calls.next().filter(|(rank, _)| **rank <= last)?;
                Some(with.flat_map(move |(&b, second)| {
                    splits::misfits((a, &first.call), (b, &second.call))
                }))
            });
        let mut found: Vec<Misfit> = compared.flatten().take(MAX_MISFITS).collect();
        found.sort_unstable();
        found
    }

    /// The ranks in the minority, or all ranks without one.
    pub fn odd_ones(&self) -> OddOnes {
        match self.mismatch {
            Some((Mismatch::Splits, _)) => self.odd_splits().unwrap_or_else(|| {
                let ranks = self.calls.keys().copied().collect();
                OddOnes { ranks, is_minority: false }
            }),
            _ => align::odd_ones(&self.classes()),
        }
    }

    /// The ranks whose splits differ from those of most others, if only splits disagree.
    fn odd_splits(&self) -> Option<OddOnes> {
        self.mismatch.filter(|(mismatch, _)| *mismatch == Mismatch::Splits)?;
        let misfits = self.misfits();
        if misfits.len() == MAX_MISFITS {
            let ranks = self.calls.keys().copied().collect();
            return Some(OddOnes { ranks, is_minority: false });
        }
        let last = self.last_compared();
        let all = self.calls.len();
        let first = self.calls.keys().take_while(|rank| **rank <= last).count();
        let compared = |rank| if rank <= last { all } else { first + 1 };
        splits::odd_ones(&misfits, all, compared)
    }

    /// Time of the last arrival.
    pub const fn last_at(&self) -> Timestamp {
        self.last.0
    }

    /// Calls by rank.
    pub fn by_rank(&self) -> impl Iterator<Item = (u32, &JoinedCall)> {
        self.calls.iter().map(|(&rank, joined)| (rank, joined))
    }

    /// Ranks grouped by agreeing calls, largest class first. If only splits disagree, each odd rank
    /// is a class of its own.
    pub fn classes(&self) -> Vec<Vec<u32>> {
        if let Some(OddOnes { ranks: odd, .. }) = self.odd_splits() {
            let fitting = self.calls.keys().copied().filter(|it| odd.binary_search(it).is_err());
            let mut classes = vec![fitting.collect::<Vec<u32>>()];
            classes.retain(|class| !class.is_empty());
            classes.extend(odd.into_iter().map(|rank| vec![rank]));
            return classes;
        }
        let calls = self.calls.iter().map(|(&rank, joined)| (rank, &*joined.call));
        align::classes_of_calls(calls)
    }
}

impl JoinedCall {
    /// A call without a recorded wait.
    pub(crate) fn new(call: &Arc<Call>) -> Self {
        Self {
            call: Arc::clone(call),
            wait: Wait::NotSeen,
            position: Position::default(),
            failed: false,
            returned: None,
            followed: false,
            complete: false,
            in_backward: false,
            averaged: None,
        }
    }

    /// Whether a wait for it ended successfully.
    pub fn is_done(&self) -> bool {
        matches!(self.wait, Wait::Over(_)) && !self.failed
    }

    /// Whether the program waits for this call: it is synchronous, a wait was recorded, or DDP
    /// issued it and waits before its backward or forward pass continues.
    pub fn is_awaited(&self) -> bool {
        !self.call.is_async || self.call.hidden || self.wait != Wait::NotSeen
    }

    /// Whether this call has to wait for all missing members, whichever they are.
    pub fn needs_all(&self) -> bool {
        !self.call.op.creates_group() && self.call.op.direction() == Direction::Symmetric
    }

    /// The missing members that this call has to wait for.
    pub fn needs(&self, rank: u32, missing: &[u32]) -> Vec<u32> {
        if self.call.op.creates_group() {
            // A creation that returned did not need them, unless it can return early only by
            // failing.
            let over = matches!(self.wait, Wait::Over(_));
            return if over && !self.call.takes_all { Vec::new() } else { missing.to_vec() };
        }
        // Any missing member may be the root, or lie between the root and this rank.
        let root_is_unknown = self.call.root.is_none() && self.call.on_stream.is_some();
        match self.call.op.direction() {
            Direction::Symmetric => missing.to_vec(),
            // A wait that stacks show: which ranks it needs is unknown.
            Direction::Unknown if self.call.op == Op::Unspecified => missing.to_vec(),
            Direction::FromRoot | Direction::ToRoot if root_is_unknown => missing.to_vec(),
            Direction::FromRoot => {
                missing.iter().copied().filter(|&m| Some(m) == self.call.root).collect()
            }
            Direction::ToRoot if self.call.root == Some(rank) => missing.to_vec(),
            Direction::ToRoot | Direction::PointToPoint | Direction::Unknown => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{call, group};

    /// An exchange in which these ranks send that much, and expect as much.
    fn exchange(totals: impl ExactSizeIterator<Item = u32>) -> Join {
        let members: Vec<u32> = (0..totals.len() as u32).collect();
        let group = group("0", "gloo", &members);
        let mut join = Join::new(&members.into());
        for (rank, total) in (0..).zip(totals) {
            let call = Call {
                group: Some(Arc::clone(&group)),
                splits: [vec![total], vec![total]],
                at: Timestamp(u64::from(rank)),
                ..call(Op::AllToAll)
            };
            join.add(rank, JoinedCall::new(&Arc::new(call)));
        }
        join
    }

    #[test]
    fn disagreements_of_splits_are_limited() {
        let join = exchange((0..3000_u32).map(|it| 3000 * (it + 1)));
        assert_eq!(join.misfits().len(), MAX_MISFITS);
        let odd = join.odd_ones();
        assert_eq!((odd.ranks.len(), odd.is_minority), (3000, false));
        assert_eq!(join.mismatch, Some((Mismatch::Splits, Timestamp(1))));
    }

    #[test]
    fn odd_rank_is_found_wherever_it_is() {
        for odd in [0, 1000, 1023, 1024, 2999] {
            let join = exchange((0..3000).map(|it| if it == odd { 9000 } else { 3000 }));
            assert_eq!(join.odd_ones(), OddOnes { ranks: vec![odd], is_minority: true });
            let at = Timestamp(u64::from(odd.max(1)));
            assert_eq!(join.mismatch, Some((Mismatch::Splits, at)));
        }
    }
}
