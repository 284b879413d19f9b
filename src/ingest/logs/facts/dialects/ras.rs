//! Reports of NCCL's RAS subsystem (`ncclras`), as text and as JSON: processes that are dead, and how many
//! operations ranks have launched.
//!
//! Counts are of one moment, and ranks run ahead of their devices: that counts differ is reported, and names
//! no culprit.

use std::collections::BTreeMap;
use std::sync::Arc;

use ddp_doctor_diagnosis::words::Ranks;
use ddp_doctor_proto::report::Timestamp;
use serde_json::Value;

use crate::logs::facts::{ExitStatus, Facts, Statement, Subject};
use crate::logs::lines::Line;
use crate::logs::scan::{after, cut, number, number_after, rank, small_after, until};

/// Table of communicators, with which a report begins.
const BEGIN: &str = "Communicators... (";
/// Maximum number of processes or ranks of a list.
const MAX_LIST: usize = 4096;
/// What to do if counts differ.
const AGAIN: &str = "Query again (ncclras) after a minute: if the counts are the same, read the stacks of the ranks that have \
     launched fewer operations (py-spy dump).";
/// What to do if RAS reports nothing.
const NOTHING: &str = "RAS compares how many operations were launched, not whether they completed: add the logs of all ranks, \
     and the dumps of the Flight Recorder.";

/// A report that is being read.
#[derive(Debug, Default)]
pub(super) struct Report {
    is_open: bool,
    /// The section of dead processes is being read.
    is_dead: bool,
    dead: Vec<u32>,
    /// Operation whose counts differ.
    op: Option<String>,
    /// Counts, with the number of ranks of each and the ranks that are named.
    counts: Vec<(u64, u64, Vec<u32>)>,
    has_errors: bool,
    document: Document,
}

/// Maximum length of a document.
const MAX_DOCUMENT: usize = 4 << 20;

/// A document in JSON that is being read, of one line or several.
#[derive(Debug, Default)]
struct Document {
    text: String,
    /// Number of braces that are open.
    depth: usize,
}

impl Document {
    /// Takes a line. Returns whether it completes a document about communicators.
    fn read(&mut self, line: &str) -> bool {
        if self.depth == 0 && !line.starts_with('{') {
            return false;
        }
        if self.text.len() + line.len() > MAX_DOCUMENT {
            *self = Self::default();
            return false;
        }
        self.text.push_str(line);
        self.text.push('\n');
        for byte in line.bytes() {
            match byte {
                b'{' => self.depth += 1,
                b'}' => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
        }
        let is_complete = self.depth == 0;
        if is_complete && !self.text.contains("\"communicators\"") {
            self.text = String::new();
        }
        is_complete && !self.text.is_empty()
    }
}

impl Report {
    /// Memory of a document that is not complete, in bytes.
    pub(super) const fn bytes(&self) -> usize {
        self.document.text.len()
    }

    /// Reads one line of a process.
    pub(super) fn read(&mut self, line: &Line<'_>, at: Timestamp, facts: &mut Facts) {
        let text = line.text;
        if self.document.read(text) {
            json(&std::mem::take(&mut self.document.text), at, facts);
            return;
        }
        if text.starts_with(BEGIN) {
            self.finish(facts, at);
            self.is_open = true;
        }
        if !self.is_open {
            return;
        }
        let text = text.trim();
        if let Some(op) =
            after(text, "ranks have different ").and_then(|it| it.split_once(" operation counts"))
        {
            self.add_counts(facts, at);
            self.op = Some(cut(op.0, 32).to_owned());
        } else if let Some(count) = number_after(text, " launched up to operation ") {
            let ranks = number(text).unwrap_or(0);
            self.counts.push((count, ranks, Vec::new()));
        } else if let Some(missing) = text.strip_prefix("The missing rank") {
            let missing = missing.trim_start_matches(['s', ':', ' ']);
            let ranks = missing.split(',').take(MAX_LIST).filter_map(|it| rank(it.trim()));
            for rank in ranks.filter(|_| !self.dead.is_empty()) {
                let who = Subject { rank: Some(rank), ..Subject::default() };
                facts.add(who, at, Statement::Ended(ExitStatus::default()));
            }
        } else if text == "DEAD" || text.ends_with(") DEAD") {
            self.is_dead = true;
        } else if text.starts_with('#') || text.ends_with("INCOMPLETE") {
            self.is_dead = false;
        } else if let Some(pid) = small_after(text, "Process ").filter(|_| self.is_dead) {
            if self.dead.len() < MAX_LIST {
                self.dead.push(pid);
            }
        } else if let Some((own, rest)) =
            text.strip_prefix("Rank ").and_then(|it| it.split_once(" -- GPU "))
        {
            self.named(own, rest, at, facts);
        }
        self.has_errors |= ["INCOMPLETE", "MISMATCH", "DEAD", "ERROR", "TIMEOUT"]
            .iter()
            .any(|it| text.ends_with(it));
    }

