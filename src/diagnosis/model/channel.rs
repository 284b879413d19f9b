//! Point-to-point traffic of a group: which sends and receives have met, and which stand alone.
//!
//! Between two ranks there is a *channel* each way. Where the backend tells messages apart by their
//! tags, each tag has a *lane* of its own, else there is one. In a lane the n-th send belongs to the
//! n-th receive, whoever of the two was heard first; what has met is forgotten, what has not stands
//! open.
//!
//! Something may have been missed: lost records, receives from any source, messages that two backends
//! would pair differently. A channel of which that is so still shows what stands open, but it is not
//! *sure*, and nothing is proved by it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use ddp_doctor_proto::Op;
use ddp_doctor_proto::report::Timestamp;

use super::group::{JoinedCall, Wait};
use super::transport::{Matching, Transport};
use crate::diagnosis::event::{Call, CallId};

/// Most channels of a group.
const KEPT_CHANNELS: usize = 65_536;
/// Most lanes of a channel.
const KEPT_LANES: usize = 256;
/// Most calls that stand open in a channel, or at a rank that receives from any source.
const KEPT_OPEN: usize = 1024;
/// Most pairs of a group whose sizes do not fit.
const KEPT_CLASHES: usize = 64;

/// The point-to-point traffic of a group.
#[derive(Debug)]
pub struct Traffic {
    /// The backend's way with messages.
    pub transport: Transport,
    /// The first pair of each channel whose sizes do not fit, by sender and receiver.
    clashes: BTreeMap<(u32, u32), Clash>,
    channels: BTreeMap<(u32, u32), Channel>,
    /// Channels in which calls stand open.
    open: BTreeSet<(u32, u32)>,
    /// Receives from any source that may still wait, by receiver.
    any_source: BTreeMap<u32, VecDeque<JoinedCall>>,
    /// Ranks of which it is not known whom all their calls were for.
    unclear: BTreeSet<u32>,
    /// When the last message to each rank was sent, as far as was heard.
    sent_to: BTreeMap<u32, Timestamp>,
    counts: BTreeMap<u32, Count>,
}

/// Messages from one rank to another.
#[derive(Debug, Default)]
struct Channel {
    lanes: BTreeMap<Option<i32>, Lane>,
    /// Sends and receives that stand open in all lanes.
    open: usize,
    /// The last sequence number of the sends, and of the receives.
    seqs: [u64; 2],
    /// Calls may have been missed.
    blurred: bool,
}

/// Messages that are told apart by their order alone.
#[derive(Debug, Default)]
struct Lane {
    /// Sends, and receives, that were made.
    made: [u64; 2],
    /// The last of each.
    last: [CallId; 2],
    /// Those that the other side has no partner for yet, in order; of one side at a time.
    open: VecDeque<Open>,
}

/// A call without a partner.
#[derive(Debug)]
struct Open {
    /// The how-manieth it is in its lane.
    nth: u64,
    joined: JoinedCall,
}

/// Point-to-point calls of a rank: how many were seen, and how many its counters told of.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    seen: u64,
    told: u64,
}

/// A side of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// The sender's.
    Send,
    /// The receiver's.
    Receive,
}

/// Where a point-to-point call stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Post {
    /// Its side.
    pub side: Side,
    /// The rank that made it.
    pub rank: u32,
    /// The other rank; `None`: any.
    pub peer: Option<u32>,
    lane: Option<i32>,
    pub(super) call: CallId,
}

/// A call without a partner, as far as is known.
#[derive(Clone, Debug)]
pub struct Lone {
    /// Its side.
    pub side: Side,
    /// The rank that made it.
    pub rank: u32,
    /// The other rank; `None`: any.
    pub peer: Option<u32>,
    /// The call, and what is known of the wait for it.
    pub joined: JoinedCall,
    /// The how-manieth of its kind it is with this peer, and with this tag where tags tell messages
    /// apart, counted from where both sides had made as many.
    pub nth: u64,
    /// Nothing was missed that could be its partner.
    pub sure: bool,
    /// Of a receive: when the last message to the rank was sent, which may be the one.
    pub sent: Option<Timestamp>,
}

