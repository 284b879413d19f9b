//! A diagnosis as text for a terminal, in the manner of a compiler error: what, both sides with
//! their lines, why, and what to change.

use std::collections::HashMap;
use std::io::{self, Read, Write};

use ddp_doctor_proto::report::{
    CallState, Confidence, Exit, Finding, Rank, RankCall, RankState, Report, Role, Severity, Where,
};

use crate::diagnosis::model::libc_signal;
use crate::diagnosis::{cause, detect, words};

/// Columns that running text is broken at.
pub(super) const WIDTH: usize = 100;
/// Left edge of running text, behind its label.
const INDENT: usize = 11;
/// Longest piece of source text shown.
const SOURCE: usize = 44;
/// A source file that is larger is not read.
const LARGEST_SOURCE: u64 = 4 << 20;

/// How text looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    /// Whether colours may be used.
    pub color: bool,
    /// What is told is over: how fast it was found is of no interest any more.
    pub past: bool,
}

impl Style {
    const fn severity(self, severity: Severity) -> (&'static str, &'static str) {
        match (self.color, severity) {
            (false, _) => ("", ""),
            (true, Severity::Note) => ("\x1b[1;36m", "\x1b[0m"),
            (true, Severity::Warning) => ("\x1b[1;33m", "\x1b[0m"),
            (true, Severity::Error | Severity::Critical) => ("\x1b[1;31m", "\x1b[0m"),
        }
    }

    pub(super) const fn label(self) -> (&'static str, &'static str) {
        if self.color {
            ("\x1b[1;34m", "\x1b[0m")
        } else {
            ("", "")
        }
    }
}

/// Writes a whole report: what it is about, and its findings. Those for people who ask more are a
/// line each unless `all` are wanted in full.
///
/// # Errors
///
/// When `out` cannot be written.
pub fn report(out: &mut dyn Write, report: &Report, style: Style, all: bool) -> io::Result<()> {
    let (on, off) = style.label();
    let verdict = report.verdict;
    let id = plain(&report.job.id);
    writeln!(out, "{on}{verdict}{off}: job {id}, {}", about(report))?;
    findings(out, report, style, all)?;
    if report.findings.is_empty() {
        writeln!(out, "    nothing wrong was found")?;
    }
    Ok(())
}

/// Writes the findings of a report, and nothing else.
///
/// # Errors
///
/// When `out` cannot be written.
pub fn findings(out: &mut dyn Write, report: &Report, style: Style, all: bool) -> io::Result<()> {
    let is_brief = |finding: &Finding| !all && finding.severity == Severity::Note;
    for it in report.findings.iter().filter(|it| !is_brief(it)) {
        writeln!(out)?;
        finding(out, it, &report.ranks, style)?;
    }
    let mut brief = report.findings.iter().filter(|it| is_brief(it)).peekable();
    if brief.peek().is_some() {
        writeln!(out)?;
    }
    for it in brief {
        let (on, off) = style.severity(it.severity);
        writeln!(out, "{on}note[{}]{off} {}", it.code, plain(&it.summary))?;
    }
    Ok(())
}

/// The job of a report: how large, on what, when, for how long.
#[must_use]
pub fn about(report: &Report) -> String {
    let job = &report.job;
    let count = |n: u64, what: &str| match n {
        1 => format!("1 {what}"),
        n => format!("{n} {what}s"),
    };
    let ranks = job.world_size.unwrap_or(report.ranks.len() as u32);
    let mut parts = vec![format!(
        "{} on {}",
        count(u64::from(ranks), "rank"),
        count(u64::from(job.nodes), "node")
    )];
    if !job.backends.is_empty() {
        parts.push(plain(&job.backends.join(", ")));
    }
    if let Some(started) = job.started_at {
        let lasted = job.ended_at.map(|ended| {
            let lasted = ended.since(started).as_millis() as u64;
            format!(", ended after {}", duration(lasted))
        });
        parts.push(format!("began {started}{}", lasted.unwrap_or_default()));
    }
    let records = report.evidence.records;
    let lost = match report.evidence.records_lost {
        0 => String::new(),
        lost => format!(", {lost} lost"),
    };
    parts.push(format!("{}{lost}", count(records, "record")));
    parts.join(" · ")
}

