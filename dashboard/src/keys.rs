//! What keys do: one table, which dispatches them, feeds the help and the line at the bottom.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use crate::view::Screen;

/// What a key asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// End.
    Quit,
    /// Give the terminal back to the shell for a while.
    Suspend,
    /// Show or hide the help.
    Help,
    /// Draw everything anew.
    Redraw,
    /// Show that screen.
    Show(Screen),
    /// The next screen.
    NextScreen,
    /// Back to the overview, or out of a search.
    Back,
    /// Look closer at what is selected.
    Open,
    /// Move the selection by so many.
    Move(isize),
    /// Move it by so many pages.
    Page(isize),
    /// Move it to the first.
    First,
    /// Move it to the last.
    Last,
    /// Move sideways by so many.
    Sideways(isize),
    /// Sort by the next column.
    Sort,
    /// Sort the other way round.
    Reverse,
    /// Show only what is odd.
    OnlyOdd,
    /// Type what is searched for.
    Search,
    /// Show all at once, or a list.
    Grid,
    /// Look closer, or from further away.
    Zoom(i32),
    /// Have it looked where ranks stand.
    Ask,
    /// Play or pause what was recorded.
    Play,
    /// Go on in it by so many updates.
    Step(isize),
    /// Go to the next finding in it, or to the one before.
    Jump(bool),
    /// Play it faster, or slower.
    Speed(i32),
}

/// One line of the table.
#[derive(Debug)]
pub struct Binding {
    /// Any of these.
    pub keys: &'static [(KeyCode, KeyModifiers)],
    /// What it does.
    pub action: Action,
    /// The same in words.
    pub says: &'static str,
    /// Where; empty: everywhere.
    pub on: &'static [Screen],
    /// Whether it stands in the line at the bottom.
    pub shown: bool,
}

const NONE: KeyModifiers = KeyModifiers::NONE;
const CONTROL: KeyModifiers = KeyModifiers::CONTROL;

macro_rules! bindings {
    ($($keys:expr => $action:expr, $says:literal $(, on $on:expr)? $(=> $shown:ident)?;)*) => {
        &[$(Binding {
            keys: &$keys,
            action: $action,
            says: $says,
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

/// The table.
pub const BINDINGS: &[Binding] = bindings! {
    [letter('1')] => Action::Show(Screen::Overview), "overview" => shown;
    [letter('2')] => Action::Show(Screen::Ranks), "ranks" => shown;
    [letter('3')] => Action::Show(Screen::Groups), "groups" => shown;
    [letter('4')] => Action::Show(Screen::Finding), "finding" => shown;
    [letter('5')] => Action::Show(Screen::Waits), "waits" => shown;
    [letter('6')] => Action::Show(Screen::Memory), "memory" => shown;
    [letter('7')] => Action::Show(Screen::Timeline), "timeline" => shown;
    [letter('8')] => Action::Show(Screen::Stacks), "stacks" => shown;
    [key(KeyCode::Tab)] => Action::NextScreen, "next screen";
    [key(KeyCode::Enter)] => Action::Open, "look closer at the selection";
    [key(KeyCode::Esc), key(KeyCode::Backspace)] => Action::Back, "back";
    [key(KeyCode::Down), letter('j')] => Action::Move(1), "down";
    [key(KeyCode::Up), letter('k')] => Action::Move(-1), "up";
    [key(KeyCode::PageDown), control('d')] => Action::Page(1), "a page down";
    [key(KeyCode::PageUp), control('u')] => Action::Page(-1), "a page up";
    [key(KeyCode::Home), letter('g')] => Action::First, "to the first";
    [key(KeyCode::End), letter('G')] => Action::Last, "to the last";
    [key(KeyCode::Right), letter('l')] => Action::Sideways(1), "next sequence number", on [Screen::Groups];
    [key(KeyCode::Left), letter('h')] => Action::Sideways(-1), "sequence number before", on [Screen::Groups];
    [key(KeyCode::Right), letter('l')] => Action::Sideways(1), "next finding", on [Screen::Finding];
    [key(KeyCode::Left), letter('h')] => Action::Sideways(-1), "finding before", on [Screen::Finding];
    [key(KeyCode::Right), letter('l')] => Action::Sideways(1), "next gauge", on [Screen::Memory];
    [key(KeyCode::Left), letter('h')] => Action::Sideways(-1), "gauge before", on [Screen::Memory];
    [key(KeyCode::Right), letter('l')] => Action::Sideways(1), "later", on [Screen::Timeline];
    [key(KeyCode::Left), letter('h')] => Action::Sideways(-1), "earlier", on [Screen::Timeline];
    [letter('z')] => Action::Zoom(1), "zoom in", on [Screen::Timeline] => shown;
    [letter('Z')] => Action::Zoom(-1), "zoom out", on [Screen::Timeline] => shown;
    [letter('d')] => Action::Ask, "ask for fresh stacks", on [Screen::Stacks] => shown;
    [letter('v')] => Action::Grid, "as a grid", on [Screen::Ranks] => shown;
    [letter('s')] => Action::Sort, "sort by next", on [Screen::Ranks, Screen::Timeline] => shown;
    [letter('r')] => Action::Reverse, "reverse", on [Screen::Ranks, Screen::Timeline];
    [letter('o')] => Action::OnlyOdd, "only the odd", on [Screen::Ranks, Screen::Timeline] => shown;
    [letter('/')] => Action::Search, "search", on [Screen::Ranks, Screen::Timeline] => shown;
    [letter(' ')] => Action::Play, "play or pause what was recorded";
    [letter('.')] => Action::Step(1), "recorded: a step on";
    [letter(',')] => Action::Step(-1), "recorded: a step back";
    [letter('n')] => Action::Jump(true), "recorded: to the next finding";
    [letter('N')] => Action::Jump(false), "recorded: to the finding before";
    [letter('+')] => Action::Speed(1), "recorded: twice as fast";
    [letter('-')] => Action::Speed(-1), "recorded: half as fast";
    [control('l')] => Action::Redraw, "draw everything anew";
    [letter('?'), key(KeyCode::F(1))] => Action::Help, "help" => shown;
    [control('z')] => Action::Suspend, "suspend";
    [letter('q'), control('c')] => Action::Quit, "quit" => shown;
};

/// What a key asks for on a screen.
#[must_use]
pub fn action(event: KeyEvent, screen: Screen) -> Option<Action> {
    // That a letter is a capital, it says itself.
    let modifiers = match event.code {
        KeyCode::Char(_) => event.modifiers - KeyModifiers::SHIFT,
        _ => event.modifiers,
    };
    bindings_on(screen)
        .find(|binding| binding.keys.contains(&(event.code, modifiers)))
        .map(|binding| binding.action)
}

/// The lines of the table that hold on a screen.
pub fn bindings_on(screen: Screen) -> impl Iterator<Item = &'static Binding> {
    let holds = move |binding: &&Binding| binding.on.is_empty() || binding.on.contains(&screen);
    BINDINGS.iter().filter(holds)
}

/// A key as people write it.
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
    fn no_key_means_two_things_on_one_screen() {
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
    fn capitals_are_letters_of_their_own() {
        let press = |letter, modifiers| {
            action(
                KeyEvent::new(KeyCode::Char(letter), modifiers),
                Screen::Ranks,
            )
        };
        assert_eq!(press('G', KeyModifiers::SHIFT), Some(Action::Last));
        assert_eq!(press('g', NONE), Some(Action::First));
        assert_eq!(press('c', CONTROL), Some(Action::Quit));
        assert_eq!(press('c', NONE), None);
    }
}
