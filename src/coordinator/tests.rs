use std::time::Duration;

use ddp_doctor_proto::{Op, ProcessState, RecordKind, v1};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use v1::agent_service_client::AgentServiceClient;
use v1::event::Kind;
use v1::request;
use v1::viewer_service_client::ViewerServiceClient;

use super::*;

const PATIENCE: Duration = Duration::from_secs(20);

fn report(kinds: Vec<Kind>) -> v1::Report {
    let events = kinds
        .into_iter()
        .map(|kind| v1::Event { kind: Some(kind) })
        .collect();
    v1::Report {
        sent_unix_ns: now(),
        events,
        pong: None,
    }
}

fn now() -> u64 {
    ddp_doctor_proto::report::Timestamp::now().0
}

fn hello(job: &str, host: &str) -> Kind {
    Kind::Hello(v1::Hello {
        job: job.into(),
        host: host.into(),
        started_unix_ns: 1,
        stall_after_s: 60,
        ..Default::default()
    })
}

/// A rank that has joined, begun the first `all_reduce` of its group, and waits in it.
fn waiting_rank(rank: u32, world_size: u32) -> Vec<Kind> {
    let process = u64::from(rank) + 1;
    let group = v1::GroupDefined {
        process,
        id: 1,
        name: "0".into(),
        members: (0..world_size).collect(),
        ..Default::default()
    };
    let record = v1::Record {
        process,
        kind: i32::from(RecordKind::Issued.number()),
        op: i32::from(Op::AllReduce.number()),
        group: 1,
        seq: 1,
        call: 1,
        ..Default::default()
    };
    vec![
        joined(rank, world_size),
        Kind::GroupDefined(group),
        Kind::Record(record),
    ]
}

fn joined(rank: u32, world_size: u32) -> Kind {
    Kind::ProcessJoined(v1::ProcessJoined {
        process: u64::from(rank) + 1,
        pid: 100 + rank,
        rank: Some(rank),
        world_size: Some(world_size),
        layer: "c10d".into(),
        world: String::new(),
        anchor_unix_ns: now(),
        ..Default::default()
    })
}

fn ended(rank: u32, signal: i32) -> Kind {
    Kind::ProcessChanged(v1::ProcessChanged {
        process: u64::from(rank) + 1,
        state: i32::from(ProcessState::Dead.number()),
        unix_ns: now(),
        exit_code: None,
        exit_signal: Some(signal),
    })
}

fn job_ended() -> Kind {
    Kind::JobEnded(v1::JobEnded {
        unix_ns: now(),
        status: 1,
    })
}

async fn attach(
    hub: &Hub,
    first: v1::Report,
) -> (mpsc::Sender<v1::Report>, mpsc::Receiver<v1::Request>) {
    let (reports, stream) = mpsc::channel(8);
    reports.send(first).await.unwrap();
    (
        reports,
        hub.attach(ReceiverStream::new(stream)).await.unwrap(),
    )
}

async fn until(updates: &mut Updates, is_so: impl Fn(&v1::Update) -> bool) -> v1::Update {
    tokio::time::timeout(PATIENCE, async {
        loop {
            let update = updates.next().await.unwrap();
            if is_so(&update) {
                return update;
            }
        }
    })
    .await
    .unwrap()
}

async fn finished(requests: &mut mpsc::Receiver<v1::Request>) {
    tokio::time::timeout(PATIENCE, async {
        loop {
            if let Some(request::Kind::Finished(_)) = requests.recv().await.unwrap().kind {
                return;
            }
        }
    })
    .await
    .unwrap();
}

fn finds(update: &v1::Update, code: &str) -> bool {
    update.findings.iter().any(|finding| finding.code == code)
}

#[tokio::test]
async fn a_death_is_found_across_nodes_and_the_last_word_says_so() {
    let hub = Hub::new();
    let mut first = vec![hello("j", "a")];
    first.extend(waiting_rank(0, 2));
    let (a, mut a_requests) = attach(&hub, report(first)).await;
    let (b, mut b_requests) = attach(
        &hub,
        report(vec![hello("j", "b"), joined(1, 2), ended(1, 9)]),
    )
    .await;
    let mut updates = hub.watch("", false).unwrap();
    let update = until(&mut updates, |update| finds(update, "DD201")).await;
    assert_eq!(update.job.as_ref().unwrap().nodes, 2);
    assert!(!update.ended);
    b.send(report(vec![job_ended()])).await.unwrap();
    finished(&mut b_requests).await;
    a.send(report(vec![ended(0, 15), job_ended()]))
        .await
        .unwrap();
    finished(&mut a_requests).await;
    let last = until(&mut updates, |update| update.ended).await;
    assert!(last.job.unwrap().ended_unix_ns.is_some());
    assert!(updates.next().await.is_none());
    // Who comes late learns how it ended.
    let mut late = hub.watch("j", false).unwrap();
    assert!(finds(
        &until(&mut late, |update| update.ended).await,
        "DD201"
    ));
}

