//! What the node has to say, on its way to the coordinator and into the journal.
//!
//! Neither may hold up the reading: the journal is written by a thread of its own, and a coordinator
//! that does not keep up is dropped and told everything again once it can listen.

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
use crate::node::Say;
use crate::node::sys::{self, Space};
use crate::node::timing::Timing;

/// Estimated bytes of a batch: far below what a frame or a message may have.
const BATCH_BYTES: usize = 256 << 10;
/// Batches on their way to a slow disk: at most 64 MiB.
const JOURNAL_QUEUE: usize = 256;
/// Longest journal. A collective takes some 160 bytes for each rank, and jobs run for weeks.
const MAX_JOURNAL: u64 = 1 << 30;
/// Free room that a journal leaves to its file system: that much …
const RESERVE: u64 = 1 << 30;
/// … or that share of a small one, whichever is less.
const RESERVE_SHARE: u64 = 20;
/// How often the room is looked at, in bytes that were written since.
const LOOK_EVERY: u64 = 1 << 20;
/// How long a confirmation of the disk is waited for.
const SYNC_PATIENCE: Duration = Duration::from_secs(5);

/// Collects events into batches and sends them off.
#[derive(Debug, Default)]
pub struct Outbox {
    /// Events, and whether the journal has to have them.
    batch: Vec<(v1::Event, bool)>,
    bytes: usize,
    journal: Option<Journal>,
    /// When the journal got its last report.
    journaled: Timestamp,
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

