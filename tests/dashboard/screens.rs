//! Every screen of the dashboard on terminals of three sizes, with healthy jobs and jobs with each
//! kind of fault.
//!
//! The expected screens are in `tests/screens`. After a change, run with `UPDATE_SCREENS=1` and
//! review the difference.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use ddp_doctor::postmortem::{self, Progress};
use ddp_doctor_dashboard::screen::Screen;
use ddp_doctor_dashboard::sources::{Read, Sources};
use ddp_doctor_dashboard::view::lines_of;
use ddp_doctor_dashboard::{App, Depth, Input, Link, Theme};
use ddp_doctor_proto::report::Timestamp;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use crate::support::scenario::Scenario;

const SIZES: [(u16, u16); 3] = [(80, 24), (120, 40), (200, 60)];

/// A terminal with true color and Unicode.
const RICH: Theme = Theme { depth: Depth::True, unicode: true };

/// Moment at which the dashboard is shown.
#[derive(Clone, Copy, PartialEq)]
enum When {
    /// At the last update of a live job.
    Live,
    /// After the evidence has ended.
    After,
}

/// A dashboard that shows the job of a scenario.
fn watched(scenario: &str, theme: Theme, when: When) -> App {
    let source = |file: &str| {
        // Generated source, since the programs that scenarios name do not exist.
        let is_program = file.ends_with(".py");
        let line = |number| format!("    line_{number}(model, batch)\n");
        is_program.then(|| (1..100).map(line).collect())
    };
    watched_with(scenario, theme, when, Box::new(source))
}

fn watched_with(scenario: &str, theme: Theme, when: When, source: Read) -> App {
    let dir = tempfile::tempdir().unwrap();
    let scenario = Scenario::parse(scenario).unwrap();
    let journals = scenario.journals(dir.path(), 1).unwrap();
    let mut updates =
        postmortem::record(&journals, &mut Vec::new(), &Progress::default()).unwrap().updates;
    if when == When::Live {
        // The last two updates mark the end of the evidence.
        updates.truncate(updates.len().saturating_sub(2));
    }
    let mut app = App::new(theme, Sources::new("/".into(), source));
    let link = match when {
        When::Live => Link::Live,
        When::After => Link::Recorded,
    };
    app.feed(Input::Link(link), Timestamp(1));
    for update in updates {
        let at = update.at;
        app.feed(Input::Update(Box::new(update)), at);
    }
    app
}

