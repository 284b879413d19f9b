//! The proof of a finding.

use serde::{Deserialize, Deserializer, Serialize};

use super::{CertificateKind, Timestamp};

/// A proof: recorded facts from which the finding follows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Certificate {
    /// Form of the proof.
    pub kind: CertificateKind,
    /// The necessary facts, and no others.
    pub facts: Vec<Fact>,
}

/// The certificate; `None` if there is none, or if it has facts that only a newer version knows.
pub(super) fn if_known<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Certificate>, D::Error> {
    let value = serde_json::Value::deserialize(deserializer)?;
    Ok(serde_json::from_value(value).ok())
}

/// One recorded fact.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "fact", rename_all = "kebab-case")]
pub enum Fact {
    /// A rank issued a call.
    Issued {
        /// Global rank.
        rank: u32,
        /// Group.
        group: GroupRef,
        /// Sequence number. For a point-to-point call: its 1-based index among the rank's calls of
        /// its kind with this peer, and with this tag if tags distinguish messages, counted from a
        /// point at which both sides had made equally many.
        seq: u64,
        /// The call that it issued.
        call: CallSignature,
        /// Training step.
        step: u64,
    },
    /// In an `all_to_all`, a rank sends this many elements to a peer.
    Sends(SplitFact),
    /// In an `all_to_all`, a rank expects this many elements from a peer.
    Expects(SplitFact),
    /// A thread of a rank waits for a call that it issued.
    Waits {
        /// Global rank.
        rank: u32,
        /// Number of the thread in the process.
        thread: u32,
        /// Group.
        group: GroupRef,
        /// Sequence number, counted as in `Issued`.
        seq: u64,
        /// The call that it waits for.
        call: CallSignature,
        /// Whether the thread is the only one of the process that ever made a collective call.
        only_thread: bool,
    },
    /// The rank has issued no call in the group after `last`, and all its records were read.
    NeverIssued {
        /// Global rank.
        rank: u32,
        /// Group.
        group: GroupRef,
        /// Sequence number of the last call that it issued; 0: none.
        last: u64,
    },
    /// A rank began to create a group, and has not returned from the call.
    Creates {
        /// Global rank.
        rank: u32,
        /// Number of the thread in the process.
        thread: u32,
        /// The group that this rank requested.
        group: GroupRef,
        /// The creation blocks each participant until all members take part, as on Gloo, which
        /// connects every member with every other.
        takes_all: bool,
        /// Whether the thread is the only one of the process that ever made a collective call.
        only_thread: bool,
    },
    /// A rank has not begun to create a group, and all its records were read.
    NeverCreated {
        /// Global rank.
        rank: u32,
        /// The group that the others requested.
        group: GroupRef,
    },
    /// The rank has sent nothing to the peer in the group after `last`, or received nothing from
    /// it, and all its records were read.
    NeverPosted {
        /// Global rank.
        rank: u32,
        /// Group.
        group: GroupRef,
        /// "send" or "recv".
        op: String,
        /// Global rank of the peer.
        peer: u32,
        /// The tag, if tags distinguish messages.
        tag: Option<i32>,
        /// Index of the last send or receive, counted as in `Issued`; 0: none.
        last: u64,
    },
    /// A process began to join the world.
    Joins(JoinFact),
    /// A process has this version, this environment variable, or this GPU for its data exchange.
    Setting(SettingFact),
    /// A variable selects the network interface of a process, which sees the listed interfaces.
    Interface {
        /// Global rank.
        rank: u32,
        /// Process id.
        pid: u32,
        /// The variable that selects the interface.
        variable: String,
        /// Value of the variable.
        value: String,
        /// The interfaces that the process sees: "eth0=up,ipv4".
        seen: Vec<String>,
    },
    /// A process has ended.
    Ended {
        /// Global rank.
        rank: u32,
        /// Process id.
        pid: u32,
        /// Exit status, if it is known and no signal ended the process.
        code: Option<i32>,
        /// Signal that ended the process.
        signal: Option<i32>,
    },
    /// The kernel killed processes for lack of memory in the last moments of a process.
    OomKills {
        /// Global rank.
        rank: u32,
        /// Process id.
        pid: u32,
        /// Number of processes that it killed in the control group of the process.
        kills: u64,
        /// Number of ranks in that control group that SIGKILL ended in those moments, including
        /// this one.
        killed_ranks: u64,
    },
    /// A rank destroyed a group.
    GroupDestroyed {
        /// Global rank.
        rank: u32,
        /// Group.
        group: GroupRef,
    },
    /// A process is stopped.
    Stopped {
        /// Global rank.
        rank: u32,
        /// Process id.
        pid: u32,
    },
    /// An exception ended a rank or diverted it from its path.
    Raised {
        /// Global rank.
        rank: u32,
        /// Type and message.
        text: String,
        /// Where the exception was observed.
        seen: String,
    },
    /// A rank wrapped a model whose gradients the ranks of a group average.
    Wraps(ModelFact),
    /// A rank's replica of a model, after gradients were averaged over the ranks of a group.
    Holds(ReplicaFact),
    /// The clocks of two hosts differ.
    ClocksDiffer {
        /// The host whose clock is ahead.
        ahead: String,
        /// The other host.
        behind: String,
        /// Offset in milliseconds.
        by_ms: u64,
        /// Uncertainty of the offset, in milliseconds.
        uncertainty_ms: u64,
    },
    /// A part of the evidence is missing.
    Missing {
        /// Global rank, if known.
        rank: Option<u32>,
        /// Process id, if there is a process.
        pid: Option<u32>,
        /// Description of the missing part.
        what: String,
    },
}

