//! Calls and waits of a process.

use std::collections::VecDeque;
use std::sync::Arc;

use ddp_doctor_proto::report::{Timestamp, Where};
use ddp_doctor_proto::{ExceptionKind, Op};

use crate::input::event::{Call, CallId, GroupInfo, Guard, StalledTransfer, ThreadId, Transfer};
use crate::model::ids::Target;
use crate::model::worlds::Init;
use crate::model::{Averaged, keep_latest};
use crate::timing::Timing;

use super::{Doing, MAX_PLACES, MAX_QUEUED, MAX_STALLED_TRANSFERS, MAX_UNDER_WAY, Process, Thread};

/// Number of collectives whose lines are kept.
const MAX_LINES: usize = 64;

/// Calls of one place that were never waited for.
#[derive(Clone, Debug)]
pub struct Unawaited {
    /// Operation.
    pub op: Op,
    /// Group.
    pub group: Arc<GroupInfo>,
    /// When each of the first few became known.
    pub at: Vec<Timestamp>,
    /// Number of such calls.
    pub count: u64,
}

impl Process {
    /// Whether a thread is inside a call or a wait.
    pub fn is_inside_a_call(&self) -> bool {
        let mut threads = self.threads.values();
        threads.any(|thread| !matches!(thread.doing, Doing::Nothing))
    }

    pub(in crate::model) fn site(
        &mut self,
        place: Arc<Where>,
        caller: Option<Arc<Where>>,
        guards: Arc<[Guard]>,
        reading: bool,
    ) {
        if self.sites.len() >= MAX_PLACES && !self.sites.contains_key(&place) {
            return;
        }
        let site = self.sites.entry(place).or_default();
        // Keep the first caller: it issued the first call at this place.
        site.caller = site.caller.take().or(caller);
        site.reading = reading;
        if !guards.is_empty() || !reading && site.guards.is_none() {
            site.guards = Some(guards);
        }
    }

    pub(in crate::model) fn issued(&mut self, call: &Arc<Call>, target: Option<Target>) {
        if call.op == Op::DestroyProcessGroup {
            self.count_exit_record(call.at);
        } else {
            self.count_record(call.at);
            self.exit = None;
        }
        if call.step > 0 {
            self.begin_steps();
            self.step = self.step.max(call.step);
        } else if self.step == 0
            && call.seq > 0
            && self.repetition.take(call, target.map(|target| target.group()))
        {
            self.memory.restart_steps();
        }
        if call.op == Op::InitProcessGroup {
            let nth = self.init.as_ref().map_or(0, |init| init.nth + 1);
            self.init = Some(Init::begun(nth, call, &self.settings));
        } else if self.init.is_none() && self.last_call.is_none() {
            self.init = Init::of_communicator(call, self.rank, self.world_size, &self.settings);
        }
        let thread = self.thread(call.thread, call.at);
        thread.failed = None;
        thread.last_call = Some(Arc::clone(call));
        let is_of_world = matches!(call.op, Op::InitProcessGroup | Op::DestroyProcessGroup);
        thread.of_the_program |= !call.hidden;
        thread.trains |= !call.hidden && !is_of_world;
        if call.is_bucket() {
            thread.buckets.issued(call);
        }
        if !call.is_async {
            thread.doing = Doing::Call(Arc::clone(call));
        }
        thread.issuing = call.is_async.then(|| Arc::clone(call));
        self.last_call = Some(Arc::clone(call));
        let is_empty = call.op.is_barrier() || matches!(call.op, Op::Broadcast | Op::Scatter);
        if !call.hidden && call.seq > 0 && !is_empty {
            // Only the first of several tensors is recorded.
            let numel = call.numel.filter(|_| call.tensors <= 1);
            self.largest_own = self.largest_own.max(numel.unwrap_or(u64::MAX));
        }
        self.queue(call);
        if let Some(place) = &call.place {
            self.places.issued(place, call);
            if let Some(Target::Join(group, 1..)) = target {
                keep_latest(&mut self.recent_lines, (group, Arc::clone(place)), MAX_LINES);
            }
        }
        if let Some(target) = target {
            // Waits for DDP's own calls are never recorded.
            self.calls.insert(call.id, target, call.is_async && call.hidden);
        }
    }

