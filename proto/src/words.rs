//! Phrases about findings and ranks, shared by all viewers.
//!
//! Texts from ranks may contain any characters; the return values of these functions contain no
//! control characters.

use std::collections::{BTreeSet, HashMap, HashSet};

use crate::report::{
    CallState, Cause, CauseKind, Confidence, Exit, Finding, Rank, RankCall, RankState, Role, Where,
};
use crate::vocabulary::NCCL_LAYER;

/// Maximum length of source text shown, in characters.
const MAX_SOURCE_CHARS: usize = 44;

/// One line with group, step, confidence and latency. The latency is left out below a millisecond, and
/// if `past`: it is irrelevant once the job has ended.
#[must_use]
pub fn context(finding: &Finding, past: bool) -> String {
    let mut parts = Vec::new();
    if let Some(group) = &finding.group {
        let name = match group.description.as_str() {
            "default_pg" => "default group".to_owned(),
            "" | "undefined" => format!("group {}", plain(&group.name)),
            description => format!("group {}", plain(description)),
        };
        let size = match group.ranks.len() {
            0 => String::new(),
            size => format!(", {size} ranks"),
        };
        parts.push(name + &size);
    }
    let step = finding.per_rank.iter().filter_map(|call| call.step).max();
    parts.extend(step.map(|step| format!("step {step}")));
    if finding.attempt > 0 {
        parts.push(format!("attempt {}", finding.attempt));
    }
    parts.push(format!("fault: {}", certainty(finding.confidence)));
    if !finding.ranks.root.is_empty() {
        parts.push(format!("rank at fault: {}", certainty(finding.ranks.root_confidence)));
    }
    if finding.confidence == Confidence::Proved && !past && finding.latency_ms > 0 {
        parts.push(format!("detected after {}", duration(finding.latency_ms)));
    }
    if finding.role == Role::Cascade {
        parts.push("follows from the finding above".into());
    }
    parts.join(" · ")
}

/// A confidence in the words of a reader: "proved", "likely", "suspected".
#[must_use]
pub const fn certainty(confidence: Confidence) -> &'static str {
    match confidence {
        Confidence::Proved => "proved",
        Confidence::Supported => "likely",
        Confidence::Suspected => "suspected",
    }
}

/// " of the default group", after a call; empty if the group is unknown. PyTorch names its default group "0".
#[must_use]
pub fn of_group(name: &str) -> String {
    match name {
        "" => String::new(),
        "0" => " of the default group".into(),
        name => format!(" of group {}", plain(name)),
    }
}

/// Where calls were captured, by the names of layers: "PyTorch and NCCL".
#[must_use]
pub fn captured_in(layers: &[String]) -> String {
    let name = |layer: &String| match layer.as_str() {
        "c10d" => "PyTorch".to_owned(),
        NCCL_LAYER => "NCCL".into(),
        "rust" => "the Rust API".into(),
        "c" => "the C API".into(),
        layer => plain(layer),
    };
    layers.iter().map(name).collect::<Vec<_>>().join(" and ")
}

/// The rows of a finding: ranks, state, place, source text, call. Ranks with equal cells share a
/// row; rows of root cause ranks are marked. `rank` returns the state of a rank, `shown` formats a
/// place, `source` returns its source text. Hosts are named if the job has several.
pub fn sides<'a>(
    finding: &Finding,
    has_hosts: bool,
    rank: impl Fn(u32) -> Option<&'a Rank>,
    shown: impl Fn(&Where) -> String,
    mut source: impl FnMut(&Where) -> Option<String>,
) -> Vec<[String; 5]> {
    let roots: HashSet<u32> = finding.ranks.root.iter().copied().collect();
    let mut ways = Ways::new(finding);
    let mut rows: Vec<Side> = Vec::new();
    let mut known: HashMap<([String; 4], bool), usize> = HashMap::new();
    for call in &finding.per_rank {
        // A later attempt has another process.
        let process = rank(call.rank).filter(|it| it.attempt == finding.attempt);
        let is_root = roots.contains(&call.rank);
        let place = call
            .place
            .as_ref()
            .map(|place| ways.text(place, &shown, &mut source))
            .unwrap_or_default();
        let (line, way) = place;
        let cells = [side(finding, call, is_root, process), line, way, call_text(call)];
        let row = *known.entry((cells, is_root)).or_insert_with_key(|(cells, is_root)| {
            rows.push(Side { is_root: *is_root, cells: cells.clone(), ..Side::default() });
            rows.len() - 1
        });
        rows[row].ranks.push(call.rank);
        rows[row].waited_ms = rows[row].waited_ms.max(call.waited_ms);
    }
    rows.into_iter()
        .map(|Side { is_root, ranks, waited_ms, cells: [state, place, source, call] }| {
            let state = match waited_ms {
                Some(waited) if state.starts_with("wait") => {
                    format!("{state} {}", duration(waited))
                }
                _ => state,
            };
            let mark = if is_root { "▸" } else { " " };
            let host = host_of(&ranks, has_hosts, &rank);
            [format!("{mark} rank {}{host}", rank_list(&ranks)), state, place, source, call]
        })
        .collect()
}

