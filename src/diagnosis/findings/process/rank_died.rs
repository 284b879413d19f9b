//! DD201 rank-died: a rank was killed by a signal, aborted, or exited with an error status.

use crate::findings::draft::Draft;
use crate::findings::process::death;
use crate::situation::Situation;

/// DD201: abnormal ends of processes without an exception.
pub(crate) fn detect(situation: &Situation<'_>) -> Vec<Draft> {
    let mut drafts = Vec::new();
    for process in situation.model.processes.values() {
        let fault_at = situation.end_is_fault_at(process);
        let Some(fault_at) = fault_at.filter(|&at| at <= situation.now) else {
            continue;
        };
        drafts.extend(
            death::draft(situation, process)
                .map(|draft| Draft { evidence_at: draft.evidence_at.max(fault_at), ..draft }),
        );
    }
    drafts
}