impl Lone {
    /// Whether the program waits for it, or did: it asked to, or was seen to.
    #[must_use]
    pub fn is_awaited(&self) -> bool {
        is_awaited(&self.joined)
    }
}

/// A send and a receive that belong together, and whose sizes do not fit.
#[derive(Clone, Debug)]
pub struct Clash {
    /// The send.
    pub send: Arc<Call>,
    /// The receive.
    pub receive: Arc<Call>,
    /// The how-manieth they are, counted as in [`Lone::nth`].
    pub nth: u64,
}

/// One side of a send and a receive that met, and when the other was made.
#[derive(Debug)]
pub(super) struct Met {
    pub(super) rank: u32,
    pub(super) call: Arc<Call>,
    pub(super) other: Timestamp,
}

impl Traffic {
    pub(super) fn new(backend: &str) -> Self {
        Self {
            transport: Transport::of(backend),
            clashes: BTreeMap::new(),
            channels: BTreeMap::new(),
            open: BTreeSet::new(),
            any_source: BTreeMap::new(),
            unclear: BTreeSet::new(),
            sent_to: BTreeMap::new(),
            counts: BTreeMap::new(),
        }
    }

    /// The call without a partner that stands there; `None` where it has met its own.
    #[must_use]
    pub fn lone(&self, post: &Post) -> Option<Lone> {
        let Some(peer) = post.peer else {
            let mut waiting = self.any_source.get(&post.rank)?.iter();
            let joined = waiting.find(|joined| joined.call.id == post.call)?;
            return Some(self.any_source_of(post.rank, joined));
        };
        let way = way(post.side, post.rank, peer);
        let lane = self.channels.get(&way)?.lanes.get(&post.lane)?;
        let open = lane.open.iter().find(|open| post.is(open, lane))?;
        Some(self.alone(way, post.side, open))
    }

    /// Every call without a partner that somebody waits for, or waited for in vain.
    pub fn awaited(&self) -> impl Iterator<Item = Lone> {
        self.open_of(is_awaited)
    }

    /// Every call without a partner.
    pub fn open(&self) -> impl Iterator<Item = Lone> {
        self.open_of(|_| true)
    }

    fn open_of(&self, which: impl Fn(&JoinedCall) -> bool + Copy) -> impl Iterator<Item = Lone> {
        let between = self.open.iter().flat_map(move |&way| {
            let lanes = self.channels.get(&way).into_iter();
            let lanes = lanes.flat_map(|channel| channel.lanes.values());
            lanes.flat_map(move |lane| {
                let asked = lane.open.iter().filter(move |open| which(&open.joined));
                asked.map(move |open| self.alone(way, lane.side(), open))
            })
        });
        let from_any = self.any_source.iter().flat_map(move |(&rank, waiting)| {
            let asked = waiting.iter().filter(move |joined| which(joined));
            asked.map(move |joined| self.any_source_of(rank, joined))
        });
        between.chain(from_any)
    }

    /// Sends and receives that surely belong together, and whose sizes do not fit.
    pub fn clashes(&self) -> impl Iterator<Item = (u32, u32, &Clash)> {
        let sure = self.clashes.iter().filter(|(way, _)| self.is_sure(**way));
        sure.map(|(way, clash)| (way.0, way.1, clash))
    }

    /// The first call of the other side between the two ranks that stands open in another lane, with
    /// another tag: one that was made after all those with this one.
    #[must_use]
    pub fn other_tag(&self, lone: &Lone) -> Option<Lone> {
        let side = lone.side.other();
        let way = way(lone.side, lone.rank, lone.peer?);
        let lanes = &self.channels.get(&way)?.lanes;
        let own = lanes.get(&self.lane(&lone.joined.call))?;
        let open = lanes
            .values()
            .filter(|lane| lane.side() == side)
            .flat_map(|lane| &lane.open)
            .map(|open| (open.joined.call.id, open))
            .filter(|(id, _)| *id > own.last[side as usize])
            .min_by_key(|(id, _)| *id);
        open.map(|(_, open)| self.alone(way, side, open))
    }