/// Writes one finding. `ranks` tells how the processes fare; lines of the program are read from the
/// files that the finding names, where they can be.
///
/// # Errors
///
/// When `out` cannot be written.
pub fn finding(
    out: &mut dyn Write,
    finding: &Finding,
    ranks: &[Rank],
    style: Style,
) -> io::Result<()> {
    let (on, off) = style.severity(finding.severity);
    let word = match finding.severity {
        Severity::Note => "note",
        Severity::Warning => "warning",
        Severity::Error | Severity::Critical => "error",
    };
    writeln!(
        out,
        "{on}{word}[{}]{off} {}: {}",
        finding.code,
        finding.name,
        plain(&finding.summary)
    )?;
    let context = context(finding, style.past);
    if !context.is_empty() {
        writeln!(out, "    {context}")?;
    }
    let rows = rows(finding, ranks);
    if !rows.is_empty() {
        writeln!(out)?;
        let width = |column: usize| {
            rows.iter()
                .map(|row| row[column].chars().count())
                .max()
                .unwrap_or_default()
        };
        let widths = [width(0), width(1), width(2), width(3)];
        for row in &rows {
            let mut line = String::from("    ");
            for (cell, width) in row.iter().zip(widths) {
                line.push_str(&format!("{cell:<width$}   "));
            }
            line.push_str(&row[4]);
            writeln!(out, "{}", line.trim_end())?;
        }
    }
    writeln!(out)?;
    for (i, why) in finding.why.iter().enumerate() {
        labelled(out, if i == 0 { "why" } else { "" }, why, style)?;
    }
    if let Some((cause, sentence)) = finding
        .cause
        .and_then(|cause| Some((cause, cause::sentence(cause)?)))
    {
        labelled(
            out,
            "cause",
            &format!("{sentence} ({})", cause.confidence),
            style,
        )?;
    }
    for (i, next) in finding.next.iter().enumerate() {
        labelled(out, if i == 0 { "fix" } else { "" }, next, style)?;
    }
    // A coordinator that is newer than this program may find what is not known here.
    if detect::about(&finding.code).is_some() {
        let more = format!("ddp-doctor explain {}", finding.code);
        labelled(out, "more", &more, style)?;
    }
    Ok(())
}

/// Group, step, certainty and speed: one line.
pub(super) fn context(finding: &Finding, past: bool) -> String {
    let mut parts = Vec::new();
    if let Some(group) = &finding.group {
        let name = match group.description.as_str() {
            "" | "undefined" => &group.name,
            description => description,
        };
        parts.push(format!(
            "group {}, {} ranks",
            plain(name),
            group.ranks.len()
        ));
    }
    let step = finding.per_rank.iter().filter_map(|call| call.step).max();
    parts.extend(step.map(|step| format!("step {step}")));
    parts.push(match finding.confidence {
        Confidence::Proved if !past => {
            format!(
                "proved {} after the deciding event",
                duration(finding.latency_ms)
            )
        }
        confidence => confidence.to_string(),
    });
    if finding.role == Role::Cascade {
        parts.push("follows from the finding above".into());
    }
    parts.join(" · ")
}

/// Ranks that say the same share a row: who, state, where, source, call.
pub(super) fn rows(finding: &Finding, ranks: &[Rank]) -> Vec<[String; 5]> {
    let mut sources = Sources::default();
    let mut rows: Vec<(Vec<u32>, Option<u64>, [String; 4])> = Vec::new();
    for call in &finding.per_rank {
        let process = ranks.iter().find(|rank| rank.rank == call.rank);
        let place = call.place.as_ref();
        let cells = [
            state(finding, call, process),
            place
                .map(|place| plain(&short_path(place)))
                .unwrap_or_default(),
            place
                .and_then(|place| sources.line(place))
                .unwrap_or_default(),
            call_text(call),
        ];
        let is_root = |rank: &u32| finding.ranks.root.contains(rank);
        let alike = |(who, _, known): &&mut (Vec<u32>, Option<u64>, [String; 4])| {
            *known == cells && is_root(&who[0]) == is_root(&call.rank)
        };
        match rows.iter_mut().find(alike) {
            Some((who, waited, _)) => {
                who.push(call.rank);
                *waited = (*waited).max(call.waited_ms);
            }
            None => rows.push((vec![call.rank], call.waited_ms, cells)),
        }
    }
    rows.into_iter()
        .map(|(who, waited, [state, place, source, call])| {
            let state = match waited {
                Some(waited) if state.starts_with("wait") => {
                    format!("{state} {}", duration(waited))
                }
                _ => state,
            };
            let mark = if who.iter().all(|rank| finding.ranks.root.contains(rank)) {
                "▸"
            } else {
                " "
            };
            [
                format!("{mark} rank {}", words::rank_list(&who)),
                state,
                place,
                source,
                call,
            ]
        })
        .collect()
}

