//! Compares the engine's report about an execution with the truth.

use std::collections::BTreeSet;
use std::time::Duration;

use ddp_doctor::diagnosis::event::Event;
use ddp_doctor_proto::report::{CertificateKind, Confidence, Fact, Finding, Report, Timestamp};

use super::execution::{self, Execution};
use super::generate::Planted;
use super::machine::{Machine, Made, State};
use super::program::{Call, Op, Random, Step};
use super::truth::{Closure, Explored, explore};
use crate::support::scenario::{Scenario, Script, check_proof, gist};

mod facts;

/// Maximum number of states visited for one execution.
const MAX_STATES: usize = 20_000;
/// Longer than every grace period, shorter than the stall limit.
const SOON: Duration = Duration::from_secs(30);
/// Much longer than the stall limit.
const LATER: Duration = Duration::from_secs(600);

/// A requirement that a report violates.
#[derive(Clone, Debug)]
pub(crate) struct Violation {
    /// Kind of the violation; a minimized case must have the same kind.
    pub(crate) kind: String,
    pub(crate) words: String,
    pub(crate) scenario: String,
}

/// Properties of a case, for the statistics.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) codes: Vec<String>,
    pub(crate) proved: usize,
    pub(crate) stuck: usize,
    pub(crate) states: usize,
    pub(crate) quiet: bool,
    pub(crate) healthy: bool,
    pub(crate) events: usize,
}

/// Runs a program once, at random, and checks the reports about it.
pub(crate) fn check(planted: &Planted, seed: u64) -> Result<Outcome, Violation> {
    let Some(machine) = Machine::new(&planted.program) else {
        return Ok(Outcome::default());
    };
    let mut random = Random::new(seed);
    let execution = execution::run(&machine, &mut random);
    let wrong = |kind: String, words: String| Violation {
        kind,
        words,
        scenario: execution.scenario.clone(),
    };
    let scenario = Scenario::parse(&execution.scenario).map_err(|e| wrong("scenario".into(), e))?;
    let script = Script::parse(&scenario).map_err(|e| wrong("scenario".into(), e))?;

    let truth = Truth::new(&machine, &execution, planted)
        .map_err(|(kind, words)| wrong(kind.to_owned(), words))?;

    // Events in order, then timeouts.
    let mut engine = Script::engine(&scenario);
    for (_, _, event) in &script.events {
        engine.handle(event.clone(), script.end);
    }
    engine.poll_change();
    let report = engine.report();
    engine.handle_timeout(script.end.plus(SOON));
    engine.poll_change();
    let soon = engine.report();
    engine.handle_timeout(script.end.plus(LATER));
    engine.poll_change();
    let later = engine.report();

    let fault = |(kind, words): (String, String)| wrong(kind, words + &listed(&report));
    truth.check(&report).map_err(fault)?;
    let fault =
        |(kind, words): (String, String)| wrong(format!("soon {kind}"), words + &listed(&soon));
    truth.check_time(&soon).map_err(fault)?;
    truth.check_blame(&soon).map_err(fault)?;
    if execution.quiet {
        let fault = |(kind, words): (String, String)| wrong(kind, words + &listed(&later));
        truth.check_blame(&later).map_err(fault)?;
    }

    // Other orders of arrival, with reports in between.
    for turn in 0..3 {
        let mut engine = Script::engine(&scenario);
        let mut now = Timestamp(0);
        for (at, event) in shuffled(&script, turn, &mut random) {
            now = now.max(at);
            engine.handle(event, now);
            if turn == 2 || random.chance(10) {
                engine.poll_change();
                let early = engine.report();
                for finding in early.findings.iter().filter(|f| f.certificate.is_some()) {
                    truth.check_claim(finding).map_err(|(kind, words)| {
                        wrong(format!("early {kind}"), words + &listed(&early))
                    })?;
                }
            }
        }
        engine.handle_timeout(script.end);
        engine.poll_change();
        let other = engine.report();
        if gist(&other) != gist(&report) {
            return Err(wrong(
                "order".into(),
                format!(
                    "another order of arrival leads to another diagnosis:{}{}",
                    listed(&report),
                    listed(&other)
                ),
            ));
        }
    }
    Ok(Outcome {
        codes: later.findings.iter().map(|f| f.code.clone()).collect(),
        proved: report.findings.iter().filter(|f| f.certificate.is_some()).count(),
        stuck: truth.closure.stuck.len(),
        states: truth.explored.as_ref().map_or(0, |explored| explored.states),
        quiet: execution.quiet,
        healthy: planted.mutated.is_empty(),
        events: script.events.len(),
    })
}

