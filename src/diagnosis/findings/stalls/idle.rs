//! Words about ranks that are stuck outside of calls.

use std::collections::BTreeMap;
use std::time::Duration;

use ddp_doctor_proto::report::{ActivityKind, RankActivity};

use crate::findings::draft::Draft;
use crate::findings::view::last_call_of;
use crate::model::{Model, Process};
use crate::situation::{Absent, OriginKind, Situation, Stall};
use crate::source::cause::Mistake;
use crate::stacks::{self, Activity, Occupation, What, is_users};
use crate::words::{self, number};

/// What a rank that is stuck does, and a sentence on it.
pub(crate) fn standing<'a>(model: &Model, process: &'a Process) -> Option<(Activity<'a>, String)> {
    let still = stacks::activity(process, &model.timing).filter(|outside| !outside.moves)?;
    let sentence = where_it_is(model, process, &still)?;
    Some((still, sentence))
}

/// What the ranks do that others wait for, by rank, as far as it is known.
pub(crate) fn activities(situation: &Situation<'_>) -> BTreeMap<u32, RankActivity> {
    let missing = situation
        .stalls
        .iter()
        .flat_map(|stall| stall.missing.iter().map(move |absent| (stall, absent)));
    let known = missing.filter_map(|(stall, absent)| {
        let process = situation.model.member(stall.group, absent.rank)?;
        let outside = stacks::activity(process, &situation.model.timing)?;
        Some((absent.rank, activity(situation, stall, absent, process, &outside)?))
    });
    known.collect()
}

fn activity(
    situation: &Situation<'_>,
    stall: &Stall,
    absent: &Absent,
    process: &Process,
    outside: &Activity<'_>,
) -> Option<RankActivity> {
    let waits = || {
        waits_for(outside.what).replacen("waits", "waiting", 1).replacen("sleeps", "sleeping", 1)
    };
    let (kind, text) = match (absent.why, situation.occupation(stall, absent.rank, process)?) {
        (OriginKind::Idle, _) => (ActivityKind::Idle, "waiting for a request".into()),
        (OriginKind::Stuck, Occupation::Blocked) => (ActivityKind::Blocked, waits()),
        (OriginKind::Stuck, _) => (ActivityKind::External, waits()),
        (OriginKind::LongPhase, _) if outside.waits_until.is_some() => {
            (ActivityKind::External, waits())
        }
        (OriginKind::Elsewhere | OriginKind::LongPhase, Occupation::Computing) => {
            let function = outside.line.map(words::function);
            let running = function.map_or_else(|| "computing".into(), |it| format!("running {it}"));
            (ActivityKind::Computing, running)
        }
        _ => return None,
    };
    Some(RankActivity { kind, text, place: outside.line.cloned() })
}

/// A sentence on a rank's line and the state of its thread.
pub(crate) fn where_it_is(
    model: &Model,
    process: &Process,
    outside: &Activity<'_>,
) -> Option<String> {
    let rank = process.rank?;
    let mut text = format!("Rank {rank} is {}", in_source(outside));
    let system: Vec<String> = [
        outside.thread.state.map(|state| match state {
            'S' => "asleep".into(),
            'D' => "waiting for a device".into(),
            'R' => "running".into(),
            other => format!("state {other}"),
        }),
        outside.thread.wait_channel.as_ref().map(|channel| format!("in the kernel in {channel}")),
        (outside.thread.holds_gil == Some(true)).then(|| "holds the GIL".into()),
    ]
    .into_iter()
    .flatten()
    .collect();
    if !system.is_empty() {
        text += &format!("; {}", system.join(", "));
    }
    // Later calls are those of a shutdown.
    let is_earlier = process.last_call.as_ref().is_none_or(|it| it.at <= outside.looks[1]);
    if is_earlier {
        text += &format!("; {}", last_call_of(model, process));
    }
    text.push('.');
    // A sleep says nothing of a thread that looks for something again and again.
    let on = stacks::blocked_on(model, process)
        .filter(|it| it.kind != "sleep" || outside.what == What::Sleep);
    if let Some(on) = on {
        let lasting = on
            .for_ms
            .filter(|&ms| ms >= 1000)
            .map(|ms| format!(", for {}", words::seconds(Duration::from_millis(ms))));
        let of_rank = on.rank.map(|rank| format!(" (rank {rank})"));
        let [of_rank, lasting] = [of_rank, lasting].map(Option::unwrap_or_default);
        text += &format!(" It waits for: {}{of_rank}{lasting}.", on.what);
    }
    if outside.what == What::DeadChild {
        let zombies = outside.children.iter().filter(|it| it.state == Some('Z'));
        let ended = words::joined(zombies.map(|it| format!("{} ({})", it.pid, it.name)), ", ");
        text += &format!(" Below it, these processes have ended: {ended}.");
    }
    if !outside.others.is_empty() {
        let others = words::joined(outside.others.iter().map(|it| words::line(it)), " and ");
        text += &format!(" Its other threads are at {others}.");
    }
    Some(text)
}

