//! A process group: how far each member has come, and the calls that have not all met yet.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use ddp_doctor_proto::Op;
use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_proto::vocabulary::Direction;

use super::arrivals::{Averaged, Encounter};
use super::channel::Traffic;
use super::history::{History, Position};
use super::process::World;
use super::threads::Crossings;
use crate::diagnosis::align::{self, Mismatch};
use crate::diagnosis::backends;
use crate::diagnosis::event::{Call, GroupInfo, ProcessId};

/// Calls under way that a group keeps, over all its members …
const KEPT_CALLS: usize = 4096;
/// … but at least those of so many collectives, and at most of so many.
const KEPT_ENTERED: (usize, usize) = (4, 64);
/// Most joins a group keeps while it cannot see all its members, and after its ranks diverged.
const KEPT_JOINS: usize = 1024;
/// Joins after the first divergence that are kept although everybody came: they show whether the
/// calls only came in another order.
pub const KEPT_AFTER: u64 = 8;

/// Places after the first divergence that a group keeps once every member came to them: a rank may
/// stand still at one of them.
const KEPT_DIVERGENCES: usize = 16;

/// Names a group within the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub u32);

/// A process group over all its members.
#[derive(Debug)]
pub struct Group {
    /// Its name in the model.
    pub id: GroupId,
    /// The world it is of.
    pub world: World,
    /// What every member knows about it.
    pub info: Arc<GroupInfo>,
    /// Somebody was seen to make it: then all its members are.
    pub making_seen: bool,
    /// The members that were seen, by global rank.
    pub members: BTreeMap<u32, Member>,
    /// Calls by sequence number, as long as not every member made theirs; and the first divergence.
    /// Number 0 is the making of the group, until every member came back from it.
    pub joins: BTreeMap<u64, Join>,
    /// Collectives that every member has entered, until nobody is to wait for them any more. Only the
    /// latest ones: of most asynchronous calls nobody sees the wait.
    pub entered: BTreeMap<u64, Join>,
    /// Sequence number at which calls first met that cannot match.
    pub diverged: Option<u64>,
    /// Places far behind the first divergence at which calls met that cannot match, and every member
    /// came: the last ones.
    diverged_again: VecDeque<u64>,
    /// Its point-to-point calls.
    pub traffic: Traffic,
    /// How the ranks' steps and lines have met so far.
    pub history: History,
    /// Calls of different lines that met.
    pub crossings: Crossings,
    /// The collectives to which everybody has just come, for [`super::Arrivals`].
    pub(super) met: Vec<Encounter>,
    /// The wait that ended longest before its last member came, by their clocks.
    pub ended_early: Option<EndedEarly>,
}

/// A wait that ended before its last member came: it failed, or clocks differ.
#[derive(Clone, Copy, Debug)]
pub struct EndedEarly {
    /// The rank whose wait ended.
    pub ended: u32,
    /// The rank that came last.
    pub came: u32,
    /// By how much.
    pub by: Duration,
    /// When that rank came, by its clock.
    pub at: Timestamp,
}

/// One rank in a group.
#[derive(Debug)]
pub struct Member {
    /// The process that is this rank.
    pub process: ProcessId,
    /// Highest sequence number issued.
    pub issued: u64,
    /// Highest sequence number whose completion was seen.
    pub completed: u64,
    /// After how long its calls fail, where that is known.
    pub timeout: Option<Duration>,
    /// When it destroyed the group.
    pub destroyed: Option<Timestamp>,
    /// How much later than the first member it comes, lately; `None`: no call of all was seen.
    pub late: Option<Duration>,
}

impl Member {
    /// A member that has made no call.
    pub(super) const fn new(process: ProcessId) -> Self {
        Self {
            process,
            issued: 0,
            completed: 0,
            destroyed: None,
            timeout: None,
            late: None,
        }
    }

    /// It came so much later than the first.
    fn came(&mut self, late: Duration) {
        // Of the last eight calls or so.
        self.late = Some(self.late.map_or(late, |known| known * 7 / 8 + late / 8));
    }
}

/// Calls that met at one sequence number.
#[derive(Debug, Default)]
pub struct Join {
    /// By global rank.
    pub calls: BTreeMap<u32, JoinedCall>,
    /// The gravest disagreement among them.
    pub mismatch: Option<Mismatch>,
    /// When calls first met here that disagree.
    pub mismatched_at: Option<Timestamp>,
    /// When the last of them came, and who that was.
    pub last: (Timestamp, u32),
}

