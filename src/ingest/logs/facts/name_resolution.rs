//! Names of hosts that a process could not resolve: PyTorch warns of each attempt, and then gives up connecting.

use std::collections::HashMap;

use ddp_doctor_proto::report::Timestamp;

use super::{Facts, Statement};
use crate::logs::lines::{Label, Line};
use crate::logs::scan::{after, cut, until};

const FAILED: [&str; 2] = ["The IPv4 network addresses of (", "The IPv6 network addresses of ("];
/// A name was resolved whose addresses cannot be reached.
const RESOLVED: &str = "failed to connect to ";
const REASON: &str = " cannot be retrieved (gai error: ";
const GIVEN_UP: &str = "The client socket has timed out after ";
const SERVER: &str = " while trying to connect to (";
/// Maximum length of a name and of a reason, in bytes.
const MAX_TEXT: usize = 256;
/// Maximum number of processes whose names are kept.
const MAX_PROCESSES: usize = 4096;

/// Names that processes failed to resolve last, with the reasons. Some lines of a process have its rank, and others
/// only the label of its launcher, which is the key.
#[derive(Debug, Default)]
pub(super) struct NameResolution {
    failed: HashMap<Label, (String, String)>,
}

/// Reads one line of a process.
pub(super) fn read(line: &Line<'_>, at: Timestamp, facts: &mut Facts) {
    let key = Label { rank: None, ..line.label };
    let failed = &mut facts.name_resolution.failed;
    if let Some(rest) = FAILED.iter().find_map(|it| after(line.text, it))
        && let Some(reason) = after(rest, REASON)
    {
        let text = reason.split_once(" - ").map_or(reason, |(_, words)| words);
        let reason = cut(until(text, &[')']), MAX_TEXT).to_owned();
        if failed.len() < MAX_PROCESSES || failed.contains_key(&key) {
            failed.insert(key, (cut(until(rest, &[',']), MAX_TEXT).to_owned(), reason));
        }
    } else if !failed.is_empty() && line.text.contains(RESOLVED) {
        failed.remove(&key);
    } else if !failed.is_empty()
        && let Some(server) =
            after(line.text, GIVEN_UP).and_then(|it| after(it, SERVER)).map(|it| until(it, &[',']))
        && failed.get(&key).is_some_and(|it| it.0 == server)
        && let Some((host, reason)) = failed.remove(&key)
    {
        let what = Statement::Unresolved { host: host.into(), reason: reason.into() };
        facts.add(line.label.into(), at, what);
    }
}
