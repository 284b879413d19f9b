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
        let found = death::draft(situation, process);
        drafts.extend(found.map(|it| Draft { evidence_at: it.evidence_at.max(fault_at), ..it }));
    }
    drafts
}
