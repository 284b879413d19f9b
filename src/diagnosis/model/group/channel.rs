//! Point-to-point traffic of a group: which sends and receives have met, and which are still open.
//!
//! Two ranks have a *channel* in each direction. If the backend distinguishes messages by tag, each
//! tag has a *lane* of its own, otherwise there is one lane. Within a lane the n-th send belongs to
//! the n-th receive, whichever is recorded first. Calls that met are dropped, others stay open.
//!
//! A channel is not *sure* if a call may have been missed: because records were lost, a receive
//! accepts any source, or backends would pair messages differently. Its open calls are still
//! reported, but prove nothing.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use ddp_doctor_proto::Op;
use ddp_doctor_proto::report::Timestamp;

use crate::input::backends::{Backend, Completion, Matching};
use crate::input::event::{Call, CallId};
use crate::model::ids::{Post, Side};
use crate::model::{JoinedCall, Wait, keep_latest};

/// Maximum number of channels per group.
const MAX_CHANNELS: usize = 65_536;
/// Maximum number of lanes per channel.
const MAX_LANES: usize = 256;
/// Maximum number of open calls per channel, and per rank that receives from any source.
const MAX_OPEN: usize = 1024;
/// Maximum number of receives per rank that met their sends.
const MAX_RECEIVED: usize = 64;
/// Maximum number of pairs per group whose sizes do not fit.
const MAX_CLASHES: usize = 64;

/// The point-to-point traffic of a group.
#[derive(Debug, Default)]
pub struct Traffic {
    /// Properties of the backend.
    pub backend: &'static Backend,
    /// The first pair of each channel whose sizes do not fit, by sender and receiver.
    clashes: BTreeMap<(u32, u32), Clash>,
    channels: BTreeMap<(u32, u32), Channel>,
    /// Channels with open calls.
    open: BTreeSet<(u32, u32)>,
    /// Receives from any source that may still wait, by receiver.
    any_source: BTreeMap<u32, VecDeque<Open>>,
    /// The latest receives that met their sends, by receiver, if they may still wait on a stream.
    received: BTreeMap<u32, VecDeque<Arc<Call>>>,
    /// Ranks with calls whose peer is unknown.
    unclear: BTreeSet<u32>,
    /// When the latest recorded message to each rank was sent.
    sent_to: BTreeMap<u32, Timestamp>,
    /// Calls that ranks have left, by rank.
    left: BTreeMap<u32, Left>,
    counts: BTreeMap<u32, Count>,
}

/// Calls that a rank has left, as far as known: it made further ones that were not recorded.
#[derive(Debug)]
struct Left {
    /// When it made the latest one.
    latest: Timestamp,
    /// Earlier calls that it is still inside.
    inside: Vec<CallId>,
}

/// Messages from one rank to another.
#[derive(Debug, Default)]
struct Channel {
    lanes: BTreeMap<Option<i32>, Lane>,
    /// Latest sequence numbers of the sends and of the receives.
    seqs: [u64; 2],
    /// Calls may have been missed.
    blurred: bool,
}

/// Messages that are matched by their order alone.
#[derive(Debug, Default)]
struct Lane {
    /// Number of sends and of receives.
    made: [u64; 2],
    /// Latest send and latest receive.
    last: [CallId; 2],
    /// Calls without a partner, in order; all of the same side.
    open: VecDeque<Open>,
}

/// A call without a partner.
#[derive(Debug)]
struct Open {
    /// 1-based index in its lane; 0: it is in none.
    nth: u64,
    joined: JoinedCall,
}

/// Point-to-point calls of a rank.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    /// Number recorded, and number according to its counters.
    seen: u64,
    reported: u64,
    /// Some of its records are missing.
    gap: bool,
    /// Some of its calls are among them: `seen` never catches up.
    missed: bool,
}

