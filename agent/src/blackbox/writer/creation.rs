//! Records of groups that are about to be created.

use std::sync::atomic::Ordering;

use ddp_doctor_proto::blackbox::{MAX_DIMS, Record, creation, header, inside, members, string};
use ddp_doctor_proto::{Op, RecordKind};

use super::{Change, Writer};
use crate::blackbox::MAX_MEMBERS;
use crate::blackbox::nesting::Frame;
use crate::blackbox::recent::CallFacts;
use crate::sys;

/// Rank and size in a group whose members the process does not know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seat {
    /// Rank of the process in the group.
    pub rank: u32,
    /// Number of members.
    pub size: u32,
}

/// A process group that is about to be created.
#[derive(Clone, Copy, Debug)]
pub struct Creation<'a> {
    /// [`Op::NewGroup`] or [`Op::SplitGroup`].
    pub op: Op,
    /// Name by which the members find each other.
    pub name: &'a [u8],
    /// The framework's description.
    pub description: &'a [u8],
    /// The backend.
    pub backend: &'a [u8],
    /// The creation is known to block until all members take part.
    pub takes_all: bool,
    /// Number of the world's initialization in this process, from 0.
    pub epoch: u32,
    /// Global ranks in group order. This process need not be a member.
    pub members: &'a [u32],
    /// This process's place, if the members are unknown; `members` is empty then.
    pub seat: Option<Seat>,
    /// Source location; 0: unknown.
    pub site: u32,
}

impl Writer {
    /// Records that a group is about to be created. Returns the id of the call, never 0.
    ///
    /// Takes no entry of the table of groups, since in a large world a rank takes part in the
    /// creation of many groups of other ranks. If more than half of the string table is used, the
    /// creation is recorded without a description.
    pub fn creating(&self, group: &Creation<'_>) -> u64 {
        let now = sys::monotonic_ns();
        let id = self.next_call.fetch_add(1, Ordering::Relaxed);
        let site = self.count_at_site(group.site, now);
        let known = CallFacts { group: 0, op: group.op, seq: 0 };
        self.calls.remember(id, known);
        let (text, dims) = self.described(group).unwrap_or_default();
        let frame =
            Frame { kind: inside::CALL, op: group.op, group: 0, call: id, since: now, site };
        self.record(
            Some(Change::Enter(frame)),
            Record {
                mono_ns: now,
                kind: RecordKind::Issued,
                op: group.op,
                call: id,
                site,
                text,
                dims,
                ..Record::default()
            },
        );
        id
    }

    /// The number of the name, and the words of [`creation`]; `None`: there is no room.
    fn described(&self, group: &Creation<'_>) -> Option<(u32, [u32; MAX_DIMS])> {
        let used = self.header()[header::STRINGS_COUNT].load(Ordering::Relaxed);
        if used * 2 >= self.capacities.strings as u64 || group.members.len() > MAX_MEMBERS {
            return None;
        }
        let some = |id: u32| (id != 0).then_some(id);
        let name = some(self.string(group.name))?;
        let mut dims = [0; MAX_DIMS];
        if let Some(seat) = group.seat {
            dims[creation::SEAT_PLUS_1] = seat.rank.checked_add(1)?;
            dims[creation::SIZE] = seat.size;
        } else {
            let encoded = members::encode(group.members);
            if encoded.len() > string::MAX_BYTES {
                return None;
            }
            dims[creation::MEMBERS] = some(self.intern(&encoded, string::BINARY))?;
            dims[creation::SIZE] = u32::try_from(group.members.len()).ok()?;
        }
        dims[creation::EPOCH] = group.epoch;
        dims[creation::DESCRIPTION] = self.string(group.description);
        dims[creation::BACKEND] = self.string(group.backend);
        dims[creation::TAKES_ALL] = u32::from(group.takes_all);
        Some((name, dims))
    }
}
