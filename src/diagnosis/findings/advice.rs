//! Advice by code and cause.
//!
//! Advice that changes the program needs a cause. Without one, a finding says what to look at.

use ddp_doctor_proto::catalogue::Code;
use ddp_doctor_proto::report::CauseKind;

use crate::source::cause::{CauseHypothesis, Detail};

/// Advice against a cause.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Codes to which it applies; empty: all without a row of their own.
    pub codes: &'static [&'static str],
    /// Kind of the cause.
    pub kind: CauseKind,
    /// The part of the kind to which it applies.
    pub detail: Detail,
    /// The advice.
    pub text: &'static str,
}

const fn row(kind: CauseKind, detail: Detail, text: &'static str) -> Row {
    Row { codes: &[], kind, detail, text }
}

/// All advice against causes, which the documentation lists.
pub const ROWS: &[Row] = &[
    row(
        CauseKind::UnevenInputs,
        Detail::Any,
        "Agree on the number of batches before the loop (all_reduce of the length with MIN), or run the loop inside \
         Join([model]) if only DDP issues collectives in it. Ranks that share one dataset get equal numbers from \
         DistributedSampler(…, drop_last=True).",
    ),
    row(
        CauseKind::UnevenInputs,
        Detail::Loop,
        "Agree on the number of iterations before the loop (all_reduce of the length with MIN or MAX), check in each \
         iteration whether every rank has another one (all_reduce with MIN), or make the call once on every rank after \
         the loop.",
    ),
    row(
        CauseKind::RankConditional,
        Detail::Any,
        "Make the call on every rank of the group: only what needs no other rank (writing a file, printing) may depend on \
         the rank.",
    ),
    row(
        CauseKind::RankConditional,
        Detail::Loop,
        "Run the loop the same number of times on every rank: its length must not depend on the rank.",
    ),
    row(
        CauseKind::DataDependentPath,
        Detail::Loop,
        "Run the loop over the same names in the same order on every rank: gather and sort the names of all ranks first \
         (all_gather_object), and use a zero of the same shape where a rank has no value.",
    ),
    row(
        CauseKind::LocalDecision,
        Detail::Loop,
        "Agree on the number of iterations before the loop: all_reduce it, or broadcast it from one rank.",
    ),
    Row {
        codes: &["DD402"],
        kind: CauseKind::RankConditional,
        detail: Detail::Any,
        text: "Use these parameters on every rank: remove the condition on the rank, or add the output of the part that \
               uses them, multiplied by zero, to the loss.",
    },
    Row {
        codes: &["DD104"],
        kind: CauseKind::RankConditional,
        detail: Detail::Any,
        text: "Give this tensor the same size on all ranks: compute the size without the rank, or pad the tensor to the \
               largest one (all_reduce of the size with MAX).",
    },
    Row {
        codes: &["DD112"],
        kind: CauseKind::RankConditional,
        detail: Detail::Any,
        text: "Exchange this message on both sides, whatever the condition: send an empty tensor or a marker instead of \
               skipping the message, or give the receiver the same condition.",
    },
    Row {
        codes: &["DD404"],
        kind: CauseKind::RankConditional,
        detail: Detail::Any,
        text: "Build the model without a condition on the rank: the same layers, in the same order, on every rank.",
    },
    Row {
        codes: &["DD107"],
        kind: CauseKind::RankConditional,
        detail: Detail::Any,
        text: "Pass a src or dst that has one value on all members of the group: group_src=0, or \
               dist.get_global_rank(group, 0).",
    },
    row(
        CauseKind::SwallowedException,
        Detail::Handler,
        "Do not issue a collective in an exception handler: only ranks that handle an exception reach it. Catch the \
         exception, all_reduce a flag so that all ranks agree, and make the call on every rank.",
    ),
    row(
        CauseKind::RankConditional,
        Detail::Branches,
        "Issue the same calls in both branches of the condition, in the same order.",
    ),
    row(
        CauseKind::SkippedIteration,
        Detail::Any,
        "All ranks must skip the step, or none: all_reduce the flag (MAX) before acting on it, or run backward on a loss \
         of zero that is computed from the parameters, not from the batch.",
    ),
    row(
        CauseKind::SwallowedException,
        Detail::Any,
        "Do not let one rank continue alone after an exception: let it end the job, or all_reduce a flag so that \
         every rank leaves the step.",
    ),
    row(
        CauseKind::SwappedCalls,
        Detail::Any,
        "Make the calls in the same order on all ranks: sort what the loop iterates over, and use the same order in both \
         branches of a condition.",
    ),
    row(
        CauseKind::SwappedCalls,
        Detail::Completion,
        "Make the calls after all of them: let the tasks, threads or callbacks return what is to be sent, and then make the \
         calls in one order on every rank (asyncio.gather returns results in the order of its arguments).",
    ),
    row(
        CauseKind::LocalDecision,
        Detail::Any,
        "Agree on the decision before any rank acts on it: all_reduce it, or broadcast the decision of one rank.",
    ),
    row(
        CauseKind::LocalDecision,
        Detail::Awaited,
        "The other ranks wait in a collective while one decides, so they cannot agree on the decision there. Make the same \
         calls on every rank, whatever it finds, or decide before any rank waits.",
    ),
    row(
        CauseKind::LocalDecision,
        Detail::Return,
        "Make the call on every rank, with an empty tensor where a rank has no data, or agree on the decision before any \
         rank acts on it: all_reduce it.",
    ),
    row(
        CauseKind::LocalDecision,
        Detail::Clock,
        "Count steps instead of time, or let one rank read its clock and broadcast the decision before any rank acts \
         on it.",
    ),
    row(
        CauseKind::LocalDecision,
        Detail::Cache,
        "Do not cache the result of a function that issues a collective, or cache it on every rank under the same keys.",
    ),
    row(
        CauseKind::RankConditional,
        Detail::Exit,
        "Stop all ranks together: broadcast the decision of one rank, or all_reduce a flag, before any rank acts on it.",
    ),
    row(
        CauseKind::LocalDecision,
        Detail::Membership,
        "Call collectives of a group only on its members, and pass the group that the rank belongs to.",
    ),
    Row {
        codes: &["DD111"],
        kind: CauseKind::SwappedCalls,
        detail: Detail::Any,
        text: "Use the groups in the same order on every rank: sort what a loop iterates over by a key that is the same on \
               all ranks, and use the same order in both branches of a condition.",
    },
    Row {
        codes: &["DD112"],
        kind: CauseKind::SwappedCalls,
        detail: Detail::Any,
        text: "Exchange the message on both sides before the collective, or on both after it.",
    },
    Row {
        codes: &["DD112"],
        kind: CauseKind::SwappedCalls,
        detail: Detail::Exchange,
        text: "Reverse the order on one of these ranks, so that one sends while the other receives; or issue the sends and \
               receives together, and wait for them afterwards (batch_isend_irecv).",
    },
    row(
        CauseKind::DataDependentPath,
        Detail::Any,
        "Take the same path on every rank whatever its batch contains (if necessary on a dummy input, with the \
         result multiplied by zero), or agree on the \
         path by an all_reduce first.",
    ),
];

/// Advice of a finding with this code against the cause; `None`: the cause is unknown, or has none that applies.
pub(crate) fn against(code: &Code, hypothesis: &CauseHypothesis) -> Option<&'static str> {
    let kind = hypothesis.cause.kind;
    let mut rows: Vec<&Row> = ROWS.iter().filter(|it| it.kind == kind).collect();
    rows.retain(|it| it.codes.is_empty() || it.codes.contains(&code.code));
    // All ranks take the same path: what applies to one path against another does not apply.
    rows.retain(|it| !it.codes.is_empty() || !hypothesis.same_path);
    // The most particular row.
    rows.sort_by_key(|it| (it.detail != hypothesis.detail, it.codes.is_empty()));
    let applies = |it: &&Row| it.detail == Detail::Any || it.detail == hypothesis.detail;
    rows.into_iter().find(applies).map(|it| it.text)
}
