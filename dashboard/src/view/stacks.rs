//! Latest stacks of the ranks: equal stacks grouped, the smallest group first.

use std::collections::BTreeMap;

use ddp_doctor_proto::report::{Timestamp, Where};
use ddp_doctor_proto::words::{self, plain};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

use super::clock;
use super::text::{Put, aligned};
use crate::app::App;
use crate::feed::Link;
use crate::sources::in_library;
use crate::theme::Tone;

/// Maximum number of different stacks shown.
const SHOWN: usize = 32;
/// Maximum length of a list of ranks, in characters.
const WIDEST: usize = 160;

/// Ranks grouped by their stacks.
#[derive(Debug)]
pub(crate) struct Stacks {
    parties: Vec<Party>,
    /// Ranks without a known stack, as text.
    unknown: String,
    /// When the latest stack was taken.
    at: Timestamp,
}

/// Ranks with the same stack.
#[derive(Debug)]
struct Party {
    ranks: Vec<u32>,
    /// The ranks as text.
    who: String,
    frames: Vec<Where>,
    channel: String,
}

impl Stacks {
    fn of(app: &App) -> Self {
        let mut by_stack: BTreeMap<Vec<Where>, Party> = BTreeMap::new();
        let mut unknown = Vec::new();
        let mut at = 0;
        for view in app.state.ranks.iter() {
            let detail = &view.detail;
            if detail.stack.is_empty() {
                unknown.push(view.rank());
                continue;
            }
            at = at.max(detail.stack_unix_ns);
            let frames: Vec<Where> = detail.stack.iter().cloned().map(Where::from).collect();
            let party = by_stack.entry(frames).or_insert_with_key(|frames| Party {
                ranks: Vec::new(),
                who: String::new(),
                frames: frames.clone(),
                channel: plain(&detail.wait_channel),
            });
            party.ranks.push(view.rank());
        }
        let mut parties: Vec<Party> = by_stack.into_values().collect();
        parties.sort_by_key(|party| (party.ranks.len(), party.ranks[0]));
        parties.truncate(SHOWN);
        let text = |ranks: &[u32]| words::rank_list(ranks).chars().take(WIDEST).collect();
        for party in &mut parties {
            party.who = text(&party.ranks);
        }
        Self {
            parties,
            unknown: text(&unknown),
            at: Timestamp(at),
        }
    }
}

pub(super) fn draw(app: &mut App, area: Rect, buffer: &mut Buffer) {
    let version = app.state.version;
    let stacks = app.kept.stacks.get(version, |_| true, || Stacks::of(app));
    let theme = app.theme;
    let mut head = match stacks.at.0 {
        0 => "no rank that stands still was looked at".to_owned(),
        _ => format!("last looked at {}", clock(stacks.at)),
    };
    match (&app.state.link, app.asked) {
        (Link::Live, Some(asked)) if asked > stacks.at => {
            head.push_str(&format!(" · asked for again at {}", clock(asked)));
        }
        (Link::Live, _) => head.push_str(" · d looks again"),
        _ => {}
    }
    let mut lines = vec![Line::styled(head, theme.style(Tone::Dim))];
    let width = usize::from(area.width).saturating_sub(4);
    for party in &stacks.parties {
        lines.push(Line::default());
        let channel = match party.channel.as_str() {
            "" => String::new(),
            channel => format!("   asleep in {channel}"),
        };
        lines.push(Line::from(vec![
            Span::styled(format!("rank {}", party.who), theme.style(Tone::Strong)),
            Span::styled(channel, theme.style(Tone::Dim)),
        ]));
        let rows: Vec<[String; 3]> = party
            .frames
            .iter()
            .map(|frame| {
                // The user cannot change library code.
                let is_library = in_library(&frame.file).is_some();
                let source = if is_library {
                    None
                } else {
                    app.sources.line(frame)
                };
                let source = source.unwrap_or_default();
                [plain(&frame.function), app.sources.shown(frame, 44), source]
            })
            .collect();
        let style = |_: usize, column: usize| match column {
            0 => theme.style(Tone::Plain),
            1 => theme.style(Tone::Label),
            _ => theme.style(Tone::Dim),
        };
        for mut line in aligned(&rows, width, style) {
            line.spans.insert(0, Span::raw("    "));
            lines.push(line);
        }
    }
    if !stacks.unknown.is_empty() && !stacks.parties.is_empty() {
        let who = &stacks.unknown;
        let text = format!("rank {who}: not looked at, or gone on since");
        lines.push(Line::default());
        lines.push(Line::styled(text, theme.style(Tone::Dim)));
    }
    let room = usize::from(area.height);
    app.scroll = app.scroll.min(lines.len().saturating_sub(room));
    for (y, line) in (area.y..area.bottom()).zip(lines.into_iter().skip(app.scroll)) {
        buffer.put(area.x + 1, y, area.width - 1, line);
    }
}
