//! The updates of one viewer: complete at first, then only changes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ddp_doctor_proto::viewer::Update;
use tokio::sync::watch;

use super::session::Published;
use crate::report::viewer::Sent;

/// Updates of one job for one viewer.
#[derive(Debug)]
pub struct Updates {
    published: watch::Receiver<Arc<Published>>,
    /// State that was sent to this viewer.
    sent: Sent,
    ended: bool,
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
        Self { published, sent: Sent::default(), ended: false, counters }
    }

    /// The next update; `None` once the job has ended or its session is gone.
    pub async fn next(&mut self) -> Option<Update> {
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
