//! DD101 missing-rank: a rank never entered a collective its group is waiting in; it is alive and
//! goes on elsewhere.

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::Confidence;

use super::early_exit::victims;
use super::{About, Detector, Draft, Explanation, KeyPlace, order, rank_calls};
use crate::diagnosis::cause;
use crate::diagnosis::model::{Doing, Process};
use crate::diagnosis::situation::{Origin, Situation, Stall};
use crate::diagnosis::words::{self, Capital, Ranks, number};

static ABOUT: About = About {
    code: &catalogue::DD101,
    order: order::TIME,
    explanation: Explanation {
        means: "The other members of a process group wait in a collective that this rank never \
         entered. Its process is alive and was last seen elsewhere. A collective completes only \
         when every member has made its call, so the others wait until the group's timeout, and \
         then fail blaming each other. That the rank will never come cannot be proved while it \
         lives: this is said after the stall limit (60 s, or three times the longest wait there \
         ever was at that line), and withdrawn if the rank arrives.",
        example: "\
error[DD101] missing-rank: rank 1 has not come to barrier #2; ranks 0 and 2 wait for it
    group default_pg, 3 ranks · supported

      rank 0, 2   waiting 1 min 1 s   train.py:40      barrier #2
    ▸ rank 1      elsewhere           train.py:31      last call all_reduce #1

    why    barrier #2 of the default group needs all its ranks. Rank 1 is alive and not in a
           collective.
           Rank 1: its last call was all_reduce #1 at train.py:31; its process is running.
    fix    Look at what rank 1 is doing now (py-spy dump --pid 1001), and let it reach the same
           calls as the others.
    more   ddp-doctor explain DD101
",
        causes: &[
            "A collective that only some ranks reach: it stands under `if rank == 0:`, behind an \
             early `return` or `continue`, or inside a helper that saves, logs or gathers on one \
             rank only.",
            "One rank works alone for long while the others already wait: it writes a checkpoint, \
             evaluates, downloads or tokenizes.",
            "One rank decided by itself to stop: early stopping on its own loss, its own time \
             limit, a signal that reached it alone.",
            "One rank hangs outside of any collective: in a data loader, a lock, a file system.",
        ],
        fix: &[
            "Let every member of the group reach the call, and do only the I/O on one rank. Where \
             ranks may decide differently, let them agree first: all_reduce the decision with MAX, \
             or broadcast that of rank 0.",
            "If the line does not tell, look at what the missing rank does now: `py-spy dump --pid \
             PID`, on its host.",
            "If the work is meant to take that long, mark it: `with \
             ddp_doctor.phase(\"checkpoint\"):`, or raise `--stall-after`. PyTorch's own timeout \
             is another: `init_process_group(timeout=…)`.",
        ],
        not: &[
            "A rank that has ended is DD102, DD201 or DD202, one that is stopped DD203. A rank \
             that itself waits for others in another group is followed to the end of the chain.",
            "A first step that compiles, or a checkpoint to slow storage, can take longer than the \
             limit: it is then a false alarm, and withdrawn when the rank arrives.",
        ],
    },
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
    // Whoever was not watched so long may have ended meanwhile.
    let due = situation.overdue_at(stall);
    let watched = |process: &&Process| process.unwatched.is_none_or(|since| since >= due);
    let all_seen = processes.iter().all(|process| process.lost == 0)
        && processes.iter().all(watched)
        && !situation.is_cut_short(stall);
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
    let is_past = cut_short || processes.iter().any(|process| process.unwatched.is_some());
    let be = if is_past {
        number(absent, "was", "were")
    } else {
        number(absent, "is", "are")
    };
    let how = if processes.iter().all(watched) {
        "alive and not in a collective"
    } else {
        "last seen outside of any collective; whether it lived on is not known"
    };
    draft.why = vec![format!(
        "{call} of {} needs all its ranks. {} {be} {how}.",
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
        let state = if is_past {
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
        if is_past {
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
    use super::*;
    use crate::diagnosis::testing::{holds, shows};

    #[test]
    fn the_example_is_what_it_prints() {
        shows(
            &ABOUT,
            r#"
            world = 3
            events = """
            1.0 * all_reduce f32[4096] sum @train.py:31
            1.1 * done
            1.2 1 continues
            2.0 0,2 barrier @train.py:40
            """
            look-on = 61
            "#,
        );
    }

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
