//! The backends of process groups: one row for each, with everything that differs between them.
//!
//! Rules never ask for a backend by name; they ask for a property. A backend that is not in the table, or a
//! group with different backends for different devices, has the row [`UNKNOWN`], which claims nothing.
//!
//! Gloo and NCCL were measured (PyTorch 2.15 on Linux, two and three ranks; NCCL 2.28 on an H100), messages of
//! 4 elements and of 16 MB with equal results:
//!
//! | on Gloo | result |
//! |---|---|
//! | `send`, or `isend` and `wait`, without a receive | blocks, however small the message: a send is a rendezvous. `isend` itself returns at once |
//! | two ranks send to each other first, then receive | both block forever, even with one element |
//! | `isend` with tags 1 and 2, received as 2 and 1 | both messages arrive: tags distinguish messages |
//! | `send` with tags 1 and 2, received as 2 and 1 | both ranks block forever |
//! | fewer bytes than the receive expects | arrive; the rest of the tensor is unchanged |
//! | more bytes than the receive expects | abort the receiver's process; the sender succeeds |
//! | other dtype, equal number of bytes | arrive unconverted |
//! | the peer ends, or ended after an `isend` without a wait | raises "Connection closed by peer" |
//! | `recv()` from any rank | takes the first message with its tag |
//!
//! NCCL has no tags: messages between two ranks match in order, and their sizes must be equal. A small message
//! may leave before its receiver arrives, and `wait` only orders streams, so its end says nothing about the
//! message (`ncclSend` in NCCL's documentation; `ProcessGroupNCCL.cpp`).
//!
//! The other rows follow the sources: `ProcessGroupXCCL.cpp` (torch-xpu-ops), `ProcessGroupHCCL.cpp` (Ascend's
//! and Habana's), `ProcessGroupMPI.cpp`, `ProcessGroupUCC.cpp` and `FakeProcessGroup.hpp`.

use std::time::Duration;

/// PyTorch's default timeout of a group (`torch.distributed.constants`).
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30 * 60);
/// PyTorch's default timeout of a group on NCCL.
const DEFAULT_NCCL_TIMEOUT: Duration = Duration::from_secs(10 * 60);

/// What is known of a backend.
#[derive(Debug, PartialEq, Eq)]
pub struct Backend {
    /// Its name in messages.
    pub label: &'static str,
    /// PyTorch's names of it.
    names: &'static [&'static str],
    /// The kind of device for which PyTorch selects it if a program names none.
    pub default_for: Option<&'static str>,
    /// Where the completion of a call is seen, and so what the end of a wait means.
    pub completion: Completion,
    /// Which sends and receives between two ranks belong together.
    pub matching: Matching,
    /// A send waits for its receive, whatever its size.
    pub sends_wait: bool,
    /// A message that is larger than its receive aborts the process of the receiver.
    pub aborts_on_excess: bool,
    /// A call begins only after the earlier calls of the group, on the stream of its communicator.
    pub is_on_stream: bool,
    /// The pieces of an `all_gather` or `reduce_scatter` must have one size. c10d turns those of different sizes
    /// into broadcasts where a backend allows them.
    pub has_equal_pieces: bool,
    /// When the members of a group connect.
    pub connects: Connects,
    /// Timeout of a group for which the program sets none.
    pub default_timeout: Duration,
    /// A thread of the process group aborts calls at their timeout, after which the group cannot be used, unless a
    /// variable turns that off (`TORCH_NCCL_ASYNC_ERROR_HANDLING=0`).
    pub has_watchdog: bool,
    /// The variable that makes the members of a group connect in its first call instead.
    pub defers_connecting: Option<&'static str>,
    /// How it selects its network interface.
    pub interface: Option<InterfaceVariable>,
    /// The variable that selects the devices of its network below sockets: InfiniBand, RoCE.
    pub device_variable: Option<&'static str>,
    /// The part of the names of its environment variables that others do not have.
    pub variable_part: Option<&'static str>,
    /// Advice on how to find a fault below it.
    pub fault_advice: Option<&'static str>,
    /// Its name in the classes of PyTorch: `ProcessGroupNCCL`, `WorkNCCL`.
    pub class: Option<&'static str>,
    /// A name that only its own errors contain.
    pub error_name: Option<&'static str>,
    /// Prefixes of the names of the threads that a process group of it starts.
    threads: &'static [&'static str],
}

