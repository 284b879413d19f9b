//! Which launches share a session.

use super::*;

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
    until(&mut newest, |update| update.job.nodes == 2).await;
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
    node.send(report(vec![joined(1, 2), ended(1, 15)])).await.unwrap();
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