#[tokio::test]
async fn a_node_that_attaches_again_repeats_itself_without_effect() {
    let hub = Hub::new();
    let mut all = vec![hello("j", "a")];
    all.extend(waiting_rank(0, 2));
    let (first, _requests) = attach(&hub, report(all.clone())).await;
    let mut updates = hub.watch("j", false).unwrap();
    drop(first);
    all.extend([joined(1, 2), ended(1, 9)]);
    let (_second, _requests) = attach(&hub, report(all)).await;
    let update = until(&mut updates, |update| finds(update, "DD201")).await;
    let evidence = update.evidence.unwrap();
    assert_eq!((evidence.records, evidence.records_lost), (1, 0));
    assert_eq!(update.job.unwrap().nodes, 1);
}

#[tokio::test]
async fn jobs_are_kept_apart() {
    let hub = Hub::new();
    let (_one, _requests) = attach(&hub, report(vec![hello("one", "a"), joined(0, 1)])).await;
    let (_two, _requests2) = attach(&hub, report(vec![hello("two", "a"), joined(0, 1)])).await;
    for (asked, is) in [("", "two"), ("one", "one"), ("two", "two")] {
        let mut updates = hub.watch(asked, true).unwrap();
        assert_eq!(until(&mut updates, |_| true).await.job.unwrap().id, is);
    }
    assert_eq!(
        hub.watch("three", false).err(),
        Some(AttachError::NoSuchJob)
    );
}

#[tokio::test]
async fn a_stream_has_to_say_whose_it_is() {
    let hub = Hub::new();
    let attach =
        async |first: v1::Report| hub.attach(Box::pin(tokio_stream::once(first))).await.err();
    assert_eq!(
        attach(report(vec![job_ended()])).await,
        Some(AttachError::NoHello)
    );
    assert_eq!(attach(report(vec![])).await, Some(AttachError::NoHello));
    assert_eq!(
        attach(report(vec![hello("", "a")])).await,
        Some(AttachError::BadJobId)
    );
    let endless = "x".repeat(10_000);
    assert_eq!(
        attach(report(vec![hello(&endless, "a")])).await,
        Some(AttachError::BadJobId)
    );
}

#[tokio::test]
async fn what_makes_no_sense_is_noted() {
    let hub = Hub::new();
    let nonsense = Kind::RecordsLost(v1::RecordsLost {
        process: 99,
        count: 1,
    });
    let (_node, _requests) =
        attach(&hub, report(vec![hello("j", "a"), joined(0, 1), nonsense])).await;
    let mut updates = hub.watch("j", false).unwrap();
    let update = until(&mut updates, |update| finds(update, "DD901")).await;
    let finding = update
        .findings
        .iter()
        .find(|finding| finding.code == "DD901")
        .unwrap();
    assert!(
        format!("{finding:?}").contains("made no sense"),
        "{finding:?}"
    );
}

#[tokio::test]
async fn viewers_are_bounded_and_forgotten_when_they_leave() {
    let hub = Hub::new();
    let (_node, _requests) = attach(&hub, report(vec![hello("j", "a")])).await;
    let mut viewers: Vec<Updates> = (0..64).map(|_| hub.watch("j", true).unwrap()).collect();
    assert_eq!(
        hub.watch("j", true).err(),
        Some(AttachError::TooManyViewers)
    );
    viewers.pop();
    assert!(hub.watch("j", true).is_ok());
}

#[tokio::test]
async fn it_all_works_over_the_wire() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving = tokio::spawn(serve(listener, Arc::new(Hub::new()), async {
        stopped.await.ok();
    }));
    let mut viewer = ViewerServiceClient::connect(url.clone()).await.unwrap();
    let request = |job: &str| v1::WatchRequest { job: job.into() };
    let missing = viewer.watch(request("j")).await.unwrap_err();
    assert_eq!(missing.code(), tonic::Code::NotFound);

    let (reports, stream) = mpsc::channel(8);
    let mut first = vec![hello("j", "a")];
    first.extend(waiting_rank(0, 2));
    reports.send(report(first)).await.unwrap();
    let mut node = AgentServiceClient::connect(url).await.unwrap();
    let mut requests = node
        .attach(ReceiverStream::new(stream))
        .await
        .unwrap()
        .into_inner();
    let mut updates = viewer.watch(request("j")).await.unwrap().into_inner();
    let welcome = requests.message().await.unwrap().unwrap();
    assert!(matches!(welcome.kind, Some(request::Kind::Welcome(_))));
    let end = vec![joined(1, 2), ended(1, 9), ended(0, 15), job_ended()];
    reports.send(report(end)).await.unwrap();
    let asked = requests.message().await.unwrap().unwrap();
    assert!(matches!(asked.kind, Some(request::Kind::Ping(_))));
    let done = requests.message().await.unwrap().unwrap();
    assert!(matches!(done.kind, Some(request::Kind::Finished(_))));
    let mut codes = Vec::new();
    while let Some(update) = updates.message().await.unwrap() {
        codes.extend(update.findings.into_iter().map(|finding| finding.code));
    }
    assert!(codes.contains(&"DD201".to_owned()), "{codes:?}");
    drop((reports, requests, node, viewer));
    stop.send(()).unwrap();
    tokio::time::timeout(PATIENCE, serving)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
}

