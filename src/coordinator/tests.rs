use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::time::Duration;

use ddp_doctor_proto::{Op, ProcessState, RecordKind, v1};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use v1::agent_service_client::AgentServiceClient;
use v1::event::Kind;
use v1::request;
use v1::viewer_service_client::ViewerServiceClient;

use super::*;

const TIMEOUT: Duration = Duration::from_secs(20);

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

/// A rank that joined and waits in the first `all_reduce` of its group.
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
        ..v1::ProcessChanged::default()
    })
}

fn job_ended() -> Kind {
    Kind::JobEnded(v1::JobEnded {
        unix_ns: now(),
        status: 1,
    })
}

async fn attach(
    hub: &Arc<Hub>,
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
    tokio::time::timeout(TIMEOUT, async {
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
    tokio::time::timeout(TIMEOUT, async {
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

fn dead_ranks(update: &v1::Update) -> Vec<u32> {
    let findings = update.findings.iter().filter(|it| it.code == "DD201");
    let ranks = findings.filter_map(|it| it.ranks.as_ref());
    ranks.flat_map(|ranks| ranks.root.clone()).collect()
}

#[tokio::test]
async fn dead_rank_on_one_node_is_reported_to_the_end() {
    let hub = Arc::new(Hub::new());
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
    // A late viewer gets the final diagnosis.
    let mut late = hub.watch("j", false).unwrap();
    assert!(finds(
        &until(&mut late, |update| update.ended).await,
        "DD201"
    ));
}

#[tokio::test]
async fn records_repeated_by_a_reattached_node_count_once() {
    let hub = Arc::new(Hub::new());
    let mut all = vec![hello("j", "a")];
    all.extend(waiting_rank(0, 2));
    let (first, _requests) = attach(&hub, report(all.clone())).await;
    let mut updates = hub.watch("j", false).unwrap();
    drop(first);
    while hub.attached("j") > 0 {
        tokio::task::yield_now().await;
    }
    all.extend([joined(1, 2), ended(1, 9)]);
    let (_second, _requests) = attach(&hub, report(all)).await;
    let update = until(&mut updates, |update| finds(update, "DD201")).await;
    let evidence = update.evidence.unwrap();
    assert_eq!((evidence.records, evidence.records_lost), (1, 0));
    assert_eq!(update.job.unwrap().nodes, 1);
}

#[tokio::test]
async fn jobs_have_separate_sessions() {
    let hub = Arc::new(Hub::new());
    let (_one, _requests) = attach(&hub, report(vec![hello("one", "a"), joined(0, 1)])).await;
    let (_two, _requests2) = attach(&hub, report(vec![hello("two", "a"), joined(0, 1)])).await;
    for (request, is) in [("", "two"), ("one", "one"), ("two", "two")] {
        let mut updates = hub.watch(request, true).unwrap();
        assert_eq!(until(&mut updates, |_| true).await.job.unwrap().id, is);
    }
    assert_eq!(
        hub.watch("three", false).err(),
        Some(AttachError::NoSuchJob)
    );
}

/// The Hello of a node that started a job at a given time, as part of a launch.
fn starts(job: &str, host: &str, started_unix_ns: u64, launch: &str) -> v1::Report {
    report(vec![Kind::Hello(v1::Hello {
        job: job.into(),
        host: host.into(),
        started_unix_ns,
        launch: launch.into(),
        ..Default::default()
    })])
}

/// A hub, and the channel of the jobs that begin.
fn hub_and_new_jobs() -> (Arc<Hub>, mpsc::Receiver<Begun>) {
    let (begin, begun) = mpsc::channel(1000);
    (Arc::new(Hub::announcing(begin)), begun)
}

fn count(begun: &mut mpsc::Receiver<Begun>) -> usize {
    std::iter::from_fn(|| begun.try_recv().ok()).count()
}

#[tokio::test]
async fn launches_of_one_job_have_separate_sessions() {
    let (hub, mut begun) = hub_and_new_jobs();
    let mut attached = Vec::new();
    for (host, started, launch) in [("a", 1, "x"), ("b", 2, "x"), ("a", 3, "y"), ("c", 4, "")] {
        attached.push(attach(&hub, starts("j", host, started, launch)).await);
    }
    assert_eq!(count(&mut begun), 2, "x and y");
    // A node without a launch name joins the newest launch.
    let mut newest = hub.watch("j", true).unwrap();
    until(&mut newest, |update| {
        update.job.as_ref().unwrap().nodes == 2
    })
    .await;
    // Two tasks of one batch job on one host, without launch names.
    let one = attach(&hub, starts("k", "a", 1, "")).await;
    let two = attach(&hub, starts("k", "a", 2, "")).await;
    assert_eq!(count(&mut begun), 1);
    drop((attached, one, two));
}

/// The Hello of a node that meets the others of its launch at a place.
fn meets(started_unix_ns: u64, host: &str, meeting: &str, node_rank: u32) -> v1::Report {
    report(vec![Kind::Hello(v1::Hello {
        job: "j".into(),
        host: host.into(),
        started_unix_ns,
        meeting: meeting.into(),
        node_rank: Some(node_rank),
        ..Default::default()
    })])
}

async fn welcome(requests: &mut mpsc::Receiver<v1::Request>) -> v1::Welcome {
    match requests.recv().await.unwrap().kind {
        Some(request::Kind::Welcome(welcome)) => welcome,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn launches_that_meet_elsewhere_have_separate_sessions() {
    let (hub, mut begun) = hub_and_new_jobs();
    let (first, mut requests) = attach(&hub, meets(1, "a", "a:1", 0)).await;
    let one = welcome(&mut requests).await;
    let (_second, mut requests) = attach(&hub, meets(2, "b", "b:1", 0)).await;
    let two = welcome(&mut requests).await;
    assert_eq!(count(&mut begun), 2);
    assert_eq!((one.namesakes, two.namesakes), (0, 1));
    assert_ne!(one.session, two.session);
    // Later nodes join the launch that they meet, not the newest.
    for (started, host, meeting, session) in
        [(3, "c", "a:1", one.session), (4, "d", "b:1", two.session)]
    {
        let (_stream, mut requests) = attach(&hub, meets(started, host, meeting, 1)).await;
        assert_eq!(welcome(&mut requests).await.session, session);
    }
    // A mistake within a launch: the same rank twice, and one that looks for the others elsewhere.
    for (started, host, meeting, rank) in [(5, "e", "b:1", 1), (6, "f", "x:1", 2)] {
        let (_stream, mut requests) = attach(&hub, meets(started, host, meeting, rank)).await;
        assert_eq!(welcome(&mut requests).await.session, two.session);
    }
    drop(first);
    while hub.attached("j") > 1 {
        tokio::task::yield_now().await;
    }
    let (_again, mut requests) = attach(&hub, meets(1, "a", "a:1", 0)).await;
    assert_eq!(welcome(&mut requests).await.session, one.session);
    assert_eq!(count(&mut begun), 0);
    assert!(hub.watch_session(two.session + 1, true).is_err());
}

#[tokio::test]
async fn stream_of_a_node_is_not_taken_over_while_it_is_open() {
    let hub = Arc::new(Hub::new());
    let mut all = vec![hello("j", "a")];
    all.extend(waiting_rank(0, 2));
    let (node, _requests) = attach(&hub, report(all.clone())).await;
    let mut updates = hub.watch("j", false).unwrap();
    all.push(ended(0, 9));
    let (_forged, mut refused) = attach(&hub, report(all)).await;
    assert!(refused.recv().await.is_none());
    node.send(report(vec![joined(1, 2), ended(1, 15)]))
        .await
        .unwrap();
    let update = until(&mut updates, |update| finds(update, "DD201")).await;
    assert_eq!(dead_ranks(&update), [1]);
}

#[tokio::test]
async fn node_cannot_report_about_processes_of_another_node() {
    let hub = Arc::new(Hub::new());
    let mut first = vec![hello("j", "a")];
    first.extend(waiting_rank(0, 2));
    let (_a, _requests_a) = attach(&hub, report(first)).await;
    let mut updates = hub.watch("j", false).unwrap();
    let second = vec![hello("j", "b"), ended(0, 11), joined(1, 2), ended(1, 9)];
    let (_b, _requests_b) = attach(&hub, report(second)).await;
    let update = until(&mut updates, |update| finds(update, "DD201")).await;
    assert_eq!(dead_ranks(&update), [1]);
}

#[tokio::test]
async fn lost_node_that_starts_again_begins_a_new_job() {
    let (hub, mut begun) = hub_and_new_jobs();
    let (first, _requests) = attach(&hub, starts("j", "a", 1, "x")).await;
    let (other, _requests2) = attach(&hub, starts("j", "b", 1, "x")).await;
    let mut old = hub.watch("j", false).unwrap();
    drop(first);
    tokio::time::timeout(TIMEOUT, async {
        while hub.attached("j") > 1 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .unwrap();
    let again = attach(&hub, starts("j", "a", 2, "x")).await;
    assert_eq!(count(&mut begun), 2);
    // The old launch ends with its remaining stream.
    drop(other);
    until(&mut old, |update| update.ended).await;
    drop(again);
    // Only the connection was lost: the same launch continues.
    let (hub, mut begun) = hub_and_new_jobs();
    for _ in 0..3 {
        drop(attach(&hub, starts("j", "a", 1, "x")).await);
    }
    assert_eq!(count(&mut begun), 1);
}

#[tokio::test]
async fn only_ended_jobs_are_evicted() {
    let hub = Arc::new(Hub::new());
    let mut attached = Vec::new();
    for number in 0..256 {
        attached.push(attach(&hub, report(vec![hello(&format!("j{number}"), "a")])).await);
    }
    let too_many = hub.attach(Box::pin(tokio_stream::once(report(vec![hello("x", "a")]))));
    assert_eq!(too_many.await.err(), Some(AttachError::TooManyJobs));
    let (reports, requests) = &mut attached[7];
    reports.send(report(vec![job_ended()])).await.unwrap();
    finished(requests).await;
    let mut seventh = hub.watch("j7", false).unwrap();
    until(&mut seventh, |update| update.ended).await;
    attach(&hub, report(vec![hello("x", "a")])).await;
    assert!(hub.watch("x", false).is_ok());
    assert_eq!(hub.watch("j7", false).err(), Some(AttachError::NoSuchJob));
}

#[tokio::test]
async fn stream_without_valid_hello_is_rejected() {
    let hub = Arc::new(Hub::new());
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
async fn invalid_message_yields_a_note() {
    let hub = Arc::new(Hub::new());
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
        format!("{finding:?}").contains("invalid events"),
        "{finding:?}"
    );
}

#[tokio::test]
async fn viewers_are_limited_until_one_disconnects() {
    let hub = Arc::new(Hub::new());
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
async fn services_work_over_the_wire() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let url = format!("unix:{}", path.display());
    let access = Access {
        user: path.metadata().unwrap().uid(),
        descriptors: 1024,
    };
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let listeners = Listeners {
        local: Some(listener),
        remote: None,
    };
    let serving = tokio::spawn(serve(listeners, access, Arc::new(Hub::new()), async {
        stopped.await.ok();
    }));
    let mut viewer = ViewerServiceClient::connect(url.clone()).await.unwrap();
    let request = |job: &str| v1::WatchRequest {
        job: job.into(),
        session: 0,
    };
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
    let request = requests.message().await.unwrap().unwrap();
    assert!(matches!(request.kind, Some(request::Kind::Ping(_))));
    let done = requests.message().await.unwrap().unwrap();
    assert!(matches!(done.kind, Some(request::Kind::Finished(_))));
    let mut codes = Vec::new();
    while let Some(update) = updates.message().await.unwrap() {
        codes.extend(update.findings.into_iter().map(|finding| finding.code));
    }
    assert!(codes.contains(&"DD201".to_owned()), "{codes:?}");
    drop((reports, requests, node, viewer));
    stop.send(()).unwrap();
    tokio::time::timeout(TIMEOUT, serving)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
}

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
    let hub = Arc::new(Hub::new());
    let (_a, _living) = live(&hub, 0, report(vec![hello("j", "a"), joined(0, 1)])).await;
    let mut updates = hub.watch("j", true).unwrap();
    for _ in 0..3 {
        let update = updates.next().await.unwrap();
        assert!(!finds(&update, "DD903"));
        assert_eq!(update.evidence.unwrap().clock_uncertainty_ms, 0.0);
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
    let silent = |update: &v1::Update| finds(update, "DD904");
    let update = tokio::time::timeout(Duration::from_secs(60), until_anytime(&mut updates, silent));
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

    // A broken connection that is never restored counts as silence, too.
    drop(b);
    let update = tokio::time::timeout(Duration::from_secs(60), until_anytime(&mut updates, silent));
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

async fn until_anytime(updates: &mut Updates, is_so: impl Fn(&v1::Update) -> bool) -> v1::Update {
    loop {
        let update = updates.next().await.unwrap();
        if is_so(&update) {
            return update;
        }
    }
}
/// Answers a request for stacks with those of `of`, and returns the request.
async fn answer_capture(
    requests: &mut mpsc::Receiver<v1::Request>,
    reports: &mpsc::Sender<v1::Report>,
    of: &[u64],
) -> v1::CaptureStacks {
    let request = tokio::time::timeout(TIMEOUT, async {
        loop {
            if let Some(request::Kind::CaptureStacks(it)) = requests.recv().await.unwrap().kind
                && it.on_request
            {
                return it;
            }
        }
    })
    .await
    .unwrap();
    let stacks = of.iter().map(|&process| {
        Kind::Stacks(v1::Stacks {
            process,
            unix_ns: now(),
            threads: vec![v1::ThreadStack::default()],
            trouble: String::new(),
        })
    });
    reports.send(report(stacks.collect())).await.unwrap();
    request
}

/// Rank, number of threads, trouble.
fn summary(parts: Vec<v1::DumpPart>) -> Vec<(u32, usize, String)> {
    let part = |part: v1::DumpPart| match part.part.unwrap() {
        v1::dump_part::Part::Head(_) => None,
        v1::dump_part::Part::Rank(it) => {
            let threads = it.stacks.map_or(0, |stacks| stacks.threads.len());
            Some((it.status.unwrap().rank, threads, it.trouble))
        }
    };
    parts.into_iter().filter_map(part).collect()
}

#[tokio::test]
async fn dump_requests_stacks_from_every_node() {
    let hub = Arc::new(Hub::new());
    let (a, mut a_requests) = attach(
        &hub,
        report(vec![
            hello("j", "a"),
            joined(0, 4),
            joined(1, 4),
            ended(1, 9),
        ]),
    )
    .await;
    let (b, mut b_requests) = attach(&hub, report(vec![hello("j", "b"), joined(2, 4)])).await;
    let (c, c_requests) = attach(&hub, report(vec![hello("j", "c"), joined(3, 4)])).await;
    let mut updates = hub.watch("j", false).unwrap();
    until(&mut updates, |update| {
        update.job.as_ref().unwrap().nodes == 3
    })
    .await;
    // The third node is disconnected.
    drop((c, c_requests));
    let asking = tokio::spawn({
        let hub = Arc::clone(&hub);
        async move { hub.dump("").await }
    });
    let request = answer_capture(&mut a_requests, &a, &[1]).await;
    assert_eq!(request.processes, [1]);
    // This node receives the request and does not answer.
    let request = answer_capture(&mut b_requests, &b, &[]).await;
    assert_eq!(request.processes, [3]);
    let parts = tokio::time::timeout(TIMEOUT, asking).await.unwrap();
    let summary = summary(parts.unwrap().unwrap());
    let expected = [
        (0, 1, ""),
        (1, 0, "it has ended"),
        (2, 0, "its node has not answered in time"),
        (3, 0, "its node is not connected"),
    ];
    assert_eq!(summary.len(), 4);
    for (summary, expected) in summary.iter().zip(expected) {
        assert_eq!((summary.0, summary.1, summary.2.as_str()), expected);
    }
}

#[tokio::test]
async fn dump_of_missing_or_ended_job_fails() {
    let hub = Arc::new(Hub::new());
    assert_eq!(hub.dump("").await.err(), Some(AttachError::NoSuchJob));
    let (node, mut requests) = attach(&hub, report(vec![hello("j", "a"), job_ended()])).await;
    finished(&mut requests).await;
    let mut updates = hub.watch("j", false).unwrap();
    until(&mut updates, |update| update.ended).await;
    drop(node);
    assert_eq!(hub.dump("j").await.err(), Some(AttachError::Ended));
}
