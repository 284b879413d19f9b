//! Records of what is no call: steps, phases, groups that are left, exceptions, the end.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use ddp_doctor_proto::blackbox::{Record, flags, group, header, memory};
use ddp_doctor_proto::{ExceptionKind, NoteKind, ParameterFact, RecordKind, Spending};

use super::Writer;
use crate::sys;

/// Phases that may be inside each other.
const DEEPEST_PHASE: usize = 16;

/// A training forward.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forward {
    /// The user's line; 0: unknown.
    pub site: u32,
    /// Batches drawn so far where the last one was drawn; `None`: no input was seen.
    pub batches: Option<u64>,
    /// Its input is that of the forward before.
    pub repeated: bool,
    /// Its gradients are not to be synchronised.
    pub unsynchronised: bool,
}

/// Parameters of a model whose gradients the ranks of a group average.
#[derive(Clone, Copy, Debug, Default)]
pub struct Parameters<'a> {
    /// What is said of them.
    pub fact: ParameterFact,
    /// The group, by its number.
    pub group: u32,
    /// The how-manieth model of that group it is in this process, from 1; 0: unknown.
    pub model: u32,
    /// How many parameters it is about.
    pub total: u64,
    /// Index of the first one in `lines`, where they are numbered.
    pub first: u32,
    /// A line for each: element type, sizes with commas between ("-": none), name.
    pub lines: &'a [u8],
    /// The place in the program; 0: unknown.
    pub site: u32,
}

impl Writer {
    /// A training step begins. Gives its number, from 1.
    pub fn step(&self) -> u32 {
        let step = self.next_step();
        self.say(RecordKind::Step, 0, 0, 0);
        step
    }

    /// A training step begins with a forward. Gives its number, from 1.
    pub fn forward(&self, forward: Forward) -> u32 {
        let step = self.next_step();
        let mut flags = flags::FORWARD;
        for (is, flag) in [
            (forward.batches.is_some(), flags::NUMEL),
            (forward.repeated, flags::REPEATED),
            (forward.unsynchronised, flags::UNSYNCHRONISED),
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

    /// A phase begins; its name is a [`Writer::string`].
    pub fn phase_begin(&self, name: u32) {
        self.say(RecordKind::PhaseBegin, 0, name, 0);
        self.phases.begin(&self.header()[header::PHASE], name);
    }

    /// A phase ends.
    pub fn phase_end(&self, name: u32) {
        self.say(RecordKind::PhaseEnd, 0, name, 0);
        self.phases.end(&self.header()[header::PHASE], name);
    }

    /// This process left the group.
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

    /// From now on calls of the group fail after so many milliseconds.
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

    /// An exception was seen: "Type: message".
    pub fn exception(&self, kind: ExceptionKind, value: &[u8], site: u32) {
        let value = self.string(value);
        let kind = i32::from(kind.number());
        self.say(RecordKind::Exception, kind, value, site);
    }

    /// The process is about to end by itself.
    pub fn exit(&self, code: i32, how: &[u8]) {
        #[cfg(feature = "cuda")]
        crate::gpu::end();
        let how = self.string(how);
        self.say(RecordKind::Exit, code, how, 0);
    }

    /// A remark about the capture itself.
    pub fn note(&self, kind: NoteKind, value: &[u8]) {
        let value = self.string(value);
        self.say(RecordKind::Note, i32::from(kind.number()), value, 0);
    }

    /// The program's input came to its end.
    pub fn input_ended(&self, site: u32) {
        self.say(RecordKind::InputEnded, 0, 0, site);
    }

    /// This thread has just spent so many nanoseconds on what is no work of its own.
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

    /// A version or a setting that ranks may have to agree on.
    pub fn setting(&self, name: &[u8], value: &[u8]) {
        let text = [name, b"=", value].concat();
        let text = self.string(&text);
        self.say(RecordKind::Setting, 0, text, 0);
    }

    /// Something is said of the parameters of a model. A layout may not take the room of other texts:
    /// beyond half of it, only how many there are is recorded.
    pub fn parameters(&self, said: &Parameters<'_>) {
        let used = self.header()[header::HEAP_USED].load(Ordering::Relaxed);
        let is_full = used.saturating_mul(2) >= self.capacities.heap_words as u64;
        let lines = match said.fact {
            ParameterFact::Layout if is_full => &[],
            _ => said.lines,
        };
        self.record(
            None,
            Record {
                mono_ns: sys::monotonic_ns(),
                kind: RecordKind::Parameters,
                flags: flags::NUMEL,
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

    /// What the process knows of its memory.
    pub fn memory(&self, sample: &memory::Sample) {
        let mut words = Record {
            mono_ns: sys::monotonic_ns(),
            kind: RecordKind::Memory,
            ..Record::default()
        }
        .pack();
        memory::pack(&mut words, sample);
        self.append(&words);
    }

    fn say(&self, kind: RecordKind, code: i32, text: u32, site: u32) {
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

/// Phases that are begun and not ended, outermost first. They are the process's: two threads that
/// begin phases at once may get each other's, and that is all that can happen.
#[derive(Debug, Default)]
pub(super) struct Phases {
    names: [AtomicU32; DEEPEST_PHASE],
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

    /// Ends the phase, and those inside of it that nobody ended.
    fn end(&self, innermost: &AtomicU64, name: u32) {
        let names = self.names.get(..self.depth.load(Ordering::Relaxed));
        let found = names
            .unwrap_or_default()
            .iter()
            .rposition(|it| it.load(Ordering::Relaxed) == name);
        let depth = found.unwrap_or_else(|| names.map_or(0, <[_]>::len));
        self.depth.store(depth, Ordering::Relaxed);
        let outer = depth.checked_sub(1).and_then(|i| self.names.get(i));
        let outer = outer.map_or(0, |it| it.load(Ordering::Relaxed));
        innermost.store(u64::from(outer), Ordering::Relaxed);
    }
}
