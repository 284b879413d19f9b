//! What lines of a log state, before it is known which rank each of them is about.
//!
//! `reader` passes each line to the other files, which add to the [`Facts`] of the log: `c10d`, `caught`, `failed_call`,
//! `nccl`, `nccl_calls`, `launcher`, `stated_rank` and `traceback`, by what wrote the line. `container_prefixes` finds the prefixes
//! of lines that name a container, `name_resolution` warnings before a failed connection, and `exit_status` and
//! `accounting` statements that the job ended.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::RangeInclusive;
use std::sync::Arc;

use ddp_doctor_diagnosis::event::{Stacks, ThreadStack};
use ddp_doctor_diagnosis::model::libc_signal;
use ddp_doctor_proto::report::{Exit, Timestamp, Where};
use ddp_doctor_proto::{Op, ParameterFact, without_credentials};

use super::lines::{Label, Name};
use crate::stack_text::frame_bytes;

mod accounting;
mod c10d;
mod caught;
mod container_prefixes;
mod dialects;
mod exit_status;
mod failed_call;
mod launcher;
mod name_resolution;
mod nccl;
mod nccl_calls;
mod reader;
mod stated_rank;
mod traceback;

pub(super) use c10d::WATCHDOG;
pub(super) use dialects::KERNEL;
pub(super) use reader::read;

/// Maximum number of facts kept. Half of them are for those that only name ranks.
const MAX_FACTS: usize = 1 << 18;
/// Maximum number of pairs of labels and of ranks kept.
const MAX_NAMES: usize = 1 << 17;
/// Memory for the texts of a log, and that for its stacks, in bytes.
const MAX_BYTES: usize = 64 << 20;

/// A process group, as lines of PyTorch name it; both empty: not named.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct GroupName {
    /// Name, equal on all members: the "PG GUID".
    pub(super) name: String,
    /// Description, such as "`default_pg`".
    pub(super) description: String,
}

impl GroupName {
    /// Whether it is the group of all ranks.
    pub(super) fn is_world(&self) -> bool {
        self.description == "default_pg" || self.name == "0" && self.description.is_empty()
    }

    pub(super) const fn is_named(&self) -> bool {
        !self.name.is_empty()
    }
}

/// What is known of the process that a fact is about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Subject {
    pub(super) label: Label,
    /// Rank in the text; within `group`, if that is a group of some ranks.
    pub(super) rank: Option<u32>,
    pub(super) group: GroupName,
    pub(super) pid: Option<u32>,
    pub(super) host: Option<Arc<str>>,
    /// The GPU that it uses.
    pub(super) gpu: Option<Gpu>,
}

/// A GPU in a message of the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Gpu {
    /// Address on the bus, as NCCL writes it.
    pub(super) bus: u64,
    /// Name of the file, which may name the host.
    pub(super) file: Arc<str>,
    /// When the kernel reported its error, as its line reads: in another time zone, possibly.
    pub(super) on: Option<Timestamp>,
}

impl From<Label> for Subject {
    fn from(label: Label) -> Self {
        Self { label, ..Self::default() }
    }
}

/// Where a fact is stated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LineNumber {
    /// Number of the line in its file.
    pub(super) number: u64,
    /// The line has a time of its own.
    pub(super) is_dated: bool,
}

/// A fact about a process.
#[derive(Clone, Debug)]
pub(super) struct Fact {
    pub(super) who: Subject,
    pub(super) line: LineNumber,
    /// Time of the line; zero: unknown, and before all lines with a time.
    pub(super) at: Timestamp,
    pub(super) what: Statement,
}