/// Where the completion of a call is seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// By the program: at the end of a wait, the call is complete or has failed.
    AtWait,
    /// On the device alone: the call and a wait for it return early, and only order streams.
    OnDevice,
    /// Calls return complete, and no peer takes part in them.
    AtOnce,
    /// Unknown.
    Unknown,
}

/// Which sends and receives between two ranks belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Matching {
    /// The n-th send and the n-th receive with the same tag.
    ByTag,
    /// The n-th send and the n-th receive.
    InOrder,
    /// In either way; it is not known which.
    Unknown,
}

/// When the members of a group connect. Each of them waits for the others until they are connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connects {
    /// While the group is created.
    AtCreation,
    /// In the first collective of the group, and in the first message of each pair of ranks, which has a
    /// communicator of its own.
    AtFirstCall,
    /// Unknown.
    Unknown,
}

/// An environment variable that selects network interfaces.
#[derive(Debug, PartialEq, Eq)]
pub struct InterfaceVariable {
    /// Name of the variable.
    pub name: &'static str,
    /// Prefixes of names are enough, and names may be excluded or exact: "eth,ens", "^docker", "=eth0". Any
    /// selected interface will do; otherwise every named one is required.
    pub by_prefix: bool,
    /// The interface if the variable is not set.
    pub default: DefaultInterface,
    /// The variable that selects the family of its addresses: `AF_INET`, `AF_INET6`.
    pub family: Option<&'static str>,
}

/// The network interface of a backend for which the user selects none.
#[derive(Debug, PartialEq, Eq)]
pub enum DefaultInterface {
    /// The one with the first address of the name of the host.
    OfHostName,
    /// The first one that is up, by prefixes of names: those that are `preferred`, all that are not `avoided`, and then
    /// each of these.
    FirstUp {
        /// Such a prefix.
        preferred: &'static str,
        /// Such prefixes.
        avoided: &'static [&'static str],
    },
}

/// What holds for every backend that claims nothing else.
const CLAIMS_NOTHING: Backend = Backend {
    label: "unknown",
    names: &[],
    default_for: None,
    completion: Completion::Unknown,
    matching: Matching::Unknown,
    sends_wait: false,
    aborts_on_excess: false,
    is_on_stream: false,
    has_equal_pieces: false,
    connects: Connects::Unknown,
    default_timeout: DEFAULT_TIMEOUT,
    has_watchdog: false,
    defers_connecting: None,
    interface: None,
    device_variable: None,
    variable_part: None,
    fault_advice: None,
    class: None,
    error_name: None,
    threads: &[],
};

/// What holds for all libraries with the interface of NCCL: calls are put on streams of a device.
const LIKE_NCCL: Backend = Backend {
    completion: Completion::OnDevice,
    matching: Matching::InOrder,
    is_on_stream: true,
    connects: Connects::AtFirstCall,
    ..CLAIMS_NOTHING
};

/// `ncclFindInterfaces` in NCCL's sources.
const NCCL_INTERFACE: InterfaceVariable = InterfaceVariable {
    name: "NCCL_SOCKET_IFNAME",
    by_prefix: true,
    default: DefaultInterface::FirstUp { preferred: "ib", avoided: &["docker", "lo"] },
    family: Some("NCCL_SOCKET_FAMILY"),
};
/// The variable with which NCCL and RCCL select InfiniBand and RoCE devices.
const NCCL_DEVICES: Option<&str> = Some("NCCL_IB_HCA");

