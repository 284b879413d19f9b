//! Unique ids of communicators: which communicator of one id a call creates.

use std::sync::Mutex;

/// Maximum number of unique ids that are remembered, to distinguish communicators with the same id.
const MAX_IDS: usize = 1024;

/// A unique id that was used.
struct Used {
    hash: u64,
    rank: u32,
    times: u32,
}

static USED: Mutex<Vec<Used>> = Mutex::new(Vec::new());

/// Index of a communicator among those with this hash, from 0 (with `NCCL_COMM_ID` all
/// communicators have one id); `None`: this process is more than one rank of a communicator; only
/// the first is recorded.
pub(crate) fn occurrence_of(hash: u64, rank: u32) -> Option<u32> {
    let mut used = USED.try_lock().ok()?;
    if let Some(known) = used.iter_mut().find(|it| it.hash == hash) {
        if known.rank != rank {
            return None;
        }
        known.times += 1;
        return Some(known.times);
    }
    if used.len() == MAX_IDS {
        used.remove(0);
    }
    used.push(Used { hash, rank, times: 0 });
    Some(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn communicators_of_one_id_are_numbered() {
        assert_eq!(occurrence_of(77, 1), Some(0));
        assert_eq!(occurrence_of(77, 1), Some(1));
        assert_eq!(occurrence_of(78, 1), Some(0));
        // Another rank of the same communicator in this process.
        assert_eq!(occurrence_of(78, 2), None);
    }
}
