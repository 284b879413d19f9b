use ddp_doctor_agent::blackbox::{Call, Options, Place, Writer};
use ddp_doctor_diagnosis::Event;
use ddp_doctor_evidence::decode::Decoder;
use ddp_doctor_proto::Op;
use ddp_doctor_proto::blackbox::Capacities;
use tokio::sync::mpsc;

use super::*;

/// A rank that makes calls, its follower and what a coordinator receives of it.
struct Followed {
    writer: Writer,
    group: u32,
    rank: Rank,
    out: Outbox,
    received: mpsc::Receiver<v1::Report>,
    _dir: tempfile::TempDir,
}

impl Followed {
    fn new() -> Self {
        Self::with_ring(Capacities::default())
    }

    fn with_ring(capacities: Capacities) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let options =
            Options { layer: "c10d".into(), rank: Some(0), capacities, ..Options::default() };
        let writer = Writer::create(&Place::within(dir.path()), &options).unwrap();
        let group = writer.group(b"0", b"", b"gloo", 0, &[0, 1]);
        let known = Arc::default();
        let rank = Rank::open(1, writer.path(), &known).unwrap().unwrap();
        let mut out = Outbox::new(None);
        let (live, received) = mpsc::channel(64);
        out.connect(live);
        Self { writer, group, rank, out, received, _dir: dir }
    }

    fn issue(&self) -> u64 {
        self.writer.issued(&Call {
            op: Op::AllReduce.number(),
            group: self.group,
            ..Call::default()
        })
    }

    /// Makes calls, each with two records, and follows them.
    fn make(&mut self, calls: usize) {
        for _ in 0..calls {
            self.writer.returned(self.issue());
        }
        self.rank.poll(&mut self.out);
    }

    /// Another thread makes calls.
    fn make_elsewhere(&self, calls: usize) {
        let (writer, group) = (&self.writer, self.group);
        let make = || {
            for _ in 0..calls {
                writer.returned(writer.issued(&Call {
                    op: Op::AllReduce.number(),
                    group,
                    ..Call::default()
                }));
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(make);
        });
    }

    /// What the coordinator received since the last call.
    fn receive(&mut self) -> Vec<Kind> {
        self.out.flush();
        let mut kinds = Vec::new();
        while let Ok(report) = self.received.try_recv() {
            kinds.extend(report.events.into_iter().filter_map(|event| event.kind));
        }
        kinds
    }

    fn catch_up(&mut self, most: u64) -> Vec<Kind> {
        self.out.send_digests(false);
        self.rank.catch_up(most, &mut self.out);
        self.out.send_digests(true);
        self.receive()
    }
}

fn tickets(kinds: &[Kind]) -> Vec<u64> {
    let tickets = kinds.iter().filter_map(|kind| match kind {
        Kind::Record(record) => Some(record.ticket),
        _ => None,
    });
    tickets.collect()
}

fn left_out(kinds: &[Kind]) -> Vec<v1::RecordsLeftOut> {
    let left_out = kinds.iter().filter_map(|kind| match kind {
        Kind::RecordsLeftOut(left_out) => Some(left_out.clone()),
        _ => None,
    });
    left_out.collect()
}

#[test]
fn records_that_digests_cover_are_sent_when_they_are_pulled() {
    let mut it = Followed::new();
    it.make(2);
    assert_eq!(tickets(&it.receive()), [0, 1, 2, 3]);
    it.out.send_digests(true);
    it.make(3);
    it.rank.digest(0, &mut it.out);
    let kinds = it.receive();
    let [Kind::Digest(digest)] = kinds.as_slice() else {
        panic!("{kinds:?}");
    };
    assert_eq!((digest.through, digest.groups[0].issued), (10, 5));
    let kinds = it.catch_up(100);
    assert_eq!((tickets(&kinds), left_out(&kinds)), ((4..10).collect(), vec![]));
    assert!(tickets(&it.catch_up(100)).is_empty(), "only once");
    it.out.send_digests(false);
    it.make(1);
    assert_eq!(tickets(&it.receive()), [10, 11]);
}

