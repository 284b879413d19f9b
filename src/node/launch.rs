//! The ranks of one launch that `run` did not start: which black boxes are theirs, and when the launch
//! is over.
//!
//! `run` knows both by its command. Here there are only the boxes. A launch has a world of its own,
//! named in every box; it is over when its ranks are, unless whoever started them lives and may start
//! them again.

use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use ddp_doctor_agent::blackbox::{Identity, Reader};
use ddp_doctor_proto::report::{Exit, Timestamp};

use super::proc;
use super::rank::Rank;
use super::timing::Timing;

/// How long a launch goes on after its last rank where nobody can restart it: some ranks end while
/// others have not joined yet.
const LATECOMER: Duration = Duration::from_secs(1);
/// A dead process whose box nobody has read belongs to this launch if it is not older than that.
const UNREAD: Duration = Duration::from_secs(60);
/// Starters of ranks that are remembered: one for each rank at most.
const MAX_STARTERS: usize = 4096;

/// One launch.
#[derive(Debug)]
pub struct Launch {
    job: String,
    world: String,
    since: Timestamp,
    /// Processes that started ranks, with their start times.
    starters: Vec<(u32, u64)>,
    /// When the last rank ended, if all have.
    over_since: Option<Instant>,
    /// Told the status once it is over.
    over: Sender<i32>,
    restart_window: Duration,
}

impl Launch {
    /// The launch that this box belongs to. `over` is told how it ended, as a shell would put it.
    #[must_use]
    pub fn of(identity: &Identity, over: Sender<i32>, timing: &Timing) -> Self {
        Self {
            job: identity.job.clone(),
            world: identity.world.clone(),
            since: Timestamp::now(),
            starters: Vec::new(),
            over_since: None,
            over,
            restart_window: timing.restart_window,
        }
    }

    /// Whether the box belongs to this launch and nobody follows it already.
    pub fn takes(&mut self, reader: &Reader) -> bool {
        let identity = reader.identity();
        if identity.job != self.job || identity.world != self.world {
            return false;
        }
        let reader = reader.claimed_by();
        if reader.is_some_and(|(pid, start)| proc::is_alive(pid, start)) {
            return false;
        }
        // What a reader has seen of a dead process was an earlier launch of the same name.
        let lives = proc::is_alive(identity.pid, identity.start_ticks);
        let is_fresh = Timestamp(identity.anchor_unix_ns).plus(UNREAD) >= self.since;
        if !lives && (reader.is_some() || !is_fresh) {
            return false;
        }
        self.over_since = None;
        if let Some(starter) = identity.parent_pid.filter(|&pid| pid > 1)
            && self.starters.len() < MAX_STARTERS
            && let Ok(stat) = proc::Stat::of(starter)
            && !self.starters.contains(&(starter, stat.start_ticks))
        {
            self.starters.push((starter, stat.start_ticks));
        }
        true
    }

    /// The status of the launch, once it is over.
    pub fn status(&mut self, ranks: &[Rank], now: Instant) -> Option<i32> {
        if ranks.is_empty() || !ranks.iter().all(Rank::has_ended) {
            self.over_since = None;
            return None;
        }
        let since = *self.over_since.get_or_insert(now);
        let may_restart = self
            .starters
            .iter()
            .any(|&(pid, start)| proc::is_alive(pid, start));
        let patience = if may_restart {
            self.restart_window
        } else {
            LATECOMER
        };
        if now.duration_since(since) < patience {
            return None;
        }
        let statuses = ranks.iter().map(|rank| shell_status(rank.exit()));
        Some(statuses.fold(0, |worst, status| if worst == 0 { status } else { worst }))
    }

    /// Says that it was over with this status.
    pub fn is_over(&self, status: i32) {
        // Nobody asks any more: no harm.
        self.over.send(status).ok();
    }
}

/// As a shell would put it; 0 where nothing is known.
fn shell_status(exit: Exit) -> i32 {
    exit.code
        .or_else(|| exit.signal.map(|signal| 128 + signal))
        .unwrap_or(0)
}
