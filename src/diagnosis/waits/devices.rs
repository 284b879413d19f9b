//! Programs that wait for a device whose current call other ranks have not made.
//!
//! Calls on NCCL, and waits for them, return at once: a stream waits, and the program blocks at the
//! first line that needs a result. If two captures of stacks show it at such a line
//! ([`device::is_waited_for`]) or in PyTorch's functions for collectives, or if it does not return
//! from NCCL itself, it is assumed to wait for its first call that cannot be complete. This proves
//! nothing: the device may be busy with something else.

use ddp_doctor_proto::report::Timestamp;

use crate::input::event::CallId;
use crate::model::Side;
use crate::stacks;
use crate::waits::device;
use crate::waits::{Blocked, Missing, ProcessAt, for_message, for_others};

impl ProcessAt<'_> {
    /// The wait of a process that is inside no recorded call or wait.
    pub(super) fn blocked_by_device(&self) -> Option<Blocked> {
        let Self { model, now, process, .. } = *self;
        if process.threads.values().any(|it| it.is_under_way()) {
            return None;
        }
        let timing = &model.timing;
        let within =
            process.threads.values().find_map(|it| it.within_since(now, timing.uncertain_wait));
        let inside =
            within.or_else(|| stacks::unseen_call(process, timing).map(|_| process.last_at));
        if inside.is_none() && !device::is_waited_for(process, timing) {
            return None;
        }
        let first = self.first_open(inside);
        // All its messages met their partners, one of which may be in a launch with an open message.
        let behind = || self.behind_partner(process.last_call.as_ref()?);
        let blocked = first.or_else(behind)?;
        Some(Blocked {
            certain: false,
            only_thread: false,
            recorded: false,
            came_back: within.is_none(),
            ..blocked
        })
    }

    /// The first call that cannot be complete. Messages without a recorded wait count if they were
    /// issued before the process entered what it is `inside`.
    fn first_open(&self, inside: Option<Timestamp>) -> Option<Blocked> {
        let Self { model, now, process, rank } = *self;
        let mut found: Vec<(CallId, Blocked)> = Vec::new();
        for group in process.groups().map(|id| model.group(id)) {
            let from = group.first_open().unwrap_or(u64::MAX);
            let mut joins = group.joins.range(from..);
            let collective = joins.find_map(|(&seq, join)| {
                let joined = join.calls.get(&rank)?;
                let on_device = !group.holds_threads(joined.call.op) && joined.is_awaited();
                on_device
                    .then(|| for_others(model, group.id, seq, rank, now, &mut Missing::new()))?
            });
            found.extend(collective.map(|it| (it.call.id, it)));
            let lones = group.traffic.open().filter(|unmatched| unmatched.rank == rank).filter(
                |unmatched| {
                    let call = &unmatched.joined.call;
                    let is_complete = call.on_stream.is_some() && unmatched.joined.is_done();
                    !group.holds_threads(call.op)
                        && !is_complete
                        && (unmatched.is_awaited()
                            || inside.is_some_and(|inside| call.at <= inside))
                },
            );
            let messages = lones.filter_map(|unmatched| {
                let at = unmatched.joined.call.at;
                for_message(model, group.id, unmatched, at, now)
            });
            found.extend(messages.map(|it| (it.call.id, it)));
        }
        // A small send may be complete: calls that surely block the device come first.
        let sends = |it: &Blocked| {
            it.message.as_ref().is_some_and(|unmatched| unmatched.side == Side::Send)
        };
        let first = found.into_iter().min_by_key(|(id, it)| (sends(it), *id));
        first.map(|(_, blocked)| blocked)
    }
}
