//! Processes that will become ranks and have not joined a process group: their state, exit status
//! and stacks.
//!
//! A rank has a black box only once it joins; the reason why it does not join is visible only from
//! outside. The stacks of these processes are therefore captured, ever less often, while another
//! rank has joined. The engine uses them once the other ranks have waited too long.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_proto::v1;
use v1::event::Kind;

use crate::node::follow::rank::Rank;
use crate::node::launch::descendants::ToBeRank;
use crate::node::sample::proc::Watched;
use crate::node::ship::outbox::Outbox;
use crate::node::stacks::taker::{Taker, Wanted};
use crate::node::timing::Timing;

/// Offset of their numbers in requests for stacks, above the numbers of boxes.
const NAMES: u64 = 1 << 32;
/// Number of captures that are compared.
const KEPT: usize = 2;
/// Maximum number of processes that are followed on a node.
const MOST: usize = 4096;

/// All such processes on this node.
#[derive(Debug)]
pub struct StartedRanks {
    started: Vec<Started>,
    capture_interval: Duration,
}

#[derive(Debug)]
struct Started {
    told: v1::RankStarted,
    watched: Watched,
    looks: u32,
    next_look: Instant,
    has_joined: bool,
}

impl StartedRanks {
    /// Creates an empty list.
    #[must_use]
    pub const fn new(timing: &Timing) -> Self {
        Self {
            started: Vec::new(),
            capture_interval: timing.unjoined_capture_interval,
        }
    }

    /// Follows and reports another process.
    pub fn add(&mut self, rank: &ToBeRank, out: &mut Outbox) {
        let Some(watched) = Watched::new(rank.pid, rank.start_ticks) else {
            return;
        };
        if self.started.len() >= MOST {
            return;
        }
        let told = v1::RankStarted {
            pid: rank.pid,
            start_ticks: rank.start_ticks,
            rank: rank.rank,
            world_size: rank.world_size,
            seen_unix_ns: Timestamp::now().0,
            ..v1::RankStarted::default()
        };
        out.push(Kind::RankStarted(told.clone()));
        self.started.push(Started {
            told,
            watched,
            looks: 0,
            next_look: Instant::now() + self.capture_interval,
            has_joined: false,
        });
    }

    /// Descriptors that are readable once one of the processes has ended.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let followed = self.started.iter().filter(|it| it.is_followed());
        followed.filter_map(|it| it.watched.fd().map(AsFd::as_fd))
    }

    /// Detects processes that have joined or ended, and requests stacks of the others.
    pub fn look(&mut self, ranks: &[Rank], now: Instant, stacks: &mut Taker, out: &mut Outbox) {
        let somebody_joined = ranks.iter().any(|rank| !rank.has_ended());
        for started in self.started.iter_mut().filter(|it| it.is_followed()) {
            let pid = started.watched.pid();
            let is_it = |rank: &Rank| rank.watched().is_some_and(|it| it.pid() == pid);
            if ranks.iter().any(is_it) {
                started.has_joined = true;
            } else if started.watched.has_ended() {
                let exit = started.watched.exit();
                started.told.ended_unix_ns = Some(Timestamp::now().0);
                started.told.exit_code = exit.code;
                started.told.exit_signal = exit.signal;
                out.push(Kind::RankStarted(started.told.clone()));
            } else if somebody_joined && now >= started.next_look {
                started.looks += 1;
                started.next_look = now + self.capture_interval * started.looks;
                let wanted = Wanted {
                    process: NAMES + u64::from(pid),
                    pid,
                    start_ticks: started.told.start_ticks,
                };
                stacks.ask(std::iter::once(wanted), false);
            }
        }
    }

    /// Reports stacks of these processes; returns stacks of ranks.
    pub fn stood(&mut self, stacks: v1::Stacks, out: &mut Outbox) -> Option<v1::Stacks> {
        let Some(pid) = stacks.process.checked_sub(NAMES) else {
            return Some(stacks);
        };
        let mut followed = self.started.iter_mut().filter(|it| it.is_followed());
        if let Some(started) = followed.find(|it| u64::from(it.watched.pid()) == pid) {
            if started.told.looks.len() == KEPT {
                started.told.looks.remove(0);
            }
            started.told.looks.push(v1::Stacks {
                process: 0,
                ..stacks
            });
            out.push(Kind::RankStarted(started.told.clone()));
        }
        None
    }

    /// Sends everything again, for a coordinator that may have none of it.
    pub fn repeat(&self, out: &mut Outbox) {
        for started in &self.started {
            out.push_live(Kind::RankStarted(started.told.clone()));
        }
    }
}

impl Started {
    /// Whether the process has neither joined nor ended.
    const fn is_followed(&self) -> bool {
        !self.has_joined && self.told.ended_unix_ns.is_none()
    }
}
