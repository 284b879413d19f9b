//! Maps with keys that the job numbers: ranks, processes and sequence numbers.

mod by_number;
mod by_rank;
mod processes;

pub use by_rank::ByRank;
pub use processes::Processes;

pub(in crate::model) use by_number::{ByNumber, NumberHasher};
pub(in crate::model) use by_rank::position;
