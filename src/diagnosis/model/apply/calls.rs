//! Events about calls and waits.

use std::sync::Arc;

use ddp_doctor_proto::Op;
use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_proto::vocabulary::NCCL_LAYER;

use crate::input::event::{Call, CallId, Event, ProcessId, ThreadId};
use crate::model::ids::{GroupId, Target};
use crate::model::process::Doing;
use crate::model::{Model, Wait};

impl Model {
    /// Takes an event about calls or waits; returns any other one.
    pub(super) fn apply_calls(&mut self, event: Event) -> Option<Event> {
        match event {
            Event::Issued { process, call } => self.issued(process, &call),
            Event::Returned { process, thread, call, followed, at } => {
                self.returned(process, thread, call, followed, at);
            }
            Event::WaitBegin { process, thread, call, place, at } => {
                let process = self.processes.get_mut(&process)?;
                // `None`: it waits for a device, or for an unknown call.
                let target = process.wait_begin(thread, call, place, at);
                let rank = process.rank?;
                self.set_wait(rank, target?, Wait::Since(at), false);
            }
            Event::WaitEnd { process, thread, call, at } => {
                let process = self.processes.get_mut(&process)?;
                let target = process.wait_end(thread, call, at);
                let failed = process.threads.get(&thread).and_then(|it| it.failed);
                let (rank, target) = (process.rank?, target?);
                let failed = failed.is_some_and(|(it, _, over)| it == target && over == at);
                self.completed(rank, target);
                self.wait_over(rank, target, failed, at);
            }
            Event::Completed { process, call, at } => self.call_completed(process, call, at),
            Event::LowerCall { process, call, lower_call, at } => {
                let process = self.processes.get_mut(&process)?;
                let Some(Target::Join(id, seq)) = process.target(call) else { return None };
                let group = &mut self.groups[id.0 as usize];
                let call = group.set_lower_call(process.rank?, seq, &lower_call)?;
                process.set_lower_call(&call, at);
            }
            Event::Within { process, thread, function, at } => {
                let process = self.recorded(process, at)?;
                process.has_lower_calls = true;
                process.thread(thread, at).within = function.map(|function| (function, at));
            }
            Event::Transfer { process, call, transfer, standing, at } => {
                self.processes.get_mut(&process)?.transfer(call, transfer, standing, at);
            }
            Event::Unawaited { process, call: _, op, group, place, at } => {
                let process = self.recorded(process, at)?;
                process.unawaited(op, group?, place?, at);
            }
            other => return Some(other),
        }
        None
    }

    /// A call returned to the program.
    fn returned(
        &mut self,
        process: ProcessId,
        thread: ThreadId,
        call: CallId,
        followed: bool,
        at: Timestamp,
    ) {
        let Some(process) = self.processes.get_mut(&process) else { return };
        if let Some(Doing::Call(inside)) = process.threads.get(&thread).map(|it| &it.doing)
            && inside.id == call
            && (inside.op == Op::InitProcessGroup
                || process.init.as_ref().is_some_and(|it| it.call.id == call))
        {
            self.world_joined.get_or_insert(at);
        }
        process.returned(thread, call, at);
        if followed {
            process.follow(call);
        }
        let target = process.target(call);
        let (Some(rank), Some(Target::Join(id, seq))) = (process.rank, target) else { return };
        self.arrivals.set_returned(rank, Target::Join(id, seq), at);
        let group = &mut self.groups[id.0 as usize];
        if followed && group.has_lower_calls() {
            group.change(rank, seq, |it| it.followed = true);
        }
        if seq == 0 {
            group.made(rank, at);
        } else if let Some(call) = group.set_returned(rank, seq, at) {
            self.waited(id, rank, &call, at);
        }
    }

    /// A wait of a rank ended; its length counts at the place of the call.
    fn wait_over(&mut self, rank: u32, target: Target, failed: bool, at: Timestamp) {
        if let Some(call) = self.set_wait(rank, target, Wait::Over(at), failed) {
            self.waited(target.group(), rank, &call, at);
        }
    }

    /// A call completed on its device or in the background.
    fn call_completed(&mut self, process: ProcessId, call: CallId, at: Timestamp) {
        let Some(process) = self.processes.get_mut(&process) else { return };
        let complete = process.completed(call, at).into_iter();
        let targets: Vec<Target> = complete.filter_map(|it| process.target(it)).collect();
        let Some(rank) = process.rank else { return };
        for target in targets {
            self.completed(rank, target);
            if let Target::Join(id, seq) = target {
                self.groups[id.0 as usize].change(rank, seq, |it| it.complete = true);
            }
            // Waits on a device are not recorded: completion ends them.
            if &*self.group(target.group()).info.key.layer == NCCL_LAYER {
                self.wait_over(rank, target, false, at);
            }
        }
    }

    fn issued(&mut self, id: ProcessId, call: &Arc<Call>) {
        if call.op.creates_group() {
            self.creates(id, call);
            return;
        }
        let member = call.group.as_ref().and_then(|group| self.membership(id, group));
        let mut target = None;
        if let Some((group_id, rank)) = member {
            let group = &mut self.groups[group_id.0 as usize];
            let process = &self.processes[&id];
            // Stacks do not name the operation of every wait.
            let is_unnamed = call.op == Op::Unspecified && process.is_attached();
            if (call.op.is_collective() || is_unnamed) && call.seq > 0 {
                let in_backward = process.is_last_bucket(call);
                target = Some(Target::Join(group_id, call.seq));
                let waited = group.issue(rank, call, &process.turns, in_backward);
                for completed in group.completed.drain(..) {
                    self.arrivals.add(completed);
                }
                for (rank, call, last) in waited {
                    self.waited(group_id, rank, &call, last);
                }
            } else if call.op.is_point_to_point()
                && let Some((post, matched)) = group.traffic.issue(rank, call)
            {
                target = Some(Target::Message(group_id, post));
                if let Some([send, receive]) = &matched {
                    self.arrivals.messaged(group_id, send, receive);
                    self.waited(group_id, send.rank, &send.call, receive.call.at);
                    self.waited(group_id, receive.rank, &receive.call, send.call.at);
                }
            }
        }
        if let Some(process) = self.processes.get_mut(&id) {
            process.issued(call, target);
        }
    }

    /// The wait of a member for its peers lasted at least until `last`.
    pub(super) fn waited(&mut self, group: GroupId, rank: u32, call: &Call, last: Timestamp) {
        let member = self.groups[group.0 as usize].members.get(&rank);
        let process = member.and_then(|member| self.processes.get_mut(&member.process));
        if let (Some(process), Some(place)) = (process, call.place.clone()) {
            let waited = last.since(call.at).as_nanos() as u64;
            process.places.waited(&place, waited);
        }
    }

    /// Updates the wait of a rank. Returns the call if its whole wait is known now.
    pub(super) fn set_wait(
        &mut self,
        rank: u32,
        target: Target,
        wait: Wait,
        failed: bool,
    ) -> Option<Arc<Call>> {
        self.arrivals.set_wait(rank, target, wait);
        let group = &mut self.groups[target.group().0 as usize];
        match target {
            Target::Join(_, seq) => group.set_wait(rank, seq, wait, failed),
            Target::Message(_, post) => {
                group.traffic.set_wait(&post, wait);
                None
            }
        }
    }

    fn completed(&mut self, rank: u32, target: Target) {
        if let Target::Join(group, seq) = target
            && let Some(member) = self.groups[group.0 as usize].members.get_mut(&rank)
        {
            member.completed = member.completed.max(seq);
        }
    }
}
