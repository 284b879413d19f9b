//! Recent calls of a process, and the places that issue them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use ddp_doctor_proto::report::Where;

use crate::input::event::{Call, CallId};
use crate::model::maps::ByNumber;

use super::MAX_PLACES;
use crate::model::ids::{GroupId, Post, Target};

/// Maximum number of calls kept whose waits can still be assigned …
const MAX_CALLS: usize = 4096;
/// … and of those that are over: another wait for them, or their completion, may follow.
const MAX_ENDED_CALLS: usize = 256;

/// Number of places by which the room for them grows: each process has its own, and most have few.
const GROWTH: usize = 8;

/// Targets of recent calls, by call.
#[derive(Debug, Default)]
pub(in crate::model) struct RecentCalls {
    calls: VecDeque<Recent>,
    /// The messages among them. Most calls are collectives.
    posts: BTreeMap<CallId, Post>,
}

#[derive(Debug)]
struct Recent {
    call: CallId,
    /// Sequence number of a collective.
    seq: u64,
    group: GroupId,
    is_message: bool,
    is_over: bool,
}

impl RecentCalls {
    /// The target of a call.
    pub(super) fn get(&self, call: CallId) -> Option<Target> {
        let recent = &self.calls[self.position(call).ok()?];
        Some(if recent.is_message {
            Target::Message(recent.group, *self.posts.get(&call)?)
        } else {
            Target::Join(recent.group, recent.seq)
        })
    }

    /// Adds a call. `is_over`: no wait for it is expected.
    pub(super) fn insert(&mut self, call: CallId, target: Target, is_over: bool) {
        let (seq, post) = match target {
            Target::Join(_, seq) => (seq, None),
            Target::Message(_, post) => (0, Some(post)),
        };
        let recent =
            Recent { call, seq, group: target.group(), is_message: post.is_some(), is_over };
        // Room is made first, so that the capacity does not exceed the limit.
        let is_full = |calls: &VecDeque<Recent>| {
            calls.len() >= MAX_CALLS
                || calls.len() >= MAX_ENDED_CALLS && calls.front().is_some_and(|it| it.is_over)
        };
        while is_full(&self.calls) {
            if let Some(oldest) = self.calls.pop_front().filter(|it| it.is_message) {
                self.posts.remove(&oldest.call);
            }
        }
        if let Some(post) = post {
            self.posts.insert(call, post);
        }
        match self.position(call) {
            Ok(known) => self.calls[known] = recent,
            Err(place) => self.calls.insert(place, recent),
        }
        if self.calls.capacity() > MAX_ENDED_CALLS && self.calls.len() <= MAX_ENDED_CALLS {
            self.calls.shrink_to(MAX_ENDED_CALLS);
        }
    }

    /// The call returned, was waited for or completed.
    pub(super) fn set_over(&mut self, call: CallId) {
        if let Ok(place) = self.position(call) {
            self.calls[place].is_over = true;
        }
    }

    /// The place of a call, or where it is to be inserted.
    fn position(&self, call: CallId) -> Result<usize, usize> {
        self.calls.binary_search_by_key(&call, |recent| recent.call)
    }
}

/// The places at which a process issues calls; a limited number.
#[derive(Debug, Default)]
pub struct Places {
    all: Vec<PlaceUse>,
    /// Indexes by the address of the place, which `all` keeps alive.
    by_address: ByNumber<usize, u32>,
}

#[derive(Debug, Default)]
struct PlaceUse {
    place: Arc<Where>,
    /// Calls of the program.
    own: u64,
    /// Times that the program came to the line for calls of the framework, which makes several at once.
    visits: u64,
    /// Step of the latest of these.
    visited_in: u64,
    /// The first call issued there.
    first: Option<CallId>,
    longest_wait: Option<u64>,
    /// Number of calls before the first one that PyTorch ignored, if it ignored one.
    before_ignored: Option<u64>,
}

