//! DD901 evidence-incomplete: evidence about ranks is missing, so findings about them are too.

use std::collections::{BTreeMap, BTreeSet};

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::{CallState, Confidence, Exit, Fact, RankCall, Severity};
use ddp_doctor_proto::{ExceptionKind, NoteKind};

use crate::findings::draft::{Draft, KeyPlace};
use crate::findings::view::{last_call, made_call, rank_calls};
use crate::input::align::by_key;
use crate::input::event::StartedRank;
use crate::input::provenance::{Dumps, Provenance};
use crate::model::{Exception, GroupId, Note, Process, Target, libc_signal};
use crate::situation::Situation;
use crate::words::{NEXT_FOR_DUMPS, Ranks, WHY_FOR_DUMPS, number};

/// DD901: ranks that are not recorded, or only in part.
pub(crate) fn notes_about_ranks(situation: &Situation<'_>) -> Vec<Draft> {
    let notes = situation.model.notes.iter();
    let of_ranks = notes.enumerate().filter_map(|(at, note)| Some((note.rank?, (at, note))));
    // Notes that differ in their ranks alone are one finding.
    let alike = by_key(of_ranks, |(at, note)| (note.pid.map(|_| *at), note.kind, &note.text));
    alike.into_iter().map(|(note, ranks)| of_note(situation, note.1, ranks)).collect()
}

/// DD901: other gaps that were noted, such as processes that are not ranks.
pub(crate) fn other_notes(situation: &Situation<'_>) -> Vec<Draft> {
    let notes = situation
        .model
        .notes
        .iter()
        .filter(|note| note.rank.is_none() && !is_undecided_text(situation));
    notes.map(|note| of_note(situation, note, Vec::new())).collect()
}

/// DD901: statements of logs that decide nothing by themselves.
pub(crate) fn notes_of_logs(situation: &Situation<'_>) -> Vec<Draft> {
    let notes = situation
        .model
        .notes
        .iter()
        .filter(|note| note.rank.is_none() && is_undecided_text(situation));
    let mut drafts: Vec<Draft> = notes.map(|note| of_note(situation, note, Vec::new())).collect();
    // They take the place of a finding about the ends of ranks.
    if let Some(first) = drafts.first_mut() {
        let ranks: Vec<u32> = situation.model.ranks.keys().copied().collect();
        let rows = last_rows(situation, &ranks).into_iter();
        first.per_rank = rows.filter(|it| it.state == CallState::Waiting).collect();
    }
    drafts
}

/// Whether the job has ended without any recorded call. Until its end ranks may still report.
fn is_blind(situation: &Situation<'_>) -> bool {
    let model = situation.model;
    model.over().is_some() && !model.processes.values().any(|process| process.last_call.is_some())
}

/// Whether all evidence is text: what ranks printed.
fn is_text(situation: &Situation<'_>) -> bool {
    let processes = &situation.model.processes;
    !processes.is_empty() && processes.values().all(Process::is_from_text)
}

/// Whether all evidence is text, which does not state that the job ended well.
fn is_undecided_text(situation: &Situation<'_>) -> bool {
    let model = situation.model;
    is_text(situation) && (model.ended.is_none() || model.has_failed)
}

/// Why evidence is missing if all of it is text.
const WHY_FOR_TEXT: &str = "Logs contain only what ranks printed: nothing else can be diagnosed.";

/// What to do if all evidence is text.
const NEXT_FOR_TEXT: &str = "Add the logs of all ranks and nodes. To have the calls of every rank recorded, start the job \
     under ddp-doctor run.";

/// Why ranks are missing if the others were read from outside.
const WHY_ATTACHED: &str = "No process of these ranks runs on the hosts that were read.";

/// What to do if ranks on other hosts were not read.
const NEXT_ATTACHED: &str = "Read the other hosts as well: run ddp-doctor attach --run-dir DIR on every host of the job (srun, mpirun, kubectl \
     exec, ssh), and then ddp-doctor analyze DIR…";

