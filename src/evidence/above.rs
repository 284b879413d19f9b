//! What c10d calls the calls that NCCL is asked for, where PyTorch's recorder knows the one and the library
//! before NCCL sees the other.
//!
//! Both tell of the same collectives. NCCL's side is told as it happens and knows operators, roots and
//! streams, so that it alone counts as what the rank does; of the recorder's the group, the number and the shape
//! are taken. Nothing in either says which entry became which call, but c10d writes an entry right
//! before it asks NCCL, on a communicator that serves one group. So a communicator belongs to the
//! one group whose latest entry, of a moment ago, is what it is asked for; its calls are then held against that
//! group's entries alone. What fits none has none: all of this is for words, and proves nothing.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_proto::{DType, Op, v1};

use crate::diagnosis::event::{Above, Call, GroupInfo};

/// Most groups, and communicators, of a process.
const MAX_GROUPS: usize = 8192;
/// Entries of a group that may still become calls.
const KEPT: usize = 64;
/// From an entry to what NCCL is asked for, at most, where it is not known yet which group a communicator
/// serves: less than a step, as a rule, and more than c10d takes.
const MOMENT: Duration = Duration::from_millis(250);
/// By how much the two clocks may be apart: they are read at different times.
const CLOCKS: Duration = Duration::from_millis(1);

/// The latest entries of the groups of a process.
#[derive(Debug, Default)]
pub(super) struct Entries {
    /// By recorder and its number of the group.
    groups: HashMap<Key, Latest>,
    /// What communicators serve, by their number in the box.
    served: HashMap<u32, Key>,
}

type Key = (String, u64);

#[derive(Debug)]
struct Latest {
    group: Arc<GroupInfo>,
    /// Entries before this one are known, or gone.
    next: u64,
    entries: VecDeque<Entry>,
}

#[derive(Debug)]
struct Entry {
    at: Timestamp,
    seq: u64,
    op: Op,
    dtype: DType,
    numel: Option<u64>,
    dims: Vec<u32>,
}

impl Entries {
    /// Takes an entry, made at that time; `None` where it makes no sense. One that is told of again says nothing.
    pub(super) fn take(
        &mut self,
        said: v1::RecorderCall,
        at: Timestamp,
        group_of: impl Fn(&str) -> Option<Arc<GroupInfo>>,
    ) -> Option<()> {
        let key = (said.recorder, said.group_number);
        if !self.groups.contains_key(&key) {
            if self.groups.len() >= MAX_GROUPS {
                return None;
            }
            let latest = Latest {
                group: group_of(&said.group)?,
                next: 0,
                entries: VecDeque::new(),
            };
            self.groups.insert(key.clone(), latest);
        }
        let latest = self.groups.get_mut(&key)?;
        if said.id < latest.next || said.seq == 0 {
            return (said.seq > 0).then_some(());
        }
        latest.next = said.id.checked_add(1)?;
        if latest.entries.len() >= KEPT {
            latest.entries.pop_front();
        }
        latest.entries.push_back(Entry {
            at,
            seq: said.seq,
            op: u8::try_from(said.op).map_or_else(|_| Op::default(), Op::from_number),
            dtype: u8::try_from(said.dtype).map_or_else(|_| DType::default(), DType::from_number),
            numel: said.numel,
            dims: said.dims,
        });
        Some(())
    }

    /// What c10d calls this call, on the communicator of that number, and the shape of its tensor.
    pub(super) fn of(&mut self, communicator: u32, call: &Call) -> Option<(Above, Vec<u32>)> {
        // Of several that are made together, none is the latest.
        if call.on_stream?.launch != 0 {
            return None;
        }
        let key = match self.served.get(&communicator) {
            Some(key) => key.clone(),
            None => self.find(communicator, call)?,
        };
        let latest = self.groups.get_mut(&key)?;
        let at = latest.position(call)?;
        latest.entries.drain(..at);
        let entry = latest.entries.pop_front()?;
        let above = Above {
            group: Arc::clone(&latest.group),
            seq: entry.seq,
        };
        Some((above, entry.dims))
    }

    /// The one group that the communicator can serve.
    fn find(&mut self, communicator: u32, call: &Call) -> Option<Key> {
        let size = call.group.as_ref()?.seat?.size as usize;
        let mut fitting = self.groups.iter().filter(|(_, latest)| {
            let at = latest
                .position(call)
                .and_then(|at| latest.entries.get(at))
                .filter(|entry| call.at.since(entry.at) <= MOMENT);
            latest.group.key.members.len() == size && at.is_some()
        });
        let (key, _) = fitting.next()?;
        if fitting.next().is_some() || self.served.len() >= MAX_GROUPS {
            return None;
        }
        let key = key.clone();
        self.served.insert(communicator, key.clone());
        Some(key)
    }
}

impl Latest {
    /// Where the entry stands that was made last before the call, if the call can have come of it.
    fn position(&self, call: &Call) -> Option<usize> {
        let until = call.at.plus(CLOCKS);
        let at = self.entries.iter().rposition(|entry| entry.at <= until)?;
        self.entries.get(at)?.fits(call).then_some(at)
    }
}

impl Entry {
    /// Whether c10d asks NCCL for such a call because of it.
    fn fits(&self, call: &Call) -> bool {
        // A barrier is the sum of one element.
        let is_barrier = self.op == Op::Barrier && call.op == Op::AllReduce;
        if is_barrier {
            return call.numel == Some(1);
        }
        // Types that NCCL does not know it is asked to move as others of that size.
        self.op == call.op && self.numel == call.numel && self.dtype.size() == call.dtype.size()
    }
}

#[cfg(test)]
#[path = "above_tests.rs"]
mod tests;
