//! DD203 rank-stopped: SIGSTOP, a debugger, a frozen container.

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::{Certificate, CertificateKind, Confidence, Fact, Severity};

use super::early_exit::victims;
use super::{About, Detector, Draft, KeyPlace, order, rank_calls};
use crate::diagnosis::situation::{Origin, Situation, Stall};
use crate::diagnosis::words::{self, Ranks, number};

static ABOUT: About = About {
    code: &catalogue::DD203,
    order: order::STOPPED,
};

/// DD203: ranks wait for one that the operating system does not let run.
pub(super) struct RankStopped;

impl Detector for RankStopped {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn detect(&self, situation: &Situation<'_>) -> Vec<Draft> {
        let by_origin = situation.stalls_by_origin();
        by_origin
            .iter()
            .filter_map(|(origin, stalls)| match origin {
                Origin::Stopped(ranks) => draft(situation, ranks, stalls),
                _ => None,
            })
            .collect()
    }
}

fn draft(situation: &Situation<'_>, stopped: &[u32], stalls: &[&Stall]) -> Option<Draft> {
    let stall = *stalls.first()?;
    let first = *stopped.first()?;
    let process = situation.model.member(stall.group, first)?;
    let mut living = situation
        .model
        .processes
        .values()
        .filter(|process| !process.has_ended())
        .peekable();
    let all_stopped = living.peek().is_some() && living.all(|process| process.is_stopped());

    let mut draft = Draft::new(
        &ABOUT,
        KeyPlace::Ranks(stopped.to_vec()),
        process.state_at.max(stall.since),
    );
    if all_stopped {
        // Somebody stopped the whole job, and knows it.
        draft.severity = Severity::Note;
    }
    draft.root = stopped.to_vec();
    draft.root_confidence = Confidence::Proved;
    draft.victims = victims(stalls);
    draft.victims.retain(|rank| !stopped.contains(rank));
    draft.place = Some((stall.group, stall.seq));
    let waiting = situation
        .join(stall.group, stall.seq)?
        .calls
        .values()
        .next()?;
    draft.op = Some(waiting.call.op);
    draft.per_rank = rank_calls(situation, stall.group, stall.seq);
    draft.blocked_at = Some(stall.since);
    draft.summary = format!(
        "{} {} stopped; {} {} for {} in {}",
        Ranks(stopped),
        number(stopped, "is", "are"),
        Ranks(&draft.victims),
        number(&draft.victims, "waits", "wait"),
        number(stopped, "it", "them"),
        words::call(&waiting.call),
    );
    draft.why = vec![format!(
        "The operating system reports process {} of rank {first} as stopped: by a signal (SIGSTOP, SIGTSTP), a debugger or a frozen container. It cannot make its next call.",
        process.pid
    )];
    draft.next = vec![format!(
        "Let it go on: kill -CONT {}, or detach the debugger, or thaw the container. Host: {}.",
        process.pid, process.host
    )];
    let facts = vec![Fact::Stopped {
        rank: first,
        pid: process.pid,
    }];
    Some(draft.proved_by(Some(Certificate {
        kind: CertificateKind::Observation,
        facts,
    })))
}

#[cfg(test)]
mod tests {
    use crate::diagnosis::testing::holds;

    #[test]
    fn a_stopped_rank_is_found_once_somebody_waits() {
        holds(
            r#"
            world = 2
            events = """
            1.0 1 stops
            3.0 0 barrier @train.py:5
            """
            [[expect]]
            code = "DD203"
            confidence = "proved"
            root = [1]
            detected = 3.0
            "#,
        );
    }

    #[test]
    fn a_stop_that_keeps_nobody_is_none() {
        holds(
            r#"
            world = 2
            events = """
            1.0 1 stops
            """
            look-on = 100
            "#,
        );
    }
}