/// A call without a partner, as far as known.
#[derive(Clone, Debug)]
pub struct UnmatchedMessage {
    /// Its side.
    pub side: Side,
    /// The rank that issued it.
    pub rank: u32,
    /// Its peer; `None`: any rank.
    pub peer: Option<u32>,
    /// The call and its wait.
    pub joined: JoinedCall,
    /// 1-based index among the calls of its side with this peer, and with this tag if tags
    /// distinguish messages. The count may restart where both sides are equal.
    pub nth: u64,
    /// No call that may be its partner was missed.
    pub sure: bool,
    /// For a receive: when the latest message to the rank was sent, which may be its partner.
    pub sent: Option<Timestamp>,
}

impl UnmatchedMessage {
    /// Whether the program waits or waited for it: it is synchronous, or a wait was recorded.
    pub fn is_awaited(&self) -> bool {
        !self.joined.call.is_async || self.joined.wait != Wait::NotSeen
    }

    /// Time at which the rank began to wait for it, or else issued it.
    pub fn since(&self) -> Timestamp {
        match self.joined.wait {
            Wait::Since(at) => at,
            Wait::NotSeen | Wait::Over(_) => self.joined.call.at,
        }
    }
}

/// A send and a receive that belong together but whose sizes do not fit.
#[derive(Clone, Debug)]
pub struct Clash {
    /// The send.
    pub send: Arc<Call>,
    /// The receive.
    pub receive: Arc<Call>,
    /// Their 1-based index, as in [`UnmatchedMessage::nth`].
    pub nth: u64,
}

/// One side of a send and a receive that met.
#[derive(Debug)]
pub(in crate::model) struct MatchedSide {
    pub(in crate::model) rank: u32,
    pub(in crate::model) call: Arc<Call>,
}

impl Traffic {
    pub(in crate::model) fn new(backend: &'static Backend) -> Self {
        Self { backend, ..Self::default() }
    }

    /// The call at this place if it has no partner.
    pub fn unmatched(&self, post: &Post) -> Option<UnmatchedMessage> {
        let queue = match post.peer {
            None => self.any_source.get(&post.rank)?,
            Some(peer) => {
                let channel = self.channels.get(&way(post.side, post.rank, peer))?;
                let lane = channel.lanes.get(&post.lane);
                &lane.filter(|lane| lane.side() == post.side)?.open
            }
        };
        let open = queue.iter().find(|open| open.joined.call.id == post.call)?;
        Some(self.alone(post.side, post.rank, post.peer, open))
    }

    /// Every call without a partner.
    pub fn open(&self) -> impl Iterator<Item = UnmatchedMessage> {
        let between = self.open.iter().flat_map(move |&way| {
            let lanes = self.channels.get(&way).into_iter().flat_map(|it| it.lanes.values());
            lanes.map(move |lane| {
                let side = lane.side();
                (side, side.rank(way), Some(side.other().rank(way)), &lane.open)
            })
        });
        let from_any =
            self.any_source.iter().map(|(&rank, open)| (Side::Receive, rank, None, open));
        between.chain(from_any).flat_map(move |(side, rank, peer, open)| {
            let left = self.left.get(&rank);
            let open = open.iter().filter(move |it| !it.is_left(left));
            open.map(move |open| self.alone(side, rank, peer, open))
        })
    }

    /// The receive that a rank issued at this time and that met its send, if it is among the latest ones on a stream.
    pub fn received_at(&self, rank: u32, at: Timestamp) -> Option<&Arc<Call>> {
        self.received.get(&rank)?.iter().find(|call| call.at == at)
    }

    /// Pairs of sure channels whose sizes do not fit.
    pub fn clashes(&self) -> impl Iterator<Item = (u32, u32, &Clash)> {
        let sure = self.clashes.iter().filter(|(way, _)| self.is_sure(**way));
        sure.map(|(way, clash)| (way.0, way.1, clash))
    }

