//! What a reader delivers.

use ddp_doctor_proto::blackbox::{Record, memory};

use crate::blackbox::Seat;

/// What [`Reader::poll`](super::Reader::poll) delivers. Definitions come before the records that use them.
#[derive(Clone, Debug, PartialEq)]
pub enum Item {
    /// A text.
    String {
        /// Its number, from 1.
        id: u32,
        /// The text, without what is no UTF-8.
        value: String,
    },
    /// A place in the program.
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
    },
    /// A process group.
    Group {
        /// Its number, from 1.
        id: u32,
        /// The name that its members share.
        name: String,
        /// The framework's description.
        description: String,
        /// "gloo", "nccl", …
        backend: String,
        /// The n-th initialisation of the world, from 0.
        epoch: u32,
        /// The n-th creation of the same epoch, name and members, from 0.
        ordinal: u32,
        /// Global ranks in group order.
        members: Vec<u32>,
    },
    /// A process group whose members the process does not know.
    Communicator {
        /// Its number, from 1, among those of the groups.
        id: u32,
        /// The name that its members share, and no other group has.
        name: String,
        /// The framework's description.
        description: String,
        /// "nccl", …
        backend: String,
        /// The n-th creation of the same name, from 0.
        ordinal: u32,
        /// The process's place there.
        seat: Seat,
    },
    /// A thread. Its number is its own: a later thread in the same entry has another one.
    Thread {
        /// Its number, never 0.
        id: u32,
        /// Its number in the operating system; 0: it was gone before it was seen.
        tid: u32,
        /// Its name.
        name: String,
    },
    /// A record.
    Record(ReadRecord),
    /// The record of a call that makes a group, where it says which.
    Creation(ReadRecord, GroupCreation),
    /// What the process knew of its memory.
    Memory {
        /// Names the sample within its box, among the records.
        ticket: u64,
        /// When, on the monotonic clock.
        mono_ns: u64,
        /// It.
        sample: memory::Sample,
    },
    /// So many records were overwritten before they were read, or never completed.
    Lost(u64),
    /// How far a group came: once for each group, when the writer is dead.
    Frontier(Frontier),
}

/// A record, with what its numbers of texts stand for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadRecord {
    /// Names the record within its box.
    pub ticket: u64,
    /// The record. Of a piece of splits, only the fields that such a record has.
    pub record: Record,
    /// Its text, meaning by kind.
    pub text: String,
    /// The phase it happened in; empty: none.
    pub phase: String,
    /// Of a piece of splits: the sizes. `record.seq` says at which index they begin.
    pub splits: Vec<u32>,
}

/// A process group that is about to be made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupCreation {
    /// What its makers meet by.
    pub name: String,
    /// The framework's description.
    pub description: String,
    /// The backend.
    pub backend: String,
    /// Whoever makes the group is known to be kept until all its members make it.
    pub takes_all: bool,
    /// The n-th initialisation of the world, from 0.
    pub epoch: u32,
    /// Global ranks in group order.
    pub members: Vec<u32>,
    /// Instead of them, where they are not known: the process's place among them.
    pub seat: Option<Seat>,
}

/// Cumulative counters of a group, which outlive the records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Frontier {
    /// The group.
    pub group: u32,
    /// Highest sequence number of a collective that was issued; 0: none.
    pub issued: u64,
    /// Point-to-point calls that were issued, all peers together.
    pub p2p_issued: u64,
}
