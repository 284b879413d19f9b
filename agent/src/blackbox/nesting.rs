//! What the calling thread is inside of, from the outermost call to the innermost wait.

use std::cell::Cell;

use ddp_doctor_proto::Op;
use ddp_doctor_proto::blackbox::inside;

/// Calls such as `init_process_group` contain collectives, and each other; deeper than this nobody
/// has seen them.
const ENCLOSING: usize = 4;
/// In them one collective, and in that one wait.
const DEEPEST: usize = ENCLOSING + 2;

/// One thing a thread is inside of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Frame {
    /// One of [`inside`].
    pub(super) kind: u64,
    pub(super) op: Op,
    pub(super) group: u32,
    pub(super) call: u64,
    pub(super) since: u64,
    pub(super) site: u32,
}

impl Frame {
    /// A frame lies inside frames of lower levels only.
    pub(super) fn level(self) -> u8 {
        match self.kind {
            inside::WAIT => 2,
            _ if self.op.number() >= Op::InitProcessGroup.number() => 0,
            _ => 1,
        }
    }
}

/// The frames of one thread. An exception may leave a call without a word: whatever cannot be below
/// a new frame has ended, so that nothing stays for ever.
#[derive(Debug)]
pub(super) struct Nesting {
    frames: [Cell<Frame>; DEEPEST],
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
        Self {
            frames: [const { Cell::new(EMPTY) }; DEEPEST],
            depth: Cell::new(0),
        }
    }

    pub(super) fn clear(&self) {
        self.depth.set(0);
    }

    /// The innermost frame.
    pub(super) fn top(&self) -> Option<Frame> {
        self.frame(self.depth.get().checked_sub(1)?)
    }

    /// Begins a call or a wait.
    pub(super) fn enter(&self, frame: Frame) {
        let level = frame.level();
        let below = |found: Frame| match level {
            // The same call begun again tells that the earlier one has failed.
            0 => found.level() == 0 && found.op != frame.op,
            level => found.level() < level,
        };
        let mut depth = (0..self.depth.get())
            .take_while(|&i| self.frame(i).is_some_and(below))
            .count();
        if level == 0 {
            depth = depth.min(ENCLOSING - 1);
        }
        if let Some(cell) = self.frames.get(depth) {
            cell.set(frame);
            self.depth.set(depth + 1);
        }
    }

    /// Ends a call or a wait, and whatever was inside of it; whether this thread was in it at all.
    pub(super) fn leave(&self, kind: u64, call: u64) -> bool {
        let found = (0..self.depth.get()).rev().find(|&i| {
            self.frame(i)
                .is_some_and(|frame| frame.kind == kind && frame.call == call)
        });
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
        Frame {
            kind: inside::CALL,
            op,
            call,
            ..Frame::default()
        }
    }

    fn wait(call: u64) -> Frame {
        Frame {
            kind: inside::WAIT,
            call,
            ..Frame::default()
        }
    }

    #[test]
    fn the_outer_call_shows_again_when_the_inner_one_is_over() {
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
    fn what_ended_without_a_word_gives_way() {
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
    fn it_never_grows_too_deep() {
        let nesting = Nesting::new();
        let enclosing = [
            Op::InitProcessGroup,
            Op::NewGroup,
            Op::SplitGroup,
            Op::MonitoredBarrier,
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