    /// The earliest open call of the other side between the two ranks that has another tag and was
    /// issued after all of that side's calls with this tag.
    pub fn other_tag(&self, unmatched: &UnmatchedMessage) -> Option<UnmatchedMessage> {
        let side = unmatched.side.other();
        let peer = unmatched.peer?;
        let lanes = &self.channels.get(&way(unmatched.side, unmatched.rank, peer))?.lanes;
        let own = lanes.get(&self.lane(&unmatched.joined.call))?;
        let open = lanes
            .values()
            .filter(|lane| lane.side() == side)
            .flat_map(|lane| &lane.open)
            .map(|open| (open.joined.call.id, open))
            .filter(|(id, _)| *id > own.last[side as usize])
            .min_by_key(|(id, _)| *id);
        open.map(|(_, open)| self.alone(side, peer, Some(unmatched.rank), open))
    }

    /// Number of sends or receives issued in the lane of a call, counted as in [`UnmatchedMessage::nth`].
    pub fn made(&self, of: &UnmatchedMessage, side: Side) -> u64 {
        let lane = self.lane(&of.joined.call);
        of.peer
            .and_then(|peer| self.channels.get(&way(of.side, of.rank, peer)))
            .and_then(|channel| channel.lanes.get(&lane))
            .map_or(0, |lane| lane.made[side as usize])
    }

    /// Number of messages that a rank has sent to another one.
    pub fn sent(&self, from: u32, to: u32) -> u64 {
        let lanes = self.channels.get(&(from, to)).into_iter().flat_map(|it| it.lanes.values());
        lanes.map(|lane| lane.made[Side::Send as usize]).sum()
    }

    /// Number of messages that a rank has sent and received, those without a record included.
    pub fn calls_of(&self, rank: u32) -> u64 {
        self.counts.get(&rank).map_or(0, |count| count.seen.max(count.reported))
    }

    /// The tag of a call, if tags distinguish messages.
    pub fn lane(&self, call: &Call) -> Option<i32> {
        call.tag.filter(|_| self.backend.matching == Matching::ByTag)
    }

    /// Whether two calls have the same tag and the same data.
    pub fn fits(&self, one: &Call, other: &Call) -> bool {
        self.lane(one) == self.lane(other) && (one.dtype, one.numel) == (other.dtype, other.numel)
    }

    /// Adds a call of a rank. Returns its place, and both sides if it met its partner.
    pub(in crate::model) fn issue(
        &mut self,
        rank: u32,
        call: &Arc<Call>,
    ) -> Option<(Post, Option<[MatchedSide; 2]>)> {
        self.counts.entry(rank).or_default().seen += 1;
        if self.backend.completion == Completion::AtOnce {
            return None;
        }
        let side = if call.op == Op::Send { Side::Send } else { Side::Receive };
        let post = Post { side, rank, peer: call.peer, lane: self.lane(call), call: call.id };
        if let (Side::Send, Some(peer)) = (side, call.peer) {
            let last = self.sent_to.entry(peer).or_default();
            *last = (*last).max(call.at);
        }
        let Some(peer) = call.peer else {
            self.unclear.insert(rank);
            if side == Side::Receive {
                let waiting = self.any_source.entry(rank).or_default();
                keep_latest(waiting, Open { nth: 0, joined: JoinedCall::new(call) }, MAX_OPEN);
            }
            return Some((post, None));
        };
        let way = way(side, rank, peer);
        if self.channels.len() >= MAX_CHANNELS && !self.channels.contains_key(&way) {
            return None;
        }
        let channel = self.channels.entry(way).or_default();
        channel.forget(way, &self.left);
        channel.follow(side, call.seq, self.left.contains_key(&rank));
        // Without a tag it may belong to any lane.
        channel.blurred |= self.backend.matching != Matching::InOrder && call.tag.is_none();
        let matched = channel.post(side, post.lane, call);
        if channel.open() > 0 {
            self.open.insert(way);
        } else {
            self.open.remove(&way);
        }
        let matched = matched.map(|(partner, nth)| {
            let (send, receive) = match side {
                Side::Send => (call, &partner),
                Side::Receive => (&partner, call),
            };
            if self.backend.matching == Matching::Unknown && send.tag != receive.tag {
                channel.blurred = true;
            }
            if self.backend.is_on_stream {
                let received = self.received.entry(way.1).or_default();
                keep_latest(received, Arc::clone(receive), MAX_RECEIVED);
            }
            let known = self.clashes.contains_key(&way) || self.clashes.len() >= MAX_CLASHES;
            if !known && !fits(self.backend.matching, send, receive) {
                let (send, receive) = (Arc::clone(send), Arc::clone(receive));
                self.clashes.insert(way, Clash { send, receive, nth });
            }
            let side_of = |rank, call: &Arc<Call>| MatchedSide { rank, call: Arc::clone(call) };
            [side_of(way.0, send), side_of(way.1, receive)]
        });
        Some((post, matched))
    }

