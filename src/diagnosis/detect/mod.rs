//! The findings, one file each: what it says, when it holds, its words, its tests.
//!
//! To add a finding: write its page in `docs/findings`, its file here, with an [`About`] and a [`Detector`],
//! and name it in [`ALL`].
//! Which finding a stall leads to when several could fit is not decided here but where all of them
//! are in view: [`super::situation`] finds what a stall comes from, [`super::judge`] puts findings
//! in their causal order.

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
mod beneath;
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
pub(crate) mod view;
mod world_mismatch;

pub use out_of_memory::lead;
pub use view::rank_calls;

/// Every detector, by code.
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

/// Finds one kind of thing.
pub trait Detector: Sync {
    /// What it finds.
    fn about(&self) -> &'static About;

    /// Everything of that kind that holds in this situation.
    fn detect(&self, situation: &Situation<'_>) -> Vec<Draft>;
}

/// A finding's entry in the catalogue, and its place among others.
#[derive(Debug)]
pub struct About {
    /// Code, name, and what they always imply.
    pub code: &'static Code,
    /// Its place when several findings could be the initiating one: the lower leads.
    pub order: u8,
}

/// What is known of a code; `None` where this version does not look for it.
#[must_use]
pub fn about(code: &str) -> Option<&'static About> {
    let mut abouts = ALL.iter().map(|detector| detector.about());
    abouts.find(|about| about.code.code == code)
}

/// The places in the order of initiating findings.
pub mod order {
    /// A rank's memory ran out.
    pub const MEMORY: u8 = 5;
    /// An exception ended or diverted a rank.
    pub const EXCEPTION: u8 = 10;
    /// A rank died.
    pub const DIED: u8 = 20;
    /// A rank is stopped.
    pub const STOPPED: u8 = 30;
    /// A rank ended in order.
    pub const LEFT: u8 = 40;
    /// What met on the wire.
    pub const WIRE: u8 = 50;
    /// Cycles of waits.
    pub const CYCLE: u8 = 60;
    /// Worlds whose ranks do not agree.
    pub const START: u8 = 65;
    /// The making of groups.
    pub const CREATION: u8 = 70;
    /// Calls without a partner.
    pub const UNMATCHED: u8 = 80;
    /// What needs time to pass.
    pub const TIME: u8 = 90;
    /// What goes wrong quietly, and is told only while nothing else goes wrong.
    pub const HINT: u8 = 95;
    /// What ranks should have alike, or each for itself: it stands beside whatever else is found, which
    /// follows from it only where that says so itself.
    pub const SETTINGS: u8 = 100;
    /// What is said about the evidence.
    pub const EVIDENCE: u8 = 110;
}

/// Names a finding over time: what has the same key is the same finding, refined.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// Its code.
    pub code: &'static str,
    /// Where it is.
    pub place: KeyPlace,
}

/// The part of a key that tells findings of one code apart.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum KeyPlace {
    /// A place in a group.
    Join(GroupId, u64),
    /// A point-to-point call in a group: its sender and its receiver, where they are known.
    Channel(GroupId, Option<u32>, Option<u32>),
    /// A set of ranks.
    Ranks(Vec<u32>),
    /// A process of a rank.
    Process(u32, u32),
    /// A line of the program.
    Line(Where),
    /// The job.
    Job,
}

/// A finding before it has a place in the causal chain.
#[derive(Clone, Debug)]
pub struct Draft {
    /// Its code and what belongs to that.
    pub about: &'static About,
    /// Its name over time.
    pub key: Key,
    /// How bad.
    pub severity: Severity,
    /// What it does.
    pub effect: Effect,
    /// How sure the fact is, certificate aside.
    pub confidence: Confidence,
    /// The proof, if there is one.
    pub certificate: Option<Certificate>,
    /// Who did it.
    pub root: Vec<u32>,
    /// How sure that is.
    pub root_confidence: Confidence,
    /// Who suffers.
    pub victims: Vec<u32>,
    /// The place in a group it is about.
    pub place: Option<(GroupId, u64)>,
    /// The collective at its centre.
    pub op: Option<Op>,
    /// Both sides.
    pub per_rank: Vec<RankCall>,
    /// The parameters of the model that it is about.
    pub parameters: Vec<Parameter>,
    /// One sentence.
    pub summary: String,
    /// The reasoning.
    pub why: Vec<String>,
    /// What to do.
    pub next: Vec<String>,
    /// Why it happened.
    pub cause: Option<Cause>,
    /// When ranks began to wait because of it.
    pub blocked_at: Option<Timestamp>,
    /// When the evidence sufficed.
    pub evidence_at: Timestamp,
    /// A fact about a rank's process that this finding states.
    pub fact: Option<ProcessFact>,
    /// What happened to the rank, as words that follow its name ("raised …"): ranks to which the
    /// very same happened share a finding.
    pub event: Option<String>,
    /// The finding that this one surely follows from, if that stands.
    pub follows: Option<Key>,
    /// Unless something else is found, it means that nothing can be judged.
    pub leaves_open: bool,
    /// It is told only where another finding follows from it.
    pub only_as_cause: bool,
}

/// A fact about a rank's process, for the causal order.
#[derive(Clone, Copy, Debug)]
pub struct ProcessFact {
    /// The rank.
    pub rank: u32,
    /// When.
    pub at: Timestamp,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// It came out of a communication call, as the failure of a peer does.
    pub from_communication: bool,
}

impl Draft {
    /// A draft with everything that its code implies.
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

    /// Attaches a proof, and with it the confidence, if the checker accepts it.
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

    /// Says why it happened, what that was concluded from, and what to change, before what else there
    /// is to change.
    pub fn explain(&mut self, reading: Reading) {
        self.why.extend(reading.because);
        let advice = cause::advice(reading.cause).map(str::to_owned);
        self.next.splice(0..0, advice);
        self.cause = Some(reading.cause);
    }

    /// The finding, with its place in the causal chain still to be set.
    #[must_use]
    pub fn into_finding(mut self, situation: &Situation<'_>, detected_at: Timestamp) -> Finding {
        self.why.extend(beneath::why(situation, &self));
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

/// The part of a call that its peers must agree with, for a certificate.
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

/// The fact that a rank began to make a group; `None`: the call makes none.
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