/// What a rank exchanges with a peer in an `all_to_all`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SplitFact {
    /// Global rank.
    pub rank: u32,
    /// Group.
    pub group: GroupRef,
    /// Sequence number.
    pub seq: u64,
    /// Global rank of the peer.
    pub peer: u32,
    /// Number of elements.
    pub numel: u32,
}

/// A process began to join the world.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinFact {
    /// The global rank that the process claims.
    pub rank: u32,
    /// Host of the process.
    pub host: String,
    /// Process id on that host.
    pub pid: u32,
    /// Number of ranks that it expects, itself included.
    pub world_size: Option<u32>,
    /// Rendezvous address: host name or address of the master, or a URL.
    pub address: String,
    /// Port on the master's host.
    pub port: Option<u32>,
    /// The backend that it requests.
    pub backend: Option<String>,
    /// Process id of its launcher, if that starts the ranks of one world and nothing else.
    pub launcher: Option<u32>,
    /// Index of the initialization of the world in the process, from 0.
    pub nth: u32,
    /// Time the process began to join.
    pub since: Timestamp,
    /// Time the process ended; `None` while it is alive.
    pub until: Option<Timestamp>,
}

/// A process has this version, this environment variable, or this GPU for its data exchange.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettingFact {
    /// Global rank.
    pub rank: u32,
    /// Host of the process.
    pub host: String,
    /// Process id on that host.
    pub pid: u32,
    /// "nccl", "torch", …: a version; "env.NAME": an environment variable; "gpu": the GPU.
    pub name: String,
    /// The value; `None`: the variable is not set.
    pub value: Option<String>,
}

/// A rank wrapped a model whose gradients the ranks of a group average.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelFact {
    /// Global rank.
    pub rank: u32,
    /// Group.
    pub group: GroupRef,
    /// 1-based index of the model within the group, in the rank's process.
    pub model: u32,
    /// Number of parameters of the model.
    pub total: u64,
    /// Index of one parameter, from 0.
    pub index: u64,
    /// Element type and shape of that parameter; `None`: the model has no such parameter.
    pub parameter: Option<String>,
}

/// A rank's replica of a model, after gradients were averaged over the ranks of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaFact {
    /// Global rank.
    pub rank: u32,
    /// Group.
    pub group: GroupRef,
    /// Highest sequence number that the rank had issued in the group.
    pub seq: u64,
    /// 1-based index of the model within the group, in the rank's process.
    pub model: u32,
    /// Number of backward passes so far after which gradients were averaged.
    pub rounds: u64,
    /// Index of one parameter of the model, from 0.
    pub index: u64,
    /// Its element type.
    pub dtype: String,
    /// Some of its elements, as decimal numbers; every rank reports the same ones.
    pub values: Vec<String>,
}

/// Identity of a group across ranks.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct GroupRef {
    /// The layer that captured it.
    pub layer: String,
    /// Index of the initialization of the world, from 0.
    pub epoch: u32,
    /// Name of the group.
    pub name: String,
    /// Index of the creation of the same name and members, from 0.
    pub ordinal: u32,
    /// Global ranks in group order.
    pub members: Vec<u32>,
}

/// The part of a call on which peers must agree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallSignature {
    /// Name of the op.
    pub op: String,
    /// Elements of the tensor by which sizes are compared.
    pub numel: Option<u64>,
    /// Element type.
    pub dtype: Option<String>,
    /// Reduction operator.
    pub reduce_op: Option<String>,
    /// Global rank of the root, or of the peer.
    pub root: Option<u32>,
    /// Tag of a point-to-point call, if tags distinguish messages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<i32>,
}
