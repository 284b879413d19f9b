//! A record of the ring, and the layouts of its kinds.

use crate::vocabulary::{DType, Op, RecordKind, ReduceOp};

use super::RECORD_WORDS;

/// Flags of a record.
pub mod flags {
    /// The caller requested an asynchronous call.
    pub const ASYNC: u16 = 1;
    /// Issued below a frame of DDP or the autograd engine, not directly by the user's code.
    pub const HIDDEN: u16 = 2;
    /// A point-to-point call.
    pub const P2P: u16 = 4;
    /// `numel` is known.
    pub const NUMEL: u16 = 8;
    /// `dims` is the whole shape.
    pub const SHAPE: u16 = 16;
    /// `root_or_peer` is known.
    pub const ROOT: u16 = 32;
    /// `tag` is known.
    pub const TAG: u16 = 64;
    /// The site is the main thread's, because the issuing thread runs no Python.
    pub const BORROWED_SITE: u16 = 128;
    /// For split sizes: those of the output, not of the input.
    pub const OUTPUT: u16 = 256;
    /// For a step: it began with a training forward pass at the record's site, and the program did
    /// not mark it itself. `numel`: batches drawn so far at the place where the last one was drawn.
    pub const FORWARD: u16 = 512;
    /// For such a step: the input is that of the previous forward pass.
    pub const REPEATED: u16 = 1024;
    /// For such a step: its gradients are not to be synchronized.
    pub const UNSYNCHRONISED: u16 = 2048;
    /// For such a step: whether parameters are updated between forward passes is known.
    pub const SEES_UPDATES: u16 = 16384;
    /// For such a step: parameters were updated since the previous forward pass.
    pub const UPDATED: u16 = 8192;
    /// Enqueued on a stream of a device: the words of `dims` are those of [`super::on_stream`].
    pub const STREAM: u16 = 4096;
    /// The result replaces the input.
    pub const IN_PLACE: u16 = 8192;
    /// Captured into a graph: nothing runs yet, and its later execution is not recorded.
    pub const CAPTURED: u16 = 16384;
    /// For a call that returned: its completion will be recorded.
    pub const FOLLOWED: u16 = 32768;
}

/// Maximum number of dimensions in a record.
pub const MAX_DIMS: usize = 10;
/// Maximum number of split sizes in a record of kind [`RecordKind::Splits`].
pub const SPLITS_PER_RECORD: usize = 20;

/// An unpacked record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "explained field by field in `ddpdoctor/v1/agent.proto`")]
pub struct Record {
    pub mono_ns: u64,
    pub kind: RecordKind,
    pub op: Op,
    pub dtype: DType,
    pub reduce_op: ReduceOp,
    pub flags: u16,
    pub ndim: u8,
    pub group: u32,
    pub thread: u32,
    pub seq: u64,
    pub call: u64,
    pub site: u32,
    pub tensors: u32,
    pub root_or_peer: i32,
    pub tag: i32,
    pub numel: u64,
    pub dims: [u32; MAX_DIMS],
    pub step: u32,
    /// String id of the phase.
    pub phase: u32,
    /// String id; its meaning depends on the kind.
    pub text: u32,
    pub code: i32,
}

impl Record {
    /// Payload words of the record's slot: all but the lock.
    #[inline]
    #[must_use]
    pub fn pack(&self) -> [u64; RECORD_WORDS - 1] {
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let mut words = [0; RECORD_WORDS - 1];
        words[0] = self.mono_ns;
        words[1] = u64::from(self.kind.number())
            | u64::from(self.op.number()) << 8
            | u64::from(self.dtype.number()) << 16
            | u64::from(self.reduce_op.number()) << 24
            | u64::from(self.flags) << 32
            | u64::from(self.ndim) << 48;
        words[2] = pair(self.group, self.thread);
        words[3] = self.seq;
        words[4] = self.call;
        words[5] = pair(self.site, self.tensors);
        words[6] = pair(self.root_or_peer.cast_unsigned(), self.tag.cast_unsigned());
        words[7] = self.numel;
        for (i, dims) in self.dims.chunks_exact(2).enumerate() {
            words[8 + i] = pair(dims[0], dims[1]);
        }
        words[13] = pair(self.step, self.phase);
        words[14] = pair(self.text, self.code.cast_unsigned());
        words
    }

    /// Decodes the output of [`Record::pack`]. Unknown enum numbers become `Unspecified`.
    #[must_use]
    pub fn unpack(words: &[u64; RECORD_WORDS - 1]) -> Self {
        let low = |word: u64| (word & 0xffff_ffff) as u32;
        let high = |word: u64| (word >> 32) as u32;
        let byte = |shift: u32| ((words[1] >> shift) & 0xff) as u8;
        let mut dims = [0; MAX_DIMS];
        for i in 0..MAX_DIMS / 2 {
            dims[2 * i] = low(words[8 + i]);
            dims[2 * i + 1] = high(words[8 + i]);
        }
        Self {
            mono_ns: words[0],
            kind: RecordKind::from_number(byte(0)),
            op: Op::from_number(byte(8)),
            dtype: DType::from_number(byte(16)),
            reduce_op: ReduceOp::from_number(byte(24)),
            flags: ((words[1] >> 32) & 0xffff) as u16,
            ndim: byte(48),
            group: low(words[2]),
            thread: high(words[2]),
            seq: words[3],
            call: words[4],
            site: low(words[5]),
            tensors: high(words[5]),
            root_or_peer: low(words[6]).cast_signed(),
            tag: high(words[6]).cast_signed(),
            numel: words[7],
            dims,
            step: low(words[13]),
            phase: high(words[13]),
            text: low(words[14]),
            code: high(words[14]).cast_signed(),
        }
    }

