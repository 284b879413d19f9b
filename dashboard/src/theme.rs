//! Colors and characters, for terminals of different capabilities.
//!
//! Color is never the only carrier of information: every toned text also has a word, a letter or a
//! mark.

use ratatui::buffer::Buffer;
use ratatui::style::{Color, Modifier, Style};

use crate::state::Health;

/// Number of colors of a terminal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Depth {
    /// No colors.
    #[default]
    None,
    /// The 16 standard colors, in shades that the user configured.
    Sixteen,
    /// 256 colors.
    Indexed,
    /// 24-bit colors.
    True,
}

impl Depth {
    /// Detects the number of colors from environment variables.
    #[must_use]
    pub fn of_environment(variable: impl Fn(&str) -> Option<String>) -> Self {
        let term = variable("TERM").unwrap_or_default();
        let more = variable("COLORTERM").unwrap_or_default();
        match () {
            () if term == "dumb" => Self::None,
            () if more == "truecolor" || more == "24bit" => Self::True,
            () if term.contains("256color") => Self::Indexed,
            () => Self::Sixteen,
        }
    }
}

/// Meaning of a style.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// Ordinary text.
    Plain,
    /// Less important.
    Dim,
    /// A label of the text beside it.
    Label,
    /// A good state.
    Good,
    /// A doubtful state, which may become bad.
    Warn,
    /// A bad state.
    Bad,
    /// Emphasized.
    Strong,
    /// How far a member lags behind the first, in levels from 0 to 4.
    Heat(u8),
}

/// Capabilities of the terminal that determine the style.
#[derive(Clone, Copy, Debug)]
pub struct Theme {
    /// Number of colors.
    pub depth: Depth,
    /// Whether the terminal shows more than ASCII.
    pub unicode: bool,
}

impl Theme {
    /// No colors, ASCII only.
    pub const BARE: Self = Self { depth: Depth::None, unicode: false };

    /// The style of a tone.
    #[must_use]
    pub fn style(self, tone: Tone) -> Style {
        let style = Style::new();
        let color = |sixteen, indexed, (r, g, b)| match self.depth {
            Depth::None => style,
            Depth::Sixteen => style.fg(sixteen),
            Depth::Indexed => style.fg(Color::Indexed(indexed)),
            Depth::True => style.fg(Color::Rgb(r, g, b)),
        };
        match tone {
            Tone::Plain => style,
            Tone::Dim => color(Color::DarkGray, 245, (138, 138, 138)),
            Tone::Label => color(Color::Blue, 75, (97, 175, 239)).add_modifier(Modifier::BOLD),
            Tone::Good => color(Color::Green, 71, (106, 171, 115)),
            Tone::Warn => color(Color::Yellow, 214, (229, 172, 63)),
            Tone::Bad => color(Color::Red, 203, (240, 84, 79)).add_modifier(Modifier::BOLD),
            Tone::Strong => style.add_modifier(Modifier::BOLD),
            Tone::Heat(0) => self.style(Tone::Good),
            Tone::Heat(1) => color(Color::Cyan, 73, (95, 175, 175)),
            Tone::Heat(2) => self.style(Tone::Warn),
            Tone::Heat(3) => color(Color::Magenta, 208, (235, 130, 50)),
            Tone::Heat(_) => self.style(Tone::Bad),
        }
    }

    /// The style of a tone with reversed colors, for the most important words.
    #[must_use]
    pub fn banner(self, tone: Tone) -> Style {
        self.style(tone).add_modifier(Modifier::REVERSED | Modifier::BOLD)
    }

    /// Tone of a rank's health.
    #[must_use]
    pub const fn of_health(health: Health) -> Tone {
        match health {
            Health::Running => Tone::Good,
            Health::Exited => Tone::Dim,
            Health::Waiting | Health::Unknown | Health::Missing => Tone::Warn,
            Health::Stopped | Health::Dead | Health::Culprit => Tone::Bad,
        }
    }

    /// Mark of a rank's health, one cell wide.
    #[must_use]
    pub const fn mark(health: Health) -> &'static str {
        match health {
            Health::Running => "▪",
            Health::Exited => "e",
            Health::Waiting => "w",
            Health::Unknown => "?",
            Health::Missing => "-",
            Health::Stopped => "s",
            Health::Dead => "x",
            Health::Culprit => "▸",
        }
    }

    /// Replaces characters that the terminal cannot show.
    pub fn finish(self, buffer: &mut Buffer) {
        if self.unicode {
            return;
        }
        for cell in &mut buffer.content {
            if !cell.symbol().is_ascii() {
                let plain = ascii(cell.symbol());
                cell.set_symbol(plain);
            }
        }
    }
}

/// ASCII replacement of a character.
fn ascii(symbol: &str) -> &'static str {
    match symbol {
        "▪" => "o",
        "·" | "•" => ".",
        "▸" | "→" => ">",
        "←" => "<",
        "▴" | "↑" => "^",
        "▾" | "↓" => "v",
        "…" => "~",
        "–" | "—" | "─" => "-",
        "│" => "|",
        "×" => "x",
        "µ" => "u",
        "▶" => ">",
        "‖" => "=",
        "┌" | "└" | "├" => "+",
        "▁" => "_",
        "▂" => ".",
        "▃" => "-",
        "▄" => "=",
        "▅" => "+",
        "▆" => "*",
        "▇" => "%",
        "█" => "#",
        "░" => ":",
        "‰" => "%",
        _ => "?",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::layout::Rect;

    #[test]
    fn color_depth_follows_the_environment() {
        let of = |term: &str, more: &str| {
            Depth::of_environment(|name| Some(if name == "TERM" { term } else { more }.to_owned()))
        };
        assert_eq!(of("xterm", ""), Depth::Sixteen);
        assert_eq!(of("screen-256color", ""), Depth::Indexed);
        assert_eq!(of("xterm-256color", "truecolor"), Depth::True);
        assert_eq!(of("dumb", "truecolor"), Depth::None);
    }

    #[test]
    fn bare_theme_has_no_colors_and_distinct_marks() {
        let tones = [Tone::Good, Tone::Warn, Tone::Bad, Tone::Label, Tone::Heat(3)];
        for tone in tones {
            let style = Theme::BARE.style(tone);
            assert_eq!((style.fg, style.bg), (None, None));
        }
        let mut marks: Vec<_> = Health::ALL.iter().map(|&it| ascii_mark(it)).collect();
        marks.sort_unstable();
        marks.dedup();
        assert_eq!(marks.len(), Health::ALL.len());
    }

    fn ascii_mark(health: Health) -> &'static str {
        match Theme::mark(health) {
            mark if mark.is_ascii() => mark,
            mark => ascii(mark),
        }
    }

    #[test]
    fn ascii_terminal_gets_only_ascii() {
        let mut buffer = Buffer::empty(Rect::new(0, 0, 8, 1));
        buffer.set_string(0, 0, "▸ é 漢 …", Style::new());
        Theme::BARE.finish(&mut buffer);
        assert!(buffer.content.iter().all(|cell| cell.symbol().is_ascii()));
        assert_eq!(buffer.content[0].symbol(), ">");
    }
}
