//! Whether the nodes of a job send records or digests.
//!
//! Every record travels as long as the coordinator has time for it. Beyond a number of records a second
//! it asks the nodes for digests, whose size does not depend on what the job does, and the engine
//! rests. It looks again, at records that the coordinator pulls from the black boxes,
//!
//! - while ranks are stuck for longer than ranks of this job were in the last minutes, or the hashes of the calls
//!   of a group disagree: a hang or a mismatch;
//! - every ten seconds, at some records of each process: what slows the job down, memory, and what viewers show.
//!
//! If ranks spend much of their time inside calls, records travel again for a while, since more of them show
//! sooner what slows the job down, unless there are far too many.
//!
//! A node that sees something which no digest covers, such as the end of a process or an exception, sends
//! records again by itself. Then all do, as when the job slows down or has a finding that stops it.

use std::collections::BTreeMap;
use std::time::Duration;

use ddp_doctor_evidence::decode::Decoder;
use ddp_doctor_evidence::digest::INTERVAL;
use ddp_doctor_proto::report::{Timestamp, Verdict};
use ddp_doctor_proto::v1;
use v1::request::Kind;

use super::digests::Digests;

/// Records a second of all ranks above which digests are requested: about a quarter of a processor.
const MAX_RECORDS: u64 = 100_000;
/// The same while records are examined for what slows the job down, as a multiple of this limit.
const EXAMINED: u64 = 4;
/// Share of this limit below which records are requested again …
const LOW: u64 = 4;
/// … and above which digests are requested if this process takes this share of a processor.
const MAX_BUSY: f64 = 0.75;
/// Time for which the rate has to be above the limit, and below the lower one: some jobs pause in every step.
const SETTLED: Duration = Duration::from_secs(2);
const SLOW: Duration = Duration::from_secs(10);
/// Interval over which the rate is measured.
const RATE_INTERVAL: Duration = Duration::from_secs(1);
/// Interval of looks at some records of each process, and number of records of all processes while ranks wait
/// much: 240 kB/s.
const REFRESH: Duration = Duration::from_secs(10);
const REFRESHED: u64 = 1 << 16;
/// Maximum number of records of one process in such a pull while they do not: 90 B/s, as much as digests.
const REFRESHED_CALM: u64 = 24;
/// Records of all processes that one pull requests after a long call, and after a disagreement, which may
/// be some hundred calls ago. Decoding and applying them takes half a second, and eight.
const PULLED: u64 = 1 << 18;
const PULLED_AFTER_DISAGREEMENT: u64 = 1 << 22;
/// Bounds of the records of one process in such a pull.
const PULLED_EACH: (u64, u64) = (16, 8_192);
/// Time for which pulls follow each other after something suspicious.
const SUSPICIOUS: Duration = Duration::from_secs(1);
/// Time after which a node that has not answered a pull is not awaited any more.
const MAX_PULL: Duration = Duration::from_secs(2);
/// Mean share of their time that ranks spend inside calls before contiguous records are examined: a straggler
/// costs the others at least twice as much, and of two ranks it is one of them.
const WAITED: f64 = 0.04;
/// Number of digests of each process over which this share is taken.
const WAITED_OVER: u64 = 4;
/// Duration of an examination, and the least time until the next.
const EXAMINATION: Duration = Duration::from_secs(30);
const EXAMINATION_PAUSE: Duration = Duration::from_secs(300);
/// Factor of the share of time inside calls at which the next examination begins at once.
const CHANGED: f64 = 1.5;
/// Longest call that is taken as usual, and time after which half of it is: the start of a job has calls as no other
/// time.
const MAX_PATIENCE: Duration = Duration::from_secs(5);
const PATIENT: Duration = Duration::from_secs(120);
/// While a rank is stuck, pulls follow each other after this part of the time for which it has been.
const OFTEN: u32 = 4;

