//! The processes of a job by their id.

use std::collections::BTreeMap;
use std::ops::Index;

use crate::input::event::ProcessId;
use crate::model::maps::ByNumber;
use crate::model::process::Process;

/// Processes by id, ascending. A lookup takes the same time in jobs of any size.
#[derive(Debug, Default)]
pub struct Processes {
    all: Vec<Process>,
    places: ByNumber<ProcessId, u32>,
    ordered: BTreeMap<ProcessId, u32>,
}

impl Processes {
    /// Whether there are no processes.
    pub const fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// A process by its id.
    pub fn get(&self, id: &ProcessId) -> Option<&Process> {
        self.places.get(id).map(|&place| &self.all[place as usize])
    }

    /// A process by its id.
    pub fn get_mut(&mut self, id: &ProcessId) -> Option<&mut Process> {
        let place = *self.places.get(id)?;
        self.all.get_mut(place as usize)
    }

    /// Processes in the order of their ids.
    pub fn values(&self) -> impl DoubleEndedIterator<Item = &Process> + Clone {
        let places = self.ordered.values();
        places.map(|&place| &self.all[place as usize])
    }

    /// All processes, to be changed.
    pub(in crate::model) fn values_mut(&mut self) -> impl Iterator<Item = &mut Process> {
        self.all.iter_mut()
    }

    /// The process with this one's id; this one if there is none.
    pub(in crate::model) fn get_or_insert(&mut self, process: Process) -> &mut Process {
        let next = self.all.len() as u32;
        let place = *self.places.entry(process.id).or_insert(next);
        if place == next {
            self.ordered.insert(process.id, place);
            self.all.push(process);
        }
        &mut self.all[place as usize]
    }
}

impl Index<&ProcessId> for Processes {
    type Output = Process;

    fn index(&self, id: &ProcessId) -> &Process {
        &self.all[self.places[id] as usize]
    }
}
