//! DD101 missing-rank: a live rank does not reach a collective in which its group waits.

use std::sync::Arc;

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::{Confidence, GroupRef, Severity, Timestamp};

use crate::findings::draft::Draft;
use crate::findings::stalls::absent::Absent;
use crate::findings::stalls::dumped;
use crate::findings::stalls::idle::blame_failed_thread;
use crate::findings::view::last_call_beside;
use crate::input::align::by_key;
use crate::input::event::{Call, GroupInfo, Stated};
use crate::input::known_errors;
use crate::input::provenance::Dumps;
use crate::model::Process;
use crate::situation::{OriginKind, Situation, Stall, StallOrigin};
use crate::source::cause::{self, CauseHypothesis};
use crate::stacks::{self, Activity};
use crate::timing::Timing;
use crate::words::{self, Ranks, number};

/// DD101: live ranks that others wait for.
pub(crate) fn draft(
    situation: &Situation<'_>,
    from: &StallOrigin,
    stalls: &[&Stall],
) -> Option<Draft> {
    let StallOrigin { why: OriginKind::Elsewhere, ranks } = from else { return None };
    // A wait for a message without a partner is DD113.
    if stalls.first()?.message.is_some() {
        return None;
    }
    let collectives = stalls.iter().copied().filter(|stall| stall.message.is_none());
    let absent = Absent::of_overdue(situation, ranks, collectives)?;
    let (ranks, stall) = (&absent.ranks[..], absent.stall);
    // Two captures show that such a rank moves: it may be slow.
    if situation.config.provenance.is_attached() {
        return None;
    }
    // A call that was left out is reported as such.
    if situation.omissions.iter().any(|it| (it.group, it.seq) == (stall.group, stall.seq)) {
        return None;
    }
    let mut draft = absent.draft(situation, &catalogue::DD101, stalls, situation.overdue_at(stall));
    let timing = &situation.model.timing;
    let mut processes = absent.processes.iter();
    let unseen = processes.find_map(|it| Some((*it, stacks::unseen_call(it, timing)?)));
    // The rank may wait for the very ranks that wait for it.
    if unseen.is_some() || absent.processes.iter().any(|it| it.is_inside_a_call()) {
        draft.root_confidence = Confidence::Suspected;
    }
    let running = running(&absent, timing).filter(|_| unseen.is_none());
    let has = if absent.have_ended { "had" } else { number(ranks, "has", "have") };
    draft.summary = format!(
        "{}{} {has} not reached {}; {}",
        Ranks(ranks),
        running.map_or_else(String::new, |it| format!(" {it} and")),
        words::call(absent.call),
        draft.waits_for_root(),
    );
    draft.why = why(situation, &absent, unseen.is_some());
    let is_computing = situation.is_computing(stall, ranks) && !absent.is_past;
    if is_computing {
        if !absent.is_late_by_far(situation) {
            draft.severity = Severity::Warning;
        }
        draft.say(absent.gives_up(situation));
    }
    let is_blamed = match absent.processes[..] {
        [process] => blame_failed_thread(&mut draft, process),
        _ => false,
    };
    match unseen {
        // What the rank's own thread left out explains its wait, and not the peer's side.
        Some(_) if is_blamed => {}
        Some((process, (called, line))) => draft.advise(format!(
            "Find the peer that rank {} waits for in {}{}: it may have skipped the matching call.",
            process.rank?,
            words::function(called),
            words::at(line),
        )),
        None => draft.advise(next_step(&absent, timing)),
    }
    let (sentences, advice): (Vec<String>, Vec<String>) =
        stated(&absent).map(|(at, rank, what)| stated_words(rank, what, at)).unzip();
    if !advice.is_empty() {
        draft.why.splice(1..1, sentences);
        draft.next = advice;
    }
    // A rank that computes has not decided anything yet: no test around its lines explains its absence.
    let hypothesis = if is_computing {
        CauseHypothesis::unknown()
    } else {
        cause::read(situation, draft.place, ranks, &draft.victims, situation.now)
    };
    draft.explain(hypothesis);
    if let Some(dumps) = situation.config.provenance.dumps() {
        draft = dumped::created_differently(situation, draft, dumps);
        if draft.code.code == catalogue::DD101.code {
            say_what_dumps_show(
                &mut draft,
                dumps,
                &situation.model.group(stall.group).info.key,
                stall.seq,
            );
        }
    }
    Some(draft)
}