/// One rank's call in a join.
#[derive(Clone, Debug)]
pub struct JoinedCall {
    /// The call.
    pub call: Arc<Call>,
    /// What is known about the wait for it.
    pub wait: Wait,
    /// Where it stands in its rank's steps.
    pub position: Position,
    /// An exception ended that wait.
    pub failed: bool,
    /// When it came back to its caller.
    pub returned: Option<Timestamp>,
    /// It will be told when its device is done with it, by a layer below the one that made it …
    pub followed: bool,
    /// … which it is.
    pub complete: bool,
    /// It is the last of DDP's buckets that this rank waited for together.
    pub averaged: Option<Averaged>,
}

/// The wait for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Nobody waited for it, as far as was seen.
    NotSeen,
    /// A thread waits for it since.
    Since(Timestamp),
    /// The wait is over, well or badly.
    Over(Timestamp),
}

impl Group {
    pub(super) fn new(id: GroupId, world: World, info: Arc<GroupInfo>) -> Self {
        Self {
            id,
            world,
            traffic: Traffic::new(&info.backend),
            info,
            making_seen: false,
            members: BTreeMap::new(),
            joins: BTreeMap::new(),
            entered: BTreeMap::new(),
            diverged: None,
            diverged_again: VecDeque::new(),
            history: History::default(),
            crossings: Crossings::default(),
            met: Vec::new(),
            ended_early: None,
        }
    }

    /// Another member tells what the group is. Who is about to make one may not know all of it.
    pub(super) fn describe(&mut self, info: &Arc<GroupInfo>) {
        if self.info.backend.is_empty() && !info.backend.is_empty() {
            self.traffic = Traffic::new(&info.backend);
            self.info = Arc::clone(info);
        }
    }

    /// Whether a probe sees every member.
    #[must_use]
    pub fn is_fully_seen(&self) -> bool {
        self.members.len() == self.info.key.members.len()
    }

    /// Whether a thread that waits for such a call stands still until the call is complete. Where c10d
    /// runs collectives on a device, a wait only puts the stream behind it, except for barriers. NCCL
    /// itself keeps only those who make a communicator.
    #[must_use]
    pub fn holds_threads(&self, op: Op) -> bool {
        let on_host = matches!(&*self.info.backend, "gloo" | "mpi");
        match &*self.info.key.layer {
            "c10d" => on_host || op == Op::Barrier,
            "nccl" => op.creates_group(),
            _ => true,
        }
    }

    /// Whether a call begins only once the rank's earlier ones are complete: an NCCL communicator is
    /// one stream.
    #[must_use]
    pub fn is_stream(&self) -> bool {
        backends::is_on_nccl(&self.info.backend)
    }

    /// The join at a sequence number, while it is open or the first divergence.
    #[must_use]
    pub fn join(&self, seq: u64) -> Option<&Join> {
        self.joins.get(&seq)
    }

    /// Members that were seen but have not made their call at `seq`.
    #[must_use]
    pub fn missing(&self, seq: u64) -> Vec<u32> {
        let behind = self
            .members
            .iter()
            .filter(|(_, member)| member.issued < seq);
        behind.map(|(&rank, _)| rank).collect()
    }

    /// The lowest sequence number that some seen member has made its call at and another has not.
    #[must_use]
    pub fn first_open(&self) -> Option<u64> {
        let lowest = self.members.values().map(|member| member.issued).min()?;
        let highest = self.members.values().map(|member| member.issued).max()?;
        (lowest < highest).then_some(lowest + 1)
    }

    /// Whether a member has destroyed the group.
    pub fn is_destroyed_by(&self, rank: u32) -> bool {
        let member = self.members.get(&rank);
        member.is_some_and(|member| member.destroyed.is_some())
    }

    /// A member begins to make the group.
    pub(super) fn begin(&mut self, rank: u32, process: ProcessId, call: &Arc<Call>) {
        self.making_seen = true;
        self.members.entry(rank).or_insert(Member::new(process));
        let join = self.joins.entry(0).or_default();
        join.calls.insert(rank, JoinedCall::new(call));
    }

    /// A member came back from making the group, well or badly.
    pub(super) fn made(&mut self, rank: u32, at: Timestamp) {
        self.set_wait(rank, 0, Wait::Over(at), false);
        let everybody = self.is_fully_seen()
            && self.joins.get(&0).is_some_and(|join| {
                let over = |joined: &JoinedCall| matches!(joined.wait, Wait::Over(_));
                join.calls.values().all(over)
            });
        if everybody {
            self.joins.remove(&0);
        }
    }

