//! Records other than calls: steps, phases, destroyed groups, exceptions, settings, memory, the
//! exit.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use ddp_doctor_proto::blackbox::{MAX_DIMS, Record, flags, group, header, memory};
use ddp_doctor_proto::{DType, ExceptionKind, NoteKind, ParameterFact, RecordKind, Spending};

use super::Writer;
use crate::sys;

/// Maximum nesting of phases.
const MAX_PHASE_DEPTH: usize = 16;

/// The training forward with which a step begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forward {
    /// Site of the user's line; 0: unknown.
    pub site: u32,
    /// Number of batches drawn so far from the source of the input; `None`: unknown.
    pub batches: Option<u64>,
    /// The input is the same as that of the previous forward.
    pub repeated: bool,
    /// The gradients are not synchronized.
    pub unsynchronized: bool,
    /// Whether parameters were updated since the previous forward; `None`: unknown.
    pub updated: Option<bool>,
}

/// Parameters of a model whose gradients are averaged over the ranks of a group.
#[derive(Clone, Copy, Debug, Default)]
pub struct Parameters<'a> {
    /// The fact that is recorded about the parameters.
    pub fact: ParameterFact,
    /// Number of the group.
    pub group: u32,
    /// 1-based index of the model within the group, in this process; 0: unknown.
    pub model: u32,
    /// Number of parameters.
    pub total: u64,
    /// Index of the first parameter in `lines`, for a layout.
    pub first: u32,
    /// One line per parameter: element type, comma-separated sizes ("-": none), name.
    pub lines: &'a [u8],
    /// Source location; 0: unknown.
    pub site: u32,
    /// Element type of `values`.
    pub dtype: DType,
    /// Bits of elements of the parameter with index `first`, of 64-bit elements the upper half; at most
    /// [`MAX_DIMS`].
    pub values: &'a [u32],
}

impl Writer {
    /// Records the start of a training step. Returns its 1-based number.
    pub fn step(&self) -> u32 {
        let step = self.next_step();
        self.append_event(RecordKind::Step, 0, 0, 0);
        step
    }

    /// Records the start of a training step that begins with a forward. Returns its 1-based number.
    pub fn forward(&self, forward: Forward) -> u32 {
        let step = self.next_step();
        let mut flags = flags::FORWARD;
        for (is, flag) in [
            (forward.batches.is_some(), flags::NUMEL),
            (forward.repeated, flags::REPEATED),
            (forward.unsynchronized, flags::UNSYNCHRONISED),
            (forward.updated.is_some(), flags::SEES_UPDATES),
            (forward.updated == Some(true), flags::UPDATED),
        ] {
            flags |= if is { flag } else { 0 };
        }
        self.record(
            None,
            Record {
                mono_ns: sys::monotonic_ns(),
                kind: RecordKind::Step,
                site: self.site_words(forward.site).map_or(0, |_| forward.site),
                numel: forward.batches.unwrap_or(0),
                flags,
                ..Record::default()
            },
        );
        step
    }

    fn next_step(&self) -> u32 {
        (self.header()[header::STEP].fetch_add(1, Ordering::Relaxed) + 1) as u32
    }

    /// Records the start of a phase; `name` is from [`Writer::string`].
    pub fn phase_begin(&self, name: u32) {
        self.append_event(RecordKind::PhaseBegin, 0, name, 0);
        self.phases.begin(&self.header()[header::PHASE], name);
    }

    /// Records the end of a phase.
    pub fn phase_end(&self, name: u32) {
        self.append_event(RecordKind::PhaseEnd, 0, name, 0);
        self.phases.end(&self.header()[header::PHASE], name);
    }

    /// Records that this process left the group.
    pub fn group_destroyed(&self, id: u32) {
        let Some(group) = self.group_words(id) else {
            return;
        };
        let now = sys::monotonic_ns();
        group[group::DESTROYED].store(now, Ordering::Relaxed);
        self.record(
            None,
            Record {
                mono_ns: now,
                kind: RecordKind::GroupDestroyed,
                group: id,
                ..Record::default()
            },
        );
    }

    /// Records the timeout after which calls of the group fail, from now on.
    pub fn group_timeout(&self, id: u32, milliseconds: u64) {
        if self.group_words(id).is_none() {
            return;
        }
        self.record(
            None,
            Record {
                mono_ns: sys::monotonic_ns(),
                kind: RecordKind::GroupTimeout,
                group: id,
                code: i32::try_from(milliseconds).unwrap_or(i32::MAX),
                ..Record::default()
            },
        );
    }

    /// Records an exception; `value` is "Type: message".
    pub fn exception(&self, kind: ExceptionKind, value: &[u8], site: u32) {
        let value = self.string(value);
        let kind = i32::from(kind.number());
        self.append_event(RecordKind::Exception, kind, value, site);
    }

    /// Records that the process is about to exit.
    pub fn exit(&self, code: i32, how: &[u8], site: u32) {
        #[cfg(feature = "cuda")]
        crate::gpu::end();
        let how = self.string(how);
        self.append_event(RecordKind::Exit, code, how, site);
    }

