//! Errors by which NCCL refuses to connect ranks, and the findings that explain them.

use ddp_doctor_proto::catalogue;

use crate::findings::draft::{Key, KeyPlace};
use crate::findings::startup::{settings, skew};
use crate::model::{Exception, Process};
use crate::situation::Situation;

/// Key of the finding that an exception of a process follows from; `None`: NCCL did not raise it to
/// refuse a connection, or there is none.
pub(crate) fn cause(
    situation: &Situation<'_>,
    process: &Process,
    exception: &Exception,
) -> Option<Key> {
    let states = |text: &str| exception.text.contains(text);
    let (code, place) =
        if states("Duplicate GPU detected") || states("Multiple Ranks are using the same GPU") {
            (&catalogue::DD307, of_shared_gpu(situation, process)?)
        } else if states("Mismatched NCCL version") {
            // Since 2.23.4.
            (&catalogue::DD305, skew::place(situation, process)?)
        } else {
            return None;
        };
    Some(Key { code: code.code, place })
}

/// Identifies the finding about the GPU that a process shares.
fn of_shared_gpu(situation: &Situation<'_>, process: &Process) -> Option<KeyPlace> {
    let worlds = settings::worlds_that_share(situation.model);
    worlds.iter().find_map(|peers| {
        let mut ranks = peers.ranks.iter();
        let (rank, _) = ranks.find(|(_, other)| other.id == process.id)?;
        // NCCL's message names only two ranks; the key needs all sharers.
        let mut sharers = peers.sharers().into_iter().map(|(_, ranks)| ranks);
        sharers.find(|ranks| ranks.contains(rank)).map(KeyPlace::Ranks)
    })
}
