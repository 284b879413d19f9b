//! The black box to which records go: this library's, or that of the C API library if a framework's
//! calls are recorded in the same process.
//!
//! A process has one box. If c10d's calls are recorded, NCCL calls made by c10d are recorded as
//! parts of its calls ([`Outer`]), and all others as calls of their own, in the same box.
#![expect(unsafe_code, reason = "calls what another library of ours offers")]

use std::env;
use std::ffi::{CString, c_void};
use std::mem;
use std::os::unix::ffi::OsStrExt;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use ddp_doctor_agent::blackbox::{Creation, Seat, Writer};
use ddp_doctor_agent::shared::{INSIDE_NOTHING, INSIDE_OTHER, Named, SYMBOL, Services, VERSION};
use ddp_doctor_proto::blackbox::{Call, memory::Sample};
use ddp_doctor_proto::{ExceptionKind, NoteKind, Op};

/// Path of the library that the Python package uses.
const C_LIBRARY: &str = "DDP_DOCTOR_LIBRARY";

/// Destination of records.
#[derive(Clone, Copy, Debug)]
pub(crate) enum BlackBox {
    /// The box of this library.
    Own(&'static Writer),
    /// The box of the C API library.
    Shared(&'static Services),
}

/// The framework's call that contains the calling thread's current call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outer {
    /// None: the program's own code.
    Nothing,
    /// A collective or a message with this id.
    Call(u64),
    /// A wait, or a call that contains others, such as the creation of a group.
    Other,
}

/// The services of the C API library; null: not found.
static SERVICES: AtomicPtr<Services> = AtomicPtr::new(ptr::null_mut());

#[inline]
fn services() -> Option<&'static Services> {
    let services = SERVICES.load(Ordering::Acquire);
    // SAFETY: null, or the address that `find_services` found: a static of a library that stays loaded.
    unsafe { services.as_ref() }
}

/// The services, if that library has an open box.
#[inline]
fn shared() -> Option<&'static Services> {
    services().filter(|services| (services.current)() != 0)
}

/// The current destination of records; `None`: there is no open box.
#[inline]
pub(crate) fn current() -> Option<BlackBox> {
    let own = || ddp_doctor_agent::current().map(BlackBox::Own);
    shared().map(BlackBox::Shared).or_else(own)
}

/// The open box of this library.
pub(crate) fn own() -> Option<&'static Writer> {
    ddp_doctor_agent::current()
}

/// The box with this id (see [`BlackBox::id`]), if it is open.
#[inline]
pub(crate) fn with_id(id: usize) -> Option<BlackBox> {
    let own = ddp_doctor_agent::current().filter(|it| ptr::from_ref(*it).addr() == id);
    let shared = || services().filter(|it| (it.current)() == id && id != 0);
    own.map(BlackBox::Own).or_else(|| shared().map(BlackBox::Shared))
}

/// The framework's call that contains the calling thread's current call.
#[inline]
pub(crate) fn outer() -> Outer {
    match services().map_or(INSIDE_NOTHING, |services| (services.inside)()) {
        INSIDE_NOTHING => Outer::Nothing,
        INSIDE_OTHER => Outer::Other,
        call => Outer::Call(call),
    }
}

/// Searches for the C API library unless it is known.
pub(crate) fn find_services() {
    if services().is_some() {
        return;
    }
    let Some(path) = env::var_os(C_LIBRARY).and_then(|it| CString::new(it.as_bytes()).ok()) else {
        return;
    };
    // SAFETY: the path is NUL-terminated, and nothing is loaded.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if library.is_null() {
        return;
    }
    // SAFETY: `library` is a library handle, the name is NUL-terminated.
    let function = unsafe { libc::dlsym(library, SYMBOL.as_ptr()) };
    if function.is_null() {
        return;
    }
    // SAFETY: the function has this type in every version of that library that has it, and the
    // library stays loaded: `dlopen` took a reference above.
    let function =
        unsafe { mem::transmute::<*mut c_void, extern "C" fn() -> *const Services>(function) };
    let found = function();
    // SAFETY: every version of the structure begins with its version.
    let version = unsafe { found.cast::<u32>().as_ref() };
    if version == Some(&VERSION) {
        SERVICES.store(found.cast_mut(), Ordering::Release);
    }
}

impl BlackBox {
    /// Identifies the box within the process.
    #[inline]
    pub(crate) fn id(self) -> usize {
        match self {
            Self::Own(writer) => ptr::from_ref(writer).addr(),
            Self::Shared(services) => (services.current)(),
        }
    }

    /// Whether the box also has a framework's calls.
    pub(crate) const fn is_shared(self) -> bool {
        matches!(self, Self::Shared(_))
    }

