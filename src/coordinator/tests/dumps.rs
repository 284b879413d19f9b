//! Stacks that a viewer requests.

use ddp_doctor_proto::dump::{self, Dump};

use super::*;

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
            ..v1::Stacks::default()
        })
    });
    reports.send(report(stacks.collect())).await.unwrap();
    request
}

/// Rank, number of threads, trouble.
fn summary(dump: Dump) -> Vec<(u32, usize, String)> {
    let summary = |it: dump::Process| {
        let trouble = it.trouble.unwrap_or_default();
        (it.rank.unwrap(), it.threads.len(), trouble)
    };
    dump.processes.into_iter().map(summary).collect()
}

#[tokio::test]
async fn dump_requests_stacks_from_every_node() {
    let hub = Arc::new(Hub::new());
    let (a, mut a_requests) =
        attach(&hub, report(vec![hello("j", "a"), joined(0, 4), joined(1, 4), ended(1, 9)])).await;
    let (b, mut b_requests) = attach(&hub, report(vec![hello("j", "b"), joined(2, 4)])).await;
    let (c, c_requests) = attach(&hub, report(vec![hello("j", "c"), joined(3, 4)])).await;
    let mut updates = hub.watch("j", false).unwrap();
    until(&mut updates, |update| update.job.nodes == 3).await;
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
