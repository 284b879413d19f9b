//! Lines of launchers and of the kernel: the failure report of torchrun, Slurm's, mpirun's.

use ddp_doctor_diagnosis::model::MAX_WORLD;
use ddp_doctor_diagnosis::model::libc_signal::{KILL, TERM};
use ddp_doctor_proto::report::Timestamp;

use super::traceback::Traceback;
use super::{ExitStatus, Facts, Statement, Subject};
use crate::logs::lines::{Label, Line, Name, Worker, kernel_time, report_time};
use crate::logs::scan::{self, after, cut, number, small_after, until};

/// How launchers report that all of their own ranks ended well, by two parts of a line: torchrun and DeepSpeed.
const SUCCESSES: [(&str, &str); 2] =
    [("worker group successfully finished", ""), ("] Process ", " exits successfully.")];
/// The same of frameworks and batch systems about all ranks of the job: Lightning, fairseq, torchtitan, Megatron-LM, the
/// trainer of Transformers, a server of SGLang that was stopped, Ray, the operator of Kubernetes, and Slurm's `seff`.
const SUCCESSES_OF_JOBS: [(&str, &str); 10] = [
    ("`Trainer.fit` stopped: `max_", ""),
    ("fairseq_cli.train ", " done training in "),
    ("[titan] ", " Training completed"),
    ("[after training is done] datetime: ", ""),
    ("Training completed. Do not forget to share your model", ""),
    ("{'train_runtime': ", "'train_loss': "),
    ("Gracefully exiting... ", "emaining number of requests 0"),
    ("Job 'raysubmit_", "' succeeded"),
    ("PyTorchJob ", " successfully completed."),
    ("State: COMPLETED ", "(exit code 0)"),
];
/// What to do about a node that Slurm lost, and about one that Ray lost.
const FAILED_NODE: &str = "Find out why that node failed (sinfo -R), and exclude it.";
const DEAD_NODE: &str =
    "Find out why that node stopped answering: its kernel's log, the log of its raylet.";
const LOST_DAEMON: &str = "Find out why mpirun lost its daemon on that node: whether the node runs, and the network to it.";
/// How SGLang reports that it kills all of its processes, since one has failed.
const STOPS_ALL: &str = "Received sigquit from a child process";
/// Maximum number of tasks in a range of Slurm.
const MAX_TASKS: u32 = 4096;

/// A failure report of torchrun, of which some lines were read.
#[derive(Debug, Default)]
pub(super) struct Report {
    time: Option<Timestamp>,
    host: Option<String>,
    rank: Option<(u32, Option<u32>)>,
    /// The local ranks of an agent, whose ranks it lists in the same order below.
    locals: Vec<Option<u32>>,
    /// The process of mpirun whose status is the next line.
    task: Option<u32>,
    /// The line before asks a shell for the status of a command.
    asks_status: bool,
    /// The pod that `kubectl describe` describes.
    pod: Option<Name>,
    failures: Vec<Failure>,
    /// The next failure is the first that was observed, which the report lists last.
    is_first: bool,
    /// The process and the time of the failure that was read last.
    last: Option<(Label, Timestamp)>,
    /// Time of the failures that an earlier report lists.
    failed: Option<Timestamp>,
    /// The traceback of that failure is being read.
    is_traceback: bool,
    traceback: Traceback,
}

#[derive(Debug)]
struct Failure {
    rank: u32,
    who: Subject,
    at: Timestamp,
    how: ExitStatus,
}

/// Reads one line of torchrun; `report` is the report that earlier lines began. Returns whether the line
/// belongs to a traceback in it.
pub(super) fn torchrun(
    line: &Line<'_>,
    at: Timestamp,
    report: &mut Report,
    facts: &mut Facts,
) -> bool {
    let is_inside = report.read_traceback(line, facts);
    if !is_inside {
        message(line.text, at, facts);
        // Several launches may write to one file.
        let is_later = |failed: &mut Timestamp| line.time.is_some_and(|it| it > *failed);
        if is_launch(line.text) && report.failed.take_if(is_later).is_some() {
            facts.add(Subject::default(), at, Statement::Restarted);
        }
        report.read(line.text.trim_start(), at, facts);
        report.begin_traceback(line, facts);
    }
    is_inside || report.is_traceback
}