/// What a line states.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Statement {
    /// The line names the rank, and states no more. `of`: number of ranks it is one of.
    Named { of: Option<u32> },
    /// The watchdog gave a collective up after it had waited for `waited_ms`.
    /// `size`: number of members of its group.
    TimedOut { seq: u64, op: Op, numel: Option<u64>, size: Option<u32>, waited_ms: u64 },
    /// It made the call that its watchdog gave up at this line.
    CalledAt { place: Where },
    /// Sequence numbers of the last collectives; `failed`: the one that the watchdog gave up.
    Progress { enqueued: u64, completed: u64, failed: Option<u64> },
    /// A process runs this collective, according to PyTorch's comparison of calls.
    Runs { seq: u64, op: Op, shape: Option<Vec<u32>>, dtype: String },
    /// A traceback ended in this exception.
    Raised {
        text: Arc<str>,
        place: Option<Where>,
        /// Nothing caught it.
        uncaught: bool,
        /// Its process continued after it.
        went_on: bool,
        /// It is the last output of its process.
        is_last: bool,
        /// The program logged it, below a line with its time.
        is_logged: bool,
        /// A launcher raised it, not a rank.
        by_launcher: bool,
    },
    /// The program logged this exception in a line of its own, and continued.
    Caught { text: Arc<str> },
    /// A parent reports that an exception with this message ended its worker.
    Quoted { text: Arc<str> },
    /// The process ended.
    Ended(ExitStatus),
    /// The process ended after another one had failed.
    EndedLater(ExitStatus),
    /// The launcher observed this end, before it lists the failures of the attempt.
    Failed(ExitStatus),
    /// The launcher sent this signal to the process to end it, or to all if none is named.
    Stopped { signal: i32 },
    /// A batch system lost this node; `next`: what to do.
    NodeFailed { by: &'static str, next: &'static str },
    /// The kernel killed the process with this name for lack of memory; `on`: as the line reads.
    KilledForMemory { name: Arc<str>, on: Option<Timestamp> },
    /// The text ends within a traceback, at this line of the program.
    CutOff { place: Option<Where> },
    /// It lost its connection to the store at this address.
    LostStore { server: Arc<str> },
    /// It could not connect to this host, whose name it could not resolve.
    Unresolved { host: Arc<str>, reason: Arc<str> },
    /// The launcher was asked to end the job by this signal.
    Interrupted { signal: i32 },
    /// The launcher restarts the ranks.
    Restarted,
    /// Ranks go on after the batch system canceled the job and its tasks had ended: it was started again.
    Requeued,
    /// The launcher reports that all of its ranks ended well; `of_job`: and all others.
    Finished { of_job: bool },
    /// This rank of the group finished this collective as its last one, as another rank reports; `is_inside`: it
    /// joined the next one.
    Finishes { rank: u32, seq: u64, is_inside: bool },
    /// It waits for the other ranks of the world, of which `joined` have come.
    Joins { world_size: u32, joined: u32, key: u64, waited_ms: u64 },
    /// It joined the barrier in the store under this key.
    Joined { key: u64 },
    /// A store waited for clients, of which `joined` have come.
    Clients { expected: u32, joined: u32, waited_ms: u64 },
    /// It waited for the address of this rank.
    MissesAddress { of: u32, waited_ms: u64 },
    /// It waited in this call for these ranks; none: the text numbers them within a group of some of the ranks.
    Misses { op: Op, ranks: Vec<u32>, waited_ms: u64 },
    /// What DDP reported about its model: the number of parameters concerned, and a line for each that is named.
    OfModel { fact: ParameterFact, total: u64, lines: Arc<str> },
    /// It uses this device of its host.
    Uses { device: Arc<str> },
    /// Its watchdog was blocked, for this long if that is stated.
    WatchdogStuck { seconds: Option<u64> },
    /// A layer reported an error of the network, on this host and device if they are stated.
    Network { on: Arc<str>, text: Arc<str> },
    /// A library or a launcher reported a failure, on this host and device if they are stated; `next`: what to do.
    /// Without it, the text says little, and counts where nothing else is stated.
    Reported { by: &'static str, on: Arc<str>, text: Arc<str>, next: &'static str },
    /// The batch system canceled the job, for this reason if it states one. `at`: as the line reads.
    Canceled { why: Option<Arc<str>>, at: Arc<str> },
}

impl Statement {
    /// An exception of a process, of which the text states nothing else.
    pub(super) const fn uncaught(text: Arc<str>) -> Self {
        Self::Raised {
            text,
            place: None,
            uncaught: true,
            went_on: false,
            is_last: false,
            is_logged: false,
            by_launcher: false,
        }
    }

    /// Whether logs of jobs that end well state this as well: the store ends before other ranks, exceptions are handled,
    /// and NCCL warns of what it goes on without.
    pub(super) const fn is_harmless(&self) -> bool {
        match self {
            Self::Named { .. }
            | Self::Caught { .. }
            | Self::LostStore { .. }
            | Self::Network { .. }
            | Self::Finished { .. } => true,
            Self::Raised { went_on, .. } => *went_on,
            Self::Reported { next, .. } => next.is_empty(),
            _ => false,
        }
    }

