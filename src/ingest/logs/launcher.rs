//! Lines of launchers: the failure report of torchrun, and Slurm's.

use ddp_doctor_proto::report::Timestamp;

use super::facts::{ExitStatus, Facts, Statement, Subject};
use super::label::{Label, Line, report_time};
use super::scan::{self, after, cut, number, small_after};
use crate::diagnosis::model::MAX_WORLD;

/// Maximum number of tasks in a range of Slurm.
const MAX_TASKS: u32 = 4096;

/// A failure report of torchrun, of which some lines were read.
#[derive(Debug, Default)]
pub(super) struct Failure {
    time: Option<Timestamp>,
    host: Option<String>,
    rank: Option<(u32, Option<u32>)>,
}

/// Reads one line of torchrun; `failure` is the report that earlier lines began.
pub(super) fn torchrun(line: &Line<'_>, at: Timestamp, failure: &mut Failure, facts: &mut Facts) {
    let text = line.text.trim_start();
    let Some((key, value)) = text.split_once(':') else {
        return;
    };
    let value = value.trim();
    match key.trim_end() {
        "time" => failure.time = report_time(value),
        "host" => failure.host = Some(cut(value, 256).to_owned()),
        "rank" => {
            let local = after(value, "local_rank: ").and_then(scan::rank);
            failure.rank = scan::rank(value).map(|rank| (rank, local));
        }
        "exitcode" => {
            let Failure { time, host, rank } = std::mem::take(failure);
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
            let how = ExitStatus::of_status(status);
            facts.add(who, time.unwrap_or(at), Statement::Ended(how));
        }
        _ => {}
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
    if let Some((_, why)) = line.text.split_once(" CANCELLED AT ")
        && let Some((_, why)) = why.split_once(" DUE TO ")
    {
        let text = cut(why.trim_end_matches([' ', '*']), 256).into();
        facts.add(Subject::default(), at, Statement::Cancelled { text });
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
