//! What the text states about one rank.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use ddp_doctor_diagnosis::event::{NodeFailure, Stacks};
use ddp_doctor_diagnosis::input::transport;
use ddp_doctor_diagnosis::model::libc_signal::KILL;
use ddp_doctor_diagnosis::words;
use ddp_doctor_proto::report::{Exit, Timestamp, Where};
use ddp_doctor_proto::{Op, ParameterFact};

use crate::logs::facts::{ExitStatus, GroupName, Statement};
use crate::logs::scan::{after, until};

/// How DDP reports that models have different numbers of parameters.
pub(in super::super) const SAME_MODEL: &str = "DDP expects same model";
/// How a distributed checkpoint names the ranks that failed to write or read it.
pub(super) const CHECKPOINT: &str = "CheckpointException ranks:dict_keys([";

/// What is known of a rank.
#[derive(Debug, Default)]
pub(in super::super) struct Rank {
    /// The first collective of each group that its watchdog gave up.
    pub(in super::super) waits: BTreeMap<GroupName, Waiting>,
    /// Numbers of the last collectives that it enqueued and completed.
    pub(in super::super) progress: BTreeMap<GroupName, (u64, u64)>,
    /// The line of the call that its watchdog gave up.
    pub(in super::super) called_at: Option<Where>,
    /// A collective that PyTorch compared with those of others.
    pub(in super::super) runs: Option<Waiting>,
    pub(in super::super) raised: Vec<Raised>,
    /// Exceptions after which it wrote further output.
    pub(super) handled: Vec<Raised>,
    /// Exceptions that the program logged in lines of its own, oldest first.
    pub(in super::super) caught: VecDeque<(Timestamp, Arc<str>)>,
    pub(in super::super) ended: Option<(Timestamp, ExitStatus)>,
    /// The failure of its node.
    pub(in super::super) node_failure: Option<Arc<NodeFailure>>,
    /// How it ended after a watchdog gave up a collective.
    pub(in super::super) ended_later: Option<Exit>,
    /// How it ended when the launcher observed the failure of the attempt.
    pub(in super::super) failed: Option<(Timestamp, ExitStatus)>,
    /// The signal by which the launcher ended it.
    pub(in super::super) stopped: Option<i32>,
    /// The kernel killed it for lack of memory.
    pub(super) killed_for_memory: Option<Timestamp>,
    pub(in super::super) device: Option<Arc<str>>,
    /// The host whose name it could not resolve, and why.
    pub(super) unresolved: Option<(Arc<str>, Arc<str>)>,
    /// What DDP reported about its model.
    pub(in super::super) of_model: Vec<OfModel>,
    pub(in super::super) stacks: Vec<Arc<Stacks>>,
}

impl Rank {
    /// Completes its end by what the launcher observed before it listed the failures, and by what it and
    /// the kernel did.
    pub(super) fn complete_end(&mut self, number: u32) {
        self.drop_reports(number);
        if self.ended.is_none() && self.ended_later.is_none() {
            self.ended = self.failed;
        }
        let gave_up = self.waits.values().map(|it| it.at).max();
        if let Some((at, how)) = &mut self.ended {
            // It lived when it reported its timeouts, whatever the clock of the launcher says.
            *at = gave_up.map_or(*at, |gave_up| gave_up.max(*at));
            // Its last output may be written after that of the launcher.
            for raised in &mut self.raised {
                raised.at = raised.at.min(*at);
            }
            if self.killed_for_memory.is_some() && *how == ExitStatus::default() {
                *how = ExitStatus::of_status(-KILL);
            }
            how.for_memory |= self.killed_for_memory.is_some() && how.signal == Some(KILL);
        } else if let Some(at) = self.killed_for_memory {
            let for_memory = true;
            let how = ExitStatus::of_status(-KILL);
            self.ended = Some((at, ExitStatus { for_memory, ..how }));
        } else if self.ended_later.is_none() {
            self.ended_later = self.stopped.map(|signal| Exit { code: None, signal: Some(signal) });
        }
    }

    /// Drops what a distributed checkpoint reports of this rank, beside the exceptions themselves.
    fn drop_reports(&mut self, number: u32) {
        let is_report = |it: &Raised| it.text.contains(CHECKPOINT) && !it.is_of_others(number);
        if self.raised.iter().all(is_report) {
            return;
        }
        let report = self.raised.iter().find(|it| is_report(it));
        let place = report.and_then(|it| it.place.clone());
        self.raised.retain(|it| !is_report(it));
        for raised in &mut self.raised {
            raised.place = raised.place.take().or_else(|| place.clone());
        }
    }

    /// Adds a collective that its watchdog gave up: the first one of a group counts.
    pub(in super::super) fn wait(
        &mut self,
        group: GroupName,
        what: &Statement,
        since: Timestamp,
        at: Timestamp,
    ) {
        let Statement::TimedOut { seq, op, numel, size, .. } = what else {
            return;
        };
        let unnumbered = Waiting::unnumbered(*op, since);
        let waiting = Waiting { seq: *seq, numel: *numel, group_size: *size, at, ..unnumbered };
        let first = self.waits.entry(group).or_insert_with(|| waiting.clone());
        if waiting.seq < first.seq {
            *first = waiting;
        }
    }