/// Decides what nodes send, and when the engine looks.
#[derive(Debug)]
pub(super) struct Flow {
    /// Records a second above which digests are requested.
    limit: u64,
    settled: Duration,
    mode: Mode,
    rate: Rate,
    /// Attached nodes, each with the number of the latest pull that it answered.
    nodes: BTreeMap<u32, u64>,
    digests: Digests,
    pulls: u64,
    pull: Option<Pull>,
    pulled_at: Timestamp,
    /// Something is suspicious until then.
    suspicious_until: Timestamp,
    /// Maximum number of records of all processes in the next pull.
    pulled: u64,
    /// Ranks that are stuck for this long are usual, until then. Half of it is afterwards.
    patience: Duration,
    patient_until: Timestamp,
    /// The longest time for which one has since that became suspicious.
    longest: Duration,
    /// Sum of the shares of time inside calls, and number of digests, since `share` was computed.
    waited: (u64, u64),
    /// Share of their time, of 1, that ranks spent inside calls.
    share: f64,
    /// End of the examination of contiguous records, and the earliest start of the next.
    examined_until: Timestamp,
    next_examination: Timestamp,
    /// Share of time inside calls, of 1, before the latest examination.
    examined_share: f64,
    /// Records have to travel again.
    disturbed: bool,
    /// The engine may look once.
    may_look: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Records,
    Digests,
    /// Records are requested again, and the nodes have not sent those of the past yet.
    Returning,
}

/// A request for records that is not answered by all nodes.
#[derive(Clone, Copy, Debug)]
struct Pull {
    number: u64,
    at: Timestamp,
}

/// Number of records a second.
#[derive(Debug, Default)]
struct Rate {
    count: u64,
    /// Processor time of this process.
    used: Duration,
    /// The latest result; `None`: there is none yet.
    latest: Option<u64>,
    since: Timestamp,
    /// Since when it has been above the limit, and since when below the lower one.
    above: Option<Timestamp>,
    below: Option<Timestamp>,
}

impl Flow {
    /// `above`: the limit, if it is not the usual one. 0 requests digests as soon as possible.
    pub(super) fn new(above: Option<u64>) -> Self {
        let limit = above.unwrap_or(MAX_RECORDS);
        Self {
            limit,
            settled: if limit == 0 { Duration::ZERO } else { SETTLED },
            mode: Mode::Records,
            rate: Rate::default(),
            nodes: BTreeMap::new(),
            digests: Digests::default(),
            pulls: 0,
            pull: None,
            pulled_at: Timestamp::default(),
            suspicious_until: Timestamp::default(),
            pulled: PULLED,
            patience: INTERVAL,
            patient_until: Timestamp::default(),
            longest: Duration::ZERO,
            waited: (0, 0),
            share: 0.0,
            examined_until: Timestamp::default(),
            next_examination: Timestamp::default(),
            examined_share: 0.0,
            disturbed: false,
            may_look: true,
        }
    }

    /// A node is attached.
    pub(super) fn attached(&mut self, node: u32) {
        self.nodes.insert(node, 0);
        self.disturb();
    }

    /// A node is not attached any more, or its part of the job has ended.
    pub(super) fn detached(&mut self, node: u32) {
        if self.nodes.remove(&node).is_some() {
            self.disturb();
        }
    }

    /// This process has used more CPU time.
    pub(super) fn used(&mut self, time: Duration) {
        self.rate.used += time;
    }

    /// Something happened that digests do not describe.
    pub(super) const fn disturb(&mut self) {
        self.disturbed = true;
    }

    /// Takes note of a report, before it is decoded.
    pub(super) fn report(
        &mut self,
        node: u32,
        report: &[v1::Event],
        decoder: &Decoder,
        now: Timestamp,
    ) {
        use v1::event::Kind;
        for event in report {
            match &event.kind {
                Some(Kind::Record(_)) if self.mode == Mode::Records => self.rate.count += 1,
                Some(Kind::Digest(digest)) => self.digest(digest, decoder, now),
                Some(Kind::CaughtUp(caught_up)) => {
                    if !caught_up.digests {
                        self.disturb();
                    }
                    if let Some(answered) = self.nodes.get_mut(&node) {
                        *answered = caught_up.pull.max(*answered);
                    }
                }
                Some(Kind::RankStarted(_) | Kind::ProcessJoined(_)) => self.disturb(),
                _ => {}
            }
        }
    }