    /// The same without credentials in addresses that its text states.
    fn without_credentials(mut self) -> Self {
        if let Self::Raised { text, .. }
        | Self::Caught { text }
        | Self::Quoted { text }
        | Self::Network { text, .. }
        | Self::Reported { text, .. } = &mut self
            && let Cow::Owned(stated) = without_credentials(text)
        {
            *text = stated.into();
        }
        self
    }

    /// Memory of its texts and lists, in bytes, about.
    fn bytes(&self) -> usize {
        match self {
            Self::Raised { text, place, .. } => text.len() + place.as_ref().map_or(0, frame_bytes),
            Self::Caught { text } | Self::Quoted { text } => text.len(),
            Self::Network { on, text } | Self::Reported { on, text, .. } => on.len() + text.len(),
            Self::CalledAt { place } => frame_bytes(place),
            Self::CutOff { place } => place.as_ref().map_or(0, frame_bytes),
            Self::LostStore { server } => server.len(),
            Self::Unresolved { host, reason } => host.len() + reason.len(),
            Self::KilledForMemory { name, .. } => name.len(),
            Self::Canceled { why, at } => at.len() + why.as_ref().map_or(0, |it| it.len()),
            Self::OfModel { lines, .. } => lines.len(),
            Self::Misses { ranks, .. } => ranks.len() * 4,
            Self::Runs { shape, .. } => shape.as_ref().map_or(0, |it| it.len() * 4),
            _ => 0,
        }
    }
}

/// How a process ended, as far as it is stated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct ExitStatus {
    pub(super) code: Option<i32>,
    pub(super) signal: Option<i32>,
    /// The kernel killed it for lack of memory.
    pub(super) for_memory: bool,
}

impl ExitStatus {
    /// From a status in which a negative number is a signal.
    pub(super) const fn of_status(status: i32) -> Self {
        let is_signal = status < 0;
        Self {
            code: if is_signal { None } else { Some(status) },
            signal: if is_signal { Some(-status) } else { None },
            for_memory: false,
        }
    }

    /// Whether the process ended by SIGTERM. Shells state a signal as a status above 128.
    pub(super) const fn is_terminated(self) -> bool {
        matches!(self.signal, Some(15)) || matches!(self.code, Some(143))
    }

    /// Whether the process may have ended because a launcher or a batch system requested it: those kill what
    /// does not end by SIGTERM.
    pub(super) const fn is_requested(self) -> bool {
        let is_killed = matches!(self.signal, Some(9)) || matches!(self.code, Some(137));
        self.is_terminated() || is_killed && !self.for_memory
    }

    /// Whether the process crashed in native code.
    pub(super) const fn is_crash(self) -> bool {
        matches!(self.signal, Some(signal) if libc_signal::is_crash(signal))
    }

    pub(super) const fn exit(self) -> Exit {
        Exit { code: self.code, signal: self.signal }
    }
}

/// Stacks of a process.
#[derive(Clone, Debug)]
pub(super) struct Dumped {
    pub(super) who: Subject,
    pub(super) at: Timestamp,
    pub(super) stacks: Stacks,
    /// Signal that ended the process there.
    pub(super) signal: Option<i32>,
}