    /// Answers a coordinator that asks what time it is here. What was collected goes before it.
    pub fn answer(&mut self, pong: v1::Pong) {
        self.flush();
        if self.live.is_some() {
            self.send_live(Vec::new(), Some(pong));
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
        if self.journal.is_some() {
            let events = batch.iter().filter(|(_, to_journal)| *to_journal);
            let events: Vec<_> = events.map(|(event, _)| event.clone()).collect();
            if !events.is_empty() {
                self.write_journal(events, now);
            }
        }
        if self.live.is_some() {
            self.send_live(batch.into_iter().map(|(event, _)| event).collect(), None);
        }
    }

    fn write_journal(&mut self, events: Vec<v1::Event>, now: Timestamp) {
        if let Some(journal) = &mut self.journal {
            self.journaled = now;
            journal.append(v1::Report {
                sent_unix_ns: now.0,
                events,
                pong: None,
            });
        }
    }

    fn send_live(&mut self, events: Vec<v1::Event>, pong: Option<v1::Pong>) {
        let report = v1::Report {
            sent_unix_ns: Timestamp::now().0,
            events,
            pong,
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
        Kind::Record(record) => {
            let creation = record.creation.as_ref().map_or(0, |group| {
                group.name.len() + group.description.len() + 5 * group.members.len()
            });
            record.text.len() + record.phase.len() + 5 * record.splits.len() + creation
        }
        Kind::SiteDefined(site) => site.file.len() + site.function.len(),
        Kind::GroupDefined(group) => {
            group.name.len() + group.description.len() + 5 * group.members.len()
        }
        Kind::Note(note) => note.text.len(),
        Kind::Stacks(stacks) => {
            let frames = |thread: &v1::ThreadStack| -> usize {
                let frames = thread.python.iter().chain(&thread.native);
                frames
                    .map(|it| 16 + it.file.len() + it.function.len())
                    .sum()
            };
            stacks.trouble.len()
                + stacks
                    .threads
                    .iter()
                    .map(|it| 64 + frames(it))
                    .sum::<usize>()
        }
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
        Self::with_limit(path, say, Limit::default())
    }

    fn with_limit(path: &Path, say: Say, limit: Limit) -> Result<Self, JournalError> {
        let writer = Writer::create(path)?;
        let (queue, entries) = sync_channel(JOURNAL_QUEUE);
        let complain = say.clone();
        let thread = std::thread::Builder::new()
            .name("ddp-journal".into())
            .spawn(move || write(writer, &entries, limit, &complain))?;
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
                .say("the disk is too slow for the journal: some records will be missing from it");
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

/// Says how much room there is around a file.
type AskSpace = fn(&File) -> io::Result<Space>;

/// How far a journal may grow.
#[derive(Clone, Copy, Debug)]
struct Limit {
    /// Its own bytes.
    bytes: u64,
    /// Room of the file system.
    space: AskSpace,
    /// From which length on the room is looked at again.
    look_at: u64,
}

impl Default for Limit {
    fn default() -> Self {
        Self {
            bytes: MAX_JOURNAL,
            space: sys::space,
            look_at: 0,
        }
    }
}

impl Limit {
    /// Why a journal may not become that long; `None`: it may.
    fn exceeded(&mut self, length: u64, file: &File) -> Option<String> {
        if length > self.bytes {
            return Some(format!(
                "it has reached its limit of {} MiB",
                self.bytes >> 20
            ));
        }
        if length < self.look_at {
            return None;
        }
        self.look_at = length + LOOK_EVERY;
        // A file system that does not say how full it is says when it is full.
        let space = (self.space)(file).ok()?;
        let reserve = RESERVE.min(space.total / RESERVE_SHARE);
        (space.free < reserve).then(|| format!("the disk has {} MiB free", space.free >> 20))
    }
}

/// Writes what comes. After a failure it writes nothing more, and says so once.
///
/// A journal that is as long as it may be ends with a whole frame, for good: what came after a gap
/// would be read as if there were none. What it holds is still brought to the disk when asked for.
fn write(mut writer: Writer, entries: &Receiver<Entry>, mut limit: Limit, say: &Say) {
    let mut is_full = false;
    for entry in entries {
        let result = match entry {
            Entry::Report(_) if is_full => Ok(()),
            Entry::Report(report) => {
                match limit.exceeded(writer.length_with(&report), writer.file()) {
                    None => writer.append(&report),
                    Some(reason) => {
                        is_full = true;
                        say.say(&format!(
                            "the journal ends here, the diagnosis continues: {reason}"
                        ));
                        Ok(())
                    }
                }
            }
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
            say.say(&format!("{error}; it ends here, the diagnosis continues"));
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

    /// What a journal holds after 100 reports, what was said meanwhile, and whether the live
    /// diagnosis was told everything.
    fn journaled(limit: Limit) -> (Vec<u64>, Vec<String>, bool) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j");
        let (say, said) = channel();
        let say = Say::new(move |line| say.send(line.to_owned()).unwrap());
        let mut outbox = Outbox::new(Some(Journal::with_limit(&path, say, limit).unwrap()));
        let (live, mut reports) = mpsc::channel(200);
        outbox.connect(live);
        for count in 0..100 {
            outbox.push(lost(count));
            outbox.flush();
        }
        assert!(outbox.sync(), "what it holds is on the disk");
        outbox.close();
        let mut told = 0;
        while reports.try_recv().is_ok() {
            told += 1;
        }
        let mut reader = Reader::open(&path).unwrap();
        let mut counts = Vec::new();
        while let Some(report) = reader.read().unwrap() {
            for event in report.events {
                let Some(Kind::RecordsLost(lost)) = event.kind else {
                    panic!("{event:?}")
                };
                counts.push(lost.count);
            }
        }
        assert_eq!(reader.skipped(), None);
        assert!(path.metadata().unwrap().len() <= limit.bytes);
        (counts, said.try_iter().collect(), told == 100)
    }

    #[test]
    fn a_journal_ends_where_it_is_long_enough_and_says_so_once() {
        let bytes = 500;
        let (counts, said, told) = journaled(Limit {
            bytes,
            ..Limit::default()
        });
        assert!((5..50).contains(&counts.len()), "{counts:?}");
        assert!(counts.iter().copied().eq(0..counts.len() as u64));
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].contains("the journal ends here"), "{said:?}");
        assert!(told);
    }

    #[test]
    fn a_journal_leaves_room_on_the_disk() {
        let file = tempfile::tempfile().unwrap();
        let spaces: [(AskSpace, bool); 5] = [
            (
                |_| {
                    Ok(Space {
                        free: 4 << 20,
                        total: 100 << 20,
                    })
                },
                true,
            ),
            (
                |_| {
                    Ok(Space {
                        free: 6 << 20,
                        total: 100 << 20,
                    })
                },
                false,
            ),
            (
                |_| {
                    Ok(Space {
                        free: RESERVE - 1,
                        total: 1 << 50,
                    })
                },
                true,
            ),
            (
                |_| {
                    Ok(Space {
                        free: RESERVE,
                        total: 1 << 50,
                    })
                },
                false,
            ),
            (|_| Err(io::ErrorKind::Unsupported.into()), false),
        ];
        for (i, (space, is_full)) in spaces.into_iter().enumerate() {
            let mut limit = Limit {
                space,
                ..Limit::default()
            };
            assert_eq!(limit.exceeded(10, &file).is_some(), is_full, "{i}");
            assert_eq!(limit.exceeded(20, &file), None, "{i}: not looked at yet");
        }
        let (counts, said, told) = journaled(Limit {
            space: |_| {
                Ok(Space {
                    free: 0,
                    total: 1 << 40,
                })
            },
            ..Limit::default()
        });
        assert_eq!((counts.len(), said.len(), told), (0, 1, true), "{said:?}");
    }

    #[test]
    fn a_journal_says_now_and_then_that_the_node_lives() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j");
        let mut outbox = Outbox::new(Some(Journal::create(&path, Say::nobody()).unwrap()));
        let timing = Timing::default();
        outbox.heartbeat(&timing);
        outbox.heartbeat(&timing); // that was a moment ago
        outbox.journaled =
            Timestamp(Timestamp::now().0 - timing.journal_heartbeat.as_nanos() as u64);
        outbox.push(lost(1));
        outbox.heartbeat(&timing); // there is something to say
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
