//! Determines the members of communicators from what each member reports.
//!
//! A process that creates an NCCL communicator knows its own rank in it and the size, but not the
//! other members. Such groups have a [`Seat`] instead of members. Once every seat of a communicator
//! is reported, by whichever processes, its members are known, and the model receives it like any
//! other group.
//!
//! Until then, the events of a process are held back from the first one that names such a group, so
//! that they stay in order; but not for long. A communicator with as many seats as the world has
//! ranks is then assumed to seat them in order, unless a report contradicts that. Calls on any
//! other communicator are passed on as calls of no group.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use ddp_doctor_proto::ProcessState;
use ddp_doctor_proto::report::{GroupRef, Timestamp};

use crate::input::event::{Call, Event, GroupInfo, ProcessId, Seat};

/// Maximum time for which events wait for the members of a communicator. Evidence of other
/// processes may be that late.
const PATIENCE: Duration = Duration::from_secs(2);
/// Maximum number of events held back per process.
const MAX_HELD: usize = 16 * 1024;
/// Maximum number of communicators.
const MAX_COMMUNICATORS: usize = 64 * 1024;
/// Separates the name of a communicator from the name of one that is split off it.
const OUT_OF: char = '/';

/// The communicators whose members have to be determined.
#[derive(Debug, Default)]
pub struct Roster {
    processes: BTreeMap<ProcessId, Process>,
    /// Events held back, by process.
    held: BTreeMap<ProcessId, Held>,
    communicators: BTreeMap<Key, Communicator>,
    /// Groups with known members, by the address of their description.
    groups: BTreeMap<usize, KnownGroup>,
    /// Groups whose assumed members were wrong.
    mistaken: Vec<Arc<GroupInfo>>,
}

#[derive(Debug, Default)]
struct Process {
    rank: Option<u32>,
    world_size: Option<u32>,
}

/// Events of a process that are held back, and since when the first of them was.
#[derive(Debug)]
struct Held {
    events: VecDeque<Event>,
    since: Timestamp,
}

/// A group with known members. Keeps its description alive, so that the address stays valid.
#[derive(Debug)]
struct KnownGroup {
    reported: Arc<GroupInfo>,
    is: Arc<GroupInfo>,
}

/// The identity of a communicator, equal for all of its members.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    layer: String,
    name: String,
    ordinal: u32,
    size: u32,
}

#[derive(Debug, Default)]
struct Communicator {
    /// Global ranks by their rank in the communicator.
    seats: BTreeMap<u32, u32>,
    /// Global ranks in the order of the communicator.
    members: Option<Arc<[u32]>>,
    /// The members are assumed.
    assumed: bool,
    /// A process had to continue without knowing the members.
    given_up: bool,
    /// Processes that joined it while its members were unknown, with its description.
    unheard: Vec<(ProcessId, Arc<GroupInfo>)>,
    /// The latest description with members, which processes share.
    described: Option<Arc<GroupInfo>>,
}

impl Roster {
    /// Whether [`Roster::take`] would only pass on this event.
    pub fn ignores(&self, event: &Event) -> bool {
        self.held.is_empty()
            && !matches!(event, Event::ProcessJoined { .. })
            && group_of(event).is_none()
    }

    /// Takes an event, and passes on those whose groups are known.
    pub fn take(&mut self, event: Event, now: Timestamp, out: &mut Vec<Event>) {
        let Some(process) = process_of(&event) else {
            if matches!(event, Event::JobEnded { .. } | Event::EvidenceEnded { .. }) {
                self.give_up(|_| true, out);
            }
            out.push(event);
            return;
        };
        let is_last = matches!(
            event,
            Event::ProcessChanged { state: ProcessState::Dead, .. } | Event::Unwatched { .. }
        );
        if let Event::ProcessJoined { rank, world_size, .. } = &event {
            let known = self.processes.entry(process).or_default();
            known.rank = rank.or(known.rank);
            known.world_size = world_size.or(known.world_size);
        }
        let settled = self.sit(process, &event, out);
        let waits = self.held.contains_key(&process);
        let event = if waits { Some(event) } else { self.understand(process, event, out) };
        let mut full = false;
        if let Some(event) = event {
            let new = || Held { events: VecDeque::new(), since: now };
            let held = self.held.entry(process).or_insert_with(new);
            held.events.push_back(event);
            full = held.events.len() >= MAX_HELD;
        }
        if settled {
            self.drain(out);
        }
        if is_last || full {
            self.give_up(|it| it == process, out);
        }
    }