/// The events, in order within each rank: rank by rank for turn 0, otherwise interleaved at random.
fn shuffled(script: &Script, turn: usize, random: &mut Random) -> Vec<(Timestamp, Event)> {
    type Queue = Vec<(Timestamp, Event)>;
    let mut queues: Vec<(Option<u32>, Queue)> = Vec::new();
    for (at, who, event) in script.events.iter().rev() {
        match queues.iter_mut().find(|(other, _)| other == who) {
            Some((_, queue)) => queue.push((*at, event.clone())),
            None => queues.push((*who, vec![(*at, event.clone())])),
        }
    }
    let mut mixed = Vec::new();
    while !queues.is_empty() {
        let at = match turn {
            0 => queues.len() - 1,
            _ => random.below(queues.len()),
        };
        match queues[at].1.pop() {
            Some(event) => mixed.push(event),
            None => drop(queues.remove(at)),
        }
    }
    mixed
}

/// The truth about an execution.
struct Truth<'a> {
    machine: &'a Machine<'a>,
    execution: &'a Execution,
    planted: &'a Planted,
    closure: Closure,
    explored: Option<Explored>,
    /// Whether calls have met that do not fit, or yield a wrong result.
    met_wrongly: bool,
}

type Fault = (String, String);

impl<'a> Truth<'a> {
    fn new(
        machine: &'a Machine<'a>,
        execution: &'a Execution,
        planted: &'a Planted,
    ) -> Result<Self, (&'static str, String)> {
        let state = &execution.state;
        let closure = Closure::new(machine, state);
        let explored = explore(machine, *state, MAX_STATES, false);
        let reduced = explore(machine, *state, MAX_STATES, true);
        if let (Some(a), Some(b)) = (&explored, &reduced)
            && (a.completable, a.may_end_well) != (b.completable, b.may_end_well)
        {
            return Err(("oracle", format!("full and reduced search differ: {a:?} {b:?}")));
        }
        let explored = explored.or(reduced);
        let issued = (0..machine.calls.len())
            .filter(|&call| state.seq[call] > 0)
            .fold(0_u64, |calls, call| calls | 1 << call);
        if let Some(explored) = &explored
            && explored.completable & issued & !closure.completable != 0
        {
            let words =
                format!("a call completes that the closure excludes: {explored:?} {closure:?}");
            return Err(("oracle", words));
        }
        Ok(Self {
            machine,
            execution,
            planted,
            closure,
            explored,
            met_wrongly: met_wrongly(machine, state),
        })
    }

    fn check(&self, report: &Report) -> Result<(), Fault> {
        self.check_time(report)?;
        for finding in &report.findings {
            check_proof(finding).map_err(|e| (format!("proof {}", finding.code), e))?;
            self.check_claim(finding)?;
        }
        self.check_blame(report)?;
        // A thread without any call so far is unknown to the engine.
        if self.hidden_thread() {
            return Ok(());
        }
        for finding in &report.findings {
            self.check_victims(finding)?;
            let cycle = matches!(finding.code.as_str(), "DD111" | "DD112");
            let free = finding.ranks.root.iter().find(|&&rank| !self.is_hopeless(rank));
            if let Some(rank) = free.filter(|_| cycle) {
                let words = format!("rank {rank} may continue");
                return Err((format!("root {}", finding.code), words));
            }
        }
        for &rank in &self.closure.stuck {
            let named = |finding: &&Finding| {
                finding.ranks.root.contains(&u32::from(rank))
                    || finding.ranks.victims.contains(&u32::from(rank))
            };
            let proved =
                |finding: &Finding| finding.certificate.is_some() || self.may_be_unproved(finding);
            if !report.findings.iter().filter(named).any(proved) {
                let words = format!("rank {rank} is blocked for ever without a proved finding");
                return Err(("missed".into(), words));
            }
        }
        Ok(())
    }