/// "in main() at train.py:14, there in sleep() (…)", "in library code".
pub(crate) fn in_source(outside: &Activity<'_>) -> String {
    let at = |line| format!("in {} at {}", words::function(line), words::line(line));
    let line = outside.line.map_or_else(|| "in library code".to_owned(), at);
    let inner = outside
        .inner
        .map(|inner| format!(", there in {} ({})", words::function(inner), words::line(inner)));
    line + &inner.unwrap_or_default()
}

/// Leads with the exception that ended a thread of the rank, if there is one: its other threads may wait for that
/// thread.
pub(crate) fn lead_with_failed_thread(
    draft: &mut Draft,
    process: &Process,
    outside: &Activity<'_>,
) {
    let Some((rank, exception)) = process.rank.zip(process.failed_thread()) else { return };
    blame_failed_thread(draft, process);
    draft.mistake = Some(Mistake::failed_thread(rank, exception, outside.line));
}

/// Adds the exception that ended a thread of the rank: others may wait for that thread. Returns whether there
/// is one.
pub(crate) fn blame_failed_thread(draft: &mut Draft, process: &Process) -> bool {
    let Some((rank, exception)) = process.rank.zip(process.failed_thread()) else { return false };
    let at = words::at(exception.place.as_deref());
    draft.say(format!("A thread of rank {rank} ended with {}{at}.", words::short(&exception.text)));
    let advice =
        format!("Fix the exception{at}: another thread may be waiting for the one that it ended.");
    draft.next.insert(0, advice);
    true
}

/// What the rank does, as a predicate of "it".
pub(crate) const fn waits_for(what: What) -> &'static str {
    match what {
        What::DataLoader => "waits for a data-loader worker",
        What::Gil => "is in a C function that holds the GIL",
        What::Debugger => "waits for input at a debugger's prompt",
        What::BuildLock => "waits for the lock file of another build",
        What::FileLock => "waits for a file that is locked",
        What::Lock | What::Queue => "waits for a lock or for another thread",
        What::Child => "waits for a child process",
        What::Circle => "waits for a process that waits for this rank",
        What::DeadChild => "has lost a process below it and waits for a message",
        What::Poll => "waits for something that it polls",
        What::Store => "waits for a store key that is not set",
        What::Workers => "waits in a call that all workers have to make",
        What::Message => "waits for a message from another process",
        What::Network => "waits for the network",
        What::Service => "waits for an answer over the network",
        What::File => "waits for a file",
        What::Gpu => "waits for the GPU",
        What::Sleep => "sleeps",
        What::Compilation => "waits for a compiler",
        What::Checkpoint => "makes no progress in a checkpoint",
        What::Preparation => "makes no progress in preparing its data",
        What::Import => "makes no progress in an import",
        What::Unknown => "is stuck",
    }
}

/// The same of ranks that wait for a time: "sleeps", "wait for a child process", "slept".
pub(crate) fn wait_of(what: What, ranks: &[u32], is_past: bool) -> String {
    let text = waits_for(what);
    let (verb, rest) = text.split_once(' ').unwrap_or((text, ""));
    let verb = match (verb, is_past) {
        ("sleeps", true) => "slept",
        ("waits", true) => "waited",
        ("sleeps", false) => number(ranks, "sleeps", "sleep"),
        (_, _) => number(ranks, "waits", "wait"),
    };
    format!("{verb} {rest}").trim_end().to_owned()
}