    /// Passes on events that have been held back for too long.
    pub fn release(&mut self, now: Timestamp, out: &mut Vec<Event>) {
        let due: BTreeSet<ProcessId> =
            self.due().filter(|(_, due)| *due <= now).map(|(id, _)| id).collect();
        if !due.is_empty() {
            self.give_up(|process| due.contains(&process), out);
        }
    }

    /// When [`Roster::release`] is due.
    pub fn next_release(&self) -> Option<Timestamp> {
        self.due().map(|(_, due)| due).min()
    }

    /// Processes with events held back, and until when these wait.
    fn due(&self) -> impl Iterator<Item = (ProcessId, Timestamp)> {
        self.held.iter().map(|(&id, held)| (id, held.since.plus(PATIENCE)))
    }

    /// Groups passed on whose assumed members turned out to be wrong.
    pub fn take_mistaken(&mut self) -> Vec<Arc<GroupInfo>> {
        std::mem::take(&mut self.mistaken)
    }

    /// Records the seat that a process reports. Returns whether this completed the members of a
    /// communicator.
    fn sit(&mut self, process: ProcessId, event: &Event, out: &mut Vec<Event>) -> bool {
        let joins = matches!(event, Event::GroupJoined { .. });
        let Some((group, makes)) = group_of(event).filter(|(_, makes)| joins || *makes) else {
            return false;
        };
        let rank = self.processes.get(&process).and_then(|it| it.rank);
        let (Some(seat), Some(rank)) = (group.seat, rank) else { return false };
        // Members that split a communicator are seated as in that communicator.
        if makes && group.key.name.contains(OUT_OF) {
            return false;
        }
        let key = Key::new(group, seat);
        if self.communicators.len() >= MAX_COMMUNICATORS && !self.communicators.contains_key(&key) {
            return false;
        }
        let communicator = self.communicators.entry(key).or_default();
        let is_new = *communicator.seats.entry(seat.rank).or_insert(rank) == rank;
        if let Some(members) = &communicator.members {
            let agrees = members.get(seat.rank as usize) == Some(&rank);
            if !communicator.assumed || (is_new && agrees) {
                return false;
            }
            communicator.members = None;
            communicator.assumed = false;
            communicator.given_up = true;
            let name = &group.key.name;
            let mistaken = self.groups.values().filter(|it| it.reported.key.name == *name);
            self.mistaken.extend(mistaken.map(|it| Arc::clone(&it.is)));
            self.groups.retain(|_, it| it.reported.key.name != *name);
        }
        let Some(members) = communicator.all_seats(seat.size) else { return false };
        communicator.members = Some(members);
        for (process, group) in std::mem::take(&mut communicator.unheard) {
            if let Ok(group) = self.find(&group, false) {
                out.push(Event::GroupJoined { process, group });
            }
        }
        true
    }

    /// Passes on events whose groups are known now.
    fn drain(&mut self, out: &mut Vec<Event>) {
        let waiting: Vec<ProcessId> = self.held.keys().copied().collect();
        for process in waiting {
            self.drain_process(process, out);
        }
    }

    fn drain_process(&mut self, process: ProcessId, out: &mut Vec<Event>) {
        loop {
            let held = self.held.get_mut(&process);
            let Some(event) = held.and_then(|it| it.events.pop_front()) else {
                self.held.remove(&process);
                return;
            };
            if let Some(event) = self.understand(process, event, out) {
                if let Some(held) = self.held.get_mut(&process) {
                    held.events.push_front(event);
                }
                return;
            }
        }
    }

    /// Lets processes continue without the members that they wait for.
    fn give_up(&mut self, whose: impl Fn(ProcessId) -> bool, out: &mut Vec<Event>) {
        let waiting: Vec<ProcessId> = self.held.keys().copied().collect();
        for process in waiting.into_iter().filter(|&it| whose(it)) {
            loop {
                self.drain_process(process, out);
                let first = self.held.get(&process).and_then(|it| it.events.front());
                let Some((group, makes)) = first.and_then(group_of) else { break };
                let group = Arc::clone(group);
                self.assume(process, &group, makes);
            }
        }
        self.drain(out);
    }

