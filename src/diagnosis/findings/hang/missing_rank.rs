//! DD101 missing-rank: a live rank does not reach a collective in which its group waits.

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::Confidence;

use crate::findings::draft::Draft;
use crate::findings::hang::absent::Absent;
use crate::findings::view::last_call_beside;
use crate::model::Process;
use crate::situation::{Origin, Situation, Stall};
use crate::source::cause;
use crate::stacks::{self, Activity};
use crate::timing::Timing;
use crate::words::{self, Capital, Ranks, number};

/// DD101: live ranks that others wait for.
pub(crate) fn detect(situation: &Situation<'_>) -> Vec<Draft> {
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
        .filter(|draft| !is_omitted(situation, draft))
        .collect()
}

/// Whether the stall follows from a call that was left out, which is reported as such.
fn is_omitted(situation: &Situation<'_>, draft: &Draft) -> bool {
    let mut omissions = situation.omissions.iter();
    omissions.any(|it| draft.place == Some((it.group, it.seq)))
}

fn draft(situation: &Situation<'_>, ranks: &[u32], stalls: &[&Stall]) -> Option<Draft> {
    let mut overdue =
        stalls.iter().filter(|stall| stall.message.is_none() && situation.is_overdue(stall));
    let stall = *overdue.next()?;
    if stall.parting.is_some() {
        return None;
    }
    let absent = Absent::of(situation, ranks, stall)?;
    let (ranks, processes) = (&absent.ranks[..], &absent.processes);
    let mut draft = absent.draft(situation, &catalogue::DD101, stalls, situation.overdue_at(stall));
    let timing = &situation.model.timing;
    // The rank may wait for the very ranks that wait for it.
    let unseen = |process: &&Process| stacks::unseen_call(process, timing).is_some();
    if processes.iter().any(|process| process.is_inside_a_call() || unseen(process)) {
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
    draft.why = why(situation, &absent);
    draft.next = vec![next_step(&absent, timing)];
    let place = Some((stall.group, stall.seq));
    let reading = cause::read(situation, place, ranks, &draft.victims, situation.now);
    draft.explain(reading);
    Some(draft)
}

fn why(situation: &Situation<'_>, absent: &Absent<'_>) -> Vec<String> {
    let timing = &situation.model.timing;
    let mut processes = absent.processes.iter();
    let unseen = processes.any(|process| stacks::unseen_call(process, timing).is_some());
    let mut processes = absent.processes.iter();
    // A log states where a rank was only if it has the rank's stacks.
    let is_untold = processes.all(|it| it.is_from_text() && stacks::of(it, timing).is_none());
    let needs_all = absent.needs_all(situation);
    let are = absent.are();
    let mut why = vec![if is_untold {
        let missing = Ranks(&absent.ranks);
        format!("{needs_all} The log does not state where {missing} {} instead.", absent.be())
    } else if absent.watched && unseen {
        format!("{needs_all} {are} alive, and in no recorded call.")
    } else if absent.processes.iter().any(|it| it.unwatched.is_some()) && absent.watched {
        let missing = Capital(Ranks(&absent.ranks));
        format!("{needs_all} {missing} had not reached it when the evidence ended.")
    } else if absent.watched {
        format!("{needs_all} {are} alive and not in a collective.")
    } else {
        format!(
            "{needs_all} {are} last seen outside of any collective; its later state is unknown."
        )
    }];
    why.extend(last_calls(situation, absent));
    if situation.is_cut_short(absent.stall) {
        why.push("The job was interrupted while they waited.".into());
    }
    if absent.stall.failed {
        let them = number(&absent.ranks, "it", "them");
        why.push(format!("A wait for {them} has already failed."));
    }
    why
}

/// A sentence on the last calls of ranks that made the same one.
fn last_calls(situation: &Situation<'_>, absent: &Absent<'_>) -> Vec<String> {
    let mut by_text: Vec<(String, Vec<u32>)> = Vec::new();
    for process in &absent.processes {
        let Some(rank) = process.rank else { continue };
        let text = format!(
            "{}{}.{}",
            last_call_beside(situation.model, process, Some(absent.stall.group)),
            if absent.is_past {
                String::new()
            } else {
                format!("; its process is {}", process.state)
            },
            whereabouts(process, situation),
        );
        match by_text.iter_mut().find(|(known, _)| *known == text) {
            Some((_, ranks)) => ranks.push(rank),
            None => by_text.push((text, vec![rank])),
        }
    }
    let sentence = |(text, ranks): (String, Vec<u32>)| match &ranks[..] {
        [rank] => format!("Rank {rank}: {text}"),
        ranks => format!("Each of {}: {text}", Ranks(ranks)),
    };
    by_text.into_iter().map(sentence).collect()
}

/// A sentence on the call that the rank is inside, or on the line that its stacks show.
fn whereabouts(process: &Process, situation: &Situation<'_>) -> String {
    let timing = &situation.model.timing;
    let inside = process.threads.values().find_map(|thread| thread.inside(situation.now, timing));
    if let Some(call) = inside {
        return format!(" It is inside {}{}.", words::call(call), words::at(call.place.as_deref()));
    }
    if let Some((called, line)) = stacks::unseen_call(process, timing) {
        return format!(
            " It is inside {} of PyTorch{}; which rank it waits for is unknown.",
            words::function(called),
            words::at(line),
        );
    }
    match stacks::of(process, timing) {
        Some(Activity { line: Some(line), moves: true, .. }) => {
            format!(" It is running {} at {}.", words::function(line), words::line(line))
        }
        _ => String::new(),
    }
}

fn next_step(absent: &Absent<'_>, timing: &Timing) -> String {
    let (ranks, processes) = (&absent.ranks[..], &absent.processes);
    let unseen = processes.iter().find_map(|process| {
        let (called, line) = stacks::unseen_call(process, timing)?;
        Some((process.rank?, words::function(called), words::at(line)))
    });
    if let Some((rank, called, at)) = unseen {
        return format!(
            "Find the peer that rank {rank} waits for in {called}{at}: it may have left out its side.",
        );
    }
    let known = processes.iter().any(|process| stacks::of(process, timing).is_some());
    format!(
        "{}, and let {} reach the same calls as the others.",
        if absent.is_past || known {
            let after = processes.iter().any(|it| it.last_call.is_some());
            format!(
                "Find out what {} {} {}",
                Ranks(ranks),
                number(ranks, "does", "do"),
                if after { "after that call" } else { "instead" }
            )
        } else {
            format!("Find out what {} {} doing now (ddp-doctor dump)", Ranks(ranks), absent.be())
        },
        number(ranks, "it", "them"),
    )
}
