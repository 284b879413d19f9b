//! Records the creation of communicators.
//!
//! The creation may block until all ranks take part, so it is recorded before it begins. The handle
//! of a communicator created with a unique id is known when the call returns. A non-blocking
//! derived communicator may get its handle later; it is then registered at its first use.
#![expect(unsafe_code, reason = "reads handles from where a program has them put")]

use std::ffi::{CStr, c_int};
use std::sync::atomic::{AtomicBool, Ordering};

use ddp_doctor_agent::blackbox::Seat;
use ddp_doctor_agent::{current, identity};
use ddp_doctor_proto::{NoteKind, Op};

use crate::abi::{Comm, Configured, IN_PROGRESS, NO_COLOR, Status, UniqueId, is_taken};
use crate::caller::returns_to;
use crate::comm_memory::Before;
use crate::comms::{self, Communicator, Name};
use crate::ids::occurrence_of;
use crate::own_box::open_box;
use crate::queries::{device_of, seat, seat_of};
use crate::records;
use crate::sink::{self, Outer, Sink};
use crate::{comm_memory, done, driver, memory, pending};

/// A communicator that a call is about to create.
#[derive(Debug)]
pub(crate) struct Making {
    sink: Sink,
    function: &'static CStr,
    recorded: Recorded,
    /// Where NCCL stores the handle.
    handle: *mut Comm,
    /// The future communicator; `None`: this rank gets none, or its place in it is unknown.
    made: Option<Made>,
    /// Memory of the parent before the creation.
    parent: Before,
}

/// How a creation is recorded.
#[derive(Clone, Copy, Debug)]
enum Recorded {
    /// As a call of the program.
    Call(u64),
    /// As a function inside a framework's call.
    Within,
}

impl Recorded {
    /// Records the creation, depending on whether the thread is inside a framework's call.
    fn before(sink: Sink, function: &'static CStr, call: impl FnOnce() -> u64) -> Self {
        if sink.is_shared() && sink::outer() != Outer::Nothing {
            sink.within(records::first_name(function));
            Self::Within
        } else {
            Self::Call(call())
        }
    }

    /// Records that the call returned.
    fn after(self, sink: Sink) {
        match self {
            Self::Call(call) => sink.returned(call, false),
            Self::Within => sink.within(b""),
        }
    }
}

/// A communicator that was created, without its handle.
#[derive(Debug)]
pub(crate) struct Made {
    name: Name,
    description: Vec<u8>,
    non_blocking: bool,
    /// Rank and size, if known before the creation.
    pub(crate) seat: Option<Seat>,
}

/// A hooked function was called to create a communicator.
static HOOKED: AtomicBool = AtomicBool::new(false);

/// Whether this process creates communicators through the hooks; its other calls then pass through
/// them as well.
pub(crate) fn is_hooked() -> bool {
    HOOKED.load(Ordering::Acquire)
}

// --- Calls about to be made --------------------------------------------------------------------

/// `ncclCommInitRank` and its variants.
pub(crate) fn with_id(
    function: &'static CStr,
    handle: *mut Comm,
    size: c_int,
    id: &UniqueId,
    rank: c_int,
    configured: Configured,
) -> Option<Making> {
    HOOKED.store(true, Ordering::Release);
    let seat = seat(rank, size)?;
    let is_first = current().is_none();
    let sink = open_box(Some(seat))?;
    let own = is_first && !sink.is_shared();
    if own && let Some(place) = identity::meeting_place(&id.bytes) {
        sink.setting(b"init.address", place.ip().to_string().as_bytes());
        sink.setting(b"init.port", place.port().to_string().as_bytes());
    }
    let hash = identity::of_unique_id(&id.bytes);
    let Some(occurrence) = occurrence_of(hash, seat.rank) else {
        say_once(
            sink,
            b"is several ranks of one NCCL communicator: of all but the first nothing is seen",
        );
        return None;
    };
    let name = Name { hash, occurrence, in_nccl: hash, magic: identity::magic_of(&id.bytes) };
    let non_blocking = configured.non_blocking;
    let known = PendingComm { sink, seat, name };
    Some(known.making(function, handle, configured, non_blocking))
}

