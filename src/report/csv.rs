//! Ranks and the calls of findings as CSV (RFC 4180), one row per finding and rank.
//!
//! The columns are documented in `docs/operations/formats.md`.

use std::collections::{HashMap, HashSet};
use std::io::{self, Write};

use ddp_doctor_proto::report::{Finding, Rank, RankCall, Report, Timestamp};

use super::text::plain;
use super::timeline::{TimedCall, Timeline};

/// Names of the columns.
pub const COLUMNS: [&str; 42] = [
    "job",
    "attempt",
    "verdict",
    "finding",
    "code",
    "name",
    "severity",
    "effect",
    "confidence",
    "role",
    "rank",
    "is_root",
    "is_victim",
    "host",
    "pid",
    "rank_state",
    "exit_code",
    "exit_signal",
    "rank_step",
    "layer",
    "group",
    "op",
    "seq",
    "call_state",
    "waited_ms",
    "step",
    "dtype",
    "shape",
    "numel",
    "reduce_op",
    "root",
    "peer",
    "tag",
    "file",
    "line",
    "function",
    "issued_at",
    "returned_at",
    "wait_began_at",
    "wait_ended_at",
    "completed_at",
    "restart",
];

/// Writes the table of all jobs.
///
/// # Errors
///
/// Fails if `out` cannot be written.
pub fn table(out: &mut dyn Write, jobs: &[(&Report, &Timeline)]) -> io::Result<()> {
    row(out, COLUMNS.iter().map(|it| (*it).to_owned()))?;
    for &(report, timeline) in jobs {
        let mut ranks: HashMap<u32, &Rank> = HashMap::new();
        for rank in &report.ranks {
            ranks.entry(rank.rank).or_insert(rank);
        }
        let mut with_rows: HashSet<u32> = HashSet::new();
        for (number, finding) in report.findings.iter().enumerate() {
            let rows = RowsOf::new(report, timeline, number, finding);
            for call in &finding.per_rank {
                with_rows.insert(call.rank);
                row(out, rows.cells(call, ranks.get(&call.rank).copied()).into_iter())?;
            }
        }
        for rank in report.ranks.iter().filter(|rank| !with_rows.contains(&rank.rank)) {
            let mut cells = vec![
                text(&report.job.id),
                report.job.attempt.to_string(),
                report.verdict.to_string(),
            ];
            cells.resize(10, String::new());
            cells.push(rank.rank.to_string());
            cells.resize(13, String::new());
            cells.extend(of_rank(Some(rank)));
            cells.resize(COLUMNS.len() - 1, String::new());
            cells.push(rank.attempt.to_string());
            row(out, cells.into_iter())?;
        }
    }
    Ok(())
}

/// The rows of a finding.
struct RowsOf<'a> {
    report: &'a Report,
    timeline: &'a Timeline,
    number: usize,
    finding: &'a Finding,
    roots: HashSet<u32>,
    victims: HashSet<u32>,
}

impl<'a> RowsOf<'a> {
    fn new(
        report: &'a Report,
        timeline: &'a Timeline,
        number: usize,
        finding: &'a Finding,
    ) -> Self {
        let [roots, victims] =
            [&finding.ranks.root, &finding.ranks.victims].map(|it| it.iter().copied().collect());
        Self { report, timeline, number, finding, roots, victims }
    }

    fn cells(&self, call: &RankCall, rank: Option<&Rank>) -> Vec<String> {
        let (report, finding) = (self.report, self.finding);
        let group = finding.group.as_ref();
        let place = call.place.as_ref();
        let mut cells = vec![
            text(&report.job.id),
            report.job.attempt.to_string(),
            report.verdict.to_string(),
            self.number.to_string(),
            text(&finding.code),
            text(&finding.name),
            finding.severity.to_string(),
            finding.effect.to_string(),
            finding.confidence.to_string(),
            finding.role.to_string(),
            call.rank.to_string(),
            self.roots.contains(&call.rank).to_string(),
            self.victims.contains(&call.rank).to_string(),
        ];
        cells.extend(of_rank(rank));
        cells.extend([
            group.map(|it| text(&it.layer)).unwrap_or_default(),
            group.map(|it| text(&it.name)).unwrap_or_default(),
            call.op.as_deref().map(text).unwrap_or_default(),
            number_or_empty(call.seq),
            call.state.to_string(),
            number_or_empty(call.waited_ms),
            number_or_empty(call.step),
            call.dtype.as_deref().map(text).unwrap_or_default(),
            call.shapes.as_deref().map(shape).unwrap_or_default(),
            number_or_empty(call.numel),
            call.reduce_op.as_deref().map(text).unwrap_or_default(),
            number_or_empty(call.root),
            number_or_empty(call.peer),
            number_or_empty(call.tag),
            place.map(|it| text(&it.file)).unwrap_or_default(),
            number_or_empty(place.map(|it| it.line)),
            place.map(|it| text(&it.function)).unwrap_or_default(),
        ]);
        let timed = self.timeline.call(call, group.map(|it| it.name.as_str()));
        cells.extend(times(timed));
        cells.push(finding.attempt.to_string());
        cells
    }
}

