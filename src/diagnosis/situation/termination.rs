//! Ranks that a launcher ends by SIGTERM. An elastic launcher does so when a node joins, one rank after the
//! other, and starts them again.

use ddp_doctor_proto::report::Timestamp;

use crate::model::Process;
use crate::situation::Situation;

impl Situation<'_> {
    /// When the end of a process shows that something went wrong; `None`: it does not.
    pub(crate) fn end_is_fault_at(&self, process: &Process) -> Option<Timestamp> {
        let (attempts, timing) = (&self.attempts, &self.model.timing);
        let time = match attempts.all_requested(process) {
            None => return Some(Timestamp::default()),
            Some(_) if attempts.is_over(attempts.of_process(process)) => return None,
            Some(true) => timing.restart,
            Some(false) => timing.termination,
        };
        let at = process.end?.at.plus(time);
        Some(self.model.over().map_or(at, |over| over.min(at)))
    }
}
