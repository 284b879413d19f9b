//! Lines of launchers: the failure report of torchrun, and Slurm's.

use ddp_doctor_proto::report::Timestamp;

use super::facts::{ExitStatus, Facts, Statement, Subject};
use super::label::{Label, Line, report_time};
use super::scan::{self, after, cut, number, small_after};
use crate::diagnosis::model::MAX_WORLD;

/// The signal SIGTERM.
pub(super) const TERM: i32 = 15;
/// Maximum number of tasks in a range of Slurm.
const MAX_TASKS: u32 = 4096;

/// A failure report of torchrun, of which some lines were read.
#[derive(Debug, Default)]
pub(super) struct Report {
    time: Option<Timestamp>,
    host: Option<String>,
    rank: Option<(u32, Option<u32>)>,
    failures: Vec<Failure>,
    /// The next failure is the first that was observed, which the report lists last.
    is_first: bool,
}

#[derive(Debug)]
struct Failure {
    rank: u32,
    who: Subject,
    at: Timestamp,
    how: ExitStatus,
}

/// Reads one line of torchrun; `report` is the report that earlier lines began.
pub(super) fn torchrun(line: &Line<'_>, at: Timestamp, report: &mut Report, facts: &mut Facts) {
    let text = line.text.trim_start();
    if text.starts_with("Root Cause (first observed failure)") {
        report.is_first = true;
    }
    if let Some(rest) = after(text, "Received ")
        && let Some((signal, _)) = rest.split_once(" death signal")
        && let Some(signal) = signal_of(signal)
    {
        facts.add(Subject::default(), at, Statement::Interrupted { signal });
    }
    if text.contains("will restart worker group") {
        facts.add(Subject::default(), at, Statement::Restarted);
    }
    if text.contains("worker group successfully finished") {
        facts.add(Subject::default(), at, Statement::Finished);
    }
    let Some((key, value)) = text.split_once(':') else {
        return;
    };
    let value = value.trim();
    match key.trim_end() {
        "time" => report.time = report_time(value),
        "host" => report.host = Some(cut(value, 256).to_owned()),
        "rank" => {
            let local = after(value, "local_rank: ").and_then(scan::rank);
            report.rank = scan::rank(value).map(|rank| (rank, local));
        }
        "exitcode" => {
            let (time, host, rank) = (report.time.take(), report.host.take(), report.rank.take());
            let (Some((rank, local)), Some(status)) = (rank, status(value)) else {
                return;
            };
            let named = Label {
                rank: Some(rank),
                local,
                ..Label::default()
            };
            facts.name(named);
            let who = Subject {
                label: named,
                rank: Some(rank),
                pid: small_after(value, "pid: "),
                host: host.map(Into::into),
                ..Subject::default()
            };
            report.failures.push(Failure {
                rank,
                who,
                at: time.unwrap_or(at),
                how: ExitStatus::of_status(status),
            });
            if report.is_first {
                report.finish(facts);
            }
        }
        _ => {}
    }
}

impl Report {
    /// Adds the failures to the facts, the first one first.
    ///
    /// Of failures with one time, torchrun calls that of the lowest rank the first: it knows nothing
    /// more of their order. If it names a higher rank, the failures of lower ones came later, and
    /// are no evidence against their ranks. Signals that end a job are left to the engine, which
    /// knows what launchers do; if all have failed by one, nobody but their sender ended the job.
    pub(super) fn finish(&mut self, facts: &mut Facts) {
        let Self {
            mut failures,
            is_first,
            ..
        } = std::mem::take(self);
        if failures.len() > 1 && failures.iter().all(|it| it.how.signal == Some(TERM)) {
            let at = failures.iter().map(|it| it.at).min().unwrap_or_default();
            facts.add(
                Subject::default(),
                at,
                Statement::Interrupted { signal: TERM },
            );
        }
        let Some(first) = failures.pop_if(|_| is_first) else {
            for it in failures {
                facts.add(it.who, it.at, Statement::Ended(it.how));
            }
            return;
        };
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
    let number: i64 = value.split([' ', '(']).next()?.parse().ok()?;
    i32::try_from(number)
        .ok()
        .filter(|it| (-64..=255).contains(it))
}

/// Reads one line of Slurm: "srun: error: node: task 3: Out Of Memory".
pub(super) fn slurm(line: &Line<'_>, at: Timestamp, facts: &mut Facts) -> bool {
    if let Some((_, when)) = line.text.split_once(" CANCELLED AT ") {
        let when = when.trim_end_matches([' ', '*']);
        let (when, why) = when.split_once(" DUE TO ").unwrap_or((when, ""));
        let why = (!why.is_empty()).then(|| cut(why, 256).into());
        let cancelled = report_time(when).unwrap_or(at);
        facts.last = facts.last.max(cancelled);
        let at = cut(when, 64).into();
        facts.add(
            Subject::default(),
            cancelled,
            Statement::Cancelled { why, at },
        );
        return true;
    }
    let Some(message) = after(line.text, "srun: error: ") else {
        return false;
    };
    let Some((host, message)) = message.split_once(": task") else {
        return false;
    };
    let Some((tasks, how)) = message.trim_start_matches('s').split_once(": ") else {
        return false;
    };
    let Some(how) = ended(how) else { return false };
    for task in tasks.split(',').filter_map(range).flatten() {
        let label = Label {
            task: Some(task),
            ..Label::default()
        };
        let who = Subject {
            label,
            host: Some(cut(host, 256).into()),
            ..Subject::default()
        };
        facts.add(who, at, Statement::Ended(how));
    }
    true
}

/// "3" or "1-3".
fn range(text: &str) -> Option<std::ops::RangeInclusive<u32>> {
    let text = text.trim().trim_matches(['[', ']']);
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
    (last < MAX_WORLD && last.checked_sub(first)? < MAX_TASKS).then_some(first..=last)
}

fn ended(how: &str) -> Option<ExitStatus> {
    let signal = |signal, for_memory| ExitStatus {
        code: None,
        signal: Some(signal),
        for_memory,
    };
    if let Some(code) = after(how, "Exited with exit code ") {
        let code = number(code).and_then(|it| i32::try_from(it).ok())?;
        return Some(ExitStatus::of_status(code));
    }
    let signals = [
        ("Out Of Memory", 9, true),
        ("Killed", 9, false),
        ("Segmentation fault", 11, false),
        ("Aborted", 6, false),
        ("Bus error", 7, false),
        ("Terminated", 15, false),
    ];
    let mut signals = signals.into_iter();
    let (_, number, for_memory) = signals.find(|(words, ..)| how.starts_with(words))?;
    Some(signal(number, for_memory))
}