    /// A member made a call. Returns, where every member has now made its own and all agree, until when
    /// each of them waited, as far as is known.
    pub(super) fn issue(
        &mut self,
        rank: u32,
        call: &Arc<Call>,
        position: Position,
    ) -> Vec<(u32, Arc<Call>, Timestamp)> {
        let Some(member) = self.members.get_mut(&rank) else {
            return Vec::new();
        };
        member.issued = member.issued.max(call.seq);
        let seq = call.seq;
        if self.diverged.is_some_and(|at| seq > at) && self.joins.len() >= KEPT_JOINS {
            return Vec::new();
        }
        let join = self.joins.entry(seq).or_default();
        join.meet(rank, call);
        join.last = join.last.max((call.at, rank));
        join.calls.insert(
            rank,
            JoinedCall {
                position,
                ..JoinedCall::new(call)
            },
        );
        if join.mismatch.is_some() {
            self.diverged = Some(self.diverged.map_or(seq, |at| at.min(seq)));
        }
        self.settle(seq)
    }

    /// Drops the join once everybody came and agreed, and whatever is too old to be needed.
    fn settle(&mut self, seq: u64) -> Vec<(u32, Arc<Call>, Timestamp)> {
        // The making of the group is settled once it is over: see `made`.
        if seq == 0 {
            return Vec::new();
        }
        let everybody = self.is_fully_seen() && self.members.values().all(|m| m.issued >= seq);
        let join = self.joins.get(&seq);
        let agreed = join.is_none_or(|join| join.mismatch.is_none());
        let diverged = self.diverged.filter(|&at| at <= seq);
        let far_behind = diverged.is_some_and(|at| at + KEPT_AFTER < seq);
        if everybody && !agreed && far_behind && !self.diverged_again.contains(&seq) {
            self.diverged_again.push_back(seq);
            if self.diverged_again.len() > KEPT_DIVERGENCES {
                let oldest = self.diverged_again.pop_front();
                oldest.and_then(|seq| self.joins.remove(&seq));
            }
        }
        if everybody && agreed && (diverged.is_none() || far_behind) {
            let Some(join) = self.joins.remove(&seq) else {
                return Vec::new();
            };
            if diverged.is_none() {
                if join.calls.len() == self.members.len() && join.calls.len() > 1 {
                    self.met.extend(Encounter::of_join(self.id, seq, &join));
                }
                self.history.observe(seq, &join, self.members.len());
                self.crossings.met(seq, &join);
            }
            let first = join.calls.values().map(|it| it.call.at).min();
            for (&rank, joined) in &join.calls {
                if let (Some(member), Some(first)) = (self.members.get_mut(&rank), first) {
                    member.came(joined.call.at.since(first));
                }
                self.ended_early = longest(self.ended_early, &join, rank, joined);
            }
            let last = join.last_at();
            // Of a call that was made to be waited for, the wait is told when it ends.
            let until = |joined: &JoinedCall| match joined.wait {
                _ if joined.call.is_async => Some(last),
                Wait::Over(at) => Some(last.max(at)),
                Wait::Since(_) => None,
                Wait::NotSeen => joined.returned.map(|at| last.max(at)),
            };
            let calls = join.calls.iter();
            let calls = calls
                .filter_map(|(&rank, it)| Some((rank, Arc::clone(&it.call), until(it)?)))
                .collect();
            self.enter(seq, join);
            return calls;
        }
        while self.joins.len() > KEPT_JOINS {
            let oldest = self
                .joins
                .keys()
                .copied()
                .find(|&seq| Some(seq) != self.diverged);
            match oldest {
                Some(seq) => self.joins.remove(&seq),
                None => break,
            };
        }
        Vec::new()
    }

    /// Everybody has entered the collective: keeps it as long as somebody may be seen to wait for it.
    fn enter(&mut self, seq: u64, join: Join) {
        let told = self.is_told_beneath();
        let no_more = |it: &JoinedCall| !it.is_expected(told);
        if join.mismatch.is_some() || join.calls.values().all(no_more) {
            return;
        }
        self.entered.insert(seq, join);
        let (least, most) = KEPT_ENTERED;
        let kept = (KEPT_CALLS / self.info.key.members.len().max(1)).clamp(least, most);
        if self.entered.len() > kept {
            self.entered.pop_first();
        }
    }

    /// Counters said that the member has come this far; records of it may have been lost.
    pub(super) fn advance(&mut self, rank: u32, issued: u64) {
        if let Some(member) = self.members.get_mut(&rank) {
            member.issued = member.issued.max(issued);
        }
        let open: Vec<u64> = self.joins.keys().copied().collect();
        for seq in open {
            self.settle(seq);
        }
    }

