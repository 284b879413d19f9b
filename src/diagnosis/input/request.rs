//! Exceptions that a request to end the job raises.

use crate::input::libc_signal::{INT, TERM};

/// The signal that raised an exception with this text: Python's for SIGINT, or Lightning's for SIGTERM.
pub fn signal_of(text: &str) -> Option<i32> {
    let signals = [("KeyboardInterrupt", INT), ("SIGTERMException", TERM)];
    let (_, signal) = signals.iter().find(|(class, _)| text.starts_with(class))?;
    Some(*signal)
}
