//! Contents of calls as reported by the layer below: NCCL, for calls of c10d.
//!
//! They are reported once a call is under way. By then every member may have arrived, and all calls
//! may agree as far as c10d shows. So a join is kept until the contents of its calls are reported,
//! or the calls have returned.

use std::sync::Arc;

use crate::input::backends::Completion;
use crate::input::event::{Call, LowerCall};
use crate::model::group::Group;
use crate::model::{Join, JoinedCall, Wait};

impl Group {
    /// Adds the contents of a member's call. Returns the call with them; `None` if the call is not
    /// kept.
    pub(in crate::model) fn set_lower_call(
        &mut self,
        rank: u32,
        seq: u64,
        lower_call: &Arc<LowerCall>,
    ) -> Option<Arc<Call>> {
        let entered = self.entered.contains_key(&seq);
        let join = self.any_join_mut(seq)?;
        let joined = join.calls.get_mut(&rank)?;
        let call = Arc::new(joined.call.made_of(lower_call));
        joined.call = Arc::clone(&call);
        join.meet(&call);
        if join.mismatch.is_some() {
            self.diverged = Some(self.diverged.map_or(seq, |at| at.min(seq)));
            if let Some(join) = self.entered.remove(&seq) {
                self.joins.insert(seq, join);
            }
        } else if entered {
            self.leave_if_done(seq);
        }
        Some(call)
    }

    /// Removes an entered collective once no further event is expected for it.
    pub(super) fn leave_if_done(&mut self, seq: u64) {
        let are_reported = self.has_lower_calls();
        let join = self.entered.get_mut(&seq);
        let done = join.is_some_and(|join| !join.update_pending(|it| it.is_expected(are_reported)));
        if done && let Some(join) = self.entered.remove(&seq) {
            self.leave(seq, join);
        }
    }

    /// Removes the collective before this one if every rank has returned from it and gone on: a thread
    /// that waits separately for a synchronous call does so before its next call.
    pub(super) fn leave_if_over(&mut self, seq: u64, next: &Join) {
        let Some((&before, join)) = self.entered.range(..seq).next_back() else { return };
        let are_reported = self.has_lower_calls();
        let is_over = |(rank, it): (&u32, &JoinedCall)| {
            let next = next.calls.get(rank);
            let went_on = next.is_some_and(|next| next.call.thread == it.call.thread);
            let returned = it.returned.is_some() && it.wait == Wait::NotSeen && !it.call.is_async;
            let held = self.holds_threads(it.call.op);
            !it.is_expected(are_reported) || held && returned && went_on && !it.is_under_way()
        };
        if join.calls.iter().all(is_over)
            && let Some(join) = self.entered.remove(&before)
        {
            self.leave(before, join);
        }
    }

    /// Whether a layer below may report on calls of the group.
    pub(in crate::model) fn has_lower_calls(&self) -> bool {
        &*self.info.key.layer == "c10d" && self.backend.completion != Completion::AtWait
    }
}

impl JoinedCall {
    /// Whether further events are expected: the end of a wait, the completion, or the contents, if
    /// those are reported at all (`are_reported`).
    pub(super) fn is_expected(&self, are_reported: bool) -> bool {
        let undescribed = are_reported && self.call.lower_call.is_none() && self.returned.is_none();
        // Of DDP's own waits, only the end of the one for all buckets is recorded.
        let unheard = if self.call.hidden { self.in_backward } else { !self.is_done() };
        undescribed || unheard || self.is_under_way()
    }

    /// Whether its device has completed it. NCCL's own calls are waited for by streams only.
    pub fn is_complete_on_device(&self) -> bool {
        match self.call.lower_call {
            Some(_) => self.complete,
            None => self.call.on_stream.is_some(),
        }
    }

    /// Whether its completion is still to be reported.
    pub const fn is_under_way(&self) -> bool {
        self.followed && !self.complete
    }
}
