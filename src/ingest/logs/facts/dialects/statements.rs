//! Lines of libraries and launchers that state a failure without naming the rank that caused it. They are
//! reported with what helps.

use std::sync::Arc;

use ddp_doctor_proto::report::Timestamp;

use crate::logs::facts::{Facts, Statement, Subject};
use crate::logs::lines::Line;
use crate::logs::scan::{after, cut, until};

/// A kind of line: parts that it contains, who writes it, and what to do.
struct Known {
    parts: &'static [&'static str],
    by: &'static str,
    next: &'static str,
}

/// All kinds.
static KNOWN: [Known; 13] = [
    Known {
        parts: &["Got fatal signal from worker processes"],
        by: "vLLM",
        next: "Find the worker that ended: its exception is above this line, or its host ended it (dmesg).",
    },
    Known { parts: &["mlx5_", "Link down"], by: KERNEL, next: CHECK_LINK },
    Known { parts: &["mlx5_", " DOWN"], by: KERNEL, next: CHECK_LINK },
    Known { parts: &["mlx5_", "Port module event", "rror"], by: KERNEL, next: CHECK_LINK },
    Known {
        parts: &["nfs: server ", " not responding"],
        by: KERNEL,
        next: "Check that server and the network to it: processes that read or write its files wait until it responds.",
    },
    Known {
        parts: &["INFO: task ", " blocked for more than "],
        by: KERNEL,
        next: "Find out what that process waits for: the stack below that line names a file system, a disk or a driver.",
    },
    Known {
        parts: &["raylet", "running low on memory"],
        by: "Ray",
        next: "Ray killed a worker because its host had too little memory: run fewer processes on it, or raise \
               RAY_memory_usage_threshold.",
    },
    Known {
        parts: &["may hang in polling"],
        by: "ACCL",
        next: "Add the logs of all ranks, and examine the rank that the others poll for.",
    },
    Known {
        parts: &["|CCL_ERROR|", "can't find interface"],
        by: "oneCCL",
        next: "Name an interface in CCL_KVS_IFACE: oneCCL leaves out the loopback interface.",
    },
    Known {
        parts: &["|CCL_ERROR|"],
        by: "oneCCL",
        next: "Check that the address and the port of its store (CCL_KVS_IP_PORT) are free and can be reached.",
    },
    Known {
        parts: &["atchdog timeout (self.watchdog_timeout="],
        by: "SGLang",
        next: "Compare the stacks of all schedulers (py-spy dump), and examine the one that is not in a collective.",
    },
    Known {
        parts: &["NodeNotReady", "pod/"],
        by: "Kubernetes",
        next: "Find out why that node failed (kubectl describe node), and exclude it (kubectl cordon).",
    },
    Known {
        parts: &["Evicted", "pod/", "The node was low on resource"],
        by: "Kubernetes",
        next: "Request as much of that resource as the pod uses, so that it is placed on a node that has it.",
    },
];
/// Who writes about the network interfaces of a host, and what to do.
pub(in super::super::super) const KERNEL: &str = "the kernel";
const CHECK_LINK: &str = "Check the cable and the port of that interface (ip link, ethtool, ibstat): ranks on this host lose \
                          the others.";
/// How an event of Kubernetes states that a node failed, and what precedes the name of the node.
const NOT_READY: (&str, &str) = ("NodeNotReady", " node/");
const FAILED_NODE: &str =
    "Find out why that node failed (kubectl describe node), and exclude it (kubectl cordon).";
/// What precedes the name of a server of files.
const SERVER: &str = "nfs: server ";
/// Maximum length of a text.
const MAX_TEXT: usize = 400;

/// Reads one line.
pub(super) fn read(line: &Line<'_>, at: Timestamp, facts: &mut Facts) {
    let text = line.text;
    if text.contains(NOT_READY.0)
        && let Some(node) = after(text, NOT_READY.1)
    {
        let host = Some(cut(until(node, &[' ']), 128).into());
        let who = Subject { host, ..Subject::default() };
        facts.add(who, at, Statement::NodeFailed { by: "Kubernetes", next: FAILED_NODE });
        return;
    }
    if let Some(server) = after(text, SERVER).and_then(|it| it.trim_end().strip_suffix(" OK")) {
        facts.responds(cut(server, 128));
        return;
    }
    let mut known = KNOWN.iter();
    let Some(known) = known.find(|it| it.parts.iter().all(|part| text.contains(part))) else {
        return;
    };
    let text = Arc::from(cut(text.trim(), MAX_TEXT));
    let on = Arc::default();
    let what = Statement::Reported { by: known.by, on, text, next: known.next };
    facts.add(line.label.into(), at, what);
}

/// The server in "nfs: server 10.0.0.5 not responding, still trying", which the kernel takes back by "nfs: server 10.0.0.5
/// OK".
pub(in super::super) fn unresponsive(text: &str) -> Option<&str> {
    after(text, SERVER)?.split_once(" not responding").map(|(server, _)| server)
}
