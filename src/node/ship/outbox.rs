//! Queue of the events of a node to the coordinator and the journal.
//!
//! Neither blocks the reader of the black boxes: a thread writes the journal, and a coordinator
//! whose queue is full is disconnected. After a new connection it gets all events again.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_proto::v1::{self, event::Kind};
use tokio::sync::mpsc;

use crate::evidence::journal::{JournalError, Writer};
use crate::node::UserLog;
use crate::node::follow::digest::is_covered;
use crate::node::sys::{self, Space};
use crate::node::timing::Timing;

/// Maximum size of a batch in memory, in bytes, unless one event is larger. The coordinator may hold one
/// of each node before it has time for it.
const BATCH_BYTES: usize = 64 << 10;
/// Maximum number of batches that wait for the disk: at most 64 MiB.
const JOURNAL_QUEUE: usize = 1_024;
/// Maximum size of a journal, in bytes. A collective takes about 160 bytes for each rank.
const MAX_JOURNAL: u64 = 1 << 30;
/// Space that a journal leaves free in its file system, in bytes …
const RESERVE: u64 = 1 << 30;
/// … or 1/20 of the file system, whichever is less.
const RESERVE_SHARE: u64 = 20;
/// Bytes written between checks of free space.
const SPACE_CHECK_BYTES: u64 = 1 << 20;
/// Time limit for a sync of the journal.
const MAX_SYNC: Duration = Duration::from_secs(5);

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
            let events = batch.iter().filter(|it| it.to_journal);
            let events: Vec<_> = events.map(|it| it.event.clone()).collect();
            if !events.is_empty() {
                self.write_journal(events, now);
            }
        }
        let events = batch.into_iter().filter(|it| it.to_live);
        let events: Vec<_> = events.map(|it| it.event).collect();
        if self.live.is_some() && !events.is_empty() {
            self.send_live(events, None);
        }
    }

    fn write_journal(&mut self, events: Vec<v1::Event>, now: Timestamp) {
        if let Some(journal) = &mut self.journal {
            self.journaled = now;
            journal.append(v1::Report { sent_unix_ns: now.0, events, pong: None });
        }
    }

    fn send_live(&mut self, events: Vec<v1::Event>, pong: Option<v1::Pong>) {
        let report = v1::Report { sent_unix_ns: Timestamp::now().0, events, pong };
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

/// A journal and the thread that writes it.
#[derive(Debug)]
pub struct Journal {
    queue: SyncSender<Entry>,
    thread: JoinHandle<()>,
    log: UserLog,
    overran: bool,
}

enum Entry {
    Report(v1::Report),
    Sync(Sender<()>),
}

impl Journal {
    /// Creates the file and starts the thread.
    ///
    /// # Errors
    ///
    /// If the file cannot be created, or the thread cannot be started.
    pub fn create(path: &Path, log: UserLog) -> Result<Self, JournalError> {
        Self::with_limit(path, log, Limit::default())
    }

    fn with_limit(path: &Path, log: UserLog, limit: Limit) -> Result<Self, JournalError> {
        let writer = Writer::create(path)?;
        let (queue, entries) = sync_channel(JOURNAL_QUEUE);
        let thread_log = log.clone();
        let thread = std::thread::Builder::new()
            .name("ddp-journal".into())
            .spawn(move || write(writer, &entries, limit, &thread_log))?;
        Ok(Self { queue, thread, log, overran: false })
    }

    fn append(&mut self, report: v1::Report) {
        if let Err(TrySendError::Full(_)) = self.queue.try_send(Entry::Report(report))
            && !self.overran
        {
            self.overran = true;
            self.log.print("the disk is too slow for the journal: records are missing from it");
        }
    }

    fn sync(&self) -> bool {
        let (done, confirmation) = channel();
        self.queue.send(Entry::Sync(done)).is_ok() && confirmation.recv_timeout(MAX_SYNC).is_ok()
    }

    fn close(self) {
        drop(self.queue);
        // A thread that panicked writes nothing more.
        drop(self.thread.join());
    }
}

/// Returns the space of the file system of a file.
type SpaceQuery = fn(&File) -> io::Result<Space>;

/// Size limit of a journal.
#[derive(Clone, Copy, Debug)]
struct Limit {
    /// Maximum size of the file, in bytes.
    bytes: u64,
    /// Query for the space of the file system.
    space: SpaceQuery,
    /// File length at which the space is checked next, in bytes.
    next_check: u64,
}

impl Default for Limit {
    fn default() -> Self {
        Self { bytes: MAX_JOURNAL, space: sys::space, next_check: 0 }
    }
}

impl Limit {
    /// Reason why the journal must not grow to `length` bytes; `None` if it may.
    fn exceeded(&mut self, length: u64, file: &File) -> Option<String> {
        if length > self.bytes {
            return Some(format!("it has reached its limit of {} MiB", self.bytes >> 20));
        }
        if length < self.next_check {
            return None;
        }
        self.next_check = length + SPACE_CHECK_BYTES;
        // Without a result, the write itself fails once the disk is full.
        let space = (self.space)(file).ok()?;
        let reserve = RESERVE.min(space.total / RESERVE_SHARE);
        (space.free < reserve).then(|| format!("the disk has {} MiB free", space.free >> 20))
    }
}

/// Writes the entries of the queue. After the first failure, which is logged, it stops.
///
/// A journal that reaches its limit ends there, with a whole frame: a reader could not detect a gap.
/// Sync requests are still served.
fn write(mut writer: Writer, entries: &Receiver<Entry>, mut limit: Limit, log: &UserLog) {
    let mut is_full = false;
    for entry in entries {
        let result = match entry {
            Entry::Report(_) if is_full => Ok(()),
            Entry::Report(report) => {
                match limit.exceeded(writer.length_with(&report), writer.file()) {
                    None => writer.append(&report),
                    Some(reason) => {
                        is_full = true;
                        log.print(&format!(
                            "the journal ends here: {reason}; the diagnosis continues"
                        ));
                        Ok(())
                    }
                }
            }
            Entry::Sync(done) => {
                let result = writer.sync();
                if result.is_ok() {
                    // The receiver has timed out.
                    done.send(()).ok();
                }
                result
            }
        };
        if let Err(error) = result {
            log.print(&format!("{error}; the journal ends here, the diagnosis continues"));
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::journal::Reader;

    fn lost(count: u64) -> Kind {
        Kind::RecordsLost(v1::RecordsLost { process: 1, count })
    }

    /// Writes 100 reports; returns the events in the journal, the logged lines, and whether the
    /// coordinator got all reports.
    fn journaled(limit: Limit) -> (Vec<u64>, Vec<String>, bool) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j");
        let (log, lines) = channel();
        let log = UserLog::new(move |line| log.send(line.to_owned()).unwrap());
        let mut outbox = Outbox::new(Some(Journal::with_limit(&path, log, limit).unwrap()));
        let (live, mut reports) = mpsc::channel(200);
        outbox.connect(live);
        for count in 0..100 {
            outbox.push(lost(count));
            outbox.flush();
        }
        assert!(outbox.sync(), "sync");
        outbox.close();
        let mut received = 0;
        while reports.try_recv().is_ok() {
            received += 1;
        }
        let mut reader = Reader::open(&path).unwrap();
        let mut counts = Vec::new();
        while let Some(report) = reader.read().unwrap() {
            for event in report.events {
                let Some(Kind::RecordsLost(lost)) = event.kind else { panic!("{event:?}") };
                counts.push(lost.count);
            }
        }
        assert_eq!(reader.skipped(), None);
        assert!(path.metadata().unwrap().len() <= limit.bytes);
        (counts, lines.try_iter().collect(), received == 100)
    }

    #[test]
    fn journal_at_its_limit_ends_and_logs_one_line() {
        let bytes = 500;
        let (counts, lines, received) = journaled(Limit { bytes, ..Limit::default() });
        assert!((5..50).contains(&counts.len()), "{counts:?}");
        assert!(counts.iter().copied().eq(0..counts.len() as u64));
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].contains("the journal ends here"), "{lines:?}");
        assert!(received);
    }

    #[test]
    fn journal_leaves_disk_space_free() {
        let file = tempfile::tempfile().unwrap();
        let spaces: [(SpaceQuery, bool); 5] = [
            (|_| Ok(Space { free: 4 << 20, total: 100 << 20 }), true),
            (|_| Ok(Space { free: 6 << 20, total: 100 << 20 }), false),
            (|_| Ok(Space { free: RESERVE - 1, total: 1 << 50 }), true),
            (|_| Ok(Space { free: RESERVE, total: 1 << 50 }), false),
            (|_| Err(io::ErrorKind::Unsupported.into()), false),
        ];
        for (i, (space, is_full)) in spaces.into_iter().enumerate() {
            let mut limit = Limit { space, ..Limit::default() };
            assert_eq!(limit.exceeded(10, &file).is_some(), is_full, "{i}");
            assert_eq!(limit.exceeded(20, &file), None, "{i}: not due yet");
        }
        let (counts, lines, received) = journaled(Limit {
            space: |_| Ok(Space { free: 0, total: 1 << 40 }),
            ..Limit::default()
        });
        assert_eq!((counts.len(), lines.len(), received), (0, 1, true), "{lines:?}");
    }

    #[test]
    fn idle_journal_gets_a_heartbeat() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j");
        let mut outbox = Outbox::new(Some(Journal::create(&path, UserLog::discard()).unwrap()));
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
        let path = dir.path().join("j");
        let mut outbox = Outbox::new(Some(Journal::create(&path, UserLog::discard()).unwrap()));
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
