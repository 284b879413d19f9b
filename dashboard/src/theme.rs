//! How things look, on terminals that can do more or less.
//!
//! Colour is never the only carrier of anything: whatever has a tone has a word, a letter or a mark, too.

use ratatui::buffer::Buffer;
use ratatui::style::{Color, Modifier, Style};

use crate::state::Health;

/// How many colours a terminal has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Depth {
    /// None, or none are wanted.
    #[default]
    None,
    /// The sixteen that everybody has, in shades of the user's own.
    Sixteen,
    /// 256.
    Indexed,
    /// All of them.
    True,
}

impl Depth {
    /// What the environment says of the terminal.
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

/// What something is, for the eye.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// Text.
    Plain,
    /// Of little interest.
    Dim,
    /// Names what stands beside it.
    Label,
    /// Well.
    Good,
    /// Not well, or not yet known to be bad.
    Warn,
    /// Bad.
    Bad,
    /// Stands out.
    Strong,
    /// So many of five steps behind the first.
    Heat(u8),
}

/// How things look.
#[derive(Clone, Copy, Debug)]
pub struct Theme {
    /// Colours.
    pub depth: Depth,
    /// Whether the terminal shows more than ASCII.
    pub unicode: bool,
}

impl Theme {
    /// Neither colours nor anything but ASCII.
    pub const BARE: Self = Self {
        depth: Depth::None,
        unicode: false,
    };

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

    /// The same on its own ground, for the words that have to be seen first.
    #[must_use]
    pub fn banner(self, tone: Tone) -> Style {
        self.style(tone)
            .add_modifier(Modifier::REVERSED | Modifier::BOLD)
    }

    /// How well a rank fares.
    #[must_use]
    pub const fn of_health(health: Health) -> Tone {
        match health {
            Health::Running => Tone::Good,
            Health::Exited => Tone::Dim,
            Health::Waiting | Health::Unknown | Health::Missing => Tone::Warn,
            Health::Stopped | Health::Dead | Health::Culprit => Tone::Bad,
        }
    }

    /// One rank in one cell.
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

    /// Takes from a picture what the terminal cannot show.
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

/// What stands for a sign where there is only ASCII.
fn ascii(symbol: &str) -> &'static str {
    match symbol {
        "▪" | "·" | "•" => ".",
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
    fn the_environment_says_how_many_colours_there_are() {
        let of = |term: &str, more: &str| {
            Depth::of_environment(|name| Some(if name == "TERM" { term } else { more }.to_owned()))
        };
        assert_eq!(of("xterm", ""), Depth::Sixteen);
        assert_eq!(of("screen-256color", ""), Depth::Indexed);
        assert_eq!(of("xterm-256color", "truecolor"), Depth::True);
        assert_eq!(of("dumb", "truecolor"), Depth::None);
    }

    #[test]
    fn without_colours_there_are_none_and_marks_still_differ() {
        let tones = [
            Tone::Good,
            Tone::Warn,
            Tone::Bad,
            Tone::Label,
            Tone::Heat(3),
        ];
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
    fn a_terminal_of_ascii_gets_ascii() {
        let mut buffer = Buffer::empty(Rect::new(0, 0, 8, 1));
        buffer.set_string(0, 0, "▸ é 漢 …", Style::new());
        Theme::BARE.finish(&mut buffer);
        assert!(buffer.content.iter().all(|cell| cell.symbol().is_ascii()));
        assert_eq!(buffer.content[0].symbol(), ">");
    }
}
