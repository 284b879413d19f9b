//! The screens, one per file, and their common frame.

use ddp_doctor_proto::words::{duration, plain};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

use crate::app::App;
use crate::feed::Link;
use crate::keys;
use crate::screen::Screen;
use crate::theme::Tone;

mod devices;
mod finding;
mod groups;
mod help;
mod memory;
mod overview;
mod ranks;
mod stacks;
mod text;
mod timeline;
mod values;
mod waits;

use text::Put;
use values::clock;

impl App {
    /// Draws the screen. Its cost grows with the number of ranks only if they have changed.
    pub fn draw(&mut self, area: Rect, buffer: &mut Buffer) {
        self.page = usize::from(area.height.saturating_sub(6)).max(1);
        self.ranks.update(&self.state);
        self.group = self.group.min(self.state.groups.len().saturating_sub(1));
        self.finding = self.finding.min(self.state.findings.len().saturating_sub(1));
        draw(self, area, buffer);
        text::separate_addresses(buffer);
        self.theme.finish(buffer);
    }

    /// The first screen as lines of text, with the given width and maximum height.
    #[must_use]
    pub fn once(&mut self, width: u16, height: u16) -> Vec<String> {
        let area = Rect::new(0, 0, width, height);
        let mut buffer = Buffer::empty(area);
        self.ranks.update(&self.state);
        draw_once(self, area, &mut buffer);
        text::separate_addresses(&mut buffer);
        self.theme.finish(&mut buffer);
        let mut lines = lines_of(&buffer);
        while lines.last().is_some_and(String::is_empty) {
            lines.pop();
        }
        lines
    }
}

/// Draws a frame: the line at the top, the screen, the line at the bottom.
pub(crate) fn draw(app: &mut App, area: Rect, buffer: &mut Buffer) {
    if area.height < 4 || area.width < 20 {
        buffer.put(area.x, area.y, area.width, Line::raw("too small"));
        return;
    }
    let body = head(app, area, buffer);
    let footer = area.bottom() - 1;
    let body = Rect { height: footer.saturating_sub(body.y), ..body };
    buffer.put(area.x, footer, area.width, bottom(app, area.width));
    if app.help {
        return help::draw(app, body, buffer);
    }
    if !app.state.is_known() {
        let words = match &app.state.link {
            Link::Lost { why } => format!("{}; trying again", plain(why)),
            _ => "waiting for the first report of the job …".into(),
        };
        buffer.put(body.x + 1, body.y + 1, body.width - 1, Line::raw(words));
        return;
    }
    match app.screen {
        Screen::Overview => overview::draw(app, body, buffer),
        Screen::Ranks => ranks::draw(app, body, buffer),
        Screen::Groups => groups::draw(app, body, buffer),
        Screen::Finding => finding::draw(app, body, buffer),
        Screen::Waits => waits::draw(app, body, buffer),
        Screen::Memory => memory::draw(app, body, buffer),
        Screen::Timeline => timeline::draw(app, body, buffer),
        Screen::Stacks => stacks::draw(app, body, buffer),
        Screen::Devices => devices::draw(app, body, buffer),
    }
}

/// Draws the overview for output as text: without the line of keys.
pub(crate) fn draw_once(app: &mut App, area: Rect, buffer: &mut Buffer) {
    let body = head(app, area, buffer);
    overview::draw(app, body, buffer);
}

/// Converts a buffer into lines of text.
#[must_use]
pub fn lines_of(buffer: &Buffer) -> Vec<String> {
    let width = usize::from(buffer.area.width).max(1);
    let line = |cells: &[ratatui::buffer::Cell]| {
        let mut line = String::new();
        let mut skip = 0;
        for cell in cells {
            // A wide character covers the cells behind it.
            if skip > 0 {
                skip -= 1;
                continue;
            }
            line.push_str(cell.symbol());
            skip = Span::raw(cell.symbol()).width().saturating_sub(1);
        }
        line.trim_end().to_owned()
    };
    buffer.content.chunks(width).map(line).collect()
}

