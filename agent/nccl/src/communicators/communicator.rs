//! What is known of one communicator.
#![expect(unsafe_code, reason = "keeps handles")]

use std::ptr;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use ddp_doctor_agent::blackbox::Seat;
use ddp_doctor_agent::identity;
use ddp_doctor_proto::Op;

use super::memory::CommMemory;
use crate::nccl::abi::Comm;
use crate::recording::black_box::{self, BlackBox, Outer};

/// Owner of a communicator.
mod whose {
    /// Not used yet.
    pub(super) const UNKNOWN: u8 = 0;
    /// Used by a framework whose calls are recorded in the same box.
    pub(super) const FRAMEWORK: u8 = 1;
    /// Used by the program directly.
    pub(super) const PROGRAM: u8 = 2;
}

/// Another thread is registering the communicator in the box at this moment.
const REGISTERING: u32 = u32::MAX;

/// Name of a communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Name {
    /// Unique among communicators, and the same on all ranks.
    pub(crate) hash: u64,
    /// Index among the communicators with that hash, from 0.
    pub(crate) occurrence: u32,
    /// NCCL's own hash, which may be shared by communicators derived from one parent.
    pub(crate) in_nccl: u64,
    /// First bytes of the unique ids with which ranks join later, see [`identity::magic_of`].
    pub(crate) magic: u64,
}

/// A communicator that this process is a rank of.
#[derive(Debug)]
pub(crate) struct Communicator {
    /// The box in which it is registered, see [`BlackBox::id`]. After a fork there is another box or
    /// none.
    pub(crate) black_box: usize,
    /// Its group number in that box; 0: not registered yet.
    group: AtomicU32,
    /// Its name on all ranks.
    pub(crate) name: Name,
    /// Name given by the program.
    description: Vec<u8>,
    /// This process's rank in it.
    pub(crate) rank: u32,
    /// Number of ranks.
    pub(crate) size: u32,
    /// Calls return before they are complete.
    pub(crate) non_blocking: bool,
    /// CUDA device; -1: unknown.
    pub(crate) device: i32,
    /// Number of divisions so far.
    divisions: AtomicU32,
    whose: AtomicU8,
    /// NCCL's handle, while it is in the table.
    pub(super) handle: Comm,
    /// Device memory that NCCL holds for it.
    pub(super) held: CommMemory,
}

// SAFETY: the handle is used as a name; code that passes it to NCCL ensures that it is valid.
unsafe impl Send for Communicator {}
// SAFETY: as above.
unsafe impl Sync for Communicator {}

impl Communicator {
    pub(crate) fn new(black_box: BlackBox, name: Name, description: &[u8]) -> Self {
        Self {
            black_box: black_box.id(),
            group: AtomicU32::new(0),
            name,
            description: description.to_vec(),
            rank: 0,
            size: 0,
            non_blocking: false,
            device: -1,
            divisions: AtomicU32::new(0),
            whose: AtomicU8::new(whose::UNKNOWN),
            handle: ptr::null_mut(),
            held: CommMemory::new(),
        }
    }

    /// Whether both are the same communicator.
    pub(super) fn is(&self, other: &Self) -> bool {
        ptr::eq(self, other)
    }

    /// Its group number in the box. Registers it first if necessary; 0: the box has no room, or
    /// another thread is registering it.
    #[inline]
    pub(crate) fn group(&self, black_box: BlackBox) -> u32 {
        match self.group.load(Ordering::Acquire) {
            0 => self.register(black_box),
            REGISTERING => 0,
            group => group,
        }
    }

    /// Its group number in the box, if it is registered.
    pub(crate) fn registered(&self) -> Option<u32> {
        let group = self.group.load(Ordering::Acquire);
        (group != 0 && group != REGISTERING).then_some(group)
    }

    #[cold]
    fn register(&self, black_box: BlackBox) -> u32 {
        let (order, failure) = (Ordering::AcqRel, Ordering::Acquire);
        if let Err(known) = self.group.compare_exchange(0, REGISTERING, order, failure) {
            return if known == REGISTERING { 0 } else { known };
        }
        let group = black_box.communicator(&black_box::CommunicatorInfo {
            op: Op::Unspecified,
            takes_all: false,
            name: identity::name(self.name.hash, self.name.occurrence).as_bytes(),
            description: &self.description,
            seat: Seat { rank: self.rank, size: self.size },
            returns_to: 0,
        });
        self.group.store(group, Ordering::Release);
        group
    }

    /// Marks it as created by a framework, inside one of the framework's calls.
    pub(super) fn mark_as_framework(&self) {
        self.whose.store(whose::FRAMEWORK, Ordering::Relaxed);
    }

    /// Whether a framework created it or was the first to use it.
    #[inline]
    pub(crate) fn is_of_framework(&self) -> bool {
        self.whose.load(Ordering::Relaxed) == whose::FRAMEWORK
    }

    /// The framework's call that uses this communicator now. The first use decides whether a
    /// communicator belongs to a framework; one of the program has no outer call.
    #[inline]
    pub(crate) fn outer(&self) -> Outer {
        let outer = black_box::outer();
        match self.whose.load(Ordering::Relaxed) {
            whose::FRAMEWORK => outer,
            whose::PROGRAM => Outer::Nothing,
            _ => {
                let is_framework = matches!(outer, Outer::Call(_));
                let whose = [whose::PROGRAM, whose::FRAMEWORK][usize::from(is_framework)];
                self.whose.store(whose, Ordering::Relaxed);
                if is_framework { outer } else { Outer::Nothing }
            }
        }
    }

    /// Counts a division, in which all ranks take part, and returns its 1-based number.
    pub(super) fn divide(&self) -> u32 {
        self.divisions.fetch_add(1, Ordering::Relaxed) + 1
    }
}

#[cfg(test)]
impl Communicator {
    /// A communicator of one rank that is registered under this group number.
    pub(super) fn registered_as(group: u32) -> Self {
        Self {
            black_box: 0,
            group: AtomicU32::new(group),
            name: Name { hash: 0, occurrence: 0, in_nccl: 0, magic: 0 },
            description: Vec::new(),
            rank: 0,
            size: 1,
            non_blocking: false,
            device: -1,
            divisions: AtomicU32::new(0),
            whose: AtomicU8::new(whose::UNKNOWN),
            handle: ptr::null_mut(),
            held: CommMemory::new(),
        }
    }
}
