//! DD101 missing-rank: a rank never entered a collective its group is waiting in; it is alive and
//! goes on elsewhere.

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::Confidence;

use super::early_exit::victims;
use super::{About, Detector, Draft, KeyPlace, order, rank_calls};
use crate::diagnosis::cause;
use crate::diagnosis::model::{Doing, Process};
use crate::diagnosis::situation::{Origin, Situation, Stall};
use crate::diagnosis::words::{self, Capital, Ranks, number};

static ABOUT: About = About {
    code: &catalogue::DD101,
    order: order::TIME,
};

/// DD101: ranks have waited too long for one that lives.
pub(super) struct MissingRank;

impl Detector for MissingRank {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn detect(&self, situation: &Situation<'_>) -> Vec<Draft> {
        let by_origin = situation.stalls_by_origin();
        by_origin
            .iter()
            .filter_map(|(origin, stalls)| match origin {
                Origin::Elsewhere(ranks) => draft(situation, ranks, stalls),
                _ => None,
            })
            .collect()
    }
}

fn draft(situation: &Situation<'_>, absent: &[u32], stalls: &[&Stall]) -> Option<Draft> {
    let stall = **stalls
        .iter()
        .find(|stall| situation.is_overdue(stall))
        .as_ref()?;
    let missing: Vec<u32> = stall.missing.iter().map(|absent| absent.rank).collect();
    let absent = if absent.is_empty() { &missing } else { absent };
    let processes: Vec<&Process> = absent
        .iter()
        .filter_map(|&rank| situation.model.member(stall.group, rank))
        .collect();
    // A phase that the program itself marked as long is not a rank gone astray.
    if processes.iter().any(|process| !process.phases.is_empty()) {
        return None;
    }
    let waiting = situation
        .join(stall.group, stall.seq)?
        .calls
        .iter()
        .find(|(rank, _)| stall.waiting.contains(rank))?;
    let group = situation.model.group(stall.group);

    let mut draft = Draft::new(
        &ABOUT,
        KeyPlace::Join(stall.group, stall.seq),
        situation.overdue_at(stall),
    );
    draft.place = Some((stall.group, stall.seq));
    draft.op = Some(waiting.1.call.op);
    draft.root = absent.to_vec();
    let all_seen =
        processes.iter().all(|process| process.lost == 0) && !situation.is_cut_short(stall);
    draft.confidence = if all_seen {
        Confidence::Supported
    } else {
        Confidence::Suspected
    };
    // A wait that cannot be told apart may well be for the very ranks that wait here.
    let idle = processes.iter().all(|process| {
        process
            .threads
            .values()
            .all(|thread| matches!(thread.doing, Doing::Nothing))
    });
    draft.root_confidence = if all_seen && idle {
        Confidence::Supported
    } else {
        Confidence::Suspected
    };
    draft.victims = victims(stalls);
    draft.victims.retain(|rank| !absent.contains(rank));
    draft.per_rank = rank_calls(situation, stall.group, stall.seq);
    draft.blocked_at = Some(stall.since);
    draft.cause = Some(cause::of(situation, absent, &draft.victims, situation.now));

    let call = words::call(&waiting.1.call);
    draft.summary = format!(
        "{} {} not come to {call}; {} {} for {}",
        Ranks(absent),
        number(absent, "has", "have"),
        Ranks(&draft.victims),
        number(&draft.victims, "waits", "wait"),
        number(absent, "it", "them"),
    );
    let cut_short = situation.is_cut_short(stall);
    let be = if cut_short {
        number(absent, "was", "were")
    } else {
        number(absent, "is", "are")
    };
    draft.why = vec![format!(
        "{call} of {} needs all its ranks. {} {be} alive and not in a collective.",
        words::group(&group.info),
        Capital(Ranks(absent)),
    )];
    for process in &processes {
        let Some(rank) = process.rank else { continue };
        let inside = process
            .threads
            .values()
            .find_map(|thread| match &thread.doing {
                Doing::Call(call) => Some(format!(
                    " It is inside {}{}.",
                    words::call(call),
                    words::at(call.place.as_deref())
                )),
                Doing::Wait(..) | Doing::Nothing => None,
            });
        let last = process.last_call.as_ref().map_or_else(
            || "it has made no call yet".to_owned(),
            |call| {
                format!(
                    "its last call was {}{}",
                    words::call(call),
                    words::at(call.place.as_deref())
                )
            },
        );
        let state = if cut_short {
            String::new()
        } else {
            format!("; its process is {}", process.state)
        };
        draft.why.push(format!(
            "Rank {rank}: {last}{state}.{}",
            inside.unwrap_or_default()
        ));
    }
    if cut_short {
        draft
            .why
            .push("Somebody ended the job while they waited.".into());
    }
    if stall.failed {
        draft
            .why
            .push("A wait for it has already ended in failure.".into());
    }
    let pid = processes.first().map_or(0, |process| process.pid);
    draft.next = vec![format!(
        "{}, and let {} reach the same calls as the others.",
        if cut_short {
            format!("Look at what {} does after that call", Ranks(absent))
        } else {
            format!(
                "Look at what {} {be} doing now (py-spy dump --pid {pid})",
                Ranks(absent)
            )
        },
        number(absent, "it", "them"),
    )];
    Some(draft)
}

#[cfg(test)]
mod tests {
    use crate::diagnosis::testing::holds;

    #[test]
    fn a_rank_is_missing_only_after_the_limit() {
        holds(
            r#"
            world = 2
            stall-after = 30
            events = """
            1.0 0 barrier @train.py:5
            """
            look-on = 40
            silent-until = 31
            [[expect]]
            code = "DD101"
            confidence = "supported"
            root = [1]
            detected = 31.0
            "#,
        );
    }

    #[test]
    fn a_call_that_nobody_waits_for_keeps_nobody() {
        holds(
            r#"
            world = 2
            stall-after = 30
            events = """
            1.0 0 all_reduce async f32[8] sum @train.py:5
            """
            look-on = 100
            "#,
        );
    }
}
