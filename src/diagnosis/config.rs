//! What an engine is created with.

use std::time::Duration;

use crate::input::provenance::Provenance;
use crate::timing::Timing;

/// Configuration of the engine.
#[derive(Clone, Debug)]
pub struct Config {
    /// An unproven wait becomes a finding after this long, or after three times the longest earlier
    /// wait at the same line, whichever is longer.
    pub stall_after: Duration,
    /// The evidence was written because a wait had reached its timeout, so the length of earlier
    /// waits does not count.
    pub has_timed_out: bool,
    /// How the calls are known.
    pub provenance: Provenance,
    /// All other durations.
    pub timing: Timing,
}

impl Config {
    /// Default settings with this timing.
    pub const fn with_timing(timing: Timing) -> Self {
        Self {
            stall_after: timing.default_stall_after,
            has_timed_out: false,
            provenance: Provenance::Recorded,
            timing,
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self::with_timing(Timing::default())
    }
}