    /// A member's call came back to its caller. Returns the call, if everybody had come by then and it
    /// is not waited for apart.
    pub(super) fn set_returned(&mut self, rank: u32, seq: u64, at: Timestamp) -> Option<Arc<Call>> {
        let entered = self.entered.get_mut(&seq);
        let well = entered.is_some();
        let join = entered.or_else(|| self.joins.get_mut(&seq))?;
        let joined = join.calls.get_mut(&rank)?;
        joined.returned = Some(at);
        let alone = joined.wait == Wait::NotSeen && !joined.call.is_async;
        let call = Arc::clone(&joined.call);
        self.leave_if_done(seq);
        (well && alone).then_some(call)
    }

    /// A member has waited for DDP's buckets, of which its call is the last. What everybody has come to is
    /// the business of [`super::Arrivals`].
    pub(super) fn set_averaged(&mut self, rank: u32, seq: u64, averaged: Averaged) {
        let join = self.joins.get_mut(&seq);
        if let Some(joined) = join.and_then(|join| join.calls.get_mut(&rank)) {
            joined.averaged = Some(averaged);
        }
    }

    /// A member waits for its call, or does no more (`failed`: because of an exception). Returns the
    /// call, if it was waited for all the time and that wait has ended well, after everybody had come.
    pub(super) fn set_wait(
        &mut self,
        rank: u32,
        seq: u64,
        wait: Wait,
        failed: bool,
    ) -> Option<Arc<Call>> {
        let entered = self.entered.get_mut(&seq);
        let well = entered.is_some();
        let join = entered.or_else(|| self.joins.get_mut(&seq))?;
        let joined = join.calls.get_mut(&rank)?;
        joined.wait = wait;
        joined.failed = failed;
        let joined = joined.clone();
        if well {
            self.ended_early = longest(self.ended_early, join, rank, &joined);
        }
        if well {
            self.leave_if_done(seq);
        }
        (well && joined.is_done() && !joined.call.is_async).then_some(joined.call)
    }
}

/// The longer of what is known and of how long this wait ended before the last member came.
fn longest(
    known: Option<EndedEarly>,
    join: &Join,
    rank: u32,
    joined: &JoinedCall,
) -> Option<EndedEarly> {
    let (at, came) = join.last;
    let symmetric = joined.call.op.direction() == Direction::Symmetric;
    let Wait::Over(over) = joined.wait else {
        return known;
    };
    if joined.failed {
        return known;
    }
    let by = at.since(over);
    if !symmetric || by <= known.map_or(Duration::ZERO, |known| known.by) {
        return known;
    }
    Some(EndedEarly {
        ended: rank,
        came,
        by,
        at,
    })
}

impl Join {
    /// When the last of them came.
    #[must_use]
    pub const fn last_at(&self) -> Timestamp {
        self.last.0
    }

    /// The calls by rank.
    pub fn all(&self) -> impl Iterator<Item = (u32, &JoinedCall)> {
        self.calls.iter().map(|(&rank, joined)| (rank, joined))
    }

    /// Ranks whose calls here agree with one another, largest class first.
    #[must_use]
    pub fn classes(&self) -> Vec<Vec<u32>> {
        align::classes(
            self.calls
                .iter()
                .map(|(&rank, joined)| (rank, &*joined.call)),
        )
    }
}

impl JoinedCall {
    /// A call that nobody waited for yet.
    pub(in crate::diagnosis) fn new(call: &Arc<Call>) -> Self {
        Self {
            call: Arc::clone(call),
            wait: Wait::NotSeen,
            position: Position::default(),
            failed: false,
            returned: None,
            followed: false,
            complete: false,
            averaged: None,
        }
    }

    /// Whether it was waited for, and well.
    #[must_use]
    pub fn is_done(&self) -> bool {
        matches!(self.wait, Wait::Over(_)) && !self.failed
    }

    /// Whether the program surely waits for this call: it asked to, or waits, or did; or DDP issued
    /// it, which waits before its backward pass or its forward goes on.
    #[must_use]
    pub fn is_awaited(&self) -> bool {
        !self.call.is_async || self.call.hidden || self.wait != Wait::NotSeen
    }

    /// Which of the members that have not come this rank's call must wait for.
    #[must_use]
    pub fn needs(&self, rank: u32, missing: &[u32]) -> Vec<u32> {
        if self.call.op.creates_group() {
            // One that came back did without them, unless there is no such way back but a failure.
            let over = matches!(self.wait, Wait::Over(_));
            return if over && !self.call.takes_all {
                Vec::new()
            } else {
                missing.to_vec()
            };
        }
        match self.call.op.direction() {
            Direction::Symmetric => missing.to_vec(),
            Direction::FromRoot => missing
                .iter()
                .copied()
                .filter(|&m| Some(m) == self.call.root)
                .collect(),
            Direction::ToRoot if self.call.root == Some(rank) => missing.to_vec(),
            Direction::ToRoot | Direction::PointToPoint | Direction::Unknown => Vec::new(),
        }
    }
}