/// Whether torchrun writes this line when it starts.
fn is_launch(text: &str) -> bool {
    let is_banner = text.ends_with("] *****************************************");
    is_banner || text.contains("Starting elastic_operator with launch configs")
}

/// Reads a message of torchrun's agent.
fn message(text: &str, at: Timestamp, facts: &mut Facts) {
    if let Some(rest) = after(text, "Received ")
        && let Some((signal, _)) = rest.split_once(" death signal")
        && let Some(signal) = signal_of(signal)
    {
        facts.add(Subject::default(), at, Statement::Interrupted { signal });
    }
    if let Some(node) = after(text, "The node '")
        && let Some((node, rest)) = node.split_once("' has failed to send a keep-alive heartbeat")
        && let Some(rendezvous) = after(rest, "to the rendezvous '")
    {
        let rendezvous = until(rendezvous, &['\'']);
        let text = format!("RendezvousConnectionError: node {node} lost rendezvous {rendezvous}");
        let what = Statement::Raised {
            text: cut(&text, 512).into(),
            place: None,
            uncaught: false,
            went_on: false,
            is_last: false,
            is_logged: false,
            by_launcher: true,
        };
        facts.add(Subject::default(), at, what);
    }
    if text.contains("will restart worker group") {
        facts.add(Subject::default(), at, Statement::Restarted);
    }
    let is_success = |(one, other): &(&str, &str)| scan::has(text, one) && scan::has(text, other);
    let of_job = SUCCESSES_OF_JOBS.iter().any(is_success);
    if of_job || SUCCESSES.iter().any(is_success) {
        facts.add(Subject::default(), at, Statement::Finished { of_job });
    }
    if let Some(rest) = after(text, "failed (exitcode: ")
        && let Some(status) = status(until(rest, &[')']))
        && let Some(local) = after(rest, "local_rank: ").and_then(scan::rank)
    {
        let who = of_local(local, after(rest, "pid: ").unwrap_or_default());
        facts.add(who, at, Statement::Failed(ExitStatus::of_status(status)));
    }
    if let Some((child, how)) = scan::split(text, " terminated with code ")
        && let Some((before, pid)) = child.split_once("] Child process with PID ")
        && let Some(local) = after(before, "[rank: ").and_then(scan::rank)
        && let Some(how) = status(how)
    {
        // Lightning counts its children, and is rank 0 of the node itself.
        let how = ExitStatus::of_status(how);
        facts.add(of_local(local, pid), at, Statement::Ended(how));
    }
    if let Some((before, command)) = scan::split(text, " spawned with command: ")
        && let Some((_, pid)) = before.rsplit_once("process ")
        && let Some(local) = after(command, "--local_rank=").and_then(scan::rank)
    {
        facts.add(of_local(local, pid), at, Statement::Named { of: None });
    }
    facts.worlds.extend(scan::world_size_after(text, "dist_world_size="));
    if let Some(how) = after(text, " exits with return code = ").and_then(status) {
        // The command in front is that of the last process, whichever failed.
        let how = ExitStatus::of_status(how);
        facts.add(Subject::default(), at, Statement::Ended(how));
    }
    if scan::has(text, STOPS_ALL) {
        facts.add(Subject::default(), at, Statement::Stopped { signal: KILL });
    }
    if let Some(rest) = after(text, "Sending process ")
        && let Some(pid) = scan::small(rest)
        && let Some(signal) = after(rest, "closing signal ").and_then(signal_of)
    {
        let who = Subject { pid: Some(pid), ..Subject::default() };
        facts.add(who, at, Statement::Stopped { signal });
    }
}

/// The process with this rank on its node, and the process id at the beginning of `pid`.
pub(super) fn of_local(local: u32, pid: &str) -> Subject {
    let label = Label { local: Some(local), ..Label::default() };
    Subject { pid: scan::small(pid), ..label.into() }
}

impl Report {
    /// Memory of the traceback that is not complete, in bytes.
    pub(super) const fn bytes(&self) -> usize {
        self.traceback.bytes()
    }