/// Advice by what the rank waits for.
pub(crate) fn advice(what: What, process: &Process) -> Vec<String> {
    let pid = process.pid;
    let host = &process.host;
    match what {
        What::DataLoader => vec![
            format!(
                "Find out what the workers do (the child processes of {pid} on {host}): `__getitem__` or `collate_fn` does not return, or a worker was forked while another thread held a lock."
            ),
            "Give the DataLoader timeout=60, so that it raises instead of waiting without end. Where a lock was inherited, start workers with multiprocessing_context=\"forkserver\" or \"spawn\".".into(),
        ],
        What::Gil => {
            let holder = stacks::lock_keeper(process).filter(|it| is_users(&it.file));
            let at = holder.map(|line| format!(" that {} calls at {}", words::function(line), words::line(line)));
            vec![format!(
                "Make the C function{} release the GIL while it waits: ctypes.CDLL instead of PyDLL, Py_BEGIN_ALLOW_THREADS, pybind11's call_guard<gil_scoped_release>. Until it does, no thread of the rank runs.",
                at.unwrap_or_default()
            )]
        }
        What::Debugger => vec!["Remove the breakpoint, or set it on every rank; the other ranks time out \
            meanwhile.".into()],
        What::BuildLock => vec!["A build that was killed leaves its lock behind. If no build runs, delete the file `lock` in the extension's build folder (TORCH_EXTENSIONS_DIR, ~/.cache/torch_extensions).".into()],
        What::FileLock => vec!["Find the process that holds the lock (lslocks, fuser). If it is another rank of this job, it may wait for this one in a collective: do not issue a collective while holding a lock. Take file locks with a timeout; lock files, and locks on network file systems, outlive their holders.".into()],
        What::Lock => vec![
            "Find out which thread should release the lock. If this thread already holds it, do not take it again, or make it a threading.RLock. Otherwise, the thread that holds it has ended or is waiting itself.".into(),
            "If this process was forked, the lock may have been held at that moment: start processes by \"spawn\" or \"forkserver\". Take locks with a timeout.".into(),
        ],
        What::Queue => vec!["Find what should put an item into this queue: a thread or process that fills it may have ended or be waiting itself; this line then never returns. Make it put a final item before it ends, and give `get` a timeout.".into()],
        What::Child => vec![format!(
            "Find out what its child processes do (ps --ppid {pid} on {host}). A program that reads its standard input waits until that is closed (stdin=subprocess.DEVNULL). A child that was forked while another thread held a lock may never get that lock: start it by \"spawn\" or \"forkserver\", and wait for it with a timeout."
        )],
        What::Circle => vec![
            "Check the protocol of the two processes: if both read, one of them must answer first; if one writes, the other must read meanwhile, or a full pipe stops it (communicate(), or stdout=subprocess.DEVNULL).".into(),
            "Close the ends of pipes that a process does not use, or its reader never sees the end of the input; receive with a timeout.".into(),
        ],
        What::DeadChild => vec![
            "Find out why that process ended: its traceback is in the output of the job.".into(),
            "Let a worker report its exceptions to the process that waits for its results, and give that wait a timeout after which it checks whether its workers are alive.".into(),
        ],
        What::Poll => vec!["Find out what the loop around this line waits for (a file, a flag, a service): it was created under a different name or in a different place, or the rank that creates it waits for this one. Give up before the timeout of the group.".into()],
        What::Store => vec!["Find the rank that should set this key: it uses a different name, has not reached that line, or waits for this rank in a collective before it. Set a key before the collective that follows, and give `get` and `wait` a timeout.".into()],
        What::Workers => vec!["Make this call on every worker, or on none: it returns once all of them have made it. Check the conditions around it, and those that let other workers skip it.".into()],
        What::Message => vec!["Find out which process should send the message, and whether it still runs. Give the wait a timeout.".into()],
        What::Network | What::Service => vec!["Give the request a timeout, and do without its answer where training does not need it. If only some ranks need it, let them fetch it before the others wait.".into()],
        What::File => vec![format!(
            "Check the file system on {host} (mount, df, dmesg): a network file system whose server does not respond blocks every process that uses it."
        )],
        What::Gpu => vec!["Check the GPU (nvidia-smi, dmesg for Xid): work that was enqueued before this line has not finished.".into()],
        What::Sleep => vec!["Remove the sleep, or shorten it. If it waits for something (a file, a flag, a service), find out why that is absent, and give up before the timeout of the group.".into()],
        What::Compilation => vec!["If it is only slow: compile before ranks wait for each other, on every rank or with a shared cache, and give the group a longer timeout. If it stays here, check its compiler processes.".into()],
        What::Checkpoint => vec![format!(
            "If it is only slow: do not make other ranks wait for it, or give their group a longer timeout. If it stays here, check the file system on {host} (mount, df, dmesg)."
        )],
        What::Preparation => vec!["Prepare the data before the job, or give the group a longer timeout while it is prepared. If it stays here, check the network and its worker processes.".into()],
        What::Import => vec![format!(
            "Check the file system of the packages from {host}; an import may also wait for a lock that another importing thread holds."
        )],
        What::Unknown => vec!["Find out what this line waits for, and give it a timeout.".into()],
    }
}