#[test]
fn pull_of_the_latest_records_leaves_others_out() {
    let mut it = Followed::new();
    it.receive();
    it.out.send_digests(true);
    it.make(500);
    let kinds = it.catch_up(4);
    let left_out = left_out(&kinds);
    assert_eq!((left_out.len(), left_out[0].before), (1, 996));
    assert_eq!(tickets(&kinds), [996, 997, 998, 999]);
    let Some(Kind::GroupFrontier(frontier)) = kinds.last() else {
        panic!("{kinds:?}");
    };
    assert_eq!((frontier.group, frontier.issued), (it.group, 500));
}

/// What the coordinator counts as lost.
fn lost(decoder: &mut Decoder, kinds: Vec<Kind>) -> u64 {
    let events = kinds.into_iter();
    let report = v1::Report {
        events: events.map(|kind| v1::Event { kind: Some(kind) }).collect(),
        ..v1::Report::default()
    };
    let mut events = Vec::new();
    decoder.decode(report, &mut events);
    let lost = events.iter().map(|event| match event {
        Event::RecordsLost { count, .. } => *count,
        _ => 0,
    });
    lost.sum()
}

#[test]
fn records_that_a_pull_requests_and_the_ring_lacks_are_lost() {
    let mut it =
        Followed::with_ring(Capacities { records: 64, max_records: 64, ..Capacities::default() });
    let mut decoder = Decoder::new(0);
    it.make(2);
    assert_eq!(lost(&mut decoder, it.receive()), 0);
    it.out.send_digests(true);
    // The ring has wrapped: older records are gone, which the pull does not request.
    (0..10).for_each(|_| it.make(10));
    let kinds = it.catch_up(20);
    assert_eq!(tickets(&kinds), (184..204).collect::<Vec<_>>());
    assert_eq!(lost(&mut decoder, kinds), 0);
    // More than half of a ring is not requested.
    (0..10).for_each(|_| it.make(10));
    let kinds = it.catch_up(8192);
    assert_eq!(tickets(&kinds), (372..404).collect::<Vec<_>>());
    assert_eq!(lost(&mut decoder, kinds), 0);
    // The process has written since its ring was read.
    it.make(30);
    (0..27).for_each(|_| it.writer.returned(it.issue()));
    let kinds = it.catch_up(20);
    assert_eq!(left_out(&kinds)[0].before, 444);
    assert_eq!(tickets(&kinds), (454..518).collect::<Vec<_>>());
    assert_eq!(lost(&mut decoder, kinds), 10);
}

#[test]
fn call_under_way_that_the_ring_lacks_is_lost() {
    let mut it =
        Followed::with_ring(Capacities { records: 64, max_records: 64, ..Capacities::default() });
    let mut decoder = Decoder::new(0);
    assert_eq!(lost(&mut decoder, it.receive()), 0);
    it.out.send_digests(true);
    it.issue();
    it.make_elsewhere(30);
    it.rank.poll(&mut it.out);
    std::thread::scope(|scope| {
        let calls = || (0..30).for_each(|_| it.writer.returned(it.writer.issued(&Call::default())));
        scope.spawn(calls);
    });
    it.rank.poll(&mut it.out);
    let kinds = it.catch_up(20);
    assert_eq!(tickets(&kinds), (101..121).collect::<Vec<_>>());
    assert_eq!(lost(&mut decoder, kinds), 1);
    it.make(0);
    let kinds = it.catch_up(20);
    assert_eq!(lost(&mut decoder, kinds), 0, "counted once");
}

#[test]
fn call_under_way_is_sent_or_known() {
    let mut it = Followed::new();
    it.receive();
    it.out.send_digests(true);
    it.make(500);
    let open = it.issue();
    // Another thread goes on.
    it.make_elsewhere(100);
    it.rank.poll(&mut it.out);
    let kinds = it.catch_up(4);
    assert_eq!(tickets(&kinds), (1000..1201).collect::<Vec<_>>());
    assert!(left_out(&kinds)[0].threads_inside.is_empty());
    // The next pull need not repeat it.
    it.make(0);
    std::thread::scope(|scope| {
        scope.spawn(|| it.writer.returned(it.writer.issued(&Call::default())));
    });
    it.rank.poll(&mut it.out);
    let kinds = it.catch_up(1);
    assert_eq!(tickets(&kinds), [1202]);
    let thread = left_out(&kinds)[0].threads_inside.clone();
    assert_eq!(thread.len(), 1, "the thread that is inside call {open}");
}
