//! Waits between ranks: cycles, then ranks that block others without waiting themselves.

use std::collections::{BTreeMap, BTreeSet};

use ddp_doctor_proto::words::{self, brief, plain};

use crate::sources::Sources;
use crate::state::{RankView, State};
use crate::theme::Tone;

/// Maximum number of ranks shown that block others without waiting themselves.
const MAX_BLOCKERS: usize = 32;
/// Maximum depth of a chain of waits shown.
const MAX_DEPTH: usize = 8;
/// Maximum number of lines.
const MAX_LINES: usize = 1024;

/// The waits between ranks, as lines.
#[derive(Debug)]
pub(crate) struct Waits(pub(crate) Vec<Row>);

/// A line about some ranks.
#[derive(Debug)]
pub(crate) struct Row {
    /// Text before the ranks.
    pub(crate) lead: String,
    /// The ranks.
    pub(crate) who: String,
    /// Tone of the ranks.
    pub(crate) tone: Tone,
    /// Text after the ranks.
    pub(crate) what: String,
}

/// Ranks that wait for a rank, by that rank.
type Waiters = BTreeMap<u32, Vec<u32>>;

impl Waits {
    pub(crate) fn new(state: &State, sources: &Sources) -> Self {
        let mut waiters = Waiters::new();
        for view in state.ranks.iter() {
            for &other in &view.detail.waits_for {
                waiters.entry(other).or_default().push(view.rank());
            }
        }
        let mut rows = Vec::new();
        let mut shown = BTreeSet::new();
        if let Some(cycle) = cycle(state) {
            rows.push(row("", "these wait for each other:", Tone::Bad, String::new()));
            let last = cycle.len() - 1;
            for (place, &rank) in cycle.iter().enumerate() {
                let lead = match place {
                    0 => "┌▸ ",
                    _ if place == last => "└─ ",
                    _ => "│  ",
                };
                rows.push(row(lead, &name(&[rank]), Tone::Bad, does(state, sources, rank)));
                if place < last {
                    rows.push(row("│    ▾", "", Tone::Dim, String::new()));
                }
            }
            shown.extend(&cycle);
            for &rank in &cycle {
                behind(state, &waiters, rank, 1, &mut shown, &mut rows);
            }
            rows.push(row("", "", Tone::Plain, String::new()));
        }
        let waits = |rank: &u32| {
            let view = state.ranks.get(*rank);
            view.is_some_and(|view| !view.detail.waits_for.is_empty())
        };
        let mut ends: Vec<u32> = waiters.keys().copied().filter(|it| !waits(it)).collect();
        ends.sort_by_key(|rank| (std::cmp::Reverse(waiters[rank].len()), *rank));
        for rank in ends.into_iter().take(MAX_BLOCKERS) {
            if !shown.insert(rank) {
                continue;
            }
            rows.push(row("", &name(&[rank]), Tone::Bad, does(state, sources, rank)));
            behind(state, &waiters, rank, 1, &mut shown, &mut rows);
            rows.push(row("", "", Tone::Plain, String::new()));
        }
        rows.extend(others(state, &shown));
        rows.truncate(MAX_LINES);
        Self(rows)
    }
}

fn row(lead: &str, who: &str, tone: Tone, what: String) -> Row {
    Row { lead: lead.to_owned(), who: who.to_owned(), tone, what }
}

/// Ranks that wait although no rank is known to be missing: their calls do not match, or they wait
/// for something other than a rank.
fn others(state: &State, shown: &BTreeSet<u32>) -> Vec<Row> {
    let mut parties: BTreeMap<String, (Vec<u32>, Option<u64>)> = BTreeMap::new();
    for view in state.ranks.iter() {
        if let Some(waited) = view.waited_ms()
            && view.detail.waits_for.is_empty()
            && !shown.contains(&view.rank())
        {
            let (ranks, longest) = parties.entry(call(view)).or_default();
            ranks.push(view.rank());
            *longest = (*longest).max(Some(waited));
        }
    }
    let mut rows = Vec::new();
    if !parties.is_empty() {
        let text = "these wait although no rank is missing from their calls:";
        rows.push(row("", text, Tone::Warn, String::new()));
    }
    for (call, (ranks, waited)) in parties {
        let what = format!("  {call}{}", lasting(waited));
        rows.push(row("   ", &name(&ranks), Tone::Strong, what));
    }
    rows
}