    /// The sends from one rank to another, or the receives, that were made in the lane of a call,
    /// counted as in [`Lone::nth`].
    #[must_use]
    pub fn made(&self, of: &Lone, side: Side) -> u64 {
        let lane = self.lane(&of.joined.call);
        of.peer
            .and_then(|peer| self.channels.get(&way(of.side, of.rank, peer)))
            .and_then(|channel| channel.lanes.get(&lane))
            .map_or(0, |lane| lane.made[side as usize])
    }

    /// The tag of a call, where tags tell messages apart.
    #[must_use]
    pub fn lane(&self, call: &Call) -> Option<i32> {
        call.tag
            .filter(|_| self.transport.matching == Matching::ByTag)
    }

    /// A rank made a call. Returns where it stands now, and both sides if it met its partner.
    pub(super) fn issue(
        &mut self,
        rank: u32,
        call: &Arc<Call>,
    ) -> Option<(Post, Option<[Met; 2]>)> {
        self.counts.entry(rank).or_default().seen += 1;
        let side = if call.op == Op::Send {
            Side::Send
        } else {
            Side::Receive
        };
        let post = Post {
            side,
            rank,
            peer: call.peer,
            lane: self.lane(call),
            call: call.id,
        };
        if let (Side::Send, Some(peer)) = (side, call.peer) {
            let last = self.sent_to.entry(peer).or_default();
            *last = (*last).max(call.at);
        }
        let Some(peer) = call.peer else {
            self.unclear.insert(rank);
            if side == Side::Receive {
                let waiting = self.any_source.entry(rank).or_default();
                waiting.push_back(JoinedCall::new(call));
                if waiting.len() > KEPT_OPEN {
                    waiting.pop_front();
                }
            }
            return Some((post, None));
        };
        let way = way(side, rank, peer);
        if self.channels.len() >= KEPT_CHANNELS && !self.channels.contains_key(&way) {
            return None;
        }
        let channel = self.channels.entry(way).or_default();
        channel.follow(side, call.seq);
        // Without its tag it may belong anywhere.
        channel.blurred |= self.transport.matching != Matching::InOrder && call.tag.is_none();
        let met = channel.post(side, post.lane, call);
        if channel.open > 0 {
            self.open.insert(way);
        } else {
            self.open.remove(&way);
        }
        let met = met.map(|(partner, nth)| {
            let (send, receive) = match side {
                Side::Send => (call, &partner),
                Side::Receive => (&partner, call),
            };
            if self.transport.matching == Matching::Unknown && send.tag != receive.tag {
                channel.blurred = true;
            }
            let known = self.clashes.contains_key(&way) || self.clashes.len() >= KEPT_CLASHES;
            if !known && !fits(self.transport.matching, send, receive) {
                let (send, receive) = (Arc::clone(send), Arc::clone(receive));
                self.clashes.insert(way, Clash { send, receive, nth });
            }
            let met = |rank, call: &Arc<Call>, other: &Call| Met {
                rank,
                call: Arc::clone(call),
                other: other.at,
            };
            [met(way.0, send, receive), met(way.1, receive, send)]
        });
        Some((post, met))
    }

    /// Counters said that a rank has made so many calls; records of them may have been lost.
    pub(super) fn advance(&mut self, rank: u32, issued: u64) {
        if issued > 0 {
            let count = self.counts.entry(rank).or_default();
            count.told = count.told.max(issued);
        }
    }

    pub(super) fn set_wait(&mut self, post: &Post, wait: Wait) {
        let Some(peer) = post.peer else {
            let Some(waiting) = self.any_source.get_mut(&post.rank) else {
                return;
            };
            if matches!(wait, Wait::Over(_)) {
                waiting.retain(|joined| joined.call.id != post.call);
            } else if let Some(joined) = waiting.iter_mut().find(|j| j.call.id == post.call) {
                joined.wait = wait;
            }
            return;
        };
        let channel = self.channels.get_mut(&way(post.side, post.rank, peer));
        let lane = channel.and_then(|channel| channel.lanes.get_mut(&post.lane));
        let Some(lane) = lane else { return };
        if lane.side() == post.side
            && let Some(open) = lane.open.iter_mut().find(|o| o.joined.call.id == post.call)
        {
            open.joined.wait = wait;
        }
    }

