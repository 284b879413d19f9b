//! The updates of one viewer: complete at first, then only changes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ddp_doctor_proto::viewer::Update;
use ddp_doctor_report::viewer::Sent;
use tokio::sync::{oneshot, watch};

use super::session::{Moment, Published};

/// Maximum delay of the first update, while a busy session evaluates the current state.
const MAX_REFRESH: Duration = Duration::from_secs(1);

/// Updates of one job for one viewer.
#[derive(Debug)]
pub struct Updates {
    published: watch::Receiver<Arc<Published>>,
    /// State that was sent to this viewer.
    sent: Sent,
    ended: bool,
    /// Answers once the state at the time of the request is published; `None`: do not wait for it.
    refreshed: Option<oneshot::Receiver<()>>,
    /// Answers with the states before the first update; `None`: they are not requested.
    requested_past: Option<oneshot::Receiver<Vec<Arc<Moment>>>>,
    /// States that are sent before the first update.
    past: VecDeque<Arc<Moment>>,
    /// Counters that include this viewer.
    counters: Vec<Arc<AtomicUsize>>,
}

impl Updates {
    pub(super) fn new(
        mut published: watch::Receiver<Arc<Published>>,
        counters: Vec<Arc<AtomicUsize>>,
    ) -> Self {
        for counter in &counters {
            counter.fetch_add(1, Ordering::Relaxed);
        }
        published.mark_changed();
        Self {
            published,
            sent: Sent::default(),
            ended: false,
            refreshed: None,
            requested_past: None,
            past: VecDeque::new(),
            counters,
        }
    }

    /// Delays the first update until the session publishes its current state: the last published one
    /// has the durations of the last change.
    pub(super) fn begin_after(&mut self, refreshed: oneshot::Receiver<()>) {
        self.refreshed = Some(refreshed);
    }

    /// Sends earlier states before the first update, once the session answers.
    pub(super) fn begin_with_past(&mut self, past: oneshot::Receiver<Vec<Arc<Moment>>>) {
        self.requested_past = Some(past);
    }

    /// Sends the states before the last one of a job that has ended.
    pub(super) fn begin_with_recorded_past(&mut self) {
        self.past = self.published.borrow().past.clone().into();
    }

    /// The next update; `None` once the job has ended or its session is gone.
    pub async fn next(&mut self) -> Option<Update> {
        if let Some(past) = self.requested_past.take()
            && let Ok(Ok(past)) = tokio::time::timeout(MAX_REFRESH, past).await
        {
            self.past = past.into();
        }
        if let Some(moment) = self.past.pop_front() {
            return Some(moment.update());
        }
        if let Some(refreshed) = self.refreshed.take() {
            // Without an answer, the session has ended or is busy: the last published state serves.
            drop(tokio::time::timeout(MAX_REFRESH, refreshed).await);
        }
        while !self.ended {
            self.published.changed().await.ok()?;
            let published = self.published.borrow_and_update().clone();
            self.ended = published.ended;
            if let Some(report) = &published.report {
                let detail = published.detail.as_deref();
                let (at, ended) = (published.at, published.ended);
                return Some(self.sent.update(report, detail, at, ended));
            }
        }
        None
    }
}

impl Drop for Updates {
    fn drop(&mut self) {
        for counter in &self.counters {
            counter.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