    /// Begins to read the traceback of the failure that was read last, if the line begins one: a
    /// process that writes an error file states it.
    fn begin_traceback(&mut self, line: &Line<'_>, facts: &mut Facts) {
        let value = line
            .text
            .trim_start()
            .strip_prefix("traceback")
            .and_then(|it| it.trim_start().strip_prefix(": "));
        if let Some((label, at)) = self.last
            && let Some(text) = value.filter(|it| it.starts_with("Traceback ("))
        {
            self.is_traceback = true;
            let line = of_failure(text, label, at);
            self.traceback.read(&line, at, facts);
        }
    }

    /// Reads a line of that traceback, which is indented.
    fn read_traceback(&mut self, line: &Line<'_>, facts: &mut Facts) -> bool {
        let Some((label, at)) = self.last.filter(|_| self.is_traceback) else {
            return false;
        };
        let text = line.text.strip_prefix("  ");
        if let Some(text) = text {
            self.traceback.read(&of_failure(text, label, at), at, facts);
        } else {
            self.end_traceback(facts);
        }
        text.is_some()
    }

    fn end_traceback(&mut self, facts: &mut Facts) {
        if let Some((label, _)) = self.last {
            self.is_traceback = false;
            self.traceback.finish(label, facts);
        }
    }

    /// Reads a line in which an agent lists its local ranks, "local_ranks=[0, 1]", or their ranks.
    fn read_ranks(&mut self, text: &str, facts: &mut Facts) {
        let list = |key| {
            let ranks = until(after(text, key)?, &[']']).split(',').take(MAX_WORLD as usize);
            Some(ranks.map(|it| scan::rank(it.trim())).collect::<Vec<_>>())
        };
        if let Some(locals) = list("local_ranks=[") {
            self.locals = locals;
        }
        for (index, rank) in list("global_ranks=[").into_iter().flatten().enumerate() {
            facts.name(Label {
                rank,
                local: self.locals.get(index).copied().flatten(),
                ..Label::default()
            });
        }
    }

    /// Reads a line of the list of failures, or of mpirun's message on the first process that failed.
    fn read(&mut self, text: &str, at: Timestamp, facts: &mut Facts) {
        if text.starts_with("Root Cause (first observed failure)") {
            self.is_first = true;
        }
        if std::mem::replace(&mut self.asks_status, text.ends_with("echo $?"))
            && text == "0"
            && facts.is_empty()
        {
            // The command may have ended with another one, "tee", which does not fail.
            facts.add(Subject::default(), at, Statement::Finished { of_job: false });
        }
        self.read_ranks(text, facts);
        let Some((key, value)) = text.split_once(':') else {
            return;
        };
        let value = value.trim();
        match key.trim_end() {
            "time" => self.time = report_time(value),
            "host" => self.host = Some(cut(value, 256).to_owned()),
            "rank" => {
                let local = after(value, "local_rank: ").and_then(scan::rank);
                self.rank = scan::rank(value).map(|rank| (rank, local));
            }
            "Name" => self.pod = Name::of_container(value),
            "Reason" if value == "OOMKilled" => {
                let (pid, host) = (None, None);
                let worker = self.pod.map(|name| Worker { name, pid, host });
                let label = Label { worker, ..Label::default() };
                let for_memory = true;
                let how = ExitStatus { for_memory, ..ExitStatus::of_status(-KILL) };
                facts.add(label.into(), at, Statement::Ended(how));
            }
            "Remote daemon" => {
                if let Some(node) = after(value, " on node ") {
                    let host = Some(cut(until(node, &[' ']), 256).into());
                    let who = Subject { host, ..Subject::default() };
                    let what = Statement::NodeFailed { by: "mpirun", next: LOST_DAEMON };
                    facts.add(who, at, what);
                }
            }
            "Process name" => self.task = value.rsplit_once(',').and_then(|it| scan::rank(it.1)),
            "Exit code" => {
                if let (Some(task), Some(status)) = (self.task.take(), status(value)) {
                    let label = Label { task: Some(task), ..Label::default() };
                    let how = ExitStatus::of_status(status);
                    facts.add(label.into(), at, Statement::Ended(how));
                }
            }
            "exitcode" => {
                let at = self.time.take().unwrap_or(at);
                let (host, rank) = (self.host.take(), self.rank.take());
                let (Some((rank, local)), Some(status)) = (rank, status(value)) else {
                    return;
                };
                let named = Label { rank: Some(rank), local, ..Label::default() };
                facts.name(named);
                let who = Subject {
                    rank: Some(rank),
                    pid: small_after(value, "pid: "),
                    host: host.map(Into::into),
                    ..named.into()
                };
                self.failures.push(Failure { rank, who, at, how: ExitStatus::of_status(status) });
                if self.is_first {
                    self.finish(facts);
                }
                self.last = Some((named, at));
            }
            _ => {}
        }
    }