/// What the only missing rank runs, as a predicate: "is running generate() at rollout.py:9".
fn running(absent: &Absent<'_>, timing: &Timing) -> Option<String> {
    let [process] = absent.processes[..] else { return None };
    let activity = stacks::activity(process, timing).filter(|it| it.moves && !absent.is_past)?;
    let line = activity.line?;
    let is = if absent.have_ended { "was" } else { "is" };
    Some(format!("{is} running {} at {}", words::function(line), words::line(line)))
}

/// Names ranks that made one call too many instead, and calls that counters of a missing rank alone show.
fn say_what_dumps_show(draft: &mut Draft, dumps: &Dumps, group: &GroupRef, seq: u64) {
    if let Some(callers) = dumps.lone_callers(group, seq, &draft.root) {
        let missing = Ranks(&draft.root).to_string();
        draft.say(format!(
            "{} have all stopped after the same call: {} may have made an extra call.",
            words::begin(&missing),
            Ranks(&callers),
        ));
        draft.next = vec![format!(
            "Find out why {} this call and {missing} do not.",
            Ranks(&callers).with("makes", "make"),
        )];
        draft.confidence = Confidence::Suspected;
        draft.victims.retain(|rank| !callers.contains(rank));
        draft.blame(callers, Confidence::Suspected);
        return;
    }
    for rank in draft.root.clone() {
        let calls = counted(dumps, rank);
        if calls.is_empty() {
            continue;
        }
        let calls = calls.iter().map(|(info, seq)| format!("#{seq} of {}", words::group(info)));
        draft.say(format!(
            "The dump of rank {rank} begins after its first incomplete calls: its counters show that they are \
             {}.",
            words::joined(calls, " and "),
        ));
        draft.next = vec![format!(
            "Compare the calls of rank {rank} with those of its peers in these groups: it may have skipped a \
             call, or made an extra one."
        )];
    }
}

/// First incomplete calls of a rank of which counters alone are known.
fn counted(dumps: &Dumps, rank: u32) -> &[(Arc<GroupInfo>, u64)] {
    dumps.ranks.get(&rank).map_or(&[][..], |dump| &dump.counted)
}

