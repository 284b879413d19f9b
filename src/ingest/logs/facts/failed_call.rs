//! The stack of a collective that a watchdog gave up: PyTorch prints the Flight Recorder's behind the timeout.

use ddp_doctor_proto::report::{Timestamp, Where};

use super::{Facts, Statement, Subject, c10d};
use crate::logs::lines::Line;
use crate::stack_text::{python_frame, users_line};

/// What announces the frames, which follow without labels, innermost first.
const BEGIN: &str = "Stack trace of the failed collective:";

/// Whether a line announces a stack.
pub(super) fn begins(text: &str) -> bool {
    text.trim_end().ends_with(BEGIN)
}

/// The stack that a process is printing.
#[derive(Debug, Default)]
pub(super) struct FailedCall {
    /// The process and the time, until its line is found.
    open: Option<(Subject, Timestamp)>,
}

impl FailedCall {
    /// Reads one line of a process: the first frame in the user's program counts.
    pub(super) fn read(&mut self, line: &Line<'_>, at: Timestamp, facts: &mut Facts) {
        if begins(line.text) {
            self.open = Some((c10d::who(line), at));
            return;
        }
        let Some(frame) = frame(line.text) else {
            self.open = None;
            return;
        };
        if let Some(place) = users_line(vec![frame]).filter(|it| !it.library)
            && let Some((who, at)) = self.open.take()
        {
            facts.add(who, at, Statement::CalledAt { place });
        }
    }
}

/// "#2 `sync_loss` from /a/train.py:61".
pub(super) fn frame(text: &str) -> Option<Where> {
    let (number, rest) = text.strip_prefix('#')?.split_once(' ')?;
    let (function, place) = rest.split_once(" from ")?;
    let (file, line) = place.trim_end().rsplit_once(':')?;
    let is_number = number.bytes().all(|it| it.is_ascii_digit());
    python_frame(&format!("File \"{file}\", line {line}, in {function}")).filter(|_| is_number)
}
