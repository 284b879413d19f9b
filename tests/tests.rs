//! One integration binary.
//!
//! * `copied`: the program without its Python package and libraries.
//! * `framework`: that a scenario which expects the wrong thing fails, and says why.
//! * `launchers`: the ways in which people start jobs, and what may go wrong between us and them.
//! * `linking`: programs that link the agent, under `run` and with a standing coordinator.
//! * `nccl`: programs that call NCCL themselves, against doubles of it and of the driver.
//! * `oracle`: random programs, and what is true of them whatever the engine says.
//! * `packaging`: `pip install agent/python` in a fresh environment.
//! * `postmortem`: what `analyze` makes of what a job left behind, whole, in part or broken.
//! * `recorded`: how the memory of real processes went, written down anew.
//! * `run`: the command `run` as a shell sees it, on real processes.
//! * `scenarios`: the engine on evidence written down by hand, one file each.
//! * `screens`: the dashboard's pictures, on terminals of three sizes.
//! * `security`: what other users of the machine and hostile files can do.
//! * `stacks`: where real ranks stand, taken by `run` and by `dump`.
//! * `structure`: who may depend on whom, and other invariants of the architecture.
//! * `timing`: that tests can scale what is concluded from time.
//! * `watch`: the dashboard on a terminal, beside real jobs.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test that cannot go on has failed, and may say why"
)]

mod copied;
#[path = "doubles/harness.rs"]
mod doubles;
mod framework;
mod launchers;
mod linking;
mod lost_coordinator;
mod nccl;
mod oracle;
mod packaging;
mod postmortem;

mod recorded;
mod run;
mod scenarios;
mod screens;
mod security;
mod stacks;
mod structure;
mod support;
mod timing;
mod watch;
