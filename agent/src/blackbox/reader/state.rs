//! Current state of a box, apart from its records: the identity of its process, the calls that its
//! threads are in, the counters of its groups, and its reader.

use crate::sync::Ordering;
use std::os::unix::fs::FileExt;

use ddp_doctor_proto::Op;
use ddp_doctor_proto::blackbox::{PUBLISHED, WORD, box_flags, group, header, inside, thread};

use super::{Frontier, Reader};
use crate::blackbox::protocol;
use crate::sys;

/// Number of attempts to read a thread's words while they change.
const RETRIES: usize = 64;

/// Identity of the process that writes a box.
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
    /// The process has closed the box.
    pub closed: bool,
}

/// Current state of a thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadState {
    /// Number of the thread in records.
    pub id: u32,
    /// Thread id of the operating system.
    pub tid: u32,
    /// Name of the thread.
    pub name: String,
    /// Innermost call or wait; `None`: the user's own code, or it changed too often to be read.
    pub inside: Option<Inside>,
}

/// A call or a wait that a thread is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inside {
    /// Op of the call.
    pub op: Op,
    /// Number of the group; 0: none.
    pub group: u32,
    /// Id of the call; 0: unknown.
    pub call: u64,
    /// Source location; 0: unknown.
    pub site: u32,
    /// Start time, monotonic clock.
    pub since_mono_ns: u64,
    /// It is a wait for a call issued earlier.
    pub is_wait: bool,
}

impl Reader {
    /// Identity of the process, as far as the box contains it.
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

    /// Changes whenever the result of [`Reader::identity`] may change.
    #[must_use]
    pub fn identity_version(&self) -> u64 {
        self.header(header::IDENTITY_VERSION)
    }

    /// All threads, each with its innermost call or wait.
    #[must_use]
    pub fn threads(&self) -> Vec<ThreadState> {
        let used = self.count(header::THREADS_COUNT, self.tables.threads);
        (0..used)
            .filter_map(|index| {
                let words = self.thread_words(index)?;
                // If the entry was reused meanwhile, the new thread is reported by the next call.
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

    /// Current counters of all groups.
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

    /// Makes this reader the only one that follows the box, until it is dropped: locks the file and
    /// stores this process in it. Returns false if another reader follows it.
    ///
    /// On a file system without locks several readers may claim a box.
    pub fn claim(&self, pid: u32, start_ticks: u64) -> bool {
        if let Ok(false) = sys::lock(&self.file, true) {
            return false;
        }
        // Written through the file, since the map is read-only; both are the same memory. The start
        // time is written first, so that a new pid is never combined with an old time.
        for (at, value) in
            [(header::READER_START_TICKS, start_ticks), (header::READER_PID, u64::from(pid))]
        {
            let bytes = value.to_le_bytes();
            if self.file.write_all_at(&bytes, (at * WORD) as u64).is_err() {
                break;
            }
        }
        true
    }

    /// Pid and start time of the process that claimed to read the box.
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
