//! Waits of ranks that ended because they took too long.

use std::time::Duration;

use ddp_doctor_proto::report::Timestamp;

use crate::input::transport::is_timeout;
use crate::model::{Exception, Group, JoinedCall, Wait};
use crate::situation::moment::Moment;

impl Moment<'_> {
    /// When an exception ended the wait of a rank in a call, for example in one that a backward made, since it took too
    /// long.
    pub(super) fn has_given_up(
        &self,
        group: &Group,
        rank: u32,
        joined: &JoinedCall,
    ) -> Option<Timestamp> {
        let call = &joined.call;
        let mut raised = self.model.member(group.id, rank)?.exceptions.iter();
        let is_of_wait = |it: &&Exception| {
            it.at >= call.at && it.after_calls >= call.id.0 && is_timeout(&it.text)
        };
        raised.find(|it| it.has_left_a_call() && is_of_wait(it)).map(|it| it.at)
    }

    /// When a rank's wait timed out.
    pub(super) fn timed_out_at(
        &self,
        group: &Group,
        rank: u32,
        joined: &JoinedCall,
    ) -> Option<Timestamp> {
        /// Timers are inexact.
        const ABOUT: Duration = Duration::from_millis(100);
        let process = self.model.member(group.id, rank)?;
        let is_of_wait = |it: &Exception| it.at >= joined.call.at && is_timeout(&it.text);
        let says_so = process.exceptions.iter().any(is_of_wait);
        let given_up = || self.has_given_up(group, rank, joined);
        let over = match joined.wait {
            Wait::Over(at) if group.holds_threads(joined.call.op) => at,
            _ => given_up().or(process.end.map(|end| end.at))?,
        };
        let timeout = group.members.get(&rank)?.timeout;
        let lasted = over.since(joined.call.at).saturating_add(ABOUT);
        let was_too_long = says_so || timeout.is_some_and(|timeout| lasted >= timeout);
        (was_too_long && self.model.is_before_shutdown(over)).then_some(over)
    }
}
