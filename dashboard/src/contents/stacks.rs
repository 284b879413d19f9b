//! Latest stacks of the ranks: equal stacks grouped, the smallest group first.

use std::collections::BTreeMap;

use ddp_doctor_proto::report::{Timestamp, Where};
use ddp_doctor_proto::words::{self, plain};

use crate::state::{Health, State};

/// Maximum number of different stacks shown.
const MAX_SHOWN: usize = 32;
/// Maximum length of a list of ranks, in characters.
const MAX_RANKS_CHARS: usize = 160;

/// Ranks grouped by their stacks.
#[derive(Debug)]
pub(crate) struct Stacks {
    pub(crate) groups: Vec<StackGroup>,
    /// Ranks without a known stack, as text.
    pub(crate) unknown: String,
    /// Time of the latest capture.
    pub(crate) at: Timestamp,
}

/// Ranks with the same stack.
#[derive(Debug)]
pub(crate) struct StackGroup {
    ranks: Vec<u32>,
    /// The ranks as text.
    pub(crate) who: String,
    /// Innermost first.
    pub(crate) frames: Vec<Where>,
    /// Kernel function in which they sleep; may be empty.
    pub(crate) channel: String,
    /// The ranks have continued since.
    pub(crate) has_continued: bool,
}

impl Stacks {
    pub(crate) fn new(state: &State) -> Self {
        let mut by_stack: BTreeMap<(bool, Vec<Where>), StackGroup> = BTreeMap::new();
        let mut unknown = Vec::new();
        let mut at = Timestamp::default();
        for view in state.ranks.iter() {
            let detail = &view.detail;
            if detail.stack.is_empty() {
                unknown.push(view.rank());
                continue;
            }
            at = at.max(detail.stack_at);
            let key = (detail.has_continued, detail.stack.clone());
            let group =
                by_stack.entry(key).or_insert_with_key(|(has_continued, frames)| StackGroup {
                    ranks: Vec::new(),
                    who: String::new(),
                    frames: frames.clone(),
                    channel: plain(&detail.wait_channel),
                    has_continued: *has_continued,
                });
            group.ranks.push(view.rank());
        }
        let mut groups: Vec<StackGroup> = by_stack.into_values().collect();
        // Ranks that continued come last, except one that is a culprit.
        let is_culprit = |group: &StackGroup| {
            let mut views = group.ranks.iter().filter_map(|&rank| state.ranks.get(rank));
            views.any(|view| view.health == Health::Culprit)
        };
        groups.sort_by_key(|group| {
            let is_old = group.has_continued && !is_culprit(group);
            (is_old, group.ranks.len(), group.ranks[0])
        });
        groups.truncate(MAX_SHOWN);
        let text = |ranks: &[u32]| words::rank_list(ranks).chars().take(MAX_RANKS_CHARS).collect();
        for group in &mut groups {
            group.who = text(&group.ranks);
        }
        Self { groups, unknown: text(&unknown), at }
    }
}

#[cfg(test)]
mod tests {
    use ddp_doctor_proto::viewer::RankDetail;

    use super::*;
    use crate::state::testing::{finding, rank, update};

    #[test]
    fn stack_of_a_culprit_that_went_on_is_shown_first() {
        let mut new = update(5, (0..4).map(|it| rank(it, "running", 1)).collect());
        new.findings = Some(vec![finding("DD206", "busy-outside", &[1])]);
        let detail = |rank, function: &str, has_continued| RankDetail {
            rank,
            stack: vec![Where { function: function.into(), ..Where::default() }],
            stack_at: Timestamp(4),
            has_continued,
            ..RankDetail::default()
        };
        new.details = vec![
            detail(0, "all_reduce", false),
            detail(1, "compute", true),
            detail(2, "all_reduce", false),
            detail(3, "all_reduce", true),
        ];
        let mut state = State::default();
        state.apply(new);
        let stacks = Stacks::new(&state);
        let shown: Vec<_> =
            stacks.groups.iter().map(|it| (it.who.as_str(), it.has_continued)).collect();
        assert_eq!(shown, [("1", true), ("0, 2", false), ("3", true)]);
        assert_eq!(stacks.unknown, "");
    }
}