/// A communicator whose rank and size are known before it is created.
struct PendingComm {
    sink: Sink,
    seat: Seat,
    name: Name,
}

impl PendingComm {
    /// Records that the communicator is about to be created.
    fn making(
        self,
        function: &'static CStr,
        handle: *mut Comm,
        configured: Configured,
        non_blocking: bool,
    ) -> Making {
        let Self { sink, seat, name } = self;
        let recorded = Recorded::before(sink, function, || {
            sink.creating(&sink::Communicator {
                op: Op::NewGroup,
                name: identity::name(name.hash, name.occurrence).as_bytes(),
                description: configured.name,
                takes_all: !non_blocking,
                seat,
                returns_to: returns_to(),
            })
        });
        Making {
            sink,
            function,
            recorded,
            handle,
            made: Some(Made {
                name,
                description: configured.name.to_vec(),
                non_blocking,
                seat: Some(seat),
            }),
            parent: None,
        }
    }
}

/// `ncclCommInitAll`: this process is all ranks of the communicator. Its calls are not recorded,
/// which a note reports.
pub(crate) fn of_one_process() {
    let said = b"is all ranks of an NCCL communicator (ncclCommInitAll), of which nothing is seen";
    if let Some(sink) = open_box(None) {
        say_once(sink, said);
    }
}

fn say_once(sink: Sink, text: &[u8]) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::AcqRel) {
        sink.note(NoteKind::SeveralRanks, text);
    }
}

/// `ncclCommSplit`: all ranks of the parent take part, including those that get no communicator.
pub(crate) fn split(
    function: &'static CStr,
    parent: Comm,
    color: c_int,
    handle: *mut Comm,
    configured: Configured,
) -> Option<Making> {
    let (sink, parent) = records::of(comms::find(parent))?;
    let nth = parent.divide();
    let name = format!("{}/split{nth}", identity::name(parent.name.hash, parent.name.occurrence));
    let recorded = Recorded::before(sink, function, || {
        sink.creating(&sink::Communicator {
            op: Op::SplitGroup,
            name: name.as_bytes(),
            description: configured.name,
            takes_all: !parent.non_blocking,
            seat: Seat { rank: parent.rank, size: parent.size },
            returns_to: returns_to(),
        })
    });
    Some(Making {
        sink,
        function,
        recorded,
        handle,
        made: (color != NO_COLOR).then(|| {
            let in_nccl = identity::of_split(parent.name.in_nccl, nth, color);
            Made {
                name: Name {
                    hash: identity::of_split(parent.name.hash, nth, color),
                    in_nccl,
                    magic: in_nccl,
                    ..parent.name
                },
                description: configured.name.to_vec(),
                non_blocking: parent.non_blocking || configured.non_blocking,
                seat: None,
            }
        }),
        parent: comm_memory::before_division(parent),
    })
}

/// `ncclCommShrink`: excluded ranks do not take part and do not notice. It is therefore not counted
/// as a division of the parent, whose count is equal on all ranks.
pub(crate) fn shrink(
    function: &'static CStr,
    parent: Comm,
    excluded: &[c_int],
    handle: *mut Comm,
    configured: Configured,
) -> Option<Making> {
    let (sink, parent) = records::of(comms::find(parent))?;
    let mut excluded = excluded.to_vec();
    excluded.retain(|&it| seat(it, parent.size.cast_signed()).is_some());
    excluded.sort_unstable();
    excluded.dedup();
    let rank = parent.rank.cast_signed();
    let before = excluded.partition_point(|&it| it < rank);
    if excluded.get(before) == Some(&rank) {
        // NCCL rejects this.
        return None;
    }
    let seat =
        Seat { rank: parent.rank - before as u32, size: parent.size - excluded.len() as u32 };
    // All remaining ranks have counted the same number of shrinks with these exclusions.
    let of_these = identity::of_shrink(parent.name.hash, parent.name.occurrence, &excluded);
    let nth = occurrence_of(of_these, seat.rank)?;
    let in_nccl = identity::of_split(parent.name.in_nccl, 0, 0);
    let name = Name { hash: of_these, occurrence: nth, in_nccl, magic: in_nccl };
    let non_blocking = parent.non_blocking || configured.non_blocking;
    let known = PendingComm { sink, seat, name };
    let making = known.making(function, handle, configured, non_blocking);
    Some(Making { parent: comm_memory::before_division(parent), ..making })
}

