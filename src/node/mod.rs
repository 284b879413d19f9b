//! One node of a job: starts the command, reads the black boxes of its ranks, and sends their
//! records to the coordinator and to the journal.
//!
//! A failure here never ends the job: it is one line for the user, and less evidence for the
//! diagnosis.

use std::sync::Arc;

pub mod blocked;
pub mod follow;
pub mod launch;
pub mod processes;
pub mod sample;
pub mod source;
pub mod stacks;
pub mod sys;
pub mod timing;
pub mod upload;

/// Prints lines for the user, from any thread.
#[derive(Clone)]
pub struct UserLog(Arc<dyn Fn(&str) + Send + Sync>);

impl UserLog {
    /// Passes every line to a function.
    pub fn new(to: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self(Arc::new(to))
    }

    /// Discards every line.
    #[must_use]
    pub fn discard() -> Self {
        Self::new(|_| {})
    }

    /// Prints a line.
    pub fn print(&self, line: &str) {
        (self.0)(line);
    }
}

impl std::fmt::Debug for UserLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("UserLog")
    }
}
