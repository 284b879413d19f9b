//! State of the user interface: screens, selections, searches.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::time::Duration;

use ddp_doctor_proto::report::{Finding, Timestamp, Where};
use ddp_doctor_proto::words;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind};

use crate::contents::{Cache, Sides};
use crate::feed::{Input, Link};
use crate::keys::{self, Action};
use crate::list::{RankList, moved};
use crate::replay::Replay;
use crate::screen::Screen;
use crate::sources::Sources;
use crate::state::State;
use crate::theme::Theme;

/// Maximum length of a search text, in characters.
const MAX_SEARCH_CHARS: usize = 64;

/// Maximum number of call sites shown for a finding.
const MAX_PLACES: usize = 6;
/// Maximum zoom of the timeline, as a power of two.
const MAX_ZOOM: u32 = 6;
/// Maximum distance by which the timeline can be moved.
const MAX_PAN: usize = 1 << 8;
/// Time between two frames if only the elapsed time changes.
const TICK: Duration = Duration::from_secs(1);

/// What the terminal has to do besides drawing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Nothing.
    Continue,
    /// Redraw the whole screen.
    Redraw,
    /// Release the terminal and suspend the process.
    Suspend,
    /// Release the terminal and exit.
    Quit,
    /// Request the current stacks of all ranks.
    RequestStacks,
}

/// The dashboard without its terminal.
#[derive(Debug)]
pub struct App {
    /// State of the job.
    pub state: State,
    /// Colors and characters.
    pub theme: Theme,
    /// Current time, as of the last input or tick.
    pub now: Timestamp,
    /// The user's source files.
    pub sources: Sources,
    /// The screen shown.
    pub screen: Screen,
    /// Whether the help covers the screen.
    pub help: bool,
    /// First line shown of the help.
    pub help_scroll: usize,
    /// The list of ranks.
    pub ranks: RankList,
    /// Index of the selected group.
    pub group: usize,
    /// Selected sequence number of the group; `None`: its most relevant one.
    pub seq: Option<u64>,
    /// Index of the selected finding.
    pub finding: usize,
    /// First line shown on a screen that scrolls.
    pub scroll: usize,
    /// Playback of a recording; unused while connected.
    pub replay: Replay,
    /// Index of the selected gauge.
    pub gauge: usize,
    /// Zoom of the timeline, as a power of two.
    pub zoom: u32,
    /// Offset of the timeline from its end, in halves of its width.
    pub pan: usize,
    /// Time of the last request for stacks.
    pub stacks_requested: Option<Timestamp>,
    /// Lines per page, as of the last frame.
    pub(crate) page: usize,
    /// Results reused between frames.
    pub(crate) cache: Cache,
}

impl App {
    /// A dashboard without data.
    #[must_use]
    pub fn new(theme: Theme, sources: Sources) -> Self {
        Self {
            state: State::default(),
            theme,
            now: Timestamp::default(),
            sources,
            screen: Screen::Overview,
            help: false,
            help_scroll: 0,
            ranks: RankList::default(),
            group: 0,
            seq: None,
            finding: 0,
            scroll: 0,
            replay: Replay::default(),
            gauge: 0,
            zoom: 0,
            pan: 0,
            stacks_requested: None,
            page: 10,
            cache: Cache::default(),
        }
    }

    /// Processes an input that arrived at `now`.
    pub fn feed(&mut self, input: Input, now: Timestamp) {
        self.now = now;
        match input {
            Input::Update(update) if self.state.link == Link::Recorded => {
                self.replay.push(*update, &mut self.state);
            }
            Input::Update(update) => self.state.apply(*update),
            Input::Link(link) => {
                self.replay = Replay::default();
                self.state.connected(link, now);
            }
        }
    }

    /// Advances the time to `now`. Returns when to call it again, if the screen changes with time.
    pub fn tick(&mut self, now: Timestamp) -> Option<Duration> {
        self.now = now;
        let disconnected = self.state.disconnected_since.map(|_| TICK);
        let played = self.replay.tick(now, &mut self.state);
        disconnected.into_iter().chain(played).min()
    }