    /// Takes "4 -- GPU 0 managed by process 60004 on node 10.4.0.12".
    fn named(&mut self, own: &str, rest: &str, at: Timestamp, facts: &mut Facts) {
        let Some(rank) = rank(own) else { return };
        let pid = small_after(rest, "by process ");
        if let Some((_, _, ranks)) = self.counts.last_mut() {
            if ranks.len() < MAX_LIST {
                ranks.push(rank);
            }
        } else if pid.is_some_and(|pid| self.dead.contains(&pid)) {
            let host = after(rest, " on node ").map(|it| until(it, &[' ', ',']).into());
            let who = Subject { rank: Some(rank), pid, host, ..Subject::default() };
            facts.add(who, at, Statement::Ended(ExitStatus::default()));
        }
    }

    fn add_counts(&mut self, facts: &mut Facts, at: Timestamp) {
        let counts = std::mem::take(&mut self.counts);
        let Some(op) = self.op.take().filter(|_| counts.len() > 1) else { return };
        let mut counts = counts;
        // Ranks that are named come first.
        counts.sort_by_key(|(count, _, ranks)| (ranks.is_empty(), *count));
        let (clauses, mut is_first) = (Vec::new(), true);
        let clauses = counts.iter().fold(clauses, |mut clauses, (count, number, ranks)| {
            let who = match &ranks[..] {
                [] if *number == 1 => "1 rank".to_owned(),
                [] => format!("{number} ranks"),
                ranks => Ranks(ranks).to_string(),
            };
            let has = if *number == 1 { "has" } else { "have" };
            let what = if is_first { format!(" operations ({op})") } else { String::new() };
            is_first = false;
            clauses.push(format!("{who} {has} launched {count}{what}"));
            clauses
        });
        report(facts, at, &clauses.join(", and "), AGAIN);
    }

    /// Adds what the end of a report completes.
    pub(super) fn finish(&mut self, facts: &mut Facts, at: Timestamp) {
        self.add_counts(facts, at);
        if self.is_open && !self.has_errors {
            report(facts, at, "RAS reports no error", NOTHING);
        }
        *self = Self::default();
    }
}

fn report(facts: &mut Facts, at: Timestamp, text: &str, next: &'static str) {
    let what = Statement::Reported {
        by: "NCCL's RAS subsystem",
        on: Arc::default(),
        text: cut(text, 400).into(),
        next,
    };
    facts.add(Subject::default(), at, what);
}

/// Reads a report in JSON, which is one line.
fn json(text: &str, at: Timestamp, facts: &mut Facts) {
    let Ok(root) = serde_json::from_str::<Value>(text) else { return };
    let communicators = root["communicators"].as_array().into_iter().flatten();
    let mut says_something = false;
    for communicator in communicators.take(MAX_LIST) {
        let ranks = |key: &str| communicator[key].as_array().into_iter().flatten().take(MAX_LIST);
        let rank_of = |it: &Value| rank(&it["rank"].as_u64()?.to_string());
        for missing in ranks("missing_ranks") {
            let is_dead = missing["status"]["considered_dead"].as_bool() == Some(true);
            if let Some(rank) = rank_of(missing).filter(|_| is_dead) {
                let pid = missing["pid"].as_u64().and_then(|it| u32::try_from(it).ok());
                let host = missing["host"].as_str().map(|it| cut(it, 256).into());
                let who = Subject { rank: Some(rank), pid, host, ..Subject::default() };
                facts.add(who, at, Statement::Ended(ExitStatus::default()));
                says_something = true;
            }
        }
        let mut counts: BTreeMap<String, BTreeMap<u64, Vec<u32>>> = BTreeMap::new();
        for own in ranks("ranks") {
            let Some(rank) = rank_of(own) else { continue };
            for (op, count) in own["collective_counts"].as_object().into_iter().flatten().take(16) {
                let of_op = counts.entry(cut(op, 32).to_owned()).or_default();
                of_op.entry(count.as_u64().unwrap_or(0)).or_default().push(rank);
            }
        }
        for (op, by_count) in counts.into_iter().filter(|(_, it)| it.len() > 1) {
            let most = by_count.values().map(Vec::len).max().unwrap_or(0);
            let counts = by_count.into_iter().map(|(count, ranks)| {
                let number = ranks.len() as u64;
                (count, number, if ranks.len() == most { Vec::new() } else { ranks })
            });
            let mut found = Report { op: Some(op), counts: counts.collect(), ..Report::default() };
            found.add_counts(facts, at);
            says_something = true;
        }
    }
    if !says_something {
        report(facts, at, "RAS reports no error", NOTHING);
    }
}
