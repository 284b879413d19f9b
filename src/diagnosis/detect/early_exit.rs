//! DD102 early-exit: a rank ended normally or destroyed the group while peers wait for it.

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::{Certificate, CertificateKind, Confidence, Fact, Timestamp};

use super::{About, Detector, Draft, KeyPlace, began, never, order, rank_calls};
use crate::diagnosis::cause;
use crate::diagnosis::model::Process;
use crate::diagnosis::situation::{Origin, Situation, Stall};
use crate::diagnosis::words::{self, Capital, Ranks, number};

static ABOUT: About = About {
    code: &catalogue::DD102,
    order: order::LEFT,
};

/// DD102: ranks wait for one that has left for good.
pub(super) struct EarlyExit;

impl Detector for EarlyExit {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn detect(&self, situation: &Situation<'_>) -> Vec<Draft> {
        let by_origin = situation.stalls_by_origin();
        by_origin
            .iter()
            .filter_map(|(origin, stalls)| match origin {
                Origin::Left(ranks) => draft(situation, ranks, stalls),
                _ => None,
            })
            .collect()
    }
}

fn draft(situation: &Situation<'_>, gone: &[u32], stalls: &[&Stall]) -> Option<Draft> {
    let stall = *stalls.first()?;
    let group = situation.model.group(stall.group);
    let first = *gone.first()?;
    let process = situation.model.member(stall.group, first)?;
    let left = left_at(situation, stall, first, process);
    let (&waiter, waiting) =
        situation
            .join(stall.group, stall.seq)?
            .calls
            .iter()
            .find(|(rank, joined)| {
                joined.is_awaited() && joined.needs(**rank, gone).contains(&first)
            })?;

    let mut draft = Draft::new(
        &ABOUT,
        KeyPlace::Join(stall.group, stall.seq),
        left.max(waiting.call.at),
    );
    draft.place = Some((stall.group, stall.seq));
    draft.op = Some(waiting.call.op);
    draft.root = gone.to_vec();
    draft.root_confidence = if process.lost == 0 {
        Confidence::Proved
    } else {
        Confidence::Supported
    };
    draft.victims = victims(stalls);
    draft.per_rank = rank_calls(situation, stall.group, stall.seq);
    draft.blocked_at = Some(stall.since);
    draft.cause = Some(cause::of(
        situation,
        gone,
        &draft.victims,
        left.max(stall.since),
    ));

    let call = words::call(&waiting.call);
    let how = if process.has_ended() {
        number(gone, "has ended", "have ended")
    } else {
        number(gone, "has destroyed the group", "have destroyed the group")
    };
    draft.summary = format!(
        "{} {how}; {} {} for {} in {call}",
        Ranks(gone),
        Ranks(&draft.victims),
        number(&draft.victims, "waits", "wait"),
        number(gone, "it", "them"),
    );
    let last = match group.members.get(&first) {
        Some(member) => format!("last call there was #{}", member.issued),
        None => "process never made that group".into(),
    };
    draft.why = vec![format!(
        "{call} of {} needs all its ranks. {} {} started it; {}'s {last}, and it can never come.",
        words::group(&group.info),
        Capital(Ranks(&stall.waiting)),
        number(&stall.waiting, "has", "have"),
        Ranks(&[first]),
    )];
    draft.next = vec![
        "Let every rank make the same number of calls: give each the same number of batches \
         (DistributedSampler(…, drop_last=True)), or run the loop inside Join([model])."
            .into(),
        "Where a rank may stop early, let all ranks agree first: all_reduce the decision.".into(),
    ];

    // Only a group that takes all its members to be made is never made without this one.
    let must_wait = stall.seq > 0 || waiting.takes_all_members();
    let proof = (process.lost == 0 && must_wait).then(|| {
        let end = match process.end {
            Some(end) => Fact::Ended {
                rank: first,
                pid: process.pid,
                code: end.exit.code,
                signal: end.exit.signal,
            },
            None => Fact::GroupDestroyed {
                rank: first,
                group: group.info.key.clone(),
            },
        };
        let never = never(situation, stall.group, first);
        Some(Certificate {
            kind: CertificateKind::TerminalRank,
            facts: vec![began(waiter, &waiting.call)?, never, end],
        })
    });
    Some(draft.proved_by(proof.flatten()))
}

fn left_at(situation: &Situation<'_>, stall: &Stall, rank: u32, process: &Process) -> Timestamp {
    let group = situation.model.group(stall.group);
    let destroyed = group.members.get(&rank).and_then(|member| member.destroyed);
    destroyed
        .or(process.end.map(|end| end.at))
        .unwrap_or(situation.now)
}

/// Everybody who waits, in all the stalls that one origin explains.
pub(super) fn victims(stalls: &[&Stall]) -> Vec<u32> {
    let mut victims: Vec<u32> = stalls
        .iter()
        .flat_map(|stall| stall.waiting.iter().copied())
        .collect();
    victims.sort_unstable();
    victims.dedup();
    victims
}

#[cfg(test)]
mod tests {
    use crate::diagnosis::testing::holds;

    #[test]
    fn a_rank_that_ended_is_found_at_its_end() {
        holds(
            r#"
            world = 2
            events = """
            1.0 0 all_reduce f32[8] sum @train.py:5
            2.0 1 exits 0
            """
            [[expect]]
            code = "DD102"
            confidence = "proved"
            root = [1]
            victims = [0]
            detected = 2.0
            "#,
        );
    }

    #[test]
    fn a_rank_that_ended_after_all_its_calls_is_none() {
        holds(
            r#"
            world = 2
            events = """
            1.0 * all_reduce f32[8] sum @train.py:5
            1.5 1 exits 0
            1.6 0 done
            9.0 0 exits 0
            """
            silent-until = 9
            "#,
        );
    }

    #[test]
    fn a_leaf_that_need_not_wait_is_no_victim() {
        holds(
            r#"
            world = 2
            events = """
            1.0 0 gather f32[8] root=1 @train.py:5
            2.0 1 exits 0
            """
            look-on = 100
            "#,
        );
    }
}