/// Ranks of a finding in one state at one call.
#[derive(Default)]
struct Side {
    is_root: bool,
    ranks: Vec<u32>,
    waited_ms: Option<u64>,
    cells: [String; 4],
}

/// The places of a finding. Thousands of ranks have few, and each is formatted once.
struct Ways<'a> {
    /// Places with different frames of packages, by file and line, in the order of the finding.
    lines: HashMap<(&'a str, u32), Vec<&'a Where>>,
    texts: HashMap<&'a Where, (String, String)>,
}

impl<'a> Ways<'a> {
    fn new(finding: &'a Finding) -> Self {
        let mut lines: HashMap<_, Vec<&Where>> = HashMap::new();
        let mut known = HashSet::new();
        for place in finding.per_rank.iter().filter_map(|it| it.place.as_ref()) {
            let line = (place.file.as_str(), place.line);
            if known.insert((line, &place.via)) {
                lines.entry(line).or_default().push(place);
            }
        }
        Self { lines, texts: HashMap::new() }
    }

    /// The line of a place, and how it reaches the call.
    fn text(
        &mut self,
        place: &'a Where,
        shown: impl Fn(&Where) -> String,
        source: impl FnMut(&Where) -> Option<String>,
    ) -> (String, String) {
        let others = self.lines.get(&(place.file.as_str(), place.line));
        let text = self.texts.entry(place).or_insert_with(|| {
            let others = others.map(Vec::as_slice).unwrap_or_default();
            (plain(&shown(place)), way(others, place, { source }(place)))
        });
        text.clone()
    }
}

/// The source text of a line, and the functions of installed packages between it and the call:
/// "trainer.fit(model) › Trainer.save_checkpoint". If other ranks reach another call from the same
/// line, the frame at which the ways part is named by its line.
fn way(of_line: &[&Where], place: &Where, source: Option<String>) -> String {
    let called = |frame: &&Where| {
        let name = frame.function.rsplit('.').next().unwrap_or_default();
        source.as_ref().is_some_and(|text| text.contains(&format!("{name}(")))
    };
    let features = place.features();
    // The line itself shows the function that it calls.
    let is_shown = features.len() > 1 && features.first().is_some_and(called);
    let parting = of_line.iter().find_map(|other| place.parting(other));
    let mut parts: Vec<String> = source.clone().into_iter().collect();
    if place.library {
        parts.push("in a library: no line of the program".into());
    }
    parts.extend(features.iter().skip(usize::from(is_shown)).map(|frame| plain(&frame.function)));
    if let Some(frame) = parting {
        let file = frame.file.rsplit('/').next().unwrap_or_default();
        parts.push(plain(&format!("{file}:{}", frame.line)));
    }
    parts.join(" › ")
}

/// " on HOST" or " on N hosts" for ranks of a job with several hosts; empty if one of theirs is unknown.
fn host_of<'a>(ranks: &[u32], has_hosts: bool, rank: impl Fn(u32) -> Option<&'a Rank>) -> String {
    let known = ranks.iter().filter_map(|&it| rank(it));
    let hosts: BTreeSet<&str> = known.map(|rank| rank.host.as_str()).collect();
    match (has_hosts, hosts.first()) {
        (true, Some(&"")) => String::new(),
        (true, Some(host)) if hosts.len() == 1 => format!(" on {}", plain(host)),
        (true, Some(_)) => format!(" on {} hosts", hosts.len()),
        _ => String::new(),
    }
}

/// Whether the ranks are known to be on more than one host.
pub fn has_several_hosts<'a>(ranks: impl IntoIterator<Item = &'a Rank>) -> bool {
    let mut hosts = ranks.into_iter().map(|rank| &rank.host).filter(|host| !host.is_empty());
    let first = hosts.next();
    hosts.any(|host| Some(host) != first)
}

