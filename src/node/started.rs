//! Processes that are to be ranks and have not joined a process group: whether they live, how they
//! ended, and where they stand.
//!
//! A rank has a black box from the moment it joins. What keeps it from that can only be seen from
//! outside. So each of these is looked at a few times, as long as another rank has joined; what the
//! looks show counts once the others have waited for too long.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_proto::v1;
use v1::event::Kind;

use super::descendants::ToBeRank;
use super::outbox::Outbox;
use super::proc::Watched;
use super::rank::Rank;
use super::stacks::taker::{Taker, Wanted};
use super::timing::Timing;

/// Names in messages, above those of boxes, by which their stacks are asked for.
const NAMES: u64 = 1 << 32;
/// Looks that are compared.
const KEPT: usize = 2;
/// Processes of one node that are followed.
const MOST: usize = 4096;

/// All of them on this node.
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
    /// Follows none yet.
    #[must_use]
    pub const fn new(timing: &Timing) -> Self {
        Self {
            started: Vec::new(),
            capture_interval: timing.unjoined_capture_interval,
        }
    }

    /// Follows one more, and says so.
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

    /// Readable once one of them has ended.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let followed = self.started.iter().filter(|it| it.is_followed());
        followed.filter_map(|it| it.watched.fd().map(AsFd::as_fd))
    }

    /// Sees who has joined, who has ended, and asks where the others stand.
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

    /// Takes stacks that are theirs; gives others back.
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

    /// Says everything again to a coordinator that may know nothing.
    pub fn repeat(&self, out: &mut Outbox) {
        for started in &self.started {
            out.push_live(Kind::RankStarted(started.told.clone()));
        }
    }
}

impl Started {
    /// Whether anything may still be found out about it here.
    const fn is_followed(&self) -> bool {
        !self.has_joined && self.told.ended_unix_ns.is_none()
    }
}
