//! A call that is about to be recorded.

use crate::vocabulary::{DType, Op, ReduceOp};

use super::{MAX_DIMS, Record, flags, on_stream};

/// A call that is about to be recorded: `ddp_doctor_call` of `ddp_doctor.h`.
///
/// All values are valid: unknown numbers become `Unspecified` in the record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Call {
    /// Number of the [`Op`].
    pub op: u8,
    /// Number of the [`DType`].
    pub dtype: u8,
    /// Number of the [`ReduceOp`].
    pub reduce_op: u8,
    /// Number of dimensions in `dims`.
    pub ndim: u8,
    /// Bits of [`flags`].
    pub flags: u16,
    /// Reserved, 0.
    pub reserved: u16,
    /// The group; 0: none.
    pub group: u32,
    /// Source location; 0: unknown.
    pub site: u32,
    /// Number of tensors.
    pub tensors: u32,
    /// Group rank of the root or of the peer, with [`flags::ROOT`].
    pub root_or_peer: i32,
    /// Tag, with [`flags::TAG`].
    pub tag: i32,
    /// Reserved, 0.
    pub reserved2: u32,
    /// Number of elements of the first tensor, with [`flags::NUMEL`].
    pub numel: u64,
    /// Shape of the first tensor, with [`flags::SHAPE`]; with [`flags::STREAM`], the words of
    /// [`on_stream`].
    pub dims: [u32; MAX_DIMS],
}

impl From<&Call> for Record {
    #[inline]
    fn from(call: &Call) -> Self {
        Self {
            op: Op::from_number(call.op),
            dtype: DType::from_number(call.dtype),
            reduce_op: ReduceOp::from_number(call.reduce_op),
            flags: call.flags,
            ndim: call.ndim,
            group: call.group,
            site: call.site,
            tensors: call.tensors,
            root_or_peer: call.root_or_peer,
            tag: call.tag,
            numel: call.numel,
            dims: call.dims,
            ..Self::default()
        }
    }
}

impl Call {
    /// Sets the shape of the first tensor. If it has more dimensions than a record holds, or one
    /// above 32 bits, only the number of elements is recorded.
    #[inline]
    pub fn set_shape(&mut self, sizes: impl Iterator<Item = u64>) {
        let mut count = 0;
        let mut fits = true;
        self.numel = 1;
        for size in sizes {
            self.numel = self.numel.saturating_mul(size);
            match (self.dims.get_mut(count), u32::try_from(size)) {
                (Some(dim), Ok(size)) => *dim = size,
                _ => fits = false,
            }
            count += 1;
        }
        self.flags |= flags::NUMEL;
        if fits {
            self.flags |= flags::SHAPE;
            self.ndim = count as u8;
        } else {
            self.dims = [0; MAX_DIMS];
        }
    }
}

/// Calls of NCCL.
impl Call {
    /// A call with this number of elements.
    #[inline]
    #[must_use]
    pub fn nccl(op: Op, dtype: DType, count: usize) -> Self {
        let mut flags = flags::NUMEL;
        if count == 0 {
            flags |= flags::ASYNC; // nothing is enqueued, so nothing waits for it
        }
        Self {
            op: op.number(),
            dtype: dtype.number(),
            flags,
            tensors: 1,
            numel: count as u64,
            ..Self::default()
        }
    }

    /// Sets the group rank of the root or of the peer.
    #[inline]
    #[must_use]
    pub fn with_partner(self, rank: i32) -> Self {
        Self { root_or_peer: rank, flags: self.flags | flags::ROOT, ..self }
    }

    /// Sets whether the result replaces the input.
    #[inline]
    #[must_use]
    pub fn in_place(self, is: bool) -> Self {
        Self { flags: self.flags | if is { flags::IN_PLACE } else { 0 }, ..self }
    }

    /// Sets the stream, by its identity within the process, and whether it is captured into a
    /// graph.
    #[inline]
    #[must_use]
    pub fn on_stream(self, stream: u64, captured: bool) -> Self {
        let captured = if captured {
            flags::CAPTURED | flags::ASYNC // nothing is enqueued yet
        } else {
            0
        };
        Self {
            dims: on_stream::pack(stream, 0),
            flags: self.flags | flags::STREAM | captured,
            ..self
        }
    }

    /// Whether NCCL ignores the call: a collective of no elements is not matched with other ranks'
    /// calls. Counting it would shift all later sequence numbers.
    #[inline]
    #[must_use]
    pub fn is_dropped(&self) -> bool {
        self.numel == 0 && !Op::from_number(self.op).is_point_to_point()
    }

    /// Sort key of the calls of one group launch on one communicator: what ranks must agree on for
    /// a collective; `None` for a message.
    #[inline]
    pub fn launch_key(&self) -> impl Ord + use<> {
        (!Op::from_number(self.op).is_point_to_point()).then_some((
            self.op,
            self.numel,
            self.dtype,
            self.reduce_op,
            self.root_or_peer,
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shape_without_room_leaves_the_number_of_elements() {
        let shaped = |sizes: &[u64]| {
            let mut call = Call::default();
            call.set_shape(sizes.iter().copied());
            let record = Record::from(&call);
            (record.shape().map(<[u32]>::to_vec), record.numel)
        };
        assert_eq!(shaped(&[]), (Some(vec![]), 1));
        assert_eq!(shaped(&[2, 0, 3]), (Some(vec![2, 0, 3]), 0));
        assert_eq!(shaped(&[2; MAX_DIMS]), (Some(vec![2; MAX_DIMS]), 1024));
        assert_eq!(shaped(&[2; MAX_DIMS + 1]), (None, 2048));
        assert_eq!(shaped(&[3, 1 << 32]), (None, 3 << 32));
        assert_eq!(shaped(&[1 << 32, 1 << 32]), (None, u64::MAX));
    }

    #[test]
    fn unknown_numbers_become_unspecified() {
        let call = Call { op: 200, dtype: DType::Int8.number(), reduce_op: 255, ..Call::default() };
        let record = Record::from(&call);
        assert_eq!(
            (record.op, record.dtype, record.reduce_op),
            (Op::Unspecified, DType::Int8, ReduceOp::Unspecified)
        );
    }
}
