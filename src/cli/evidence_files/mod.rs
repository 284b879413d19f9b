//! Commands on the files that a job left behind: `analyze` and `export`. The messages about files are those of `watch`
//! and `status` as well.

mod analyze;
mod export;
mod progress;
mod remarks;

pub(super) use analyze::{Analyze, Format, status};
pub(super) use export::Export;
pub(super) use progress::with_progress;
pub(super) use remarks::{nothing_in, print as print_remarks};
