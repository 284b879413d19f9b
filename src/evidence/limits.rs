//! Memory of the tables of a node's processes, and what these share.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use ddp_doctor_proto::report::Where;

use super::memory::Memory;
use super::values::text;
use crate::diagnosis::event::GroupInfo;

/// Limits shared by all processes of a node.
#[derive(Debug)]
pub(super) struct Limits {
    /// Memory for their tables.
    memory: Memory,
    /// Lists of parameters, which the ranks of a job share.
    lines: HashSet<Arc<str>>,
    /// Places in the program.
    places: BTreeSet<Arc<Where>>,
    /// Groups. Each lists all its members.
    groups: HashSet<Arc<GroupInfo>>,
}

impl Limits {
    pub(super) fn new(memory: Memory) -> Self {
        Self { memory, lines: HashSet::new(), places: BTreeSet::new(), groups: HashSet::new() }
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

    /// A group, stored once for all processes that know its members; `None`: there is not enough
    /// memory.
    pub(super) fn group(&mut self, group: GroupInfo) -> Option<Arc<GroupInfo>> {
        if let Some(known) = self.groups.get(&group) {
            return Some(Arc::clone(known));
        }
        let key = &group.key;
        self.take(key.members.len() * 4 + key.name.len() + group.description.len() + 256)?;
        let new = Arc::new(group);
        // Only its seat distinguishes a communicator from others of the process.
        if new.seat.is_none() {
            self.groups.insert(Arc::clone(&new));
        }
        Some(new)
    }
}

/// Memory that a place takes, in bytes.
fn place_bytes(place: &Where) -> usize {
    let via: usize = place.via.iter().map(place_bytes).sum();
    place.file.len() + place.function.len() + 64 + via
}