/// Gloo.
pub static GLOO: Backend = Backend {
    label: "Gloo",
    names: &["gloo"],
    default_for: Some("cpu"),
    completion: Completion::AtWait,
    matching: Matching::ByTag,
    sends_wait: true,
    aborts_on_excess: true,
    has_equal_pieces: true,
    connects: Connects::AtCreation,
    defers_connecting: Some("TORCH_GLOO_LAZY_INIT"),
    interface: Some(InterfaceVariable {
        name: "GLOO_SOCKET_IFNAME",
        by_prefix: false,
        default: DefaultInterface::OfHostName,
        family: None,
    }),
    variable_part: Some("GLOO"),
    class: Some("Gloo"),
    error_name: Some("gloo"),
    threads: &["pt_gloo", "gloo_"],
    ..CLAIMS_NOTHING
};

/// NCCL. "nccl" is one of two implementations, depending on the version and `TORCH_DIST_USE_NCCL2`; the others
/// are chosen by name (2.15). Hooks fire for all of them.
pub static NCCL: Backend = Backend {
    label: "NCCL",
    names: &["nccl", "nccl2", "nccl-legacy", "nccl-lazy", "nccl4py"],
    default_for: Some("cuda"),
    default_timeout: DEFAULT_NCCL_TIMEOUT,
    has_watchdog: true,
    interface: Some(NCCL_INTERFACE),
    device_variable: NCCL_DEVICES,
    variable_part: Some("NCCL"),
    fault_advice: Some(
        "Check for errors of the devices (dmesg | grep -i xid; nvidia-smi -q), and run again with \
         NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET.",
    ),
    class: Some("NCCL"),
    error_name: Some("NCCL"),
    threads: &["pt_nccl"],
    ..LIKE_NCCL
};

/// RCCL under its own name. PyTorch for AMD's devices calls it "nccl" as well, and so do its variables and logs.
pub static RCCL: Backend = Backend {
    label: "RCCL",
    names: &["rccl"],
    default_timeout: DEFAULT_NCCL_TIMEOUT,
    has_watchdog: true,
    interface: Some(NCCL_INTERFACE),
    device_variable: NCCL_DEVICES,
    variable_part: Some("NCCL"),
    fault_advice: Some(
        "Check for errors of the devices (dmesg | grep -i amdgpu; amd-smi), and run again with \
         NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET.",
    ),
    class: Some("NCCL"),
    error_name: Some("RCCL"),
    ..LIKE_NCCL
};

/// Intel's oneCCL on XPUs.
pub static XCCL: Backend = Backend {
    label: "XCCL",
    names: &["xccl"],
    default_for: Some("xpu"),
    class: Some("XCCL"),
    error_name: Some("XCCL"),
    ..LIKE_NCCL
};

/// The libraries of this name for Ascend's and for Habana's devices.
pub static HCCL: Backend = Backend {
    label: "HCCL",
    names: &["hccl"],
    class: Some("HCCL"),
    error_name: Some("HCCL"),
    ..LIKE_NCCL
};

/// MPI. One thread executes the calls of a process; a small message may leave before its receive is posted.
pub static MPI: Backend = Backend {
    label: "MPI",
    names: &["mpi"],
    completion: Completion::AtWait,
    matching: Matching::ByTag,
    connects: Connects::AtCreation,
    class: Some("MPI"),
    error_name: Some("MPI_ERR"),
    ..CLAIMS_NOTHING
};

/// UCC. A wait blocks for tensors of the host and orders streams for those of a device; whether tags distinguish
/// messages depends on the transport that it selects.
pub static UCC: Backend = Backend {
    label: "UCC",
    names: &["ucc"],
    connects: Connects::AtFirstCall,
    class: Some("UCC"),
    error_name: Some("UCC"),
    ..CLAIMS_NOTHING
};

/// PyTorch's backend for tests, in which one process stands for all ranks.
pub static FAKE: Backend =
    Backend { label: "fake", names: &["fake"], completion: Completion::AtOnce, ..CLAIMS_NOTHING };

/// Any other backend, or several for different devices.
pub static UNKNOWN: Backend = CLAIMS_NOTHING;

/// The table.
pub static ALL: [&Backend; 9] = [&GLOO, &NCCL, &RCCL, &XCCL, &HCCL, &MPI, &UCC, &FAKE, &UNKNOWN];

