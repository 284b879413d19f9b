//! The waits of a thread for DDP's buckets. They are recorded once they are over, if at all.

use std::time::Duration;

use ddp_doctor_proto::report::Timestamp;

use crate::input::event::{Call, CallId};
use crate::model::{Averaged, Buckets};

/// DDP's buckets that a thread has issued, and its earlier waits for buckets.
#[derive(Clone, Debug, Default)]
pub struct BucketWaits {
    /// Buckets issued since the last wait …
    sent: Buckets,
    /// … and the last of them.
    last_sent: Option<(CallId, Timestamp)>,
    /// Number of buckets of the last backward pass, if the one before had as many.
    usual: Option<u32>,
    /// Number of buckets of the last backward pass.
    before: u32,
    /// The longest time from the last bucket of a backward pass to the end of the wait.
    pub longest: Duration,
}

impl BucketWaits {
    pub(super) fn issued(&mut self, call: &Call) {
        self.sent.calls += 1;
        self.sent.bytes += call.bytes().unwrap_or(0);
        self.last_sent = Some((call.id, call.at));
    }

    /// Whether the next bucket is the last one before DDP waits, as in the last two backward passes.
    pub(super) fn is_next_the_last(&self) -> bool {
        self.usual == Some(self.sent.calls + 1)
    }

    /// The thread has waited for its buckets. Returns the last of them, with the wait; `None`: no
    /// bucket was recorded before the wait.
    pub(super) fn averaged(
        &mut self,
        from: Timestamp,
        to: Timestamp,
    ) -> Option<(CallId, Averaged)> {
        let buckets = std::mem::take(&mut self.sent);
        self.usual = Some(buckets.calls).filter(|&calls| calls == self.before);
        self.before = buckets.calls;
        let (last, at) = self.last_sent.take().filter(|(_, at)| *at <= from)?;
        self.longest = self.longest.max(to.since(at));
        Some((last, Averaged { buckets, from, to }))
    }
}
