//! Scripted faults: `NCCL_DOUBLE_FAULTS` has entries separated by `;`, each one of
//!
//! ```text
//! delay MS FUNCTION NTH on RANK     the stream's work starts later
//! hang FUNCTION NTH on RANK         the stream's work never ends
//! report CODE FUNCTION NTH on RANK  … and CODE is the communicator's asynchronous error
//! hold MS FUNCTION NTH on RANK      the call blocks this long first
//! block FUNCTION NTH on RANK        the call never returns
//! fail CODE FUNCTION NTH on RANK    the call does nothing and returns CODE
//! ```
//!
//! FUNCTION is the name without `nccl`, NTH counts this rank's calls of it from 1, RANK is the
//! variable `RANK` of the process, or without one its rank in the communicator; `*` matches all of
//! them.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex};
use std::thread;
use std::time::Duration;

use crate::{Result, Status, lock, refuse};

static SCRIPT: LazyLock<std::result::Result<Vec<Entry>, String>> =
    LazyLock::new(|| match std::env::var("NCCL_DOUBLE_FAULTS") {
        Ok(script) => parse(&script),
        Err(_) => Ok(Vec::new()),
    });
static PROCESS_RANK: LazyLock<Option<usize>> =
    LazyLock::new(|| std::env::var("RANK").ok()?.parse().ok());
/// Number of calls by function and rank.
static CALLS: LazyLock<Mutex<HashMap<(&'static str, usize), u64>>> = LazyLock::new(Mutex::default);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    fault: Fault,
    function: String,
    nth: Option<u64>,
    rank: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Delay(Duration),
    Hang,
    Report(Status),
    Hold(Duration),
    Block,
    Fail(Status),
}

/// Faults in the work that a call puts into its stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct InStream {
    pub(crate) delay: Duration,
    pub(crate) hangs: bool,
    pub(crate) reports: Option<Status>,
}

/// Applies the script at the start of a call: may wait, fail or never return. Returns the faults in
/// the call's work.
pub(crate) fn meet(function: &'static str, rank: usize) -> Result<InStream> {
    let script = match &*SCRIPT {
        Ok(script) => script,
        Err(why) => return refuse(Status::INVALID_USAGE, format!("NCCL_DOUBLE_FAULTS: {why}")),
    };
    let mut work = InStream::default();
    if script.is_empty() {
        return Ok(work);
    }
    let rank = PROCESS_RANK.unwrap_or(rank);
    let nth = {
        let mut calls = lock(&CALLS);
        let nth = calls.entry((function, rank)).or_insert(0);
        *nth += 1;
        *nth
    };
    let is_meant = |entry: &&Entry| {
        entry.function == function
            && entry.nth.is_none_or(|it| it == nth)
            && entry.rank.is_none_or(|it| it == rank)
    };
    for entry in script.iter().filter(is_meant) {
        match entry.fault {
            Fault::Delay(time) => work.delay += time,
            Fault::Hang => work.hangs = true,
            Fault::Report(status) => work.reports = Some(status),
            Fault::Hold(time) => thread::sleep(time),
            Fault::Block => loop {
                thread::park();
            },
            Fault::Fail(status) => {
                return refuse(status, format!("{function}: made to fail by the test"));
            }
        }
    }
    Ok(work)
}

fn parse(script: &str) -> std::result::Result<Vec<Entry>, String> {
    let entries = script.split(';').map(str::trim).filter(|it| !it.is_empty());
    entries.map(|text| entry(text).ok_or_else(|| format!("not understood: {text:?}"))).collect()
}

fn entry(text: &str) -> Option<Entry> {
    let mut words = text.split_whitespace();
    let kind = words.next()?;
    let mut number = || words.next()?.parse::<i32>().ok();
    let fault = match kind {
        "delay" => Fault::Delay(Duration::from_millis(number()?.try_into().ok()?)),
        "hang" => Fault::Hang,
        "report" => Fault::Report(Status(number()?)),
        "hold" => Fault::Hold(Duration::from_millis(number()?.try_into().ok()?)),
        "block" => Fault::Block,
        "fail" => Fault::Fail(Status(number()?)),
        _ => return None,
    };
    let function = words.next()?.to_owned();
    let nth = words.next()?;
    if words.next()? != "on" {
        return None;
    }
    let rank = words.next()?;
    if words.next().is_some() {
        return None;
    }
    let all = |word: &str| word == "*";
    Some(Entry {
        fault,
        function,
        nth: if all(nth) { None } else { Some(nth.parse().ok()?) },
        rank: if all(rank) { None } else { Some(rank.parse().ok()?) },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_are_parsed_or_rejected() {
        let entry = |fault, function: &str, nth, rank| Entry {
            fault,
            function: function.into(),
            nth,
            rank,
        };
        assert_eq!(
            parse("delay 250 AllReduce 3 on 1; hang Send * on *;;fail 5 CommSplit 1 on 0 ;"),
            Ok(vec![
                entry(Fault::Delay(Duration::from_millis(250)), "AllReduce", Some(3), Some(1)),
                entry(Fault::Hang, "Send", None, None),
                entry(Fault::Fail(Status::INVALID_USAGE), "CommSplit", Some(1), Some(0)),
            ])
        );
        for bad in [
            "hang",
            "hang Send",
            "hang Send 1 on",
            "hang Send x on 1",
            "delay Send 1 on 1",
            "delay -1 Send 1 on 1",
            "hang Send 1 on 1 2",
        ] {
            assert_eq!(parse(bad), Err(format!("not understood: {bad:?}")));
        }
    }
}
