//! State of the user interface: screens, selections, searches.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::time::Duration;

use ddp_doctor_proto::report::{Finding, Timestamp, Where};
use ddp_doctor_proto::words;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind};
use ratatui::layout::Rect;

use crate::feed::{Input, Link};
use crate::keys::{self, Action};
use crate::list::RankList;
use crate::replay::Replay;
use crate::sources::Sources;
use crate::state::State;
use crate::theme::Theme;
use crate::view::{self, Screen};

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
    /// Colours and characters.
    pub theme: Theme,
    /// Current time, as of the last input or tick.
    pub now: Timestamp,
    /// The user's source files.
    pub sources: Sources,
    /// The screen shown.
    pub screen: Screen,
    /// Whether the help covers the screen.
    pub help: bool,
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
    page: usize,
    /// Results reused between frames.
    pub(crate) cache: Cache,
}

/// Expensive rows, kept until the state changes.
#[derive(Debug, Default)]
pub(crate) struct Cache {
    sides: HashMap<usize, (u64, Rc<Sides>)>,
    calls_by_rank: RefCell<Option<CallRows>>,
    /// Contents of whole screens.
    pub(crate) waits: Versioned<view::Waits>,
    pub(crate) stacks: Versioned<view::Stacks>,
    pub(crate) memory: Versioned<(usize, Vec<u32>)>,
}

/// A value that is computed once per version of the state.
#[derive(Debug)]
pub(crate) struct Versioned<T>(RefCell<Option<(u64, Rc<T>)>>);

impl<T> Default for Versioned<T> {
    fn default() -> Self {
        Self(RefCell::new(None))
    }
}

impl<T> Versioned<T> {
    /// Returns the value of this version if `is_good` accepts it, otherwise a new one.
    pub(crate) fn get(
        &self,
        version: u64,
        is_good: impl Fn(&T) -> bool,
        make: impl FnOnce() -> T,
    ) -> Rc<T> {
        let mut cache = self.0.borrow_mut();
        if let Some((of, made)) = &*cache
            && *of == version
            && is_good(made)
        {
            return Rc::clone(made);
        }
        let made = Rc::new(make());
        *cache = Some((version, Rc::clone(&made)));
        made
    }
}

/// Rows and call sites of a finding, root cause ranks first.
#[derive(Debug, Default)]
pub(crate) struct Sides {
    /// Ranks, state, place, source text, call.
    pub(crate) rows: Vec<[String; 5]>,
    /// Call sites of the finding, each with its ranks.
    pub(crate) places: Vec<(Where, String)>,
}

/// The calls at one sequence number of a group, with the version and the place as their key.
type CallRows = (u64, (u32, u64), Rc<Vec<[String; 4]>>);

