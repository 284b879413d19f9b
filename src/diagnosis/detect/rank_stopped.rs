//! DD203 rank-stopped: SIGSTOP, a debugger, a frozen container.

use std::time::Duration;

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::{
    Certificate, CertificateKind, Confidence, Fact, Severity, Timestamp,
};

use super::early_exit::victims;
use super::{About, Detector, Draft, KeyPlace, order, rank_calls};
use crate::diagnosis::model::GroupId;
use crate::diagnosis::situation::{Inside, Origin, Situation};
use crate::diagnosis::words::{self, Ranks, number};

/// A stopped rank may have done its part of a collective before.
const PART_DONE: Duration = Duration::from_secs(3);

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
        let missed = by_origin.iter().filter_map(|(origin, stalls)| {
            let stall = *stalls.first()?;
            match origin {
                Origin::Stopped(ranks) => draft(
                    situation,
                    ranks,
                    &Held {
                        group: stall.group,
                        seq: stall.seq,
                        waiting: victims(stalls),
                        since: stall.since,
                        due: Timestamp::default(),
                    },
                ),
                _ => None,
            }
        });
        let mut drafts: Vec<Draft> = missed.collect();
        for inside in &situation.inside {
            let (stopped, held) = inside_of(situation, inside);
            let known = drafts.iter().any(|draft| draft.root == stopped);
            if !known && held.due <= situation.now {
                drafts.extend(draft(situation, &stopped, &held));
            }
        }
        drafts
    }
}

/// Ranks that wait for one that is stopped.
struct Held {
    group: GroupId,
    seq: u64,
    waiting: Vec<u32>,
    since: Timestamp,
    /// From when on that is so.
    due: Timestamp,
}

/// The members that are stopped while others wait inside a collective that all have entered. It may
/// still complete in the next moment: they may have done their part before.
fn inside_of(situation: &Situation<'_>, inside: &Inside) -> (Vec<u32>, Held) {
    let model = situation.model;
    let members = model.group(inside.group).members.keys();
    let stopped = members.filter_map(|&rank| {
        let process = model.member(inside.group, rank)?;
        process.is_stopped().then_some((rank, process.state_at))
    });
    let stopped: Vec<(u32, Timestamp)> = stopped.collect();
    let last = stopped.iter().map(|(_, at)| *at).max().unwrap_or_default();
    let held = Held {
        group: inside.group,
        seq: inside.seq,
        waiting: inside.waiting.clone(),
        since: inside.since,
        due: last.max(inside.since).plus(PART_DONE),
    };
    (stopped.into_iter().map(|(rank, _)| rank).collect(), held)
}

fn draft(situation: &Situation<'_>, stopped: &[u32], stall: &Held) -> Option<Draft> {
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
        process.state_at.max(stall.since).max(stall.due),
    );
    if all_stopped {
        // Somebody stopped the whole job, and knows it.
        draft.severity = Severity::Note;
    }
    draft.root = stopped.to_vec();
    draft.root_confidence = Confidence::Proved;
    draft.victims.clone_from(&stall.waiting);
    draft.victims.retain(|rank| !stopped.contains(rank));
    draft.place = Some((stall.group, stall.seq));
    let group = situation.model.group(stall.group);
    let join = group.join(stall.seq);
    let join = join.or_else(|| group.entered.get(&stall.seq))?;
    let waiting = join.calls.values().next()?;
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
