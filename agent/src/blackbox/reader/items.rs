//! Items that a reader delivers.

use ddp_doctor_proto::blackbox::{Record, memory};

use crate::blackbox::Seat;

/// An item of [`Reader::poll`](super::Reader::poll). Definitions come before the records that use
/// them.
#[derive(Clone, Debug, PartialEq)]
pub enum Item {
    /// A source location.
    Site {
        /// Its number, from 1.
        id: u32,
        /// File; empty: unknown.
        file: String,
        /// Function; empty: unknown.
        function: String,
        /// Line, from 1; 0: unknown.
        line: u32,
        /// Site of the call that first led there; 0: unknown.
        caller: u32,
        /// Whether the line is in an installed package.
        library: bool,
    },
    /// A process group.
    Group {
        /// Its number, from 1.
        id: u32,
        /// The name that its members share.
        name: String,
        /// Description from the framework.
        description: String,
        /// Backend: "gloo", "nccl", …
        backend: String,
        /// Number of the world's initialization, from 0.
        epoch: u32,
        /// Number among the groups with the same epoch, name and members, from 0.
        ordinal: u32,
        /// Global ranks in group order.
        members: Vec<u32>,
        /// The process's place, if the members are unknown. Such a group's name is unique to it.
        seat: Option<Seat>,
    },
    /// A thread. Each thread has a number of its own, even if table entries are reused.
    Thread {
        /// Its number, never 0.
        id: u32,
        /// Thread id of the operating system; 0: the thread had ended before it was read.
        tid: u32,
        /// Its name.
        name: String,
    },
    /// A record.
    Record(ReadRecord),
    /// A memory sample of the process.
    Memory {
        /// Ticket of the sample, unique within its box.
        ticket: u64,
        /// Time of the sample, monotonic clock.
        mono_ns: u64,
        /// The sample.
        sample: memory::Sample,
    },
    /// Number of records that were overwritten before they were read, or never completed.
    Lost(u64),
    /// Final counters of a group. Delivered once per group when the writer is dead.
    Frontier(Frontier),
}

/// A record with its strings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadRecord {
    /// Ticket of the record, unique within its box.
    pub ticket: u64,
    /// The record. For a piece of splits, only the fields that such a record has.
    pub record: Record,
    /// Text of the record; its meaning depends on the kind.
    pub text: String,
    /// Phase of the process at the time; empty: none.
    pub phase: String,
    /// For a piece of splits: the sizes, starting at index `record.seq`.
    pub splits: Vec<u32>,
    /// For a call that creates a group: the group, if the box had room for its description.
    pub creation: Option<Box<GroupCreation>>,
}

/// A process group that is about to be created.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupCreation {
    /// Name by which the members find each other.
    pub name: String,
    /// Description from the framework.
    pub description: String,
    /// The backend.
    pub backend: String,
    /// The creation is known to block until all members take part.
    pub takes_all: bool,
    /// Number of the world's initialization, from 0.
    pub epoch: u32,
    /// Global ranks in group order.
    pub members: Vec<u32>,
    /// The process's place, if the members are unknown.
    pub seat: Option<Seat>,
}

/// Cumulative counters of a group, which outlive the records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Frontier {
    /// Number of the group.
    pub group: u32,
    /// Highest sequence number of an issued collective; 0: none.
    pub issued: u64,
    /// Number of issued point-to-point calls, with all peers.
    pub p2p_issued: u64,
}
