//! Lines of NCCL: "host:pid:tid [device] NCCL INFO …", "… file.cc:7 NCCL WARN …".

use std::sync::Arc;

use ddp_doctor_diagnosis::input::backends::NCCL;
use ddp_doctor_proto::report::Timestamp;

use super::{Facts, Statement, Subject};
use crate::logs::lines::{Label, Line};
use crate::logs::scan::{after, cut, rank, small, split, until, world_size_after};

/// Maximum length of a text that is kept.
const MAX_TEXT: usize = 1024;

/// Parts of warnings about the network.
const NETWORK: [&str; 6] = ["NET/IB", "NET/OFI", "NET/Socket", "Net : ", "socket", "ibv_"];
/// How a warning about an error of CUDA begins.
const CUDA: &str = "Cuda failure";
const SHARED_MEMORY: &str = "Make room in /dev/shm (df -h /dev/shm): docker run --shm-size, or an emptyDir with \
                             medium: Memory in Kubernetes.";
/// Other warnings, and what helps.
const KNOWN: [(&str, &str); 6] = [
    (
        "no algorithm/protocol available",
        "Unset NCCL_ALGO and NCCL_PROTO, or name algorithms that this NCCL supports between these devices.",
    ),
    (
        "Mismatched collective detected",
        "Run again with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,COLL, and analyze the output: it has the calls of \
         every rank.",
    ),
    ("/dev/shm/nccl-", SHARED_MEMORY),
    ("posix_fallocate failed", SHARED_MEMORY),
    ("Error while creating shared memory segment", SHARED_MEMORY),
    (
        "ibv_reg_mr",
        "Allow processes to lock more memory (ulimit -l unlimited), also in containers.",
    ),
];

/// The process that wrote a line, and where it runs: "gpu-7, GPU 3".
struct Writer {
    who: Subject,
    place: Arc<str>,
}

/// Reads one line.
pub(super) fn read(line: &Line<'_>, at: Timestamp, facts: &mut Facts) {
    let text = line.text;
    if let Some(rest) = after(text, "Duplicate GPU detected : rank ") {
        duplicate(rest, line, at, facts);
        return;
    }
    let Some((head, message)) = split(text, " NCCL ") else {
        return;
    };
    let Some(Writer { who, place }) = writer(head, line) else {
        return;
    };
    if let Some(warning) = message.strip_prefix("WARN ") {
        let what = warning_of(cut(warning, MAX_TEXT), place);
        facts.add(who, at, what);
        return;
    }
    if let Some(rest) = after(message, " rank ")
        && let Some(size) = world_size_after(rest, " nranks ")
        && let Some(rank) = rank(rest).filter(|&rank| rank < size)
    {
        facts.worlds.insert(size);
        facts.nccl_calls.created(&who, message);
        let bus = after(rest, " busId ").map(|it| until(it, &[' ']));
        if let Some(bus) = bus.and_then(|it| u64::from_str_radix(it, 16).ok()) {
            facts.uses_gpu(&who, bus);
        }
        let who = Subject { rank: Some(rank), ..who };
        facts.add(who, at, Statement::Named { of: Some(size) });
        return;
    }
    if message.contains(": opCount ") {
        facts.nccl_calls.called(&who, &place, message, at);
        return;
    }
    if let Some(error) = message.strip_prefix("INFO misc/socket.cc:")
        && let Some((_, reason)) = error.split_once(" -> 2 (")
    {
        let text = Arc::from(format!("a socket failed: {}", reason.trim_end_matches(')')));
        facts.add(who, at, Statement::Network { on: place, text });
        return;
    }
    if message.starts_with("INFO Using network ") {
        facts.found_network(who);
    }
}

/// Whether a line states the reason of an error that a watchdog reports: its kind, or the last error.
pub(super) fn is_reason(text: &str) -> bool {
    const ERRORS: [&str; 8] = [
        "ncclRemoteError: ",
        "ncclSystemError: ",
        "ncclInternalError: ",
        "ncclUnhandledCudaError: ",
        "ncclInvalidUsage: ",
        "Last error:",
        "socketProgress",
        "NET/",
    ];
    ERRORS.iter().any(|it| text.starts_with(it))
}

/// What a warning states.
fn warning_of(warning: &str, on: Arc<str>) -> Statement {
    let known = KNOWN.iter().find(|(part, _)| warning.contains(part));
    if let Some((_, next)) = known {
        return Statement::Reported { by: NCCL.label, on, text: warning.into(), next };
    }
    if warning.starts_with(CUDA) {
        let text = format!("{warning} ({on})").into();
        return Statement::uncaught(text);
    }
    if NETWORK.iter().any(|it| warning.contains(it)) {
        return Statement::Network { on, text: warning.into() };
    }
    Statement::Reported { by: NCCL.label, on, text: warning.into(), next: "" }
}

/// The process in "host:2303:2343 [4] file.cc:7".
fn writer(head: &str, line: &Line<'_>) -> Option<Writer> {
    let (task, head) = of_task(head);
    let (process, rest) = head.split_once(' ').unwrap_or((head, ""));
    let mut parts = process.rsplitn(3, ':');
    let (tid, pid, host) = (parts.next()?, parts.next()?, parts.next()?);
    let _: u32 = tid.parse().ok()?;
    let label = Label { task: line.label.task.or(task), ..line.label };
    let host = cut(host, 256);
    let gpu = rest
        .strip_prefix('[')
        .and_then(small)
        .map_or_else(String::new, |gpu| format!(", GPU {gpu}"));
    let place = format!("{host}{gpu}").into();
    let who =
        Subject { label, pid: Some(pid.parse().ok()?), host: Some(host.into()), ..<_>::default() };
    Some(Writer { who, place })
}

/// The task in "[3] host:2303:2343 [4]", which Intel MPI puts in front, and the rest.
fn of_task(head: &str) -> (Option<u32>, &str) {
    let split = head.strip_prefix('[').and_then(|it| it.split_once("] "));
    let task = split.and_then(|(task, rest)| {
        let is_number = !task.is_empty() && task.bytes().all(|it| it.is_ascii_digit());
        Some((rank(task).filter(|_| is_number)?, rest))
    });
    task.map_or((None, head), |(task, rest)| (Some(task), rest))
}

/// "2 and rank 0 both on CUDA device 1000".
fn duplicate(rest: &str, line: &Line<'_>, at: Timestamp, facts: &mut Facts) {
    let Some(device) = after(rest, " both on CUDA device ") else {
        return;
    };
    let device: Arc<str> = cut(until(device, &[' ']), 64).into();
    let ranks = [rank(rest), after(rest, "and rank ").and_then(rank)];
    for rank in ranks.into_iter().flatten() {
        let who = Subject {
            rank: Some(rank),
            host: writer(line.text, line).and_then(|it| it.who.host),
            ..Subject::default()
        };
        let device = Arc::clone(&device);
        facts.add(who, at, Statement::Uses { device });
    }
}
