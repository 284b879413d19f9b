//! DD111 group-order-deadlock: a cycle of waits across process groups.

use std::collections::BTreeSet;

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::{Certificate, CertificateKind, Confidence, Timestamp};

use super::view::last_call;
use super::{About, Detector, Draft, KeyPlace, order};
use crate::diagnosis::cause;
use crate::diagnosis::creations;
use crate::diagnosis::model::JoinedCall;
use crate::diagnosis::situation::{Origin, Situation};
use crate::diagnosis::waits::Blocked;
use crate::diagnosis::words::{self, Ranks};
use ddp_doctor_proto::report::{Cause, CauseKind};

static ABOUT: About = About {
    code: &catalogue::DD111,
    order: order::CYCLE,
};

/// DD111: ranks wait for each other in a circle, each in another group.
pub(super) struct GroupOrderDeadlock;

impl Detector for GroupOrderDeadlock {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn detect(&self, situation: &Situation<'_>) -> Vec<Draft> {
        let led_to: BTreeSet<usize> = situation
            .stalls
            .iter()
            .filter_map(|stall| match stall.origin {
                Origin::Cycle(cycle) => Some(cycle),
                _ => None,
            })
            .collect();
        situation
            .waits
            .cycles
            .iter()
            .enumerate()
            .filter(|(i, cycle)| {
                led_to.contains(i) && !creations::is_making_cycle(situation.model, cycle)
            })
            .filter_map(|(i, cycle)| draft(situation, i, cycle))
            .collect()
    }
}

fn draft(situation: &Situation<'_>, index: usize, cycle: &[Blocked]) -> Option<Draft> {
    let groups: BTreeSet<_> = cycle.iter().map(|wait| wait.group).collect();
    if groups.len() < 2 {
        return None;
    }
    let mut ranks: Vec<u32> = cycle.iter().map(|wait| wait.rank).collect();
    ranks.sort_unstable();
    let closed: Timestamp = cycle.iter().map(|wait| wait.since).max()?;
    let first = cycle.first()?;
    let calls: Option<Vec<&JoinedCall>> = cycle
        .iter()
        .map(|wait| situation.join(wait.group, wait.seq)?.calls.get(&wait.rank))
        .collect();
    let calls = calls?;

    let mut draft = Draft::new(&ABOUT, KeyPlace::Ranks(ranks.clone()), closed);
    draft.place = Some((first.group, first.seq));
    draft.op = Some(calls.first()?.call.op);
    draft.blocked_at = cycle.iter().map(|wait| wait.since).min();
    let mut victims: Vec<u32> = situation
        .stalls
        .iter()
        .filter(|stall| stall.origin == Origin::Cycle(index))
        .flat_map(|stall| stall.waiting.iter().copied())
        .filter(|rank| !ranks.contains(rank))
        .collect();
    victims.sort_unstable();
    victims.dedup();
    draft.per_rank = cycle
        .iter()
        .flat_map(|wait| super::rank_calls(situation, wait.group, wait.seq))
        .filter(|call| {
            cycle
                .iter()
                .any(|wait| wait.rank == call.rank && Some(wait.seq) == call.seq)
                && call.state != ddp_doctor_proto::report::CallState::NotIssued
        })
        .collect();
    for &rank in &ranks {
        if !draft.per_rank.iter().any(|call| call.rank == rank) {
            draft
                .per_rank
                .push(last_call(rank, situation.model.process_of(rank)?));
        }
    }
    draft.per_rank.sort_by_key(|call| call.rank);

    let steps: Vec<String> = cycle
        .iter()
        .zip(&calls)
        .enumerate()
        .map(|(i, (wait, joined))| {
            format!(
                "rank {} waits in {} of {}{} for rank {}",
                wait.rank,
                words::call(&joined.call),
                words::group(&situation.model.group(wait.group).info),
                words::at(joined.call.place.as_deref()),
                cycle[(i + 1) % cycle.len()].rank,
            )
        })
        .collect();
    draft.summary = format!(
        "{} wait for each other in {} process groups, which they use in different orders",
        Ranks(&ranks),
        groups.len()
    );
    draft.why = vec![
        format!("{}.", steps.join("; ")),
        "None of these calls can complete before the other rank makes its own, and no rank can make \
         it before its present call completes."
            .into(),
    ];
    draft.next = vec![
        "Use the groups in the same order on every rank, or issue the calls with async_op=True and \
         wait for them after all are issued."
            .into(),
    ];
    draft.cause = Some(match swapped(situation, cycle) {
        true => Cause {
            kind: CauseKind::SwappedCalls,
            confidence: Confidence::Supported,
        },
        false => cause::of(situation, &ranks, &victims, closed),
    });
    draft.root = ranks;
    draft.victims = victims;

    let seen = cycle.iter().all(|wait| {
        wait.recorded
            && wait.only_thread
            && situation
                .model
                .member(wait.group, wait.rank)
                .is_some_and(|p| p.lost == 0)
    });
    let mut draft = draft.proved_by(seen.then(|| certificate(situation, cycle, &calls)));
    // Who waits in the cycle is the cycle.
    draft.root_confidence = draft.confidence;
    Some(draft)
}

/// Two ranks that wait in each other's next group: the same two calls, swapped.
fn swapped(situation: &Situation<'_>, cycle: &[Blocked]) -> bool {
    let [a, b] = cycle else { return false };
    let members = |wait: &Blocked| &situation.model.group(wait.group).info.key.members;
    members(a).contains(&b.rank) && members(b).contains(&a.rank)
}

fn certificate(situation: &Situation<'_>, cycle: &[Blocked], calls: &[&JoinedCall]) -> Certificate {
    let waits = cycle
        .iter()
        .zip(calls)
        .map(|(wait, joined)| super::waits(situation, wait, &joined.call));
    let never = cycle.iter().enumerate().map(|(i, wait)| {
        let next = cycle[(i + 1) % cycle.len()].rank;
        super::never(situation, wait.group, next)
    });
    Certificate {
        kind: CertificateKind::Cycle,
        facts: waits.chain(never).collect(),
    }
}

#[cfg(test)]
mod tests {
    use crate::diagnosis::testing::holds;

    #[test]
    fn a_cycle_across_groups_is_found_when_it_closes() {
        holds(
            r#"
            world = 2
            events = """
            0.5 * group a 0,1
            0.5 * group b 0,1
            1.0 0 barrier/a @train.py:5
            2.0 1 barrier/b @train.py:6
            """
            [[expect]]
            code = "DD111"
            confidence = "proved"
            certificate = "cycle"
            root = [0, 1]
            detected = 2.0
            "#,
        );
    }

    #[test]
    fn the_same_order_is_none() {
        holds(
            r#"
            world = 2
            events = """
            0.5 * group a 0,1
            0.5 * group b 0,1
            1.0 * barrier/a @train.py:5
            1.1 * done
            2.0 * barrier/b @train.py:6
            2.1 * done
            """
            look-on = 100
            "#,
        );
    }

    #[test]
    fn waits_that_only_ddp_makes_are_believed_later_and_not_proved() {
        holds(
            r#"
            world = 2
            events = """
            0.5 * group a 0,1
            0.5 * group b 0,1
            1.0 0 all_reduce/a hidden f32[8] @train.py:5
            2.0 1 barrier/b @train.py:6
            """
            look-on = 30
            silent-until = 4
            [[expect]]
            code = "DD111"
            confidence = "supported"
            root = [0, 1]
            "#,
        );
    }
}