    /// Before a time limit every finding needs a proof, and there is none if the job may end well.
    fn check_time(&self, report: &Report) -> Result<(), Fault> {
        for finding in &report.findings {
            if finding.certificate.is_none() && !self.may_be_unproved(finding) {
                let words = format!("{} without a proof before a time limit", finding.code);
                return Err((format!("unproved {}", finding.code), words));
            }
        }
        let healthy = self.planted.mutated.is_empty() && self.execution.raised.is_empty();
        let may_end_well = self.explored.as_ref().is_some_and(|it| it.may_end_well);
        let fine = healthy || (may_end_well && !self.met_wrongly);
        let spoken =
            report.findings.iter().find(|finding| !(is_of_waits(finding) && self.hidden_thread()));
        match spoken.filter(|_| fine) {
            Some(finding) => {
                let words = format!("{} although the job may end well", finding.code);
                Err((format!("false {}", finding.code), words))
            }
            None => Ok(()),
        }
    }

    /// Whether the finding may lack a proof: a cycle through a rank with several threads, or the
    /// target of a wait that failed, is supported at most.
    fn may_be_unproved(&self, finding: &Finding) -> bool {
        if matches!(finding.code.as_str(), "DD101" | "DD113") && !self.execution.raised.is_empty() {
            return true;
        }
        // A rank may lose the connection to one that its rooted call does not wait for.
        if finding.code == "DD102" && self.has_rooted_call_that_failed(finding) {
            return true;
        }
        // A send may or may not wait for its receiver, so that a wait in a send proves nothing.
        if finding.code == "DD112" || finding.op.as_deref() == Some("send") {
            return true;
        }
        if finding.code == "DD113" && finding.ranks.root.iter().any(|&it| self.is_hopeless(it)) {
            return true;
        }
        // A cycle may blame one of its ranks alone. Its rows are those of all of them.
        let of_rows = finding.per_rank.iter().map(|row| row.rank);
        let mut waiting = of_rows.chain(finding.ranks.root.iter().copied());
        is_of_waits(finding) && waiting.any(|rank| self.threads(rank) > 1)
    }

    fn has_rooted_call_that_failed(&self, finding: &Finding) -> bool {
        let op = finding.op.as_deref().and_then(ddp_doctor_proto::Op::from_name);
        let raised =
            |victim: &u32| self.execution.raised.iter().any(|&it| u32::from(it) == *victim);
        op.is_some_and(ddp_doctor_proto::Op::is_rooted) && finding.ranks.victims.iter().any(raised)
    }

    fn threads(&self, rank: u32) -> usize {
        let threads = &self.machine.program.threads;
        threads.iter().filter(|it| u32::from(it.rank) == rank).count()
    }

    fn hidden_thread(&self) -> bool {
        let threads = &self.machine.program.threads;
        threads.iter().enumerate().any(|(t, thread)| {
            let made = |made: &Made| usize::from(made.thread) == t;
            let silent = (self.machine.calls.iter().enumerate())
                .all(|(c, it)| !made(it) || self.execution.state.seq[c] == 0);
            silent
                && threads
                    .iter()
                    .any(|other| other.rank == thread.rank && other.number != thread.number)
        })
    }

