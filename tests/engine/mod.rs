//! The engine on evidence whose truth is known.
//!
//! * `scenarios`: handwritten evidence, one file per scenario.
//! * `scenario_harness`: a scenario with a wrong expectation fails with the difference.
//! * `memory_curves`: recorded memory of real processes, and their recorder.
//! * `own_rule`: an engine with the rules of somebody else.
//! * `unreadable_evidence`: a job of which nothing is seen.
//! * `gpu_recordings`: jobs over NCCL on a real GPU, replayed.

mod gpu_recordings;
mod memory_curves;
mod own_rule;
mod scenario_harness;
mod scenarios;
mod unreadable_evidence;