    fn digest(&mut self, digest: &v1::Digest, decoder: &Decoder, now: Timestamp) {
        let news = self.digests.add(digest, decoder);
        if self.mode != Mode::Digests {
            return;
        }
        self.rate.count += news.records;
        self.waited.0 += u64::from(digest.waited_permille);
        self.waited.1 += 1;
        if news.disagrees {
            self.pulled = PULLED_AFTER_DISAGREEMENT;
            self.suspicious_until = now.plus(SUSPICIOUS);
        }
        if news.waits_differently {
            self.suspicious_until = now.plus(SUSPICIOUS);
        }
        let still = Duration::from_millis(u64::from(digest.still_ms));
        if still >= self.patience {
            self.longest = self.longest.max(still);
            self.suspicious_until = now.plus(SUSPICIOUS);
        }
    }

    /// The request that all nodes get now, if any.
    pub(super) fn poll(&mut self, now: Timestamp, verdict: Verdict) -> Option<Kind> {
        let is_examined = now < self.examined_until || verdict == Verdict::Slow;
        let limit = if is_examined { self.max_examined() } else { self.limit };
        self.rate.measure(limit, now);
        if self.nodes.is_empty() {
            self.mode = Mode::Records;
            self.pull = None;
        }
        match self.mode {
            Mode::Records => {
                let settled = match self.rate.latest {
                    Some(rate) if rate > self.max_examined() => Duration::ZERO,
                    _ => self.settled,
                };
                let is_above = self.rate.above.is_some_and(|at| now.since(at) >= settled);
                let is_stopped = matches!(verdict, Verdict::Hang | Verdict::Crash);
                // Evidence may have come since.
                let disturbed = std::mem::take(&mut self.disturbed);
                if !is_above || is_stopped || disturbed || self.nodes.is_empty() {
                    return None;
                }
                self.begin(now);
                Some(Kind::Summarize(v1::Summarize {}))
            }
            // The engine has not looked at what was pulled.
            Mode::Digests if self.may_look => None,
            Mode::Digests | Mode::Returning => {
                if let Some(pull) = self.pull {
                    let mut answers = self.nodes.values();
                    let is_answered = answers.all(|&number| number >= pull.number);
                    if !is_answered && now.since(pull.at) < MAX_PULL {
                        return None;
                    }
                    self.pull = None;
                    if self.mode == Mode::Returning {
                        self.mode = Mode::Records;
                        self.disturbed = false;
                        self.rate = Rate::default();
                        return None;
                    }
                    self.may_look = true;
                    return None;
                }
                self.next_pull(now, verdict)
            }
        }
    }

    fn begin(&mut self, now: Timestamp) {
        self.mode = Mode::Digests;
        self.digests = Digests::default();
        self.rate = Rate {
            // The first digests state no rate.
            since: now.plus(INTERVAL * 2),
            ..Rate::default()
        };
        self.pulled_at = now;
        self.suspicious_until = Timestamp::default();
        self.longest = Duration::ZERO;
        (self.waited, self.share) = ((0, 0), 0.0);
        self.may_look = false;
    }

    fn next_pull(&mut self, now: Timestamp, verdict: Verdict) -> Option<Kind> {
        let is_slow = self.rate.below.is_some_and(|at| now.since(at) >= SLOW);
        let is_known = verdict == Verdict::Slow;
        let is_examined = self.measures_waits() && !is_known && self.begins_examination(now);
        let is_stopped = matches!(verdict, Verdict::Hang | Verdict::Crash);
        if self.disturbed || is_stopped || is_examined || is_slow && self.limit > 0 {
            self.mode = Mode::Returning;
            self.may_look = false;
            return Some(self.request(now, self.pulled, PULLED_EACH.1, true));
        }
        let since = now.since(self.pulled_at);
        if since < INTERVAL {
            return None;
        }
        // Some ranks wait for an hour, and others go on.
        let pause = (self.longest / OFTEN).min(REFRESH);
        if now <= self.suspicious_until && since >= pause {
            return Some(self.request(now, self.pulled, PULLED_EACH.1, false));
        }
        if !self.longest.is_zero() && now > self.suspicious_until {
            // It ended by itself.
            self.patience = (self.longest * 2).clamp(self.patience, MAX_PATIENCE);
            self.patient_until = now.plus(PATIENT);
            self.longest = Duration::ZERO;
        } else if now > self.patient_until {
            self.patience = (self.patience / 2).max(INTERVAL);
            self.patient_until = now.plus(PATIENT);
        }
        if now > self.suspicious_until {
            self.pulled = PULLED;
        }
        if since >= REFRESH {
            let most = if self.share > WAITED { PULLED_EACH.1 } else { REFRESHED_CALM };
            return Some(self.request(now, REFRESHED, most, false));
        }
        None
    }

