//! Starts the job of `run` and supervises it: its command, coordinator, directories, secrets and end.

pub mod coordinator;
pub mod descendants;
pub mod fallback;
pub mod job;
pub mod kill;
pub mod meeting;
pub mod monitor;
pub mod nccl;
pub mod rendezvous;
pub mod rundir;
pub mod screen;
pub mod secrets;
pub mod shape;
mod start_failure;
