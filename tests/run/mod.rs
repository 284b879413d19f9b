//! The command `run`, on real processes.
//!
//! * `command`: it is transparent to the job.
//! * `diagnosis`: its reports.
//! * `black_boxes`: directories of the black boxes, and records that are lost.
//! * `stacks`: stacks of real ranks, captured by `run` and by `dump`.
//! * `digests`: jobs whose coordinator asks for digests instead of records.
//! * `time_scale`: `DDP_DOCTOR_TIME_SCALE`.
//! * `journal_size`: journals that reach their limit, and disks that fill.
//! * `evidence_elsewhere`: run directories that cannot be written.
//! * `without_pidfds`: kernels and sandboxes without pidfds.
//! * `environments`: healthy jobs with few resources, odd paths, other clocks, in namespaces.

mod black_boxes;
mod command;
mod diagnosis;
mod digests;
mod environments;
mod evidence_elsewhere;
mod journal_size;
mod stacks;
mod time_scale;
mod without_pidfds;
