//! Processes that will become ranks and have not joined a process group: their state, exit status
//! and stacks.
//!
//! A rank has a black box only once it joins; the reason why it does not join is visible only from
//! outside. The stacks of these processes are therefore captured, at growing intervals, while another
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
use crate::node::stacks::taker::{StackRequest, Taker};
use crate::node::timing::Timing;

/// Offset of process numbers in stack requests, above the numbers of boxes.
const PROCESS_OFFSET: u64 = 1 << 32;
/// Number of captures that are compared.
const KEPT: usize = 2;
/// Maximum number of processes that are followed on a node.
const MAX_PROCESSES: usize = 4096;

/// All such processes on this node.
#[derive(Debug)]
pub struct StartedRanks {
    started: Vec<Started>,
    capture_interval: Duration,
}

#[derive(Debug)]
struct Started {
    reported: v1::RankStarted,
    watched: Watched,
    looks: u32,
    next_capture: Instant,
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
        let Ok(Some(watched)) = Watched::new(rank.pid, rank.start_ticks) else {
            return;
        };
        if self.started.len() >= MAX_PROCESSES {
            return;
        }
        let reported = v1::RankStarted {
            pid: rank.pid,
            start_ticks: rank.start_ticks,
            rank: rank.rank,
            world_size: rank.world_size,
            seen_unix_ns: Timestamp::now().0,
            ..v1::RankStarted::default()
        };
        out.push(Kind::RankStarted(reported.clone()));
        self.started.push(Started {
            reported,
            watched,
            looks: 0,
            next_capture: Instant::now() + self.capture_interval,
            has_joined: false,
        });
    }

    /// Descriptors that are readable once one of the processes has ended.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let followed = self.started.iter().filter(|it| it.is_followed());
        followed.filter_map(|it| it.watched.fd().map(AsFd::as_fd))
    }

    /// Detects processes that have joined or ended, and requests stacks of the others.
    pub fn poll(&mut self, ranks: &[Rank], now: Instant, stacks: &mut Taker, out: &mut Outbox) {
        let any_joined = ranks.iter().any(|rank| !rank.has_ended());
        for started in self.started.iter_mut().filter(|it| it.is_followed()) {
            let pid = started.watched.pid();
            let is_it = |rank: &Rank| rank.watched().is_some_and(|it| it.pid() == pid);
            if ranks.iter().any(is_it) {
                started.has_joined = true;
            } else if started.watched.has_ended() {
                let exit = started.watched.exit();
                started.reported.ended_unix_ns = Some(Timestamp::now().0);
                started.reported.exit_code = exit.code;
                started.reported.exit_signal = exit.signal;
                out.push(Kind::RankStarted(started.reported.clone()));
            } else if any_joined && now >= started.next_capture {
                started.looks += 1;
                started.next_capture = now + self.capture_interval * started.looks;
                let request = StackRequest {
                    process: PROCESS_OFFSET + u64::from(pid),
                    pid,
                    start_ticks: started.reported.start_ticks,
                };
                stacks.request(std::iter::once(request), false);
            }
        }
    }

    /// Reports stacks of these processes; returns stacks of ranks.
    pub fn add_stacks(&mut self, stacks: v1::Stacks, out: &mut Outbox) -> Option<v1::Stacks> {
        let Some(pid) = stacks.process.checked_sub(PROCESS_OFFSET) else {
            return Some(stacks);
        };
        let mut followed = self.started.iter_mut().filter(|it| it.is_followed());
        if let Some(started) = followed.find(|it| u64::from(it.watched.pid()) == pid) {
            if started.reported.looks.len() == KEPT {
                started.reported.looks.remove(0);
            }
            started.reported.looks.push(v1::Stacks {
                process: 0,
                ..stacks
            });
            out.push(Kind::RankStarted(started.reported.clone()));
        }
        None
    }

    /// Sends everything again to a new coordinator.
    pub fn repeat(&self, out: &mut Outbox) {
        for started in &self.started {
            out.push_live(Kind::RankStarted(started.reported.clone()));
        }
    }
}

impl Started {
    /// Whether the process has neither joined nor ended.
    const fn is_followed(&self) -> bool {
        !self.has_joined && self.reported.ended_unix_ns.is_none()
    }
}
