//! Cost of a frame and of an update of the dashboard: `cargo bench -p ddp-doctor-dashboard`.
//!
//! A key press costs a frame; an update arrives every second. The jobs have 8 to 16 384 ranks, one
//! of which never arrives at a collective in which the others wait, and groups of eight. The
//! results are medians of five batches, in CPU time, which varies little on a busy machine.
//! Updates are the worst case: every value of every rank has changed.

#![expect(clippy::print_stdout, reason = "it prints what it has measured")]

use std::hint::black_box;
use std::time::Duration;

use ddp_doctor_dashboard::screen::Screen;
use ddp_doctor_dashboard::sources::Sources;
use ddp_doctor_dashboard::{App, Depth, Input, Link, Theme};
use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_proto::report::{
    CallState, Finding, Rank, RankCall, RankState, Role, Severity, Verdict, WaitingIn, Where,
};
use ddp_doctor_proto::viewer::{CallsAt, Gauge, GroupStatus, RankDetail, Update};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

const SIZES: [u32; 4] = [8, 128, 1024, 16_384];
const BATCHES: usize = 5;
const BATCH: Duration = Duration::from_millis(200);
const SECOND: u64 = 1_000_000_000;

fn main() {
    println!("| | {} |", SIZES.map(|it| format!("{it} ranks")).join(" | "));
    println!("|---|{}", "--:|".repeat(SIZES.len()));
    let mut jobs: Vec<App> = SIZES.iter().map(|&ranks| job(ranks)).collect();
    for screen in Screen::ALL {
        for app in &mut jobs {
            app.screen = screen;
        }
        row(&format!("a frame of {screen:?}"), &mut jobs, |app, _, _| {
            frame(app);
        });
    }
    let updated = |app: &mut App, ranks: u32, run: usize| {
        app.screen = Screen::Overview;
        let update = update(ranks, 1000 + run as u64);
        app.feed(Input::Update(Box::new(update)), Timestamp(SECOND));
        frame(app);
    };
    row("an update of everything, made and shown", &mut jobs, updated);
    row("an update of everything, written as JSON and read", &mut jobs, |_, ranks, run| {
        let json = serde_json::to_vec(&update(ranks, 1000 + run as u64));
        let read = json.and_then(|json| serde_json::from_slice::<Update>(&json));
        black_box(read.is_ok());
    });
}

fn row(name: &str, jobs: &mut [App], mut once: impl FnMut(&mut App, u32, usize)) {
    let mut cells = Vec::new();
    for (app, ranks) in jobs.iter_mut().zip(SIZES) {
        let mut run = 0;
        let mut batch = || {
            // The kernel updates the CPU time only every few milliseconds.
            let begin = used();
            let first = run;
            while used().saturating_sub(begin) < BATCH {
                for _ in 0..8 {
                    once(app, ranks, run);
                    run += 1;
                }
            }
            used().saturating_sub(begin) / (run - first) as u32
        };
        let mut times: Vec<Duration> = (0..BATCHES).map(|_| batch()).collect();
        times.sort_unstable();
        cells.push(format!("{:.0} µs", times[BATCHES / 2].as_secs_f64() * 1e6));
    }
    println!("| {name} | {} |", cells.join(" | "));
}

fn frame(app: &mut App) {
    let area = Rect::new(0, 0, 200, 60);
    let mut buffer = Buffer::empty(area);
    app.draw(area, &mut buffer);
    black_box(&buffer);
}

/// Processor time used by this thread.
fn used() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let ns = text.split(' ').next().and_then(|it| it.parse().ok());
    Duration::from_nanos(ns.unwrap_or_default())
}

fn job(ranks: u32) -> App {
    let theme = Theme { depth: Depth::True, unicode: true };
    let mut app = App::new(theme, Sources::none());
    app.feed(Input::Link(Link::Live), Timestamp(1));
    for second in 1..100 {
        let update = update(ranks, second);
        app.feed(Input::Update(Box::new(update)), Timestamp(SECOND));
    }
    app
}

/// A complete update of a job that has been stalled since its third second.
fn update(ranks: u32, second: u64) -> Update {
    let odd = ranks / 3;
    let place = Where {
        file: "/home/me/train.py".into(),
        line: 19,
        function: "main".into(),
        ..Where::default()
    };
    let waits = |rank: u32| rank != odd && second > 3;
    let status = |rank: u32| Rank {
        rank,
        host: format!("node{}", rank / 8),
        pid: 1000 + rank,
        state: if waits(rank) { RankState::Waiting } else { RankState::Running },
        step: second.min(3),
        place: Some(place.clone()),
        waiting_in: waits(rank).then(|| WaitingIn {
            group: "0".into(),
            seq: Some(9),
            op: "all_reduce".into(),
            waited_ms: Some(second * 1000),
        }),
        ..Default::default()
    };
    let gauge = |name: &str, value: u64| Gauge {
        name: name.into(),
        unit: "B".into(),
        value,
        peak: value,
        limit: Some(80 << 30),
        growth: None,
    };
    let detail = |rank: u32| RankDetail {
        rank,
        gauges: vec![gauge("gpu 0", (40 << 30) + u64::from(rank) * second), gauge("rss", 2 << 30)],
        waits_for: if waits(rank) { vec![odd] } else { Vec::new() },
        stack: vec![place.clone(); 12],
        stack_at: Timestamp(second * SECOND),
        ..Default::default()
    };
    let call = |rank: u32| RankCall {
        rank,
        state: CallState::Waiting,
        op: Some("all_reduce".into()),
        seq: Some(9),
        place: Some(place.clone()),
        ..Default::default()
    };
    let group = |number: u32, members: Vec<u32>| GroupStatus {
        number,
        name: number.to_string(),
        backend: "nccl".into(),
        issued: members.iter().map(|&it| 9 - u64::from(it == odd)).collect(),
        calls: vec![CallsAt {
            seq: 9,
            calls: members.iter().filter(|&&it| it != odd).map(|&it| call(it)).take(4096).collect(),
            ..Default::default()
        }],
        ranks: members,
        ..Default::default()
    };
    let mut groups = vec![group(0, (0..ranks).collect())];
    groups.extend((0..ranks / 8).map(|it| group(1 + it, (it * 8..it * 8 + 8).collect())));
    let mut finding = Finding {
        code: "DD101".into(),
        name: "missing-rank".into(),
        severity: Severity::Error,
        role: Role::Initiating,
        summary: format!("rank {odd} has not reached all_reduce #9"),
        per_rank: (0..ranks).map(call).collect(),
        ..Default::default()
    };
    finding.ranks.root = vec![odd];
    Update {
        at: Timestamp(second * SECOND),
        verdict: Verdict::Hang,
        findings: Some(vec![finding]),
        ranks: (0..ranks).map(status).collect(),
        details: (0..ranks).map(detail).collect(),
        groups,
        ..Default::default()
    }
}
