use v1::event;

use super::*;

const HEALTHY: Verdict = Verdict::Healthy;

/// A coordinator of two nodes with a rank each, and its clock.
struct Job {
    flow: Flow,
    decoders: [Decoder; 2],
    now: Timestamp,
    /// Records that each rank has made.
    records: u64,
    /// What the engine knows when digests arrive.
    verdict: Verdict,
}

impl Job {
    fn new(above: u64) -> Self {
        let mut flow = Flow::new(Some(above));
        let decoders = [0, 1].map(|node| {
            flow.attached(node);
            let mut decoder = Decoder::new(node);
            let joined = v1::ProcessJoined {
                process: 1,
                rank: Some(node),
                layer: "c10d".into(),
                ..v1::ProcessJoined::default()
            };
            let group = v1::GroupDefined {
                process: 1,
                id: 1,
                name: "0".into(),
                members: vec![0, 1],
                ..v1::GroupDefined::default()
            };
            let kinds = [event::Kind::ProcessJoined(joined), event::Kind::GroupDefined(group)];
            let events = kinds.map(|kind| v1::Event { kind: Some(kind) });
            let report = v1::Report { events: events.into(), ..v1::Report::default() };
            decoder.decode(report, &mut Vec::new());
            decoder
        });
        let mut job = Self {
            flow,
            decoders,
            now: Timestamp(1_000_000_000_000),
            records: 0,
            verdict: HEALTHY,
        };
        assert_eq!(job.poll(HEALTHY), None, "the nodes have just attached");
        job
    }

    /// A job whose nodes were asked for digests.
    fn with_digests() -> Self {
        let mut job = Self::new(1000);
        let asked = (0..60).find_map(|_| job.records(100));
        assert_eq!(asked, Some(Kind::Summarize(v1::Summarize {})));
        job
    }

    fn report(&mut self, node: u32, kind: event::Kind, number: usize) {
        let events = vec![v1::Event { kind: Some(kind) }; number];
        let decoder = &self.decoders[node as usize];
        self.flow.report(node, &events, decoder, self.now);
    }

    fn poll(&mut self, verdict: Verdict) -> Option<Kind> {
        self.flow.poll(self.now, verdict)
    }

    /// After 50 ms, each rank has made this number of records.
    fn records(&mut self, number: usize) -> Option<Kind> {
        self.now = self.now.plus(Duration::from_millis(50));
        for node in [0, 1] {
            let record = event::Kind::Record(v1::Record::default());
            self.report(node, record, number);
        }
        self.poll(HEALTHY)
    }

    /// After half a second, the digests of both ranks, which have been stuck for `still_ms`.
    fn digests(&mut self, still_ms: [u32; 2]) -> Option<Kind> {
        self.digest(still_ms, 0, [7, 7])
    }

    fn digest(&mut self, still_ms: [u32; 2], waited: u32, hashes: [u64; 2]) -> Option<Kind> {
        self.now = self.now.plus(INTERVAL);
        self.records += 500;
        for node in [0, 1] {
            let digest = v1::Digest {
                process: 1,
                through: self.records,
                still_ms: still_ms[node as usize],
                waited_permille: waited,
                groups: vec![v1::GroupDigest {
                    group: 1,
                    issued: self.records,
                    checks: vec![v1::Check {
                        below: self.records / 64 * 64,
                        hash: hashes[node as usize],
                    }],
                    values: false,
                }],
                ..v1::Digest::default()
            };
            self.report(node, event::Kind::Digest(digest), 1);
        }
        self.poll(self.verdict)
    }

    /// Both nodes answer a pull, and the engine looks.
    fn answer(&mut self, pull: &v1::Pull) {
        for node in [0, 1] {
            assert!(!self.flow.take_look(), "not all records are there");
            let caught_up = v1::CaughtUp { pull: pull.number, digests: !pull.release };
            self.report(node, event::Kind::CaughtUp(caught_up), 1);
        }
        assert_eq!(self.poll(HEALTHY), None);
        assert!(self.flow.take_look());
    }
}

fn pull(kind: Option<Kind>) -> v1::Pull {
    match kind {
        Some(Kind::Pull(pull)) => pull,
        other => panic!("{other:?}"),
    }
}

#[test]
fn records_travel_below_the_limit() {
    let mut job = Job::new(1000);
    // Twice 20 records in 50 ms are 800 a second.
    assert!((0..200).all(|_| job.records(20).is_none()));
    assert!(job.flow.take_look() && job.flow.take_look());
}

