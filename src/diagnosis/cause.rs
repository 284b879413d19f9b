//! Why ranks diverged: a hypothesis beside the finding, never above `supported`.

use ddp_doctor_proto::ExceptionKind;
use ddp_doctor_proto::report::{Cause, CauseKind, Confidence, Timestamp};

use super::model::{Ending, Process};
use super::situation::Situation;

/// The likeliest reason why these ranks left the path of the others, judged at the place where they
/// met (or failed to): the evidence of `odd` against that of `others`.
#[must_use]
pub fn of(situation: &Situation<'_>, odd: &[u32], others: &[u32], at: Timestamp) -> Cause {
    let odd: Vec<&Process> = odd
        .iter()
        .filter_map(|&r| situation.model.process_of(r))
        .collect();
    let others: Vec<&Process> = others
        .iter()
        .filter_map(|&r| situation.model.process_of(r))
        .collect();
    let everybody = || odd.iter().chain(&others).copied();

    // An iterator that ended on some ranks and not on others, with nothing new begun after it.
    let ended = |process: &Process| input_ended_before(process, at);
    if everybody().any(ended) && !everybody().all(ended) {
        return supported(CauseKind::UnevenInputs);
    }
    if everybody().any(|process| swallowed(process, at)) {
        return supported(CauseKind::SwallowedException);
    }
    if !odd.is_empty()
        && odd
            .iter()
            .all(|process| situation.model.ending_of(process) != Ending::None)
    {
        // Nobody saw an iterator end, but the rank that left made fewer steps.
        let fewest = others.iter().map(|process| process.step).min().unwrap_or(0);
        if odd
            .iter()
            .all(|process| process.step > 0 && process.step < fewest)
        {
            return suspected(CauseKind::UnevenInputs);
        }
        return suspected(CauseKind::Teardown);
    }
    if one_rank_alone_was_there(&odd, &others) || one_rank_alone_was_there(&others, &odd) {
        return suspected(CauseKind::RankConditional);
    }
    suspected(CauseKind::Unknown)
}

/// Whether the program's input had come to its end before `at`, and since then no step began.
fn input_ended_before(process: &Process, at: Timestamp) -> bool {
    process
        .input_ended
        .as_ref()
        .is_some_and(|(ended, _)| *ended <= at && *ended >= process.step_at)
}

/// An exception left a call or a pass before `at`, and the process went on.
fn swallowed(process: &Process, at: Timestamp) -> bool {
    process.uncaught().is_none()
        && process.exceptions.iter().any(|exception| {
            exception.at <= at
                && matches!(
                    exception.kind,
                    ExceptionKind::LeftForward
                        | ExceptionKind::LeftBackward
                        | ExceptionKind::LeftCollective
                )
        })
}

/// A single rank whose last call stands at a line that no other rank ever passed, while the others'
/// last lines are known to it: the mark of a call under a condition on the rank.
fn one_rank_alone_was_there(some: &[&Process], others: &[&Process]) -> bool {
    let [one] = some else { return false };
    let Some(place) = one.last_call.as_ref().and_then(|call| call.place.as_ref()) else {
        return false;
    };
    !others.is_empty()
        && others.iter().all(|other| !other.places.contains_key(place))
        && one.places.get(place) == Some(&1)
        && others.iter().all(|other| {
            let last = other
                .last_call
                .as_ref()
                .and_then(|call| call.place.as_ref());
            last.is_some_and(|last| one.places.contains_key(last))
        })
}

const fn supported(kind: CauseKind) -> Cause {
    Cause {
        kind,
        confidence: Confidence::Supported,
    }
}

const fn suspected(kind: CauseKind) -> Cause {
    Cause {
        kind,
        confidence: Confidence::Suspected,
    }
}

/// The cause as a sentence for people; `None` where there is nothing to say.
#[must_use]
pub fn sentence(cause: Cause) -> Option<&'static str> {
    Some(match cause.kind {
        CauseKind::UnevenInputs => "uneven inputs: one rank ran out of batches before the others",
        CauseKind::RankConditional => "a call under a condition on the rank",
        CauseKind::SkippedIteration => "one rank left out an iteration",
        CauseKind::SwallowedException => {
            "an exception was caught on one rank, which went on out of step with the others"
        }
        CauseKind::SwappedCalls => "the same calls in another order",
        CauseKind::LocalDecision => "a decision on state that differs between ranks",
        CauseKind::DataDependentPath => "a path that depends on the content of the batch",
        CauseKind::Teardown => "one rank was shutting down while the others worked",
        CauseKind::Unknown => return None,
    })
}

/// What to change where this is the cause, before what the finding itself advises.
#[must_use]
pub const fn advice(cause: Cause) -> Option<&'static str> {
    match cause.kind {
        CauseKind::UnevenInputs => Some(
            "Give every rank the same number of batches (DistributedSampler(…, drop_last=True)), or \
             run the loop inside Join([model]).",
        ),
        _ => None,
    }
}
