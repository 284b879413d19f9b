//! What a box says of this moment, apart from its records: whose it is, what its threads are inside
//! of, how far its groups came, who reads it.

use crate::sync::Ordering;
use std::os::unix::fs::FileExt;

use ddp_doctor_proto::Op;
use ddp_doctor_proto::blackbox::{PUBLISHED, WORD, box_flags, group, header, inside, thread};

use super::{Frontier, Reader};
use crate::blackbox::protocol;

/// How often a thread's words are read again because they changed meanwhile.
const RETRIES: usize = 64;

/// Whose box it is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "explained at the header's words")]
pub struct Identity {
    pub pid: u32,
    pub start_ticks: u64,
    pub parent_pid: Option<u32>,
    pub boot_id: [u8; 16],
    pub rank: Option<u32>,
    pub world_size: Option<u32>,
    pub local_rank: Option<u32>,
    pub attempt: u32,
    pub job: String,
    pub host: String,
    pub layer: String,
    pub tool: String,
    pub world: String,
    pub anchor_mono_ns: u64,
    pub anchor_unix_ns: u64,
    /// The process said that it writes no more.
    pub closed: bool,
}

/// A thread at this moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadState {
    /// What records call it.
    pub id: u32,
    /// What the operating system calls it.
    pub tid: u32,
    /// Its name.
    pub name: String,
    /// What it is inside of; `None`: the user's own code, or it changed too fast to be read.
    pub inside: Option<Inside>,
}

/// What a thread is inside of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inside {
    /// The op of the call.
    pub op: Op,
    /// Its group; 0: none.
    pub group: u32,
    /// The call; 0: unknown.
    pub call: u64,
    /// Where; 0: unknown.
    pub site: u32,
    /// Since when, on the monotonic clock.
    pub since_mono_ns: u64,
    /// It waits for a call that it issued earlier.
    pub is_wait: bool,
}

impl Reader {
    /// Whose box it is, as far as the box knows by now.
    #[must_use]
    pub fn identity(&self) -> Identity {
        let word = |at| self.header(at);
        let narrow = |at| u32::try_from(word(at)).ok();
        let plus_1 = |at| narrow(at).and_then(|it| it.checked_sub(1));
        let mut boot_id = [0; 16];
        for (to, from) in boot_id.iter_mut().zip(
            [word(header::BOOT_ID), word(header::BOOT_ID + 1)]
                .into_iter()
                .flat_map(u64::to_le_bytes),
        ) {
            *to = from;
        }
        Identity {
            pid: narrow(header::PID).unwrap_or(0),
            start_ticks: word(header::START_TICKS),
            parent_pid: narrow(header::PARENT_PID).filter(|&it| it != 0),
            boot_id,
            rank: plus_1(header::RANK_PLUS_1),
            world_size: narrow(header::WORLD_SIZE).filter(|&it| it != 0),
            local_rank: plus_1(header::LOCAL_RANK_PLUS_1),
            attempt: narrow(header::ATTEMPT).unwrap_or(0),
            job: self.header_text(header::JOB),
            host: self.header_text(header::HOST),
            layer: self.header_text(header::LAYER),
            tool: self.header_text(header::TOOL),
            world: self.header_text(header::WORLD),
            anchor_mono_ns: word(header::ANCHOR_MONO),
            anchor_unix_ns: word(header::ANCHOR_UNIX),
            closed: word(header::FLAGS) & box_flags::CLOSED != 0,
        }
    }

    /// Changes whenever [`Reader::identity`] may have changed.
    #[must_use]
    pub fn identity_version(&self) -> u64 {
        self.header(header::IDENTITY_VERSION)
    }

    /// Every thread, and what it is inside of.
    #[must_use]
    pub fn threads(&self) -> Vec<ThreadState> {
        let used = self.count(header::THREADS_COUNT, self.tables.threads);
        (0..used)
            .filter_map(|index| {
                let words = self.thread_words(index)?;
                // Otherwise the entry has passed to another thread, which comes at the next call.
                let (first, name, inside) = protocol::thread::read(words, RETRIES)?;
                let (tid, generation) = thread::parse(first)?;
                Some(ThreadState {
                    id: thread::id(index as u16, generation),
                    tid,
                    name: self.text(name),
                    inside: inside.and_then(unpack_inside),
                })
            })
            .collect()
    }

    /// How far each group came.
    #[must_use]
    pub fn frontiers(&self) -> Vec<Frontier> {
        let used = self.count(header::GROUPS_COUNT, self.tables.groups);
        (0..used)
            .filter_map(|index| {
                let words = self.group_words(index)?;
                (words[group::NAME].load(Ordering::Acquire) & PUBLISHED != 0).then(|| Frontier {
                    group: index as u32 + 1,
                    issued: words[group::ISSUED].load(Ordering::Relaxed),
                    p2p_issued: words[group::P2P_ISSUED].load(Ordering::Relaxed),
                })
            })
            .collect()
    }

    /// Tells the writer who reads its box. A box that may only be read is not told.
    pub fn claim(&self, pid: u32, start_ticks: u64) {
        // Through the file and not the map: the map is read-only, and both are the same memory. The
        // time comes first, so that a new pid never stands beside an old time.
        for (at, value) in [
            (header::READER_START_TICKS, start_ticks),
            (header::READER_PID, u64::from(pid)),
        ] {
            if self
                .file
                .write_all_at(&value.to_le_bytes(), (at * WORD) as u64)
                .is_err()
            {
                return;
            }
        }
    }

    /// Who said that he reads the box: pid and start time.
    #[must_use]
    pub fn claimed_by(&self) -> Option<(u32, u64)> {
        let pid = u32::try_from(self.header(header::READER_PID)).ok()?;
        (pid != 0).then(|| (pid, self.header(header::READER_START_TICKS)))
    }
}

fn unpack_inside([what, call, since_mono_ns, site]: [u64; 4]) -> Option<Inside> {
    let is_wait = match what & 0xff {
        inside::CALL => false,
        inside::WAIT => true,
        _ => return None,
    };
    Some(Inside {
        op: Op::from_number((what >> 8) as u8),
        group: (what >> 32) as u32,
        call,
        site: site as u32,
        since_mono_ns,
        is_wait,
    })
}