/// Activity of a rank, in two or three words.
fn side(finding: &Finding, call: &RankCall, is_root: bool, process: Option<&Rank>) -> String {
    match finding.code.as_str() {
        "DD202" if is_root => return "raised".into(),
        "DD204" if is_root => return "stuck".into(),
        "DD206" if is_root => return "at work".into(),
        "DD201" | "DD506" if is_root && process.is_none() => return "ended".into(),
        _ => {}
    }
    let end = process.filter(|p| matches!(p.state, RankState::Exited | RankState::Dead));
    let ended = end.map(|process| ended(process.exit));
    match call.state {
        CallState::Waiting if end.is_some() => "waited".into(),
        CallState::Waiting => "waiting".into(),
        CallState::Issued => "issued".into(),
        CallState::Returned | CallState::Completed => ended.unwrap_or_else(|| "continued".into()),
        CallState::NotIssued => ended.unwrap_or_else(|| {
            match process.map(|process| process.state) {
                Some(RankState::Stopped) => "stopped",
                Some(RankState::Waiting) => "in another call",
                _ if finding.code == "DD501" && is_root => "raised",
                Some(RankState::Running) => "running",
                _ => "absent",
            }
            .into()
        }),
    }
}

/// How a process ended.
#[must_use]
pub fn ended(exit: Exit) -> String {
    match (exit.signal, exit.code) {
        (Some(signal), _) if asks_to_end(signal) => format!("ended by {}", signal_name(signal)),
        (Some(signal), _) => format!("killed by {}", signal_name(signal)),
        (None, Some(code)) => format!("ended, status {code}"),
        (None, None) => "ended".into(),
    }
}

/// The call of a rank, or its last call.
#[must_use]
pub fn call_text(call: &RankCall) -> String {
    let is_last = call.state == CallState::NotIssued;
    let mut text = match (&call.op, call.seq) {
        (Some(op), _) if is_last => format!("last call {}", plain(op)),
        (Some(op), _) => plain(op),
        // A log or a counter states how far a rank came, but not by which operation.
        (None, Some(_)) if is_last => "last call".into(),
        (None, Some(_)) => "call".into(),
        (None, None) => return "no call recorded".into(),
    };
    if let Some(seq) = call.seq {
        text.push_str(&format!(" #{seq}"));
    }
    let mut partner = String::new();
    if let Some(peer) = call.peer {
        let way = if call.op.as_deref() == Some("send") { "to" } else { "from" };
        partner.push_str(&format!(" {way} rank {peer}"));
    }
    if let Some(tag) = call.tag.filter(|&tag| tag != 0) {
        partner.push_str(&format!(", tag {tag}"));
    }
    if is_last {
        let step = call.step.map(|step| format!(", step {step}"));
        return text + &partner + &step.unwrap_or_default();
    }
    let shape = call.shapes.as_ref().and_then(|shapes| shapes.first());
    let size = shape
        .map(|shape| format!("{shape:?}"))
        .or_else(|| call.numel.map(|numel| format!("[{numel} elements]")));
    let dtype = call.dtype.as_deref().map(plain).unwrap_or_default();
    let tensor = dtype + &size.unwrap_or_default();
    if !tensor.is_empty() {
        text.push_str(&format!(" {tensor}"));
    }
    for (name, value) in [("", call.reduce_op.clone()), ("root ", call.root.map(|r| r.to_string()))]
    {
        if let Some(value) = value {
            text.push_str(&format!(" {name}{}", plain(&value)));
        }
    }
    text + &partner
}

/// Wraps text to lines of at most `width` characters between words; returns at least one line.
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

/// Formats a duration: "180 ms", "1.2 s", "3 min 0 s".
#[must_use]
pub fn duration(ms: u64) -> String {
    match ms {
        0..1000 => format!("{ms} ms"),
        1000..60_000 => format!("{}.{} s", ms / 1000, ms / 100 % 10),
        60_000.. => {
            let seconds = ms.saturating_add(500) / 1000;
            format!("{} min {} s", seconds / 60, seconds % 60)
        }
    }
}

/// Formats a duration in at most seven columns, below 1000 hours: "180 ms", "16.9 s", "12m03s",
/// "3h12m".
#[must_use]
pub fn brief(ms: u64) -> String {
    let seconds = ms / 1000;
    match seconds {
        0..60 => duration(ms),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        _ => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
    }
}

/// The text as a sentence: "a rank ended" → "A rank ended."
#[must_use]
pub fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|letter| letter.to_ascii_uppercase());
    let end = if text.ends_with(['.', '…']) { "" } else { "." };
    format!("{}{}{end}", first.unwrap_or_default(), letters.as_str())
}

