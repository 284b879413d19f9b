//! Findings before their causal order is known.

use std::collections::BTreeSet;
use std::mem;

use ddp_doctor_proto::Op;
use ddp_doctor_proto::catalogue::Code;
use ddp_doctor_proto::report::{
    Cause, Certificate, CertificateKind, Confidence, Effect, Fact, Parameter, Period, RankCall,
    Severity, Timestamp, Where,
};

use crate::findings::advice;
use crate::input::align::OddOnes;
use crate::input::event::ProcessId;
use crate::model::{Attempt, GroupId};
use crate::proof;
use crate::source::cause::{CauseHypothesis, Mistake, Suspect};
use crate::words::{Ranks, number};

/// Which of several findings leads: the lowest value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Precedence {
    /// A rank ran out of memory.
    Memory,
    /// An exception ended a rank, or made it leave the path of the others.
    Exception,
    /// A rank died.
    Died,
    /// A rank is stopped.
    Stopped,
    /// A rank ended in order.
    Left,
    /// Calls that disagree.
    Wire,
    /// Cycles of waits.
    Cycle,
    /// Ranks that disagree about the world that they form.
    Start,
    /// Incomplete creation of a group or of the world.
    Creation,
    /// Point-to-point calls without a partner.
    Unmatched,
    /// Stalls that are reported once they have lasted long enough.
    Time,
    /// Hints, withheld while a finding with an effect and a higher precedence exists.
    Hint,
    /// Settings that must be equal on all ranks, or different on each, and faults of GPUs and links. They explain a rank's end
    /// only if it is among their victims or its finding names them in [`Draft::follows`].
    Settings,
    /// Notes about the evidence.
    Evidence,
}

/// Whether a draft becomes a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportPolicy {
    /// It always does.
    Always,
    /// Only if another finding follows from it.
    OnlyAsCause,
    /// It always does. Without this evidence the job cannot be judged: an error unless some finding
    /// has an effect.
    LeavesOpen,
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

/// A finding before [`crate::causal_order`] has determined its role in the causal order.
#[derive(Clone, Debug)]
pub struct Draft {
    /// Code, name, default severity and effect.
    pub code: &'static Code,
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
    /// Calls of the ranks concerned; sorted by rank in the finding.
    pub per_rank: Vec<RankCall>,
    /// Parameters of the model concerned.
    pub parameters: Vec<Parameter>,
    /// What happened, in one sentence.
    pub summary: String,
    /// What a rank did wrong, if that is supported: the start of the headline.
    pub mistake: Option<Mistake>,
    /// The statement that may be the mistake, if that is only suspected.
    pub suspect: Option<Suspect>,
    /// The reasoning, one paragraph each.
    pub why: Vec<String>,
    /// Advice, one paragraph each.
    pub next: Vec<String>,
    /// Hypothesis why it happened.
    pub cause: Option<Cause>,
    /// Time at which the first rank began to wait because of it.
    pub blocked_at: Option<Timestamp>,
    /// For a finding over time that did not hold without interruption until the end: when it held.
    pub held: Vec<Period>,
    /// Time from which the evidence sufficed for the finding.
    pub evidence_at: Timestamp,
    /// The fact about a rank's process that this finding states.
    pub fact: Option<ProcessFact>,
    /// Predicate that follows the rank in a sentence ("raised …"). Findings of one code with equal
    /// events and causes are merged.
    pub event: Option<String>,
    /// Key of the finding that this one follows from, if that exists.
    pub follows: Option<Key>,
    /// A process of the attempt that it concerns, if neither key nor place determines the attempt.
    pub of_process: Option<ProcessId>,
    /// Precedence among the findings of a situation; set by the table of rules.
    pub precedence: Precedence,
    /// Whether it becomes a finding; set by the table of rules.
    pub policy: ReportPolicy,
    /// Attempt that it concerns; set by [`crate::causal_order`].
    pub attempt: Attempt,
    /// The finding that it followed from; `None`: it is initiating. Set by [`crate::causal_order`].
    pub caused_by: Option<Key>,
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
    /// A text states that it ended, and not why: so does a process whose peer failed, or that a launcher ended.
    pub is_unexplained: bool,
}

impl Draft {
    /// A draft with severity and effect of its code, supported facts and a suspected root cause; all
    /// else is empty.
    pub fn new(code: &'static Code, place: KeyPlace, evidence_at: Timestamp) -> Self {
        Self {
            code,
            key: Key { code: code.code, place },
            severity: code.severity,
            effect: code.effect,
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
            mistake: None,
            suspect: None,
            why: Vec::new(),
            next: Vec::new(),
            cause: None,
            blocked_at: None,
            held: Vec::new(),
            evidence_at,
            fact: None,
            event: None,
            follows: None,
            of_process: None,
            precedence: Precedence::Evidence,
            policy: ReportPolicy::Always,
            attempt: Attempt::default(),
            caused_by: None,
        }
    }

