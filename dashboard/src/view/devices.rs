//! The devices screen: what the GPU of each rank does, its latest measurements, and links with faults.

use ddp_doctor_proto::report::{DeviceActivity, RankDevice};
use ddp_doctor_proto::words::plain;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

use super::text::{Put, width};
use super::values::bytes;
use crate::app::App;
use crate::state::RankView;
use crate::theme::Tone;

/// Titles and widths of the columns, the most important ones first. The last one gets the spare width.
const COLUMNS: [(&str, usize); 10] = [
    ("rank", 8),
    ("gpu", 4),
    ("does", 10),
    ("busy", 6),
    ("slowed by", 11),
    ("xids", 10),
    ("clock", 13),
    ("power", 9),
    ("heat", 6),
    ("memory used", 18),
];
/// Minimum width of the texts about links.
const LINKS: usize = 24;

pub(super) fn draw(app: &mut App, area: Rect, buffer: &mut Buffer) {
    let devices = app.state.ranks.devices();
    if devices.is_empty() {
        let text = "no GPU and no failing link known";
        buffer.put(area.x + 1, area.y + 1, area.width - 1, Line::raw(text));
        return;
    }
    let theme = app.theme;
    let room = usize::from(area.height).saturating_sub(1);
    app.scroll = app.scroll.min(devices.len().saturating_sub(room));
    let width = usize::from(area.width).saturating_sub(1);
    let mut used = LINKS;
    let shown = COLUMNS.iter().take_while(|(_, width_of)| {
        used += width_of + 2;
        used <= width
    });
    let columns = shown.count().max(1);
    let titles: String = COLUMNS[..columns]
        .iter()
        .map(|(title, width)| format!("{title:>width$}  "))
        .chain(["links".to_owned()])
        .collect();
    let line = Line::styled(titles, theme.style(Tone::Label));
    buffer.put(area.x + 1, area.y, area.width - 1, line);
    let rows = devices.iter().skip(app.scroll);
    for (y, &index) in (area.y + 1..area.bottom()).zip(rows) {
        let Some(view) = app.state.ranks.nth(index as usize) else { continue };
        let cells = cells(view).into_iter().zip(COLUMNS).take(columns);
        let text: String = cells.map(|(cell, (_, width))| padded(&cell, width)).collect();
        let device = view.status.device.as_ref();
        let tone = match device {
            Some(device) if !device.xids.is_empty() => Tone::Bad,
            Some(device) if device.is_slowed() => Tone::Warn,
            _ => Tone::Plain,
        };
        let links: Vec<String> =
            view.status.ports.iter().map(|port| plain(&port.to_string())).collect();
        let line = Line::from(vec![
            Span::styled(text, theme.style(tone)),
            Span::styled(links.join("; "), theme.style(Tone::Bad)),
        ]);
        buffer.put(area.x + 1, y, area.width - 1, line);
    }
}

/// The texts of all columns; empty: unknown.
fn cells(view: &RankView) -> [String; COLUMNS.len()] {
    let rank = view.rank().to_string();
    let Some(device) = &view.status.device else {
        let mut cells = [const { String::new() }; COLUMNS.len()];
        cells[0] = rank;
        return cells;
    };
    let with = |value: Option<u32>, unit: &str| value.map(|it| format!("{it} {unit}"));
    let of = |value: Option<u32>, most: Option<u32>, unit: &str| match (value, most) {
        (Some(value), Some(most)) => Some(format!("{value}/{most} {unit}")),
        (value, _) => with(value, unit),
    };
    let xids: Vec<String> = device.xids.iter().map(u64::to_string).collect();
    let activity = Some(device.activity).filter(|it| *it != DeviceActivity::Unknown);
    let slowed = device.slowdown.as_deref().filter(|it| *it != "none");
    [
        Some(rank),
        Some(device.index.to_string()),
        activity.map(|it| it.to_string()),
        with(device.busy_percent, "%"),
        slowed.map(plain),
        (!xids.is_empty()).then(|| xids.join(", ")),
        of(device.clock_mhz, device.max_clock_mhz, "MHz"),
        of(device.power_watts, device.power_limit_watts, "W"),
        with(device.celsius, "°C"),
        memory(device),
    ]
    .map(Option::unwrap_or_default)
}

/// "20 GiB of 80 GiB".
fn memory(device: &RankDevice) -> Option<String> {
    let (free, total) = device.memory_free_bytes.zip(device.memory_total_bytes)?;
    Some(format!("{} of {}", bytes(total.saturating_sub(free)), bytes(total)))
}

/// A text at the right of a column, cut to its width.
fn padded(text: &str, columns: usize) -> String {
    let pad = " ".repeat(columns.saturating_sub(width(text)));
    let is_cut = width(text) > columns;
    let text = if is_cut {
        text.chars().take(columns.saturating_sub(1)).chain(['…']).collect()
    } else {
        text.to_owned()
    };
    format!("{pad}{text}  ")
}