    /// Processes a key event.
    pub fn key(&mut self, event: KeyEvent) -> Flow {
        if event.kind == KeyEventKind::Release {
            return Flow::Continue;
        }
        if self.ranks.typing && self.screen.lists_ranks() && self.type_key(event.code) {
            return Flow::Continue;
        }
        let Some(action) = keys::action(event, self.screen) else {
            return Flow::Continue;
        };
        match action {
            Action::Quit => return Flow::Quit,
            Action::Suspend => return Flow::Suspend,
            Action::Redraw => return Flow::Redraw,
            Action::RequestStacks => return self.request_stacks(),
            _ => self.act(action),
        }
        if self.screen == Screen::Stacks && self.stacks_requested.is_none() && self.lacks_stacks() {
            return self.request_stacks();
        }
        Flow::Continue
    }

    /// Requests the current stacks of a running job.
    fn request_stacks(&mut self) -> Flow {
        if self.state.link != Link::Live || self.state.ended {
            return Flow::Continue;
        }
        self.stacks_requested = Some(self.now);
        Flow::RequestStacks
    }

    /// Whether the stack of a process that runs is not known yet.
    fn lacks_stacks(&self) -> bool {
        let mut ranks = self.state.ranks.iter();
        ranks.any(|it| it.seen && !it.has_ended() && it.detail.stack.is_empty())
    }

    fn act(&mut self, action: Action) {
        if self.help && self.scroll_help(action) {
            return;
        }
        if std::mem::take(&mut self.help) && matches!(action, Action::Help | Action::Back) {
            return;
        }
        match action {
            Action::Help => {
                self.help = true;
                self.help_scroll = 0;
            }
            Action::Show(screen) => self.show(screen),
            Action::NextScreen => {
                let next = self.screen.next();
                let is_empty = next == Screen::Devices && self.state.ranks.devices().is_empty();
                self.show(if is_empty { next.next() } else { next });
            }
            Action::Back if !self.ranks.search.is_empty() && self.screen.lists_ranks() => {
                self.ranks.search.clear();
            }
            Action::Back => self.show(Screen::Overview),
            Action::Open => self.open(),
            Action::Move(by) => self.go(by),
            Action::Page(by) => self.go(by.saturating_mul(self.page as isize)),
            Action::First => self.go(isize::MIN),
            Action::Last => self.go(isize::MAX),
            Action::Sideways(by) => self.sideways(by),
            Action::Sort => self.ranks.sort = self.ranks.sort.next(),
            Action::Reverse => self.ranks.reverse = !self.ranks.reverse,
            Action::OnlyUnusual => self.ranks.only_unusual = !self.ranks.only_unusual,
            Action::Search => {
                self.ranks.search.clear();
                self.ranks.typing = true;
            }
            Action::Grid => self.ranks.grid = !self.ranks.grid,
            Action::Zoom(by) => self.zoom = self.zoom.saturating_add_signed(by).min(MAX_ZOOM),
            Action::Play => self.replay.toggle(self.now, &mut self.state),
            Action::Step(by) => self.replay.step(by, &mut self.state),
            Action::Jump(on) => self.replay.jump(on, &mut self.state),
            Action::Speed(by) => self.replay.change_speed(by, self.now),
            Action::Quit | Action::Suspend | Action::Redraw | Action::RequestStacks => {}
        }
    }

    /// Scrolls the help; drawing limits the value to the last line. Returns whether the action scrolls.
    fn scroll_help(&mut self, action: Action) -> bool {
        let by = match action {
            Action::Move(by) => by,
            Action::Page(by) => by.saturating_mul(self.page as isize),
            Action::First => isize::MIN,
            Action::Last => isize::MAX,
            _ => return false,
        };
        self.help_scroll = moved(self.help_scroll, by, usize::MAX);
        true
    }

    /// Processes a key while a search is being typed. Returns whether the search consumed it.
    fn type_key(&mut self, code: KeyCode) -> bool {
        let search = &mut self.ranks.search;
        match code {
            KeyCode::Char(letter) if search.chars().count() < MAX_SEARCH_CHARS => {
                search.push(letter);
            }
            KeyCode::Char(_) => {}
            KeyCode::Backspace => drop(search.pop()),
            KeyCode::Enter => self.ranks.typing = false,
            KeyCode::Esc => {
                search.clear();
                self.ranks.typing = false;
            }
            _ => return false,
        }
        true
    }

