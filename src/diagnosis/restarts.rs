//! Findings of a job whose ranks the launcher has restarted: the attempt of each, and what became of
//! the job since.

use ddp_doctor_proto::report::{Effect, Severity};

use crate::findings::draft::{Draft, KeyPlace};
use crate::model::{Attempt, Process};
use crate::situation::Situation;
use crate::words;

/// The attempt that a draft concerns.
pub(crate) fn attempt_of(situation: &Situation<'_>, draft: &Draft) -> Attempt {
    let named = draft.of_process.and_then(|id| situation.model.processes.get(&id));
    match named.or_else(|| process_of(situation, draft)) {
        Some(process) => situation.attempts.of_process(process),
        None => situation.attempts.at(draft.evidence_at),
    }
}

/// A process of the world that a draft concerns, if its key or its place determines one.
pub(crate) fn process_of<'a>(situation: &Situation<'a>, draft: &Draft) -> Option<&'a Process> {
    let model = situation.model;
    match (&draft.key.place, draft.place) {
        (KeyPlace::Process(rank, pid), _) => {
            let of_rank = model.ranks.get(rank)?.iter();
            let processes = of_rank.filter_map(|id| model.processes.get(id));
            processes.filter(|process| process.pid == *pid).min_by_key(|process| process.id)
        }
        (_, Some((group, _))) => {
            let member = model.group(group).members.values().next();
            member.and_then(|member| model.processes.get(&member.process))
        }
        _ => None,
    }
}

/// States in the findings which attempt they belong to. If the job has continued without a finding
/// that affects it, those of earlier attempts are warnings.
pub(crate) fn describe(situation: &Situation<'_>, judged: &mut [Draft]) {
    let attempts = &situation.attempts;
    let is_affected =
        judged.iter().any(|draft| draft.effect != Effect::None && !attempts.is_over(draft.attempt));
    let has_failed = situation.model.has_failed;
    for draft in judged {
        let (number, last) = (draft.attempt.index, attempts.last(draft.attempt));
        let restarted = format!("the launcher has restarted the ranks after attempt {number}");
        if !attempts.is_over(draft.attempt) {
            if number > 0 && draft.caused_by.is_none() {
                draft.why.push(format!(
                    "This is attempt {number}: the launcher has restarted the ranks {}.",
                    words::times(u64::from(number))
                ));
            }
        } else if is_affected || has_failed {
            draft.why.push(format!(
                "This was attempt {number}; the launcher has restarted the ranks since."
            ));
        } else {
            draft.severity = draft.severity.min(Severity::Warning);
            draft.why.push(match situation.model.ended {
                Some(_) => format!(
                    "The job recovered: {restarted}, and attempt {last} ended with status 0."
                ),
                None => format!(
                    "The job has continued: {restarted}, and attempt {last} has no finding so far."
                ),
            });
        }
    }
}
