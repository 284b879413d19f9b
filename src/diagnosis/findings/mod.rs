//! The detectors, one file per finding or family of similar ones: conditions and sentences.
//!
//! To add a finding, write its page in `docs/findings` and its file here, and add it to [`ALL`].
//! Detectors do not decide which of several possible findings explains a stall:
//! [`crate::situation`] determines the origin of each stall, and [`crate::judge`] the causal order
//! of findings.

use ddp_doctor_proto::Op;
use ddp_doctor_proto::catalogue::{self, Code};
use ddp_doctor_proto::report::{Blame, Finding, Group, Role, Timestamp};

use crate::situation::Situation;

pub(crate) mod ddp;
pub(crate) mod draft;
pub(crate) mod evidence;
pub(crate) mod facts;
pub(crate) mod hang;
pub(crate) mod memory;
pub(crate) mod mismatch;
pub(crate) mod process;
pub(crate) mod speed;
pub(crate) mod startup;
pub(crate) mod view;

pub use draft::{Draft, Key, KeyPlace, Precedence, ProcessFact};
pub use view::describe;

/// A finding that the engine can report.
#[derive(Debug)]
pub struct Detector {
    /// Code, name, severity and effect.
    pub code: &'static Code,
    /// Precedence of its drafts, unless a draft has another one.
    pub precedence: Precedence,
    /// All findings of the code in a situation.
    pub detect: fn(&Situation<'_>) -> Vec<Draft>,
}

const fn row(
    code: &'static Code,
    precedence: Precedence,
    detect: fn(&Situation<'_>) -> Vec<Draft>,
) -> Detector {
    Detector {
        code,
        precedence,
        detect,
    }
}

/// All findings, ordered by code.
#[rustfmt::skip]
pub static ALL: &[Detector] = &[
    row(&catalogue::DD101, Precedence::Time, hang::missing_rank::detect),
    row(&catalogue::DD102, Precedence::Left, hang::early_exit::detect),
    row(&catalogue::DD103, Precedence::Wire, mismatch::signature::op),
    row(&catalogue::DD104, Precedence::Wire, mismatch::signature::shape),
    row(&catalogue::DD105, Precedence::Wire, mismatch::signature::dtype),
    row(&catalogue::DD106, Precedence::Wire, mismatch::signature::reduce_op),
    row(&catalogue::DD107, Precedence::Wire, mismatch::signature::root),
    row(&catalogue::DD109, Precedence::Wire, mismatch::call_order::detect),
    row(&catalogue::DD110, Precedence::Wire, mismatch::sequence_slip::detect),
    row(&catalogue::DD111, Precedence::Cycle, hang::group_order_deadlock::detect),
    row(&catalogue::DD112, Precedence::Cycle, hang::p2p_deadlock::detect),
    row(&catalogue::DD113, Precedence::Wire, hang::p2p_unmatched::detect),
    row(&catalogue::DD114, Precedence::Creation, hang::group_creation_mismatch::detect),
    row(&catalogue::DD115, Precedence::Hint, hang::unawaited_work::detect),
    row(&catalogue::DD116, Precedence::Time, hang::stuck_inside::detect),
    row(&catalogue::DD117, Precedence::Wire, hang::rank_conditional_call::detect),
    row(&catalogue::DD201, Precedence::Died, process::rank_died::detect),
    row(&catalogue::DD202, Precedence::Exception, process::rank_exception::detect),
    row(&catalogue::DD203, Precedence::Stopped, process::rank_stopped::detect),
    row(&catalogue::DD204, Precedence::Time, hang::stuck_outside::detect),
    row(&catalogue::DD205, Precedence::Wire, process::stuck_in_teardown::detect),
    row(&catalogue::DD206, Precedence::Time, hang::long_phase::detect),
    row(&catalogue::DD301, Precedence::Creation, startup::rendezvous_incomplete::detect),
    row(&catalogue::DD302, Precedence::Start, startup::duplicate_rank::detect),
    row(&catalogue::DD303, Precedence::Start, startup::world_mismatch::detect),
    row(&catalogue::DD304, Precedence::Start, startup::backend_mismatch::detect),
    row(&catalogue::DD305, Precedence::Settings, startup::version_skew::detect),
    row(&catalogue::DD306, Precedence::Settings, startup::environment_skew::detect),
    row(&catalogue::DD307, Precedence::Settings, startup::device_shared::detect),
    row(&catalogue::DD308, Precedence::Start, startup::interface_unusable::detect),
    row(&catalogue::DD401, Precedence::Wire, ddp::unused_parameters::detect),
    row(&catalogue::DD402, Precedence::Wire, ddp::unused_parameters_differ::detect),
    row(&catalogue::DD403, Precedence::Wire, ddp::ready_twice::detect),
    row(&catalogue::DD404, Precedence::Wire, ddp::model_mismatch::detect),
    row(&catalogue::DD405, Precedence::Wire, ddp::ddp_bypassed::detect),
    row(&catalogue::DD406, Precedence::Wire, ddp::no_sync_mismatch::detect),
    row(&catalogue::DD407, Precedence::Hint, ddp::needless_unused_search::detect),
    row(&catalogue::DD501, Precedence::Memory, memory::out_of_memory::detect),
    row(&catalogue::DD502, Precedence::Hint, memory::oom_forecast::detect),
    row(&catalogue::DD503, Precedence::Hint, memory::memory_creep::detect),
    row(&catalogue::DD504, Precedence::Hint, memory::fragmentation::detect),
    row(&catalogue::DD505, Precedence::Hint, memory::memory_skew::detect),
    row(&catalogue::DD506, Precedence::Memory, memory::host_memory::detect),
    row(&catalogue::DD601, Precedence::Hint, speed::straggler_compute::detect),
    row(&catalogue::DD602, Precedence::Hint, speed::straggler_input::detect),
    row(&catalogue::DD603, Precedence::Hint, speed::straggler_host::detect),
    row(&catalogue::DD604, Precedence::Hint, speed::slow_communication::detect),
    row(&catalogue::DD605, Precedence::Hint, speed::sync_bound::detect),
    row(&catalogue::DD901, Precedence::Evidence, evidence::evidence_incomplete::detect),
    row(&catalogue::DD902, Precedence::Evidence, evidence::records_lost::detect),
    row(&catalogue::DD903, Precedence::Evidence, evidence::clock_skew::detect),
    row(&catalogue::DD904, Precedence::Evidence, evidence::agent_silent::detect),
];

/// All findings in a situation.
#[must_use]
pub fn detect(situation: &Situation<'_>) -> Vec<Draft> {
    let mut drafts = Vec::new();
    for detector in ALL {
        for mut draft in (detector.detect)(situation) {
            draft.own_precedence.get_or_insert(detector.precedence);
            drafts.push(draft);
        }
    }
    drafts
}

/// The detector of a code; `None` if this version has none.
#[must_use]
pub fn detector(code: &str) -> Option<&'static Detector> {
    ALL.iter().find(|it| it.code.code == code)
}

/// The finding of a draft; `role` and `caused_by` remain to be set.
#[must_use]
pub fn finding(mut draft: Draft, situation: &Situation<'_>, detected_at: Timestamp) -> Finding {
    draft.why.extend(hang::lower_layer::why(situation, &draft));
    let place = draft.place.filter(|&(_, seq)| seq > 0);
    let lines = place.and_then(|it| view::where_lines_are_from(situation, it, &draft.per_rank));
    draft.why.extend(lines);
    let group = draft.place.map(|(group, _)| {
        let group = &situation.model.group(group).info;
        Group {
            name: group.key.name.clone(),
            description: group.description.to_string(),
            layer: group.key.layer.clone(),
            ranks: group.key.members.clone(),
        }
    });
    Finding {
        code: draft.code.code.into(),
        name: draft.code.name.into(),
        severity: draft.severity,
        effect: draft.effect,
        confidence: draft.confidence,
        role: Role::Initiating,
        caused_by: Vec::new(),
        summary: draft.summary,
        cause: draft.cause,
        ranks: Blame {
            root: draft.root,
            root_confidence: draft.root_confidence,
            victims: draft.victims,
        },
        group,
        seq: draft.place.map(|(_, seq)| seq).filter(|&seq| seq > 0),
        op: draft.op.and_then(Op::name).map(str::to_owned),
        per_rank: draft.per_rank,
        parameters: draft.parameters,
        certificate: draft.certificate,
        why: draft.why,
        next: draft.next,
        blocked_at: draft.blocked_at,
        detected_at,
        latency_ms: detected_at.since(draft.evidence_at).as_millis() as u64,
    }
}