impl Places {
    /// The places.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Where>> {
        self.all.iter().map(|used| &used.place)
    }

    /// How often the program made the call at a place. Calls of the framework at that place do not count beside calls
    /// of the program; where there are no others, those of one step count once.
    pub fn calls(&self, place: &Where) -> u64 {
        self.index(place).map_or(0, |index| self.all[index].calls())
    }

    /// Whether all calls at a place are of the framework.
    pub fn is_of_framework(&self, place: &Where) -> bool {
        self.index(place).is_some_and(|index| self.all[index].own == 0)
    }

    /// The first call issued at a place.
    pub fn first_call(&self, place: &Where) -> Option<CallId> {
        self.all[self.index(place)?].first
    }

    /// The longest wait at a place in nanoseconds, in calls that all peers joined: at least until
    /// the last of them arrived, and to the end if that was recorded.
    pub fn longest_wait(&self, place: &Where) -> Option<u64> {
        self.all[self.index(place)?].longest_wait
    }

    /// Whether the process came to a call at this place.
    pub fn contains(&self, place: &Where) -> bool {
        self.index(place).is_some()
    }

    /// Number of calls at a place before the first one that PyTorch ignored because the rank is not in
    /// its group; `None`: it ignored none.
    pub fn before_ignored(&self, place: &Where) -> Option<u64> {
        self.all[self.index(place)?].before_ignored
    }

    pub(super) fn issued(&mut self, place: &Arc<Where>, call: &Call) {
        let Some(used) = self.entry(place) else { return };
        used.first.get_or_insert(call.id);
        if !call.hidden {
            used.own += 1;
        } else if call.step == 0 || call.step != used.visited_in {
            used.visits += 1;
            used.visited_in = call.step;
        }
    }

    pub(super) fn ignored(&mut self, place: &Arc<Where>) {
        if let Some(used) = self.entry(place) {
            let calls = used.calls();
            used.before_ignored.get_or_insert(calls);
        }
    }

    /// The entry of a place; `None`: there is no room for another one.
    fn entry(&mut self, place: &Arc<Where>) -> Option<&mut PlaceUse> {
        let known = self.index(place);
        let index = known.unwrap_or(self.all.len());
        if known.is_none() && index < MAX_PLACES {
            let number = index as u32;
            self.by_address.insert(Arc::as_ptr(place).addr(), number);
            if self.all.len() == self.all.capacity() {
                self.all.reserve_exact(GROWTH);
            }
            self.all.push(PlaceUse { place: Arc::clone(place), ..PlaceUse::default() });
        }
        self.all.get_mut(index)
    }

    pub(in crate::model) fn waited(&mut self, place: &Where, nanoseconds: u64) {
        if let Some(index) = self.index(place) {
            let longest = &mut self.all[index].longest_wait;
            *longest = Some(nanoseconds).max(*longest);
        }
    }

    fn index(&self, place: &Where) -> Option<usize> {
        let known = self.by_address.get(&std::ptr::from_ref(place).addr());
        // Places of one source have one address each, so that this is rare.
        let equal = || self.all.iter().position(|it| *it.place == *place);
        known.map(|&index| index as usize).or_else(equal)
    }
}

impl PlaceUse {
    const fn calls(&self) -> u64 {
        if self.own > 0 { self.own } else { self.visits }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    const fn target(seq: u64) -> Target {
        Target::Join(GroupId(0), seq)
    }

    #[test]
    fn awaited_calls_are_kept_longer_than_calls_that_are_over() {
        let mut calls = RecentCalls::default();
        for id in 0..2 * MAX_CALLS as u64 {
            calls.insert(CallId(id), target(id), true);
        }
        assert_eq!(calls.calls.len(), MAX_ENDED_CALLS);
        let first = 2 * MAX_CALLS as u64;
        for id in first..first + 1000 {
            calls.insert(CallId(id), target(id), false);
        }
        assert_eq!(calls.get(CallId(first)), Some(target(first)));
        for id in first..first + 1000 {
            calls.set_over(CallId(id));
        }
        calls.insert(CallId(first + 1000), target(1), false);
        assert_eq!(calls.calls.len(), MAX_ENDED_CALLS);
        assert_eq!(calls.calls.capacity(), MAX_ENDED_CALLS);
        assert!(size_of::<Recent>() <= 24);
        for id in first + 1001..first + 10_000 {
            calls.insert(CallId(id), target(id), false);
        }
        assert_eq!(calls.calls.len(), MAX_CALLS);
    }

    #[test]
    fn calls_of_the_framework_count_once_per_step() {
        let place = Arc::new(Where { line: 9, ..Where::default() });
        let mut places = Places::default();
        let mut issue = |hidden, step| {
            let call = Call { hidden, step, ..testing::call(ddp_doctor_proto::Op::AllReduce) };
            places.issued(&place, &call);
            places.calls(&place)
        };
        let steps = [1, 1, 1, 2, 2, 3];
        assert_eq!(steps.map(|step| issue(true, step)), [1, 1, 1, 2, 2, 3]);
        assert_eq!(issue(false, 3), 1, "calls of the program are what a person counts");
        assert_eq!([issue(true, 4), issue(false, 4)], [1, 2]);
    }

    #[test]
    fn calls_are_found_in_any_order_of_their_numbers() {
        let mut calls = RecentCalls::default();
        let ids = [5, 3, 9, 30, 8, 12, 40, 7, 1];
        for id in ids {
            calls.insert(CallId(id), target(id), false);
        }
        calls.insert(CallId(9), target(90), false);
        assert_eq!(calls.get(CallId(9)), Some(target(90)));
        let others = ids.iter().filter(|&&id| id != 9);
        assert!(others.into_iter().all(|&id| calls.get(CallId(id)) == Some(target(id))));
        assert_eq!(calls.get(CallId(10)), None);
    }
}