/// The ranks that wait for a rank, equal waits grouped, and the ranks that wait for them in turn.
fn behind(
    state: &State,
    waiters: &Waiters,
    rank: u32,
    depth: usize,
    shown: &mut BTreeSet<u32>,
    rows: &mut Vec<Row>,
) {
    if depth > MAX_DEPTH || rows.len() >= MAX_LINES {
        return;
    }
    let mut parties: BTreeMap<String, (Vec<u32>, Option<u64>)> = BTreeMap::new();
    let its = waiters.get(&rank).into_iter().flatten();
    for &waiter in its.filter(|&waiter| !shown.contains(waiter)) {
        let Some(view) = state.ranks.get(waiter) else {
            continue;
        };
        let (ranks, waited) = parties.entry(call(view)).or_default();
        ranks.push(waiter);
        *waited = (*waited).max(view.waited_ms());
    }
    for (ranks, _) in parties.values() {
        shown.extend(ranks);
    }
    let lead = format!("{}└─ ", "   ".repeat(depth));
    for (call, (ranks, waited)) in parties {
        let what =
            format!("  wait{} {call}{}", if ranks.len() == 1 { "s" } else { "" }, lasting(waited));
        rows.push(row(&lead, &name(&ranks), Tone::Strong, what));
        for rank in ranks {
            behind(state, waiters, rank, depth + 1, shown, rows);
        }
    }
}

fn name(ranks: &[u32]) -> String {
    match ranks {
        [rank] => format!("rank {rank}"),
        _ => format!("ranks {}", words::rank_list(ranks)),
    }
}

/// " for 1.2 s", if the duration is known.
fn lasting(ms: Option<u64>) -> String {
    ms.map(|ms| format!(" for {}", brief(ms))).unwrap_or_default()
}

/// The call of a rank: "in all_reduce #2 of the default group".
fn call(view: &RankView) -> String {
    let Some(waiting) = &view.status.waiting_in else {
        return "since just now".into();
    };
    let seq = waiting.seq.map(|seq| format!(" #{seq}"));
    let group = words::of_group(&waiting.group);
    format!("in {}{}{group}", plain(&waiting.op), seq.unwrap_or_default())
}

/// State, phase and call site of a rank.
fn does(state: &State, sources: &Sources, rank: u32) -> String {
    let Some(view) = state.ranks.get(rank) else {
        return String::new();
    };
    let doing = match &view.status.waiting_in {
        Some(waiting) => {
            format!("waits {}{}", call(view), lasting(waiting.waited_ms))
        }
        None if !view.detail.waits_for.is_empty() => "waits since just now".into(),
        None => view.state.word().to_owned(),
    };
    let place = view.status.place.as_ref().map(|it| format!(", {}", sources.shown(it, 40)));
    let phase = match view.detail.phase.as_str() {
        "" => String::new(),
        phase => format!(", in {}", plain(phase)),
    };
    format!("  {doing}{phase}{}", place.unwrap_or_default())
}

/// The first cycle of waits found, beginning with its lowest rank.
fn cycle(state: &State) -> Option<Vec<u32>> {
    let next = |rank: u32, edge: usize| -> Option<u32> {
        state.ranks.get(rank)?.detail.waits_for.get(edge).copied()
    };
    let mut done = BTreeSet::new();
    for view in state.ranks.iter() {
        let mut path: Vec<(u32, usize)> = vec![(view.rank(), 0)];
        let mut on_path = BTreeSet::from([view.rank()]);
        while let Some((rank, edge)) = path.last_mut() {
            let to = next(*rank, *edge);
            *edge += 1;
            match to {
                None => {
                    done.insert(*rank);
                    on_path.remove(rank);
                    path.pop();
                }
                Some(to) if on_path.contains(&to) => {
                    let from = path.iter().position(|(rank, _)| *rank == to)?;
                    let mut ring: Vec<u32> = path[from..].iter().map(|it| it.0).collect();
                    let lowest = (0..ring.len()).min_by_key(|&at| ring[at])?;
                    ring.rotate_left(lowest);
                    return Some(ring);
                }
                Some(to) if !done.contains(&to) => {
                    on_path.insert(to);
                    path.push((to, 0));
                }
                Some(_) => {}
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::testing::{rank, update};
    use ddp_doctor_proto::viewer::RankDetail;

    fn state(waits: &[(u32, &[u32])]) -> State {
        let mut new = update(1, (0..8).map(|it| rank(it, "waiting", 1)).collect());
        for &(rank, waits_for) in waits {
            new.details.push(RankDetail {
                rank,
                waits_for: waits_for.to_vec(),
                ..Default::default()
            });
        }
        let mut state = State::default();
        state.apply(new);
        state
    }

    #[test]
    fn cycle_is_found_from_any_start() {
        let state = state(&[(0, &[3]), (3, &[5, 1]), (1, &[2]), (2, &[3]), (4, &[0])]);
        assert_eq!(cycle(&state), Some(vec![1, 2, 3]));
        let state = self::state(&[(0, &[0])]);
        assert_eq!(cycle(&state), Some(vec![0]));
        let state = self::state(&[(0, &[1, 2]), (1, &[2]), (2, &[7])]);
        assert_eq!(cycle(&state), None);
    }

    #[test]
    fn blocking_ranks_come_first_and_ranks_appear_once() {
        let state = state(&[(0, &[7]), (1, &[7]), (2, &[0]), (3, &[2, 7])]);
        let rows: Vec<String> = Waits::new(&state, &Sources::none())
            .0
            .iter()
            .map(|it| format!("{}{}", it.lead, it.who))
            .collect();
        assert_eq!(rows, ["rank 7", "   └─ ranks 0, 1, 3", "      └─ rank 2", ""]);
    }
}
