//! Queue of the events of a node to the coordinator and the journal.
//!
//! Neither blocks the reader of the black boxes: a thread writes the journal, and a coordinator
//! whose queue is full is disconnected. After a new connection it gets all events again.

use ddp_doctor_evidence::digest::is_covered;
use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_proto::v1::{self, event::Kind};
use tokio::sync::mpsc;

use crate::timing::Timing;
use crate::upload::journal::Journal;

/// Maximum size of a batch in memory, in bytes, unless one event is larger. The coordinator may hold one
/// of each node before it has time for it.
const BATCH_BYTES: usize = 64 << 10;
/// Collects events into batches and sends them.
#[derive(Debug, Default)]
pub struct Outbox {
    batch: Vec<Queued>,
    bytes: usize,
    journal: Option<Journal>,
    /// Time of the last report in the journal.
    journaled: Timestamp,
    live: Option<mpsc::Sender<v1::Report>>,
    /// Evidence that digests cover goes to the journal alone.
    sends_digests: bool,
}

/// An event and its recipients.
#[derive(Debug)]
struct Queued {
    event: v1::Event,
    to_journal: bool,
    to_live: bool,
}

impl Outbox {
    /// Creates an outbox without a coordinator.
    #[must_use]
    pub fn new(journal: Option<Journal>) -> Self {
        Self { journal, ..Self::default() }
    }

    /// Sends batches to this coordinator from now on.
    pub fn connect(&mut self, live: mpsc::Sender<v1::Report>) {
        self.flush();
        self.live = Some(live);
        self.sends_digests = false;
    }

    /// Whether digests replace the evidence that they cover.
    #[must_use]
    pub const fn sends_digests(&self) -> bool {
        self.sends_digests
    }

    /// Sends digests, or the evidence itself, to the coordinator from now on.
    pub const fn send_digests(&mut self, digests: bool) {
        self.sends_digests = digests;
    }

    /// Adds an event for the coordinator and the journal.
    pub fn push(&mut self, kind: Kind) {
        let is_covered = self.sends_digests && is_covered(&kind);
        self.add(kind, true, !is_covered);
    }

    /// Adds an event that the journal already has.
    pub fn push_live(&mut self, kind: Kind) {
        if self.live.is_some() {
            self.add(kind, false, true);
        }
    }

    /// Sends the collected events.
    pub fn flush(&mut self) {
        if !self.batch.is_empty() {
            self.send();
        }
    }

    /// Sends an empty report if nothing is collected, to show that the node is alive.
    pub fn heartbeat(&mut self, timing: &Timing) {
        if !self.batch.is_empty() {
            return;
        }
        if self.live.is_some() {
            self.send_live(Vec::new(), None);
        }
        let now = Timestamp::now();
        if now.since(self.journaled) >= timing.journal_heartbeat {
            self.write_journal(Vec::new(), now);
        }
    }

    /// Answers a ping. Collected events are sent first.
    pub fn answer(&mut self, pong: v1::Pong) {
        self.flush();
        if self.live.is_some() {
            self.send_live(Vec::new(), Some(pong));
        }
    }

    /// Waits until all events are on the disk; false on failure or timeout.
    #[must_use]
    pub fn sync(&mut self) -> bool {
        self.flush();
        self.journal.as_ref().is_some_and(Journal::sync)
    }

    /// Ends the journal.
    pub fn close(mut self) {
        self.flush();
        if let Some(journal) = self.journal.take() {
            journal.close();
        }
    }

    fn add(&mut self, kind: Kind, to_journal: bool, to_live: bool) {
        self.bytes += size(&kind);
        self.batch.push(Queued { event: v1::Event { kind: Some(kind) }, to_journal, to_live });
        if self.bytes >= BATCH_BYTES {
            self.send();
        }
    }