fn of_note(situation: &Situation<'_>, note: &Note, ranks: Vec<u32>) -> Draft {
    let pid = note.pid.unwrap_or(0);
    let place = KeyPlace::Process(note.rank.unwrap_or(u32::MAX), pid);
    let mut draft = Draft::new(&catalogue::DD901, place, note.at);
    if is_blind(situation) && !is_text(situation) {
        draft.severity = Severity::Error;
    }
    let is_text = is_text(situation) && note.rank.is_none() && note.pid.is_none();
    let text = &*note.text.what;
    let who = match (note.rank, note.pid) {
        (Some(rank), Some(pid)) => format!("rank {rank} (process {pid})"),
        (Some(_), None) => Ranks(&ranks).to_string(),
        (None, Some(pid)) => format!("process {pid}"),
        (None, None) => "a process".into(),
    };
    draft.summary = match (note.rank, note.pid) {
        (None, None) => text.to_owned(),
        _ if note.kind == NoteKind::SeveralRanks => format!("{who} {text}"),
        _ if note.kind == NoteKind::Unreadable => {
            format!("later calls of {who} are unknown: {text}")
        }
        _ => format!("the collectives of {who} are not recorded: {text}"),
    };
    let concerned = format!(
        "Findings about {}, and about ranks that wait for {}, cannot be made.",
        number(&ranks, "this rank", "these ranks"),
        number(&ranks, "it", "them"),
    );
    let (why, next) = match note.kind {
        _ if is_text => (WHY_FOR_TEXT, NEXT_FOR_TEXT),
        NoteKind::NoHooks => (
            "Collectives are recorded by hooks of PyTorch, or by replacing its functions: neither works here.",
            "Run the job with PyTorch 2.1 or later, and without other tools that patch torch.distributed.",
        ),
        NoteKind::CaptureLost => (
            "Capture is enabled by environment variables that this process did not receive, or ignores.",
            "Start Python without -I, -E or -S, and keep PYTHONPATH and DDP_DOCTOR_* when the environment is rebuilt.",
        ),
        NoteKind::NoBlackBox => (
            "Records are written to a file in shared memory; without room for that file, nothing is recorded.",
            "Make room in /dev/shm (about 2 MiB per rank), or name another directory in DDP_DOCTOR_BOX_DIR.",
        ),
        NoteKind::NoLibrary => (
            "Records are written by a native library.",
            "Name libddp_doctor.so in DDP_DOCTOR_LIBRARY.",
        ),
        NoteKind::SeveralRanks => (
            "Records identify ranks by their processes. Findings about the ranks that are not recorded, \
             and about those that wait for them, cannot be made.",
            "Run one process per device to have all of them recorded.",
        ),
        NoteKind::JournalCut => (
            "Calls that were under way, settings and exceptions are kept. Findings about what had ended by then \
             cannot be made.",
            "Raise --journal-size to keep more.",
        ),
        _ => (&*concerned, "Start every rank under ddp-doctor run."),
    };
    let (why, next) = match situation.config.provenance {
        Provenance::Dumps(_) => (WHY_FOR_DUMPS, NEXT_FOR_DUMPS),
        Provenance::Recorded | Provenance::Attached => (why, next),
    };
    let next = note.text.advice.as_deref().unwrap_or(next);
    (draft.why, draft.next) = (vec![why.into()], vec![next.into()]);
    let only = note.rank.filter(|_| ranks.len() == 1);
    draft.root = ranks;
    missing(situation, draft, only, note.pid, text)
}

/// DD901: ranks of the world that have not reported although it is complete or the job has ended.
pub(crate) fn unseen_ranks(situation: &Situation<'_>) -> Option<Draft> {
    let model = situation.model;
    let world_size = model.world_size()?;
    let is_told = |process: &Process| {
        let place = process.init.as_ref().and_then(|init| init.place.as_ref());
        process.is_joining() && place.is_some()
    };
    if model.processes.values().any(is_told) {
        // The world is still incomplete: DD301 reports who is missing.
        return None;
    }
    let grace = model.timing.unseen_rank_grace;
    let joined = model.world_joined.map(|at| at.plus(grace));
    let attached = model.started.filter(|_| situation.config.provenance.is_attached());
    let joined = joined.or(attached);
    let due = joined.into_iter().chain(model.over()).min()?;
    if due > situation.now {
        return None;
    }
    // They may be ranks of a process that runs several.
    if model.notes.iter().any(|note| note.kind == NoteKind::SeveralRanks) {
        return None;
    }
    let named: Vec<u32> = model.notes.iter().filter_map(|note| note.rank).collect();
    let mut unseen = model.unseen();
    unseen.retain(|rank| !named.contains(rank));
    if unseen.is_empty() {
        return None;
    }
    let mut draft = Draft::new(&catalogue::DD901, KeyPlace::Ranks(Vec::new()), due);
    draft.summary = format!(
        "{} of {world_size} {} never seen: findings about {} cannot be made",
        Ranks(&unseen),
        number(&unseen, "was", "were"),
        number(&unseen, "it", "them")
    );
    draft.say(
        "All ranks have joined the world, but no node has reported a black box of these ranks.",
    );
    draft.advise("Start every rank under ddp-doctor run, on other nodes with --coordinator.");
    if is_text(situation) {
        (draft.why, draft.next) = (vec![WHY_FOR_TEXT.into()], vec![NEXT_FOR_TEXT.into()]);
    }
    match situation.config.provenance {
        Provenance::Attached => {
            draft.severity = Severity::Error;
            (draft.why, draft.next) = (vec![WHY_ATTACHED.into()], vec![NEXT_ATTACHED.into()]);
        }
        Provenance::Dumps(_) => {
            (draft.why, draft.next) = (vec![WHY_FOR_DUMPS.into()], vec![NEXT_FOR_DUMPS.into()]);
        }
        Provenance::Recorded => {}
    }
    draft.root = unseen;
    Some(missing(situation, draft, None, None, "ranks that never reported"))
}

