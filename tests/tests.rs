//! The integration tests, one binary.
//!
//! * `engine`: the engine on scenarios and recordings.
//! * `oracle`: random programs whose true faults are known independently of the engine.
//! * `flight_recorder`: `analyze` on Flight Recorder dumps.
//! * `analyze`: `analyze` on all other evidence.
//! * `attach`: the command `attach`, on jobs that were started without ddp-doctor.
//! * `output`: formats of reports, and what commands print.
//! * `run`: the command `run`, on real processes.
//! * `launch`: ways to install ddp-doctor and to start a job with it.
//! * `nccl`: programs that call NCCL directly, against doubles of NCCL and of the CUDA driver.
//! * `hosts`: jobs on several hosts, which are network namespaces.
//! * `coordinator`: the coordinator and its clients.
//! * `security`: attacks by other users, hostile peers and hostile files.
//! * `dashboard`: the terminal screens.
//! * `structure`: allowed dependencies and other invariants of the architecture.
//! * `support`: helpers of all of them.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test that cannot continue has failed and may print why"
)]

mod analyze;
mod attach;
mod coordinator;
mod dashboard;
#[path = "doubles/harness.rs"]
mod doubles;
mod engine;
mod flight_recorder;
mod hosts;
mod launch;
mod nccl;
mod oracle;
mod output;
mod run;
mod security;
mod structure;
mod support;