    fn open(&mut self) {
        match self.screen {
            // A rank leads to the finding about it.
            Screen::Ranks | Screen::Timeline => {
                let rank = self.ranks.selected;
                let its = |finding: &Rc<Finding>| {
                    rank.is_some_and(|rank| {
                        finding.ranks.root.contains(&rank) || finding.ranks.victims.contains(&rank)
                    })
                };
                if let Some(index) = self.state.findings.iter().position(its) {
                    self.show_finding(index);
                }
            }
            Screen::Overview if !self.state.findings.is_empty() => self.show_finding(0),
            _ => {}
        }
    }

    fn show(&mut self, screen: Screen) {
        self.screen = screen;
        self.scroll = 0;
    }

    fn show_finding(&mut self, index: usize) {
        self.finding = index;
        self.scroll = 0;
        self.screen = Screen::Finding;
    }

    fn go(&mut self, by: isize) {
        match self.screen {
            Screen::Overview => {}
            Screen::Ranks | Screen::Timeline => {
                self.ranks.update(&self.state);
                self.ranks.go(by, &self.state);
            }
            Screen::Groups => {
                self.group = moved(self.group, by, self.state.groups.len());
                self.seq = None;
            }
            // Drawing limits the value to the last line.
            Screen::Finding | Screen::Waits | Screen::Memory | Screen::Stacks | Screen::Devices => {
                self.scroll = moved(self.scroll, by, usize::MAX);
            }
        }
    }

    fn sideways(&mut self, by: isize) {
        match self.screen {
            Screen::Finding => {
                self.finding = moved(self.finding, by, self.state.findings.len());
                self.scroll = 0;
            }
            Screen::Groups => {
                let Some(group) = self.state.groups.nth(self.group) else {
                    return;
                };
                let shown = self.seq.or_else(|| group.relevant_seq());
                let current = group.seqs.iter().position(|it| Some(it.seq) == shown);
                let at = moved(current.unwrap_or_default(), by, group.seqs.len());
                self.seq = group.seqs.get(at).map(|it| it.seq);
            }
            Screen::Memory => self.gauge = moved(self.gauge, by, self.state.ranks.gauges().len()),
            // The latest time is at the right.
            Screen::Timeline => self.pan = moved(self.pan, -by, MAX_PAN),
            _ => {}
        }
    }

    /// Rows and call sites of a finding.
    pub(crate) fn sides(&mut self, index: usize) -> Rc<Sides> {
        let version = self.state.version;
        if let Some((of, sides)) = self.cache.sides.get(&index)
            && *of == version
        {
            return Rc::clone(sides);
        }
        let Some(finding) = self.state.findings.get(index) else {
            return Rc::default();
        };
        let (state, sources) = (&self.state, &mut self.sources);
        let mut known = HashMap::new();
        let mut ranks: BTreeMap<&Where, Vec<u32>> = BTreeMap::new();
        for call in &finding.per_rank {
            let Some(place) = &call.place else { continue };
            ranks.entry(place).or_default().push(call.rank);
            if !known.contains_key(place) {
                let shown = sources.shown(place, 36);
                known.insert(place, (shown, sources.line(place)));
            }
        }
        let mut rows = words::sides(
            finding,
            state.ranks.hosts().len() > 1,
            |rank| state.ranks.get(rank).map(|view| &view.status),
            |place| known.get(place).map(|it| it.0.clone()).unwrap_or_default(),
            |place| known.get(place).and_then(|it| it.1.clone()),
        );
        // Root cause ranks first, which matter most to the user.
        rows.sort_by_key(|row| !row[0].starts_with('▸'));
        let is_culprit = |ranks: &[u32]| ranks.iter().any(|it| finding.ranks.root.contains(it));
        let mut places: Vec<(&Where, Vec<u32>)> = ranks.into_iter().collect();
        places.sort_by_key(|(_, ranks)| !is_culprit(ranks));
        let places = places.into_iter().take(MAX_PLACES);
        let named = |ranks: &[u32]| words::rank_list(ranks).chars().take(40).collect();
        let places = places.map(|(place, ranks)| (place.clone(), named(&ranks)));
        let sides = Rc::new(Sides { places: places.collect(), rows });
        self.cache.sides.retain(|_, (of, _)| *of == version);
        self.cache.sides.insert(index, (version, Rc::clone(&sides)));
        sides
    }
}

#[cfg(test)]
mod tests;
