//! The detectors, one file per finding: its catalogue entry, conditions, sentences and tests.
//!
//! To add a finding, write its page in `docs/findings` and its file here, with an [`About`] and a
//! [`Detector`], and add it to [`ALL`].
//! Detectors do not decide which of several possible findings explains a stall:
//! [`super::situation`] determines the origin of each stall, and [`super::judge`] the causal order
//! of findings.

use ddp_doctor_proto::Op;
use ddp_doctor_proto::catalogue::Code;
use ddp_doctor_proto::report::{
    Blame, CallSignature, Cause, Certificate, Confidence, Effect, Fact, Finding, Group, Parameter,
    RankCall, Role, Severity, Timestamp, Where,
};

use super::cause::{self, Reading};
use super::certificate;
use super::event::Call;
use super::model::{GroupId, Matching, Transport};
use super::situation::Situation;

mod absent;
mod agent_silent;
mod backend_mismatch;
mod breach;
mod call_order;
mod clock_skew;
mod cycle;
mod ddp_bypassed;
mod device_shared;
mod divergence;
mod dtype_mismatch;
mod duplicate_rank;
mod early_exit;
mod environment_skew;
mod evidence_incomplete;
mod fragmentation;
mod group_creation_mismatch;
mod group_order_deadlock;
mod host_memory;
mod interface_unusable;
mod joining;
mod long_phase;
mod lower_layer;
mod memory_creep;
mod memory_skew;
mod message;
mod missing_rank;
mod model_mismatch;
mod needless_unused_search;
mod no_sync_mismatch;
mod oom_forecast;
mod op_mismatch;
mod out_of_memory;
mod p2p_deadlock;
mod p2p_unmatched;
mod rank_conditional_call;
mod rank_died;
mod rank_exception;
mod rank_stopped;
mod ready_twice;
mod records_lost;
mod reduce_op_mismatch;
mod rendezvous_incomplete;
mod root_mismatch;
mod sequence_slip;
mod shape_mismatch;
mod skew;
mod slow_communication;
mod straggler;
mod straggler_compute;
mod straggler_host;
mod straggler_input;
mod stuck_in_teardown;
mod stuck_inside;
mod stuck_outside;
mod sync_bound;
mod unawaited_work;
mod unused_parameters;
mod unused_parameters_differ;
mod version_skew;
mod view;
mod world_mismatch;

pub use out_of_memory::lead;
pub use view::{describe, rank_calls};

/// All detectors, ordered by code.
pub const ALL: &[&dyn Detector] = &[
    &missing_rank::MissingRank,
    &early_exit::EarlyExit,
    &op_mismatch::OpMismatch,
    &shape_mismatch::ShapeMismatch,
    &dtype_mismatch::DTypeMismatch,
    &reduce_op_mismatch::ReduceOpMismatch,
    &root_mismatch::RootMismatch,
    &call_order::CallOrder,
    &sequence_slip::SequenceSlip,
    &group_order_deadlock::GroupOrderDeadlock,
    &p2p_deadlock::P2pDeadlock,
    &p2p_unmatched::P2pUnmatched,
    &group_creation_mismatch::GroupCreationMismatch,
    &unawaited_work::UnawaitedWork,
    &stuck_inside::StuckInside,
    &rank_conditional_call::RankConditionalCall,
    &rank_died::RankDied,
    &rank_exception::RankException,
    &rank_stopped::RankStopped,
    &stuck_outside::StuckOutside,
    &stuck_in_teardown::StuckInTeardown,
    &long_phase::LongPhase,
    &rendezvous_incomplete::RendezvousIncomplete,
    &duplicate_rank::DuplicateRank,
    &world_mismatch::WorldMismatch,
    &backend_mismatch::BackendMismatch,
    &version_skew::VersionSkew,
    &environment_skew::EnvironmentSkew,
    &device_shared::DeviceShared,
    &interface_unusable::InterfaceUnusable,
    &unused_parameters::UnusedParameters,
    &unused_parameters_differ::UnusedParametersDiffer,
    &ready_twice::ReadyTwice,
    &model_mismatch::ModelMismatch,
    &ddp_bypassed::DdpBypassed,
    &no_sync_mismatch::NoSyncMismatch,
    &needless_unused_search::NeedlessUnusedSearch,
    &out_of_memory::OutOfMemory,
    &oom_forecast::OomForecast,
    &memory_creep::MemoryCreep,
    &fragmentation::Fragmentation,
    &memory_skew::MemorySkew,
    &host_memory::HostMemory,
    &straggler_compute::StragglerCompute,
    &straggler_input::StragglerInput,
    &straggler_host::StragglerHost,
    &slow_communication::SlowCommunication,
    &sync_bound::SyncBound,
    &evidence_incomplete::EvidenceIncomplete,
    &records_lost::RecordsLost,
    &clock_skew::ClockSkew,
    &agent_silent::AgentSilent,
];