/// A node whose clock is so many nanoseconds ahead, which says that it lives and answers pings.
async fn live(
    hub: &Hub,
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
                let pong = v1::Pong {
                    ping_unix_ns: ping.unix_ns,
                    received_unix_ns: there(),
                };
                let report = v1::Report {
                    sent_unix_ns: there(),
                    events: Vec::new(),
                    pong: Some(pong),
                };
                if answers.send(report).await.is_err() {
                    return;
                }
            }
        }
    });
    (reports, living)
}

/// The time of everything in these events moves by so much.
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
async fn clocks_that_differ_are_told_and_corrected() {
    const AHEAD: i64 = 90_000_000_000;
    let hub = Hub::new();
    let mut first = vec![hello("j", "a")];
    first.extend(waiting_rank(0, 2));
    let (a, _living) = live(&hub, 0, report(first)).await;
    let (b, _living) = live(
        &hub,
        AHEAD,
        shifted(vec![hello("j", "b"), joined(1, 2)], AHEAD),
    )
    .await;
    let mut updates = hub.watch("j", true).unwrap();
    let update = until(&mut updates, |update| finds(update, "DD903")).await;
    let skew = update
        .findings
        .iter()
        .find(|it| it.code == "DD903")
        .unwrap();
    assert!(
        skew.summary
            .contains("the clock of host b is 90.0 s ahead of that of host a"),
        "{}",
        skew.summary
    );
    assert_eq!((&*skew.severity, &*skew.confidence), ("note", "proved"));
    let uncertainty = update.evidence.unwrap().clock_uncertainty_ms;
    assert!(uncertainty > 0.0 && uncertainty < 5_000.0, "{uncertainty}");

    // By its own clock, rank 1 ended a minute and a half from now.
    b.send(shifted(vec![ended(1, 9)], AHEAD)).await.unwrap();
    let update = until(&mut updates, |update| finds(update, "DD201")).await;
    let death = update
        .findings
        .iter()
        .find(|it| it.code == "DD201")
        .unwrap();
    assert!(death.detected_at_unix_ns <= now());
    assert!(death.latency_ms < 20_000, "{death:?}");
    a.send(report(vec![job_ended()])).await.unwrap();
    b.send(shifted(vec![job_ended()], AHEAD)).await.unwrap();
    let last = until(&mut updates, |update| update.ended).await;
    let over = last.job.unwrap().ended_unix_ns.unwrap();
    assert!(over.abs_diff(now()) < 30_000_000_000, "{over}");
}

#[tokio::test]
async fn one_host_has_one_clock() {
    let hub = Hub::new();
    let (_a, _living) = live(&hub, 0, report(vec![hello("j", "a"), joined(0, 1)])).await;
    let mut updates = hub.watch("j", true).unwrap();
    for _ in 0..3 {
        let update = updates.next().await.unwrap();
        assert!(!finds(&update, "DD903"));
        assert_eq!(update.evidence.unwrap().clock_uncertainty_ms, 0.0);
    }
}

#[tokio::test]
async fn a_node_that_says_nothing_any_more_is_silent_until_it_speaks_again() {
    let hub = Hub::new();
    let (a, mut a_requests) = attach(&hub, report(vec![hello("j", "a"), joined(0, 2)])).await;
    let (b, _b_requests) = attach(&hub, report(vec![hello("j", "b"), joined(1, 2)])).await;
    let beats = a.clone();
    let beating = tokio::spawn(async move {
        while beats.send(report(Vec::new())).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    });
    let mut updates = hub.watch("j", true).unwrap();
    let silent = |update: &v1::Update| finds(update, "DD904");
    let update = tokio::time::timeout(Duration::from_secs(60), until_ever(&mut updates, silent));
    let update = update.await.unwrap();
    let finding = update
        .findings
        .iter()
        .find(|it| it.code == "DD904")
        .unwrap();
    assert_eq!(finding.ranks.as_ref().unwrap().root, [1]);
    b.send(report(Vec::new())).await.unwrap();
    until(&mut updates, |it| {
        it.findings_changed && it.findings.is_empty()
    })
    .await;

    // Its connection breaks, and it never comes back: that is silence too.
    drop(b);
    let update = tokio::time::timeout(Duration::from_secs(60), until_ever(&mut updates, silent));
    let update = update.await.unwrap();
    let states = update.ranks.iter().map(|rank| (rank.rank, &*rank.state));
    assert!(
        states.clone().any(|it| it == (1, "unknown")),
        "{:?}",
        states.collect::<Vec<_>>()
    );
    beating.abort();
    a.send(report(vec![job_ended()])).await.unwrap();
    finished(&mut a_requests).await;
}

async fn until_ever(updates: &mut Updates, is_so: impl Fn(&v1::Update) -> bool) -> v1::Update {
    loop {
        let update = updates.next().await.unwrap();
        if is_so(&update) {
            return update;
        }
    }
}
