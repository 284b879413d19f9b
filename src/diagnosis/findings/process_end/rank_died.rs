//! DD201 rank-died: a rank was killed by a signal, aborted, or exited with an error status.

use crate::findings::draft::Draft;
use crate::findings::process_end::death;
use crate::model::Process;
use crate::situation::Situation;

/// DD201: the abnormal end of a process without an exception.
pub(crate) fn draft(situation: &Situation<'_>, process: &Process) -> Option<Draft> {
    let fault_at = situation.end_is_fault_at(process).filter(|&at| at <= situation.now)?;
    let draft = death::draft(situation, process)?;
    Some(Draft { evidence_at: draft.evidence_at.max(fault_at), ..draft })
}