    fn send(&mut self) {
        let now = Timestamp::now();
        self.bytes = 0;
        let batch = std::mem::take(&mut self.batch);
        if self.journal.is_some() {
            let events: Vec<_> =
                batch.iter().filter(|it| it.to_journal).map(|it| it.event.clone()).collect();
            if !events.is_empty() {
                self.write_journal(events, now);
            }
        }
        let events: Vec<_> = batch.into_iter().filter(|it| it.to_live).map(|it| it.event).collect();
        if self.live.is_some() && !events.is_empty() {
            self.send_live(events, None);
        }
    }

    fn write_journal(&mut self, events: Vec<v1::Event>, now: Timestamp) {
        if let Some(journal) = &mut self.journal {
            self.journaled = now;
            journal.append(v1::Report { sent_unix_ns: now.0, events, ..v1::Report::default() });
        }
    }

    fn send_live(&mut self, events: Vec<v1::Event>, pong: Option<v1::Pong>) {
        let sent_unix_ns = Timestamp::now().0;
        let report = v1::Report { sent_unix_ns, events, pong, segment: None };
        // Full or closed: the node reconnects, and the coordinator gets everything again.
        if self.live.as_ref().is_some_and(|live| live.try_send(report).is_err()) {
            self.live = None;
        }
    }
}

/// Size of an event in a batch, in bytes: in memory, and with what it refers to.
fn size(kind: &Kind) -> usize {
    size_of::<v1::Event>() + kind.encoded_len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upload::journal::DEFAULT_SIZE;
    use ddp_doctor_evidence::journal::{FIRST, Reader};
    use ddp_doctor_host::files::Dir;
    use ddp_doctor_host::log::UserLog;

    fn lost(count: u64) -> Kind {
        Kind::RecordsLost(v1::RecordsLost { process: 1, count })
    }

    #[test]
    fn idle_journal_gets_a_heartbeat() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FIRST);
        let dir = Dir::open(dir.path()).unwrap();
        let journal = Journal::create(&dir, DEFAULT_SIZE, UserLog::discard()).unwrap();
        let mut outbox = Outbox::new(Some(journal));
        let timing = Timing::default();
        outbox.heartbeat(&timing);
        outbox.heartbeat(&timing); // too early
        outbox.journaled =
            Timestamp(Timestamp::now().0 - timing.journal_heartbeat.as_nanos() as u64);
        outbox.push(lost(1));
        outbox.heartbeat(&timing); // the batch is not empty
        outbox.flush();
        outbox.close();
        let mut reader = Reader::open(&path).unwrap();
        let mut events = Vec::new();
        while let Some(report) = reader.read().unwrap() {
            assert!(report.sent_unix_ns > 0);
            events.push(report.events.len());
        }
        assert_eq!(events, [0, 1]);
    }

    #[test]
    fn repeated_events_are_not_journaled_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FIRST);
        let dir = Dir::open(dir.path()).unwrap();
        let journal = Journal::create(&dir, DEFAULT_SIZE, UserLog::discard()).unwrap();
        let mut outbox = Outbox::new(Some(journal));
        let (live, mut reports) = mpsc::channel(8);
        outbox.push(lost(1));
        outbox.push_live(lost(9)); // no coordinator is connected
        outbox.connect(live);
        outbox.push_live(lost(1));
        outbox.push(lost(2));
        assert!(outbox.sync());
        outbox.close();
        assert_eq!(reports.try_recv().unwrap().events.len(), 2);
        let mut reader = Reader::open(&path).unwrap();
        let mut journaled = Vec::new();
        while let Some(report) = reader.read().unwrap() {
            journaled.extend(report.events);
        }
        let kinds: Vec<_> = journaled.into_iter().filter_map(|event| event.kind).collect();
        assert_eq!(kinds, [lost(1), lost(2)]);
    }

    #[test]
    fn slow_coordinator_is_disconnected() {
        let mut outbox = Outbox::new(None);
        let (live, reports) = mpsc::channel(1);
        outbox.connect(live);
        for count in 0..3 {
            outbox.push(lost(count));
            outbox.flush();
        }
        assert!(outbox.live.is_none());
        assert_eq!(reports.len(), 1);
    }
}
