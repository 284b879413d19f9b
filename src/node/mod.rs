//! One node of a job: starts the command, reads the black boxes of its ranks, and passes on what it
//! reads.
//!
//! Whatever fails here, the job goes on: a failure is one line for the user, and less to diagnose
//! from.

use std::sync::Arc;

pub mod attach;
pub mod boxes;
pub mod cgroup;
pub mod descendants;
pub mod environment;
pub mod follow;
pub mod job;
pub mod kill;
pub mod launch;
pub mod memory;
pub mod names;
pub mod outbox;
pub mod places;
pub mod proc;
pub mod rank;
pub mod reporter;
pub mod rundir;
pub mod scheduling;
pub mod screen;
pub mod socket;
pub mod source;
pub mod stacks;
pub mod started;
pub mod sys;
pub mod timing;

/// Says a line to the user, from whatever thread.
#[derive(Clone)]
pub struct Say(Arc<dyn Fn(&str) + Send + Sync>);

impl Say {
    /// Hands every line to a function.
    pub fn new(to: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self(Arc::new(to))
    }

    /// Says it to nobody.
    #[must_use]
    pub fn nobody() -> Self {
        Self::new(|_| {})
    }

    /// Says it.
    pub fn say(&self, line: &str) {
        (self.0)(line);
    }
}

impl std::fmt::Debug for Say {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Say")
    }
}
