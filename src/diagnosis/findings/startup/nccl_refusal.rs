//! Errors by which NCCL refuses to connect ranks, and the findings that explain them.

use ddp_doctor_proto::catalogue::{self, Code};

use crate::findings::draft::{Key, KeyPlace};
use crate::findings::startup::{settings, skew};
use crate::model::{Exception, Process};
use crate::situation::Situation;

/// A reason for which NCCL refuses to connect ranks.
struct Refusal {
    /// Parts of its error messages.
    texts: &'static [&'static str],
    /// Code of the finding that explains it.
    code: &'static Code,
    /// Identifies the finding about the process that raised the error; `None`: there is none.
    place: fn(&Situation<'_>, &Process) -> Option<KeyPlace>,
}

static REFUSALS: &[Refusal] = &[
    Refusal {
        texts: &["Duplicate GPU detected", "Multiple Ranks are using the same GPU"],
        code: &catalogue::DD307,
        place: of_shared_gpu,
    },
    Refusal {
        // Since 2.23.4.
        texts: &["Mismatched NCCL version"],
        code: &catalogue::DD305,
        place: skew::place,
    },
];

/// Key of the finding that an exception of a process follows from; `None`: NCCL did not raise it to
/// refuse a connection.
pub(crate) fn cause(
    situation: &Situation<'_>,
    process: &Process,
    exception: &Exception,
) -> Option<Key> {
    let is_in = |it: &&Refusal| it.texts.iter().any(|text| exception.text.contains(text));
    let refusal = REFUSALS.iter().find(is_in)?;
    let place = (refusal.place)(situation, process)?;
    Some(Key { code: refusal.code.code, place })
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
