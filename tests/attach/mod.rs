//! `attach`: jobs that were started without ddp-doctor.
//!
//! The programs in `jobs` state at their heads what `attach` must find: codes that fit, the root cause ranks, and
//! at lines marked `HERE rank N` where each rank is. `recordings` holds what `attach --run-dir` kept of one live run
//! of each, without the paths of the machine: `replay` analyzes it. `live` starts the programs. `follow` keeps watching
//! one, and `hosts` attaches to one on two hosts: both use `stages.py`. `requested_dumps` uses `flight_recorder.py`,
//! `over_nccl` jobs of PyTorch over the double of NCCL; `two_users` and `unreadable_processes` are about those of other users.

mod follow;
mod hosts;
mod live;
mod over_nccl;
mod programs;
mod replay;
mod requested_dumps;
mod two_users;
mod unreadable_processes;