    /// Records of a rank were left out, so that it has left its calls up to `latest` except those that it is
    /// `inside`.
    pub(in crate::model) fn leave(&mut self, rank: u32, latest: Timestamp, inside: Vec<CallId>) {
        if !self.channels.is_empty() || !self.any_source.is_empty() {
            self.left.insert(rank, Left { latest, inside });
        }
    }

    /// Records of a rank are missing.
    pub(in crate::model) fn miss(&mut self, rank: u32) {
        self.counts.entry(rank).or_default().gap = true;
    }

    /// Applies the counter of a rank, which includes calls whose records are missing.
    pub(in crate::model) fn advance(&mut self, rank: u32, issued: u64) {
        if issued > 0 {
            let count = self.counts.entry(rank).or_default();
            count.reported = count.reported.max(issued);
            count.missed |= count.gap && count.reported > count.seen;
        }
    }

    pub(in crate::model) fn set_wait(&mut self, post: &Post, wait: Wait) {
        let open = match post.peer {
            None => self.any_source.get_mut(&post.rank),
            Some(peer) => {
                let channel = self.channels.get_mut(&way(post.side, post.rank, peer));
                let lane = channel.and_then(|channel| channel.lanes.get_mut(&post.lane));
                lane.filter(|lane| lane.side() == post.side).map(|lane| &mut lane.open)
            }
        };
        let Some(open) = open else { return };
        let Some(at) = open.iter().position(|it| it.joined.call.id == post.call) else { return };
        open[at].joined.wait = wait;
        // A receive from any source has no partner here that would end it.
        if post.peer.is_none() && matches!(wait, Wait::Over(_)) {
            open.remove(at);
        }
    }

    /// Whether all calls between two ranks were recorded.
    fn is_sure(&self, way: (u32, u32)) -> bool {
        let has_all_records = |rank: u32| {
            let count = self.counts.get(&rank).copied().unwrap_or_default();
            count.reported <= count.seen && !count.missed && !self.unclear.contains(&rank)
        };
        has_all_records(way.0)
            && has_all_records(way.1)
            && self.channels.get(&way).is_none_or(|c| !c.blurred)
    }

    fn alone(&self, side: Side, rank: u32, peer: Option<u32>, open: &Open) -> UnmatchedMessage {
        UnmatchedMessage {
            side,
            rank,
            peer,
            joined: open.joined.clone(),
            nth: open.nth,
            // For a receive from any source, an earlier message may have matched another receive.
            sure: peer.is_some_and(|peer| self.is_sure(way(side, rank, peer))),
            sent: self.sent_to.get(&rank).copied().filter(|_| side == Side::Receive),
        }
    }
}

impl Channel {
    /// Number of open sends and receives in all lanes.
    fn open(&self) -> usize {
        self.lanes.values().map(|lane| lane.open.len()).sum()
    }

