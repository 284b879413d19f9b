//! What the follower sends again: everything to a coordinator that attaches, and the records that digests
//! replaced.

use ddp_doctor_proto::v1;
use tokio::sync::mpsc;
use v1::event::Kind;

use crate::follow::rank::Rank;
use crate::follow::{CAUGHT_UP, Follower};

impl Follower {
    /// Sends everything to a coordinator.
    pub(super) fn repeat(&mut self, coordinator: mpsc::Sender<v1::Report>) {
        self.out.connect(coordinator);
        self.out.push_live(Kind::Hello(self.hello.clone()));
        for rank in &mut self.ranks {
            rank.repeat(&mut self.out);
        }
        self.started.repeat(&mut self.out);
        self.memory.repeat(&mut self.out);
        self.scheduling.repeat(|_| true, &mut self.out);
        self.gpus.repeat(&mut self.out);
        self.ports.repeat(&mut self.out);
        for rank in &self.ranks {
            rank.repeat_state(&mut self.out);
        }
        for kind in &self.events {
            self.out.push_live(kind.clone());
        }
        self.request_sources();
        self.out.flush();
    }

    /// Sends the records that digests replaced. Answers the request with its number; 0: there was none.
    pub(super) fn catch_up(&mut self, pull: v1::Pull) {
        let digests = self.out.sends_digests() && !pull.release;
        self.out.send_digests(false);
        for rank in &mut self.ranks {
            rank.catch_up(pull.records, &mut self.out);
        }
        let living: Vec<u64> =
            self.ranks.iter().filter(|rank| !rank.has_ended()).map(Rank::process).collect();
        self.scheduling.repeat(|process| living.contains(&process), &mut self.out);
        self.gpus.repeat(&mut self.out);
        self.ports.repeat(&mut self.out);
        self.out.push_live(Kind::CaughtUp(v1::CaughtUp { pull: pull.number, digests }));
        self.out.send_digests(digests);
    }

    /// Sends records again: evidence follows that no digest covers.
    pub(super) fn send_records(&mut self) {
        if self.out.sends_digests() {
            self.catch_up(v1::Pull { number: 0, records: CAUGHT_UP, release: true });
        }
    }
}