/// The backends whose connections between nodes a check tries before a job, in the order of its lines.
pub static CHECKED: [&Backend; 2] = [&NCCL, &GLOO];

/// The variables that select network interfaces, for advice to ranks whose backend is unknown: "A, B".
pub fn interface_variables() -> String {
    let mut names: Vec<&str> =
        ALL.iter().filter_map(|it| it.interface.as_ref()).map(|it| it.name).collect();
    names.dedup();
    names.join(", ")
}

impl Backend {
    /// The backend of a group: "gloo", or by device as "cpu:gloo,cuda:nccl", which is [`UNKNOWN`].
    pub fn of_group(name: &str) -> &'static Self {
        let mut named = Self::named_in(name);
        match named.next() {
            Some(first) if named.all(|it| it == first) => first,
            _ => &UNKNOWN,
        }
    }

    /// The backends of a group by device.
    pub fn named_in(name: &str) -> impl Iterator<Item = &'static Self> {
        name.split(',').map(|part| Self::by_name(part.rsplit(':').next().unwrap_or(part)))
    }

    /// The backends that a process may use whose program asked for this one. If it named none, those of the
    /// kinds of devices that `has_device` accepts.
    pub fn requested_by(name: &str, has_device: impl Fn(&str) -> bool) -> Vec<&'static Self> {
        if matches!(name, "" | "undefined") {
            let is_default = |it: &&Self| it.default_for.is_some_and(&has_device);
            return ALL.into_iter().filter(is_default).collect();
        }
        Self::named_in(name).collect()
    }

    /// The backend that starts threads with this name.
    pub fn of_thread(name: &str) -> Option<&'static Self> {
        let starts_it = |it: &&Self| it.threads.iter().any(|prefix| name.starts_with(prefix));
        ALL.into_iter().find(starts_it)
    }

    fn by_name(name: &str) -> &'static Self {
        let has_name =
            |it: &&&Self| it.names.iter().any(|its| its.eq_ignore_ascii_case(name.trim()));
        ALL.iter().find(has_name).copied().unwrap_or(&UNKNOWN)
    }

    /// The variables that affect its network, for advice: "A, B"; empty: none is known.
    pub fn network_variables(&self) -> String {
        let interface = self.interface.as_ref().map(|it| it.name);
        let names: Vec<&str> = interface.into_iter().chain(self.device_variable).collect();
        names.join(", ")
    }

    /// Whether calls and waits return before the call is complete.
    pub fn is_on_device(&self) -> bool {
        self.completion == Completion::OnDevice
    }

    /// PyTorch's name of it, or empty.
    pub fn name(&self) -> &'static str {
        self.names.first().copied().unwrap_or_default()
    }

    /// Whether it is in the table.
    pub fn is_known(&self) -> bool {
        *self != UNKNOWN
    }
}

impl Default for &'static Backend {
    fn default() -> Self {
        &UNKNOWN
    }
}