/// `ncclCommGrow`: the ranks of a communicator keep their places in the larger one. New ranks join
/// with a unique id and have no parent.
pub(crate) fn grow(
    function: &'static CStr,
    parent: Comm,
    size: c_int,
    id: Option<&UniqueId>,
    rank: c_int,
    handle: *mut Comm,
    configured: Configured,
) -> Option<Making> {
    HOOKED.store(true, Ordering::Release);
    let name = |growth: u64, size: u32, occurrence: u32| Name {
        hash: identity::of_grow(growth, size),
        occurrence,
        in_nccl: identity::of_grow(growth, size),
        magic: growth,
    };
    if parent.is_null() {
        let seat = seat(rank, size)?;
        let sink = open_box(Some(seat))?;
        let name = name(identity::magic_of(&id?.bytes), seat.size, 0);
        let non_blocking = configured.non_blocking;
        let known = PendingComm { sink, seat, name };
        return Some(known.making(function, handle, configured, non_blocking));
    }
    let (sink, parent) = records::of(comms::find(parent))?;
    let seat = seat(parent.rank.cast_signed(), size)?;
    let growth = identity::of_growth(parent.name.magic, parent.divide());
    let name = name(growth, seat.size, parent.name.occurrence);
    let non_blocking = parent.non_blocking || configured.non_blocking;
    let known = PendingComm { sink, seat, name };
    Some(known.making(function, handle, configured, non_blocking))
}

impl Making {
    /// Called when the call has returned, or the end of its group has.
    pub(crate) fn end(self, status: Status) {
        let Self { sink, function, recorded, handle, made, parent } = self;
        let of_framework = matches!(recorded, Recorded::Within);
        if is_taken(status)
            && let Some(made) = made
        {
            // SAFETY: NCCL writes the handle there, so the program keeps the location valid.
            let comm = unsafe { handle.as_ref() }.copied();
            match comm.filter(|it| !it.is_null()) {
                Some(comm) => made.known_as(sink, comm, of_framework, parent),
                None if status == IN_PROGRESS => pending::add(sink, made, of_framework),
                None => {}
            }
        }
        // A framework records its errors itself.
        if !is_taken(status) && !of_framework {
            records::refused(sink, function, status);
        }
        recorded.after(sink);
    }

    /// Called if the group of the call is discarded.
    pub(crate) fn drop_unmade(self) {
        self.recorded.after(self.sink);
    }
}

impl Made {
    /// Registers the communicator under its handle.
    pub(crate) fn known_as(self, sink: Sink, comm: Comm, of_framework: bool, parent: Before) {
        driver::look();
        let seat = self.seat.or_else(|| seat_of(comm));
        let Some(seat) = seat else { return };
        let mut communicator = Communicator::new(sink, self.name, &self.description);
        communicator.rank = seat.rank;
        communicator.size = seat.size;
        communicator.non_blocking = self.non_blocking;
        let device = device_of(comm).unwrap_or(-1);
        communicator.device = device;
        if of_framework {
            communicator.is_made_by_framework();
        } else if communicator.group(sink) == 0 {
            return;
        }
        let known = comms::insert(comm, communicator);
        done::prepare();
        if let Some(known) = known {
            comm_memory::made(sink, known, parent);
        }
        // A framework's own box already has samples of its allocator.
        if let Sink::Own(writer) = sink {
            memory::watch(writer, device);
        }
    }
}