/// DD901: a job that has ended without a recorded rank.
pub(crate) fn nothing_seen(situation: &Situation<'_>) -> Option<Draft> {
    let model = situation.model;
    let ended = model.over()?;
    if !model.processes.is_empty() || !model.notes.is_empty() {
        return None;
    }
    let mut draft = Draft::new(&catalogue::DD901, KeyPlace::Job, ended);
    let distinct: BTreeSet<u32> = model.started_ranks.values().map(|it| it.rank).collect();
    let started: Vec<u32> = distinct.into_iter().collect();
    let mut sizes = model.started_ranks.values().map(|it| it.world_size);
    let is_alone = started == [0] && sizes.all(|size| size == Some(1));
    draft.summary = match &started[..] {
        [] => {
            "no process of this job was seen to join a process group: there is nothing to diagnose"
                .into()
        }
        _ if is_alone => {
            "the job is one process, which was not seen to join a process group: there is \
                          nothing to diagnose"
                .into()
        }
        _ => format!(
            "{} started and {} not seen to join a process group of torch.distributed: no call was \
             recorded, and there is nothing to diagnose",
            Ranks(&started),
            number(&started, "was", "were")
        ),
    };
    if is_alone {
        draft.say("Its WORLD_SIZE is 1: no other rank can wait for it.");
    } else if !started.is_empty() {
        draft.say(how_they_ended(situation));
        draft.say(
            "Ranks that communicate by other means are not recorded: torch.distributed.rpc, and process \
             groups that a program or a library constructs without init_process_group.",
        );
    }
    if !is_alone {
        draft.advise(
            "If this was a training job with PyTorch that joins a process group: keep PYTHONPATH and \
             DDP_DOCTOR_*, start Python without -I, -E or -S, and install the package ddp_doctor if \
             ddp-doctor reported at the start that it is missing. In other programs, link the agent; \
             the calls of NCCL alone are recorded with ddp-doctor run --nccl always.",
        );
    }
    Some(missing(situation, draft, None, None, "any rank"))
}

/// How the processes ended that started as ranks and joined nothing.
fn how_they_ended(situation: &Situation<'_>) -> String {
    let started = situation.model.started_ranks.values();
    let failed = started.clone().find_map(|it| {
        let (_, exit) = it.end?;
        let how = match (exit.code, exit.signal) {
            (_, Some(signal)) => format!("by {}", libc_signal::name(signal)),
            (Some(code), None) if code != 0 => format!("with status {code}"),
            _ => return None,
        };
        Some(format!("The process of rank {} ended {how}.", it.rank))
    });
    let is_clean = |it: &StartedRank| it.end.is_some_and(|(_, exit)| exit.code == Some(0));
    failed.unwrap_or_else(|| {
        if started.clone().all(is_clean) {
            "Their processes ended with status 0.".into()
        } else {
            "How all of their processes ended is unknown.".into()
        }
    })
}