/// Draws the job and the connection. Returns the area below.
fn head(app: &App, area: Rect, buffer: &mut Buffer) -> Rect {
    let state = &app.state;
    let theme = app.theme;
    let job = &state.job;
    let count = |n: u64, what: &str| match n {
        1 => format!("1 {what}"),
        n => format!("{n} {what}s"),
    };
    let mut parts = Vec::new();
    if state.is_known() {
        let ranks = match job.world_size {
            Some(size) => count(u64::from(size), "rank"),
            None => format!("{} seen", count(state.ranks.len() as u64, "rank")),
        };
        let nodes = match job.nodes {
            // Their number is unknown.
            0 => String::new(),
            nodes => format!(" on {}", count(u64::from(nodes), "node")),
        };
        parts.push(ranks + &nodes);
        parts.push(plain(&job.backends.join(", ")));
        parts.push(state.age_ms().map(duration).unwrap_or_default());
    }
    parts.retain(|part| !part.is_empty());
    let about = parts.join(" · ");
    let (word, tone) = match &state.link {
        Link::Connecting => ("connecting", Tone::Dim),
        Link::Lost { .. } => ("BLIND", Tone::Bad),
        Link::Recorded => ("recorded", Tone::Dim),
        Link::Live if state.ended => ("ended", Tone::Dim),
        Link::Live => ("live", Tone::Good),
    };
    let line = Line::from(vec![
        Span::styled(" ddp-doctor ", theme.banner(Tone::Label)),
        Span::styled(format!(" {} ", plain(&job.id)), theme.style(Tone::Strong)),
        Span::styled(about, theme.style(Tone::Dim)),
    ]);
    let right = word.len() as u16 + 1;
    buffer.put(area.x, area.y, area.width.saturating_sub(right + 1), line);
    let word = Line::styled(word, theme.style(tone));
    buffer.put(area.right().saturating_sub(right), area.y, right, word);
    let mut used = 1;
    if let (Some(since), Link::Lost { why }) = (state.disconnected_since, &state.link) {
        let for_ms = app.now.since(since).as_millis() as u64;
        let text = format!(
            " disconnected since {} ({}): {}; retrying",
            clock(since),
            duration(for_ms / 1000 * 1000),
            plain(why)
        );
        let style = theme.banner(Tone::Bad);
        buffer.put(area.x, area.y + 1, area.width, Line::styled(text, style));
        used = 2;
    }
    if app.replay.position().1 > 1 && area.height >= 10 {
        buffer.put(area.x, area.y + used, area.width, player(app, area.width));
        used += 1;
    }
    Rect { y: area.y + used, height: area.height.saturating_sub(used), ..area }
}

/// Position of the playback of a recording.
fn player(app: &App, width: u16) -> Line<'static> {
    let theme = app.theme;
    let replay = &app.replay;
    let [first, here, last] = replay.times();
    let mark = if replay.is_playing() { "▶" } else { "‖" };
    let text = format!(
        " {mark} {} · {} of {} · {} ",
        clock(here),
        duration(here.since(first).as_millis() as u64),
        duration(last.since(first).as_millis() as u64),
        replay.speed()
    );
    let keys = " Space , . n N + - ";
    let used = text.chars().count() + keys.len();
    let cells = usize::from(width).saturating_sub(used);
    let whole = last.since(first).as_secs_f64().max(1e-9);
    let cell = |share: f64| (share * cells.saturating_sub(1) as f64) as usize;
    let mut bar = vec!['─'; cells];
    for change in replay.changes() {
        if let Some(place) = bar.get_mut(cell(change)) {
            *place = '!';
        }
    }
    if let Some(place) = bar.get_mut(cell(here.since(first).as_secs_f64() / whole)) {
        *place = '█';
    }
    Line::from(vec![
        Span::styled(text, theme.style(Tone::Label)),
        Span::raw(bar.into_iter().collect::<String>()),
        Span::styled(keys, theme.style(Tone::Dim)),
    ])
}

/// The line at the bottom: the keys of the screen, or the search being typed.
fn bottom(app: &App, width: u16) -> Line<'static> {
    if app.ranks.typing && app.screen.lists_ranks() {
        return Line::raw(format!(" search: {}_", plain(&app.ranks.search)));
    }
    let levels = [Names::All, Names::Screens, Names::Here];
    let mut lines = levels.map(|names| keys_line(app, names)).into_iter();
    let fits = |line: &Line<'_>| line.width() <= usize::from(width);
    lines.find(fits).unwrap_or_else(|| keys_line(app, Names::Here))
}

/// What the line of keys names, depending on the room.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Names {
    /// All keys.
    All,
    /// The screens; of other keys, only help and quit are shown.
    Screens,
    /// The screen that is shown, and keys that act on it.
    Here,
}

/// The keys to show.
fn keys_line(app: &App, names: Names) -> Line<'static> {
    let theme = app.theme;
    let mut spans = Vec::new();
    let has_devices = app.screen == Screen::Devices || !app.state.ranks.devices().is_empty();
    for binding in keys::bindings_on(app.screen).filter(|it| it.shown) {
        if binding.action == keys::Action::Show(Screen::Devices) && !has_devices {
            continue;
        }
        let is_screen = matches!(binding.action, keys::Action::Show(_));
        let is_here = binding.action == keys::Action::Show(app.screen);
        let key = binding.keys.first().map(|&key| keys::label(key));
        let (key_style, style) = if is_here {
            (theme.banner(Tone::Plain), theme.banner(Tone::Plain))
        } else {
            (theme.style(Tone::Label), theme.style(Tone::Dim))
        };
        let key = key.unwrap_or_default();
        if names == Names::Screens {
            spans.push(Span::raw(" "));
            if is_screen {
                spans.push(Span::styled(key, key_style));
                spans.push(Span::styled(format!(" {}", binding.description), style));
            } else if binding.on.is_empty() {
                spans.push(Span::styled(key, key_style));
            } else {
                spans.pop();
            }
            continue;
        }
        spans.push(Span::styled(format!(" {key} "), key_style));
        if names == Names::All || is_here || !is_screen {
            spans.push(Span::styled(format!("{} ", binding.description), style));
        }
    }
    Line::from(spans)
}
