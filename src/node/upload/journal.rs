//! The thread that writes the journal.

use std::fs::File;
use std::io;
use std::sync::mpsc::{Receiver, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use ddp_doctor_evidence::journal::{JournalError, Segments};
use ddp_doctor_host::files::Dir;
use ddp_doctor_host::log::UserLog;
use ddp_doctor_host::sys;
use ddp_doctor_host::sys::Space;
use ddp_doctor_proto::v1;

/// Maximum number of batches that wait for the disk: at most 64 MiB.
const JOURNAL_QUEUE: usize = 1_024;
/// Default of `--journal-size`, in bytes. A collective takes about 160 bytes for each rank.
pub const DEFAULT_SIZE: u64 = 1 << 30;
/// Space that a journal leaves free in its file system, in bytes …
const RESERVE: u64 = 1 << 30;
/// … or 1/20 of the file system, whichever is less.
const RESERVE_SHARE: u64 = 20;
/// Maximum number of bytes written between checks of free space.
const SPACE_CHECK_BYTES: u64 = 1 << 20;
/// Time limit for a sync of the journal.
const MAX_SYNC: Duration = Duration::from_secs(5);

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
    /// Creates the journal of a run directory and starts the thread. It takes at most `limit` bytes.
    ///
    /// # Errors
    ///
    /// If the file cannot be created, or the thread cannot be started.
    pub fn create(dir: &Dir, limit: u64, log: UserLog) -> Result<Self, JournalError> {
        Self::with_reserve(dir, limit, log, Reserve::default())
    }

    fn with_reserve(
        dir: &Dir,
        limit: u64,
        log: UserLog,
        reserve: Reserve,
    ) -> Result<Self, JournalError> {
        let segments = Segments::create(dir, limit)?;
        let (queue, entries) = sync_channel(JOURNAL_QUEUE);
        let thread_log = log.clone();
        let thread = std::thread::Builder::new()
            .name("ddp-journal".into())
            .spawn(move || write(segments, &entries, reserve, &thread_log))?;
        Ok(Self { queue, thread, log, overran: false })
    }

    /// Queues a report.
    pub(super) fn append(&mut self, report: v1::Report) {
        if let Err(TrySendError::Full(_)) = self.queue.try_send(Entry::Report(report))
            && !self.overran
        {
            self.overran = true;
            self.log.print("the disk is too slow for the journal: records are missing from it");
        }
    }

    /// Waits until the queued reports are on the disk; false on failure or timeout.
    pub(super) fn sync(&self) -> bool {
        let (done, confirmation) = channel();
        self.queue.send(Entry::Sync(done)).is_ok() && confirmation.recv_timeout(MAX_SYNC).is_ok()
    }

    /// Writes what is queued, and ends the thread.
    pub(super) fn close(self) {
        drop(self.queue);
        // A thread that panicked writes nothing more.
        drop(self.thread.join());
    }
}

/// Returns the space of the file system of a file.
type SpaceQuery = fn(&File) -> io::Result<Space>;

/// Space that a journal leaves free.
#[derive(Clone, Copy, Debug)]
struct Reserve {
    /// Query for the space of the file system.
    space: SpaceQuery,
    /// Size of the journal at which the space is checked next, in bytes.
    next_check: u64,
    /// Size at the previous check: dropped segments make a journal smaller.
    checked: u64,
}

impl Default for Reserve {
    fn default() -> Self {
        Self { space: sys::space, next_check: 0, checked: 0 }
    }
}

impl Reserve {
    /// Reason why the journal must not grow to `length` bytes; `None` if it may.
    fn refusal(&mut self, length: u64, file: &File) -> Option<String> {
        if (self.checked..self.next_check).contains(&length) {
            return None;
        }
        self.checked = length;
        self.next_check = length + SPACE_CHECK_BYTES;
        // Without a result, the write itself fails once the disk is full.
        let space = (self.space)(file).ok()?;
        let reserve = RESERVE.min(space.total / RESERVE_SHARE);
        let room = space.free.saturating_sub(reserve);
        if room > 0 {
            // On a small disk the next check comes before the reserve is used.
            self.next_check = length + SPACE_CHECK_BYTES.min(room / 2);
        }
        (space.free < reserve).then(|| format!("the disk has {} MiB free", space.free >> 20))
    }
}

/// Writes the entries of the queue. After the first failure, which is logged, it writes no more reports:
/// the journal ends with a whole frame. Sync requests are still served.
fn write(mut journal: Segments, entries: &Receiver<Entry>, mut reserve: Reserve, log: &UserLog) {
    let mut is_over = false;
    for entry in entries {
        match entry {
            Entry::Report(_) if is_over => {}
            Entry::Report(report) => {
                let reason = reserve.refusal(journal.length_with(&report), journal.file());
                let failure = || journal.append(&report).err().map(|error| error.to_string());
                if let Some(reason) = reason.or_else(failure) {
                    is_over = true;
                    let line = format!("the journal ends here: {reason}; the diagnosis continues");
                    log.print(&line);
                }
            }
            Entry::Sync(done) => match journal.sync() {
                // The receiver has timed out if this fails.
                Ok(()) => drop(done.send(())),
                Err(error) => log.print(&error.to_string()),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use ddp_doctor_proto::v1::event::Kind;
    use tokio::sync::mpsc;

    use super::*;
    use crate::upload::outbox::Outbox;
    use ddp_doctor_evidence::journal::{FIRST, LATER, SegmentReader};

    fn lost(count: u64) -> Kind {
        Kind::RecordsLost(v1::RecordsLost { process: 1, count })
    }

    /// Writes 100 reports; returns the events in the journal, the logged lines, and whether the
    /// coordinator got all reports.
    fn journaled(reserve: Reserve) -> (Vec<u64>, Vec<String>, bool) {
        let dir = tempfile::tempdir().unwrap();
        let (log, lines) = channel();
        let log = UserLog::new(move |line| log.send(line.to_owned()).unwrap());
        let journal =
            Journal::with_reserve(&Dir::open(dir.path()).unwrap(), DEFAULT_SIZE, log, reserve)
                .unwrap();
        let mut outbox = Outbox::new(Some(journal));
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
        let mut reader = SegmentReader::open([dir.path().join(FIRST)]).unwrap();
        let mut counts = Vec::new();
        while let Some(report) = reader.read().unwrap() {
            for event in report.events {
                let Some(Kind::RecordsLost(lost)) = event.kind else { panic!("{event:?}") };
                counts.push(lost.count);
            }
        }
        assert!(reader.skipped().is_empty());
        assert!(!dir.path().join(LATER).exists());
        (counts, lines.try_iter().collect(), received == 100)
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
            let mut reserve = Reserve { space, ..Reserve::default() };
            assert_eq!(reserve.refusal(10, &file).is_some(), is_full, "{i}");
            assert_eq!(reserve.refusal(20, &file), None, "{i}: not due yet");
            assert_eq!(reserve.refusal(5, &file).is_some(), is_full, "{i}: it became smaller");
        }
        let (counts, lines, received) = journaled(Reserve {
            space: |_| Ok(Space { free: 0, total: 1 << 40 }),
            ..Reserve::default()
        });
        assert_eq!((counts.len(), lines.len(), received), (0, 1, true), "{lines:?}");
        assert!(lines[0].contains("the journal ends here"), "{lines:?}");
    }
}
