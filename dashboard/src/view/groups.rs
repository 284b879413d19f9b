//! Progress of each member of each group, and where their calls differ.

use ddp_doctor_proto::report::{CallState, RankCall};
use ddp_doctor_proto::words::{self, call_text, plain};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

use super::text::{Put, aligned, window};
use crate::app::App;
use crate::state::{GroupCalls, Seq, share};
use crate::theme::{Theme, Tone};

pub(super) fn draw(app: &mut App, area: Rect, buffer: &mut Buffer) {
    if app.state.groups.is_empty() {
        let text = "no process group yet";
        buffer.put(area.x + 1, area.y + 1, area.width - 1, Line::raw(text));
        return;
    }
    let list = usize::from(area.height / 3).clamp(2, app.state.groups.len() + 1);
    let list_area = Rect { height: list as u16, ..area };
    draw_list(app, list_area, buffer);
    let rest = Rect {
        y: area.y + list as u16 + 1,
        height: area.height.saturating_sub(list as u16 + 1),
        ..area
    };
    let width = usize::from(area.width).saturating_sub(2);
    let Some(group) = app.state.groups.nth(app.group) else {
        return;
    };
    let mut lines = heat_map(app.theme, group, width, usize::from(rest.height) / 3);
    lines.push(Line::default());
    lines.extend(calls(app, group, width));
    for (y, line) in (rest.y..rest.bottom()).zip(lines) {
        buffer.put(rest.x + 1, y, rest.width - 1, line);
    }
}

fn draw_list(app: &App, area: Rect, buffer: &mut Buffer) {
    let theme = app.theme;
    let title = format!(
        "{:<26}{:<10}{:>6}{:>12}{:>8}  {}",
        "group", "backend", "ranks", "calls", "behind", "ranks, by how far they are behind"
    );
    let style = theme.style(Tone::Label);
    buffer.put(area.x + 1, area.y, area.width - 1, Line::styled(title, style));
    let rows = usize::from(area.height).saturating_sub(1);
    let first = window(app.group, app.state.groups.len(), rows);
    for (row, index) in (first..app.state.groups.len()).take(rows).enumerate() {
        let Some(group) = app.state.groups.nth(index) else {
            continue;
        };
        let name: String = plain(&group.title).chars().take(24).collect();
        let backend: String = plain(&group.backend).chars().take(9).collect();
        let text = format!(
            "{name:<26}{backend:<10}{:>6}{:>12}{:>8}  ",
            group.ranks.len(),
            group.front,
            group.behind
        );
        let mut line = Line::raw(text);
        let room = usize::from(area.width).saturating_sub(line.width() + 2);
        line.spans.extend(cells(theme, group, room.min(64)));
        let y = area.y + 1 + row as u16;
        buffer.put(area.x + 1, y, area.width - 1, line);
        if app.group == index {
            buffer.select(area.x, y, 36.min(area.width), theme);
        }
    }
}

/// Lag of the members, one cell each, or several members per cell if there are too many. Each line
/// begins with the rank of its first cell.
fn heat_map(theme: Theme, group: &GroupCalls, width: usize, most: usize) -> Vec<Line<'static>> {
    const LABEL: usize = 8;
    let members = group.ranks.len();
    let width = (width.max(LABEL + 8) - LABEL) / 8 * 8;
    let rows = members.div_ceil(width).clamp(1, most.max(1));
    let mut spans = cells(theme, group, rows * width);
    let shown = spans.len().max(1);
    let mut lines = Vec::new();
    while !spans.is_empty() {
        let rest = spans.split_off(spans.len().min(width));
        let first = share(members, shown, lines.len() * width).start;
        let rank = group.ranks.get(first).copied().unwrap_or_default();
        let label = format!("{:>width$}  ", rank, width = LABEL - 2);
        spans.insert(0, Span::styled(label, theme.style(Tone::Dim)));
        lines.push(Line::from(spans));
        spans = rest;
    }
    let mut legend = vec![Span::raw(" ".repeat(LABEL))];
    for (lag, word) in [
        (Some(0), "first"),
        (Some(1), "a call behind"),
        (Some(2), "2–3"),
        (Some(4), "4–15"),
        (Some(16), "more"),
        (None, "never seen"),
    ] {
        legend.push(heat(theme, lag));
        legend.push(Span::styled(format!(" {word}   "), theme.style(Tone::Dim)));
    }
    lines.push(Line::from(legend));
    lines
}