    /// Appends a call to the queue, if it occupies a stream.
    fn queue(&mut self, call: &Arc<Call>) {
        if call.queued_on().is_some() {
            let kept = if self.followed.is_empty() { MAX_QUEUED } else { MAX_UNDER_WAY };
            while self.queued.len() >= kept {
                let oldest = self.queued.pop_front();
                oldest.map(|call| self.followed.remove(&call.id));
                self.queue_cut = true;
            }
            self.queued.push_back(Arc::clone(call));
        }
    }

    /// Replaces a call by the same call with the contents that the layer below reported.
    pub(in crate::model) fn set_lower_call(&mut self, call: &Arc<Call>, at: Timestamp) {
        self.count_record(at);
        self.has_lower_calls = true;
        let replace = |known: &mut Arc<Call>| {
            if known.id == call.id {
                *known = Arc::clone(call);
            }
        };
        self.last_call.iter_mut().for_each(replace);
        if let Some(thread) = self.threads.get_mut(&call.thread) {
            thread.last_at = at;
            thread.last_call.iter_mut().for_each(replace);
            thread.issuing.iter_mut().for_each(replace);
            if let Doing::Call(known) = &mut thread.doing {
                replace(known);
            }
        }
        self.queue(call);
    }

    pub(in crate::model) fn returned(&mut self, thread: ThreadId, call: CallId, at: Timestamp) {
        self.count_record(at);
        let thread = self.thread(thread, at);
        thread.issuing.take_if(|it| it.id == call);
        if matches!(&thread.doing, Doing::Call(inside) if inside.id == call) {
            thread.doing = Doing::Nothing;
            self.calls.set_over(call);
        }
        if let Some(init) = self.init.as_mut().filter(|init| init.call.id == call) {
            init.over.get_or_insert(at);
        }
    }

    /// A transfer of a call has not moved since `at`, or moves again.
    pub(in crate::model) fn transfer(
        &mut self,
        call: CallId,
        transfer: Transfer,
        standing: Option<StalledTransfer>,
        at: Timestamp,
    ) {
        self.records += 1;
        let key = (call, transfer);
        match standing {
            // Beyond this number, further stalled transfers add no information.
            Some(standing) if self.standing.len() < MAX_STALLED_TRANSFERS => {
                self.standing.insert(key, (standing, at));
            }
            Some(_) => {}
            None => drop(self.standing.remove(&key)),
        }
    }

    /// Whether it is blocked in a call that was issued asynchronously, or was until it ended.
    pub fn is_held_in(&self, call: &Call, now: Timestamp, timing: &Timing) -> bool {
        let thread = self.threads.get(&call.thread);
        let held = thread.and_then(|it| it.held_in(self.seen_until(now), timing));
        held.is_some_and(|it| it.id == call.id)
    }

    /// Stalled transfers of a call, and since when each has not moved.
    pub fn standing_of(
        &self,
        call: CallId,
    ) -> impl Iterator<Item = (Transfer, StalledTransfer, Timestamp)> {
        let of_call = self.standing.iter().filter(move |((of, _), _)| *of == call);
        of_call.map(|((_, transfer), (standing, at))| (*transfer, *standing, *at))
    }

    /// Marks a call and the calls enqueued before it on its stream as complete. Returns those that
    /// were not complete before, oldest first.
    pub(in crate::model) fn completed(&mut self, id: CallId, at: Timestamp) -> Vec<CallId> {
        self.completed_at = self.completed_at.max(Some(at));
        let done = self.queued.iter().find(|call| call.id == id);
        let Some(stream) = done.and_then(|call| call.on_stream).map(|on| on.stream) else {
            self.standing.retain(|(of, _), _| *of != id);
            self.calls.set_over(id);
            return vec![id];
        };
        let is_behind =
            |call: &Arc<Call>| call.id > id || call.on_stream.is_some_and(|on| on.stream != stream);
        let (under_way, done): (VecDeque<Arc<Call>>, VecDeque<Arc<Call>>) =
            std::mem::take(&mut self.queued).into_iter().partition(is_behind);
        let complete: Vec<CallId> = done.iter().map(|call| call.id).collect();
        for id in &complete {
            self.followed.remove(id);
            self.calls.set_over(*id);
        }
        self.standing.retain(|(of, _), _| !complete.contains(of));
        self.queue_cut &= !under_way.is_empty();
        self.queued = under_way;
        complete
    }