#[test]
fn lower_rate_suffices_if_the_process_is_busy() {
    for (busy_ms, asks) in [(45, true), (20, false)] {
        let mut job = Job::new(1000);
        let asked = (0..100).find_map(|_| {
            job.flow.used(Duration::from_millis(busy_ms));
            // Of every 50 ms; twice 20 records are 800 a second.
            job.records(20)
        });
        assert_eq!(asked.is_some(), asks, "{busy_ms} ms of 50");
    }
}

#[test]
fn engine_rests_while_digests_agree() {
    let mut job = Job::with_digests();
    assert!(!job.flow.take_look());
    let asked = (0..19).filter_map(|_| job.digests([0, 20])).count();
    assert_eq!(asked, 0);
    let refresh = pull(job.digests([0, 0]));
    assert_eq!((refresh.records, refresh.release), (REFRESHED_CALM, false));
    job.answer(&refresh);
    assert!(!job.flow.take_look(), "only once");
}

#[test]
fn refresh_is_large_if_ranks_wait() {
    let mut job = Job::with_digests();
    job.verdict = Verdict::Slow;
    let refresh = (0..40).find_map(|_| job.digest([0, 0], 300, [7, 7]));
    assert_eq!(pull(refresh).records, PULLED_EACH.1);
}

#[test]
fn long_call_is_looked_at_and_then_usual() {
    let mut job = Job::with_digests();
    assert_eq!(job.digests([0, 0]), None);
    let first = pull(job.digests([600, 0]));
    assert_eq!((first.records, first.release), (PULLED_EACH.1, false));
    job.answer(&first);
    let second = pull(job.digests([1100, 0]));
    job.answer(&second);
    // It ends. Two seconds are usual from then on.
    let pulls = |job: &mut Job, still_ms| {
        let mut pulls = 0;
        for _ in 0..8 {
            if let Some(kind) = job.digests([still_ms, 0]) {
                job.answer(&pull(Some(kind)));
                pulls += 1;
            }
        }
        pulls
    };
    assert!(pulls(&mut job, 0) <= 2);
    assert_eq!(pulls(&mut job, 2_000), 0);
    assert!(!pull(job.digests([2_300, 0])).release);
}

#[test]
fn long_call_is_unusual_again_after_some_minutes() {
    let mut job = Job::with_digests();
    let mut pulled = |still_ms| {
        let asked = job.digests([still_ms, 0]);
        if let Some(kind) = &asked {
            job.answer(&pull(Some(kind.clone())));
        }
        asked.is_some_and(|kind| pull(Some(kind)).records > REFRESHED_CALM)
    };
    assert!(pulled(1_100));
    for _ in 0..4 {
        pulled(0);
    }
    assert!(!pulled(1_100), "usual");
    for _ in 0..500 {
        pulled(0);
    }
    assert!(pulled(1_100));
}

#[test]
fn ranks_that_wait_in_different_calls_are_looked_at_once() {
    let mut job = Job::with_digests();
    assert_eq!(job.digests([0, 0]), None);
    let mut wait = |hashes: [u64; 2]| {
        job.now = job.now.plus(INTERVAL);
        for node in [0, 1] {
            let check = v1::Check { below: job.records + 2, hash: hashes[node as usize] };
            let digest = v1::Digest {
                process: 1,
                through: job.records,
                groups: vec![v1::GroupDigest {
                    group: 1,
                    issued: job.records + 1,
                    checks: vec![check],
                    values: false,
                }],
                ..v1::Digest::default()
            };
            job.report(node, event::Kind::Digest(digest), 1);
        }
        let asked = job.poll(HEALTHY);
        if let Some(kind) = &asked {
            job.answer(&pull(Some(kind.clone())));
        }
        asked.is_some()
    };
    assert!(!wait([5, 5]));
    assert!(wait([5, 6]));
    let again = (0..6).filter(|_| wait([5, 6])).count();
    assert!(again <= 2, "{again} pulls for a difference that is known");
}

#[test]
fn disagreement_is_looked_at_once() {
    let mut job = Job::with_digests();
    assert_eq!(job.digest([0, 0], 0, [7, 7]), None);
    let first = pull(job.digest([0, 0], 0, [8, 9]));
    assert_eq!(first.records, PULLED_EACH.1);
    job.answer(&first);
    let mut later = 0;
    for _ in 0..18 {
        if let Some(kind) = job.digest([0, 0], 0, [8, 9]) {
            later += 1;
            job.answer(&pull(Some(kind)));
        }
    }
    assert!(later <= 3, "{later} pulls for a difference that the engine knows");
}