fn cells(theme: Theme, group: &GroupCalls, room: usize) -> Vec<Span<'static>> {
    let all = &group.cells;
    let cells = all.len().min(room);
    // A member that was never seen counts less than one that lags behind.
    let worst = |cell| share(all.len(), cells, cell).map(|it| all[it]).max();
    (0..cells).map(|cell| heat(theme, worst(cell).flatten())).collect()
}

fn heat(theme: Theme, lag: Option<u64>) -> Span<'static> {
    match lag {
        None => Span::styled("-", theme.style(Tone::Dim)),
        Some(0) => Span::styled("·", theme.style(Tone::Heat(0))),
        Some(1) => Span::styled("1", theme.style(Tone::Heat(1))),
        Some(2..=3) => Span::styled("2", theme.style(Tone::Heat(2))),
        Some(4..=15) => Span::styled("4", theme.style(Tone::Heat(3))),
        Some(_) => Span::styled("█", theme.style(Tone::Heat(4))),
    }
}

/// Calls of all members at a sequence number, equal calls grouped.
fn calls(app: &App, group: &GroupCalls, width: usize) -> Vec<Line<'static>> {
    let theme = app.theme;
    let wanted = app.seq.or_else(|| group.relevant_seq());
    let Some(seq) = group.seqs.iter().find(|it| Some(it.seq) == wanted) else {
        let text = match group.front {
            0 => "no calls yet".to_owned(),
            front => format!("all calls up to #{front} match"),
        };
        return vec![Line::styled(text, theme.style(Tone::Dim))];
    };
    let at = group.seqs.iter().position(|it| it.seq == seq.seq);
    let mut head = vec![Span::styled(format!("#{}", seq.seq), theme.style(Tone::Strong))];
    if seq.mismatch {
        head.push(Span::styled("  these calls cannot match", theme.style(Tone::Bad)));
    }
    let of = format!("   {} of {} in progress: ← →", at.unwrap_or_default() + 1, group.seqs.len());
    head.push(Span::styled(of, theme.style(Tone::Dim)));
    let mut lines = vec![Line::from(head)];
    let rows = app
        .cache
        .calls_by_rank(app.state.version, (group.number, seq.seq), || rows(app, group, seq));
    let style = |_: usize, column: usize| match column {
        0 => theme.style(Tone::Strong),
        2 => theme.style(Tone::Label),
        _ => theme.style(Tone::Plain),
    };
    lines.extend(aligned(&rows, width, style));
    if seq.more > 0 {
        let text = format!("… {} more calls", seq.more);
        lines.push(Line::styled(text, theme.style(Tone::Dim)));
    }
    lines
}

/// Ranks, state, place, call; the smallest group of ranks first, which is the unusual one.
fn rows(app: &App, group: &GroupCalls, seq: &Seq) -> Vec<[String; 4]> {
    let mut groups: Vec<(Vec<u32>, [String; 3])> = Vec::new();
    let mut join =
        |rank: u32, cells: [String; 3]| match groups.iter_mut().find(|(_, it)| *it == cells) {
            Some((ranks, _)) => ranks.push(rank),
            None => groups.push((vec![rank], cells)),
        };
    let unknown = seq.more > 0;
    for (member, &rank) in group.ranks.iter().enumerate() {
        let cells = match (seq.call(rank), group.lag(member)) {
            (Some(call), _) => call_cells(app, call),
            (None, None) => ["never seen".into(), String::new(), String::new()],
            (None, Some(_)) if group.issued[member] < seq.seq => {
                let last = format!("at #{}", group.issued[member]);
                ["MISSING".into(), String::new(), last]
            }
            (None, Some(_)) if unknown => continue,
            (None, Some(_)) => ["past this call".into(), String::new(), String::new()],
        };
        join(rank, cells);
    }
    for (ranks, _) in &mut groups {
        ranks.sort_unstable();
    }
    groups.sort_by_key(|(ranks, _)| (ranks.len(), ranks.first().copied()));
    let row = |(ranks, [state, place, call]): (Vec<u32>, [String; 3])| {
        let shown: String = words::rank_list(&ranks).chars().take(40).collect();
        [format!("rank {shown}"), state, place, call]
    };
    groups.into_iter().map(row).collect()
}

fn call_cells(app: &App, call: &RankCall) -> [String; 3] {
    let state = match call.state {
        CallState::Waiting => "waiting",
        CallState::Issued | CallState::NotIssued => "issued",
        CallState::Returned | CallState::Completed => "continued",
    };
    let place = call.place.as_ref().map(|it| app.sources.shown(it, 32));
    [state.into(), place.unwrap_or_default(), call_text(call)]
}
