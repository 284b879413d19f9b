//! What monitoring systems see of a coordinator: metrics for Prometheus ([`server`]), and messages to a
//! webhook ([`webhook`]).
//!
//! Neither can delay a diagnosis. Metrics are computed when they are read, at most once a second. Messages
//! wait in a bounded queue, and are dropped and counted if it is full.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use crate::coordinator::Hub;
use crate::node::UserLog;

pub mod events;
pub mod exposition;
pub mod metrics;
pub mod server;
pub mod summary;
pub mod webhook;

use server::Source;
use webhook::{Notifier, Url, Webhook};

/// Time limit for the messages that are in the queue at the end.
const MAX_END: Duration = Duration::from_secs(3);

/// What to serve and to send.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Address of the metrics.
    pub metrics: Option<SocketAddr>,
    /// URL of the webhook.
    pub webhook: Option<Url>,
    /// Interval of heartbeats to the webhook; `None`: no heartbeats.
    pub heartbeat: Option<Duration>,
}

/// Why metrics or a webhook are not available.
#[derive(Debug, thiserror::Error)]
pub enum MonitoringError {
    /// The address cannot be used.
    #[error("no metrics at {address}: {error}")]
    Metrics {
        /// The address.
        address: SocketAddr,
        /// The reason.
        error: io::Error,
    },
    /// The webhook cannot be used.
    #[error("no messages to the webhook: {0}")]
    Webhook(io::Error),
}

/// Metrics and a webhook, as far as they were requested and could be started.
#[derive(Debug, Default)]
pub struct Monitoring {
    webhook: Option<Webhook>,
}

impl Options {
    /// Whether nothing is requested.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.metrics.is_none() && self.webhook.is_none()
    }

    /// Starts what is requested. What cannot be started is returned as errors. Must be called inside a tokio
    /// runtime.
    #[must_use]
    pub fn start(self, hub: &Arc<Hub>, log: &UserLog) -> (Monitoring, Vec<MonitoringError>) {
        let mut errors = Vec::new();
        let heartbeat = self.heartbeat;
        let start = |url| Webhook::start(url, heartbeat, Arc::clone(hub), log.clone());
        let webhook = self.webhook.and_then(|url| {
            let started = start(url).map_err(MonitoringError::Webhook);
            started.map_err(|error| errors.push(error)).ok()
        });
        if let Some(address) = self.metrics {
            let notifier = webhook.as_ref().map(Webhook::notifier);
            let source = Arc::new(Source::new(Arc::clone(hub), notifier));
            match listen(address) {
                Ok((listener, address)) => {
                    log.print(&format!("metrics at http://{address}{}", server::PATH));
                    let log = log.clone();
                    tokio::spawn(async move {
                        let Err(error) = server::serve(listener, source).await;
                        log.print(&MonitoringError::Metrics { address, error }.to_string());
                    });
                }
                Err(error) => errors.push(MonitoringError::Metrics { address, error }),
            }
        }
        (Monitoring { webhook }, errors)
    }
}

fn listen(address: SocketAddr) -> io::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind(address)?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}

impl Monitoring {
    /// For senders of messages.
    #[must_use]
    pub fn notifier(&self) -> Option<Notifier> {
        self.webhook.as_ref().map(Webhook::notifier)
    }

    /// Sends the messages that are in the queue, within a time limit.
    pub async fn end(self) {
        if let Some(webhook) = self.webhook {
            webhook.end(MAX_END).await;
        }
    }
}