/// Everything that a log states.
#[derive(Debug, Default)]
pub(super) struct Facts {
    pub(super) facts: Vec<Fact>,
    /// All facts, to leave out repeated ones.
    seen: HashSet<(Subject, Statement)>,
    /// Number of facts that only name ranks.
    named: usize,
    /// Memory that the texts of facts take.
    bytes: usize,
    /// Memory that stacks take.
    stack_bytes: usize,
    /// Facts or stacks were dropped because there are too many.
    is_incomplete: bool,
    pub(super) stacks: Vec<Dumped>,
    /// Ranks that labels name.
    pub(super) ranks: BTreeSet<u32>,
    /// Tasks that labels name.
    pub(super) tasks: BTreeSet<u32>,
    /// Names of workers whose labels state no rank.
    pub(super) workers: BTreeSet<Name>,
    /// Labels that name a rank in more than one way.
    pub(super) pairs: BTreeSet<Label>,
    /// World sizes that the text states.
    pub(super) worlds: BTreeSet<u32>,
    /// Time of the first line with one; zero: no line has one.
    pub(super) first: Timestamp,
    /// Time of the latest line with one.
    pub(super) last: Timestamp,
    /// No line states a year.
    pub(super) guesses_year: bool,
    /// No line states a year, and that of the file may be another one.
    pub(super) has_no_year: bool,
    /// Processes that found a network, and the line that states it.
    found_network: BTreeMap<(Option<u32>, Option<Arc<str>>), u64>,
    /// Servers of files that responded again, and the last line that states it.
    responding: BTreeMap<String, u64>,
    name_resolution: name_resolution::NameResolution,
    /// Ranks whose lines begin with the name of their host.
    hosted: BTreeSet<u32>,
    /// Calls of NCCL.
    nccl_calls: nccl_calls::NcclCalls,
    /// Ranks that the text places on a host.
    pub(super) placed: Vec<(String, RangeInclusive<u32>)>,
    /// GPUs of processes, by their addresses on the bus.
    pub(super) gpus: BTreeMap<(u64, Option<Arc<str>>), u32>,
    /// Name of the file.
    pub(super) file: Arc<str>,
    /// The line being read.
    pub(super) line: LineNumber,
    /// Number of the last line in which a platform reports that the job ended well.
    ends_well: Option<u64>,
    /// The batch system canceled the job.
    canceled: bool,
    /// When a task ended after that.
    stopped: Option<Timestamp>,
    /// Number of the line that shows that the job was started again after that; 0: there is none.
    requeued: u64,
    /// Number of the last line in which the program states its progress; 0: there is none.
    pub(super) progress: u64,
    /// Such a line may follow: `progress` is that of the first one behind an exception.
    pub(super) has_progressed: bool,
}

impl Facts {
    /// Whether nothing was found that concerns a job.
    pub(super) fn is_empty(&self) -> bool {
        // That a job continued, or ended well, says nothing by itself.
        let is_news =
            |fact: &Fact| !matches!(fact.what, Statement::Restarted | Statement::Finished { .. });
        !self.facts.iter().any(is_news) && self.stacks.is_empty()
    }

    /// Whether it states nothing, since the job was last started, that a job which ends well does not state.
    fn states_no_failure(&self) -> bool {
        let mut facts = self.facts.iter().filter(|fact| fact.line.number > self.requeued);
        facts.all(|fact| fact.what.is_harmless()) && self.stacks.is_empty()
    }

    /// Whether a line in which the program states its progress says something new.
    const fn awaits_progress(&self) -> bool {
        !self.has_progressed || self.stopped.is_some()
    }

    /// Takes note of such a line: if tasks had ended after a cancellation, the job was started again.
    fn progresses(&mut self, at: Option<Timestamp>) {
        if !self.has_progressed {
            self.has_progressed = true;
            self.progress = self.line.number;
        }
        let Some(at) = at else { return };
        if self.stopped.take_if(|stopped| at > *stopped).is_some() {
            self.canceled = false;
            self.requeued = self.line.number;
            self.add(Subject::default(), at, Statement::Requeued);
        }
    }

    pub(super) fn add(&mut self, who: Subject, at: Timestamp, what: Statement) {
        match what {
            // Later attempts may fail as earlier ones did.
            Statement::Restarted | Statement::Requeued => self.seen.clear(),
            Statement::Canceled { .. } => self.canceled = true,
            Statement::Ended(_) if self.canceled => self.stopped = Some(at),
            _ => {}
        }
        let key = (who, what.without_credentials());
        if self.seen.contains(&key) {
            return;
        }
        if is_name(&key.1) {
            if self.named >= MAX_FACTS / 2 {
                self.is_incomplete = true;
                return;
            }
            self.named += 1;
        }
        self.bytes += 2 * key.1.bytes();
        self.seen.insert(key.clone());
        let (who, what) = key;
        let line = self.line;
        self.facts.push(Fact { who, line, at, what });
        if self.facts.len() > MAX_FACTS || self.bytes > MAX_BYTES {
            self.drop_oldest();
        }
    }

    /// Drops the older half of the facts: the failure is at the end of a log. Those that name ranks
    /// are kept, which are at its beginning.
    fn drop_oldest(&mut self) {
        self.is_incomplete = true;
        let mut excess = (self.facts.len() - self.named).div_ceil(2);
        self.facts.retain(|fact| {
            let is_kept = excess == 0 || is_name(&fact.what);
            excess -= usize::from(!is_kept);
            is_kept
        });
        let keys = self.facts.iter();
        self.seen = keys.map(|fact| (fact.who.clone(), fact.what.clone())).collect();
        self.bytes = self.facts.iter().map(|fact| 2 * fact.what.bytes()).sum();
    }