/// Detects the findings of one code.
pub trait Detector: Sync {
    /// The catalogue entry of its findings.
    fn about(&self) -> &'static About;

    /// All findings of its code in this situation.
    fn detect(&self, situation: &Situation<'_>) -> Vec<Draft>;
}

/// A finding's entry in the catalogue, and its priority.
#[derive(Debug)]
pub struct About {
    /// Code, name, severity and effect.
    pub code: &'static Code,
    /// Priority as the initiating finding, one of [`order`]: the lowest value leads.
    pub order: u8,
}

/// The entry of a code; `None` if this version has no detector for it.
#[must_use]
pub fn about(code: &str) -> Option<&'static About> {
    let mut abouts = ALL.iter().map(|detector| detector.about());
    abouts.find(|about| about.code.code == code)
}

/// Priorities of findings; the lowest one leads.
pub mod order {
    /// A rank ran out of memory.
    pub const MEMORY: u8 = 5;
    /// An exception ended a rank, or made it leave the path of the others.
    pub const EXCEPTION: u8 = 10;
    /// A rank died.
    pub const DIED: u8 = 20;
    /// A rank is stopped.
    pub const STOPPED: u8 = 30;
    /// A rank ended in order.
    pub const LEFT: u8 = 40;
    /// Calls that disagree.
    pub const WIRE: u8 = 50;
    /// Cycles of waits.
    pub const CYCLE: u8 = 60;
    /// Ranks that disagree about the world that they form.
    pub const START: u8 = 65;
    /// Incomplete creation of a group or of the world.
    pub const CREATION: u8 = 70;
    /// Point-to-point calls without a partner.
    pub const UNMATCHED: u8 = 80;
    /// Stalls that are reported once they have lasted long enough.
    pub const TIME: u8 = 90;
    /// Hints, withheld while a finding with an effect and a higher priority exists.
    pub const HINT: u8 = 95;
    /// Settings that must be equal on all ranks, or different on each. They explain a rank's end
    /// only if it is among their victims or its finding names them in [`super::Draft::follows`].
    pub const SETTINGS: u8 = 100;
    /// Notes about the evidence.
    pub const EVIDENCE: u8 = 110;
}

/// Identity of a finding over time: two evaluations report the same finding if the keys are equal.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// Code of the finding.
    pub code: &'static str,
    /// Distinguishes findings of one code.
    pub place: KeyPlace,
}

/// The part of a key that distinguishes findings of one code.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum KeyPlace {
    /// A group and a sequence number in it.
    Join(GroupId, u64),
    /// A point-to-point call in a group, with its sender and receiver if known.
    Channel(GroupId, Option<u32>, Option<u32>),
    /// A set of ranks.
    Ranks(Vec<u32>),
    /// A rank and the PID of its process.
    Process(u32, u32),
    /// A line of the program.
    Line(Where),
    /// The job.
    Job,
}

/// A finding before [`super::judge`] has determined its role in the causal order.
#[derive(Clone, Debug)]
pub struct Draft {
    /// Catalogue entry and priority.
    pub about: &'static About,
    /// Identity over time.
    pub key: Key,
    /// Severity; that of the code by default.
    pub severity: Severity,
    /// Effect on the job; that of the code by default.
    pub effect: Effect,
    /// Confidence in the facts: `Proved` only with a certificate.
    pub confidence: Confidence,
    /// The proof, if there is one.
    pub certificate: Option<Certificate>,
    /// Root cause ranks.
    pub root: Vec<u32>,
    /// Confidence that `root` is right.
    pub root_confidence: Confidence,
    /// Ranks that are affected without having caused it.
    pub victims: Vec<u32>,
    /// Group and sequence number of the call concerned; number 0: none.
    pub place: Option<(GroupId, u64)>,
    /// Operation of the call concerned.
    pub op: Option<Op>,
    /// Calls of the ranks concerned.
    pub per_rank: Vec<RankCall>,
    /// Parameters of the model concerned.
    pub parameters: Vec<Parameter>,
    /// What happened, in one sentence.
    pub summary: String,
    /// The reasoning, one paragraph each.
    pub why: Vec<String>,
    /// Advice, one paragraph each.
    pub next: Vec<String>,
    /// Hypothesis why it happened.
    pub cause: Option<Cause>,
    /// Time at which the first rank began to wait because of it.
    pub blocked_at: Option<Timestamp>,
    /// Time from which the evidence sufficed for the finding.
    pub evidence_at: Timestamp,
    /// The fact about a rank's process that this finding states.
    pub fact: Option<ProcessFact>,
    /// Predicate that follows the rank in a sentence ("raised …"). Findings of one code with equal
    /// events and causes are merged.
    pub event: Option<String>,
    /// Key of the finding that this one follows from, if that exists.
    pub follows: Option<Key>,
    /// Without this evidence the job cannot be judged: an error unless some finding has an effect.
    pub leaves_open: bool,
    /// Dropped unless another finding follows from it.
    pub only_as_cause: bool,
}