impl Cache {
    /// The calls at one sequence number of a group.
    pub(crate) fn calls_by_rank(
        &self,
        version: u64,
        place: (u32, u64),
        make: impl FnOnce() -> Vec<[String; 4]>,
    ) -> Rc<Vec<[String; 4]>> {
        let mut cache = self.calls_by_rank.borrow_mut();
        match &*cache {
            Some((of, at, rows)) if (*of, *at) == (version, place) => Rc::clone(rows),
            _ => {
                let rows = Rc::new(make());
                *cache = Some((version, place, Rc::clone(&rows)));
                rows
            }
        }
    }
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
            Action::RequestStacks if self.state.link == Link::Live => {
                self.stacks_requested = Some(self.now);
                return Flow::RequestStacks;
            }
            _ => self.act(action),
        }
        Flow::Continue
    }

    fn act(&mut self, action: Action) {
        if std::mem::take(&mut self.help) && matches!(action, Action::Help | Action::Back) {
            return;
        }
        match action {
            Action::Help => self.help = true,
            Action::Show(screen) => self.show(screen),
            Action::NextScreen => self.show(self.screen.next()),
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
            Screen::Finding | Screen::Waits | Screen::Memory | Screen::Stacks => {
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
                let at = group.seqs.iter().position(|it| Some(it.seq) == shown);
                let at = moved(at.unwrap_or_default(), by, group.seqs.len());
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
        let sides = Rc::new(Sides {
            places: places.collect(),
            rows,
        });
        self.cache.sides.retain(|_, (of, _)| *of == version);
        self.cache.sides.insert(index, (version, Rc::clone(&sides)));
        sides
    }

    /// Draws the screen. Its cost grows with the number of ranks only if they have changed.
    pub fn draw(&mut self, area: Rect, buffer: &mut Buffer) {
        self.page = usize::from(area.height.saturating_sub(6)).max(1);
        self.ranks.update(&self.state);
        self.group = self.group.min(self.state.groups.len().saturating_sub(1));
        self.finding = self
            .finding
            .min(self.state.findings.len().saturating_sub(1));
        view::draw(self, area, buffer);
        self.theme.finish(buffer);
    }

    /// The first screen as lines of text, with the given width and maximum height.
    #[must_use]
    pub fn once(&mut self, width: u16, height: u16) -> Vec<String> {
        let area = Rect::new(0, 0, width, height);
        let mut buffer = Buffer::empty(area);
        self.ranks.update(&self.state);
        view::draw_once(self, area, &mut buffer);
        self.theme.finish(&mut buffer);
        let mut lines = view::lines_of(&buffer);
        while lines.last().is_some_and(String::is_empty) {
            lines.pop();
        }
        lines
    }
}

/// Moves an index by `by`, within `of` entries.
pub(crate) fn moved(index: usize, by: isize, of: usize) -> usize {
    index.saturating_add_signed(by).min(of.saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::list::Sort;
    use crate::state::RankView;
    use crate::state::testing::{finding, rank, update};
    use ratatui::crossterm::event::KeyModifiers;

    fn app() -> App {
        let mut app = App::new(Theme::BARE, Sources::none());
        let mut ranks: Vec<_> = (0..16).map(|it| rank(it, "running", 5)).collect();
        ranks[9].state = "dead".into();
        ranks[3].state = "waiting".into();
        app.feed(Input::Update(Box::new(update(1, ranks))), Timestamp(1));
        app.draw(
            Rect::new(0, 0, 80, 24),
            &mut Buffer::empty(Rect::new(0, 0, 80, 24)),
        );
        app
    }

    fn press(app: &mut App, keys: &str) {
        for letter in keys.chars() {
            let code = match letter {
                '\n' => KeyCode::Enter,
                '\x1b' => KeyCode::Esc,
                letter => KeyCode::Char(letter),
            };
            app.key(KeyEvent::new(code, KeyModifiers::NONE));
        }
        app.ranks.update(&app.state);
    }

    fn listed(app: &App) -> Vec<u32> {
        let ranks = (0..app.ranks.len()).filter_map(|it| app.ranks.nth(it, &app.state));
        ranks.map(RankView::rank).collect()
    }

    #[test]
    fn worst_rank_is_first_and_filter_keeps_unusual_ranks() {
        let mut app = app();
        assert_eq!(listed(&app)[..3], [9, 3, 0]);
        press(&mut app, "2o");
        assert_eq!(listed(&app), [9, 3]);
    }

    #[test]
    fn selection_follows_its_rank_when_the_order_changes() {
        let mut app = app();
        press(&mut app, "2jj");
        assert_eq!(app.ranks.selected, Some(0));
        press(&mut app, "s");
        assert_eq!((app.ranks.sort, app.ranks.position), (Sort::Rank, 0));
        press(&mut app, "r");
        assert_eq!((app.ranks.selected, app.ranks.position), (Some(0), 15));
    }

    #[test]
    fn search_matches_hosts_states_and_numbers() {
        let mut app = app();
        press(&mut app, "2/node1\n");
        assert_eq!(listed(&app).len(), 8);
        press(&mut app, "/q");
        assert!(app.ranks.typing, "letters are part of the search");
        press(&mut app, "\x1b/dead\n");
        assert_eq!(listed(&app), [9]);
        press(&mut app, "\x1b/12\n");
        assert_eq!(listed(&app), [12]);
        press(&mut app, "\x1b");
        assert_eq!(listed(&app).len(), 16);
    }

    #[test]
    fn enter_on_a_rank_opens_its_finding() {
        let mut app = app();
        let mut new = update(2, vec![]);
        new.findings_changed = true;
        new.findings = vec![finding("DD101", "a", &[1]), finding("DD201", "b", &[9])];
        app.feed(Input::Update(Box::new(new)), Timestamp(2));
        press(&mut app, "2s");
        for _ in 0..9 {
            press(&mut app, "j");
        }
        press(&mut app, "\n");
        assert_eq!((app.screen, app.finding), (Screen::Finding, 1));
        press(&mut app, "\x1b");
        assert_eq!(app.screen, Screen::Overview);
    }

    /// An update with terminal control characters in every text.
    fn hostile() -> ddp_doctor_proto::v1::Update {
        use ddp_doctor_proto::v1;
        let evil = "\x1b[2J\x07\u{9b}31m\u{202e}\r\nDD999";
        let text = || evil.to_owned();
        let place = v1::Where {
            file: text(),
            line: 1,
            function: text(),
            ..v1::Where::default()
        };
        let mut new = update(5, vec![rank(0, "waiting", 1), rank(1, evil, 1)]);
        for status in &mut new.ranks {
            status.host = text();
            status.r#where = Some(place.clone());
            status.waiting_in = Some(v1::WaitingIn {
                group: text(),
                op: text(),
                ..Default::default()
            });
        }
        let detail = |rank, waits_for: &[u32]| v1::RankDetail {
            rank,
            phase: text(),
            waits_for: waits_for.to_vec(),
            stack: vec![place.clone()],
            wait_channel: text(),
            gauges: vec![v1::Gauge {
                name: text(),
                unit: text(),
                value: 1,
                growth: Some(v1::Growth {
                    per_step: f64::NAN,
                    to_step: u64::MAX,
                    end: Some(v1::GrowthEnd {
                        value: u64::MAX,
                        of: text(),
                        steps: u64::MAX,
                        least: u64::MAX,
                        most: Some(0),
                    }),
                    ..Default::default()
                }),
                ..Default::default()
            }],
            ..Default::default()
        };
        new.details = vec![detail(0, &[1]), detail(1, &[])];
        let call = v1::RankCall {
            rank: 0,
            state: text(),
            op: Some(text()),
            dtype: Some(text()),
            reduce_op: Some(text()),
            r#where: Some(place.clone()),
            ..Default::default()
        };
        let mut group = crate::state::testing::group(0, &[0, 1], &[2, 1]);
        (group.name, group.description, group.backend) = (text(), text(), text());
        group.calls = vec![v1::CallsAt {
            seq: 2,
            calls: vec![call.clone()],
            ..Default::default()
        }];
        new.groups = vec![group];
        let mut wrong = finding(evil, evil, &[0]);
        (wrong.severity, wrong.summary) = ("error".into(), text());
        (wrong.why, wrong.next) = (vec![text()], vec![text()]);
        wrong.per_rank = vec![call];
        wrong.parameters = vec![v1::Parameter {
            name: text(),
            ..Default::default()
        }];
        wrong.certificate_json = Some(format!(
            r#"{{"kind":"observation","facts":[{{"fact":"missing","rank":0,"pid":1,"what":{evil:?}}}]}}"#
        ));
        new.findings_changed = true;
        new.findings = vec![wrong];
        new.verdict = text();
        new.job = Some(v1::Job {
            id: text(),
            backends: vec![text()],
            ..Default::default()
        });
        new.evidence = Some(v1::Evidence {
            layers: vec![text()],
            ..Default::default()
        });
        new
    }

    #[test]
    fn control_characters_are_removed_and_unknown_codes_shown() {
        let theme = Theme {
            depth: crate::Depth::True,
            unicode: true,
        };
        let mut app = App::new(theme, Sources::none());
        app.feed(Input::Update(Box::new(hostile())), Timestamp(5));
        let why = "\x1b]0;x\x07".to_owned();
        app.feed(Input::Link(Link::Lost { why }), Timestamp(6));
        let area = Rect::new(0, 0, 120, 60);
        for screen in Screen::ALL {
            for grid in [false, true] {
                app.screen = screen;
                app.ranks.grid = grid;
                let mut buffer = Buffer::empty(area);
                app.draw(area, &mut buffer);
                let turns = |c: char| ('\u{202a}'..='\u{202e}').contains(&c);
                for cell in &buffer.content {
                    let bad = cell.symbol().chars().any(|c| c.is_control() || turns(c));
                    assert!(!bad, "{screen:?}: {:?}", cell.symbol());
                }
                let shown = view::lines_of(&buffer).join("\n");
                assert!(shown.contains("DD999"), "{screen:?}\n{shown}");
            }
        }
    }

    #[test]
    fn selections_stay_valid_when_their_targets_vanish() {
        let mut app = app();
        press(&mut app, "3G2G4G");
        app.feed(Input::Link(Link::Live), Timestamp(3));
        app.feed(Input::Update(Box::new(update(3, vec![]))), Timestamp(3));
        for screen in Screen::ALL {
            app.screen = screen;
            let area = Rect::new(0, 0, 80, 24);
            app.draw(area, &mut Buffer::empty(area));
        }
        assert_eq!(app.ranks.len(), 0);
    }
}
