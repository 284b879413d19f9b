//! A node without black boxes, which sends records or digests as `src/node/follow` does.

use std::collections::{BTreeMap, VecDeque};

use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_proto::v1::{self, event::Kind, request};
use ddp_doctor_proto::{Op, ProcessState, RecordKind};

use super::{INTERVAL, Summary, is_covered, is_notable};

/// A node that has messages instead of black boxes.
pub(crate) struct Node {
    ranks: BTreeMap<u64, Rank>,
    sends_digests: bool,
    digest_at: Timestamp,
    /// Records of a process that a pull sends at most.
    most: u64,
    /// Records of a process that are kept: the size of its ring.
    kept: usize,
    /// Messages to the coordinator.
    out: Vec<Kind>,
}

#[derive(Default)]
struct Rank {
    summary: Summary,
    records: VecDeque<(u64, Kind)>,
    /// The latest sample of scheduling.
    scheduled: Option<Kind>,
    /// First record that was not sent.
    sent: u64,
    ended: bool,
    /// Counters of calls and messages by group.
    counters: BTreeMap<u32, (u64, u64)>,
}

impl Node {
    /// A node that sends records. A pull returns at most `most` records of a process, of which the latest
    /// `kept` are kept.
    pub(crate) fn new(most: u64, kept: usize) -> Self {
        Self {
            ranks: BTreeMap::new(),
            sends_digests: false,
            digest_at: Timestamp::default(),
            most,
            kept,
            out: Vec::new(),
        }
    }

    /// Reports what the journal has from one report.
    pub(crate) fn observe(&mut self, kinds: Vec<Kind>) {
        let mut notable = false;
        for kind in kinds {
            let ticket = match &kind {
                Kind::Record(record) => Some((record.process, record.ticket)),
                Kind::MemorySample(sample) => sample.ticket.map(|it| (sample.process, it)),
                _ => None,
            };
            match &kind {
                Kind::ProcessJoined(joined) => {
                    let new = || Rank { summary: Summary::new(&joined.layer), ..Rank::default() };
                    self.ranks.entry(joined.process).or_insert_with(new);
                }
                Kind::GroupDefined(group) => self.rank(group.process).summary.add(&kind),
                Kind::RecordsLost(lost) => self.rank(lost.process).summary.add(&kind),
                Kind::SchedulingSample(sample) => {
                    self.rank(sample.process).scheduled = Some(kind.clone());
                }
                Kind::ProcessChanged(changed) => {
                    self.send_records();
                    let dead = i32::from(ProcessState::Dead.number());
                    self.rank(changed.process).ended |= changed.state == dead;
                }
                Kind::Note(_) | Kind::JobEnded(_) => self.send_records(),
                _ => {}
            }
            notable |= is_notable(&kind);
            if let Some((process, ticket)) = ticket {
                let (sends_digests, kept) = (self.sends_digests, self.kept);
                let rank = self.rank(process);
                rank.summary.add(&kind);
                rank.count(&kind);
                rank.records.push_back((ticket, kind.clone()));
                if rank.records.len() > kept {
                    rank.records.pop_front();
                }
                if !sends_digests {
                    rank.sent = ticket + 1;
                }
            }
            if !self.sends_digests || !is_covered(&kind) {
                self.out.push(kind);
            }
        }
        if notable {
            self.send_records();
        }
    }

    /// The messages since the last call.
    pub(crate) fn take(&mut self) -> Vec<Kind> {
        std::mem::take(&mut self.out)
    }

    fn rank(&mut self, process: u64) -> &mut Rank {
        self.ranks.get_mut(&process).unwrap()
    }

    fn send_records(&mut self) {
        if self.sends_digests {
            let most = self.most;
            self.catch_up(0, most, true);
        }
    }

    fn catch_up(&mut self, number: u64, most: u64, release: bool) {
        for (&process, rank) in &mut self.ranks {
            rank.catch_up(process, most, &mut self.out);
        }
        let living = self.ranks.values().filter(|rank| !rank.ended);
        self.out.extend(living.filter_map(|rank| rank.scheduled.clone()));
        self.sends_digests &= !release;
        self.out.push(Kind::CaughtUp(v1::CaughtUp { pull: number, digests: self.sends_digests }));
    }

    /// Obeys a request of the coordinator.
    pub(crate) fn answer(&mut self, kind: request::Kind) {
        match kind {
            request::Kind::Summarize(_) => self.sends_digests = true,
            request::Kind::Pull(pull) => {
                self.catch_up(pull.number, pull.records.min(self.most), pull.release);
            }
            _ => {}
        }
    }

    /// Reports digests, if it is time.
    pub(crate) fn digest(&mut self, now: Timestamp, mono_ns: u64) {
        if self.sends_digests && now.since(self.digest_at) >= INTERVAL {
            self.digest_at = now;
            for (&process, rank) in &mut self.ranks {
                let digest = rank.summary.digest(process, mono_ns);
                self.out.extend(digest.map(Kind::Digest));
            }
        }
    }
}

impl Rank {
    fn count(&mut self, kind: &Kind) {
        if let Kind::Record(record) = kind
            && record.kind == i32::from(RecordKind::Issued.number())
        {
            let (issued, messages) = self.counters.entry(record.group).or_default();
            let is_message = [Op::Send, Op::Recv].map(|op| i32::from(op.number()));
            if is_message.contains(&record.op) {
                *messages += 1;
            } else {
                *issued = record.seq.max(*issued);
            }
        }
    }

    fn catch_up(&mut self, process: u64, most: u64, out: &mut Vec<Kind>) {
        let last = self.records.back().filter(|_| !self.ended);
        let Some(&(last, _)) = last else {
            return;
        };
        let (sent, next) = (self.sent, last + 1);
        let latest = next.saturating_sub(most).max(sent);
        let oldest = self.records.front().map_or(next, |(ticket, _)| *ticket);
        let entered = self.summary.inside().map(|(_, ticket)| ticket);
        let (kept, overwritten): (Vec<u64>, Vec<u64>) = entered
            .filter(|ticket| (sent..latest).contains(ticket))
            .partition(|&ticket| ticket >= oldest);
        let from = kept.into_iter().fold(latest, u64::min);
        let before = from - overwritten.len() as u64;
        if before > sent {
            let inside = self.summary.inside().filter(|&(_, ticket)| ticket < sent);
            out.push(Kind::RecordsLeftOut(v1::RecordsLeftOut {
                process,
                before,
                threads_inside: inside.map(|(thread, _)| thread).collect(),
                threads: self.summary.threads().collect(),
            }));
        }
        let first = self.records.partition_point(|(ticket, _)| *ticket < from);
        out.extend(self.records.range(first..).map(|(_, kind)| kind.clone()));
        self.sent = next;
        if from > sent {
            for (&group, &(issued, p2p_issued)) in self.counters.iter().filter(|(it, _)| **it > 0) {
                out.push(Kind::GroupFrontier(v1::GroupFrontier {
                    process,
                    group,
                    issued,
                    p2p_issued,
                    r#final: false,
                }));
            }
        }
    }
}