    /// Makes these ranks the victims, except for the root cause, which must be set before.
    pub(crate) fn set_victims(&mut self, ranks: impl IntoIterator<Item = u32>) {
        let mut ranks: BTreeSet<u32> = ranks.into_iter().collect();
        self.root.iter().for_each(|rank| _ = ranks.remove(rank));
        self.victims = ranks.into_iter().collect();
    }

    /// Adds these ranks to the victims, except for the root cause, which must be set before.
    pub(crate) fn add_victims(&mut self, ranks: impl IntoIterator<Item = u32>) {
        let known = mem::take(&mut self.victims);
        self.set_victims(known.into_iter().chain(ranks));
    }

    /// What the victims do: "rank 0 waits for it", "ranks 0 and 2 wait for them", the root cause.
    pub(crate) fn waits_for_root(&self) -> String {
        let waits = Ranks(&self.victims).with("waits", "wait");
        format!("{waits} for {}", number(&self.root, "it", "them"))
    }

    /// Attaches a certificate and raises the confidence to `Proved`, if the checker accepts it.
    #[must_use]
    pub fn proved_by(mut self, proof: Option<Certificate>) -> Self {
        let proof = proof.filter(|proof| {
            let verdict = proof::check(proof);
            debug_assert!(verdict.is_ok(), "{}: {verdict:?} {proof:?}", self.code.code);
            verdict.is_ok()
        });
        if proof.is_some() {
            self.confidence = Confidence::Proved;
            self.certificate = proof;
        }
        self
    }

    /// Makes these ranks the root cause.
    pub(crate) fn blame(&mut self, ranks: impl Into<Vec<u32>>, confidence: Confidence) {
        self.root = ranks.into();
        self.root_confidence = confidence;
    }

    /// Adds these ranks to the root cause. They are not victims of it then.
    pub(crate) fn blame_too(&mut self, ranks: impl IntoIterator<Item = u32>) {
        self.root.extend(ranks);
        self.root.sort_unstable();
        self.root.dedup();
        self.add_victims([]);
    }

    /// Makes these ranks the root cause, and its former root cause victims.
    pub(crate) fn blame_instead(&mut self, ranks: Vec<u32>) {
        let former = mem::replace(&mut self.root, ranks);
        self.add_victims(former);
    }

    /// Makes the odd ones among ranks the root cause.
    pub(crate) fn blame_odd(&mut self, odd: OddOnes) {
        let confidence = odd.confidence();
        self.blame(odd.ranks, confidence);
    }

    /// Attaches the proof that these facts were observed.
    #[must_use]
    pub fn observed(self, facts: Vec<Fact>) -> Self {
        self.proved_by(Some(Certificate { kind: CertificateKind::Observation, facts }))
    }

    /// Adds a paragraph to the reasoning.
    pub(crate) fn say(&mut self, paragraph: impl Into<String>) {
        self.why.push(paragraph.into());
    }

    /// Adds a paragraph to the advice.
    pub(crate) fn advise(&mut self, paragraph: impl Into<String>) {
        self.next.push(paragraph.into());
    }

    /// Shows ranks at other lines than those of their calls, where `line_of` knows one.
    pub(crate) fn show_at<'p>(&mut self, line_of: impl Fn(u32) -> Option<&'p Where>) {
        for call in &mut self.per_rank {
            if let Some(line) = line_of(call.rank) {
                call.place = Some(line.clone());
            }
        }
    }

    /// Takes victims, place and calls from a draft about the same end of a rank, or about what it led
    /// to. The root cause must be set before: it is not a victim.
    pub fn take_calls(&mut self, from: Self) {
        self.set_victims(from.victims);
        self.place = from.place;
        self.op = from.op;
        self.per_rank = from.per_rank;
        self.blocked_at = from.blocked_at;
    }

    /// Sets the cause, puts its reason first in `why`, and its advice first in `next`.
    pub fn explain(&mut self, hypothesis: CauseHypothesis) {
        let advice = advice::against(self.code, &hypothesis).map(str::to_owned);
        self.next.splice(0..0, advice);
        self.attribute(hypothesis);
    }

    /// Sets the cause, and puts its reason first in `why`: a terminal shows the first reasons.
    pub fn attribute(&mut self, hypothesis: CauseHypothesis) {
        self.why.splice(0..0, hypothesis.because);
        self.suspect = hypothesis.suspect.filter(|_| hypothesis.mistake.is_none());
        self.mistake = hypothesis.mistake.or(self.mistake.take());
        self.cause = Some(hypothesis.cause);
    }
}
