//! The updates of one viewer: complete at first, then only changes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ddp_doctor_proto::viewer::Update;
use tokio::sync::{oneshot, watch};

use super::session::Published;
use crate::report::viewer::Sent;

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
        Self { published, sent: Sent::default(), ended: false, refreshed: None, counters }
    }

    /// Delays the first update until the session publishes its current state: the last published one
    /// has the durations of the last change.
    pub(super) fn begin_after(&mut self, refreshed: oneshot::Receiver<()>) {
        self.refreshed = Some(refreshed);
    }

    /// The next update; `None` once the job has ended or its session is gone.
    pub async fn next(&mut self) -> Option<Update> {
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