    /// Assumes that ranks are seated in order, if there are as many seats as ranks and no rank is
    /// known to sit elsewhere. Otherwise the communicator stays unknown.
    fn assume(&mut self, process: ProcessId, group: &GroupInfo, makes: bool) {
        let Some(seat) = group.seat else { return };
        let world_size = self.processes.get(&process).and_then(|it| it.world_size);
        let own = Key::new(group, seat);
        // That which `find` looks up, or the event would wait forever.
        let key = if makes { own.parent() } else { own };
        let communicator = self.communicators.entry(key).or_default();
        let in_order = communicator.seats.iter().all(|(seat, rank)| seat == rank);
        if world_size == Some(seat.size) && in_order && !communicator.seats.is_empty() {
            communicator.members = Some((0..seat.size).collect());
            communicator.assumed = true;
        } else {
            communicator.given_up = true;
        }
    }

    /// Passes an event on with the members of its group; returns it if those are not known yet.
    fn understand(
        &mut self,
        process: ProcessId,
        mut event: Event,
        out: &mut Vec<Event>,
    ) -> Option<Event> {
        let Some((group, makes)) = group_of(&event) else {
            out.push(event);
            return None;
        };
        let group = Arc::clone(group);
        match self.find(&group, makes) {
            Ok(known) => {
                name_members(&mut event, &known);
                out.push(event);
            }
            Err(Unknown::Yet) => return Some(event),
            Err(Unknown::GivenUp) => match event {
                Event::Issued { process, call } => {
                    out.push(Event::Issued { process, call: Arc::new(of_no_group(&call)) });
                }
                Event::GroupJoined { .. } => {
                    let key = group.seat.map(|seat| Key::new(&group, seat));
                    if let Some(known) = key.and_then(|key| self.communicators.get_mut(&key)) {
                        known.unheard.push((process, group));
                    }
                }
                // The model does not know the group.
                _ => {}
            },
        }
        None
    }

    /// The group with its members.
    fn find(&mut self, group: &Arc<GroupInfo>, makes: bool) -> Result<Arc<GroupInfo>, Unknown> {
        if let Some(known) = self.groups.get(&Arc::as_ptr(group).addr()) {
            return Ok(Arc::clone(&known.is));
        }
        let Some(seat) = group.seat else { return Ok(Arc::clone(group)) };
        let own = Key::new(group, seat);
        let key = if makes { own.parent() } else { own };
        let communicator = self.communicators.get_mut(&key).ok_or(Unknown::Yet)?;
        let Some(members) = &communicator.members else {
            return Err(if communicator.given_up { Unknown::GivenUp } else { Unknown::Yet });
        };
        let is = GroupInfo {
            key: GroupRef { members: members.to_vec(), ..group.key.clone() },
            seat: None,
            ..GroupInfo::clone(group)
        };
        let shared = communicator.described.take().filter(|it| **it == is);
        let is = shared.unwrap_or_else(|| Arc::new(is));
        communicator.described = Some(Arc::clone(&is));
        let known = KnownGroup { reported: Arc::clone(group), is: Arc::clone(&is) };
        self.groups.insert(Arc::as_ptr(group).addr(), known);
        Ok(is)
    }
}

/// Why the members of a group are unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unknown {
    /// Not all members have reported.
    Yet,
    /// Members did not report in time.
    GivenUp,
}

impl Key {
    fn new(group: &GroupInfo, seat: Seat) -> Self {
        Self {
            layer: group.key.layer.clone(),
            name: group.key.name.clone(),
            ordinal: group.key.ordinal,
            size: seat.size,
        }
    }

    /// The communicator that this one was split off; itself if there is none.
    fn parent(self) -> Self {
        match self.name.rsplit_once(OUT_OF) {
            Some((parent, _)) => Self { name: parent.to_owned(), ordinal: 0, ..self },
            None => self,
        }
    }
}

