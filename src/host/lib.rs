//! The host, below everything that asks it: processes and their limits, names of this program's own directories, and
//! the files that it opens and changes.

mod box_owner;
pub mod boxes;
pub mod cgroup;
pub mod files;
pub mod gpu;
pub mod input_files;
pub mod log;
pub mod names;
pub mod ports;
pub mod private;
pub mod proc;
pub mod processes;
pub mod run_description;
mod seal;
pub mod source_files;
pub mod sys;
pub mod users;