/// `unseen`: one of the ranks is inside a call that was not recorded.
fn why(situation: &Situation<'_>, absent: &Absent<'_>, unseen: bool) -> Vec<String> {
    let timing = &situation.model.timing;
    let mut processes = absent.processes.iter();
    // A log states where a rank was only if it has the rank's stacks.
    let is_untold = processes.all(|it| it.is_from_text() && stacks::activity(it, timing).is_none());
    let are_inside = !absent.processes.is_empty()
        && absent.processes.iter().all(|it| inside(it, situation).is_some());
    let needs_all = absent.needs_all(situation);
    let are = absent.are();
    let is_stated = stated(absent).next().is_some();
    let mut why = vec![if is_untold && is_stated {
        needs_all
    } else if is_untold {
        let missing = Ranks(&absent.ranks);
        format!("{needs_all} The log does not state where {missing} {} instead.", absent.copula())
    } else if absent.watched && absent.have_ended {
        let were = words::begin(Ranks(&absent.ranks).with("was", "were"));
        let have = number(&absent.ranks, "it has", "they have");
        format!("{needs_all} {were} alive and not in a collective then; {have} ended since.")
    } else if absent.watched && unseen {
        format!("{needs_all} {are} alive, and in no recorded call.")
    } else if absent.processes.iter().any(|it| it.unwatched.is_some()) && absent.watched {
        let missing = words::begin(Ranks(&absent.ranks));
        format!("{needs_all} {missing} had not reached it when the evidence ended.")
    } else if absent.watched && are_inside {
        format!("{needs_all} {are} alive, and in another call.")
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
    let texts = absent.processes.iter().filter_map(|process| {
        let rank = process.rank?;
        // Its last call is one that counters alone show.
        let dumps = situation.config.provenance.dumps();
        if dumps.is_some_and(|dumps| !counted(dumps, rank).is_empty()) {
            return None;
        }
        let last = last_call_beside(situation.model, process, Some(absent.stall.group));
        let state = if absent.is_past || absent.have_ended {
            String::new()
        } else {
            format!("; its process is {}", process.state)
        };
        let is = if absent.have_ended { "was" } else { "is" };
        Some((rank, format!("{last}{state}.{}", whereabouts(process, situation, is))))
    });
    let sentence = |(text, ranks): (String, Vec<u32>)| match &ranks[..] {
        [rank] => format!("Rank {rank}: {text}"),
        ranks => format!("Each of {}: {text}", Ranks(ranks)),
    };
    by_key(texts, String::clone).into_iter().map(sentence).collect()
}

/// The call that the rank is inside.
fn inside<'p>(process: &'p Process, situation: &Situation<'_>) -> Option<&'p Call> {
    let timing = &situation.model.timing;
    process.threads.values().find_map(|thread| thread.inside(situation.now, timing).map(|it| &**it))
}

/// A sentence on the call that the rank is inside, or on the line that its stacks show.
fn whereabouts(process: &Process, situation: &Situation<'_>, is: &str) -> String {
    let timing = &situation.model.timing;
    if let Some(call) = inside(process, situation) {
        return format!(" It {is} inside {}.", words::call_at(call));
    }
    if let Some((called, line)) = stacks::unseen_call(process, timing) {
        return format!(
            " It {is} inside {} of PyTorch{}; which rank it waits for is unknown.",
            words::function(called),
            words::at(line),
        );
    }
    match stacks::activity(process, timing) {
        Some(Activity { line: Some(line), moves: true, .. }) => {
            format!(" It {is} running {} at {}.", words::function(line), words::line(line))
        }
        _ => match stacks::unread(process) {
            Some(why) => format!(" Its stacks could not be read: {why}."),
            None => String::new(),
        },
    }
}

/// What the logs of missing ranks state about the time in which others waited for them.
fn stated<'a>(absent: &Absent<'a>) -> impl Iterator<Item = (Timestamp, u32, &'a Stated)> {
    let processes = absent.processes.iter().copied();
    let ranks = processes.filter_map(|it| Some((it.rank?, it)));
    ranks.flat_map(|(rank, it)| it.stated.iter().map(move |(at, what)| (*at, rank, what)))
}

/// The same as a sentence, and what to do about it.
fn stated_words(rank: u32, what: &Stated, at: Timestamp) -> (String, String) {
    match what {
        Stated::Caught(text) => (
            format!(
                "At {}, the log of rank {rank} shows an exception that the program caught: {}.",
                words::clock(at),
                words::short(text),
            ),
            known_errors::advice(text).map_or_else(
                || {
                    format!(
                        "Fix the cause of this exception, or let it end rank {rank}: the other ranks wait while it retries.",
                    )
                },
                str::to_owned,
            ),
        ),
        Stated::WatchdogBlocked(seconds) => {
            let lasted = seconds.map_or_else(String::new, |it| format!(" for {it} s"));
            (
                format!(
                    "The watchdog of rank {rank} was blocked{lasted}: a call into NCCL or CUDA did not return, or another \
                     thread held the GIL during such a call.",
                ),
                format!(
                    "Capture the stacks of rank {rank} when it hangs again, with their native frames (py-spy dump --native): \
                     they show the call that does not return.",
                ),
            )
        }
    }
}

fn next_step(absent: &Absent<'_>, timing: &Timing) -> String {
    let (ranks, processes) = (&absent.ranks, &absent.processes);
    let known = processes.iter().any(|process| stacks::activity(process, timing).is_some());
    format!(
        "{}, and make {} reach the same calls as the others.",
        if absent.is_past || known {
            let after = processes.iter().any(|it| it.last_call.is_some());
            let when = if after { "after that call" } else { "instead" };
            format!("Find out what {} {when}", Ranks(ranks).with("does", "do"))
        } else {
            format!(
                "Find out what {} {} doing now (ddp-doctor dump)",
                Ranks(ranks),
                absent.copula()
            )
        },
        number(ranks, "it", "them"),
    )
}
