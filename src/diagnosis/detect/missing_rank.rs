//! DD101 missing-rank: a live rank does not reach a collective in which its group waits.

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::Confidence;

use super::absent::{Absent, last_call_of};
use super::{About, Detector, Draft, order, rendezvous_incomplete, sequence_slip};
use crate::diagnosis::activity::{self, Activity};
use crate::diagnosis::cause;
use crate::diagnosis::model::Process;
use crate::diagnosis::situation::{Origin, Situation, Stall};
use crate::diagnosis::words::{self, Ranks, number};

static ABOUT: About = About {
    code: &catalogue::DD101,
    order: order::TIME,
};

/// DD101: live ranks that others wait for.
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
                // A wait for a message without a partner is DD113.
                Origin::Elsewhere(ranks) if stalls.first()?.message.is_none() => {
                    draft(situation, ranks, stalls)
                }
                _ => None,
            })
            .collect()
    }
}

fn draft(situation: &Situation<'_>, ranks: &[u32], stalls: &[&Stall]) -> Option<Draft> {
    let mut overdue = stalls
        .iter()
        .filter(|stall| stall.message.is_none() && situation.is_overdue(stall));
    let stall = *overdue.next()?;
    if stall.parting.is_some() {
        return None;
    }
    let absent = Absent::of(situation, ranks, stall)?;
    let (ranks, processes) = (&absent.ranks[..], &absent.processes);
    let mut draft = absent.draft(situation, &ABOUT, stalls, situation.overdue_at(stall));
    draft.follows = sequence_slip::of_stall(situation, stall);
    if let [process] = processes[..] {
        // A rank that is still joining the world cannot make the call.
        let joining = rendezvous_incomplete::of(situation, process);
        draft.follows = draft.follows.or(joining);
    }
    let timing = &situation.model.timing;
    // The rank may wait for the very ranks that wait for it.
    let unseen = |process: &&Process| activity::unseen_call(process, timing).is_some();
    if processes
        .iter()
        .any(|process| process.is_inside_a_call() || unseen(process))
    {
        draft.root_confidence = Confidence::Suspected;
    }
    draft.summary = format!(
        "{} {} not reached {}; {} {} for {}",
        Ranks(ranks),
        number(ranks, "has", "have"),
        words::call(absent.call),
        Ranks(&draft.victims),
        number(&draft.victims, "waits", "wait"),
        number(ranks, "it", "them"),
    );
    draft.why = vec![format!(
        "{} {} {}.",
        absent.needs_all(situation),
        absent.are(),
        if absent.watched && processes.iter().any(unseen) {
            "alive, and in no recorded call"
        } else if absent.watched {
            "alive and not in a collective"
        } else {
            "last seen outside of any collective; its later state is unknown"
        },
    )];
    for process in processes {
        let Some(rank) = process.rank else { continue };
        draft.why.push(format!(
            "Rank {rank}: {}{}.{}",
            last_call_of(process),
            if absent.is_past {
                String::new()
            } else {
                format!("; its process is {}", process.state)
            },
            whereabouts(process, situation),
        ));
    }
    if situation.is_cut_short(stall) {
        draft
            .why
            .push("The job was interrupted while they waited.".into());
    }
    if stall.failed {
        draft.why.push("A wait for it has already failed.".into());
    }
    let known = processes
        .iter()
        .any(|process| activity::of(process, timing).is_some());
    draft.next = vec![format!(
        "{}, and let {} reach the same calls as the others.",
        if absent.is_past || known {
            format!("Look at what {} does after that call", Ranks(ranks))
        } else {
            format!(
                "Look at what {} {} doing now (ddp-doctor dump)",
                Ranks(ranks),
                absent.be()
            )
        },
        number(ranks, "it", "them"),
    )];
    let unseen = processes.iter().find_map(|process| {
        let (called, line) = activity::unseen_call(process, timing)?;
        Some((process.rank?, words::function(called), words::at(line)))
    });
    if let Some((rank, called, at)) = unseen {
        draft.next = vec![format!(
            "Find the peer that rank {rank} waits for in {called}{at}: it may have left out its side.",
        )];
    }
    let place = Some((stall.group, stall.seq));
    let reading = cause::read(situation, place, ranks, &draft.victims, situation.now);
    draft.explain(reading);
    Some(draft)
}

/// A sentence on the call that the rank is inside, or on the line that its stacks show.
fn whereabouts(process: &Process, situation: &Situation<'_>) -> String {
    let timing = &situation.model.timing;
    let inside = process
        .threads
        .values()
        .find_map(|thread| thread.inside(situation.now, timing));
    if let Some(call) = inside {
        return format!(
            " It is inside {}{}.",
            words::call(call),
            words::at(call.place.as_deref())
        );
    }
    if let Some((called, line)) = activity::unseen_call(process, timing) {
        return format!(
            " It is inside {} of PyTorch{}; which rank it waits for is unknown.",
            words::function(called),
            words::at(line),
        );
    }
    match activity::of(process, timing) {
        Some(Activity {
            line: Some(line),
            moves: true,
            ..
        }) => format!(
            " It is running {} at {}.",
            words::function(line),
            words::line(line)
        ),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnosis::testing::{holds, shows};

    #[test]
    fn example_matches_output() {
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
    fn call_made_by_ddp_names_the_constructor() {
        holds(
            r#"
            world = 2
            events = """
            1.0 0 layout "float32 4,16 weight" "float32 4 bias" @train.py:12
            1.1 0 all_gather hidden i64[1] @train.py:12
            """
            look-on = 100
            [[expect]]
            code = "DD101"
            root = [1]
            victims = [0]
            why-has = "made by the constructor of DistributedDataParallel, needs all its ranks"
            "#,
        );
    }

    #[test]
    fn missing_rank_is_reported_at_the_stall_limit() {
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
    fn asynchronous_call_without_a_wait_is_not_a_stall() {
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

    #[test]
    fn rank_in_an_unseen_call_is_a_suspected_root() {
        let stands = "S poll_schedule_timeout cpu=1 @/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py:9:recv @/v/lib/python3.11/site-packages/torch/distributed/c10d_logger.py:9:wrapper @train.py:20:step";
        holds(&format!(
            r#"
            world = 3
            layer = "nccl"
            backend = "nccl"
            stall-after = 30
            events = """
            1.0 0,1 all_reduce f32[8] sum
            1.1 2 continues
            5.0 2 stack {stands}
            9.0 2 stack {stands}
            """
            look-on = 40
            [[expect]]
            code = "DD101"
            confidence = "supported"
            root = [2]
            root-confidence = "suspected"
            why-has = "It is inside recv() of PyTorch at train.py:20; which rank it waits for is unknown."
            next-has = "Find the peer that rank 2 waits for in recv() at train.py:20"
            "#
        ));
    }

    #[test]
    fn rank_that_computes_gradients_is_a_supported_root() {
        let at = |cpu| {
            format!(
                "R cpu={cpu} @/v/lib/python3.11/site-packages/torch/autograd/graph.py:9:_engine_run_backward @train.py:20:step"
            )
        };
        holds(&format!(
            r#"
            world = 3
            layer = "nccl"
            backend = "nccl"
            stall-after = 30
            events = """
            1.0 0,1 all_reduce f32[8] sum
            1.1 2 continues
            5.0 2 stack {}
            9.0 2 stack {}
            """
            look-on = 40
            [[expect]]
            code = "DD101"
            root = [2]
            root-confidence = "supported"
            "#,
            at(1),
            at(5),
        ));
    }
}
