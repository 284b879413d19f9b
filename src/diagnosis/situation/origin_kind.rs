//! What explains that a member has not arrived, and that ranks wait.

use crate::model::GroupId;

/// Why a member has not arrived, and what a stall goes back to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum OriginKind {
    /// An exception ended it, or diverted it.
    Raised,
    /// It died by a signal, or with a non-zero status.
    Died,
    /// It is stopped.
    Stopped,
    /// It exited in order, or destroyed the group.
    Left,
    /// It waits for a call that can never match.
    Diverged(GroupId, u64),
    /// It waits for others while leaving the program.
    Leaving,
    /// A send and a receive between two ranks, sender first, wait with different tags.
    OtherTag(GroupId, u32, u32),
    /// Messages in the first group have numbers within the second one as peers.
    LocalNumbers(GroupId, GroupId),
    /// It waits for another call.
    Blocked(GroupId, u64),
    /// It waits for the partner of a point-to-point call.
    Unpartnered(GroupId),
    /// It is in a cycle of waits, by its index in [`crate::waits::Waits::cycles`].
    Cycle(usize),
    /// It stopped reporting, and may have arrived.
    Silent,
    /// A breach of DDP's contract keeps it away, by its index in [`Situation::breaches`](crate::situation::Situation::breaches).
    Breach(usize),
    /// It waits inside a collective that every member has entered.
    Inside(GroupId, u64),
    /// It is creating a group, or has not created the one in which it is missing.
    Making,
    /// It is in a long phase: one that the program marked, or work that is known to take long.
    LongPhase,
    /// It is alive and does not move.
    Stuck,
    /// It waits for work, which it then passes on to the ranks that wait.
    Idle,
    /// It is alive and does something else.
    #[default]
    Elsewhere,
}

/// Whether a missing member may still arrive; worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Hopelessness {
    /// It cannot arrive.
    Gone,
    /// It is blocked itself.
    Held,
    /// It may arrive.
    MayCome,
}

impl OriginKind {
    pub(super) const fn hopelessness(self) -> Hopelessness {
        match self {
            Self::Raised | Self::Died | Self::Stopped | Self::Left => Hopelessness::Gone,
            Self::Diverged(..)
            | Self::Leaving
            | Self::OtherTag(..)
            | Self::LocalNumbers(..)
            | Self::Blocked(..)
            | Self::Unpartnered(_)
            | Self::Cycle(_)
            | Self::Breach(_)
            | Self::Inside(..)
            | Self::Making => Hopelessness::Held,
            Self::Silent | Self::LongPhase | Self::Stuck | Self::Idle | Self::Elsewhere => {
                Hopelessness::MayCome
            }
        }
    }
}

/// The first condition that explains a stall or a divergence.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct StallOrigin {
    /// What it is.
    pub why: OriginKind,
    /// The ranks that it names, if any: those that are absent for this reason where others wait.
    pub ranks: Vec<u32>,
}

impl StallOrigin {
    /// An origin that names no ranks.
    pub const fn without_ranks(why: OriginKind) -> Self {
        Self { why, ranks: Vec::new() }
    }

    /// Precedence among the possible origins of one stall, its own and those of the stalls that it
    /// waits behind; the lowest leads.
    pub(super) const fn precedence(&self) -> u8 {
        match self.why {
            OriginKind::Raised => 0,
            OriginKind::Died => 1,
            OriginKind::Stopped => 2,
            OriginKind::OtherTag(..) | OriginKind::LocalNumbers(..) => 3,
            OriginKind::Left => 4,
            OriginKind::Diverged(..) => 5,
            OriginKind::Leaving => 6,
            OriginKind::Cycle(_) => 7,
            OriginKind::Making => 8,
            OriginKind::Stuck => 9,
            OriginKind::LongPhase => 10,
            OriginKind::Inside(..) => 11,
            OriginKind::Silent => 12,
            OriginKind::Elsewhere => 13,
            OriginKind::Idle => 14,
            // Never compared: the origins of such waits take their place, and breaches are assigned last.
            OriginKind::Blocked(..) | OriginKind::Unpartnered(_) | OriginKind::Breach(_) => 0,
        }
    }
}
