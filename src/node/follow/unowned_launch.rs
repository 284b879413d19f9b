//! A launch that `run` did not start: decides which black boxes belong to it, and when it is over.
//!
//! For `run`, both follow from its command; here there are only the boxes. A launch has its own world,
//! which is named in every box. It is over when all its ranks have ended, unless the process that
//! started them is alive and may restart them.

use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use ddp_doctor_agent::blackbox::{Identity, Reader};
use ddp_doctor_host::proc;
use ddp_doctor_proto::report::{Exit, Timestamp};

use crate::follow::rank::Rank;
use crate::timing::Timing;

/// Time that a launch stays open after the end of its last rank if no process can restart it, since
/// some ranks may end before others have joined.
const LATECOMER: Duration = Duration::from_secs(1);
/// Maximum age, at the start of this launch, of an unread box of a dead process that belongs to it.
const UNREAD: Duration = Duration::from_secs(60);
/// Maximum number of starters of ranks: at most one for each rank.
const MAX_STARTERS: usize = 4096;

/// A launch that `run` did not start.
#[derive(Debug)]
pub struct Launch {
    job: String,
    world: String,
    since: Timestamp,
    /// The rank whose box was given, by pid and start time.
    first: (u32, u64),
    /// Processes that started ranks, with their start times.
    starters: Vec<(u32, u64)>,
    /// Time when all ranks were first seen to have ended; `None` while one is running.
    over_since: Option<Instant>,
    /// Receives the status when the launch is over.
    over: Sender<i32>,
    restart_window: Duration,
    /// The directories contain boxes of this launch only, so that those of dead ranks belong to it.
    includes_dead: bool,
}

impl Launch {
    /// The launch that a box belongs to. `over` receives its exit status, as a shell would report
    /// it.
    #[must_use]
    pub fn new(
        identity: &Identity,
        over: Sender<i32>,
        timing: &Timing,
        includes_dead: bool,
    ) -> Self {
        Self {
            job: identity.job.clone(),
            world: identity.world.clone(),
            since: Timestamp::now(),
            first: (identity.pid, identity.start_ticks),
            starters: Vec::new(),
            over_since: None,
            over,
            restart_window: timing.restart_window,
            includes_dead,
        }
    }

    /// Whether the box belongs to this launch and no other process reads it.
    pub fn takes(&mut self, reader: &Reader) -> bool {
        let identity = reader.identity();
        if identity.job != self.job || identity.world != self.world {
            return false;
        }
        let reader = reader.claimed_by();
        let us = std::process::id();
        if reader.is_some_and(|(pid, start)| pid != us && proc::is_alive(pid, start)) {
            return false;
        }
        // A box of a dead process that was read before belongs to an earlier launch with the same
        // name.
        let lives = proc::is_alive(identity.pid, identity.start_ticks);
        let is_fresh = Timestamp(identity.anchor_unix_ns).plus(UNREAD) >= self.since;
        if !lives && !self.includes_dead && (reader.is_some_and(|(pid, _)| pid != us) || !is_fresh)
        {
            return false;
        }
        self.over_since = None;
        if let Some(starter) = identity.parent_pid.filter(|&pid| pid > 1)
            && self.starters.len() < MAX_STARTERS
            && let Ok(stat) = proc::Stat::read(starter)
            && !self.starters.contains(&(starter, stat.start_ticks))
        {
            self.starters.push((starter, stat.start_ticks));
        }
        true
    }

    /// Exit status of the launch once it is over: the first that is not 0, in the order of `ranks`.
    pub fn status(&mut self, ranks: &[Rank], now: Instant) -> Option<i32> {
        // If all boxes are gone, as with their directory, only one rank is known.
        let have_ended = match ranks {
            [] => !proc::is_alive(self.first.0, self.first.1),
            ranks => ranks.iter().all(Rank::has_ended),
        };
        if !have_ended {
            self.over_since = None;
            return None;
        }
        let since = *self.over_since.get_or_insert(now);
        let may_restart = self.starters.iter().any(|&(pid, start)| proc::is_alive(pid, start));
        let patience =
            if may_restart || ranks.is_empty() { self.restart_window } else { LATECOMER };
        if now.duration_since(since) < patience {
            return None;
        }
        let status = |rank: &Rank| shell_status(rank.exit()).unwrap_or(0);
        let statuses = ranks.iter().map(status);
        Some(statuses.fold(0, |worst, status| if worst == 0 { status } else { worst }))
    }

    /// Sends the status of the launch, which is over.
    pub fn report_end(&self, status: i32) {
        // A receiver that is gone no longer needs the status.
        self.over.send(status).ok();
    }
}

/// Exit status as a shell reports it; `None`: unknown.
pub(crate) fn shell_status(exit: Exit) -> Option<i32> {
    exit.code.or_else(|| exit.signal.map(|signal| 128 + signal))
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn launch_whose_boxes_are_gone_ends_with_the_rank_that_is_known() {
        let mut rank = Command::new("sleep").arg("600").spawn().unwrap();
        let window = Duration::from_secs(20);
        let mut launch = Launch {
            job: "job".into(),
            world: "world".into(),
            since: Timestamp::now(),
            first: (rank.id(), proc::Stat::read(rank.id()).unwrap().start_ticks),
            starters: Vec::new(),
            over_since: None,
            over: channel().0,
            restart_window: window,
            includes_dead: false,
        };
        let now = Instant::now();
        assert_eq!(launch.status(&[], now), None);
        assert_eq!(launch.status(&[], now + 2 * window), None, "the rank is alive");
        rank.kill().unwrap();
        rank.wait().unwrap();
        assert_eq!(launch.status(&[], now + 3 * window), None);
        assert_eq!(launch.status(&[], now + 4 * window), Some(0));
    }
}