/// A fact about a rank's process, for the causal order.
#[derive(Clone, Copy, Debug)]
pub struct ProcessFact {
    /// The rank.
    pub rank: u32,
    /// Time of the event.
    pub at: Timestamp,
    /// The signal that ended the process.
    pub signal: Option<i32>,
    /// A communication call reported it, which it also does if a peer fails.
    pub from_communication: bool,
}

impl Draft {
    /// A draft with severity and effect of its code; all else is empty.
    #[must_use]
    pub fn new(about: &'static About, place: KeyPlace, evidence_at: Timestamp) -> Self {
        Self {
            about,
            key: Key {
                code: about.code.code,
                place,
            },
            severity: about.code.severity,
            effect: about.code.effect,
            confidence: Confidence::Supported,
            certificate: None,
            root: Vec::new(),
            root_confidence: Confidence::Suspected,
            victims: Vec::new(),
            place: None,
            op: None,
            per_rank: Vec::new(),
            parameters: Vec::new(),
            summary: String::new(),
            why: Vec::new(),
            next: Vec::new(),
            cause: None,
            blocked_at: None,
            evidence_at,
            fact: None,
            event: None,
            follows: None,
            leaves_open: false,
            only_as_cause: false,
        }
    }

    /// Attaches a certificate and raises the confidence to `Proved`, if the checker accepts it.
    #[must_use]
    pub fn proved_by(mut self, proof: Option<Certificate>) -> Self {
        let proof = proof.filter(|proof| {
            let verdict = certificate::check(proof);
            debug_assert!(
                verdict.is_ok(),
                "{}: {verdict:?} {proof:?}",
                self.about.code.code
            );
            verdict.is_ok()
        });
        if proof.is_some() {
            self.confidence = Confidence::Proved;
            self.certificate = proof;
        }
        self
    }

    /// Sets the cause, appends its reason to `why`, and puts its advice first in `next`.
    pub fn explain(&mut self, reading: Reading) {
        self.why.extend(reading.because);
        let advice = cause::advice(reading.cause).map(str::to_owned);
        self.next.splice(0..0, advice);
        self.cause = Some(reading.cause);
    }

    /// The finding; `role` and `caused_by` remain to be set.
    #[must_use]
    pub fn into_finding(mut self, situation: &Situation<'_>, detected_at: Timestamp) -> Finding {
        self.why.extend(lower_layer::why(situation, &self));
        let place = self.place.filter(|&(_, seq)| seq > 0);
        let lines = place.and_then(|it| view::where_lines_are_from(situation, it, &self.per_rank));
        self.why.extend(lines);
        let group = self.place.map(|(group, _)| {
            let group = &situation.model.group(group).info;
            Group {
                name: group.key.name.clone(),
                description: group.description.to_string(),
                layer: group.key.layer.clone(),
                ranks: group.key.members.clone(),
            }
        });
        Finding {
            code: self.about.code.code.into(),
            name: self.about.code.name.into(),
            severity: self.severity,
            effect: self.effect,
            confidence: self.confidence,
            role: Role::Initiating,
            caused_by: Vec::new(),
            summary: self.summary,
            cause: self.cause,
            ranks: Blame {
                root: self.root,
                root_confidence: self.root_confidence,
                victims: self.victims,
            },
            group,
            seq: self.place.map(|(_, seq)| seq).filter(|&seq| seq > 0),
            op: self.op.and_then(Op::name).map(str::to_owned),
            per_rank: self.per_rank,
            parameters: self.parameters,
            certificate: self.certificate,
            why: self.why,
            next: self.next,
            blocked_at: self.blocked_at,
            detected_at,
            latency_ms: detected_at.since(self.evidence_at).as_millis() as u64,
        }
    }
}

/// Signature of a call, for a certificate.
#[must_use]
pub fn signature(call: &Call) -> CallSignature {
    CallSignature {
        op: call.op.to_string(),
        numel: super::align::size(call),
        dtype: call.dtype.name().map(str::to_owned),
        reduce_op: call.told_reduce_op().name().map(str::to_owned),
        root: call.root.or(call.peer),
        tag: call.tag.filter(|_| {
            let group = call.group.as_ref();
            group.is_some_and(|group| Transport::of(&group.backend).matching == Matching::ByTag)
        }),
    }
}

/// The fact that a rank began to create a group; `None` if the call creates none.
#[must_use]
pub fn creates(rank: u32, call: &Call, only_thread: bool) -> Option<Fact> {
    let group = call.group.as_ref().filter(|_| call.op.creates_group())?;
    Some(Fact::Creates {
        rank,
        thread: call.thread.0,
        group: group.key.clone(),
        takes_all: call.takes_all,
        only_thread,
    })
}

/// The fact that a rank issued a call.
#[must_use]
pub fn issued(rank: u32, call: &Call) -> Option<Fact> {
    Some(Fact::Issued {
        rank,
        group: call.group.as_ref()?.key.clone(),
        seq: call.seq,
        call: signature(call),
        step: call.step,
    })
}
