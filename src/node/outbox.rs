//! What the node has to say, on its way to the coordinator and into the journal.
//!
//! Neither may hold up the reading: the journal is written by a thread of its own, and a coordinator
//! that does not keep up is dropped and told everything again once it can listen.

use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_proto::v1::{self, event::Kind};
use tokio::sync::mpsc;

use super::Say;
use crate::evidence::journal::{JournalError, Writer};

/// Estimated bytes of a batch: far below what a frame or a message may have.
const BATCH_BYTES: usize = 256 << 10;
/// Batches on their way to a slow disk: at most 64 MiB.
const JOURNAL_QUEUE: usize = 256;
/// How long a confirmation of the disk is waited for.
const SYNC_PATIENCE: Duration = Duration::from_secs(5);

/// Collects events into batches and sends them off.
#[derive(Debug, Default)]
pub struct Outbox {
    /// Events, and whether the journal has to have them.
    batch: Vec<(v1::Event, bool)>,
    bytes: usize,
    journal: Option<Journal>,
    live: Option<mpsc::Sender<v1::Report>>,
}

impl Outbox {
    /// An outbox with that journal and no coordinator.
    #[must_use]
    pub fn new(journal: Option<Journal>) -> Self {
        Self {
            journal,
            ..Self::default()
        }
    }

    /// Batches go to this coordinator from now on.
    pub fn connect(&mut self, live: mpsc::Sender<v1::Report>) {
        self.flush();
        self.live = Some(live);
    }

    /// Says something to the coordinator and the journal.
    pub fn push(&mut self, kind: Kind) {
        self.add(kind, true);
    }

    /// Says something that the journal has already.
    pub fn push_live(&mut self, kind: Kind) {
        if self.live.is_some() {
            self.add(kind, false);
        }
    }

    /// Sends off what was collected.
    pub fn flush(&mut self) {
        if !self.batch.is_empty() {
            self.send();
        }
    }

    /// Says that the node lives, also where there is nothing else to say.
    pub fn heartbeat(&mut self) {
        if self.batch.is_empty() && self.live.is_some() {
            self.send_live(Vec::new(), Timestamp::now());
        }
    }

    /// Returns once the disk has what was said; whether it has.
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

    fn add(&mut self, kind: Kind, to_journal: bool) {
        self.bytes += weight(&kind);
        self.batch
            .push((v1::Event { kind: Some(kind) }, to_journal));
        if self.bytes >= BATCH_BYTES {
            self.send();
        }
    }

    fn send(&mut self) {
        let now = Timestamp::now();
        self.bytes = 0;
        let batch = std::mem::take(&mut self.batch);
        if let Some(journal) = &mut self.journal {
            let events = batch.iter().filter(|(_, to_journal)| *to_journal);
            let events: Vec<_> = events.map(|(event, _)| event.clone()).collect();
            if !events.is_empty() {
                journal.append(v1::Report {
                    sent_unix_ns: now.0,
                    events,
                });
            }
        }
        if self.live.is_some() {
            self.send_live(batch.into_iter().map(|(event, _)| event).collect(), now);
        }
    }

    fn send_live(&mut self, events: Vec<v1::Event>, now: Timestamp) {
        let report = v1::Report {
            sent_unix_ns: now.0,
            events,
        };
        // Full or gone: the connection ends, comes again and asks for everything.
        if self
            .live
            .as_ref()
            .is_some_and(|live| live.try_send(report).is_err())
        {
            self.live = None;
        }
    }
}

/// Bytes that an event takes, roughly.
fn weight(kind: &Kind) -> usize {
    64 + match kind {
        Kind::Record(record) => record.text.len() + record.phase.len() + 5 * record.splits.len(),
        Kind::SiteDefined(site) => site.file.len() + site.function.len(),
        Kind::GroupDefined(group) => {
            group.name.len() + group.description.len() + 5 * group.members.len()
        }
        Kind::Note(note) => note.text.len(),
        Kind::Hello(hello) => hello.command.iter().map(String::len).sum(),
        _ => 0,
    }
}

/// A journal that is written by a thread of its own.
#[derive(Debug)]
pub struct Journal {
    queue: SyncSender<Entry>,
    thread: JoinHandle<()>,
    say: Say,
    overran: bool,
}

enum Entry {
    Report(v1::Report),
    Sync(Sender<()>),
}

impl Journal {
    /// Makes the file and starts its thread.
    ///
    /// # Errors
    ///
    /// When there can be no such file or no such thread.
    pub fn create(path: &Path, say: Say) -> Result<Self, JournalError> {
        let writer = Writer::create(path)?;
        let (queue, entries) = sync_channel(JOURNAL_QUEUE);
        let complain = say.clone();
        let thread = std::thread::Builder::new()
            .name("ddp-journal".into())
            .spawn(move || write(writer, &entries, &complain))?;
        Ok(Self {
            queue,
            thread,
            say,
            overran: false,
        })
    }

    fn append(&mut self, report: v1::Report) {
        if let Err(TrySendError::Full(_)) = self.queue.try_send(Entry::Report(report))
            && !self.overran
        {
            self.overran = true;
            self.say
                .say("the disk is too slow for the journal: parts of it will be missing");
        }
    }

    fn sync(&self) -> bool {
        let (done, confirmation) = channel();
        self.queue.send(Entry::Sync(done)).is_ok()
            && confirmation.recv_timeout(SYNC_PATIENCE).is_ok()
    }

    fn close(self) {
        drop(self.queue);
        // A thread that panicked has nothing to write any more.
        drop(self.thread.join());
    }
}

/// Writes what comes. After a failure it writes nothing more, and says so once.
fn write(mut writer: Writer, entries: &Receiver<Entry>, say: &Say) {
    for entry in entries {
        let result = match entry {
            Entry::Report(report) => writer.append(&report),
            Entry::Sync(done) => {
                let result = writer.sync();
                if result.is_ok() {
                    // Nobody waits any more: no harm.
                    done.send(()).ok();
                }
                result
            }
        };
        if let Err(error) = result {
            say.say(&format!("{error}; it ends here, the diagnosis goes on"));
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

    #[test]
    fn what_is_repeated_is_not_journaled_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j");
        let mut outbox = Outbox::new(Some(Journal::create(&path, Say::nobody()).unwrap()));
        let (live, mut reports) = mpsc::channel(8);
        outbox.push(lost(1));
        outbox.push_live(lost(9)); // nobody listens yet
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
        let kinds: Vec<_> = journaled
            .into_iter()
            .filter_map(|event| event.kind)
            .collect();
        assert_eq!(kinds, [lost(1), lost(2)]);
    }

    #[test]
    fn a_coordinator_that_does_not_keep_up_is_dropped() {
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