    /// The completion of the call will be reported, or already was: then the call is no longer
    /// queued.
    pub(in crate::model) fn follow(&mut self, id: CallId) {
        if self.queued.iter().rev().any(|call| call.id == id) {
            self.followed.insert(id);
        }
    }

    /// A thread begins to wait. Returns the target of the wait, if known.
    pub(in crate::model) fn wait_begin(
        &mut self,
        thread: ThreadId,
        call: Option<CallId>,
        place: Option<Arc<Where>>,
        at: Timestamp,
    ) -> Option<Target> {
        self.count_record(at);
        let target = call.and_then(|call| self.calls.get(call));
        let thread = self.thread(thread, at);
        thread.failed = None;
        (thread.of_the_program, thread.trains) = (true, true);
        thread.issuing = None;
        thread.doing = Doing::Wait(target, at, place);
        target
    }

    /// A wait ends. Returns its target, if known.
    pub(in crate::model) fn wait_end(
        &mut self,
        thread: ThreadId,
        call: Option<CallId>,
        at: Timestamp,
    ) -> Option<Target> {
        self.count_record(at);
        let left = self.latest_exception(ExceptionKind::LeftCollective).map(|it| it.at);
        let thread = self.thread(thread, at);
        let before = std::mem::replace(&mut thread.doing, Doing::Nothing);
        if let Doing::Wait(Some(target), since, _) = before
            && left.is_some_and(|left| left >= since)
        {
            thread.failed = Some((target, since, at));
        }
        let call = call?;
        self.calls.set_over(call);
        self.calls.get(call)
    }

    /// A thread has waited for the buckets that it issued. Returns the place of the last of them,
    /// with the wait; `None`: no bucket was recorded.
    pub(in crate::model) fn averaged(
        &mut self,
        thread: ThreadId,
        from: Timestamp,
        to: Timestamp,
    ) -> Option<(Target, Averaged)> {
        let thread = self.threads.get_mut(&thread)?;
        let (last, averaged) = thread.buckets.averaged(from, to)?;
        Some((self.target(last)?, averaged))
    }

    /// Whether DDP waits for its buckets after this call, as in earlier backward passes.
    pub(in crate::model) fn is_last_bucket(&self, call: &Call) -> bool {
        let thread = self.threads.get(&call.thread);
        call.is_bucket() && thread.is_some_and(|it| it.buckets.is_next_the_last())
    }

    /// The place of a recent call.
    pub fn target(&self, call: CallId) -> Option<Target> {
        self.calls.get(call)
    }

    /// The place of the call that one of its threads is inside, or waits for.
    pub fn target_of(&self, thread: &Thread) -> Option<Target> {
        match &thread.doing {
            Doing::Call(call) => self.target(call.id),
            Doing::Wait(target, ..) => *target,
            Doing::Nothing => None,
        }
    }

    /// The calls that its threads are inside, except for asynchronous ones.
    pub fn entered(&self) -> impl Iterator<Item = &Arc<Call>> {
        self.threads.values().filter_map(|thread| match &thread.doing {
            Doing::Call(call) => Some(call),
            _ => None,
        })
    }

    /// Whether a thread is inside this call.
    pub fn is_inside(&self, call: &Call) -> bool {
        self.entered().any(|inside| inside.id == call.id)
    }

    /// Whether it has issued no call after this one.
    pub fn has_last_issued(&self, call: &Call) -> bool {
        self.last_call.as_ref().is_some_and(|last| last.id == call.id)
    }

    pub(in crate::model) fn unawaited(
        &mut self,
        op: Op,
        group: Arc<GroupInfo>,
        place: Arc<Where>,
        at: Timestamp,
    ) {
        /// Enough to determine since when there have been several.
        const MAX_KEPT: usize = 8;
        if self.unawaited.len() >= MAX_PLACES && !self.unawaited.contains_key(&place) {
            return;
        }
        let known = self.unawaited.entry(place).or_insert_with(|| Unawaited {
            op,
            group,
            at: Vec::new(),
            count: 0,
        });
        known.count += 1;
        if known.at.len() < MAX_KEPT {
            known.at.push(at);
        }
    }

    pub(in crate::model) fn thread(&mut self, id: ThreadId, at: Timestamp) -> &mut Thread {
        let thread = self.threads.entry(id).or_default();
        thread.last_at = at;
        thread
    }
}
