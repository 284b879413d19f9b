//! Calls that PyTorch's recorders tell of, as events.
//!
//! A recorder is looked into from time to time, so it tells of a call more than once: when it is first
//! seen, and when it is over. What it does not tell is who waits for the call. So a call counts as one
//! that came back at once, and whose wait nobody sees ([`Call::is_waited_for_unseen`]).
//!
//! Where NCCL itself is seen, its recorder's calls are told there already, and better: then they only say what c10d
//! calls those ([`super::above`]).

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_proto::{DType, Op, ReduceOp, v1};

use super::above::Entries;
use crate::diagnosis::backends::is_nccl;
use crate::diagnosis::event::{Call, CallId, Event, GroupInfo, ProcessId, ThreadId};

/// Most recorders of a process. PyTorch has one for each kind of backend.
const MAX_RECORDERS: usize = 8;
/// Most groups, and threads, that a recorder names.
const MAX_NAMES: usize = 65_536;
/// Most calls under way that are remembered of a recorder.
const MAX_OPEN: usize = 65_536;
/// Threads that no black box knows have numbers from here on.
const FIRST_THREAD: u32 = 1 << 31;

/// What was told of the recorders of one process.
#[derive(Debug, Default)]
pub(super) struct Recorders {
    /// By name.
    recorders: HashMap<String, Recorder>,
    /// Threads as PyTorch numbers them. The first one is that which made the process a rank.
    threads: HashMap<u64, ThreadId>,
    /// What c10d calls what NCCL is asked for; `None`: NCCL is not seen.
    above: Option<Entries>,
}

#[derive(Debug, Default)]
struct Recorder {
    number: u64,
    /// Calls before this one were told, or are gone.
    next: u64,
    /// Calls under way.
    open: BTreeSet<u64>,
    /// The groups of its calls, by its own numbers.
    groups: HashMap<u64, Arc<GroupInfo>>,
}

impl Recorders {
    /// What is asked of NCCL is told as it is asked.
    pub(super) fn nccl_is_seen(&mut self) {
        self.above.get_or_insert_default();
    }

    /// Names a call on the communicator of that number as c10d does, where that is known.
    pub(super) fn name(&mut self, communicator: u32, call: &mut Call) {
        let above = self.above.as_mut();
        if let Some((above, dims)) = above.and_then(|it| it.of(communicator, call)) {
            call.shape = (!dims.is_empty()).then_some(dims);
            call.above = Some(Arc::new(above));
        }
    }

    /// Takes one call, which was made and is over at the times `at`; `None` where it makes no sense.
    #[expect(
        clippy::too_many_arguments,
        reason = "what a process knows, and what is said"
    )]
    pub(super) fn take(
        &mut self,
        process: ProcessId,
        said: v1::RecorderCall,
        (at, over): (Timestamp, Option<Timestamp>),
        step: u64,
        first_thread: ThreadId,
        group_of: impl Fn(&str) -> Option<Arc<GroupInfo>>,
        out: &mut Vec<Event>,
    ) -> Option<()> {
        if let Some(above) = &mut self.above
            && is_nccl(&said.recorder)
        {
            return above.take(said, at, group_of);
        }
        let number = self.recorders.len();
        if !self.recorders.contains_key(&said.recorder) && number >= MAX_RECORDERS {
            return None;
        }
        // Room for 2^56 calls each.
        if said.id >= 1 << 56 || said.seq == 0 {
            return None;
        }
        let recorder = self.recorders.entry(said.recorder).or_default();
        if recorder.next == 0 {
            recorder.number = number as u64;
        }
        let call = CallId(CallId::FIRST_OF_RECORDERS.0 | recorder.number << 56 | said.id);
        if said.id >= recorder.next {
            // Calls between two looks may have been overwritten. That is no loss like one in a black box: each
            // call says how many of its group came before it.
            recorder.next = said.id + 1;
            let group = match recorder.groups.get(&said.group_number) {
                Some(group) => group.clone(),
                None => {
                    let group = group_of(&said.group)?;
                    if recorder.groups.len() >= MAX_NAMES {
                        return None;
                    }
                    recorder.groups.insert(said.group_number, group.clone());
                    group
                }
            };
            let others = self.threads.len() as u32;
            let thread = match self.threads.get(&said.thread) {
                Some(&thread) => thread,
                None if self.threads.len() >= MAX_NAMES => return None,
                None => {
                    let thread = match others {
                        0 => first_thread,
                        n => ThreadId(FIRST_THREAD + n),
                    };
                    self.threads.insert(said.thread, thread);
                    thread
                }
            };
            if recorder.open.len() >= MAX_OPEN {
                recorder.open.pop_first();
            }
            recorder.open.insert(said.id);
            out.push(Event::Issued {
                process,
                call: Arc::new(Call {
                    id: call,
                    at,
                    thread,
                    group: Some(group),
                    seq: said.seq,
                    op: number_of(said.op, Op::from_number),
                    dtype: number_of(said.dtype, DType::from_number),
                    reduce_op: ReduceOp::Unspecified,
                    root: None,
                    peer: None,
                    tag: None,
                    numel: said.numel,
                    shape: said.numel.is_some().then_some(said.dims),
                    tensors: said.tensors,
                    takes_all: false,
                    is_async: true,
                    on_stream: None,
                    beneath: None,
                    above: None,
                    hidden: false,
                    splits: [Vec::new(), Vec::new()],
                    step,
                    phase: None,
                    place: None,
                }),
            });
        }
        if let Some(over) = over
            && recorder.open.remove(&said.id)
        {
            out.push(Event::Completed {
                process,
                call,
                at: over.max(at),
            });
        }
        Some(())
    }
}

/// A number that may be none of ours.
fn number_of<T: Default>(number: i32, from_number: impl Fn(u8) -> T) -> T {
    u8::try_from(number).map_or_else(|_| T::default(), from_number)
}