impl InterfaceVariable {
    /// The known variable of this name.
    pub fn by_name(name: &str) -> Option<&'static Self> {
        ALL.iter().filter_map(|it| it.interface.as_ref()).find(|it| it.name == name)
    }

    /// Whether this value of the variable selects an interface of this name.
    pub fn selects(&self, value: &str, interface: &str) -> bool {
        if !self.by_prefix {
            return value.split(',').any(|name| name.trim() == interface);
        }
        let (is_excluding, rest) = match value.strip_prefix('^') {
            Some(rest) => (true, rest),
            None => (false, value),
        };
        let (is_exact, rest) = match rest.strip_prefix('=') {
            Some(rest) => (true, rest),
            None => (false, rest),
        };
        let mut names = rest.split(',').map(str::trim);
        let is_named = names
            .any(|name| if is_exact { interface == name } else { interface.starts_with(name) });
        is_named != is_excluding
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn backends_match_by_name_and_by_device() {
        for (name, backend) in [
            ("gloo", &GLOO),
            ("cpu:gloo", &GLOO),
            ("cpu:gloo,cuda:gloo", &GLOO),
            ("nccl", &NCCL),
            ("cuda:nccl", &NCCL),
            ("nccl2", &NCCL),
            ("cuda:nccl2", &NCCL),
            ("nccl-lazy", &NCCL),
            ("nccl-legacy", &NCCL),
            ("cuda:nccl,meta:nccl2", &NCCL),
            ("rccl", &RCCL),
            ("xpu:xccl", &XCCL),
            ("npu:hccl", &HCCL),
            ("MPI", &MPI),
            ("ucc", &UCC),
            ("fake", &FAKE),
        ] {
            assert_eq!(Backend::of_group(name).label, backend.label, "{name}");
        }
        for unknown in [
            "",
            "cpu:gloo,cuda:nccl",
            "cpu:gloo,cuda:nccl2",
            "glooo",
            "ncclx",
            "nccl3",
            "nccl2:cuda",
        ] {
            assert!(!Backend::of_group(unknown).is_known(), "{unknown}");
        }
    }

    #[test]
    fn libraries_like_nccl_share_its_semantics() {
        let semantics = |it: &Backend| {
            let messages = (it.matching, it.sends_wait, it.has_equal_pieces);
            (it.completion, messages, it.is_on_stream, it.connects)
        };
        for kin in [&RCCL, &XCCL, &HCCL] {
            assert_eq!(semantics(kin), semantics(&NCCL), "{}", kin.label);
        }
        assert_eq!(NCCL.completion, Completion::OnDevice);
        assert_eq!(NCCL.matching, Matching::InOrder);
        assert!(NCCL.is_on_stream && !NCCL.sends_wait);
    }

    #[test]
    fn backend_without_a_row_claims_nothing() {
        assert_eq!(UNKNOWN.completion, Completion::Unknown);
        assert_eq!(UNKNOWN.matching, Matching::Unknown);
        assert_eq!(UNKNOWN.connects, Connects::Unknown);
        assert!(!UNKNOWN.sends_wait && !UNKNOWN.is_on_stream && !UNKNOWN.has_equal_pieces);
        assert!(UNKNOWN.interface.is_none() && UNKNOWN.fault_advice.is_none());
    }

    #[test]
    fn each_name_selects_one_row() {
        let names: Vec<&str> = ALL.iter().flat_map(|it| it.names).copied().collect();
        let labels: BTreeSet<&str> = ALL.iter().map(|it| it.label).collect();
        let devices: Vec<&str> = ALL.iter().filter_map(|it| it.default_for).collect();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
        assert_eq!(labels.len(), ALL.len());
        assert_eq!(devices.iter().collect::<BTreeSet<_>>().len(), devices.len());
    }

    #[test]
    fn variable_of_two_backends_has_one_syntax() {
        for row in ALL {
            let Some(variable) = &row.interface else { continue };
            assert_eq!(InterfaceVariable::by_name(variable.name), Some(variable));
        }
    }

    #[test]
    fn program_without_a_backend_uses_those_of_its_devices() {
        let labels = |name: &str, device: &str| -> Vec<&str> {
            let all = Backend::requested_by(name, |kind| kind == "cpu" || kind == device);
            all.iter().map(|it| it.label).collect()
        };
        assert_eq!(labels("", "cuda"), ["Gloo", "NCCL"]);
        assert_eq!(labels("undefined", "xpu"), ["Gloo", "XCCL"]);
        assert_eq!(labels("undefined", ""), ["Gloo"]);
        assert_eq!(labels("cpu:gloo,cuda:nccl", ""), ["Gloo", "NCCL"]);
        assert_eq!(labels("hccl", "cuda"), ["HCCL"]);
    }

    #[test]
    fn timeouts_are_those_of_pytorch() {
        let minutes = |name: &str| Backend::of_group(name).default_timeout.as_secs() / 60;
        assert_eq!([minutes("nccl2"), minutes("gloo"), minutes("xccl")], [10, 30, 30]);
        assert_eq!(minutes("cpu:gloo,cuda:nccl"), 30, "only for NCCL alone");
    }
}
