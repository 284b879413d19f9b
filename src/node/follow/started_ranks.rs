//! Processes that will become ranks and have not joined a process group: their state, exit status
//! and stacks.
//!
//! A rank has a black box only once it joins; the reason why it does not join is visible only from
//! outside. The stacks of these processes are therefore captured, at growing intervals, while another
//! rank has joined. The engine uses them once the other ranks have waited too long.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use ddp_doctor_host::proc::Watched;
use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_proto::v1;
use v1::event::Kind;

use crate::launch::descendants::ToBeRank;
use crate::stack_reader::stack_sampler::{StackRequest, StackSampler};
use crate::timing::Timing;
use crate::upload::outbox::Outbox;

/// Offset of process numbers in stack requests, above the numbers of boxes.
const PROCESS_OFFSET: u64 = 1 << 32;
/// Number of captures that are compared.
const MAX_CAPTURES: usize = 2;
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
    /// `None` once it has joined.
    watched: Option<Watched>,
    looks: u32,
    next_capture: Instant,
}

impl StartedRanks {
    /// Creates an empty list.
    #[must_use]
    pub const fn new(timing: &Timing) -> Self {
        Self { started: Vec::new(), capture_interval: timing.unjoined_capture_interval }
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
            watched: Some(watched),
            looks: 0,
            next_capture: Instant::now() + self.capture_interval,
        });
    }

    /// Descriptors that are readable once one of the processes has ended.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let followed = self.started.iter().filter_map(Started::followed);
        followed.filter_map(|it| it.fd().map(AsFd::as_fd))
    }

    /// Pids of those that have neither joined nor ended.
    pub fn pids(&self) -> impl Iterator<Item = u32> {
        self.started.iter().filter_map(Started::followed).map(Watched::pid)
    }

    /// Whether one of the processes has ended since the last [`Self::poll`].
    #[must_use]
    pub fn any_ended(&self) -> bool {
        let mut followed = self.started.iter().filter_map(Started::followed);
        followed.any(Watched::has_ended)
    }

    /// Takes what watches the process of this pid and start time, which has joined.
    pub fn take_joined(&mut self, (pid, start_ticks): (u32, u64)) -> Option<Watched> {
        let is_it = |it: &Watched| it.pid() == pid && it.start_ticks() == start_ticks;
        let mut started = self.started.iter_mut();
        let joined = started.find(|it| it.watched.as_ref().is_some_and(is_it))?;
        joined.watched.take()
    }

    /// Detects processes that have ended, and requests stacks of the others if a rank has joined.
    pub fn poll(
        &mut self,
        any_joined: bool,
        now: Instant,
        stacks: &mut StackSampler,
        out: &mut Outbox,
    ) {
        for started in &mut self.started {
            let Some(watched) = started.followed() else {
                continue;
            };
            let pid = watched.pid();
            if watched.has_ended() {
                let exit = watched.exit();
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
        let is_it = |it: &&mut Started| it.followed().is_some_and(|it| u64::from(it.pid()) == pid);
        if let Some(started) = self.started.iter_mut().find(is_it) {
            if started.reported.looks.len() == MAX_CAPTURES {
                started.reported.looks.remove(0);
            }
            started.reported.looks.push(v1::Stacks { process: 0, ..stacks });
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
    /// What watches the process, unless it has joined or ended.
    fn followed(&self) -> Option<&Watched> {
        let has_ended = self.reported.ended_unix_ns.is_some();
        self.watched.as_ref().filter(|_| !has_ended)
    }
}