/// Ascending ranks as text, without the word "rank": "1", "0, 2", "0–5, 7".
#[must_use]
pub fn rank_list(ranks: &[u32]) -> String {
    runs(ranks).join(", ")
}

/// The parts of [`rank_list`]: three or more consecutive ranks become a range.
#[must_use]
pub fn runs(ranks: &[u32]) -> Vec<String> {
    let mut parts = Vec::new();
    let mut rest = ranks;
    while let [first, ..] = *rest {
        let length =
            1 + rest.windows(2).take_while(|pair| pair[0].checked_add(1) == Some(pair[1])).count();
        if length >= 3 {
            parts.push(format!("{first}–{}", rest[length - 1]));
            rest = &rest[length..];
        } else {
            parts.push(first.to_string());
            rest = &rest[1..];
        }
    }
    parts
}

/// Whether a signal asks a process to end, as Ctrl-C and launchers do: SIGHUP, SIGINT, SIGTERM.
#[must_use]
pub const fn asks_to_end(signal: i32) -> bool {
    matches!(signal, 1 | 2 | 15)
}

/// Name of a signal: "SIGTERM", "signal 40".
#[must_use]
pub fn signal_name(signal: i32) -> String {
    let known = match signal {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        5 => "SIGTRAP",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        10 => "SIGUSR1",
        11 => "SIGSEGV",
        12 => "SIGUSR2",
        13 => "SIGPIPE",
        14 => "SIGALRM",
        15 => "SIGTERM",
        19 => "SIGSTOP",
        other => return format!("signal {other}"),
    };
    known.to_owned()
}

/// The cause as part of a sentence; `None` if it is unknown.
#[must_use]
pub fn cause(cause: Cause) -> Option<&'static str> {
    Some(match cause.kind {
        CauseKind::UnevenInputs => "uneven inputs: the ranks have different numbers of batches",
        CauseKind::RankConditional => "a condition on the rank",
        CauseKind::SkippedIteration => "some ranks skipped an iteration",
        CauseKind::SwallowedException => {
            "some ranks caught an exception and continued out of step with the others"
        }
        CauseKind::SwappedCalls => "calls in an order that does not match",
        CauseKind::LocalDecision => "a decision on state that differs between ranks",
        CauseKind::DataDependentPath => "a path that depends on the content of the batch",
        CauseKind::Teardown => "some ranks were shutting down while the others worked",
        CauseKind::Unknown => return None,
    })
}

/// The code of a source line, which is counted from 1: trimmed, without a trailing comment.
#[must_use]
pub fn source_line(text: &str, line: u32) -> Option<String> {
    let line = text.lines().nth((line as usize).checked_sub(1)?)?;
    // Two spaces and "#" begin a comment after code.
    let code = plain(line.split("  #").next().unwrap_or(line).trim());
    Some(match code.char_indices().nth(MAX_SOURCE_CHARS) {
        Some((at, _)) => format!("{}…", &code[..at]),
        None => code,
    })
}

/// Text of a rank for a reader: control characters and invisible ones are replaced, because they could control a
/// terminal or hide something. Addresses are not recognizable as links, nor are commands to the service that runs a
/// test and reads its output, because a word joiner, which is invisible, separates their parts. Text that is already
/// so does not change.
#[must_use]
pub fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for (at, c) in text.char_indices() {
        let joins_next = || is_acted_on(&out, &text[at + c.len_utf8()..]);
        if c == JOINER && joins_next() {
            continue;
        }
        if is_acted_on(&out, &text[at..]) {
            out.push(JOINER);
        }
        out.push(if is_hidden(c) { '\u{fffd}' } else { c });
    }
    out
}

/// An invisible character that separates nothing, and takes no column.
pub const JOINER: char = '\u{2060}';

/// Whether these two texts, one right behind the other, are the parts of an address, or of a command of GitHub, Azure
/// Pipelines or TeamCity: `::error::`, `##[error]`, `##vso[`, `##teamcity[`.
#[must_use]
pub fn is_acted_on(before: &str, after: &str) -> bool {
    /// What addresses begin with, in lower case, before and after the joiner.
    const ADDRESSES: [(&str, &str); 4] =
        [(":", "//"), ("www", "."), ("mailto", ":"), ("xmpp", ":")];
    // At the start of a line: lines are wrapped between words.
    let is_at_start = |line: &str| line.is_empty() || line.ends_with(char::is_whitespace);
    let name = after.strip_prefix(':').and_then(|it| it.chars().next());
    if name.is_some_and(|it| !it.is_whitespace())
        && before.strip_suffix(':').is_some_and(is_at_start)
    {
        return true;
    }
    is_one_of(&ADDRESSES, before, after) || is_command(before, after)
}

