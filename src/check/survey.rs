//! Everything that is known about the nodes of a launch before it starts.

use ddp_doctor_node::launch::shape::Shape;

use super::facts::Facts;
use super::network::{Outcome, Port};

/// Everything that is known about the nodes of a launch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Survey {
    /// The nodes; at least this one.
    pub nodes: Vec<Node>,
    /// The launch, if it has several nodes.
    pub launch: Option<Launch>,
    /// Connections between nodes that failed.
    pub failures: Vec<Failure>,
    /// Names that a node cannot resolve: the node, and the node of that name.
    pub unresolved: Vec<(usize, usize)>,
    /// Ports of the launch that another program uses on the node where the nodes meet.
    pub ports_in_use: Vec<Port>,
    /// Addresses of peers that have another token.
    pub other_tokens: Vec<String>,
    /// Why this node knows nothing of the others.
    pub alone: Option<Alone>,
}

/// One node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Node {
    /// What it reports.
    pub facts: Facts,
    /// Ranks of its commands in the launch, as far as they are known.
    pub ranks: Vec<u32>,
    /// Number of commands that report from it.
    pub commands: u32,
    /// Its clock relative to that of the node where the nodes meet; `None`: not measured.
    pub clock: Option<Offset>,
    /// Whether its connections to others are unknown.
    pub is_unprobed: bool,
}

/// The difference between two clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offset {
    /// Nanoseconds by which the clock is ahead.
    pub ahead_ns: i64,
    /// Maximum error, in nanoseconds.
    pub error_ns: i64,
}

/// A launch of several nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// How many nodes and ranks it has.
    pub shape: Shape,
    /// Host where the nodes meet.
    pub host: String,
    /// Port of the master there.
    pub port: u16,
    /// Port of the coordinator there.
    pub coordinator_port: u16,
    /// Seconds that nodes were waited for.
    pub waited_s: u64,
}

/// A connection between two nodes that failed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Failure {
    /// Index of the node that connected.
    pub from: usize,
    /// Index of the other node.
    pub to: usize,
    /// Which port.
    pub port: Port,
    /// What happened.
    pub outcome: Outcome,
    /// Address and port.
    pub address: String,
}

/// Why a node knows nothing of the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Alone {
    /// No token; with the reason.
    Token(String),
    /// The command names no address where the nodes meet.
    NoAddress,
    /// The address where the nodes meet is every machine's own.
    Loopback,
    /// The node where the nodes meet was not reached: what happened at each port.
    Unmet(Vec<(u16, Outcome)>),
}

impl Survey {
    /// A name of a node for users.
    #[must_use]
    pub fn name(&self, node: usize) -> String {
        let Some(it) = self.nodes.get(node) else {
            return format!("node {node}");
        };
        let host = &it.facts.host;
        let same = self.nodes.iter().filter(|other| other.facts.host == *host);
        match it.ranks.first() {
            Some(rank) if same.count() > 1 => format!("{host} (node {rank})"),
            _ => host.clone(),
        }
    }

    /// Whether no node has a driver for GPUs, so that the job communicates by Gloo.
    #[must_use]
    pub fn is_without_gpus(&self) -> bool {
        let mut facts = self.nodes.iter().map(|it| &it.facts);
        facts.all(|it| it.has_unified_memory.is_none())
    }
}
