//! Memory of the tables of a node's processes, and what these share.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use ddp_doctor_diagnosis::event::GroupInfo;
use ddp_doctor_proto::report::{GroupRef, Where};

use super::members::Listed;
use super::memory::Memory;
use super::values::text;

/// Memory that a member of a group takes, in bytes: its rank in the list of the message's group, in the sorted
/// list of the engine's, and its part of the engine's table of members.
const MEMBER_BYTES: usize = 10;
/// Memory that a group takes beside its members and texts, in bytes.
const GROUP_BYTES: usize = 1 << 10;

/// Limits shared by all processes of a node.
#[derive(Debug)]
pub(super) struct Limits {
    /// Memory for their tables.
    memory: Memory,
    /// Lists of parameters, which the ranks of a job share.
    lines: HashSet<Arc<str>>,
    /// Places in the program.
    places: BTreeSet<Arc<Where>>,
    /// Groups, by what defines them: all but the members, and these as the messages list them.
    groups: HashMap<(GroupInfo, Listed), Arc<GroupInfo>>,
}

impl Limits {
    pub(super) fn new(memory: Memory) -> Self {
        Self { memory, lines: HashSet::new(), places: BTreeSet::new(), groups: HashMap::new() }
    }

    /// Takes memory for a table; `None`: there is not enough.
    pub(super) fn take(&self, bytes: usize) -> Option<()> {
        self.memory.take(bytes).then_some(())
    }

    /// A list of parameters, stored once for all processes.
    pub(super) fn lines(&mut self, lines: &str) -> Option<Arc<str>> {
        if let Some(known) = self.lines.get(lines) {
            return Some(Arc::clone(known));
        }
        let new = text(lines);
        self.take(new.len() + 64)?;
        self.lines.insert(Arc::clone(&new));
        Some(new)
    }

    /// A place, stored once for all processes; `None`: there is not enough memory.
    pub(super) fn place(&mut self, place: Where) -> Option<Arc<Where>> {
        if let Some(known) = self.places.get(&place) {
            return Some(Arc::clone(known));
        }
        self.take(place_bytes(&place))?;
        let new = Arc::new(place);
        self.places.insert(Arc::clone(&new));
        Some(new)
    }

    /// A group with these members, stored once for all processes that know them; `None`: it is invalid, or
    /// there is not enough memory. Members are expanded once there is memory for them.
    pub(super) fn group(&mut self, group: GroupInfo, members: Listed) -> Option<Arc<GroupInfo>> {
        let definition = (group, members);
        if let Some(known) = self.groups.get(&definition) {
            return Some(Arc::clone(known));
        }
        let (group, members) = definition;
        let count = members.count()?;
        if count == 0 && group.seat.is_none() {
            return None;
        }
        let texts = 2 * (group.key.name.len() + group.description.len());
        self.take(count * MEMBER_BYTES + members.bytes() + texts + GROUP_BYTES)?;
        let key = GroupRef { members: members.expand()?, ..group.key.clone() };
        let new = Arc::new(GroupInfo { key, ..group.clone() });
        // Only its seat distinguishes a communicator from others of the process.
        if new.seat.is_none() {
            self.groups.insert((group, members), Arc::clone(&new));
        }
        Some(new)
    }
}

/// Memory that a place takes, in bytes.
fn place_bytes(place: &Where) -> usize {
    let via: usize = place.via.iter().map(place_bytes).sum();
    place.file.len() + place.function.len() + 64 + via
}
