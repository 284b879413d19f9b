//! Cycles of stuck ranks.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use crate::waits::Blocked;

/// Maximum number of waits that are followed in all searches of one evaluation. Ranks whose search would exceed it are in
/// no cycle that is found.
const MAX_STEPS: usize = 1 << 24;

/// The shortest cycle through each knot of stuck ranks.
pub(super) fn shortest(
    blocked: &BTreeMap<u32, Vec<Blocked>>,
    stuck: &BTreeSet<u32>,
) -> Vec<Vec<Blocked>> {
    let edge =
        |from: u32, to: u32| blocked[&from].iter().find(|thread| needs(&thread.needs, to)).cloned();
    let mut search = Search::new(blocked, stuck);
    let mut used: BTreeSet<u32> = BTreeSet::new();
    let mut found: Vec<Vec<u32>> =
        stuck.iter().filter_map(|&start| search.shortest_cycle(start)).collect();
    found.sort_by_key(|path| (path.len(), path.iter().min().copied()));
    let mut cycles = Vec::new();
    for path in found {
        if path.iter().any(|rank| used.contains(rank)) {
            continue;
        }
        used.extend(&path);
        let next = path.iter().cycle().skip(1);
        let waits: Option<Vec<Blocked>> =
            path.iter().zip(next).map(|(&from, &to)| edge(from, to)).collect();
        cycles.extend(waits.filter(|waits| closed(waits)));
    }
    cycles
}

/// Whether all of these waits were in progress when the last of them began.
fn closed(waits: &[Blocked]) -> bool {
    let last = waits.iter().map(|wait| wait.since).max();
    waits.iter().all(|wait| wait.until.is_none() || wait.until >= last)
}

fn needs(list: &[u32], rank: u32) -> bool {
    list.binary_search(&rank).is_ok()
}

/// Searches for cycles. Each rank leads to its lists of needs, and these to ranks, so that ranks that wait for the same
/// members share their edges.
struct Search<'a> {
    blocked: &'a BTreeMap<u32, Vec<Blocked>>,
    /// The knot of each stuck rank, and the number of ranks in each.
    knots: HashMap<u32, usize>,
    sizes: Vec<usize>,
    /// Ranks on a cycle that was found, none of which needs another rank of its knot.
    done: HashSet<u32>,
    /// Number of waits that may still be followed.
    steps: usize,
}

impl<'a> Search<'a> {
    fn new(blocked: &'a BTreeMap<u32, Vec<Blocked>>, stuck: &BTreeSet<u32>) -> Self {
        let (knots, sizes) = knots(blocked, stuck);
        Self { blocked, knots, sizes, done: HashSet::new(), steps: MAX_STEPS }
    }

    fn lists(&self, rank: u32) -> impl Iterator<Item = &'a Arc<[u32]>> + use<'a> {
        self.blocked[&rank].iter().map(|thread| &thread.needs)
    }

    /// Breadth-first search from a rank back to itself, within its knot.
    fn shortest_cycle(&mut self, start: u32) -> Option<Vec<u32>> {
        let knot = self.knots[&start];
        let needs_itself = || self.lists(start).any(|list| needs(list, start));
        if self.done.contains(&start) || self.sizes[knot] == 1 && !needs_itself() {
            return None;
        }
        let mut came_from: HashMap<u32, u32> = HashMap::new();
        let mut seen = HashSet::new();
        let mut queue = VecDeque::from([start]);
        while let Some(rank) = queue.pop_front() {
            if self.lists(rank).any(|list| needs(list, start)) {
                let mut path = vec![rank];
                while let Some(&before) = came_from.get(&path[path.len() - 1]) {
                    path.push(before);
                }
                path.reverse();
                self.note(&path);
                return Some(path);
            }
            for list in self.lists(rank).filter(|list| seen.insert(list.as_ptr().addr())) {
                self.steps = self.steps.checked_sub(list.len())?;
                for needed in list.iter().filter(|it| self.knots.get(it) == Some(&knot)) {
                    if *needed != start && !came_from.contains_key(needed) {
                        came_from.insert(*needed, rank);
                        queue.push_back(*needed);
                    }
                }
            }
        }
        None
    }

    /// Notes a cycle that is the only one of each of its ranks: all of them would find it again.
    fn note(&mut self, path: &[u32]) {
        let is_only = |rank: u32| {
            let mut needed = self.lists(rank).flat_map(|list| list.iter().copied());
            let first = needed.find(|it| self.knots.get(it) == self.knots.get(&rank));
            needed.all(|it| Some(it) == first || self.knots.get(&it) != self.knots.get(&rank))
        };
        if path.len() == self.sizes[self.knots[&path[0]]] && path.iter().all(|&it| is_only(it)) {
            self.done.extend(path);
        }
    }
}

