//! What the nodes and the coordinator agree on about digests.

use std::time::Duration;

/// Interval of digests.
pub const INTERVAL: Duration = Duration::from_millis(500);
/// Interval of sequence numbers at which all members state the hash.
pub const EVERY: u64 = 64;