impl Communicator {
    /// The members, once every seat is taken by a different rank.
    fn all_seats(&self, size: u32) -> Option<Arc<[u32]>> {
        let ranks: BTreeSet<u32> = self.seats.values().copied().collect();
        let complete = self.seats.len() == size as usize && ranks.len() == self.seats.len();
        complete.then(|| self.seats.values().copied().collect())
    }
}

/// The group of an event that has a seat instead of members, and whether the event is about to
/// create it.
fn group_of(event: &Event) -> Option<(&Arc<GroupInfo>, bool)> {
    let (group, makes) = match event {
        Event::GroupJoined { group, .. }
        | Event::GroupDestroyed { group, .. }
        | Event::GroupTimeout { group, .. }
        | Event::Frontier { group, .. } => (group, false),
        Event::Unawaited { group, .. } => (group.as_ref()?, false),
        Event::Issued { call, .. } => (call.group.as_ref()?, call.op.creates_group()),
        _ => return None,
    };
    group.seat.is_some().then_some((group, makes))
}

/// Replaces the group by the one with members, and its ranks by global ranks.
fn name_members(event: &mut Event, known: &Arc<GroupInfo>) {
    match event {
        Event::GroupJoined { group, .. }
        | Event::GroupDestroyed { group, .. }
        | Event::GroupTimeout { group, .. }
        | Event::Frontier { group, .. } => *group = Arc::clone(known),
        Event::Unawaited { group, .. } => *group = Some(Arc::clone(known)),
        Event::Issued { call, .. } => {
            let global = |rank: u32| known.key.members.get(rank as usize).copied();
            *call = Arc::new(Call {
                group: Some(Arc::clone(known)),
                root: call.root.and_then(global),
                peer: call.peer.and_then(global),
                ..Call::clone(call)
            });
        }
        _ => {}
    }
}

fn of_no_group(call: &Call) -> Call {
    Call { group: None, seq: 0, root: None, peer: None, ..call.clone() }
}

/// The process that an event concerns.
const fn process_of(event: &Event) -> Option<ProcessId> {
    Some(match event {
        Event::ProcessJoined { process, .. }
        | Event::GroupJoined { process, .. }
        | Event::GroupDestroyed { process, .. }
        | Event::GroupTimeout { process, .. }
        | Event::Site { process, .. }
        | Event::Issued { process, .. }
        | Event::Returned { process, .. }
        | Event::WaitBegin { process, .. }
        | Event::WaitEnd { process, .. }
        | Event::Completed { process, .. }
        | Event::LowerCall { process, .. }
        | Event::Within { process, .. }
        | Event::Transfer { process, .. }
        | Event::Unawaited { process, .. }
        | Event::Step { process, .. }
        | Event::PhaseBegin { process, .. }
        | Event::PhaseEnd { process, .. }
        | Event::Exception { process, .. }
        | Event::ExitAnnounced { process, .. }
        | Event::InputEnded { process, .. }
        | Event::Setting { process, .. }
        | Event::Memory { process, .. }
        | Event::Spent { process, .. }
        | Event::Scheduled { process, .. }
        | Event::Parameters { process, .. }
        | Event::Frontier { process, .. }
        | Event::ProcessChanged { process, .. }
        | Event::ThreadDefined { process, .. }
        | Event::Stacks { process, .. }
        | Event::DeviceCalls { process, .. }
        | Event::Unwatched { process, .. }
        | Event::WorkerNamed { process, .. }
        | Event::NodeFailed { process, .. }
        | Event::Stated { process, .. }
        | Event::RecordsLost { process, .. }
        | Event::Gap { process, .. }
        | Event::RecordsLeftOut { process, .. }
        | Event::StepReached { process, .. } => *process,
        Event::Note { process, .. } => return *process,
        Event::JobStarted { .. }
        | Event::RankStarted(_)
        | Event::EvidenceEnded { .. }
        | Event::Clock { .. }
        | Event::GpuSampled { .. }
        | Event::GpuFailed { .. }
        | Event::PortSampled { .. }
        | Event::Silent { .. }
        | Event::Interrupted { .. }
        | Event::UnplacedFailure(_)
        | Event::JobEnded { .. } => return None,
    })
}

#[cfg(test)]
#[path = "roster_tests.rs"]
mod tests;