#[test]
fn ranks_that_spend_their_time_in_calls_are_examined() {
    let mut job = Job::with_digests();
    let asked: Vec<Kind> = (0..4).filter_map(|_| job.digest([0, 0], 300, [7, 7])).collect();
    let release = pull(asked.first().cloned());
    assert!(release.release);
    job.answer(&release);
    // For half a minute, although there are more records than usual.
    let asked = (0..590).filter(|_| job.records(60).is_some()).count();
    assert_eq!(asked, 0);
    let asked = (0..100).find_map(|_| job.records(60));
    assert_eq!(asked, Some(Kind::Summarize(v1::Summarize {})));
    // Not again for as much waiting.
    job.now = job.now.plus(INTERVAL);
    let asked = (0..15).filter(|_| job.digest([0, 0], 300, [7, 7]).is_some());
    assert_eq!(asked.count(), 0);
}

#[test]
fn known_slowdown_is_not_examined() {
    let mut job = Job::with_digests();
    job.verdict = Verdict::Slow;
    let asked = (0..19).filter(|_| job.digest([0, 0], 300, [7, 7]).is_some());
    assert_eq!(asked.count(), 0);
}

#[test]
fn too_many_records_are_not_examined() {
    let mut job = Job::new(100);
    let asked = (0..60).find_map(|_| job.records(100));
    assert_eq!(asked, Some(Kind::Summarize(v1::Summarize {})));
    // Twice 1000 records a second.
    let asked = (0..19).filter(|_| job.digest([0, 0], 300, [7, 7]).is_some());
    assert_eq!(asked.count(), 0);
}

#[test]
fn records_travel_again_from_all_nodes_if_one_sends_them() {
    let mut job = Job::with_digests();
    assert_eq!(job.digests([0, 0]), None);
    let caught_up = v1::CaughtUp { pull: 0, digests: false };
    job.report(1, event::Kind::CaughtUp(caught_up), 1);
    let release = pull(job.poll(HEALTHY));
    assert!(release.release);
    job.answer(&release);
    assert!(job.flow.take_look() && job.flow.timeout().is_none());
}

#[test]
fn finding_that_stops_the_job_ends_digests() {
    let mut job = Job::with_digests();
    assert_eq!(job.digests([0, 0]), None);
    job.now = job.now.plus(INTERVAL);
    assert!(pull(job.poll(Verdict::Hang)).release);
}

#[test]
fn job_that_slows_down_sends_records() {
    let mut job = Job::with_digests();
    assert_eq!(job.digests([0, 0]), None);
    let mut asked = None;
    for _ in 0..200 {
        job.now = job.now.plus(Duration::from_millis(100));
        asked = job.poll(HEALTHY);
        match &asked {
            Some(Kind::Pull(refresh)) if !refresh.release => job.answer(&refresh.clone()),
            Some(_) => break,
            None => {}
        }
    }
    assert!(pull(asked).release);
}

#[test]
fn node_that_does_not_answer_is_not_awaited_for_long() {
    let mut job = Job::with_digests();
    assert_eq!(job.digests([0, 0]), None);
    let first = pull(job.digests([600, 0]));
    let caught_up = v1::CaughtUp { pull: first.number, digests: true };
    job.report(0, event::Kind::CaughtUp(caught_up), 1);
    assert_eq!(job.poll(HEALTHY), None);
    assert!(!job.flow.take_look());
    job.now = job.now.plus(MAX_PULL);
    assert_eq!(job.poll(HEALTHY), None);
    assert!(job.flow.take_look());
}

#[test]
fn node_that_leaves_is_not_awaited() {
    let mut job = Job::with_digests();
    assert_eq!(job.digests([0, 0]), None);
    job.flow.detached(1);
    let release = pull(job.poll(HEALTHY));
    let caught_up = v1::CaughtUp { pull: release.number, digests: false };
    job.report(0, event::Kind::CaughtUp(caught_up), 1);
    assert_eq!(job.poll(HEALTHY), None);
    assert!(job.flow.take_look() && job.flow.timeout().is_none());
    job.flow.detached(0);
    assert_eq!(job.poll(HEALTHY), None);
    assert!(job.flow.take_look());
}