    #[inline]
    pub(crate) fn issued(self, call: &Call, returns_to: usize) -> u64 {
        match self {
            Self::Own(writer) => writer.issued_natively(call, returns_to),
            Self::Shared(services) => (services.issued_natively)(call, returns_to),
        }
    }

    #[inline]
    pub(crate) fn returned(self, call: u64, followed: bool) {
        match (self, followed) {
            (Self::Own(writer), true) => writer.returned_followed(call),
            (Self::Own(writer), false) => writer.returned(call),
            (Self::Shared(services), _) => (services.returned)(call, followed),
        }
    }

    pub(crate) fn completed(self, call: u64) {
        match self {
            Self::Own(writer) => writer.completed(call),
            Self::Shared(services) => (services.completed)(call),
        }
    }

    pub(crate) fn communicator(self, named: &CommunicatorInfo<'_>) -> u32 {
        let CommunicatorInfo { name, description, .. } = *named;
        match self {
            Self::Own(writer) => {
                writer.communicator(name, description, b"nccl", named.seat.rank, named.seat.size)
            }
            Self::Shared(services) => (services.communicator)(&named.passed()),
        }
    }

    pub(crate) fn creating(self, named: &CommunicatorInfo<'_>) -> u64 {
        match self {
            Self::Own(writer) => writer.creating(&Creation {
                op: named.op,
                name: named.name,
                description: named.description,
                backend: b"nccl",
                takes_all: named.takes_all,
                epoch: 0,
                members: &[],
                seat: Some(named.seat),
                site: writer.native_site(named.returns_to),
            }),
            Self::Shared(services) => (services.creating)(&named.passed()),
        }
    }

    pub(crate) fn destroyed(self, group: u32) {
        match self {
            Self::Own(writer) => writer.group_destroyed(group),
            Self::Shared(services) => (services.destroyed)(group),
        }
    }

    pub(crate) fn exception(self, text: &[u8]) {
        match self {
            Self::Own(writer) => writer.exception(ExceptionKind::LeftCollective, text, 0),
            Self::Shared(services) => (services.exception)(text.into()),
        }
    }

    pub(crate) fn setting(self, name: &[u8], value: &[u8]) {
        match self {
            Self::Own(writer) => writer.setting(name, value),
            Self::Shared(services) => (services.setting)(name.into(), value.into()),
        }
    }

    pub(crate) fn note(self, kind: NoteKind, text: &[u8]) {
        match self {
            Self::Own(writer) => writer.note(kind, text),
            Self::Shared(services) => (services.note)(kind.number(), text.into()),
        }
    }

    /// Records the bytes that NCCL holds on a device.
    pub(crate) fn held_by_nccl(self, device: u32, bytes: u64) {
        match self {
            Self::Own(writer) => writer.memory(&Sample {
                device: Some(device),
                nccl: Some(bytes),
                ..Sample::default()
            }),
            Self::Shared(services) => (services.held_by_nccl)(device, bytes),
        }
    }

    // --- Parts of the framework's calls ----------------------------------------------------------

    /// Records the NCCL call inside this thread's call, on a communicator with `ranks` ranks.
    #[inline]
    pub(crate) fn lower_call(self, call: &Call, ranks: u32) {
        if let Self::Shared(services) = self {
            (services.lower_call)(call, ranks);
        }
    }

    /// Records that this thread enters a function that may block; an empty name: it returned.
    pub(crate) fn within(self, function: &[u8]) {
        if let Self::Shared(services) = self {
            (services.within)(function.into());
        }
    }

    /// Announces that the completion of a part of the framework's call will be reported. Returns
    /// whether that is accepted.
    pub(crate) fn follow(self, call: u64) -> bool {
        matches!(self, Self::Shared(services) if (services.follow)(call))
    }

    /// Records that a part of the framework's call is complete.
    pub(crate) fn part_done(self, call: u64) {
        if let Self::Shared(services) = self {
            (services.part_done)(call);
        }
    }
}

/// Description of a communicator for a box.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CommunicatorInfo<'a> {
    pub(crate) op: Op,
    pub(crate) takes_all: bool,
    pub(crate) name: &'a [u8],
    pub(crate) description: &'a [u8],
    pub(crate) seat: Seat,
    pub(crate) returns_to: usize,
}

impl CommunicatorInfo<'_> {
    fn passed(&self) -> Named {
        Named {
            op: self.op.number(),
            takes_all: self.takes_all,
            name: self.name.into(),
            description: self.description.into(),
            rank: self.seat.rank,
            size: self.seat.size,
            returns_to: self.returns_to,
        }
    }
}