    /// Shape of the first tensor; `None` if unknown.
    #[must_use]
    pub fn shape(&self) -> Option<&[u32]> {
        (self.flags & flags::SHAPE != 0).then(|| &self.dims[..usize::from(self.ndim).min(MAX_DIMS)])
    }
}

/// Layout of a record of kind [`RecordKind::Splits`]: payload words 5 … 14 contain split sizes.
pub mod splits {
    use super::{RECORD_WORDS, SPLITS_PER_RECORD};

    /// First payload word that contains sizes.
    const AT: usize = 5;

    /// Writes up to [`SPLITS_PER_RECORD`] sizes into packed words. `seq` of the record is the index
    /// of the first size, `ndim` the number of sizes; `tensors` is not used.
    pub fn pack(words: &mut [u64; RECORD_WORDS - 1], sizes: &[u32]) {
        for (i, pair) in sizes.chunks(2).take(SPLITS_PER_RECORD / 2).enumerate() {
            let high = pair.get(1).copied().unwrap_or(0);
            words[AT + i] = u64::from(pair[0]) | u64::from(high) << 32;
        }
    }

    /// Reads `count` sizes.
    #[must_use]
    pub fn unpack(words: &[u64; RECORD_WORDS - 1], count: u8) -> Vec<u32> {
        (0..usize::from(count).min(SPLITS_PER_RECORD))
            .map(|i| (words[AT + i / 2] >> (32 * (i % 2))) as u32)
            .collect()
    }
}

/// Layout of `dims` in a record of kind [`RecordKind::Issued`] whose op creates a group. `text` is
/// the name of the group; `group` is 0, since the group does not exist yet.
pub mod creation {
    /// String id of the members, encoded as [`crate::blackbox::members`]; 0: the table was full.
    pub const MEMBERS: usize = 0;
    /// Number of members.
    pub const SIZE: usize = 1;
    /// Index of the initialization of the world, from 0.
    pub const EPOCH: usize = 2;
    /// String id of the description.
    pub const DESCRIPTION: usize = 3;
    /// String id of the backend.
    pub const BACKEND: usize = 4;
    /// 1: the creation is known to block each participant until all members take part; 0: unknown.
    pub const TAKES_ALL: usize = 5;
    /// This process's rank among the members plus one, if it does not know them; 0: `MEMBERS` has
    /// the members.
    pub const SEAT_PLUS_1: usize = 6;
}

/// Layout of `dims` in a record of kind [`RecordKind::Issued`] with [`flags::STREAM`]: the stream
/// of a device on which the call was enqueued.
pub mod on_stream {
    use super::MAX_DIMS;

    /// Identifies the stream within its process: two words, the low one first.
    pub const STREAM: usize = 0;
    /// Calls with the same number were launched together, without an order among them; 0: launched
    /// alone.
    pub const LAUNCH: usize = 2;

    /// Encodes a stream and a launch as `dims`.
    #[inline]
    #[must_use]
    pub const fn pack(stream: u64, launch: u32) -> [u32; MAX_DIMS] {
        let mut dims = [0; MAX_DIMS];
        dims[STREAM] = stream as u32;
        dims[STREAM + 1] = (stream >> 32) as u32;
        dims[LAUNCH] = launch;
        dims
    }

    /// Decodes `(stream, launch)`.
    #[must_use]
    pub const fn unpack(dims: &[u32; MAX_DIMS]) -> (u64, u32) {
        let stream = dims[STREAM] as u64 | (dims[STREAM + 1] as u64) << 32;
        (stream, dims[LAUNCH])
    }
}

/// Values of `code` in a record of kind [`RecordKind::Transfer`]: what the first incomplete step
/// waits for.
pub mod transfer {
    /// The transfer makes progress again, or is complete.
    pub const MOVES: i32 = 0;
    /// The device: it has not yet provided the data to send, or not yet taken the received data.
    pub const DEVICE: i32 = 1;
    /// The peer, which is not ready.
    pub const PEER: i32 = 2;
    /// The network: a send was posted and not acknowledged, or a receive was posted and has no
    /// data.
    pub const NETWORK: i32 = 3;
    /// Unknown.
    pub const UNKNOWN: i32 = 4;
}

/// Layout of a record of kind [`RecordKind::Memory`]: payload words 3 and 5 … 14 contain the memory
/// values measured by the process.
pub mod memory {
    use super::RECORD_WORDS;

