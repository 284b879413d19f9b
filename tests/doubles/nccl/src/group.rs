//! Groups: the calls of a thread since `ncclGroupStart`, executed at the end.
//!
//! A call outside of any group forms its own group.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::{mem, thread};

use crate::comm::Comm;
use crate::fault::InStream;
use crate::mesh::{Aborted, Lane};
use crate::work::{Call, Work};
use crate::{Result, Status, driver, refuse};

/// An operation that blocks until other ranks have arrived. It runs at the end of the group,
/// concurrently with the group's other meetings.
pub(crate) struct Meeting {
    /// Communicator that shows the progress to a nonblocking caller.
    pub(crate) comm: Arc<Comm>,
    pub(crate) run: Box<dyn FnOnce() -> Result<()> + Send>,
}

/// A call to launch.
struct Queued {
    comm: Arc<Comm>,
    call: Call,
    fault: InStream,
    stream: usize,
}

#[derive(Default)]
struct Group {
    depth: u32,
    /// First error of a call in the group.
    error: Option<Status>,
    meetings: Vec<Meeting>,
    calls: Vec<Queued>,
}

thread_local! {
    static GROUP: RefCell<Group> = RefCell::default();
}

pub(crate) fn start() {
    GROUP.with_borrow_mut(|group| group.depth += 1);
}

pub(crate) fn end() -> Result<()> {
    leave()?.map_or(Ok(()), Group::execute)
}