/// Whether they are the parts of a command of these services that counts anywhere in a line.
#[must_use]
pub fn is_command(before: &str, after: &str) -> bool {
    is_one_of(&[("##", "["), ("##", "vso["), ("##", "teamcity[")], before, after)
}

/// Whether two texts, one right behind the other, are the parts of one of these, which are in lower case.
fn is_one_of(parts: &[(&str, &str)], before: &str, after: &str) -> bool {
    let ends_with = |start: &str| {
        let from = before.len().checked_sub(start.len());
        from.and_then(|from| before.get(from..)).is_some_and(|end| end.eq_ignore_ascii_case(start))
    };
    let begins_with =
        |rest: &str| after.get(..rest.len()).is_some_and(|it| it.eq_ignore_ascii_case(rest));
    parts.iter().any(|(start, rest)| begins_with(rest) && ends_with(start))
}

/// Whether a character is a control character or an invisible one.
#[must_use]
pub fn is_hidden(c: char) -> bool {
    c.is_control() || is_invisible(c)
}

/// Whether a character is not a control character, and takes no room or changes the direction or the order
/// of others.
fn is_invisible(c: char) -> bool {
    matches!(
        c,
        // Format characters: soft hyphen, joiners, directions, separators of lines.
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff0}'..='\u{fffb}'
            // The same for hieroglyphs and shorthand.
            | '\u{13430}'..='\u{1343f}' | '\u{1bca0}'..='\u{1bca3}'
            // Letters without a glyph, and selectors of variants.
            | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{3164}' | '\u{ffa0}' | '\u{fe00}'..='\u{fe0f}'
            // A pattern of Braille without dots, a note of music without a head, other notes of music, and tags.
            | '\u{2800}' | '\u{1d159}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}'
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_and_direction_characters_are_replaced() {
        assert_eq!(plain("a\x1b[2J\u{9b}b\u{202e}c\n"), "a\u{fffd}[2J\u{fffd}b\u{fffd}c\u{fffd}");
        let hidden = [
            '\u{200b}',
            '\u{2060}',
            '\u{feff}',
            '\u{2028}',
            '\u{2029}',
            '\u{e0041}',
            '\u{2067}',
            '\u{fff0}',
            '\u{fff8}',
            '\u{2800}',
            '\u{13430}',
            '\u{1343f}',
            '\u{1bca3}',
            '\u{1d159}',
        ];
        for hidden in hidden {
            assert_eq!(plain(&format!("a{hidden}b")), "a\u{fffd}b", "{hidden:?}");
        }
        assert_eq!(plain("größe 大きさ ▸ …"), "größe 大きさ ▸ …");
    }

    #[test]
    fn addresses_are_not_recognizable_as_links() {
        for (text, expected) in [
            ("see https://a.b/c", "see https:\u{2060}//a.b/c"),
            ("WWW.a.b", "WWW\u{2060}.a.b"),
            ("mailto:a", "mailto\u{2060}:a"),
            ("train.py:9 :: a/b", "train.py:9 :: a/b"),
        ] {
            assert_eq!(plain(text), expected);
            assert_eq!(plain(expected), expected);
        }
    }

    #[test]
    fn commands_of_services_that_run_tests_are_not_recognizable() {
        for (text, expected) in [
            ("::error::x", ":\u{2060}:error::x"),
            ("text ::stop-commands::x", "text :\u{2060}:stop-commands::x"),
            ("a ##[error]", "a ##\u{2060}[error]"),
            ("##VSO[task.prependpath]/tmp", "##\u{2060}VSO[task.prependpath]/tmp"),
            ("##teamcity[x]", "##\u{2060}teamcity[x]"),
            ("c10d::Work::wait", "c10d::Work::wait"),
            ("## vso[", "## vso["),
        ] {
            assert_eq!(plain(text), expected);
            assert_eq!(plain(expected), expected);
        }
    }

    #[test]
    fn brief_times_fit_their_column() {
        for (ms, text) in [(180, "180 ms"), (16_900, "16.9 s"), (723_000, "12m03s")] {
            assert_eq!(brief(ms), text);
        }
        assert_eq!(brief(u64::from(u32::MAX)), "1193h02m");
        assert!(brief(999 * 3_600_000).len() <= 7);
    }

    #[test]
    fn source_line_is_trimmed_and_none_if_out_of_range() {
        assert_eq!(source_line("a\n  b()  # HERE\n", 2).as_deref(), Some("b()"));
        assert_eq!((source_line("a", 0), source_line("a", 2)), (None, None));
    }
}