    /// First payload word in use.
    const AT: usize = 5;
    /// Word of `largest`, plus one. 0 in boxes of versions without it.
    const LARGEST: usize = 14;
    /// Word of `nccl`, plus one. 0 in boxes of versions without it.
    const NCCL_PLUS_1: usize = 3;
    /// Value of an unknown field.
    const UNKNOWN: u64 = u64::MAX;

    /// Memory of a device as measured in the process; `None`: unknown.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Sample {
        /// Index of the device in the process.
        pub device: Option<u32>,
        /// Bytes in use on the device, by all processes.
        pub used: Option<u64>,
        /// Capacity of the device, in bytes.
        pub total: Option<u64>,
        /// Bytes that the framework's allocator has allocated to tensors.
        pub allocated: Option<u64>,
        /// Bytes that the framework's allocator has reserved on the device.
        pub reserved: Option<u64>,
        /// Maximum of `allocated` so far.
        pub peak: Option<u64>,
        /// Bytes reserved in the unused rest of split blocks.
        pub split: Option<u64>,
        /// Number of times that the allocator released its cached memory to retry an allocation.
        pub retries: Option<u64>,
        /// Number of allocations that failed.
        pub ooms: Option<u64>,
        /// Bytes of the largest free piece of reserved memory.
        pub largest: Option<u64>,
        /// Bytes that NCCL holds on the device for the communicators of the process.
        pub nccl: Option<u64>,
    }

    /// Writes a sample into packed words.
    pub fn pack(words: &mut [u64; RECORD_WORDS - 1], sample: &Sample) {
        let values = [
            sample.device.map(u64::from),
            sample.used,
            sample.total,
            sample.allocated,
            sample.reserved,
            sample.peak,
            sample.split,
            sample.retries,
            sample.ooms,
        ];
        for (i, value) in values.into_iter().enumerate() {
            words[AT + i] = value.unwrap_or(UNKNOWN);
        }
        words[LARGEST] = sample.largest.map_or(0, |it| it.saturating_add(1));
        words[NCCL_PLUS_1] = sample.nccl.map_or(0, |it| it.saturating_add(1));
    }

    /// Reads a sample.
    #[must_use]
    pub fn unpack(words: &[u64; RECORD_WORDS - 1]) -> Sample {
        let value = |i: usize| Some(words[AT + i]).filter(|&it| it != UNKNOWN);
        Sample {
            device: value(0).and_then(|it| u32::try_from(it).ok()),
            used: value(1),
            total: value(2),
            allocated: value(3),
            reserved: value(4),
            peak: value(5),
            split: value(6),
            retries: value(7),
            ooms: value(8),
            largest: words[LARGEST].checked_sub(1),
            nccl: words[NCCL_PLUS_1].checked_sub(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_memory_sample_unpacks_unchanged() {
        for sample in [
            memory::Sample::default(),
            memory::Sample {
                device: Some(7),
                used: Some(1 << 36),
                allocated: Some(0),
                ooms: Some(3),
                ..memory::Sample::default()
            },
            memory::Sample { largest: Some(0), nccl: Some(0), ..memory::Sample::default() },
        ] {
            let mut words = Record::default().pack();
            memory::pack(&mut words, &sample);
            assert_eq!(memory::unpack(&words), sample);
            // As written by a version without the word of NCCL.
            words[3] = 0;
            assert_eq!(memory::unpack(&words).nccl, None);
        }
        let written_before = Record::default().pack();
        assert_eq!(memory::unpack(&written_before).largest, None);
    }

    #[test]
    fn packed_record_unpacks_unchanged() {
        let record = Record {
            mono_ns: u64::MAX - 5,
            kind: RecordKind::Issued,
            op: Op::Broadcast,
            dtype: DType::BFloat16,
            reduce_op: ReduceOp::PremulSum,
            flags: flags::ASYNC | flags::SHAPE | flags::BORROWED_SITE,
            ndim: 3,
            group: 7,
            thread: 3,
            seq: 1 << 40,
            call: 99,
            site: 12,
            tensors: 4,
            root_or_peer: -1,
            tag: -7,
            numel: 1 << 50,
            dims: [1, 2, 3, 4, 5, 6, 7, 8, 9, u32::MAX],
            step: 8,
            phase: 2,
            text: 5,
            code: -11,
        };
        assert_eq!(Record::unpack(&record.pack()), record);
        assert_eq!(record.shape(), Some(&[1, 2, 3][..]));
    }

    #[test]
    fn packed_splits_unpack_unchanged() {
        for n in 0..=SPLITS_PER_RECORD {
            let sizes: Vec<u32> = (0..n as u32).map(|i| i * 7 + u32::MAX / 2).collect();
            let mut words = Record::default().pack();
            splits::pack(&mut words, &sizes);
            assert_eq!(splits::unpack(&words, n as u8), sizes);
        }
    }

    #[test]
    fn packed_streams_unpack_unchanged() {
        for (stream, launch) in [(0, 0), (u64::MAX - 1, 7), (1 << 40, u32::MAX)] {
            assert_eq!(on_stream::unpack(&on_stream::pack(stream, launch)), (stream, launch));
        }
    }
}
