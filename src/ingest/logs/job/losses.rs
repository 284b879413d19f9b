//! Exceptions that concern other ranks: lost connections, ended waits, and differences between ranks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use ddp_doctor_diagnosis::event::NoteText;
use ddp_doctor_diagnosis::input::backends::interface_variables;
use ddp_doctor_diagnosis::input::transport;
use ddp_doctor_diagnosis::words::{self, Ranks, number};
use ddp_doctor_proto::report::Where;

use super::Topic;
use super::rank::{CHECKPOINT, Raised};
use crate::logs::scan::after;

/// What PyTorch and Gloo report if the calls of two ranks are not alike.
const DIFFERENCES: [&str; 2] = [transport::MISMATCH, "op.preamble.length <= op.nbytes"];
/// What DDP reports if a parameter has another shape on another rank.
const OTHER_SHAPE: &str = "appears not to match sizes of the same param";

/// How NCCL begins the report of an operation of InfiniBand, RoCE or EFA that failed.
const FABRICS: [&str; 3] =
    ["Got completion from peer", "Got completion with error", "completed with error. RC:"];
/// What completion statuses of InfiniBand mean, which NCCL prints as numbers.
const STATUSES: [(&str, &str); 4] = [
    ("status=12 ", "the other side did not answer any retransmission (status 12)"),
    ("status=13 ", "the other side was not ready to receive (status 13)"),
    ("status=10 ", "the other side refused access to its memory (status 10)"),
    ("status=5 ", "an earlier error closed the queue (status 5)"),
];

/// What to do about a connection that was never made.
static CHECK_CONNECTION: LazyLock<String> = LazyLock::new(|| {
    format!(
        "Check that this process runs, that no firewall is between them, and the network interface ({}).",
        interface_variables()
    )
});

/// How an exception concerns other ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Loss {
    Connection,
    /// The network between hosts failed.
    Fabric,
    /// A connection that was never made.
    Start,
    Wait,
    /// Their calls are not alike.
    Difference,
    /// Their models are not alike.
    Models,
    /// They failed to write or read their part of a checkpoint.
    Failure,
}

/// Losses by their kinds and places, with the ranks that state them, and the exception of the first of these.
pub(super) type Lost = BTreeMap<(Loss, String), (Vec<u32>, Raised)>;

/// A note on waits of ranks that ended at different lines, some of them in a timeout: the connections that the others
/// lost may be those to ranks that gave up. `size`: the size of the world, if it is known.
pub(super) fn at_different_lines(lost: &Lost, size: Option<u32>) -> Option<NoteText> {
    let waits = || lost.iter().filter(|((loss, _), _)| loss.ends_a_wait());
    let (_, (_, first)) = waits().find(|((loss, _), _)| *loss == Loss::Wait)?;
    let places: BTreeSet<&str> =
        waits().map(|((_, place), _)| &**place).filter(|place| !place.is_empty()).collect();
    if places.len() < 2 {
        return None;
    }
    let each = waits().map(|((loss, place), (ranks, _))| {
        let what = if *loss == Loss::Wait { "gave up" } else { "lost a connection" };
        format!("{} {what}{place}", Ranks(ranks))
    });
    let clauses = each.collect::<Vec<String>>().join(", ");
    let known: BTreeSet<u32> = lost.values().flat_map(|(ranks, _)| ranks).copied().collect();
    let all = 0..size.unwrap_or(0).max(known.last().map_or(0, |highest| highest + 1));
    let silent: Vec<u32> = all.filter(|rank| !known.contains(rank)).collect();
    let others = if silent.is_empty() {
        String::new()
    } else {
        format!("; {} no error", Ranks(&silent).with("states", "state"))
    };
    // Rank 0 of a group states them.
    let is_of_group = first.text.contains("monitoredBarrier");
    let numbers = if is_of_group { ", in numbers of its group" } else { "" };
    let text = format!(
        "ranks waited for others at different lines: {clauses}{others} ({}{numbers})",
        words::short(&first.text)
    );
    Some(NoteText::new(text, advice_on_lines(&silent, size.is_some())))
}

/// What to do if ranks waited at different lines, and these other ones state nothing.
fn advice_on_lines(silent: &[u32], is_size_known: bool) -> String {
    if !silent.is_empty() {
        return format!(
            "Find out where {}: add {}. If all ranks should be at one line, compare the conditions and loops before \
             these lines.",
            Ranks(silent).with("was", "were"),
            number(silent, "its log", "their logs"),
        );
    }
    let more = if is_size_known { "" } else { " If the job has more ranks, add their logs." };
    format!(
        "Find out why these ranks are at different lines: compare the conditions and loops before these lines.{more}"
    )
}

impl Loss {
    /// Whether a wait for other ranks ended so.
    pub(super) const fn ends_a_wait(self) -> bool {
        matches!(self, Self::Wait | Self::Connection)
    }

    /// What a note on it is about.
    pub(super) const fn topic(self) -> Topic {
        match self {
            Self::Difference | Self::Models => Topic::Difference,
            _ => Topic::Loss,
        }
    }

    pub(super) fn parse(text: &str) -> Self {
        match text {
            _ if DIFFERENCES.iter().any(|it| text.contains(it)) => Self::Difference,
            _ if text.contains(OTHER_SHAPE) => Self::Models,
            _ if text.contains(CHECKPOINT) => Self::Failure,
            _ if FABRICS.iter().any(|it| text.contains(it)) => Self::Fabric,
            _ if transport::is_start(text) => Self::Start,
            _ if transport::is_loss_of_peer(text) => Self::Connection,
            _ => Self::Wait,
        }
    }

    /// What one rank did, what several did, and what to do next.
    fn words(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Connection => (
                "lost its connection to another process",
                "lost their connections to another process",
                "Find out how that process ended: add its log.",
            ),
            Self::Fabric => (
                "lost its connection to another process over the network between hosts",
                "lost their connections to other processes over the network between hosts",
                "Check that link on both hosts: cables and ports (ibstat, ibqueryerrors, dmesg), and whether the \
                 other process had ended.",
            ),
            Self::Start => (
                "could not connect to another process",
                "could not connect to other processes",
                CHECK_CONNECTION.as_str(),
            ),
            Self::Wait => (
                "stopped waiting for other ranks",
                "stopped waiting for other ranks",
                "Find out where the others were: add their logs.",
            ),
            Self::Difference => (
                "made a call that differs from that of another rank",
                "made calls that differ from those of other ranks",
                "Make the same call on all ranks.",
            ),
            Self::Models => (
                "found that its model differs from that of another rank",
                "found that their models differ from those of other ranks",
                "Build the same model on all ranks: the same parameters, in the same order.",
            ),
            Self::Failure => (
                "reports that other ranks failed",
                "report that other ranks failed",
                "Find out why they failed: add their logs.",
            ),
        }
    }

    /// What `who`, so `many` ranks, state by an exception with this text.
    pub(super) fn note(
        self,
        who: &str,
        many: usize,
        place: Option<&Where>,
        text: &str,
    ) -> NoteText {
        let (one, several, next) = self.words();
        let what = if many == 1 { one } else { several };
        // PyTorch states the difference behind both calls.
        let rest = after(text, " between collectives on ranks. ").unwrap_or(text);
        let text = after(rest, "Collectives differ in ").unwrap_or(rest);
        let (at, text) = (words::at(place), text.trim_end_matches('.'));
        let status = STATUSES
            .iter()
            .find(|it| self == Self::Fabric && text.contains(it.0))
            .map_or_else(String::new, |it| format!(", since {}", it.1));
        NoteText::new(format!("{who} {what}{at}{status}: {text}"), next)
    }
}