/// The knots of stuck ranks, the strongly connected components of the graph of waits, and the number of ranks in each.
/// Tarjan's algorithm, without recursion; a list of needs is a vertex of its own.
fn knots(
    blocked: &BTreeMap<u32, Vec<Blocked>>,
    stuck: &BTreeSet<u32>,
) -> (HashMap<u32, usize>, Vec<usize>) {
    let ranks: Vec<u32> = stuck.iter().copied().collect();
    let place = |rank: u32| ranks.binary_search(&rank).ok();
    let mut lists: Vec<&[u32]> = Vec::new();
    let mut known: HashMap<usize, usize> = HashMap::new();
    let mut of_rank: Vec<Vec<usize>> = Vec::with_capacity(ranks.len());
    for rank in &ranks {
        let numbers = blocked[rank].iter().map(|thread| {
            *known.entry(thread.needs.as_ptr().addr()).or_insert_with(|| {
                lists.push(&thread.needs);
                ranks.len() + lists.len() - 1
            })
        });
        of_rank.push(numbers.collect());
    }
    // The vertex to which the edge with this number leads; `Some(None)`: to none that is stuck.
    let next = |vertex: usize, edge: usize| -> Option<Option<usize>> {
        match vertex.checked_sub(ranks.len()) {
            None => of_rank[vertex].get(edge).map(|it| Some(*it)),
            Some(list) => lists[list].get(edge).map(|it| place(*it)),
        }
    };
    let count = ranks.len() + lists.len();
    let (mut index, mut low) = (vec![usize::MAX; count], vec![0; count]);
    let (mut component, mut sizes) = (vec![usize::MAX; count], Vec::new());
    let (mut stack, mut next_index) = (Vec::new(), 0);
    for root in 0..ranks.len() {
        let mut path: Vec<(usize, usize)> = Vec::new();
        if index[root] == usize::MAX {
            path.push((root, 0));
        }
        while let Some((vertex, edge)) = path.last_mut() {
            let vertex = *vertex;
            if *edge == 0 && index[vertex] == usize::MAX {
                (index[vertex], low[vertex]) = (next_index, next_index);
                next_index += 1;
                stack.push(vertex);
            }
            let to = next(vertex, *edge);
            *edge += 1;
            match to {
                Some(None) => {}
                Some(Some(to)) if index[to] == usize::MAX => path.push((to, 0)),
                Some(Some(to)) => {
                    if component[to] == usize::MAX {
                        low[vertex] = low[vertex].min(index[to]);
                    }
                }
                None => {
                    path.pop();
                    if let Some((before, _)) = path.last() {
                        low[*before] = low[*before].min(low[vertex]);
                    }
                    if low[vertex] == index[vertex] {
                        let from = stack.iter().rposition(|it| *it == vertex).unwrap_or_default();
                        let members = stack.split_off(from);
                        sizes.push(members.iter().filter(|it| **it < ranks.len()).count());
                        for member in members {
                            component[member] = sizes.len() - 1;
                        }
                    }
                }
            }
        }
    }
    let knots = ranks.iter().zip(&component).map(|(rank, knot)| (*rank, *knot)).collect();
    (knots, sizes)
}

#[cfg(test)]
mod tests {
    use ddp_doctor_proto::Op;

    use super::*;
    use crate::model::GroupId;
    use crate::testing::call;

    type Graph = BTreeMap<u32, Vec<Blocked>>;

    fn graph(lists: impl IntoIterator<Item = (u32, Vec<u32>)>) -> Graph {
        let call = Arc::new(call(Op::AllReduce));
        let mut shared: HashMap<Vec<u32>, Arc<[u32]>> = HashMap::new();
        let mut graph = Graph::new();
        for (rank, mut list) in lists {
            list.sort_unstable();
            list.dedup();
            let list = shared.entry(list).or_insert_with_key(|it| it.as_slice().into());
            let wait = Blocked::new(rank, (GroupId(0), 1), &call, Arc::clone(list));
            graph.entry(rank).or_default().push(wait);
        }
        graph
    }

    fn ranks(cycles: &[Vec<Blocked>]) -> Vec<Vec<u32>> {
        cycles.iter().map(|cycle| cycle.iter().map(|wait| wait.rank).collect()).collect()
    }

    /// The path from a rank back to itself, by a search that follows every wait.
    fn by_every_wait(graph: &Graph, start: u32) -> Option<Vec<u32>> {
        let mut came_from: BTreeMap<u32, u32> = BTreeMap::new();
        let mut queue = VecDeque::from([start]);
        while let Some(rank) = queue.pop_front() {
            for needed in graph[&rank].iter().flat_map(|thread| thread.needs.iter()) {
                if *needed == start {
                    let mut path = vec![rank];
                    while let Some(&before) = came_from.get(&path[path.len() - 1]) {
                        path.push(before);
                    }
                    path.reverse();
                    return Some(path);
                }
                if graph.contains_key(needed) && !came_from.contains_key(needed) {
                    came_from.insert(*needed, rank);
                    queue.push_back(*needed);
                }
            }
        }
        None
    }

    #[test]
    fn each_search_finds_what_following_every_wait_finds() {
        let mut state = 1_u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        for _ in 0..500 {
            let (ranks, most) = (2 + random(8), 1 + random(4));
            let mut lists = Vec::new();
            for rank in 0..ranks {
                for _ in 0..=random(2) {
                    let list = (0..=random(most)).map(|_| random(ranks + 1) as u32).collect();
                    lists.push((rank as u32, list));
                }
            }
            let graph = graph(lists);
            let stuck: BTreeSet<u32> = graph.keys().copied().collect();
            let mut search = Search::new(&graph, &stuck);
            for &rank in &stuck {
                let found = search.shortest_cycle(rank);
                // Those of a cycle that was found are left out.
                if found.is_some() || !search.done.contains(&rank) {
                    assert_eq!(found, by_every_wait(&graph, rank), "{rank} of {graph:?}");
                }
            }
        }
    }

    #[test]
    fn search_of_a_chain_and_of_a_ring_is_linear() {
        const RANKS: u32 = 20_000;
        let chain = graph((0..RANKS).map(|rank| (rank, vec![rank + 1])));
        let stuck: BTreeSet<u32> = chain.keys().copied().collect();
        assert_eq!(ranks(&shortest(&chain, &stuck)), Vec::<Vec<u32>>::new());
        let ring = graph((0..RANKS).map(|rank| (rank, vec![(rank + 1) % RANKS])));
        let found = ranks(&shortest(&ring, &stuck));
        assert_eq!(found, [(0..RANKS).collect::<Vec<u32>>()]);
    }
}
