use super::*;
use crate::list::Sort;
use crate::state::RankView;
use crate::state::testing::{finding, rank, update};
use ddp_doctor_proto::report::{
    Certificate, CertificateKind, Fact, Parameter, RankCall, RankDevice, RankPort, RankState,
    WaitingIn,
};
use ddp_doctor_proto::viewer::{CallsAt, Gauge, Growth, GrowthEnd, RankDetail, Update};
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::KeyModifiers;
use ratatui::layout::Rect;

fn app() -> App {
    let mut app = App::new(Theme::BARE, Sources::none());
    let mut ranks: Vec<_> = (0..16).map(|it| rank(it, "running", 5)).collect();
    ranks[9].state = RankState::Dead;
    ranks[3].state = RankState::Waiting;
    app.feed(Input::Update(Box::new(update(1, ranks))), Timestamp(1));
    app.draw(Rect::new(0, 0, 80, 24), &mut Buffer::empty(Rect::new(0, 0, 80, 24)));
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
    new.findings = Some(vec![finding("DD101", "a", &[1]), finding("DD201", "b", &[9])]);
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

/// An update with terminal control characters and an address in every text.
fn hostile() -> Update {
    let evil = "\x1b[2J\x07\u{9b}31m\u{202e}\r\nDD999 ftp://a";
    let text = || evil.to_owned();
    let place = Where { file: text(), line: 1, function: text(), ..Where::default() };
    let mut new = update(5, vec![rank(0, "waiting", 1), rank(1, "dead", 1)]);
    for status in &mut new.ranks {
        status.host = text();
        status.place = Some(place.clone());
        status.waiting_in = Some(WaitingIn { group: text(), op: text(), ..Default::default() });
    }
    let detail = |rank, waits_for: &[u32]| RankDetail {
        rank,
        phase: text(),
        waits_for: waits_for.to_vec(),
        stack: vec![place.clone()],
        wait_channel: text(),
        gauges: vec![Gauge {
            name: text(),
            unit: text(),
            value: 1,
            growth: Some(Growth {
                per_step: f64::NAN,
                to_step: u64::MAX,
                end: Some(GrowthEnd {
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
    let call = RankCall {
        rank: 0,
        op: Some(text()),
        dtype: Some(text()),
        reduce_op: Some(text()),
        place: Some(place.clone()),
        ..Default::default()
    };
    let mut group = crate::state::testing::group(0, &[0, 1], &[2, 1]);
    (group.name, group.description, group.backend) = (text(), text(), text());
    group.calls = vec![CallsAt { seq: 2, calls: vec![call.clone()], ..Default::default() }];
    new.groups = vec![group];
    let mut wrong = finding(evil, evil, &[0]);
    wrong.summary = text();
    (wrong.why, wrong.next) = (vec![text()], vec![text()]);
    wrong.per_rank = vec![call];
    wrong.parameters = vec![Parameter { name: text(), ..Default::default() }];
    wrong.certificate = Some(Certificate {
        kind: CertificateKind::Observation,
        facts: vec![Fact::Missing { rank: Some(0), pid: Some(1), what: text() }],
    });
    new.findings = Some(vec![wrong]);
    (new.job.id, new.job.backends) = (text(), vec![text()]);
    if let Some(rank) = new.ranks.first_mut() {
        let port = RankPort { name: text(), kind: text(), ..RankPort::default() };
        rank.ports = vec![port];
        rank.device = Some(RankDevice { slowdown: Some(text()), ..RankDevice::default() });
    }
    new.evidence.layers = vec![text()];
    new
}

#[test]
fn texts_of_ranks_control_no_terminal() {
    let theme = Theme { depth: crate::Depth::True, unicode: true };
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
            let shown = crate::view::lines_of(&buffer).join("\n");
            assert!(shown.contains("DD999"), "{screen:?}\n{shown}");
            assert!(shown.contains("ftp:\u{2060}//a"), "{screen:?}\n{shown}");
            assert!(!shown.contains("://"), "{screen:?}\n{shown}");
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

/// Feeds a running job of two ranks; the second one has no stack.
fn live_app(known: &[u32]) -> App {
    let mut app = App::new(Theme::BARE, Sources::none());
    app.feed(Input::Link(Link::Live), Timestamp(1));
    let mut new = update(1, (0..2).map(|it| rank(it, "running", 5)).collect());
    let detail = |&rank: &u32| RankDetail {
        rank,
        stack: vec![Where { function: "main".into(), ..Where::default() }],
        ..RankDetail::default()
    };
    new.details = known.iter().map(detail).collect();
    app.feed(Input::Update(Box::new(new)), Timestamp(2));
    app
}

#[test]
fn screen_of_stacks_requests_those_that_are_not_known_once() {
    let key = |letter| KeyEvent::new(KeyCode::Char(letter), KeyModifiers::NONE);
    let mut app = live_app(&[0]);
    assert_eq!(app.key(key('7')), Flow::Continue);
    assert_eq!(app.key(key('8')), Flow::RequestStacks);
    assert_eq!((app.key(key('1')), app.key(key('8'))), (Flow::Continue, Flow::Continue));
    assert_eq!(app.key(key('d')), Flow::RequestStacks);
    assert_eq!(live_app(&[0, 1]).key(key('8')), Flow::Continue);
    // A recording cannot be asked.
    let mut recorded = live_app(&[0]);
    recorded.feed(Input::Link(Link::Recorded), Timestamp(3));
    assert_eq!(recorded.key(key('8')), Flow::Continue);
}
