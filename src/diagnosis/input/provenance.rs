//! How evidence is known, and what dumps show of a job beside its calls.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use ddp_doctor_proto::report::GroupRef;

use crate::input::event::{Call, GroupInfo};

/// How the calls of a job are known. A process whose calls are known from text is distinguished by its
/// events.
#[derive(Clone, Debug, Default)]
pub enum Provenance {
    /// A capture recorded them.
    #[default]
    Recorded,
    /// They were read from processes without a capture: they prove nothing.
    Attached,
    /// They were read from dumps of PyTorch's Flight Recorder, which show neither whether a process waits nor
    /// what became of it: findings that depend on a wait are not proved.
    Dumps(Arc<Dumps>),
}

impl Provenance {
    /// Whether the evidence was read from processes without a capture.
    pub const fn is_attached(&self) -> bool {
        matches!(self, Self::Attached)
    }

    /// What dumps show beside calls; `None`: the evidence has other sources.
    pub fn dumps(&self) -> Option<&Dumps> {
        match self {
            Self::Dumps(dumps) => Some(dumps),
            Self::Recorded | Self::Attached => None,
        }
    }
}

/// What the dumps of a job show beside calls.
#[derive(Clone, Debug, Default)]
pub struct Dumps {
    /// The calls are known to have been incomplete for long enough to be reported.
    pub are_lasting: bool,
    /// Maximum time for which a call was incomplete, if that is too short to be reported.
    pub at_most: Option<Duration>,
    /// Dumps, by rank.
    pub ranks: BTreeMap<u32, RankDump>,
    /// Collectives that all members have made and that are incomplete, or whose sizes do not match.
    pub collectives: Vec<DumpedCollective>,
    /// Ranks that disagree on the order of calls.
    pub disagreements: Vec<Disagreement>,
    /// A message that both ranks have made, and whose devices have completed everything before it.
    pub stuck_message: Option<StuckMessage>,
}

/// What the dump of one rank shows beside its calls.
#[derive(Clone, Debug, Default)]
pub struct RankDump {
    /// Number of calls that cannot be read.
    pub skipped: usize,
    /// The file ends too early.
    pub is_cut: bool,
    /// Groups that the rank created, with their members.
    pub created: Vec<CreatedGroup>,
    /// First incomplete calls of which counters alone are known.
    pub counted: Vec<(Arc<GroupInfo>, u64)>,
    /// Incomplete collectives.
    pub incomplete: Vec<(Arc<GroupInfo>, u64)>,
    /// The call in which the rank waits.
    pub waits_in: Option<Call>,
    /// The last call, if it is a collective, and all calls are complete.
    pub stopped_after: Option<(Arc<GroupInfo>, u64)>,
}

/// A process group as one rank created it.
#[derive(Clone, Debug)]
pub struct CreatedGroup {
    /// Name.
    pub name: Arc<str>,
    /// Description given by the framework.
    pub description: Arc<str>,
    /// Global ranks.
    pub members: Arc<[u32]>,
}

/// What dumps show of a collective that all members have made.
#[derive(Clone, Debug)]
pub struct DumpedCollective {
    /// Its group.
    pub group: GroupRef,
    /// Its number in the group.
    pub seq: u64,
    /// Elements that all ranks of an `all_to_all` send, and elements that they expect, if these differ.
    pub totals: Option<[u64; 2]>,
    /// Ranks whose devices have not started it, although all others have, and are no fewer.
    pub not_started: Vec<u32>,
    /// Ranks by the line of their calls, those of most first; empty: a line is unknown.
    pub by_line: Vec<Vec<u32>>,
    /// Ranks at a different line from most, if the two lines matched in no earlier call, although one of them
    /// was in use.
    pub at_unfamiliar_line: Vec<u32>,
}

/// Ranks that wait for each other, of which some wait in calls that the others left out.
#[derive(Clone, Debug, Default)]
pub struct Disagreement {
    /// All ranks that wait for each other.
    pub ranks: BTreeSet<u32>,
    /// Ranks that wait in a call that another one has not made.
    pub waiting: BTreeSet<u32>,
    /// Ranks that have not made such a call.
    pub missing: BTreeSet<u32>,
}

/// A message of which both sides were issued.
#[derive(Clone, Debug)]
pub struct StuckMessage {
    /// The call of each side, with its rank.
    pub sides: [(u32, Call); 2],
    /// Ranks whose devices have not started it, although the other has.
    pub not_started: Vec<u32>,
}

impl Disagreement {
    /// The smaller side and the larger one; `None` if they are of one size or have a rank in common.
    pub fn sides(&self) -> Option<(Vec<u32>, Vec<u32>)> {
        let list = |ranks: &BTreeSet<u32>| ranks.iter().copied().collect::<Vec<u32>>();
        let (waiting, missing) = (list(&self.waiting), list(&self.missing));
        if !self.waiting.is_disjoint(&self.missing) || waiting.len() == missing.len() {
            return None;
        }
        Some(if waiting.len() < missing.len() { (waiting, missing) } else { (missing, waiting) })
    }
}

impl Dumps {
    /// What is known of a collective that all members of this group have made.
    pub fn collective(&self, group: &GroupRef, seq: u64) -> Option<&DumpedCollective> {
        let is_it = |it: &&DumpedCollective| {
            it.seq == seq && it.group.name == group.name && it.group.members == group.members
        };
        self.collectives.iter().find(is_it)
    }

    /// Ranks by the members with which they created a group, those of the fewest ranks first. Groups without
    /// a rank in common may have one name.
    pub fn created(&self, info: &GroupInfo) -> Vec<(&[u32], Vec<u32>)> {
        // That of all ranks is not created by new_group.
        if &*info.description == "default_pg" {
            return Vec::new();
        }
        let mut created: BTreeMap<&[u32], Vec<u32>> = BTreeMap::new();
        for (&rank, dump) in &self.ranks {
            let is_it = |it: &&CreatedGroup| {
                *it.name == *info.key.name && it.description == info.description
            };
            let members = dump.created.iter().find(is_it).map_or(&[][..], |it| &it.members);
            let overlaps = members.iter().any(|it| info.key.members.contains(it));
            if overlaps && members.contains(&rank) {
                created.entry(members).or_default().push(rank);
            }
        }
        let mut created: Vec<(&[u32], Vec<u32>)> = created.into_iter().collect();
        created.sort_by_key(|(_, ranks)| ranks.len());
        created
    }

    /// Ranks that wait in a collective, if more ranks have not made it and have all stopped after one call.
    pub fn lone_callers(&self, group: &GroupRef, seq: u64, missing: &[u32]) -> Option<Vec<u32>> {
        let stopped_after = |rank: &u32| {
            let (info, seq) = self.ranks.get(rank)?.stopped_after.as_ref()?;
            Some((&info.key, *seq))
        };
        let (first, rest) = missing.split_first()?;
        let place = stopped_after(first)?;
        if !rest.iter().all(|rank| stopped_after(rank) == Some(place)) {
            return None;
        }
        let waits = |dump: &RankDump| {
            let mut incomplete = dump.incomplete.iter();
            incomplete.any(|(info, at)| info.key == *group && *at == seq)
        };
        let callers: Vec<u32> =
            self.ranks.iter().filter(|(_, dump)| waits(dump)).map(|(&rank, _)| rank).collect();
        (!callers.is_empty() && callers.len() < missing.len()).then_some(callers)
    }
}