/// Ends a group without executing it.
pub(crate) fn simulate_end() -> Result<()> {
    match leave()?.and_then(|group| group.error) {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

/// Closes one level; returns the group at its outermost end.
fn leave() -> Result<Option<Group>> {
    GROUP.with_borrow_mut(|group| {
        if group.depth == 0 {
            return refuse(Status::INVALID_USAGE, "ncclGroupEnd: not in a group call.".into());
        }
        group.depth -= 1;
        Ok((group.depth == 0).then(|| mem::take(group)))
    })
}

/// Executes a call in its own group, or in the open one, which fails if the call fails.
pub(crate) fn within(call: impl FnOnce() -> Result<()>) -> Result<()> {
    start();
    let done = call();
    if let Err(error) = done
        && error != Status::IN_PROGRESS
    {
        GROUP.with_borrow_mut(|group| group.error = group.error.or(Some(error)));
    }
    let ended = end();
    done.and(ended)
}

pub(crate) fn meet(meeting: Meeting) {
    GROUP.with_borrow_mut(|group| group.meetings.push(meeting));
}

pub(crate) fn call(comm: Arc<Comm>, call: Call, fault: InStream, stream: usize) {
    let queued = Queued { comm, call, fault, stream };
    GROUP.with_borrow_mut(|group| group.calls.push(queued));
}

impl Group {
    fn execute(self) -> Result<()> {
        if let Some(error) = self.error {
            return Err(error);
        }
        let Some(is_blocking) = self.is_blocking() else {
            return refuse(
                Status::INVALID_ARGUMENT,
                "blocking and nonblocking communicators in one group".into(),
            );
        };
        if self.meetings.is_empty() && self.calls.is_empty() {
            return Ok(());
        }
        if is_blocking {
            return self.finish();
        }
        let comms: Vec<_> = self.comms().map(Arc::clone).collect();
        for comm in &comms {
            comm.set_error(Some(Status::IN_PROGRESS));
        }
        let context = driver::context()?;
        let started = thread::Builder::new().spawn(move || {
            let done = driver::make_current(context).and_then(|()| self.finish());
            for comm in &comms {
                comm.set_error(done.err());
            }
        });
        match started {
            Ok(_) => Err(Status::IN_PROGRESS),
            Err(e) => refuse(Status::SYSTEM_ERROR, e.to_string()),
        }
    }

    /// Whether the caller waits for the ranks to meet; `None` if the communicators disagree.
    fn is_blocking(&self) -> Option<bool> {
        let mut all = self.comms().map(|it| it.is_blocking);
        let first = all.next().unwrap_or(true);
        all.all(|it| it == first).then_some(first)
    }

    fn comms(&self) -> impl Iterator<Item = &Arc<Comm>> {
        let meetings = self.meetings.iter().map(|it| &it.comm);
        meetings.chain(self.calls.iter().map(|it| &it.comm))
    }

    fn finish(self) -> Result<()> {
        meet_all(self.meetings)?;
        connect(&self.calls)?;
        launch(self.calls)
    }
}

/// Runs all meetings concurrently, since each may wait for another rank of this process.
fn meet_all(mut meetings: Vec<Meeting>) -> Result<()> {
    if meetings.len() == 1 {
        return (meetings.remove(0).run)();
    }
    let started: Vec<_> = meetings.into_iter().map(|it| thread::spawn(it.run)).collect();
    let mut outcome = Ok(());
    for thread in started {
        let met = thread.join().unwrap_or(Err(Status::INTERNAL_ERROR));
        outcome = outcome.and(met);
    }
    outcome
}

/// Connects pairs of ranks before their first message. Both sides must request matching directions,
/// or both wait for ever.
fn connect(calls: &[Queued]) -> Result<()> {
    let mut wanted: BTreeMap<(usize, usize), (u8, &Arc<Comm>)> = BTreeMap::new();
    for queued in calls {
        let Some((peer, direction)) = queued.call.connection() else {
            continue;
        };
        if peer != queued.comm.rank {
            let comm = Arc::as_ptr(&queued.comm).addr();
            let of_pair = wanted.entry((comm, peer)).or_insert((0, &queued.comm));
            of_pair.0 |= direction;
        }
    }
    let mut open = Vec::new();
    for ((_, peer), (directions, comm)) in wanted {
        let new = comm.newly_connected(peer, directions);
        if new != 0 {
            comm.mesh()?.send(peer, Lane::Connect, u64::from(new), &[]);
            open.push((comm, peer, new));
        }
    }
    for (comm, peer, new) in open {
        let mesh = comm.mesh()?;
        // Sending here is receiving at the peer.
        let mirrored = u64::from(new >> 1 | (new & 1) << 1);
        match mesh.take(peer, Lane::Connect) {
            Ok(message) if message.tag == mirrored => {}
            Ok(_) => {
                mesh.hang();
                return Err(Status::INTERNAL_ERROR);
            }
            Err(Aborted) => return Err(Status::INTERNAL_ERROR),
        }
    }
    Ok(())
}

/// Puts the calls into streams; the calls of one communicator form one piece of work.
fn launch(calls: Vec<Queued>) -> Result<()> {
    let mut by_comm: Vec<(Arc<Comm>, Vec<Queued>)> = Vec::new();
    for queued in calls {
        match by_comm.iter_mut().find(|(comm, _)| Arc::ptr_eq(comm, &queued.comm)) {
            Some((_, calls)) => calls.push(queued),
            None => by_comm.push((Arc::clone(&queued.comm), vec![queued])),
        }
    }
    for (comm, mut calls) in by_comm {
        let mut streams: Vec<usize> = Vec::new();
        for queued in &calls {
            if !streams.contains(&queued.stream) {
                streams.push(queued.stream);
            }
        }
        let Some((first, others)) = streams.split_first() else {
            continue;
        };
        // The work runs in the first stream; the other streams are synchronized with it.
        for other in others {
            driver::join(*first, *other)?;
        }
        calls.sort_by_key(|it| it.call.order());
        let calls = calls.into_iter().map(|it| (it.call, it.fault)).collect();
        let is_captured = driver::is_capturing(*first)?;
        driver::launch(Work::new(comm, calls, is_captured), *first)?;
        for other in others {
            driver::join(*other, *first)?;
        }
    }
    Ok(())
}
