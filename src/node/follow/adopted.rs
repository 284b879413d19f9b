//! Processes of the job that became children of this process because their parent exited. That happens
//! only on systems without pidfds, where this process is the subreaper of the job.

use ddp_doctor_host::proc;
use ddp_doctor_host::proc::Watched;
use ddp_doctor_host::processes;

use crate::follow::Follower;
use crate::follow::rank::Rank;

impl Follower {
    /// Reaps those that have ended, as init would, so that their pids become free. The exit status of a
    /// rank is read before.
    pub(super) fn reap_adopted(&self) {
        let Some(descendants) = self.descendants.as_ref().filter(|_| processes::is_subreaper())
        else {
            return;
        };
        let mut followed: Vec<u32> = vec![descendants.root()];
        let ranks = self.ranks.iter().filter(|rank| !rank.has_ended());
        followed.extend(ranks.filter_map(Rank::watched).map(Watched::pid));
        followed.extend(self.started.pids());
        for pid in proc::children(std::process::id()) {
            if !followed.contains(&pid) {
                processes::reap_child(pid);
            }
        }
    }
}