    /// Takes note that a process found a network.
    fn found_network(&mut self, who: Subject) {
        if self.found_network.len() < MAX_NAMES {
            let process = (who.pid, who.host);
            self.found_network.insert(process, self.line.number);
        }
    }

    /// Takes note of the GPU of a process.
    fn uses_gpu(&mut self, who: &Subject, bus: u64) {
        if let Some(pid) = who.pid.filter(|_| self.gpus.len() < MAX_NAMES) {
            self.gpus.insert((bus, who.host.clone()), pid);
        }
    }

    /// Takes note that a server of files responds again.
    fn responds(&mut self, server: &str) {
        if self.responding.len() < MAX_NAMES {
            self.responding.insert(server.into(), self.line.number);
        }
    }

    /// Drops reports on servers of files that then responded again.
    fn drop_reports_on_servers(&mut self) {
        let responding = std::mem::take(&mut self.responding);
        let is_over = |fact: &Fact| {
            let Statement::Reported { by: KERNEL, text, .. } = &fact.what else { return false };
            let server = dialects::unresponsive(text).and_then(|it| responding.get(it));
            server.is_some_and(|line| fact.line.number < *line)
        };
        self.facts.retain(|fact| !is_over(fact));
    }

    /// Drops warnings about the network of processes that then found one.
    fn drop_network_warnings(&mut self) {
        let found = std::mem::take(&mut self.found_network);
        let is_over = |fact: &Fact| {
            let is_warning = matches!(fact.what, Statement::Network { .. });
            let process = || (fact.who.pid, fact.who.host.clone());
            is_warning && found.get(&process()) > Some(&fact.line.number)
        };
        self.facts.retain(|fact| !is_over(fact));
    }

    fn add_stacks(&mut self, who: Subject, at: Timestamp, stacks: Stacks, signal: Option<i32>) {
        let frames: usize = stacks.threads.iter().flat_map(|it| &it.python).map(frame_bytes).sum();
        let bytes = self.stack_bytes + frames + stacks.threads.len() * size_of::<ThreadStack>();
        if bytes > MAX_BYTES {
            self.is_incomplete = true;
            return;
        }
        self.stack_bytes = bytes;
        self.stacks.push(Dumped { who, at, stacks, signal });
    }

    /// Takes note of the labels of a line.
    pub(super) fn name(&mut self, label: Label) {
        if let Some(task) = label.task.filter(|_| self.tasks.len() < MAX_NAMES) {
            self.tasks.insert(task);
        }
        // Whether the name of the file counts is known at its end.
        let rank = label.rank.filter(|_| !label.is_of_file);
        let Some(rank) = rank else {
            if let Some(worker) = label.worker.filter(|_| self.workers.len() < MAX_NAMES) {
                self.workers.insert(worker.name);
            }
            return;
        };
        if self.ranks.len() < MAX_NAMES {
            self.ranks.insert(rank);
        }
        let is_pair = label.local.is_some() || label.task.is_some() || label.worker.is_some();
        if is_pair && self.pairs.len() < MAX_NAMES {
            self.pairs.insert(label);
        }
    }
}

/// Whether a fact names a rank, and states no more.
pub(super) const fn is_name(what: &Statement) -> bool {
    matches!(what, Statement::Named { .. })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_facts_are_dropped_and_names_are_kept() {
        let network = |at: u8| Statement::Network {
            on: Arc::default(),
            text: char::from(at).to_string().repeat(1 << 20).into(),
        };
        let mut facts = Facts::default();
        let add = |facts: &mut Facts, what| facts.add(Subject::default(), Timestamp(1), what);
        add(&mut facts, Statement::Named { of: Some(2) });
        for at in 0..32 {
            add(&mut facts, network(at));
        }
        assert!(!facts.is_incomplete);
        add(&mut facts, network(32));
        assert!(facts.is_incomplete && facts.bytes <= MAX_BYTES);
        assert!(is_name(&facts.facts[0].what));
        assert_eq!(facts.facts[1].what, network(17));
        let last = facts.facts.last().map(|it| &it.what);
        assert_eq!(last, Some(&network(32)));
    }
}
