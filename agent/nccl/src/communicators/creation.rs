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

use super::communicator::{Communicator, Name};
use super::memory::{self, ParentMemory};
use super::unique_ids::occurrence_of;
use super::{pending, table};
use crate::cuda::{completion, device_memory, driver};
use crate::nccl::abi::{Comm, Configured, IN_PROGRESS, NO_COLOR, Status, UniqueId, is_taken};
use crate::nccl::{device_of, seat, seat_of};
use crate::recording::black_box::{self, BlackBox, Outer};
use crate::recording::call_records;
use crate::recording::open_box;
use crate::return_address::returns_to;

/// A communicator that a call is about to create.
#[derive(Debug)]
pub(crate) struct PendingCreation {
    black_box: BlackBox,
    function: &'static CStr,
    recorded: Recorded,
    /// Where NCCL stores the handle.
    handle: *mut Comm,
    /// The future communicator; `None`: this rank gets none, or its place in it is unknown.
    made: Option<NewCommunicator>,
    /// Memory of the parent before the creation.
    parent: ParentMemory,
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
    fn before(black_box: BlackBox, function: &'static CStr, call: impl FnOnce() -> u64) -> Self {
        if black_box.is_shared() && black_box::outer() != Outer::Nothing {
            black_box.within(call_records::public_name(function));
            Self::Within
        } else {
            Self::Call(call())
        }
    }

    /// Records that the call returned.
    fn after(self, black_box: BlackBox) {
        match self {
            Self::Call(call) => black_box.returned(call, false),
            Self::Within => black_box.within(b""),
        }
    }
}

