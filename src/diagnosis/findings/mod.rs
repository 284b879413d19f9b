//! The detectors, one file per finding or family of similar ones: conditions and sentences.
//!
//! To add a finding, write its page in `docs/findings` and its file here, and add its rules to
//! [`ALL`]. Detectors do not decide which of several possible findings explains a stall:
//! [`crate::situation`] determines the origin of each stall, and [`crate::causal_order`] the causal order
//! of findings.

use ddp_doctor_proto::Op;
use ddp_doctor_proto::catalogue::{self, Code};
use ddp_doctor_proto::report::{
    Blame, CertificateKind, Confidence, Effect, Finding, Group, Role, Timestamp,
};

use crate::input::align::Mismatch;
use crate::input::provenance::Dumps;
use crate::model::Process;
use crate::situation::startup::{Forming, by_place};
use crate::situation::{Breach, Situation, Stall, StallOrigin};

pub mod advice;
pub(crate) mod ddp;
pub(crate) mod devices;
pub(crate) mod draft;
pub(crate) mod facts;
pub(crate) mod gaps;
pub(crate) mod hang;
mod headline;
pub(crate) mod memory;
pub(crate) mod mismatch;
pub(crate) mod process_end;
pub(crate) mod speed;
pub(crate) mod stalls;
pub mod startup;
pub(crate) mod view;

pub use draft::{Draft, Key, KeyPlace, Precedence, ProcessFact, ReportPolicy};
pub use view::describe;

use mismatch::divergence::DivergedJoin;
use mismatch::signature::{self, Sentences};

use ReportPolicy::{Always, LeavesOpen, OnlyAsCause};
use RuleInput::{Any, Breaches, Calls, Differ, Job, Processes, Stalls, Worlds};

/// Advice where results are wrong already.
const AFTER_WRONG_RESULTS: &str =
    "Continue from an earlier checkpoint: results since then are wrong.";

/// A rule that finds one kind of finding. A code has one or several rules.
#[derive(Debug)]
pub struct Rule {
    /// Code, name, severity and effect.
    pub code: &'static Code,
    /// Precedence of its drafts.
    pub precedence: Precedence,
    /// Whether its drafts become findings.
    pub policy: ReportPolicy,
    /// What it looks at, and the drafts that follow.
    pub input: RuleInput,
}

