//! Key bindings: one table for dispatch, the help and the line at the bottom.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use crate::screen::Screen;

/// Action of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Exit.
    Quit,
    /// Suspend the process.
    Suspend,
    /// Show or hide the help.
    Help,
    /// Redraw the whole screen.
    Redraw,
    /// Show a screen.
    Show(Screen),
    /// Show the next screen.
    NextScreen,
    /// Return to the overview, or end a search.
    Back,
    /// Show details of the selection.
    Open,
    /// Move the selection by a number of entries.
    Move(isize),
    /// Move the selection by a number of pages.
    Page(isize),
    /// Move the selection to the first entry.
    First,
    /// Move the selection to the last entry.
    Last,
    /// Move sideways by a number of entries.
    Sideways(isize),
    /// Sort by the next column.
    Sort,
    /// Reverse the order.
    Reverse,
    /// Show only ranks that are neither running nor exited normally.
    OnlyUnusual,
    /// Begin to type a search.
    Search,
    /// Switch between grid and list.
    Grid,
    /// Zoom in (positive) or out.
    Zoom(i32),
    /// Request the current stacks of all ranks.
    RequestStacks,
    /// Play or pause the recording.
    Play,
    /// Move by a number of updates in the recording.
    Step(isize),
    /// Move to the next finding in the recording (`true`) or to the previous one.
    Jump(bool),
    /// Double (positive) or halve the playback speed.
    Speed(i32),
}

/// One key binding.
#[derive(Debug)]
pub struct Binding {
    /// The keys, each of which triggers the action.
    pub keys: &'static [(KeyCode, KeyModifiers)],
    /// The action.
    pub action: Action,
    /// Description of the action.
    pub description: &'static str,
    /// Screens on which the binding applies; empty: all.
    pub on: &'static [Screen],
    /// Whether the line at the bottom shows it.
    pub shown: bool,
}

const NONE: KeyModifiers = KeyModifiers::NONE;
const CONTROL: KeyModifiers = KeyModifiers::CONTROL;

macro_rules! bindings {
    ($($keys:expr => $action:expr, $description:literal $(, on $on:expr)? $(=> $shown:ident)?;)*) => {
        &[$(Binding {
            keys: &$keys,
            action: $action,
            description: $description,
            on: bindings!(@on $($on)?),
            shown: bindings!(@shown $($shown)?),
        },)*]
    };
    (@on) => { &[] };
    (@on $on:expr) => { &$on };
    (@shown) => { false };
    (@shown shown) => { true };
}

const fn key(code: KeyCode) -> (KeyCode, KeyModifiers) {
    (code, NONE)
}

const fn letter(letter: char) -> (KeyCode, KeyModifiers) {
    (KeyCode::Char(letter), NONE)
}

const fn control(letter: char) -> (KeyCode, KeyModifiers) {
    (KeyCode::Char(letter), CONTROL)
}