    /// A rank that is named with confidence must be one that a mistake was put into.
    fn check_blame(&self, report: &Report) -> Result<(), Fault> {
        let mutated: BTreeSet<u32> = self.planted.mutated.iter().map(|&r| u32::from(r)).collect();
        if mutated.len() != 1 {
            return Ok(());
        }
        for finding in &report.findings {
            let root = &finding.ranks.root;
            let fair = match finding.code.as_str() {
                _ if finding.ranks.root_confidence == Confidence::Suspected => true,
                // The rank that ended is the root even if a waiting rank issued one call too many,
                // or to the wrong peer.
                "DD102" => {
                    finding.ranks.victims.iter().chain(root).any(|rank| mutated.contains(rank))
                }
                // Every rank in a cycle is a root.
                "DD111" | "DD112" if self.hidden_thread() => true,
                "DD111" | "DD112" => root.iter().any(|rank| mutated.contains(rank)),
                _ => root.iter().all(|rank| mutated.contains(rank)),
            };
            if !fair {
                let words =
                    format!("{} blames {root:?}, the mistake is in {mutated:?}", finding.code);
                return Err((format!("blame {}", finding.code), words));
            }
        }
        Ok(())
    }

    /// Checks what a finding's certificate states about ranks and calls.
    fn check_claim(&self, finding: &Finding) -> Result<(), Fault> {
        let fault = |what: &str, words: String| Err((format!("{what} {}", finding.code), words));
        // A thread is unknown until its first event.
        if is_of_waits(finding)
            && (self.hidden_thread() || ranks_of_wait(finding).any(|rank| self.threads(rank) > 1))
        {
            return Ok(());
        }
        let kind = finding.certificate.as_ref().map(|proof| proof.kind);
        let facts = finding.certificate.as_ref().map_or(&[][..], |proof| &proof.facts);
        for fact in facts {
            if !self.holds(fact) {
                return fault("fact", format!("false fact: {fact:?}"));
            }
        }
        let issued: Vec<(u32, u8)> = facts.iter().filter_map(|fact| self.call_of(fact)).collect();
        match (kind, issued.as_slice()) {
            (Some(CertificateKind::UnsatisfiableJoin), &[(_, a), (_, b)]) => {
                let (a, b) =
                    (self.machine.calls[usize::from(a)], self.machine.calls[usize::from(b)]);
                if a.call.fits(&b.call, self.machine.program.transport) || a.call.op.is_message() {
                    return fault("mismatch", format!("these can match: {a:?} {b:?}"));
                }
            }
            (Some(CertificateKind::Contradiction), &[(_, first), (_, second)]) => {
                let (a, b) = (first, second);
                let (a, b) =
                    (self.machine.calls[usize::from(a)], self.machine.calls[usize::from(b)]);
                let transport = self.machine.program.transport;
                let agree = match (a.call.op, b.call.op) {
                    (Op::Send, Op::Recv) => Call::has_room(&a.call, &b.call, transport),
                    // A contradiction of tags is true if neither call can complete.
                    (Op::Recv, Op::Send) => {
                        self.closure.completable & (1 << first | 1 << second) != 0
                    }
                    _ => !a.call.contradicts(&b.call),
                };
                if agree {
                    return fault("mismatch", format!("these agree: {a:?} {b:?}"));
                }
            }
            (Some(CertificateKind::TerminalRank | CertificateKind::Cycle), calls) => {
                for &(rank, call) in calls {
                    if Machine::is_complete(&self.execution.state, call)
                        || self.closure.completable & 1 << call != 0
                    {
                        return fault("wait", format!("the call of rank {rank} may complete"));
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Checks that the victims of a finding are blocked. It may lack victims while evidence is
    /// partial.
    fn check_victims(&self, finding: &Finding) -> Result<(), Fault> {
        let fault = |what: &str, words: String| Err((format!("{what} {}", finding.code), words));
        let wire = finding.certificate.as_ref().is_some_and(|proof| {
            matches!(
                proof.kind,
                CertificateKind::UnsatisfiableJoin | CertificateKind::Contradiction
            )
        });
        for &rank in &finding.ranks.victims {
            let in_join = || {
                let group = finding.group.as_ref().and_then(|group| self.group(&group.name));
                group.zip(finding.seq).is_some_and(|(group, seq)| {
                    let state = &self.execution.state;
                    self.machine.call_at(state, group, rank as u8, seq as u8).is_some()
                })
            };
            if finding.ranks.root.contains(&rank) {
                return fault("both", format!("rank {rank} is root and victim"));
            }
            // Whether a broken transport still delivers anything is unknown.
            let broken = !self.execution.raised.is_empty();
            // A rank with several threads is supported, not proved, to be blocked.
            let several = |&rank: &u32| self.threads(rank) > 1;
            let believed = finding.certificate.is_none() && finding.ranks.root.iter().any(several);
            if !(self.is_hopeless(rank) || broken || believed || wire && in_join()) {
                return fault("victim", format!("rank {rank} may continue"));
            }
        }
        Ok(())
    }

    /// Whether a rank waits, or waited, for a call that never completes.
    fn is_hopeless(&self, rank: u32) -> bool {
        let state = &self.execution.state;
        (0..self.machine.calls.len() as u8).any(|call| {
            let made = &self.machine.calls[usize::from(call)];
            let never =
                state.seq[usize::from(call)] > 0 && self.closure.completable & 1 << call == 0;
            u32::from(made.rank) == rank && never && self.is_awaited(call)
        })
    }

    /// Whether the program has waited for a call, or is about to.
    fn is_awaited(&self, call: u8) -> bool {
        let made = &self.machine.calls[usize::from(call)];
        let thread = usize::from(made.thread);
        let past = usize::from(self.execution.state.at[thread]);
        let steps = &self.machine.program.threads[thread].steps;
        !made.call.is_async
            || steps[..past]
                .iter()
                .any(|step| matches!(step, Step::Wait(label) if *label == made.call.label))
    }
}

/// Whether the finding is about waits that a thread without any call so far could still resolve.
fn is_of_waits(finding: &Finding) -> bool {
    matches!(finding.code.as_str(), "DD111" | "DD112" | "DD113")
}

/// The root causes of a finding, and the ranks of a cycle of waits that it proves, of which it may blame one alone.
fn ranks_of_wait(finding: &Finding) -> impl Iterator<Item = u32> {
    let proof = finding.certificate.iter().filter(|it| it.kind == CertificateKind::Cycle);
    let waits = proof.flat_map(|it| &it.facts).filter_map(|fact| match fact {
        Fact::Waits { rank, .. } => Some(*rank),
        _ => None,
    });
    finding.ranks.root.iter().copied().chain(waits)
}

/// Whether calls have met that cannot form one collective, or yield a wrong result.
fn met_wrongly(machine: &Machine<'_>, state: &State) -> bool {
    let transport = machine.program.transport;
    let messages = (0..machine.calls.len() as u8).any(|c| {
        let call = &machine.calls[usize::from(c)].call;
        state.seq[usize::from(c)] > 0
            && call.op == Op::Recv
            && machine
                .counterpart(state, c, call.root)
                .is_some_and(|send| !machine.is_served(c, send))
    });
    let collectives = machine.calls.iter().enumerate().any(|(a, one)| {
        machine.calls.iter().enumerate().any(|(b, other)| {
            state.seq[a] > 0
                && state.seq[a] == state.seq[b]
                && one.call.group == other.call.group
                && !one.call.op.is_message()
                && !other.call.op.is_message()
                && (!one.call.fits(&other.call, transport) || one.call.contradicts(&other.call))
        })
    });
    messages || collectives
}

fn listed(report: &Report) -> String {
    let mut text = format!("\nfound (verdict {}):", report.verdict);
    for f in &report.findings {
        text += &format!(
            "\n  {} {} {} root {:?} ({}) victims {:?} {}: {}",
            f.role,
            f.code,
            f.confidence,
            f.ranks.root,
            f.ranks.root_confidence,
            f.ranks.victims,
            f.seq.map_or_else(String::new, |seq| format!("seq {seq}")),
            f.summary
        );
    }
    text
}
