use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::time::Duration;

use ddp_doctor_proto::report::Finding;
use ddp_doctor_proto::viewer::Update;
use ddp_doctor_proto::{Op, ProcessState, RecordKind, v1};
use ddp_doctor_transport::document;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use v1::agent_service_client::AgentServiceClient;
use v1::event::Kind;
use v1::request;
use v1::viewer_service_client::ViewerServiceClient;

use super::*;

mod clocks;
mod dumps;
mod launches;

const TIMEOUT: Duration = Duration::from_secs(20);

fn report(kinds: Vec<Kind>) -> v1::Report {
    let events = kinds.into_iter().map(|kind| v1::Event { kind: Some(kind) }).collect();
    v1::Report { sent_unix_ns: now(), events, ..v1::Report::default() }
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
    vec![joined(rank, world_size), Kind::GroupDefined(group), Kind::Record(record)]
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
    Kind::JobEnded(v1::JobEnded { unix_ns: now(), status: 1, reason: None })
}

async fn attach(
    hub: &Arc<Hub>,
    first: v1::Report,
) -> (mpsc::Sender<v1::Report>, mpsc::Receiver<v1::Request>) {
    let (reports, stream) = mpsc::channel(8);
    reports.send(first).await.unwrap();
    (reports, hub.attach(ReceiverStream::new(stream)).await.unwrap())
}

async fn until(updates: &mut Updates, is_so: impl Fn(&Update) -> bool) -> Update {
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

/// The findings of an update with a code.
fn found<'a>(update: &'a Update, code: &str) -> impl Iterator<Item = &'a Finding> {
    let findings = update.findings.iter().flatten();
    findings.filter(move |finding| finding.code == code)
}

fn finds(update: &Update, code: &str) -> bool {
    found(update, code).next().is_some()
}

fn dead_ranks(update: &Update) -> Vec<u32> {
    let ranks = found(update, "DD201").flat_map(|it| it.ranks.root.clone());
    ranks.collect()
}

#[tokio::test]
async fn dead_rank_on_one_node_is_reported_to_the_end() {
    let hub = Arc::new(Hub::new());
    let mut first = vec![hello("j", "a")];
    first.extend(waiting_rank(0, 2));
    let (a, mut a_requests) = attach(&hub, report(first)).await;
    let (b, mut b_requests) =
        attach(&hub, report(vec![hello("j", "b"), joined(1, 2), ended(1, 9)])).await;
    let mut updates = hub.watch("", false).unwrap();
    let update = until(&mut updates, |update| finds(update, "DD201")).await;
    assert_eq!(update.job.nodes, 2);
    assert!(!update.ended);
    b.send(report(vec![job_ended()])).await.unwrap();
    finished(&mut b_requests).await;
    a.send(report(vec![ended(0, 15), job_ended()])).await.unwrap();
    finished(&mut a_requests).await;
    let last = until(&mut updates, |update| update.ended).await;
    assert!(last.job.ended_at.is_some());
    assert!(updates.next().await.is_none());
    // A late viewer gets the final diagnosis.
    let mut late = hub.watch("j", false).unwrap();
    assert!(finds(&until(&mut late, |update| update.ended).await, "DD201"));
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
    let evidence = update.evidence;
    assert_eq!((evidence.records, evidence.records_lost), (1, 0));
    assert_eq!(update.job.nodes, 1);
}

#[tokio::test]
async fn jobs_have_separate_sessions() {
    let hub = Arc::new(Hub::new());
    let (_one, _requests) = attach(&hub, report(vec![hello("one", "a"), joined(0, 1)])).await;
    let (_two, _requests2) = attach(&hub, report(vec![hello("two", "a"), joined(0, 1)])).await;
    for (request, is) in [("", "two"), ("one", "one"), ("two", "two")] {
        let mut updates = hub.watch(request, true).unwrap();
        assert_eq!(until(&mut updates, |_| true).await.job.id, is);
    }
    assert_eq!(hub.watch("three", false).err(), Some(AttachError::NoSuchJob));
}

#[tokio::test]
async fn stream_without_valid_hello_is_rejected() {
    let hub = Arc::new(Hub::new());
    let attach =
        async |first: v1::Report| hub.attach(Box::pin(tokio_stream::once(first))).await.err();
    assert_eq!(attach(report(vec![job_ended()])).await, Some(AttachError::NoHello));
    assert_eq!(attach(report(vec![])).await, Some(AttachError::NoHello));
    assert_eq!(attach(report(vec![hello("", "a")])).await, Some(AttachError::BadJobId));
    let endless = "x".repeat(10_000);
    assert_eq!(attach(report(vec![hello(&endless, "a")])).await, Some(AttachError::BadJobId));
}

#[tokio::test]
async fn invalid_message_yields_a_note() {
    let hub = Arc::new(Hub::new());
    let nonsense = Kind::RecordsLost(v1::RecordsLost { process: 99, count: 1 });
    let (_node, _requests) =
        attach(&hub, report(vec![hello("j", "a"), joined(0, 1), nonsense])).await;
    let mut updates = hub.watch("j", false).unwrap();
    let update = until(&mut updates, |update| finds(update, "DD901")).await;
    let finding = found(&update, "DD901").next().unwrap();
    assert!(format!("{finding:?}").contains("invalid events"), "{finding:?}");
}