/// What a rule looks at in a situation, with the function that makes a draft of each such thing.
#[derive(Debug)]
pub enum RuleInput {
    /// The stalls of each origin, those at the origin itself first.
    Stalls(fn(&Situation<'_>, &StallOrigin, &[&Stall]) -> Option<Draft>),
    /// Calls that meet and have this as their first difference.
    Calls(Mismatch, fn(&Situation<'_>, &'static Code, DivergedJoin<'_>) -> Option<Draft>),
    /// The same, where the rule has nothing of its own but its sentences.
    Differ(Mismatch, &'static Sentences),
    /// Each world that is forming, or failed to form.
    Worlds(fn(&Situation<'_>, &Forming<'_>) -> Option<Draft>),
    /// Breaches of DDP's contract that are of the rule's code. The function completes a draft that
    /// has what all breaches share, at least by its sentences.
    Breaches(fn(&Situation<'_>, &Breach, Draft) -> Option<Draft>),
    /// Each process.
    Processes(fn(&Situation<'_>, &Process) -> Option<Draft>),
    /// The job as a whole: the rule makes at most one draft.
    Job(fn(&Situation<'_>) -> Option<Draft>),
    /// Anything else.
    Any(fn(&Situation<'_>) -> Vec<Draft>),
}

impl Rule {
    /// All drafts of the rule in a situation. A function may be the rule of several codes: each has the
    /// drafts of its own.
    fn drafts(&self, situation: &Situation<'_>) -> Vec<Draft> {
        let model = situation.model;
        let mut drafts: Vec<Draft> = match self.input {
            Stalls(draft) => situation.by_origin(|origin, stalls| draft(situation, origin, stalls)),
            Calls(first, draft) => mismatch::divergence::first_differ(situation, first)
                .filter_map(|diverged| draft(situation, self.code, diverged))
                .collect(),
            Differ(first, about) => mismatch::divergence::first_differ(situation, first)
                .map(|diverged| signature::draft(situation, self.code, diverged, about))
                .collect(),
            Worlds(draft) => {
                by_place(model).iter().filter_map(|world| draft(situation, world)).collect()
            }
            Breaches(complete) => ddp::breach::findings(situation, self.code, complete),
            Processes(draft) => {
                model.processes.values().filter_map(|process| draft(situation, process)).collect()
            }
            Job(draft) => draft(situation).into_iter().collect(),
            Any(drafts) => drafts(situation),
        };
        drafts.retain(|draft| draft.code == self.code);
        drafts
    }
}

const fn row(
    code: &'static Code,
    precedence: Precedence,
    policy: ReportPolicy,
    input: RuleInput,
) -> Rule {
    Rule { code, precedence, policy, input }
}

/// All rules, ordered by code.
#[rustfmt::skip]
pub static ALL: &[Rule] = &[
    row(&catalogue::DD101, Precedence::Time, Always, Stalls(hang::missing_rank::draft)),
    row(&catalogue::DD101, Precedence::Cycle, Always, Any(hang::omitted_call::detect)),
    row(&catalogue::DD102, Precedence::Left, Always, Stalls(hang::early_exit::draft)),
    row(&catalogue::DD103, Precedence::Wire, Always, Differ(Mismatch::Op, &mismatch::op_mismatch::SENTENCES)),
    row(&catalogue::DD104, Precedence::Wire, Always, Differ(Mismatch::Size, &mismatch::shape_mismatch::SENTENCES)),
    row(&catalogue::DD105, Precedence::Wire, Always, Calls(Mismatch::DType, mismatch::dtype_mismatch::draft)),
    row(&catalogue::DD106, Precedence::Wire, Always, Calls(Mismatch::ReduceOp, mismatch::reduce_op_mismatch::draft)),
    row(&catalogue::DD107, Precedence::Wire, Always, Differ(Mismatch::Root, &mismatch::root_mismatch::SENTENCES)),
    row(&catalogue::DD108, Precedence::Wire, Always, Calls(Mismatch::Splits, mismatch::split_mismatch::draft)),
    row(&catalogue::DD108, Precedence::Wire, Always, Any(mismatch::totals::detect)),
    row(&catalogue::DD109, Precedence::Wire, Always, Any(mismatch::call_order::detect)),
    row(&catalogue::DD110, Precedence::Wire, Always, Any(mismatch::sequence_slip::detect)),
    row(&catalogue::DD111, Precedence::Cycle, Always, Any(hang::group_order_deadlock::detect)),
    row(&catalogue::DD112, Precedence::Cycle, Always, Any(hang::p2p_deadlock::detect)),
    row(&catalogue::DD113, Precedence::Wire, Always, Any(hang::p2p_unmatched::other_sizes)),
    row(&catalogue::DD113, Precedence::Wire, Always, Stalls(hang::p2p_unmatched::other_tag)),
    row(&catalogue::DD113, Precedence::Wire, Always, Stalls(hang::p2p_unmatched::local_numbers)),
    row(&catalogue::DD113, Precedence::Unmatched, Always, Stalls(hang::p2p_unmatched::alone)),
    row(&catalogue::DD114, Precedence::Creation, Always, Any(hang::group_creation_mismatch::detect)),
    row(&catalogue::DD114, Precedence::Creation, Always, Stalls(hang::missing_rank::draft)),
    row(&catalogue::DD114, Precedence::Creation, Always, Any(hang::group_order_deadlock::detect)),
    row(&catalogue::DD115, Precedence::Wire, Always, Any(mismatch::call_order::detect)),
    row(&catalogue::DD115, Precedence::Hint, Always, Any(hang::unawaited_work::detect)),
    row(&catalogue::DD116, Precedence::Time, Always, Any(hang::stuck_inside::detect)),
    row(&catalogue::DD116, Precedence::Hint, Always, Job(hang::stuck_message::detect)),
    row(&catalogue::DD117, Precedence::Wire, Always, Any(hang::rank_conditional_call::detect)),
    row(&catalogue::DD201, Precedence::Died, Always, Processes(process_end::rank_died::draft)),
    row(&catalogue::DD201, Precedence::Died, Always, Any(process_end::unplaced_failure::ends)),
    row(&catalogue::DD202, Precedence::Exception, Always, Any(process_end::rank_exception::detect)),
    row(&catalogue::DD202, Precedence::Exception, Always, Any(process_end::unplaced_failure::exceptions)),
    row(&catalogue::DD203, Precedence::Stopped, Always, Any(process_end::rank_stopped::detect)),
    row(&catalogue::DD204, Precedence::Time, Always, Stalls(hang::stuck_outside::draft)),
    row(&catalogue::DD204, Precedence::Time, Always, Job(hang::only_outside::detect)),
    row(&catalogue::DD205, Precedence::Wire, Always, Any(process_end::stuck_in_teardown::detect)),
    row(&catalogue::DD206, Precedence::Time, Always, Stalls(hang::long_phase::draft)),
    row(&catalogue::DD301, Precedence::Creation, Always, Worlds(startup::rendezvous_incomplete::draft)),
    row(&catalogue::DD302, Precedence::Start, Always, Any(startup::duplicate_rank::detect)),
    row(&catalogue::DD303, Precedence::Start, Always, Any(startup::world_mismatch::detect)),
    row(&catalogue::DD304, Precedence::Start, Always, Worlds(startup::backend_mismatch::draft)),
    row(&catalogue::DD305, Precedence::Settings, Always, Any(startup::version_skew::detect)),
    row(&catalogue::DD306, Precedence::Settings, Always, Any(startup::environment_skew::detect)),
    row(&catalogue::DD307, Precedence::Settings, Always, Any(startup::device_shared::detect)),
    row(&catalogue::DD308, Precedence::Start, Always, Any(startup::interface_unusable::detect)),
    row(&catalogue::DD401, Precedence::Wire, Always, Breaches(ddp::unused_parameters::complete_draft)),
    row(&catalogue::DD402, Precedence::Wire, Always, Breaches(ddp::unused_parameters_differ::complete_draft)),
    row(&catalogue::DD403, Precedence::Wire, Always, Breaches(ddp::ready_twice::complete_draft)),
    row(&catalogue::DD404, Precedence::Wire, Always, Breaches(ddp::model_mismatch::complete_draft)),
    row(&catalogue::DD405, Precedence::Wire, Always, Breaches(ddp::ddp_bypassed::complete_draft)),
    row(&catalogue::DD406, Precedence::Wire, Always, Breaches(ddp::no_sync_mismatch::complete_draft)),
    row(&catalogue::DD407, Precedence::Hint, Always, Any(ddp::needless_unused_search::detect)),
    row(&catalogue::DD501, Precedence::Memory, Always, Any(memory::out_of_memory::ended)),
    row(&catalogue::DD501, Precedence::Memory, OnlyAsCause, Processes(memory::out_of_memory::caught)),
    row(&catalogue::DD501, Precedence::Memory, Always, Processes(memory::out_of_memory::filled)),
    row(&catalogue::DD502, Precedence::Hint, Always, Job(memory::oom_forecast::detect)),
    row(&catalogue::DD503, Precedence::Hint, Always, Job(memory::memory_creep::detect)),
    row(&catalogue::DD504, Precedence::Hint, Always, Job(memory::fragmentation::detect)),
    row(&catalogue::DD505, Precedence::Hint, Always, Job(memory::memory_skew::detect)),
    row(&catalogue::DD506, Precedence::Memory, Always, Processes(memory::host_memory::killed)),
    row(&catalogue::DD506, Precedence::Hint, Always, Job(memory::host_memory::forecast)),
    row(&catalogue::DD601, Precedence::Hint, Always, Job(speed::straggler_compute::draft)),
    row(&catalogue::DD602, Precedence::Hint, Always, Job(speed::straggler_input::draft)),
    row(&catalogue::DD603, Precedence::Hint, Always, Job(speed::straggler_host::draft)),
    row(&catalogue::DD604, Precedence::Hint, Always, Any(speed::slow_communication::detect)),
    row(&catalogue::DD605, Precedence::Hint, Always, Any(speed::sync_bound::detect)),
    row(&catalogue::DD701, Precedence::Wire, Always, Any(ddp::replica_divergence::detect)),
    row(&catalogue::DD801, Precedence::Settings, Always, Any(devices::gpu_fault::detect)),
    row(&catalogue::DD802, Precedence::Hint, Always, Any(devices::gpu_slowed::detect)),
    row(&catalogue::DD803, Precedence::Settings, Always, Any(devices::link_fault::detect)),
    row(&catalogue::DD901, Precedence::Evidence, LeavesOpen, Any(gaps::evidence_incomplete::notes_about_ranks)),
    row(&catalogue::DD901, Precedence::Evidence, Always, Any(gaps::evidence_incomplete::other_notes)),
    row(&catalogue::DD901, Precedence::Evidence, LeavesOpen, Any(gaps::evidence_incomplete::notes_of_logs)),
    row(&catalogue::DD901, Precedence::Evidence, LeavesOpen, Job(gaps::evidence_incomplete::unseen_ranks)),
    row(&catalogue::DD901, Precedence::Evidence, Always, Job(gaps::evidence_incomplete::nothing_seen)),
    row(&catalogue::DD901, Precedence::Evidence, LeavesOpen, Job(gaps::evidence_incomplete::unwatched_ends)),
    row(&catalogue::DD901, Precedence::Hint, LeavesOpen, Job(gaps::unexplained_wait::detect)),
    row(&catalogue::DD901, Precedence::Hint, LeavesOpen, Job(gaps::still_ranks::detect)),
    row(&catalogue::DD902, Precedence::Evidence, Always, Job(gaps::records_lost::draft)),
    row(&catalogue::DD903, Precedence::Evidence, Always, Job(gaps::clock_skew::detect)),
    row(&catalogue::DD904, Precedence::Evidence, Always, Any(gaps::agent_silent::detect)),
];

/// All drafts of these rules in a situation. The rules of a code are side by side; a finding that several of them
/// make belongs to the first.
pub fn detect(rules: &[Rule], situation: &Situation<'_>) -> Vec<Draft> {
    let mut found: Vec<Draft> = Vec::new();
    // Clocks of hosts that cannot be compared make ranks appear late.
    let is_dumped = situation.config.provenance.dumps().is_some();
    let is_about_time = |code: &str| code.starts_with("DD6") || code == catalogue::DD903.code;
    let rules = rules.chunk_by(|a, b| a.code == b.code);
    for rules in rules.filter(|it| !is_dumped || !is_about_time(it[0].code.code)) {
        let earlier = found.len();
        for rule in rules {
            let mut drafts = rule.drafts(situation);
            drafts.retain(|draft| {
                let mut known = found[earlier..].iter();
                !known.any(|it| it.policy != OnlyAsCause && it.key == draft.key)
            });
            let Rule { precedence, policy, .. } = *rule;
            found.extend(drafts.into_iter().map(|draft| Draft { precedence, policy, ..draft }));
        }
    }
    found
}

/// Limits a draft to what dumps show: calls that disagree are recorded on both sides, waits are not.
fn limit(draft: &mut Draft, dumps: &Dumps) {
    let kind = draft.certificate.as_ref().map(|it| it.kind);
    let is_recorded =
        matches!(kind, Some(CertificateKind::UnsatisfiableJoin | CertificateKind::Contradiction));
    if is_recorded || catalogue::is_gap(draft.code.code) || draft.code.code == catalogue::DD108.code
    {
        return;
    }
    draft.certificate = None;
    let mut most = Confidence::Supported;
    if !dumps.are_lasting {
        draft.say("The dumps do not show how long this lasted: the job may still be running.");
        most = Confidence::Suspected;
    }
    draft.confidence = draft.confidence.min(most);
    draft.root_confidence = draft.root_confidence.min(most);
}

/// Whether this version detects the code.
pub fn detects(code: &str) -> bool {
    ALL.iter().any(|it| it.code.code == code)
}

/// The finding of a draft; `caused_by` remains to be set.
pub fn finding(mut draft: Draft, situation: &Situation<'_>, detected_at: Timestamp) -> Finding {
    draft.per_rank.sort_by_key(|call| call.rank);
    for call in &mut draft.per_rank {
        let process = situation.model.process_of(call.rank);
        call.step = call.step.map(|step| process.map_or(step, |it| it.optimizer.at(step)));
    }
    if let Some(dumps) = situation.config.provenance.dumps() {
        limit(&mut draft, dumps);
    }
    draft.why.extend(stalls::lower_layer::why(situation, &draft));
    draft.why.extend(view::where_lines_are_from(situation, &draft));
    let info = draft.place.map(|(group, _)| &situation.model.group(group).info);
    let is_numbered = info.is_none_or(|info| !info.unstated.numbers);
    let group = info.filter(|info| !info.unstated.name).map(|info| Group {
        name: info.key.name.clone(),
        description: info.description.to_string(),
        layer: info.key.layer.clone(),
        ranks: if info.unstated.members { Vec::new() } else { info.key.members.clone() },
    });
    let headline = headline::write(situation, &draft);
    if draft.effect == Effect::Corrupts && !draft.next.iter().any(|it| it.contains("checkpoint")) {
        draft.next.push(AFTER_WRONG_RESULTS.into());
    }
    Finding {
        code: draft.code.code.into(),
        name: draft.code.name.into(),
        severity: draft.severity,
        effect: draft.effect,
        confidence: draft.confidence,
        role: if draft.caused_by.is_some() { Role::Cascade } else { Role::Initiating },
        attempt: draft.attempt.index,
        caused_by: Vec::new(),
        headline: Some(headline),
        summary: draft.summary,
        cause: draft.code.states_cause().then(|| draft.cause.unwrap_or_default()),
        ranks: Blame {
            root: draft.root,
            root_confidence: draft.root_confidence,
            victims: draft.victims,
        },
        group,
        seq: draft.place.map(|(_, seq)| seq).filter(|&seq| seq > 0 && is_numbered),
        op: draft.op.and_then(Op::name).map(str::to_owned),
        per_rank: draft.per_rank,
        parameters: draft.parameters,
        certificate: draft.certificate,
        why: draft.why,
        next: draft.next,
        blocked_at: draft.blocked_at,
        held: draft.held,
        detected_at,
        latency_ms: detected_at.since(draft.evidence_at).as_millis() as u64,
    }
}