    /// Computes the share of time that ranks spend inside calls, once there are enough digests.
    fn measures_waits(&mut self) -> bool {
        if self.waited.1 < WAITED_OVER * self.digests.processes().max(1) as u64 {
            return false;
        }
        let (waited, count) = std::mem::take(&mut self.waited);
        self.share = waited as f64 / count as f64 / 1000.0;
        true
    }

    /// Whether records are to be examined for what slows the job down from now on.
    fn begins_examination(&mut self, now: Timestamp) -> bool {
        let is_due = now >= self.next_examination || self.share > CHANGED * self.examined_share;
        let rate = self.rate.latest;
        let is_possible = rate.is_some_and(|rate| rate <= self.max_examined());
        if self.share <= WAITED || !is_due || !is_possible {
            return false;
        }
        self.examined_until = now.plus(EXAMINATION);
        self.next_examination = self.examined_until.plus(EXAMINATION_PAUSE);
        self.examined_share = self.share;
        true
    }

    /// Records a second above which they are not examined for what slows the job down.
    const fn max_examined(&self) -> u64 {
        match self.limit {
            0 => u64::MAX,
            limit => limit.saturating_mul(EXAMINED),
        }
    }

    /// A pull of `records` of all processes, at most `most` of each.
    fn request(&mut self, now: Timestamp, records: u64, most: u64, release: bool) -> Kind {
        self.pulls += 1;
        self.pulled_at = now;
        self.pull = Some(Pull { number: self.pulls, at: now });
        let processes = self.digests.processes().max(1) as u64;
        Kind::Pull(v1::Pull {
            number: self.pulls,
            records: (records / processes).clamp(PULLED_EACH.0, most),
            release,
        })
    }

    /// Whether the engine may look at the evidence now; digests allow one look each time.
    pub(super) fn take_look(&mut self) -> bool {
        self.mode == Mode::Records || std::mem::take(&mut self.may_look)
    }

    /// When [`Flow::poll`] is due if no report arrives; `None`: then not at all.
    pub(super) fn timeout(&self) -> Option<Duration> {
        (self.mode != Mode::Records).then_some(INTERVAL)
    }
}

impl Rate {
    fn measure(&mut self, limit: u64, now: Timestamp) {
        let elapsed = now.since(self.since);
        if self.since == Timestamp::default() || elapsed > RATE_INTERVAL * 4 {
            (self.since, self.count, self.used) = (now, 0, Duration::ZERO);
            return;
        }
        if elapsed < RATE_INTERVAL && limit > 0 {
            return;
        }
        let rate = (self.count as f64 / elapsed.as_secs_f64()) as u64;
        let since = std::mem::replace(&mut self.since, now);
        let is = |holds: bool, known: Option<Timestamp>| holds.then(|| known.unwrap_or(since));
        let is_busy = self.used.as_secs_f64() > MAX_BUSY * elapsed.as_secs_f64();
        let is_above = rate > limit || is_busy && rate > limit / LOW;
        self.above = is(is_above, self.above);
        self.below = is(rate < limit / LOW, self.below);
        (self.latest, self.count, self.used) = (Some(rate), 0, Duration::ZERO);
    }
}

#[cfg(test)]
#[path = "flow_tests.rs"]
mod tests;