/// A communicator that was created, without its handle.
#[derive(Debug)]
pub(super) struct NewCommunicator {
    name: Name,
    description: Vec<u8>,
    non_blocking: bool,
    /// Rank and size, if known before the creation.
    pub(super) seat: Option<Seat>,
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
pub(crate) fn init_rank(
    function: &'static CStr,
    handle: *mut Comm,
    size: c_int,
    id: &UniqueId,
    rank: c_int,
    configured: Configured,
) -> Option<PendingCreation> {
    HOOKED.store(true, Ordering::Release);
    let seat = seat(rank, size)?;
    let is_first = current().is_none();
    let black_box = open_box(Some(seat))?;
    let own = is_first && !black_box.is_shared();
    if own && let Some(place) = identity::meeting_place(&id.bytes) {
        black_box.setting(b"init.address", place.ip().to_string().as_bytes());
        black_box.setting(b"init.port", place.port().to_string().as_bytes());
    }
    let hash = identity::of_unique_id(&id.bytes);
    let Some(occurrence) = occurrence_of(hash, seat.rank) else {
        say_once(
            black_box,
            b"holds several ranks of one NCCL communicator: only the first is captured",
        );
        return None;
    };
    let name = Name { hash, occurrence, in_nccl: hash, magic: identity::magic_of(&id.bytes) };
    let non_blocking = configured.non_blocking;
    let known = KnownSeat { black_box, seat, name };
    Some(known.begin(function, handle, configured, non_blocking))
}

/// A communicator whose rank and size are known before it is created.
struct KnownSeat {
    black_box: BlackBox,
    seat: Seat,
    name: Name,
}

impl KnownSeat {
    /// Records that the communicator is about to be created.
    fn begin(
        self,
        function: &'static CStr,
        handle: *mut Comm,
        configured: Configured,
        non_blocking: bool,
    ) -> PendingCreation {
        let Self { black_box, seat, name } = self;
        let recorded = Recorded::before(black_box, function, || {
            black_box.creating(&black_box::CommunicatorInfo {
                op: Op::NewGroup,
                name: identity::name(name.hash, name.occurrence).as_bytes(),
                description: configured.name,
                takes_all: !non_blocking,
                seat,
                returns_to: returns_to(),
            })
        });
        PendingCreation {
            black_box,
            function,
            recorded,
            handle,
            made: Some(NewCommunicator {
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
pub(crate) fn init_all() {
    let said = b"holds all ranks of an NCCL communicator (ncclCommInitAll), which is not captured";
    if let Some(black_box) = open_box(None) {
        say_once(black_box, said);
    }
}

fn say_once(black_box: BlackBox, text: &[u8]) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::AcqRel) {
        black_box.note(NoteKind::SeveralRanks, text);
    }
}

/// `ncclCommSplit`: all ranks of the parent take part, including those that get no communicator.
pub(crate) fn split(
    function: &'static CStr,
    parent: Comm,
    color: c_int,
    handle: *mut Comm,
    configured: Configured,
) -> Option<PendingCreation> {
    let (black_box, parent) = call_records::with_box(table::find(parent))?;
    let nth = parent.divide();
    let name = format!("{}/split{nth}", identity::name(parent.name.hash, parent.name.occurrence));
    let recorded = Recorded::before(black_box, function, || {
        black_box.creating(&black_box::CommunicatorInfo {
            op: Op::SplitGroup,
            name: name.as_bytes(),
            description: configured.name,
            takes_all: !parent.non_blocking,
            seat: Seat { rank: parent.rank, size: parent.size },
            returns_to: returns_to(),
        })
    });
    Some(PendingCreation {
        black_box,
        function,
        recorded,
        handle,
        made: (color != NO_COLOR).then(|| {
            let in_nccl = identity::of_split(parent.name.in_nccl, nth, color);
            NewCommunicator {
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
        parent: memory::before_division(parent),
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
) -> Option<PendingCreation> {
    let (black_box, parent) = call_records::with_box(table::find(parent))?;
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
    let known = KnownSeat { black_box, seat, name };
    let creation = known.begin(function, handle, configured, non_blocking);
    Some(PendingCreation { parent: memory::before_division(parent), ..creation })
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
) -> Option<PendingCreation> {
    HOOKED.store(true, Ordering::Release);
    let name = |growth: u64, size: u32, occurrence: u32| Name {
        hash: identity::of_grow(growth, size),
        occurrence,
        in_nccl: identity::of_grow(growth, size),
        magic: growth,
    };
    if parent.is_null() {
        let seat = seat(rank, size)?;
        let black_box = open_box(Some(seat))?;
        let name = name(identity::magic_of(&id?.bytes), seat.size, 0);
        let non_blocking = configured.non_blocking;
        let known = KnownSeat { black_box, seat, name };
        return Some(known.begin(function, handle, configured, non_blocking));
    }
    let (black_box, parent) = call_records::with_box(table::find(parent))?;
    let seat = seat(parent.rank.cast_signed(), size)?;
    let growth = identity::of_growth(parent.name.magic, parent.divide());
    let name = name(growth, seat.size, parent.name.occurrence);
    let non_blocking = parent.non_blocking || configured.non_blocking;
    let known = KnownSeat { black_box, seat, name };
    Some(known.begin(function, handle, configured, non_blocking))
}

impl PendingCreation {
    /// Called when the call has returned, or the end of its group has.
    pub(crate) fn end(self, status: Status) {
        let Self { black_box, function, recorded, handle, made, parent } = self;
        let of_framework = matches!(recorded, Recorded::Within);
        if is_taken(status)
            && let Some(made) = made
        {
            // SAFETY: NCCL writes the handle there, so the program keeps the location valid.
            let comm = unsafe { handle.as_ref() }.copied();
            match comm.filter(|it| !it.is_null()) {
                Some(comm) => made.register(black_box, comm, of_framework, parent),
                None if status == IN_PROGRESS => pending::add(black_box, made, of_framework),
                None => {}
            }
        }
        // A framework records its errors itself.
        if !is_taken(status) && !of_framework {
            call_records::refused(black_box, function, status);
        }
        recorded.after(black_box);
    }

    /// Called if the group of the call is discarded.
    pub(crate) fn discard(self) {
        self.recorded.after(self.black_box);
    }
}

impl NewCommunicator {
    /// Registers the communicator under its handle.
    pub(super) fn register(
        self,
        black_box: BlackBox,
        comm: Comm,
        of_framework: bool,
        parent: ParentMemory,
    ) {
        driver::find_library();
        let seat = self.seat.or_else(|| seat_of(comm));
        let Some(seat) = seat else { return };
        let mut communicator = Communicator::new(black_box, self.name, &self.description);
        communicator.rank = seat.rank;
        communicator.size = seat.size;
        communicator.non_blocking = self.non_blocking;
        let device = device_of(comm).unwrap_or(-1);
        communicator.device = device;
        if of_framework {
            communicator.mark_as_framework();
        } else if communicator.group(black_box) == 0 {
            return;
        }
        let known = table::insert(comm, communicator);
        completion::start();
        if let Some(known) = known {
            memory::after_creation(black_box, known, parent);
        }
        // A framework's own box already has samples of its allocator.
        if let BlackBox::Own(writer) = black_box {
            device_memory::start(writer, device);
        }
    }
}
