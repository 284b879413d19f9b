//! Functions that this library offers to the one preloaded before NCCL, see
//! [`ddp_doctor_agent::shared`].
#![expect(unsafe_code, reason = "reads what the other library points to")]

use ddp_doctor_agent::blackbox::{Creation, Outer, Seat, Writer};
use ddp_doctor_agent::current;
use ddp_doctor_agent::shared::{Bytes, INSIDE_NOTHING, INSIDE_OTHER, Named, Services, VERSION};
use ddp_doctor_proto::blackbox::{Call, memory::Sample};
use ddp_doctor_proto::{ExceptionKind, NoteKind, Op};

use crate::abi::Text;
use crate::{guarded, ptr};

#[unsafe(no_mangle)]
extern "C" fn ddp_doctor_services() -> *const Services {
    &SERVICES
}

static SERVICES: Services = Services {
    version: VERSION,
    current: open_box,
    inside,
    lower_call,
    within,
    follow,
    part_done,
    communicator,
    creating,
    issued_natively,
    returned,
    completed,
    destroyed,
    exception,
    setting,
    note,
    held_by_nccl,
};

/// Runs `work` on the open box. Returns the default if no box is open.
#[inline]
fn on_box<T: Default>(work: impl FnOnce(&'static Writer) -> T) -> T {
    guarded(|| current().map(work).unwrap_or_default())
}

fn read<'a>(bytes: Bytes) -> &'a [u8] {
    let text = Text { data: bytes.data.cast(), length: bytes.length };
    // SAFETY: the bytes are a slice that the other library keeps alive during the call, and every
    // function here finishes with them before it returns.
    unsafe { ptr::bytes(text) }.unwrap_or_default()
}

extern "C" fn open_box() -> usize {
    current().map_or(0, |writer| std::ptr::from_ref(writer).addr())
}

extern "C" fn inside() -> u64 {
    on_box(|writer| match writer.outer() {
        Outer::Nothing => INSIDE_NOTHING,
        Outer::Call(call) => call,
        Outer::Other => INSIDE_OTHER,
    })
}

extern "C" fn lower_call(call: &Call, ranks: u32) {
    on_box(|writer| writer.lower_call(call, ranks));
}

extern "C" fn within(function: Bytes) {
    on_box(|writer| writer.within(read(function)));
}

extern "C" fn follow(call: u64) -> bool {
    on_box(|writer| writer.follow(call))
}

extern "C" fn part_done(call: u64) {
    on_box(|writer| writer.part_done(call));
}

extern "C" fn communicator(named: &Named) -> u32 {
    on_box(|writer| {
        let (name, description) = (read(named.name), read(named.description));
        writer.communicator(name, description, b"nccl", named.rank, named.size)
    })
}

extern "C" fn creating(named: &Named) -> u64 {
    on_box(|writer| {
        writer.creating(&Creation {
            op: Op::from_number(named.op),
            name: read(named.name),
            description: read(named.description),
            backend: b"nccl",
            takes_all: named.takes_all,
            epoch: 0,
            members: &[],
            seat: Some(Seat { rank: named.rank, size: named.size }),
            site: writer.native_site(named.returns_to),
        })
    })
}

extern "C" fn issued_natively(call: &Call, returns_to: usize) -> u64 {
    on_box(|writer| writer.issued_natively(call, returns_to))
}

extern "C" fn returned(call: u64, followed: bool) {
    on_box(|writer| {
        if followed {
            writer.returned_followed(call);
        } else {
            writer.returned(call);
        }
    });
}

extern "C" fn completed(call: u64) {
    on_box(|writer| writer.completed(call));
}

extern "C" fn destroyed(group: u32) {
    on_box(|writer| writer.group_destroyed(group));
}

extern "C" fn exception(text: Bytes) {
    on_box(|writer| writer.exception(ExceptionKind::LeftCollective, read(text), 0));
}

extern "C" fn setting(name: Bytes, value: Bytes) {
    on_box(|writer| writer.setting(read(name), read(value)));
}

extern "C" fn note(kind: u8, text: Bytes) {
    on_box(|writer| writer.note(NoteKind::from_number(kind), read(text)));
}

extern "C" fn held_by_nccl(device: u32, bytes: u64) {
    on_box(|writer| {
        writer.memory(&Sample { device: Some(device), nccl: Some(bytes), ..Sample::default() });
    });
}
