//! Latest stacks of the ranks: equal stacks grouped, the smallest group first.

use std::collections::BTreeMap;

use ddp_doctor_proto::report::{Timestamp, Where};
use ddp_doctor_proto::words::{self, plain};

use crate::state::State;

/// Maximum number of different stacks shown.
const MAX_SHOWN: usize = 32;
/// Maximum length of a list of ranks, in characters.
const MAX_RANKS_CHARS: usize = 160;

/// Ranks grouped by their stacks.
#[derive(Debug)]
pub(crate) struct Stacks {
    pub(crate) groups: Vec<Group>,
    /// Ranks without a known stack, as text.
    pub(crate) unknown: String,
    /// Time of the latest capture.
    pub(crate) at: Timestamp,
}

/// Ranks with the same stack.
#[derive(Debug)]
pub(crate) struct Group {
    ranks: Vec<u32>,
    /// The ranks as text.
    pub(crate) who: String,
    /// Innermost first.
    pub(crate) frames: Vec<Where>,
    /// Kernel function in which they sleep; may be empty.
    pub(crate) channel: String,
}

impl Stacks {
    pub(crate) fn of(state: &State) -> Self {
        let mut by_stack: BTreeMap<Vec<Where>, Group> = BTreeMap::new();
        let mut unknown = Vec::new();
        let mut at = Timestamp::default();
        for view in state.ranks.iter() {
            let detail = &view.detail;
            if detail.stack.is_empty() {
                unknown.push(view.rank());
                continue;
            }
            at = at.max(detail.stack_at);
            let group = by_stack.entry(detail.stack.clone()).or_insert_with_key(|frames| Group {
                ranks: Vec::new(),
                who: String::new(),
                frames: frames.clone(),
                channel: plain(&detail.wait_channel),
            });
            group.ranks.push(view.rank());
        }
        let mut groups: Vec<Group> = by_stack.into_values().collect();
        groups.sort_by_key(|group| (group.ranks.len(), group.ranks[0]));
        groups.truncate(MAX_SHOWN);
        let text = |ranks: &[u32]| words::rank_list(ranks).chars().take(MAX_RANKS_CHARS).collect();
        for group in &mut groups {
            group.who = text(&group.ranks);
        }
        Self { groups, unknown: text(&unknown), at }
    }
}