/// All key bindings.
pub const BINDINGS: &[Binding] = bindings! {
    [letter('1')] => Action::Show(Screen::Overview), "overview" => shown;
    [letter('2')] => Action::Show(Screen::Ranks), "ranks" => shown;
    [letter('3')] => Action::Show(Screen::Groups), "groups" => shown;
    [letter('4')] => Action::Show(Screen::Finding), "finding" => shown;
    [letter('5')] => Action::Show(Screen::Waits), "waits" => shown;
    [letter('6')] => Action::Show(Screen::Memory), "memory" => shown;
    [letter('7')] => Action::Show(Screen::Timeline), "timeline" => shown;
    [letter('8')] => Action::Show(Screen::Stacks), "stacks" => shown;
    [letter('9')] => Action::Show(Screen::Devices), "devices" => shown;
    [key(KeyCode::Tab)] => Action::NextScreen, "next screen";
    [key(KeyCode::Enter)] => Action::Open, "show details of the selection";
    [key(KeyCode::Esc), key(KeyCode::Backspace)] => Action::Back, "back";
    [key(KeyCode::Down), letter('j')] => Action::Move(1), "down";
    [key(KeyCode::Up), letter('k')] => Action::Move(-1), "up";
    [key(KeyCode::PageDown), control('d')] => Action::Page(1), "page down";
    [key(KeyCode::PageUp), control('u')] => Action::Page(-1), "page up";
    [key(KeyCode::Home), letter('g')] => Action::First, "first entry";
    [key(KeyCode::End), letter('G')] => Action::Last, "last entry";
    [key(KeyCode::Right), letter('l')] => Action::Sideways(1), "next sequence number", on [Screen::Groups];
    [key(KeyCode::Left), letter('h')] => Action::Sideways(-1), "previous sequence number", on [Screen::Groups];
    [key(KeyCode::Right), letter('l')] => Action::Sideways(1), "next finding", on [Screen::Finding];
    [key(KeyCode::Left), letter('h')] => Action::Sideways(-1), "previous finding", on [Screen::Finding];
    [key(KeyCode::Right), letter('l')] => Action::Sideways(1), "next gauge", on [Screen::Memory];
    [key(KeyCode::Left), letter('h')] => Action::Sideways(-1), "previous gauge", on [Screen::Memory];
    [key(KeyCode::Right), letter('l')] => Action::Sideways(1), "later", on [Screen::Timeline];
    [key(KeyCode::Left), letter('h')] => Action::Sideways(-1), "earlier", on [Screen::Timeline];
    [letter('z')] => Action::Zoom(1), "zoom in", on [Screen::Timeline] => shown;
    [letter('Z')] => Action::Zoom(-1), "zoom out", on [Screen::Timeline] => shown;
    [letter('d')] => Action::RequestStacks, "capture stacks", on [Screen::Stacks] => shown;
    [letter('v')] => Action::Grid, "grid", on [Screen::Ranks] => shown;
    [letter('s')] => Action::Sort, "next sort key", on [Screen::Ranks, Screen::Timeline] => shown;
    [letter('r')] => Action::Reverse, "reverse", on [Screen::Ranks, Screen::Timeline];
    [letter('o')] => Action::OnlyUnusual, "only unusual", on [Screen::Ranks, Screen::Timeline] => shown;
    [letter('/')] => Action::Search, "search", on [Screen::Ranks, Screen::Timeline] => shown;
    [letter(' ')] => Action::Play, "play or pause the recording";
    [letter('.')] => Action::Step(1), "recording: next update";
    [letter(',')] => Action::Step(-1), "recording: previous update";
    [letter('n')] => Action::Jump(true), "recording: next finding";
    [letter('N')] => Action::Jump(false), "recording: previous finding";
    [letter('+')] => Action::Speed(1), "recording: double speed";
    [letter('-')] => Action::Speed(-1), "recording: half speed";
    [control('l')] => Action::Redraw, "redraw the screen";
    [letter('?'), key(KeyCode::F(1))] => Action::Help, "help" => shown;
    [control('z')] => Action::Suspend, "suspend";
    [letter('q'), control('c')] => Action::Quit, "quit" => shown;
};

/// The action of a key on a screen.
#[must_use]
pub fn action(event: KeyEvent, screen: Screen) -> Option<Action> {
    // The character already distinguishes capitals.
    let modifiers = match event.code {
        KeyCode::Char(_) => event.modifiers - KeyModifiers::SHIFT,
        _ => event.modifiers,
    };
    bindings_on(screen)
        .find(|binding| binding.keys.contains(&(event.code, modifiers)))
        .map(|binding| binding.action)
}

/// The bindings that apply on a screen.
pub fn bindings_on(screen: Screen) -> impl Iterator<Item = &'static Binding> {
    let holds = move |binding: &&Binding| binding.on.is_empty() || binding.on.contains(&screen);
    BINDINGS.iter().filter(holds)
}

/// Label of a key: "Ctrl-C", "PgDn".
#[must_use]
pub fn label((code, modifiers): (KeyCode, KeyModifiers)) -> String {
    let name = match code {
        KeyCode::Char(' ') => "Space".into(),
        KeyCode::Char(letter) => letter.to_string(),
        KeyCode::F(number) => format!("F{number}"),
        KeyCode::Down => "↓".into(),
        KeyCode::Up => "↑".into(),
        KeyCode::Left => "←".into(),
        KeyCode::Right => "→".into(),
        KeyCode::PageDown => "PgDn".into(),
        KeyCode::PageUp => "PgUp".into(),
        other => format!("{other:?}"),
    };
    match modifiers {
        CONTROL => format!("Ctrl-{}", name.to_uppercase()),
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_unique_on_every_screen() {
        for screen in Screen::ALL {
            let mut keys: Vec<_> = bindings_on(screen).flat_map(|it| it.keys).collect();
            let all = keys.len();
            keys.sort_by_key(|key| format!("{key:?}"));
            keys.dedup();
            assert_eq!(keys.len(), all, "{screen:?}");
        }
    }

    #[test]
    fn every_screen_has_a_key() {
        for screen in Screen::ALL {
            let has = |it: &Binding| it.action == Action::Show(screen);
            assert!(BINDINGS.iter().any(has), "{screen:?}");
        }
    }

    #[test]
    fn capital_letters_have_their_own_actions() {
        let press = |letter, modifiers| {
            action(KeyEvent::new(KeyCode::Char(letter), modifiers), Screen::Ranks)
        };
        assert_eq!(press('G', KeyModifiers::SHIFT), Some(Action::Last));
        assert_eq!(press('g', NONE), Some(Action::First));
        assert_eq!(press('c', CONTROL), Some(Action::Quit));
        assert_eq!(press('c', NONE), None);
    }
}
