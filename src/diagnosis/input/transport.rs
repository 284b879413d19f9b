//! Errors in the communication between ranks, by the texts of exceptions.

use crate::input::backends;

/// Layers beside the backends whose names only their own errors contain.
const LAYERS: [&str; 6] =
    ["ProcessGroup", "TCPStore", "recvValue failed", "oneCCL", "EI000", "hccl api failed"];
/// Beginnings of other exceptions of PyTorch. Programs have connections of their own, whose errors have other
/// classes in Python: `BrokenPipeError`, `ConnectionResetError`.
const CLASSES: [&str; 8] = [
    "DistNetworkError",
    "DistStoreError",
    "DistBackendError",
    "RuntimeError: Connection ",
    "RuntimeError: Broken pipe",
    "RuntimeError: Socket Timeout",
    "RuntimeError: Timed out waiting",
    "RuntimeError: Application timeout caused pair closure",
];

/// Errors of a monitored barrier that lasted too long: of rank 0, and of the ranks that then lose rank 0.
const MONITORED: [&str; 2] =
    [" failed to pass monitoredBarrier in ", " successfully reached monitoredBarrier, but "];

/// What PyTorch's comparison of calls reports.
pub const MISMATCH: &str = "Detected mismatch between collectives";

/// Whether an exception comes from the transport between ranks, so that it may be due to the failure of a peer.
pub fn is_from_transport(text: &str) -> bool {
    names_layer(text) || is_due_to_others(text)
}

/// Whether an exception of PyTorch is due to another process: it was lost, or a wait for it ended.
pub fn is_due_to_others(text: &str) -> bool {
    is_loss_of_peer(text) || is_end_of_wait(text)
}

/// Whether an exception of PyTorch states that a wait for other processes timed out or was aborted.
fn is_end_of_wait(text: &str) -> bool {
    const ENDS: [&str; 10] = [
        "Timed out waiting",
        "Socket Timeout",
        "communicator was aborted",
        "Application timeout caused pair closure",
        // HCCL: a notification, or the connection to a peer, did not come.
        "Notify register times out",
        "EI0006",
        "HCCL_E_TIMEOUT",
        "UCC_ERR_TIMED_OUT",
        "oneCCL: timeout",
        "MPI_ERR_PROC_FAILED",
    ];
    contains(text, &ENDS) && is_pytorchs(text) || contains(text, &MONITORED)
}

/// Whether an exception states that calls of ranks differ, which PyTorch compared before it made them.
pub fn is_of_comparison(text: &str) -> bool {
    text.contains(MISMATCH)
}

/// Whether an exception states that a wait lasted too long.
pub fn is_timeout(text: &str) -> bool {
    let lower = text.to_ascii_lowercase();
    contains(&lower, &["timed out", "timeout"]) || contains(text, &MONITORED)
}

/// Whether an exception of PyTorch states that a connection was never made.
pub fn is_start(text: &str) -> bool {
    const START: [&str; 4] = [
        "connectFullMesh failed",
        "client socket has",
        "socketStartConnect: Connect to",
        "socketPollConnect: connect to",
    ];
    contains(text, &START) && !is_unresolved(text)
}

/// How an exception states that the name of a host has no address: c10d tries both kinds.
const UNRESOLVED: [&str; 2] =
    ["IPv4 network addresses cannot be retrieved (gai error: ", " has no address (gai error: "];

/// Whether an exception states that the process could not resolve the name of a host.
fn is_unresolved(text: &str) -> bool {
    contains(text, &UNRESOLVED)
}

/// The text of an exception with the reason that the process logged: it could not resolve the name of a host.
pub fn unresolved(text: &str, host: &str, reason: &str) -> String {
    let (class, message) = text.split_once(": ").unwrap_or(("DistNetworkError", text));
    format!("{class}: {host}{}{reason}): {message}", UNRESOLVED[1])
}

/// Whether an exception of PyTorch states that another process closed or never opened its connection.
pub fn is_loss_of_peer(text: &str) -> bool {
    const LOST: [&str; 9] = [
        "onnection closed by peer",
        "onnection closed by remote peer",
        "onnection reset by peer",
        "onnection reset by remote peer",
        "onnection was likely closed",
        "HCCL_E_REMOTE",
        "onnection refused",
        "roken pipe",
        "remote process exited",
    ];
    let is_lost = contains(text, &LOST) && is_pytorchs(text);
    is_lost || is_start(text)
}

fn is_pytorchs(text: &str) -> bool {
    names_layer(text) || contains(text, &CLASSES)
}

fn names_layer(text: &str) -> bool {
    let mut backends = backends::ALL.iter().filter_map(|it| it.error_name);
    backends.any(|it| text.contains(it)) || contains(text, &LAYERS)
}

fn contains(text: &str, parts: &[&str]) -> bool {
    parts.iter().any(|it| text.contains(it))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_of_the_program_are_not_the_transport() {
        for text in [
            "BrokenPipeError: [Errno 32] Broken pipe",
            "ConnectionResetError: [Errno 104] Connection reset by peer",
            "ConnectionError: ('Connection aborted.', ConnectionResetError(104, 'Connection reset by peer'))",
            "TimeoutError: Timed out waiting for the lock of the cache",
            "RuntimeError: upload failed: Broken pipe",
        ] {
            assert!(!is_from_transport(text), "{text}");
        }
    }

    #[test]
    fn errors_of_layers_are_the_transport() {
        for text in [
            "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [::1]:2",
            "RuntimeError: Connection reset by peer",
            "RuntimeError: Broken pipe",
            "RuntimeError: Application timeout caused pair closure",
            "DistNetworkError: Broken pipe",
            "DistBackendError: store->get('0') got error: Connection reset by peer",
            "DistNetworkError: The client socket has timed out after 600000ms while trying to connect to (a, 1).",
            "RuntimeError: NCCL communicator was aborted on rank 1.",
            "RuntimeError: Timed out waiting 30000ms for recv operation to complete",
            "RuntimeError: [Rank 0]: Ranks 1 failed to pass monitoredBarrier in 10000 ms",
            "RuntimeError: HCCL error in wait: EI0002: The wait execution of the Notify register times out.",
            "RuntimeError: [ERROR] 2026-03-02-08:41:12.330 (PID:7, Device:0, RankID:0) ERR02200 DIST call hccl api failed.",
            "RuntimeError: UCC_ERR_TIMED_OUT in a collective of XCCL",
            "RuntimeError: [Rank 0][ProcessGroupUCC-0][COLL] failed: Connection reset by remote peer",
            "DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed.",
            "RuntimeError: [gloo/transport/tcp/pair.cc:144] Application timeout caused pair closure",
            "XlaRuntimeError: INTERNAL: NCCL operation ncclGroupEnd() failed: unhandled cuda error",
        ] {
            assert!(is_from_transport(text), "{text}");
        }
    }

    #[test]
    fn ranks_of_xla_lose_their_peers() {
        let operation = "jaxlib.xla_extension.XlaRuntimeError: INTERNAL: NCCL operation ncclGroupEnd() failed: ";
        let lost = format!("{operation}remote process exited or there was a network error.");
        assert!(is_loss_of_peer(&lost));
        assert!(!is_loss_of_peer(&format!("{operation}invalid usage.")));
    }
}