    /// Detects missed calls by gaps in their sequence numbers. If records of the rank were `left` out and
    /// all calls have one tag, these numbers show which calls belong together after a gap.
    fn follow(&mut self, side: Side, seq: u64, left: bool) {
        let last = &mut self.seqs[side as usize];
        if seq == 0 {
            return;
        }
        if seq != *last + 1 {
            self.blurred = true;
            let mut lanes = self.lanes.values_mut();
            if let (true, Some(lane), None) = (left, lanes.next(), lanes.next()) {
                if lane.side() != side {
                    lane.open.retain(|it| it.nth >= seq);
                }
                lane.made[side as usize] = seq - 1;
            }
        }
        *last = seq;
    }

    /// Drops calls that their ranks have left.
    fn forget(&mut self, way: (u32, u32), left: &BTreeMap<u32, Left>) {
        for lane in self.lanes.values_mut() {
            let left = left.get(&lane.side().rank(way));
            lane.open.retain(|it| !it.is_left(left));
        }
    }

    /// Adds a call. Returns its partner and their index, if the partner was issued before.
    fn post(&mut self, side: Side, tag: Option<i32>, call: &Arc<Call>) -> Option<(Arc<Call>, u64)> {
        if self.lanes.len() >= MAX_LANES && !self.lanes.contains_key(&tag) {
            self.lanes.retain(|_, lane| lane.made[0] != lane.made[1]);
            if self.lanes.len() >= MAX_LANES {
                self.blurred = true;
                return None;
            }
        }
        let is_full = self.open() >= MAX_OPEN;
        let lane = self.lanes.entry(tag).or_default();
        lane.made[side as usize] += 1;
        lane.last[side as usize] = call.id;
        let nth = lane.made[side as usize];
        if nth <= lane.made[side.other() as usize] {
            // Partners of earlier calls were not recorded.
            while lane.open.front().is_some_and(|it| it.nth < nth) {
                lane.open.pop_front();
            }
            // Beyond the limit of open calls, the partner may have been dropped.
            let first = lane.open.front()?.nth;
            let partner = (first == nth).then(|| lane.open.pop_front()).flatten()?;
            return Some((partner.joined.call, nth));
        }
        let joined = JoinedCall::new(call);
        lane.open.push_back(Open { nth, joined });
        if is_full {
            lane.open.pop_front();
        }
        None
    }
}

impl Lane {
    /// The side with open calls.
    const fn side(&self) -> Side {
        if self.made[0] > self.made[1] { Side::Send } else { Side::Receive }
    }
}

impl Open {
    fn is_left(&self, left: Option<&Left>) -> bool {
        let call = &self.joined.call;
        left.is_some_and(|left| call.at <= left.latest && !left.inside.contains(&call.id))
    }
}

impl Side {
    /// The rank of this side of a channel.
    const fn rank(self, way: (u32, u32)) -> u32 {
        match self {
            Self::Send => way.0,
            Self::Receive => way.1,
        }
    }

    /// The opposite side.
    pub const fn other(self) -> Self {
        match self {
            Self::Send => Self::Receive,
            Self::Receive => Self::Send,
        }
    }
}

/// Sender and receiver.
const fn way(side: Side, rank: u32, peer: u32) -> (u32, u32) {
    match side {
        Side::Send => (rank, peer),
        Side::Receive => (peer, rank),
    }
}

/// Whether a message fits its receive. Unknown sizes always fit.
fn fits(matching: Matching, send: &Call, receive: &Call) -> bool {
    let bytes = |call: &Call| call.numel?.checked_mul(call.dtype.size()?);
    let sizes = match (bytes(send), bytes(receive)) {
        (Some(sent), Some(room)) => Some((sent, room)),
        _ if send.dtype == receive.dtype => send.numel.zip(receive.numel),
        _ => None,
    };
    sizes.is_none_or(|(sent, room)| match matching {
        Matching::InOrder => sent == room,
        // Gloo accepts messages smaller than the receive.
        Matching::ByTag | Matching::Unknown => sent <= room,
    })
}
