//! Names of hosts that a process could not resolve: PyTorch warns of each attempt, and then gives up connecting.

use ddp_doctor_proto::report::Timestamp;

use super::{Facts, Statement};
use crate::ingest::logs::lines::Line;
use crate::ingest::logs::scan::{after, cut, until};

/// Warnings about IPv6 are also those of processes that then connect.
const FAILED: &str = "The IPv4 network addresses of (";
const REASON: &str = " cannot be retrieved (gai error: ";
const GIVEN_UP: &str = "The client socket has timed out after ";
const SERVER: &str = " while trying to connect to (";
/// Maximum length of a name and of a reason, in bytes.
const MAX_TEXT: usize = 256;

/// The name that a process failed to resolve last, with the reason.
#[derive(Debug, Default)]
pub(super) struct NameResolution {
    failed: Option<(String, String)>,
}

impl NameResolution {
    /// Reads one line of a process.
    pub(super) fn read(&mut self, line: &Line<'_>, at: Timestamp, facts: &mut Facts) {
        if let Some(rest) = after(line.text, FAILED)
            && let Some(reason) = after(rest, REASON)
        {
            let reason = reason.split_once(" - ").map_or(reason, |(_, words)| words);
            let reason = cut(until(reason, &[')']), MAX_TEXT).to_owned();
            self.failed = Some((cut(until(rest, &[',']), MAX_TEXT).to_owned(), reason));
        } else if let Some(server) =
            after(line.text, GIVEN_UP).and_then(|it| after(it, SERVER)).map(|it| until(it, &[',']))
            && let Some((host, reason)) = self.failed.take_if(|it| it.0 == server)
        {
            let what = Statement::Unresolved { host: host.into(), reason: reason.into() };
            facts.add(line.label.into(), at, what);
        }
    }
}