    /// Adds the failures to the facts, the first one first.
    ///
    /// Of failures with one time, torchrun calls that of the lowest rank the first: it knows nothing
    /// more of their order. If it names a higher rank, the failures of lower ones came later, and
    /// are not evidence against their ranks. Signals that end a job are left to the engine, which
    /// knows what launchers do; if all have failed by one, nobody but their sender ended the job.
    pub(super) fn finish(&mut self, facts: &mut Facts) {
        self.end_traceback(facts);
        let Self { mut failures, is_first, failed, .. } = std::mem::take(self);
        self.failed = failed;
        if failures.len() > 1 && failures.iter().all(|it| it.how.signal == Some(TERM)) {
            let at = failures.iter().map(|it| it.at).min().unwrap_or_default();
            facts.add(Subject::default(), at, Statement::Interrupted { signal: TERM });
        }
        let Some(first) = failures.pop_if(|_| is_first) else {
            for it in failures {
                facts.add(it.who, it.at, Statement::Ended(it.how));
            }
            return;
        };
        self.failed = Some(first.at);
        facts.add(first.who, first.at, Statement::Ended(first.how));
        for it in failures {
            let is_later = it.at > first.at || it.rank < first.rank;
            let what = if is_later && it.how.signal != Some(TERM) {
                Statement::EndedLater(it.how)
            } else {
                Statement::Ended(it.how)
            };
            facts.add(it.who, it.at.max(first.at), what);
        }
    }
}

/// A line of the traceback of a failure.
const fn of_failure(text: &str, label: Label, at: Timestamp) -> Line<'_> {
    Line { label, is_own_rank: true, shows_role: None, time: Some(at), is_guessed: false, text }
}

/// The number of "Signals.SIGTERM" or "15", if it ends jobs.
fn signal_of(text: &str) -> Option<i32> {
    match text.rsplit('.').next()? {
        "SIGHUP" | "1" => Some(1),
        "SIGINT" | "2" => Some(2),
        "SIGQUIT" | "3" => Some(3),
        "SIGTERM" | "15" => Some(TERM),
        _ => None,
    }
}

/// "-9 (pid: 7)".
fn status(value: &str) -> Option<i32> {
    let number: i64 = value.split([' ', '(']).next()?.trim_end_matches('.').parse().ok()?;
    i32::try_from(number).ok().filter(|it| (-64..=255).contains(it))
}

/// Reads one line of Slurm: "srun: error: node: task 3: Out Of Memory".
pub(super) fn slurm(line: &Line<'_>, at: Timestamp, facts: &mut Facts) {
    if let Some((_, when)) = scan::split(line.text, " CANCELLED AT ") {
        let when = when.trim_end_matches([' ', '*']);
        let (when, why) = when.split_once(" DUE TO ").unwrap_or((when, ""));
        let reason = until(why, &[',']);
        let why = (!reason.is_empty()).then(|| cut(reason, 256).into());
        let canceled = report_time(when).unwrap_or(at);
        facts.last = facts.last.max(canceled);
        let at = cut(when, 64).into();
        facts.add(Subject::default(), canceled, Statement::Canceled { why, at });
        return;
    }
    if let Some(node) = after(line.text, "The node with node id: ")
        && node.contains(" has been marked dead ")
        && let Some(host) = after(node, " address: ")
    {
        let host = Some(cut(until(host, &[' ']), 256).into());
        let who = Subject { host, ..Subject::default() };
        facts.add(who, at, Statement::NodeFailed { by: "Ray", next: DEAD_NODE });
        return;
    }
    let Some(message) = after(line.text, "srun: error: ") else {
        return;
    };
    if let Some(host) = message.strip_prefix("Node failure on ") {
        let host = Some(cut(host.trim(), 256).into());
        let who = Subject { host, ..Subject::default() };
        facts.add(who, at, Statement::NodeFailed { by: "Slurm", next: FAILED_NODE });
        return;
    }
    let Some((host, message)) = message.split_once(": task") else {
        return;
    };
    let Some((tasks, how)) = message.trim_start_matches('s').split_once(": ") else {
        return;
    };
    let Some(how) = ended(how) else { return };
    for task in tasks.split(',').filter_map(range).flatten() {
        let label = Label { task: Some(task), ..Label::default() };
        let who = Subject { host: Some(cut(host, 256).into()), ..label.into() };
        facts.add(who, at, Statement::Ended(how));
    }
}