fn file(name: &str) -> String {
    let path = root().join("tests/scenarios").join(name);
    std::fs::read_to_string(path).unwrap()
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn picture(app: &mut App, (width, height): (u16, u16)) -> Vec<String> {
    let area = Rect::new(0, 0, width, height);
    let mut buffer = Buffer::empty(area);
    app.draw(area, &mut buffer);
    lines_of(&buffer)
}

/// All screens at all sizes, as one text.
fn pictures(app: &mut App) -> String {
    let mut text = String::new();
    for size in SIZES {
        for screen in Screen::ALL {
            if screen == Screen::Devices && app.state.ranks.devices().is_empty() {
                continue;
            }
            app.screen = screen;
            let (width, height) = size;
            writeln!(text, "──── {screen:?} {width}×{height}").unwrap();
            for line in picture(app, size) {
                writeln!(text, "{line}").unwrap();
            }
        }
    }
    text
}

#[track_caller]
fn compare(name: &str, shown: &str) {
    let path: PathBuf = root().join("tests/screens").join(format!("{name}.txt"));
    if std::env::var_os("UPDATE_SCREENS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, shown).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = || {
        let mut lines = expected.lines().zip(shown.lines()).enumerate();
        let first = lines.find(|(_, (a, b))| a != b);
        first.map_or("one is longer".into(), |(at, (a, b))| {
            format!("line {}:\n  {a}\n  {b}", at + 1)
        })
    };
    assert!(
        expected == shown,
        "{} has changed; run with UPDATE_SCREENS=1 and review the difference. {}",
        path.display(),
        differs()
    );
}

#[test]
fn screens_match_the_stored_pictures() {
    for name in [
        "healthy/subgroups",
        "memory/leak_on_one_rank",
        "process/early_exit",
        "process/killed",
        "process/uncaught_exception",
        "process/stopped",
        "wire/op_mismatch_odd_one",
        "wire/uneven_inputs_other_op",
        "waits/missing_rank",
        "waits/two_groups_opposite_order",
        "p2p/ring_even_and_odd",
        "outside/data_loader_worker",
        "phases/outlives_the_timeout",
        "evidence/rank_never_seen",
        "findings/gpu-slowed/example",
        "findings/link-fault/nvlink_that_fails_is_that_of_its_gpu",
    ] {
        let mut app = watched(&file(&format!("{name}.toml")), RICH, When::Live);
        compare(&name.replace('/', "-"), &pictures(&mut app));
    }
}

/// A job of 1 024 ranks, one of which never arrives.
const LARGE: &str = r#"
about = "one of 1 024 ranks does not come"
world = 1024
stall-after = 10
events = """
1.0 * all_reduce f32[8] sum @train.py:9
1.5 * done
2.0 0-776,778-1023 all_reduce f32[8] sum @train.py:9
2.1 777 stack S hrtimer_nanosleep cpu=5 @train.py:12:fetch
4.1 777 stack S hrtimer_nanosleep cpu=5 @train.py:12:fetch
"""
continues-for = 20
"#;

#[test]
fn one_missing_rank_of_1024_is_shown_first() {
    let mut app = watched(LARGE, RICH, When::Live);
    for size in SIZES {
        app.screen = Screen::Overview;
        let shown = picture(&mut app, size).join("\n");
        assert!(shown.contains("rank 777"), "{shown}");
        app.screen = Screen::Ranks;
        let shown = picture(&mut app, size);
        assert!(shown[4].contains("777"), "the missing rank is not the first: {shown:#?}");
    }
    app.screen = Screen::Ranks;
    app.ranks.grid = true;
    compare("one-of-1024-as-a-grid", &picture(&mut app, (120, 40)).join("\n"));
    app.ranks.grid = false;
    compare("one-of-1024", &pictures(&mut app));
}

#[test]
fn terminal_without_colors_gets_ascii() {
    let mut app = watched(&file("process/early_exit.toml"), Theme::BARE, When::After);
    for screen in Screen::ALL {
        app.screen = screen;
        for (width, height) in [(80, 24), (20, 4), (1, 1), (300, 3), (40, 100)] {
            let area = Rect::new(0, 0, width, height);
            let mut buffer = Buffer::empty(area);
            app.draw(area, &mut buffer);
            assert!(buffer.content.iter().all(|cell| {
                let plain = cell.fg == ratatui::style::Color::Reset;
                plain && cell.symbol().is_ascii()
            }));
        }
    }
}

/// Scenarios of a code whose screens are checked.
const OF_A_CODE: usize = 3;

/// Code, culprits and reason have to fit on the first screen of the smallest terminal.
#[test]
fn first_screen_names_finding_root_cause_and_reason() {
    let mut folders = vec![root().join("tests/scenarios")];
    let mut seen = BTreeMap::<String, usize>::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            let scenario = Scenario::parse(&text).unwrap();
            let codes = scenario.expected_codes();
            let is_known = |code: &&str| seen.get(*code).is_some_and(|it| *it >= OF_A_CODE);
            if !scenario.is_in_journals() || codes.iter().all(is_known) {
                continue;
            }
            let mut app = watched(&text, RICH, When::After);
            let shown = picture(&mut app, (80, 24)).join("\n");
            let Some(leading) = app.state.findings.first().cloned() else {
                continue;
            };
            if leading.severity < ddp_doctor_proto::report::Severity::Warning {
                continue;
            }
            *seen.entry(leading.code.clone()).or_default() += 1;
            let name = path.display();
            assert!(shown.contains(&leading.code), "{name}\n{shown}");
            let has_reason = shown.contains("why ") || leading.why.is_empty();
            assert!(has_reason, "{name}\n{shown}");
            for root in leading.ranks.root.iter().take(3) {
                assert!(shown.contains(&root.to_string()), "{name}\n{shown}");
            }
        }
    }
    assert!(seen.len() > 40, "{seen:?}");
}

#[test]
fn recording_shows_its_position() {
    let mut app = watched(&file("process/early_exit.toml"), RICH, When::After);
    let mut shown = picture(&mut app, (80, 24));
    let now = Timestamp(1);
    for key in ['N', 'N', 'N', ' '] {
        app.tick(now);
        app.key(ratatui::crossterm::event::KeyEvent::from(
            ratatui::crossterm::event::KeyCode::Char(key),
        ));
    }
    app.tick(now.plus(std::time::Duration::from_millis(1200)));
    shown.extend(picture(&mut app, (80, 24)));
    compare("recording", &shown.join("\n"));
}

/// The job of the README: one of eight ranks has one batch fewer than the others.
const README: &str = r#"
about = "one of eight ranks has a batch less"
world = 8
events = """
loop 1-12 from 1.0 every 0.5
0.0 * step $
0.1 * all_reduce f32[2762] sum @train.py:19
0.2 * done
end
7.0 0-4,6-7 step 13
7.1 0-4,6-7 all_reduce f32[2762] sum @train.py:19
7.2 5 input-ended
7.3 5 barrier @train.py:41
"""
continues-for = 12
"#;

/// Markers around the first screen in the README.
const MARKS: (&str, &str) = ("<!-- watch -->\n```text\n", "```\n<!-- /watch -->\n");

#[test]
fn readme_shows_the_first_screen() {
    let source = |_: &str| {
        let line = |number| match number {
            19 => "    loss.backward()\n",
            41 => "dist.barrier()\n",
            _ => "\n",
        };
        Some((1..50).map(line).collect())
    };
    let mut app = watched_with(README, RICH, When::Live, Box::new(source));
    let mut shown: String = picture(&mut app, (100, 33)).join("\n");
    shown.push('\n');
    let path = root().join("README.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once(MARKS.0).unwrap();
    let (known, after) = rest.split_once(MARKS.1).unwrap();
    if std::env::var_os("UPDATE_SCREENS").is_some() && known != shown {
        let text = format!("{before}{}{shown}{}{after}", MARKS.0, MARKS.1);
        std::fs::write(&path, text).unwrap();
    } else {
        assert_eq!(known, shown, "run with UPDATE_SCREENS=1");
    }
}