    /// Adds a call that PyTorch compared with those of others.
    pub(in super::super) fn run(&mut self, what: &Statement, at: Timestamp) {
        let Statement::Runs { seq, op, shape, dtype } = what else {
            return;
        };
        let sizes = shape.as_ref().map(|it| it.iter().map(|&n| u64::from(n)));
        self.runs.get_or_insert_with(|| Waiting {
            seq: *seq,
            numel: sizes.map(Iterator::product),
            shape: shape.clone(),
            dtype: dtype.clone(),
            ..Waiting::unnumbered(*op, at)
        });
    }

    /// Adds what DDP reported about its model: what names parameters counts.
    pub(in super::super) fn report(&mut self, new: OfModel) {
        match self.of_model.iter_mut().find(|it| it.fact == new.fact) {
            Some(known) if known.total > 0 => {}
            Some(known) => *known = new,
            None => self.of_model.push(new),
        }
    }

    /// Whether some of its parameters got no gradient.
    pub(in super::super) fn lacks_gradients(&self) -> bool {
        let mut facts = self.of_model.iter().map(|it| it.fact);
        facts.any(|it| it == ParameterFact::WithoutGradient)
    }

    /// Adds an exception after which it wrote further output.
    pub(super) fn handled(&mut self, raised: Raised) {
        /// Maximum number that is kept: the last one counts.
        const MAX: usize = 4;
        self.handled.push(raised);
        if self.handled.len() > MAX {
            self.handled.remove(0);
        }
    }

    /// Adds an exception that the program logged in a line of its own.
    pub(super) fn caught(&mut self, at: Timestamp, text: &Arc<str>) {
        /// Maximum number that is kept, of a program that tries again and again.
        const MAX: usize = 64;
        self.caught.push_back((at, Arc::clone(text)));
        if self.caught.len() > MAX {
            self.caught.pop_front();
        }
    }

    /// Marks exceptions that the program logged, and after which the rank made the call that it then waited in.
    pub(super) fn mark_caught(&mut self) {
        let Some(last) = self.waits.values().map(|it| it.since).max() else { return };
        for raised in self.raised.iter_mut().filter(|it| it.is_logged && it.at < last) {
            (raised.is_caught, raised.uncaught) = (true, false);
        }
    }

    /// Adds an exception. PyTorch's watchdog and the program may print the same error, but only the
    /// program prints its line.
    pub(super) fn raise(&mut self, raised: Raised) {
        match self.raised.last_mut() {
            Some(last) if last.place.is_none() && raised.text.contains(&*last.text) => {
                last.place = raised.place;
            }
            _ => self.raised.push(raised),
        }
    }
}

/// What DDP reported about the model of a rank.
#[derive(Clone, Debug)]
pub(in super::super) struct OfModel {
    pub(in super::super) at: Timestamp,
    pub(in super::super) fact: ParameterFact,
    /// Number of parameters concerned; 0: not stated.
    pub(in super::super) total: u64,
    /// A line for each that is named.
    pub(in super::super) lines: Arc<str>,
}

/// A collective that a rank waited for.
#[derive(Clone, Debug)]
pub(in super::super) struct Waiting {
    pub(in super::super) seq: u64,
    pub(in super::super) op: Op,
    pub(in super::super) numel: Option<u64>,
    /// Number of elements of all pieces together, or another number that must be equal as that is.
    pub(in super::super) whole: Option<u64>,
    pub(in super::super) shape: Option<Vec<u32>>,
    pub(in super::super) dtype: String,
    /// Number of members of its group.
    pub(in super::super) group_size: Option<u32>,
    /// When the wait began, and when it was given up.
    pub(in super::super) since: Timestamp,
    pub(in super::super) at: Timestamp,
}

impl Waiting {
    /// A call without a number.
    pub(in super::super) const fn unnumbered(op: Op, at: Timestamp) -> Self {
        Self {
            seq: 0,
            op,
            numel: None,
            whole: None,
            shape: None,
            dtype: String::new(),
            group_size: None,
            since: at,
            at,
        }
    }
}

/// An exception of a rank.
#[derive(Clone, Debug)]
pub(in super::super) struct Raised {
    pub(in super::super) at: Timestamp,
    pub(in super::super) text: Arc<str>,
    pub(in super::super) place: Option<Where>,
    /// Nothing caught it, as PyTorch's label shows.
    pub(in super::super) uncaught: bool,
    /// It is the last output of the rank.
    pub(in super::super) is_last: bool,
    /// The text states its time.
    pub(in super::super) is_dated: bool,
    /// The program logged it, below a line with its time.
    pub(super) is_logged: bool,
    /// It was caught: the rank made another call.
    pub(in super::super) is_caught: bool,
}

impl Raised {
    /// Whether it says that something is wrong with other ranks than this one.
    pub(in super::super) fn is_of_others(&self, rank: u32) -> bool {
        const OTHERS: [&str; 6] = [
            SAME_MODEL,
            transport::MISMATCH,
            "DistStoreError",
            "store based barrier",
            "monitoredBarrier",
            "from remote rank [",
        ];
        let mut failed = after(&self.text, CHECKPOINT)
            .map(|it| until(it, &[']']).split(','))
            .into_iter()
            .flatten()
            .map(|it| it.trim().parse());
        match failed.next() {
            Some(first) => first != Ok(rank) && failed.all(|it| it != Ok(rank)),
            None => OTHERS.iter().any(|it| self.text.contains(it)),
        }
    }
}

/// States an exception that did not end its process.
pub(in super::super) fn went_on_after(who: &str, text: &str, place: Option<&Where>) -> String {
    let at = words::at(place);
    format!("{who} logged an exception and continued: {text}{at}")
}
