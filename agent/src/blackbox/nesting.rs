//! Nested calls of a thread, from the outermost call to the innermost wait.

use std::cell::Cell;

use ddp_doctor_proto::Op;
use ddp_doctor_proto::blackbox::inside;

/// Maximum depth of calls such as `init_process_group` that contain other calls. No deeper nesting
/// is known.
const ENCLOSING: usize = 4;
/// Such calls, plus one collective and its wait.
const MAX_DEPTH: usize = ENCLOSING + 2;

/// A call or a wait that a thread is in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Frame {
    /// A constant of [`inside`].
    pub(super) kind: u64,
    pub(super) op: Op,
    pub(super) group: u32,
    pub(super) call: u64,
    pub(super) since: u64,
    pub(super) site: u32,
}

impl Frame {
    /// Nesting level: a frame can only be inside frames of lower levels.
    pub(super) fn level(self) -> u8 {
        match self.kind {
            inside::WAIT => 2,
            _ if self.op.encloses_calls() => 0,
            _ => 1,
        }
    }
}

/// The frames of one thread. An exception may end a call without a record, so entering a frame
/// removes all frames that cannot contain it.
#[derive(Debug)]
pub(super) struct Nesting {
    frames: [Cell<Frame>; MAX_DEPTH],
    depth: Cell<usize>,
}

impl Nesting {
    pub(super) const fn new() -> Self {
        const EMPTY: Frame = Frame {
            kind: inside::NOTHING,
            op: Op::Unspecified,
            group: 0,
            call: 0,
            since: 0,
            site: 0,
        };
        Self { frames: [const { Cell::new(EMPTY) }; MAX_DEPTH], depth: Cell::new(0) }
    }

    pub(super) fn clear(&self) {
        self.depth.set(0);
    }

    /// The innermost frame.
    pub(super) fn top(&self) -> Option<Frame> {
        self.frame(self.depth.get().checked_sub(1)?)
    }

    /// Enters a call or a wait.
    pub(super) fn enter(&self, frame: Frame) {
        let level = frame.level();
        let below = |found: Frame| match level {
            // An enclosing call with the same op means that the earlier one has failed.
            0 => found.level() == 0 && found.op != frame.op,
            level => found.level() < level,
        };
        let mut depth =
            (0..self.depth.get()).take_while(|&i| self.frame(i).is_some_and(below)).count();
        if level == 0 {
            depth = depth.min(ENCLOSING - 1);
        }
        if let Some(cell) = self.frames.get(depth) {
            cell.set(frame);
            self.depth.set(depth + 1);
        }
    }

    /// Leaves a call or a wait and everything inside it. Returns whether this thread was in it.
    pub(super) fn leave(&self, kind: u64, call: u64) -> bool {
        let found = (0..self.depth.get())
            .rev()
            .find(|&i| self.frame(i).is_some_and(|frame| frame.kind == kind && frame.call == call));
        if let Some(depth) = found {
            self.depth.set(depth);
        }
        found.is_some()
    }

    fn frame(&self, depth: usize) -> Option<Frame> {
        self.frames.get(depth).map(Cell::get)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(op: Op, call: u64) -> Frame {
        Frame { kind: inside::CALL, op, call, ..Frame::default() }
    }

    fn wait(call: u64) -> Frame {
        Frame { kind: inside::WAIT, call, ..Frame::default() }
    }

    #[test]
    fn outer_call_is_on_top_after_the_inner_one_ends() {
        let nesting = Nesting::new();
        nesting.enter(call(Op::InitProcessGroup, 1));
        nesting.enter(call(Op::NewGroup, 2));
        nesting.enter(call(Op::Barrier, 3));
        nesting.enter(wait(3));
        assert_eq!(nesting.top(), Some(wait(3)));
        assert!(nesting.leave(inside::WAIT, 3));
        assert_eq!(nesting.top(), Some(call(Op::Barrier, 3)));
        assert!(nesting.leave(inside::CALL, 2));
        assert_eq!(nesting.top(), Some(call(Op::InitProcessGroup, 1)));
        assert!(!nesting.leave(inside::CALL, 2));
        assert!(nesting.leave(inside::CALL, 1));
        assert_eq!(nesting.top(), None);
    }

    #[test]
    fn calls_that_ended_unrecorded_are_removed() {
        let nesting = Nesting::new();
        nesting.enter(call(Op::AllReduce, 1));
        nesting.enter(wait(1));
        nesting.enter(call(Op::Broadcast, 2));
        assert!(nesting.leave(inside::CALL, 2));
        assert_eq!(nesting.top(), None);

        nesting.enter(call(Op::InitProcessGroup, 3));
        nesting.enter(call(Op::InitProcessGroup, 4));
        assert!(nesting.leave(inside::CALL, 4));
        assert_eq!(nesting.top(), None);
    }

    #[test]
    fn depth_is_bounded() {
        let nesting = Nesting::new();
        let enclosing = [
            Op::InitProcessGroup,
            Op::NewGroup,
            Op::SplitGroup,
            Op::DestroyProcessGroup,
            Op::Other,
        ];
        for (op, id) in enclosing.into_iter().zip(1..) {
            nesting.enter(call(op, id));
            assert_eq!(nesting.top(), Some(call(op, id)));
        }
        nesting.enter(call(Op::Send, 9));
        nesting.enter(wait(9));
        assert_eq!(nesting.top(), Some(wait(9)));
    }
}
