//! DD111 group-order-deadlock: a cycle of waits across process groups.

use std::collections::BTreeSet;

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::{Certificate, CertificateKind, Confidence, Fact, Timestamp};

use super::view::last_call;
use super::{About, Detector, Draft, Explanation, KeyPlace, order, signature};
use crate::diagnosis::cause;
use crate::diagnosis::model::JoinedCall;
use crate::diagnosis::situation::{Origin, Situation};
use crate::diagnosis::waits::Blocked;
use crate::diagnosis::words::{self, Ranks};
use ddp_doctor_proto::report::{Cause, CauseKind};

static ABOUT: About = About {
    code: &catalogue::DD111,
    order: order::CYCLE,
    explanation: Explanation {
        means: "Ranks wait for each other in a circle, each in a call of another process group. \
         None of these calls can complete before the next rank has made its own, and no rank can \
         make it before its present call completes. Each group by itself looks like a rank that is \
         missing.",
        example: "\
error[DD111] group-order-deadlock: ranks 0 and 1 wait for each other in 2 process groups, which they use in different orders
    group tp, 2 ranks · proved 0 ms after the deciding event

    ▸ rank 0   waiting 400 ms   train.py:30      all_reduce #1 float32[256] sum
    ▸ rank 1   waiting 0 ms     train.py:33      all_reduce #1 float32[256] sum

    why    rank 0 waits in all_reduce #1 of group \"tp\" at train.py:30 for rank 1; rank 1 waits in
           all_reduce #1 of group \"dp\" at train.py:33 for rank 0.
           None of these calls can complete before the other rank makes its own, and no rank can
           make it before its present call completes.
    cause  the same calls in another order (supported)
    fix    Use the groups in the same order on every rank, or issue the calls with async_op=True and
           wait for them after all are issued.
    more   ddp-doctor explain DD111
",
        causes: &[
            "Two groups (data and model parallel, say) used in one order on some ranks and in the \
             other order elsewhere.",
            "A blocking call of one group between two halves of another: a barrier or a metric of \
             a subgroup inside an overlapping schedule.",
            "Code that walks over its groups in the order of a set or a dict that differs between \
             ranks.",
        ],
        fix: &[
            "Use the groups in one order everywhere: the same list, sorted the same way.",
            "Or issue first and wait later: `async_op=True` for all of them, `wait()` after the \
             last is issued.",
        ],
        not: &[
            "Asynchronous calls in another order are none as long as nobody waits between them.",
            "A wait that only DDP makes cannot be seen: a circle over such a wait is supported and \
             told some seconds later, not proved at once.",
            "A chain that ends at a rank which waits for nobody is told as what that rank does \
             (DD101, DD102, DD201–DD203).",
        ],
    },
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
            .filter(|(i, _)| led_to.contains(i))
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
    let group = |wait: &Blocked| situation.model.group(wait.group);
    let waits = cycle.iter().zip(calls).map(|(wait, joined)| Fact::Waits {
        rank: wait.rank,
        thread: wait.thread.0,
        group: group(wait).info.key.clone(),
        seq: wait.seq,
        call: signature(&joined.call),
        only_thread: wait.only_thread,
    });
    let never = cycle.iter().enumerate().map(|(i, wait)| {
        let next = cycle[(i + 1) % cycle.len()].rank;
        Fact::NeverIssued {
            rank: next,
            group: group(wait).info.key.clone(),
            last: group(wait)
                .members
                .get(&next)
                .map_or(0, |member| member.issued),
        }
    });
    Certificate {
        kind: CertificateKind::Cycle,
        facts: waits.chain(never).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnosis::testing::{holds, shows};

    #[test]
    fn the_example_is_what_it_prints() {
        shows(
            &ABOUT,
            r#"
            world = 2
            events = """
            0.5 * group tp 0,1
            0.5 * group dp 0,1
            1.0 0 all_reduce/tp f32[256] sum @train.py:30
            1.4 1 all_reduce/dp f32[256] sum @train.py:33
            """
            "#,
        );
    }

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