#[tokio::test]
async fn viewers_are_limited_until_one_disconnects() {
    let hub = Arc::new(Hub::new());
    let (_node, _requests) = attach(&hub, report(vec![hello("j", "a")])).await;
    let mut viewers: Vec<Updates> = (0..64).map(|_| hub.watch("j", true).unwrap()).collect();
    assert_eq!(hub.watch("j", true).err(), Some(AttachError::TooManyViewers));
    viewers.pop();
    assert!(hub.watch("j", true).is_ok());
}

#[tokio::test]
async fn services_work_over_the_wire() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let url = format!("unix:{}", path.display());
    let access = Access { user: path.metadata().unwrap().uid(), descriptors: 1024 };
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let listeners = Listeners { local: Some(listener), remote: None };
    let serving =
        tokio::spawn(serve(listeners, access, Arc::new(Hub::new()), UserLog::discard(), async {
            stopped.await.ok();
        }));
    let mut viewer = ViewerServiceClient::connect(url.clone()).await.unwrap();
    let request = |job: &str| v1::WatchRequest { job: job.into(), ..Default::default() };
    let missing = viewer.watch(request("j")).await.unwrap_err();
    assert_eq!(missing.code(), tonic::Code::NotFound);

    let (reports, stream) = mpsc::channel(8);
    let mut first = vec![hello("j", "a")];
    first.extend(waiting_rank(0, 2));
    reports.send(report(first)).await.unwrap();
    let mut node = AgentServiceClient::connect(url).await.unwrap();
    let mut requests = node.attach(ReceiverStream::new(stream)).await.unwrap().into_inner();
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
        let update: Update = document::decode(&update).unwrap();
        let findings = update.findings.into_iter().flatten();
        codes.extend(findings.map(|finding| finding.code));
    }
    assert!(codes.contains(&"DD201".to_owned()), "{codes:?}");
    drop((reports, requests, node, viewer));
    stop.send(()).unwrap();
    tokio::time::timeout(TIMEOUT, serving).await.unwrap().unwrap().unwrap();
}

async fn until_anytime(updates: &mut Updates, is_so: impl Fn(&Update) -> bool) -> Update {
    loop {
        let update = updates.next().await.unwrap();
        if is_so(&update) {
            return update;
        }
    }
}

#[tokio::test]
async fn new_viewer_gets_current_durations() {
    let hub = Arc::new(Hub::new());
    let mut all = vec![hello("j", "a")];
    all.extend(waiting_rank(0, 2));
    all.push(joined(1, 2));
    let (_node, _requests) = attach(&hub, report(all)).await;
    let waited = |update: &Update| {
        let rank = update.ranks.iter().find(|rank| rank.rank == 0)?;
        rank.waiting_in.as_ref()?.waited_ms
    };
    let mut updates = hub.watch("j", false).unwrap();
    let first = until(&mut updates, |update| waited(update).is_some()).await;
    // The state changes no further: only requests can make the session publish it again.
    let later = async {
        loop {
            let update = hub.watch("j", false).unwrap().next().await.unwrap();
            if waited(&update) > waited(&first) {
                return;
            }
        }
    };
    tokio::time::timeout(TIMEOUT, later).await.unwrap();
}

/// Updates of a viewer that subscribed to earlier states: these, and the first of the current state.
async fn with_past(hub: &Hub) -> (Vec<Update>, Update) {
    let mut updates = hub.watch_with_past("j").unwrap();
    let mut past = Vec::new();
    loop {
        // Only the current state has findings.
        match updates.next().await.unwrap() {
            update if update.findings.is_none() => past.push(update),
            current => return (past, current),
        }
    }
}

#[tokio::test]
async fn late_viewer_gets_the_states_before_it_subscribed() {
    let hub = Arc::new(Hub::new());
    let mut all = vec![hello("j", "a")];
    all.extend(waiting_rank(0, 2));
    all.push(joined(1, 2));
    let (node, mut requests) = attach(&hub, report(all)).await;
    let sampled = async {
        loop {
            let (past, current) = with_past(&hub).await;
            if past.len() >= 2 {
                return (past, current);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let (past, current) = tokio::time::timeout(TIMEOUT, sampled).await.unwrap();
    assert!(past.is_sorted_by_key(|it| it.at) && past.iter().all(|it| it.at <= current.at));
    for update in &past {
        let ranks: Vec<u32> = update.ranks.iter().map(|it| it.rank).collect();
        assert_eq!(ranks, [0, 1], "{update:?}");
        assert_eq!((&*update.job.id, update.ended), ("j", false));
    }
    // Others get the current state alone.
    let first = hub.watch("j", true).unwrap().next().await.unwrap();
    assert!(first.findings.is_some());
    // The states are kept after the end.
    node.send(report(vec![ended(0, 15), ended(1, 15), job_ended()])).await.unwrap();
    finished(&mut requests).await;
    until(&mut hub.watch("j", false).unwrap(), |update| update.ended).await;
    assert!(with_past(&hub).await.0.len() >= past.len());
}