/// What a rank is doing, in two or three words.
fn state(finding: &Finding, call: &RankCall, process: Option<&Rank>) -> String {
    let is_root = finding.ranks.root.contains(&call.rank);
    match finding.code.as_str() {
        "DD202" if is_root => return "raised".into(),
        "DD204" if is_root => return "stands still".into(),
        "DD206" if is_root => return "at work".into(),
        _ => {}
    }
    let end = process.filter(|p| matches!(p.state, RankState::Exited | RankState::Dead));
    let ended = end.map(|process| ended(process.exit));
    match call.state {
        CallState::Waiting if end.is_some() => "waited".into(),
        CallState::Waiting => "waiting".into(),
        CallState::Issued => "issued".into(),
        CallState::Returned | CallState::Completed => ended.unwrap_or_else(|| "went on".into()),
        CallState::NotIssued => ended.unwrap_or_else(|| {
            match process.map(|process| process.state) {
                Some(RankState::Stopped) => "stopped",
                Some(RankState::Waiting) => "waits elsewhere",
                _ => "elsewhere",
            }
            .into()
        }),
    }
}

/// How a process ended.
pub(super) fn ended(exit: Exit) -> String {
    match (exit.signal, exit.code) {
        (Some(signal), _) => format!("killed by {}", libc_signal::name(signal)),
        (None, Some(code)) => format!("ended, status {code}"),
        (None, None) => "ended".into(),
    }
}

/// The call a rank made, or made last.
fn call_text(call: &RankCall) -> String {
    let Some(op) = &call.op else {
        return "no call yet".into();
    };
    let mut text = plain(op);
    if let Some(seq) = call.seq {
        text.push_str(&format!(" #{seq}"));
    }
    let mut partner = String::new();
    if let Some(peer) = call.peer {
        let way = if op == "send" { "to" } else { "from" };
        partner.push_str(&format!(" {way} rank {peer}"));
    }
    if let Some(tag) = call.tag.filter(|&tag| tag != 0) {
        partner.push_str(&format!(", tag {tag}"));
    }
    if call.state == CallState::NotIssued {
        let step = call
            .step
            .map(|step| format!(", step {step}"))
            .unwrap_or_default();
        return format!("last call {text}{partner}{step}");
    }
    if let Some(dtype) = &call.dtype {
        let shape = call.shapes.as_ref().and_then(|shapes| shapes.first());
        let size = shape.map(|shape| format!("{shape:?}"));
        let size = size.or_else(|| call.numel.map(|numel| format!("[{numel} elements]")));
        text.push_str(&format!(" {}{}", plain(dtype), size.unwrap_or_default()));
    }
    for (name, value) in [
        ("", call.reduce_op.clone()),
        ("root ", call.root.map(|r| r.to_string())),
    ] {
        if let Some(value) = value {
            text.push_str(&format!(" {name}{}", plain(&value)));
        }
    }
    text + &partner
}

fn labelled(out: &mut dyn Write, label: &str, text: &str, style: Style) -> io::Result<()> {
    let (on, off) = style.label();
    let mut label = label;
    for line in wrapped(&plain(text), WIDTH - INDENT) {
        writeln!(out, "    {on}{label:<6}{off} {line}")?;
        label = "";
    }
    Ok(())
}

/// Running text in lines of at most so many characters, broken between words; at least one line.
#[must_use]
pub fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        if let Some(line) = lines.last_mut() {
            if line.is_empty() || line.chars().count() + 1 + word.chars().count() <= width {
                let space = if line.is_empty() { "" } else { " " };
                line.push_str(space);
                line.push_str(word);
            } else {
                lines.push(word.to_owned());
            }
        }
    }
    lines
}

/// "180 ms", "1.2 s", "3 min".
pub(super) fn duration(ms: u64) -> String {
    match ms {
        0..1000 => format!("{ms} ms"),
        1000..60_000 => format!("{}.{} s", ms / 1000, ms / 100 % 10),
        60_000.. => format!("{} min {} s", ms / 60_000, ms / 1000 % 60),
    }
}

/// The file as the program names it, shorter where it lies below the working directory.
pub(super) fn short_path(place: &Where) -> String {
    let here = std::env::current_dir().ok();
    let below = here.as_ref().and_then(|here| {
        std::path::Path::new(&place.file)
            .strip_prefix(here)
            .ok()?
            .to_str()
            .map(str::to_owned)
    });
    format!(
        "{}:{}",
        below.unwrap_or_else(|| place.file.clone()),
        place.line
    )
}

/// Lines of source files, each file read once.
#[derive(Default)]
pub(super) struct Sources {
    files: HashMap<String, Option<String>>,
}