    /// Records a limitation of the capture.
    pub fn note(&self, kind: NoteKind, value: &[u8]) {
        let value = self.string(value);
        self.append_event(RecordKind::Note, i32::from(kind.number()), value, 0);
    }

    /// Records that the program's input is exhausted.
    pub fn input_ended(&self, site: u32) {
        self.append_event(RecordKind::InputEnded, 0, 0, site);
    }

    /// Records that the last batch of the program's input was drawn, and the number of batches drawn so far from its
    /// source, as in [`Forward::batches`].
    pub fn last_input(&self, batches: u64, site: u32) {
        self.record(
            None,
            Record {
                mono_ns: sys::monotonic_ns(),
                kind: RecordKind::InputEnded,
                flags: flags::NUMEL,
                site: self.site_words(site).map_or(0, |_| site),
                numel: batches,
                ..Record::default()
            },
        );
    }

    /// Records that this thread has just spent this time on something other than its own work.
    pub fn spent(&self, on: Spending, nanoseconds: u64, site: u32) {
        self.record(
            None,
            Record {
                mono_ns: sys::monotonic_ns(),
                kind: RecordKind::Spent,
                flags: flags::NUMEL,
                site: self.site_words(site).map_or(0, |_| site),
                numel: nanoseconds,
                code: i32::from(on.number()),
                ..Record::default()
            },
        );
    }

    /// Records a version or a setting that ranks may have to agree on.
    pub fn setting(&self, name: &[u8], value: &[u8]) {
        let text = self.string(&[name, b"=", value].concat());
        self.append_event(RecordKind::Setting, 0, text, 0);
    }

    /// Records a fact about the parameters of a model. If more than half of the string heap is
    /// used, a layout is recorded without its lines, to leave room for other strings.
    pub fn parameters(&self, said: &Parameters<'_>) {
        let used = self.header()[header::HEAP_USED].load(Ordering::Relaxed);
        let is_full = used.saturating_mul(2) >= self.capacities.heap_words as u64;
        let lines = match said.fact {
            ParameterFact::Layout if is_full => &[],
            _ => said.lines,
        };
        let mut dims = [0; MAX_DIMS];
        let count = said.values.len().min(MAX_DIMS);
        dims[..count].copy_from_slice(&said.values[..count]);
        let has_values = if count > 0 { flags::SHAPE } else { 0 };
        self.record(
            None,
            Record {
                mono_ns: sys::monotonic_ns(),
                kind: RecordKind::Parameters,
                dtype: said.dtype,
                flags: flags::NUMEL | has_values,
                ndim: count as u8,
                dims,
                group: self.group_words(said.group).map_or(0, |_| said.group),
                seq: u64::from(said.model),
                site: self.site_words(said.site).map_or(0, |_| said.site),
                tensors: said.first,
                numel: said.total,
                text: self.string(lines),
                code: i32::from(said.fact.number()),
                ..Record::default()
            },
        );
    }

    /// Records a memory sample.
    pub fn memory(&self, sample: &memory::Sample) {
        let mut words =
            Record { mono_ns: sys::monotonic_ns(), kind: RecordKind::Memory, ..Record::default() }
                .pack();
        memory::pack(&mut words, sample);
        self.append(&words);
    }

    fn append_event(&self, kind: RecordKind, code: i32, text: u32, site: u32) {
        self.record(
            None,
            Record {
                mono_ns: sys::monotonic_ns(),
                kind,
                site: self.site_words(site).map_or(0, |_| site),
                text,
                code,
                ..Record::default()
            },
        );
    }
}

/// Open phases of the process, outermost first. If two threads begin phases concurrently, their
/// records may be assigned to each other's phases, without further harm.
#[derive(Debug, Default)]
pub(super) struct Phases {
    names: [AtomicU32; MAX_PHASE_DEPTH],
    depth: AtomicUsize,
}

impl Phases {
    fn begin(&self, innermost: &AtomicU64, name: u32) {
        let depth = self.depth.load(Ordering::Relaxed);
        if let Some(cell) = self.names.get(depth) {
            cell.store(name, Ordering::Relaxed);
            self.depth.store(depth + 1, Ordering::Relaxed);
        }
        innermost.store(u64::from(name), Ordering::Relaxed);
    }

    /// Ends the phase and all open phases inside it.
    fn end(&self, innermost: &AtomicU64, name: u32) {
        let names = self.names.get(..self.depth.load(Ordering::Relaxed));
        let found =
            names.unwrap_or_default().iter().rposition(|it| it.load(Ordering::Relaxed) == name);
        let depth = found.unwrap_or_else(|| names.map_or(0, <[_]>::len));
        self.depth.store(depth, Ordering::Relaxed);
        let outer = depth
            .checked_sub(1)
            .and_then(|i| self.names.get(i))
            .map_or(0, |it| it.load(Ordering::Relaxed));
        innermost.store(u64::from(outer), Ordering::Relaxed);
    }
}
