//! Clocks of nodes, and nodes that do not report.

use ddp_doctor_proto::report::{Confidence, RankState, Severity};

use super::*;

/// A live node whose clock is `ahead` nanoseconds ahead, and which answers pings.
async fn live(
    hub: &Arc<Hub>,
    ahead: i64,
    mut first: v1::Report,
) -> (mpsc::Sender<v1::Report>, tokio::task::JoinHandle<()>) {
    let there = move || now().checked_add_signed(ahead).unwrap();
    first.sent_unix_ns = there();
    let (reports, mut requests) = attach(hub, first).await;
    let answers = reports.clone();
    let living = tokio::spawn(async move {
        while let Some(request) = requests.recv().await {
            if let Some(request::Kind::Ping(ping)) = request.kind {
                let pong = v1::Pong { ping_unix_ns: ping.unix_ns, received_unix_ns: there() };
                let report = v1::Report {
                    sent_unix_ns: there(),
                    events: Vec::new(),
                    pong: Some(pong),
                    ..v1::Report::default()
                };
                if answers.send(report).await.is_err() {
                    return;
                }
            }
        }
    });
    (reports, living)
}

/// A report whose times are moved by an offset.
fn shifted(kinds: Vec<Kind>, by: i64) -> v1::Report {
    let mut report = report(kinds);
    for event in &mut report.events {
        let unix_ns = match event.kind.as_mut().unwrap() {
            Kind::ProcessJoined(joined) => &mut joined.anchor_unix_ns,
            Kind::ProcessChanged(changed) => &mut changed.unix_ns,
            Kind::JobEnded(ended) => &mut ended.unix_ns,
            _ => continue,
        };
        *unix_ns = unix_ns.checked_add_signed(by).unwrap();
    }
    report
}

#[tokio::test]
async fn different_clocks_are_reported_and_corrected() {
    const AHEAD: i64 = 90_000_000_000;
    let hub = Arc::new(Hub::new());
    let mut first = vec![hello("j", "a")];
    first.extend(waiting_rank(0, 2));
    let (a, _living) = live(&hub, 0, report(first)).await;
    let (b, _living) = live(&hub, AHEAD, shifted(vec![hello("j", "b"), joined(1, 2)], AHEAD)).await;
    let mut updates = hub.watch("j", true).unwrap();
    let update = until(&mut updates, |update| finds(update, "DD903")).await;
    let skew = found(&update, "DD903").next().unwrap();
    assert!(
        skew.summary.contains("the clock of host b is 90.0 s ahead of that of host a"),
        "{}",
        skew.summary
    );
    assert_eq!((skew.severity, skew.confidence), (Severity::Note, Confidence::Proved));
    let uncertainty = update.evidence.clock_uncertainty_ms;
    assert!(uncertainty > 0.0 && uncertainty < 5_000.0, "{uncertainty}");

    // By its own clock, rank 1 ended a minute and a half from now.
    b.send(shifted(vec![ended(1, 9)], AHEAD)).await.unwrap();
    let update = until(&mut updates, |update| finds(update, "DD201")).await;
    let death = found(&update, "DD201").next().unwrap();
    assert!(death.detected_at.0 <= now());
    assert!(death.latency_ms < 20_000, "{death:?}");
    a.send(report(vec![job_ended()])).await.unwrap();
    b.send(shifted(vec![job_ended()], AHEAD)).await.unwrap();
    let last = until(&mut updates, |update| update.ended).await;
    let over = last.job.ended_at.unwrap();
    assert!(over.0.abs_diff(now()) < 30_000_000_000, "{over}");
}

#[tokio::test]
async fn one_host_has_one_clock() {
    let hub = Arc::new(Hub::new());
    let (_a, _living) = live(&hub, 0, report(vec![hello("j", "a"), joined(0, 1)])).await;
    let mut updates = hub.watch("j", true).unwrap();
    for _ in 0..3 {
        let update = updates.next().await.unwrap();
        assert!(!finds(&update, "DD903"));
        assert_eq!(update.evidence.clock_uncertainty_ms, 0.0);
    }
}

#[tokio::test]
async fn node_is_silent_until_it_reports_again() {
    let hub = Arc::new(Hub::new());
    let (a, mut a_requests) = attach(&hub, report(vec![hello("j", "a"), joined(0, 2)])).await;
    let (b, _b_requests) = attach(&hub, report(vec![hello("j", "b"), joined(1, 2)])).await;
    let beats = a.clone();
    let beating = tokio::spawn(async move {
        while beats.send(report(Vec::new())).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    });
    let mut updates = hub.watch("j", true).unwrap();
    let silent = |update: &Update| finds(update, "DD904");
    let update = tokio::time::timeout(Duration::from_secs(60), until_anytime(&mut updates, silent))
        .await
        .unwrap();
    let finding = found(&update, "DD904").next().unwrap();
    assert_eq!(finding.ranks.root, [1]);
    b.send(report(Vec::new())).await.unwrap();
    until(&mut updates, |it| it.findings.as_ref().is_some_and(Vec::is_empty)).await;

    // A broken connection that is never restored counts as silence, too.
    drop(b);
    let update = tokio::time::timeout(Duration::from_secs(60), until_anytime(&mut updates, silent))
        .await
        .unwrap();
    let states = update.ranks.iter().map(|rank| (rank.rank, rank.state));
    assert!(
        states.clone().any(|it| it == (1, RankState::Unknown)),
        "{:?}",
        states.collect::<Vec<_>>()
    );
    beating.abort();
    a.send(report(vec![job_ended()])).await.unwrap();
    finished(&mut a_requests).await;
}