/// DD901: ranks whose end was not recorded, with their last calls.
///
/// It is unknown how long they stayed in these calls: the records of a healthy job that was killed
/// end with waits, too. Without another finding the job cannot be judged.
pub(crate) fn unwatched_ends(situation: &Situation<'_>) -> Option<Draft> {
    let model = situation.model;
    // A text that states something decides no more by this.
    if is_text(situation) && model.notes.iter().any(|note| note.rank.is_none()) {
        return None;
    }
    let unwatched_since = |rank: u32| {
        let process = model.process_of(rank)?;
        let ends_it = |it: &Exception| {
            let is_end = it.kind == ExceptionKind::Uncaught || process.is_from_text();
            is_end && !it.asks_to_end()
        };
        let has_raised = process.exceptions.iter().any(ends_it);
        let has_ended = process.has_ended() || process.later_exit != Exit::default();
        process.unwatched.filter(|_| !has_ended && !has_raised)
    };
    let ranks = model.ranks.keys().copied();
    let names: Vec<u32> = ranks.filter(|&rank| unwatched_since(rank).is_some()).collect();
    let since = names.iter().filter_map(|&rank| unwatched_since(rank)).min()?;
    let mut draft = Draft::new(&catalogue::DD901, KeyPlace::Ranks(names.clone()), since);
    draft.per_rank = last_rows(situation, &names);
    if let Some(dumps) = situation.config.provenance.dumps() {
        describe_dumps(&mut draft, dumps, names);
        return Some(missing(situation, draft, None, None, "how ranks ended"));
    }
    draft.summary = format!(
        "it is unknown how {} ended: the evidence ends while {} running",
        Ranks(&names),
        number(&names, "it was", "they were")
    );
    draft.say(
        "How a rank ended, and how long it was in its last call, is recorded by the ddp-doctor process \
         that watches it: none was running, or it ended before the rank did.",
    );
    draft.advise(
        "Add the remaining evidence: the run directory of every node, with its journal, and the \
         black boxes in /dev/shm of ranks that were killed.",
    );
    if is_text(situation) {
        (draft.why, draft.next) = (vec![WHY_FOR_TEXT.into()], vec![NEXT_FOR_TEXT.into()]);
    }
    draft.root = names;
    Some(missing(situation, draft, None, None, "how ranks ended"))
}

/// The sentences of a finding that dumps of these ranks do not suffice for a diagnosis.
fn describe_dumps(draft: &mut Draft, dumps: &Dumps, ranks: Vec<u32>) {
    // A rank whose last call is complete may be behind the others.
    for call in &mut draft.per_rank {
        if matches!(call.state, CallState::Returned | CallState::Completed) {
            call.state = CallState::NotIssued;
        }
    }
    let what = match dumps.at_most {
        Some(most) => {
            draft.say(format!(
                "The dumps were written at most {} s after the first call that is not complete: the job may still \
                 be making progress.",
                most.as_secs() + 1,
            ));
            "whether the job hangs"
        }
        None => {
            draft.say(
                "A dump shows its process at one moment. Calls of these ranks are incomplete.",
            );
            "which rank the others wait for"
        }
    };
    draft.summary = format!("the dumps of {} do not show {what}", Ranks(&ranks));
    draft.advise(
        "Compare the calls in which the ranks wait with those of dumps written later, or with the stacks of the \
         ranks (py-spy dump).",
    );
    draft.victims = ranks;
}

/// Whether a draft states that the ends of ranks were not recorded.
pub(crate) fn is_about_ends(draft: &Draft) -> bool {
    let KeyPlace::Ranks(ranks) = &draft.key.place else { return false };
    draft.code.code == catalogue::DD901.code && !ranks.is_empty()
}

/// Rows of the last calls of these ranks.
fn last_rows(situation: &Situation<'_>, names: &[u32]) -> Vec<RankCall> {
    // Thousands of ranks may be inside one collective.
    let mut of_joins: BTreeMap<(GroupId, u64), BTreeMap<u32, RankCall>> = BTreeMap::new();
    let rows = names.iter().filter_map(|&rank| {
        let process = situation.model.process_of(rank)?;
        let last = process.last_call.as_ref();
        if last.is_none() && process.is_from_text() {
            return None;
        }
        let inside = last.and_then(|call| match process.target(call.id) {
            Some(Target::Join(group, seq)) => {
                let of_join = of_joins.entry((group, seq)).or_insert_with(|| {
                    let calls = rank_calls(situation, group, seq).into_iter().rev();
                    calls.map(|call| (call.rank, call)).collect()
                });
                of_join.get(&rank).cloned()
            }
            Some(Target::Message(..)) => Some(made_call(situation, rank, process, call)),
            None => process.is_inside_a_call().then(|| made_call(situation, rank, process, call)),
        });
        Some(inside.unwrap_or_else(|| last_call(rank, process)))
    });
    rows.collect()
}

fn missing(
    situation: &Situation<'_>,
    mut draft: Draft,
    rank: Option<u32>,
    pid: Option<u32>,
    what: &str,
) -> Draft {
    draft.root_confidence = Confidence::Supported;
    if is_text(situation) {
        // What a text does not state proves nothing.
        return draft;
    }
    draft.observed(vec![Fact::Missing { rank, pid, what: what.to_owned() }])
}