    /// Whether nothing of what two ranks did with each other was missed.
    fn is_sure(&self, way: (u32, u32)) -> bool {
        let heard_all = |rank: u32| {
            let count = self.counts.get(&rank).copied().unwrap_or_default();
            count.told <= count.seen && !self.unclear.contains(&rank)
        };
        heard_all(way.0) && heard_all(way.1) && self.channels.get(&way).is_none_or(|c| !c.blurred)
    }

    fn alone(&self, way: (u32, u32), side: Side, open: &Open) -> Lone {
        let (rank, peer) = match side {
            Side::Send => way,
            Side::Receive => (way.1, way.0),
        };
        Lone {
            side,
            rank,
            peer: Some(peer),
            joined: open.joined.clone(),
            nth: open.nth,
            sure: self.is_sure(way),
            sent: self
                .sent_to
                .get(&way.1)
                .copied()
                .filter(|_| side == Side::Receive),
        }
    }

    fn any_source_of(&self, rank: u32, joined: &JoinedCall) -> Lone {
        Lone {
            side: Side::Receive,
            rank,
            peer: None,
            joined: joined.clone(),
            nth: 0,
            // What came may have been for another receive.
            sure: false,
            sent: self.sent_to.get(&rank).copied(),
        }
    }
}

impl Channel {
    /// Notices calls that were missed, by a gap in their numbers.
    fn follow(&mut self, side: Side, seq: u64) {
        let last = &mut self.seqs[side as usize];
        if seq != 0 {
            self.blurred |= seq != *last + 1;
            *last = seq;
        }
    }

    /// Takes a call; returns its partner, and the how-manieth they are, if that came before.
    fn post(&mut self, side: Side, tag: Option<i32>, call: &Arc<Call>) -> Option<(Arc<Call>, u64)> {
        if self.lanes.len() >= KEPT_LANES && !self.lanes.contains_key(&tag) {
            self.lanes.retain(|_, lane| lane.made[0] != lane.made[1]);
            if self.lanes.len() >= KEPT_LANES {
                self.blurred = true;
                return None;
            }
        }
        let lane = self.lanes.entry(tag).or_default();
        lane.made[side as usize] += 1;
        lane.last[side as usize] = call.id;
        let nth = lane.made[side as usize];
        if nth <= lane.made[side.other() as usize] {
            // Where too many stood open, the partner's may be one that was not kept.
            let first = lane.open.front()?.nth;
            let partner = (first == nth).then(|| lane.open.pop_front()).flatten()?;
            self.open -= 1;
            return Some((partner.joined.call, nth));
        }
        let joined = JoinedCall::new(call);
        lane.open.push_back(Open { nth, joined });
        self.open += 1;
        if self.open > KEPT_OPEN {
            lane.open.pop_front();
            self.open -= 1;
        }
        None
    }
}

impl Lane {
    /// The side whose calls stand open.
    const fn side(&self) -> Side {
        if self.made[0] > self.made[1] {
            Side::Send
        } else {
            Side::Receive
        }
    }
}

impl Post {
    fn is(&self, open: &Open, lane: &Lane) -> bool {
        lane.side() == self.side && open.joined.call.id == self.call
    }
}

impl Side {
    /// The opposite side.
    #[must_use]
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

/// Whether the program waits for this call, or did: it asked to, or it was seen to.
fn is_awaited(joined: &JoinedCall) -> bool {
    !joined.call.is_async || joined.wait != Wait::NotSeen
}

/// Whether a message fits into what is there to receive it. What was not seen always does.
fn fits(matching: Matching, send: &Call, receive: &Call) -> bool {
    let bytes = |call: &Call| call.numel?.checked_mul(call.dtype.size()?);
    let sizes = match (bytes(send), bytes(receive)) {
        (Some(sent), Some(room)) => Some((sent, room)),
        _ if send.dtype == receive.dtype => send.numel.zip(receive.numel),
        _ => None,
    };
    sizes.is_none_or(|(sent, room)| match matching {
        Matching::InOrder => sent == room,
        // Gloo takes less than there is room for.
        Matching::ByTag | Matching::Unknown => sent <= room,
    })
}
