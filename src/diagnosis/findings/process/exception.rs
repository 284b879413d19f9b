//! A process that an exception ended, or made leave the path of the others.

use ddp_doctor_proto::ExceptionKind;
use ddp_doctor_proto::catalogue::{self, Code};
use ddp_doctor_proto::report::{Certificate, CertificateKind, Confidence, Fact};

use crate::evidence::allocation;
use crate::findings::draft::{Draft, Key, KeyPlace, ProcessFact};
use crate::findings::hang::message;
use crate::findings::process::death::is_process;
use crate::findings::startup::nccl_refusal;
use crate::findings::view::{last_call, rank_calls, with_place};
use crate::model::{Exception, Join, Process};
use crate::situation::{Divergence, Origin, Situation, Stall};
use crate::words::{self, Ranks, number};

/// Key of the finding about a process that this exception ended.
pub(crate) fn key(rank: u32, pid: u32, exception: &Exception) -> Key {
    let about = match allocation::failed(&exception.text) {
        Some(_) => &catalogue::DD501,
        None => &catalogue::DD202,
    };
    Key {
        code: about.code,
        place: KeyPlace::Process(rank, pid),
    }
}

/// A process that an exception ended or diverted.
pub(crate) struct Ended<'a> {
    pub(crate) process: &'a Process,
    pub(crate) rank: u32,
    pub(crate) exception: &'a Exception,
    /// The divergence that its call during the exception caused.
    diverted: Option<&'a Divergence>,
    /// The stalls that it caused.
    stalls: Vec<&'a Stall>,
}

/// All processes that an exception ended or diverted.
pub(crate) fn ended<'a>(situation: &'a Situation<'_>) -> Vec<Ended<'a>> {
    situation
        .model
        .processes
        .values()
        .filter_map(|process| {
            let rank = process.rank?;
            let named =
                |origin: &Origin| matches!(origin, Origin::Raised(ranks) if ranks.contains(&rank));
            let stalls: Vec<&Stall> = situation
                .stalls
                .iter()
                .filter(|stall| named(&stall.origin))
                .filter(|stall| is_process(situation, stall, rank, process))
                .collect();
            let diverted = situation.divergences.iter().find(|divergence| {
                named(&divergence.origin)
                    && situation
                        .model
                        .member(divergence.group, rank)
                        .is_some_and(|member| member.id == process.id)
            });
            let exception = decisive(situation, process, rank, diverted, &stalls)?;
            Some(Ended {
                process,
                rank,
                exception,
                diverted,
                stalls,
            })
        })
        .collect()
}

/// The exception that explains the end or the calls of a rank: one that was in flight at a call
/// which its peers did not make, or else an uncaught one. A `KeyboardInterrupt` does not count.
fn decisive<'a>(
    situation: &Situation<'_>,
    process: &'a Process,
    rank: u32,
    diverted: Option<&Divergence>,
    stalls: &[&Stall],
) -> Option<&'a Exception> {
    let clean_up = diverted
        .map(|divergence| (divergence.group, divergence.seq))
        .or_else(|| stalls.first().map(|stall| (stall.group, stall.seq)));
    let in_flight = clean_up.and_then(|(group, seq)| {
        let join = situation.join(group, seq)?;
        process.in_flight_at(&join.calls.get(&rank)?.call)
    });
    in_flight
        .or_else(|| {
            let exception = process.uncaught()?;
            situation
                .model
                .is_before_shutdown(exception.at)
                .then_some(exception)
        })
        .filter(|exception| !exception.text.starts_with("KeyboardInterrupt"))
}

/// The finding about the process, with the code of `about`.
pub(crate) fn draft(code: &'static Code, situation: &Situation<'_>, ended: &Ended<'_>) -> Draft {
    let &Ended {
        process,
        rank,
        exception,
        diverted,
        ref stalls,
    } = ended;
    let mut draft = Draft::new(code, KeyPlace::Process(rank, process.pid), exception.at);
    draft.fact = Some(ProcessFact {
        rank,
        at: exception.at,
        signal: None,
        from_communication: process.is_from_communication(exception),
    });
    draft.follows = nccl_refusal::cause(situation, process, exception);
    draft.root = vec![rank];
    draft.root_confidence = Confidence::Proved;
    draft.victims = Stall::victims(stalls);
    draft.victims.retain(|&victim| victim != rank);
    let place = diverted
        .map(|divergence| (divergence.group, divergence.seq))
        .or_else(|| stalls.first().map(|stall| (stall.group, stall.seq)));
    let first = stalls.first().filter(|_| diverted.is_none());
    if let Some((group, seq)) = place {
        draft.place = Some((group, seq));
        let peers = first.map_or_else(
            || {
                situation
                    .join(group, seq)
                    .into_iter()
                    .flat_map(Join::all)
                    .collect()
            },
            |stall| situation.calls(stall),
        );
        let peer = peers.iter().find(|(other, _)| *other != rank);
        draft.op = peer.map(|(_, joined)| joined.call.op);
        let calls = first.map_or_else(
            || rank_calls(situation, group, seq),
            |stall| message::stalled_calls(situation, stall),
        );
        draft.per_rank = calls
            .into_iter()
            .map(|call| {
                let own = call.rank == rank;
                if own {
                    with_place(call, exception.place.as_deref())
                } else {
                    call
                }
            })
            .collect();
        draft.blocked_at = peers.iter().map(|(_, joined)| joined.call.at).min();
        if diverted.is_some() {
            let others = peers.iter().map(|(other, _)| *other);
            draft.victims.extend(others.filter(|other| *other != rank));
            draft.victims.sort_unstable();
            draft.victims.dedup();
        }
    } else {
        draft.per_rank = vec![with_place(
            last_call(rank, process),
            exception.place.as_deref(),
        )];
    }

    let text = words::short(&exception.text);
    let at = words::at(exception.place.as_deref());
    draft.event = Some(format!("raised {text}{at}"));
    draft.summary = if draft.victims.is_empty() {
        format!("rank {rank} raised {text}{at}")
    } else {
        format!(
            "rank {rank} raised {text}{at}; {} {} for it",
            Ranks(&draft.victims),
            number(&draft.victims, "waits", "wait")
        )
    };
    draft.why = vec![match exception.kind {
        ExceptionKind::InFlight => format!(
            "The exception was in flight when rank {rank} made its next call{}: a clean-up call that its peers do not make.",
            process
                .last_call
                .as_ref()
                .map(|call| format!(
                    ", {}{}",
                    words::call(call),
                    words::at(call.place.as_deref())
                ))
                .unwrap_or_default()
        ),
        _ => format!("It was not caught, and ended rank {rank}, which makes no further call."),
    }];
    let from_communication = draft.fact.is_some_and(|fact| fact.from_communication);
    draft.next = vec![if from_communication {
        // The origin may be another rank that no finding names.
        draft.root_confidence = Confidence::Suspected;
        "The error occurred in the communication with other ranks: find one that ended or \
         left, or a fault of the network between them."
            .into()
    } else {
        format!("Fix the exception{at}.")
    }];
    if exception.kind == ExceptionKind::InFlight {
        draft.next.push(
            "Make no collective call while an exception is in flight (`finally`, `except`, `__exit__`): \
             the other ranks do not make it."
                .into(),
        );
    }
    let facts = vec![Fact::Raised {
        rank,
        text: exception.text.to_string(),
        seen: exception.kind.to_string(),
    }];
    draft.proved_by(Some(Certificate {
        kind: CertificateKind::Observation,
        facts,
    }))
}
