//! Pauses of the follower itself, which is stopped together with the job it belongs to.

use std::time::{Duration, Instant};

use ddp_doctor_proto::report::Timestamp;

/// Minimum gap between two polls that shows that the follower itself was stopped.
const MIN_PAUSE: Duration = Duration::from_secs(1);

/// The last pause.
#[derive(Debug)]
pub(super) struct Pause {
    last_poll: (Instant, Timestamp),
    /// When it began, and when it ended.
    seen: Option<(Timestamp, Instant)>,
}

impl Pause {
    pub(super) fn new() -> Self {
        Self { last_poll: (Instant::now(), Timestamp::now()), seen: None }
    }

    /// Detects a gap since the last poll.
    pub(super) fn detect(&mut self) {
        let (then, at) = self.last_poll;
        let now = Instant::now();
        if now.duration_since(then) >= MIN_PAUSE {
            self.seen = Some((at, now));
        }
        self.last_poll = (now, Timestamp::now());
    }

    /// The start of a pause that has just ended; returned once.
    pub(super) fn take(&mut self) -> Option<Timestamp> {
        let (at, until) = self.seen.take()?;
        (until.elapsed() <= MIN_PAUSE).then_some(at)
    }
}
