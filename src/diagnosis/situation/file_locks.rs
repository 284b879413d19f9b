//! Which rank holds the file lock for which another one waits.

use crate::model::Process;
use crate::situation::moment::Moment;
use crate::situation::stall::Stall;
use crate::stacks::{self, What};
use crate::words;

/// A rank that holds a file lock while another one waits for such a lock.
#[derive(Debug)]
pub struct LockHolder<'a> {
    /// Its process.
    pub process: &'a Process,
    /// The lock in words, such as the path of its file.
    pub lock: String,
    /// Whether it is the lock for which the other one waits. Otherwise it may be one for something else.
    pub is_same: bool,
}

impl Moment<'_> {
    /// The rank that holds the file lock for which a missing rank of a stall waits. The kernel names it for a rank that
    /// is blocked in a system call. Of one that tries again and again, nothing is known of the lock but its line: it is
    /// taken to be the lock that a rank holds which waits in the stall, and the same one if that rank has gone past that
    /// line in the same function.
    pub fn lock_holder(&self, stall: &Stall, waiter: &Process) -> Option<LockHolder<'_>> {
        let on = stacks::blocked_on(self.model, waiter).filter(|it| it.kind == "file-lock");
        if let Some(on) = on {
            let process = self.model.process_of(on.rank?).filter(|it| it.id != waiter.id)?;
            // The rank stands for its process, which is named with its command line.
            let lock = on.what.split(", held by ").next().unwrap_or_default().to_owned();
            return Some(LockHolder { process, lock, is_same: true });
        }
        let activity = stacks::activity(waiter, &self.model.timing)?;
        if activity.what != What::FileLock {
            return None;
        }
        let line = activity.line?;
        let mut holders =
            self.model.members(stall.group, &stall.waiting).filter_map(|(_, process)| {
                let look = process.stacks.last().filter(|it| it.at >= process.progressed_at())?;
                // Of several locks, each may be the one.
                let locks = words::joined(look.held_locks.iter().map(ToString::to_string), " or ");
                if locks.is_empty() {
                    return None;
                }
                let is_same = stacks::lines_of(look).iter().any(|it| {
                    it.file == line.file && it.function == line.function && it.line > line.line
                });
                Some(LockHolder { process, lock: format!("lock of {locks}"), is_same })
            });
        let first = holders.next()?;
        if first.is_same { Some(first) } else { holders.find(|it| it.is_same).or(Some(first)) }
    }

    /// Whether a missing rank of a stall waits for a file lock that a rank holds which waits for it there.
    pub(super) fn is_locked_out(&self, stall: &Stall, waiter: &Process) -> bool {
        self.lock_holder(stall, waiter).is_some_and(|holder| {
            let is_awaiting = holder.process.rank.is_some_and(|rank| stall.waiting.contains(&rank));
            holder.is_same && is_awaiting
        })
    }
}
