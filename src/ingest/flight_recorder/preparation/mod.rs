//! Corrects the dumps of a job before they are passed to the engine: without dumps that are older than those of
//! their peers (`outdated_dumps`), with the calls that counters alone show (`lost_calls`), and without the
//! collectives that the diagnosis does not need (`completed_collectives`).

use ddp_doctor_host::sys;

use super::calls::Groups;
use crate::flight_recorder::dumped_jobs::DumpedJob;

mod completed_collectives;
mod lost_calls;
mod outdated_dumps;

/// Corrects the dumps. Returns the groups of the job, with the progress of all ranks. `shows_all`: calls that the
/// diagnosis does not need are shown.
pub(super) fn prepare(job: &mut DumpedJob, shows_all: bool) -> Groups {
    let mut groups = Groups::new(job);
    if outdated_dumps::set_aside(job, &groups) {
        groups = Groups::new(job);
    }
    if lost_calls::add(job, &groups) {
        groups = Groups::new(job);
    }
    completed_collectives::remove(job, &groups, shows_all);
    // What the threads that read the dumps have allocated is of no use to this one.
    sys::release_free_memory();
    groups
}