impl Sources {
    pub(super) fn line(&mut self, place: &Where) -> Option<String> {
        let text = self
            .files
            .entry(place.file.clone())
            .or_insert_with(|| read(&place.file));
        let line = text
            .as_ref()?
            .lines()
            .nth((place.line as usize).checked_sub(1)?)?;
        // A marker behind the code is of no interest here.
        let code = plain(line.split("  #").next().unwrap_or(line).trim());
        Some(match code.char_indices().nth(SOURCE) {
            Some((at, _)) => format!("{}…", &code[..at]),
            None => code,
        })
    }
}

/// A regular file of moderate size: the name comes from the job.
fn read(file: &str) -> Option<String> {
    let meta = std::fs::metadata(file).ok()?;
    if !meta.is_file() || meta.len() > LARGEST_SOURCE {
        return None;
    }
    let mut text = String::new();
    let file = std::fs::File::open(file).ok()?;
    file.take(LARGEST_SOURCE).read_to_string(&mut text).ok()?;
    Some(text)
}

/// What comes from a rank may hold anything: a terminal gets no control characters from it.
#[must_use]
pub fn plain(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::testing::{early_exit, ranks, report as sample};

    fn render(finding: &Finding) -> String {
        let mut out = Vec::new();
        super::finding(&mut out, finding, &ranks(), Style::default()).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn it_reads_like_a_compiler_error() {
        let expected = "\
error[DD102] early-exit: rank 1 has ended; ranks 0 and 2 wait for it in all_reduce #23
    group default_pg, 3 ranks · step 8 · proved 180 ms after the deciding event

      rank 0, 2   waiting 1.2 s     train.py:9      all_reduce #23 float32[4680]
    ▸ rank 1      ended, status 0   train.py:9      last call all_reduce #22, step 7

    why    all_reduce #23 needs all three ranks.
    cause  uneven inputs: one rank ran out of batches before the others (supported)
    fix    Give every rank the same number of batches.
    more   ddp-doctor explain DD102
";
        assert_eq!(render(&early_exit()), expected);
    }

    #[test]
    fn a_report_begins_with_its_verdict_and_notes_are_short() {
        let mut report = sample();
        let shown = |report: &Report, all| {
            let mut out = Vec::new();
            let past = Style {
                past: true,
                ..Style::default()
            };
            super::report(&mut out, report, past, all).unwrap();
            String::from_utf8(out).unwrap()
        };
        let mut note = early_exit();
        note.code = "DD901".into();
        note.severity = Severity::Note;
        report.findings.insert(0, note);
        let text = shown(&report, false);
        let head = "\
hang: job j-1, 3 ranks on 1 node · gloo · began 1970-01-01T00:00:01.000Z, ended after 9.0 s · 12 records

error[DD102] early-exit: rank 1 has ended; ranks 0 and 2 wait for it in all_reduce #23
    group default_pg, 3 ranks · step 8 · proved

";
        assert!(text.starts_with(head), "{text}");
        assert!(
            text.ends_with(
                "\n\nnote[DD901] rank 1 has ended; ranks 0 and 2 wait for it in all_reduce #23\n"
            ),
            "{text}"
        );
        assert_eq!(shown(&report, true).matches("    why ").count(), 2);
        report.findings.clear();
        assert!(shown(&report, false).ends_with("    nothing wrong was found\n"));
    }

    #[test]
    fn source_lines_are_shown_where_they_can_be_read() {
        let mut finding = early_exit();
        for call in &mut finding.per_rank {
            call.place = Some(Where {
                file: file!().into(),
                line: 1,
                function: String::new(),
            });
        }
        let text = render(&finding);
        assert!(
            text.contains("//! A diagnosis as text for a terminal"),
            "{text}"
        );
    }

    #[test]
    fn a_hostile_rank_does_not_control_the_terminal() {
        let mut finding = early_exit();
        finding.summary = "\x1b]0;owned\x07 \x1b[2J".into();
        finding.per_rank[0].op = Some("all\x1b[31mreduce".into());
        finding.why = vec!["a\rb".into()];
        let text = render(&finding);
        assert!(!text.contains(['\x1b', '\x07', '\r']), "{text:?}");
    }

    #[test]
    fn long_text_is_broken_at_words() {
        let mut finding = early_exit();
        finding.why = vec!["word ".repeat(60).trim().to_owned()];
        let text = render(&finding);
        assert!(
            text.lines().all(|line| line.chars().count() <= WIDTH + 4),
            "{text}"
        );
        assert_eq!(text.matches("word").count(), 60);
    }

    #[test]
    fn durations_have_the_unit_people_think_in() {
        assert_eq!(duration(180), "180 ms");
        assert_eq!(duration(1250), "1.2 s");
        assert_eq!(duration(185_000), "3 min 5 s");
    }
}
