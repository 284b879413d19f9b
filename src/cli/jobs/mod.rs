//! Commands that start a job or receive its evidence: `run`, `demo`, `coordinator` and `reporter`; `check` examines the
//! nodes before a job starts.

mod check;
mod coordinator;
mod demo;
mod job_output;
mod reporter;
mod run;

pub(super) use check::Check;
pub(super) use coordinator::Coordinator;
pub(super) use demo::{DemoRank, ShowDemo};
pub(super) use reporter::Reporter;
pub(super) use run::Run;
