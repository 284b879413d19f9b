//! `analyze` on all kinds of evidence but Flight Recorder dumps.
//!
//! * `killed_jobs`: journals and black boxes of jobs that were killed or are running.
//! * `damage`: files that are damaged, cut off, or no evidence.
//! * `logs`: plain logs, and stacks as text; `wrapped_logs`: the same as terminals break them.
//! * `log_dialects`: the pages on logs of other stacks.
//! * `combined_evidence`: dumps, logs and recordings of one job.
//! * `growth`: what large evidence costs.
//! * `fuzz`: mutated evidence of every kind.

mod combined_evidence;
mod damage;
mod dumps_with_logs;
mod fuzz;
mod growth;
mod killed_jobs;
mod log_dialects;
mod logs;
mod wrapped_logs;