/// Reads one line of mpirun or of the kernel about the end of a process.
pub(super) fn process(line: &Line<'_>, at: Timestamp, facts: &mut Facts) {
    if let Some(rest) = after(line.text, " noticed that process rank ")
        && let Some(host) = after(rest, " on node ")
        && let Some(signal) = small_after(host, "exited on signal ")
        && let Ok(signal) = i32::try_from(signal)
    {
        let label = Label { task: scan::rank(rest), ..Label::default() };
        let who = Subject {
            pid: small_after(rest, " with PID ").filter(|&pid| pid > 0),
            host: Some(cut(until(host, &[' ']), 256).into()),
            ..label.into()
        };
        let how = ExitStatus::of_status(-signal);
        facts.add(who, at, Statement::Ended(how));
        return;
    }
    if let Some(pid) = small_after(line.text, "Worker PID: ") {
        let host = ["ip=", "Worker IP address: "]
            .iter()
            .find_map(|it| after(line.text, it))
            .map(|it| until(it, &[')', ',', ' ']));
        ray_worker("", pid, host, None, at, facts);
        return;
    }
    // Slurm has a cgroup for each task.
    if let Some(process) =
        after(line.text, "oom-kill:constraint=").and_then(|it| after(it, ",task_memcg="))
        && let Some((group, process)) = process.split_once(",task=")
        && let Some(task) = group.rsplit_once("/task_").and_then(|it| scan::rank(it.1))
    {
        let label = Label { task: Some(task), ..Label::default() };
        let who = Subject { pid: small_after(process, ",pid="), ..label.into() };
        let name = cut(until(process, &[',']), 64).into();
        let on = kernel_time(line.text);
        facts.add(who, at, Statement::KilledForMemory { name, on });
        return;
    }
    let is_kernel = ["ut of memory", "total-vm:"];
    if let Some(pid) = small_after(line.text, "Killed process ")
        && is_kernel.iter().any(|it| line.text.contains(it))
    {
        let who = Subject { pid: Some(pid), ..Subject::default() };
        let rest = after(line.text, "Killed process ").and_then(|it| after(it, " ("));
        let name = cut(rest.map_or("", |it| until(it, &[')'])), 64).into();
        let on = kernel_time(line.text);
        facts.add(who, at, Statement::KilledForMemory { name, on });
    }
}

/// Adds the end of a worker of Ray with this name on this host, which Ray observes without its status.
pub(super) fn ray_worker(
    name: &str,
    pid: u32,
    host: Option<&str>,
    rank: Option<u32>,
    at: Timestamp,
    facts: &mut Facts,
) {
    let label = Label { worker: Worker::of_ray(name, pid, host), ..Label::default() };
    let who = Subject { rank, ..label.into() };
    facts.add(who, at, Statement::Ended(ExitStatus::default()));
}

/// "3" or "1-3".
fn range(text: &str) -> Option<std::ops::RangeInclusive<u32>> {
    let text = text.trim().trim_matches(['[', ']']);
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
    (last < MAX_WORLD && last.checked_sub(first)? < MAX_TASKS).then_some(first..=last)
}

fn ended(how: &str) -> Option<ExitStatus> {
    if let Some(code) = after(how, "Exited with exit code ") {
        let code = number(code).and_then(|it| i32::try_from(it).ok())?;
        return Some(ExitStatus::of_status(code));
    }
    let mut signals = [
        ("Out Of Memory", 9, true),
        ("Killed", 9, false),
        ("Segmentation fault", 11, false),
        ("Aborted", 6, false),
        ("Bus error", 7, false),
        ("Terminated", 15, false),
    ]
    .into_iter();
    let (_, signal, for_memory) = signals.find(|(words, ..)| how.starts_with(words))?;
    let how = ExitStatus::of_status(-signal);
    Some(ExitStatus { for_memory, ..how })
}