fn of_rank(rank: Option<&Rank>) -> [String; 6] {
    let Some(rank) = rank else {
        return Default::default();
    };
    [
        text(&rank.host),
        number_or_empty(Some(rank.pid).filter(|&pid| pid > 0)),
        rank.state.to_string(),
        number_or_empty(rank.exit.code),
        number_or_empty(rank.exit.signal),
        number_or_empty(Some(rank.step).filter(|&step| step > 0)),
    ]
}

/// Times of a call, as RFC 3339 in UTC. A wait that was not recorded has none.
fn times(call: Option<&TimedCall>) -> [String; 5] {
    let time = |at: Option<Timestamp>| at.map(|at| at.to_string()).unwrap_or_default();
    let Some(call) = call else {
        return Default::default();
    };
    let wait = call.wait.filter(|_| !call.inferred);
    [
        time(Some(call.call.at)),
        time(call.returned),
        time(wait.map(|(began, _)| began)),
        time(wait.and_then(|(_, ended)| ended)),
        time(call.completed),
    ]
}

fn number_or_empty<T: ToString>(number: Option<T>) -> String {
    number.map(|it| it.to_string()).unwrap_or_default()
}

/// Formats shapes: "4680", "2x3;4".
fn shape(shapes: &[Vec<u64>]) -> String {
    let sizes = |shape: &Vec<u64>| {
        let sizes: Vec<String> = shape.iter().map(u64::to_string).collect();
        sizes.join("x")
    };
    let shapes: Vec<String> = shapes.iter().map(sizes).collect();
    shapes.join(";")
}

/// Text from a rank. Spreadsheets evaluate cells that begin with one of these characters, and may take other characters
/// than the comma for the end of a cell: an apostrophe prevents it.
fn text(text: &str) -> String {
    const FORMULA: [char; 8] = ['=', '+', '-', '@', '＝', '＋', '－', '＠'];
    let mut out = String::new();
    let mut begins = true;
    for c in plain(text).chars() {
        if begins && FORMULA.contains(&c) {
            out.push('\'');
        }
        out.push(c);
        begins = matches!(c, ',' | ';' | '|' | '\t' | '"') || begins && c.is_whitespace();
    }
    out
}

fn row(out: &mut dyn Write, cells: impl Iterator<Item = String>) -> io::Result<()> {
    let quoted = |cell: String| {
        if cell.contains([',', '"', '\n', '\r']) {
            return format!("\"{}\"", cell.replace('"', "\"\""));
        }
        cell
    };
    let cells: Vec<String> = cells.map(quoted).collect();
    write!(out, "{}\r\n", cells.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    fn written(report: &Report, timeline: &Timeline) -> Vec<String> {
        let mut out = Vec::new();
        table(&mut out, &[(report, timeline)]).unwrap();
        let text = String::from_utf8(out).unwrap();
        text.split_terminator("\r\n").map(str::to_owned).collect()
    }

    #[test]
    fn rows_are_ranks_of_findings_with_the_times_of_their_calls() {
        let rows = written(&testing::report(), &testing::timeline());
        assert_eq!(rows[0], COLUMNS.join(","));
        assert_eq!(
            rows[1],
            "j-1,0,hang,0,DD102,early-exit,error,blocks,proved,initiating,0,false,true,node,1,\
             waiting,,,8,c10d,0,all_reduce,23,waiting,1200,8,float32,4680,4680,,,,,train.py,9,main,\
             1970-01-01T00:00:08.800Z,1970-01-01T00:00:08.801Z,1970-01-01T00:00:08.801Z,,,0"
        );
        assert!(rows[2].contains(",1,true,false,node,1,exited,0,,8,"), "{}", rows[2]);
        assert_eq!(rows.len(), 4);
    }

    #[test]
    fn rows_state_the_restart_of_the_finding_or_the_rank() {
        let mut report = testing::report();
        report.findings[0].attempt = 1;
        report.ranks[1].attempt = 2;
        report.findings[0].per_rank.truncate(1);
        let rows = written(&report, &Timeline::default());
        assert!(rows[1].ends_with(",1"), "{}", rows[1]);
        assert!(rows[2].ends_with(",2"), "{}", rows[2]);
    }

    #[test]
    fn rank_without_finding_has_a_row_of_its_own() {
        let mut report = testing::report();
        report.findings[0].per_rank.truncate(1);
        let rows = written(&report, &Timeline::default());
        assert_eq!(rows.len(), 4);
        let columns = |row: &str| row.split(',').count();
        assert!(rows.iter().all(|row| columns(row) == COLUMNS.len()), "{rows:?}");
        assert!(rows[2].starts_with("j-1,0,hang,,,,,,,,1,,,node,1,exited,0,"), "{}", rows[2]);
    }

    #[test]
    fn text_of_ranks_is_quoted_and_never_a_formula() {
        let mut report = testing::report();
        report.job.id = "a,\"b\"\n".into();
        report.findings[0].per_rank[0].op = Some("=1+1; =2|@3-4".into());
        let rows = written(&report, &Timeline::default());
        assert!(rows[1].starts_with("\"a,\"\"b\"\"\u{fffd}\",0,"), "{}", rows[1]);
        assert!(rows[1].contains(",'=1+1; '=2|'@3-4,"), "{}", rows[1]);
    }
}
