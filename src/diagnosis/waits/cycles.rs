//! Cycles of stuck ranks.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use crate::waits::Blocked;

/// Maximum number of waits that are followed in all searches of one evaluation. Ranks whose search would exceed it are in
/// no cycle that is found.
const MAX_STEPS: usize = 1 << 24;
/// No vertex.
const NONE: usize = usize::MAX;

/// The shortest cycle through each knot of stuck ranks.
pub(super) fn shortest(
    blocked: &BTreeMap<u32, Vec<Blocked>>,
    stuck: &BTreeSet<u32>,
) -> Vec<Vec<Blocked>> {
    let edge = |from: u32, to: u32| {
        blocked[&from].iter().find(|thread| thread.needs.contains(&to)).cloned()
    };
    let mut search = Search::new(Graph::new(blocked, stuck));
    let mut used: BTreeSet<u32> = BTreeSet::new();
    let mut found: Vec<Vec<u32>> =
        (0..stuck.len()).filter_map(|start| search.shortest_cycle(start)).collect();
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

/// The waits of stuck ranks, which are numbered in ascending order. Each rank leads to its lists of needs, and these to
/// ranks, so that ranks that wait for the same members share their edges.
struct Graph {
    ranks: Vec<u32>,
    /// Lists of each rank.
    lists: Vec<Vec<usize>>,
    /// Stuck members of each list, ascending.
    members: Vec<Vec<usize>>,
}

impl Graph {
    fn new(blocked: &BTreeMap<u32, Vec<Blocked>>, stuck: &BTreeSet<u32>) -> Self {
        let ranks: Vec<u32> = stuck.iter().copied().collect();
        let mut members: Vec<Vec<usize>> = Vec::new();
        let mut known: HashMap<usize, usize> = HashMap::new();
        let mut list = |thread: &Blocked| {
            *known.entry(thread.needs.as_ptr().addr()).or_insert_with(|| {
                let places = thread.needs.iter().filter_map(|it| ranks.binary_search(it).ok());
                members.push(places.collect());
                members.len() - 1
            })
        };
        let lists =
            ranks.iter().map(|rank| blocked[rank].iter().map(&mut list).collect()).collect();
        Self { lists, members, ranks }
    }

    /// Whether a rank waits for another one, or for itself.
    fn needs(&self, rank: usize, needed: usize) -> bool {
        self.lists[rank].iter().any(|it| self.members[*it].binary_search(&needed).is_ok())
    }

    /// The knot of each rank, a strongly connected component, and the number of ranks in each: Tarjan's algorithm, without
    /// recursion. A list of needs is a vertex of its own, behind the ranks.
    fn knots(&self) -> (Vec<usize>, Vec<usize>) {
        let ranks = self.ranks.len();
        let next = |vertex: usize, edge: usize| match vertex.checked_sub(ranks) {
            None => self.lists[vertex].get(edge).map(|list| ranks + list),
            Some(list) => self.members[list].get(edge).copied(),
        };
        let count = ranks + self.members.len();
        let (mut index, mut low) = (vec![NONE; count], vec![0; count]);
        let (mut knots, mut sizes) = (vec![NONE; count], Vec::new());
        let (mut stack, mut next_index) = (Vec::new(), 0);
        for root in 0..ranks {
            let mut path: Vec<(usize, usize)> = Vec::new();
            if index[root] == NONE {
                path.push((root, 0));
            }
            while let Some((vertex, edge)) = path.last_mut() {
                let vertex = *vertex;
                if index[vertex] == NONE {
                    (index[vertex], low[vertex]) = (next_index, next_index);
                    next_index += 1;
                    stack.push(vertex);
                }
                let to = next(vertex, *edge);
                *edge += 1;
                if let Some(to) = to {
                    if index[to] == NONE {
                        path.push((to, 0));
                    } else if knots[to] == NONE {
                        low[vertex] = low[vertex].min(index[to]);
                    }
                    continue;
                }
                path.pop();
                if let Some((before, _)) = path.last() {
                    low[*before] = low[*before].min(low[vertex]);
                }
                if low[vertex] == index[vertex] {
                    let from = stack.iter().rposition(|it| *it == vertex).unwrap_or_default();
                    let all = stack.split_off(from);
                    all.iter().for_each(|it| knots[*it] = sizes.len());
                    sizes.push(all.iter().filter(|it| **it < ranks).count());
                }
            }
        }
        knots.truncate(ranks);
        (knots, sizes)
    }
}

/// Searches for cycles.
struct Search {
    graph: Graph,
    /// See [`Graph::knots`].
    knots: Vec<usize>,
    sizes: Vec<usize>,
    /// Ranks on a cycle that was found, none of which needs another rank of its knot.
    done: Vec<bool>,
    /// The rank that led to each rank in the search that `reached` names, and that to each list.
    came_from: Vec<usize>,
    reached: Vec<usize>,
    followed: Vec<usize>,
    /// Number of waits that may still be followed.
    steps: usize,
}

impl Search {
    fn new(graph: Graph) -> Self {
        let (knots, sizes) = graph.knots();
        let (ranks, lists) = (graph.ranks.len(), graph.members.len());
        Self {
            graph,
            knots,
            sizes,
            done: vec![false; ranks],
            came_from: vec![NONE; ranks],
            reached: vec![NONE; ranks],
            followed: vec![NONE; lists],
            steps: MAX_STEPS,
        }
    }

    /// Breadth-first search from a rank back to itself, within its knot.
    fn shortest_cycle(&mut self, start: usize) -> Option<Vec<u32>> {
        let knot = self.knots[start];
        if self.done[start] || self.sizes[knot] == 1 && !self.graph.needs(start, start) {
            return None;
        }
        let mut queue = VecDeque::from([start]);
        while let Some(rank) = queue.pop_front() {
            if self.graph.needs(rank, start) {
                let mut path = vec![rank];
                while path[path.len() - 1] != start {
                    path.push(self.came_from[path[path.len() - 1]]);
                }
                path.reverse();
                self.note(&path);
                return Some(path.into_iter().map(|it| self.graph.ranks[it]).collect());
            }
            for &list in &self.graph.lists[rank] {
                if std::mem::replace(&mut self.followed[list], start) == start {
                    continue;
                }
                let members = &self.graph.members[list];
                self.steps = self.steps.checked_sub(members.len())?;
                for &needed in members {
                    let is_new = needed != start && self.reached[needed] != start;
                    if is_new && self.knots[needed] == knot {
                        (self.reached[needed], self.came_from[needed]) = (start, rank);
                        queue.push_back(needed);
                    }
                }
            }
        }
        None
    }

    /// Notes a cycle that is the only one of each of its ranks: all of them would find it again.
    fn note(&mut self, path: &[usize]) {
        let knot = self.knots[path[0]];
        let is_only = |rank: &usize| {
            let lists = self.graph.lists[*rank].iter();
            let mut needed =
                lists.flat_map(|it| &self.graph.members[*it]).filter(|it| self.knots[**it] == knot);
            let first = needed.next();
            needed.all(|it| Some(it) == first)
        };
        if path.len() == self.sizes[knot] && path.iter().all(is_only) {
            path.iter().for_each(|it| self.done[*it] = true);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ddp_doctor_proto::Op;

    use super::*;
    use crate::model::GroupId;
    use crate::testing::call;

    type Waits = BTreeMap<u32, Vec<Blocked>>;

    fn graph(lists: impl IntoIterator<Item = (u32, Vec<u32>)>) -> Waits {
        let call = Arc::new(call(Op::AllReduce));
        let mut shared: HashMap<Vec<u32>, Arc<[u32]>> = HashMap::new();
        let mut graph = Waits::new();
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
    fn by_every_wait(graph: &Waits, start: u32) -> Option<Vec<u32>> {
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
            let mut search = Search::new(Graph::new(&graph, &stuck));
            for (place, &rank) in stuck.iter().enumerate() {
                let found = search.shortest_cycle(place);
                // Those of a cycle that was found are left out.
                if found.is_some() || !search.done[place] {
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
