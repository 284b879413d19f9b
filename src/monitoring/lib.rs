//! What monitoring systems see of a coordinator: metrics for Prometheus ([`server`]), and messages to a
//! webhook ([`webhook`]).
//!
//! Neither can delay a diagnosis. Metrics are computed when they are read, at most once a second. Messages
//! wait in a bounded queue, and are dropped and counted if it is full.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ddp_doctor_coordinator::Hub;
use ddp_doctor_host::log::UserLog;
use ddp_doctor_transport::token::{GENERATE, VARIABLE};
use ddp_doctor_transport::{Token, TokenError};

pub mod events;
pub mod exposition;
pub mod metrics;
pub mod server;
pub mod webhook;

use server::Source;
use webhook::{Notifier, Url, Webhook};

/// Variable of the environment with the secret of the metrics.
pub const METRICS_TOKEN: &str = "DDP_DOCTOR_METRICS_TOKEN";
/// Time limit for the messages that are in the queue at the end.
const MAX_END: Duration = Duration::from_secs(3);

/// What to serve and to send.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Address of the metrics.
    pub metrics: Option<SocketAddr>,
    /// File with the secret of the metrics; `None`: the environment.
    pub metrics_token_file: Option<PathBuf>,
    /// File with the token of the coordinator, which must be another one.
    pub token_file: Option<PathBuf>,
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
    /// Others could read them.
    #[error(
        "no metrics at {0}: other machines can reach it, which needs a secret of its own: set {METRICS_TOKEN}, for \
         example to the output of `{GENERATE}`, and configure it as bearer token where the metrics are read"
    )]
    NoToken(SocketAddr),
    /// Their secret cannot be used.
    #[error("no metrics: {0} ({METRICS_TOKEN})")]
    Token(#[from] TokenError),
    /// Their secret is that of the coordinator.
    #[error(
        "no metrics: {METRICS_TOKEN} has to differ from {VARIABLE}, because it is sent without encryption"
    )]
    SameToken,
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
        let (metrics_token_file, token_file) = (self.metrics_token_file, self.token_file);
        let start = |url| Webhook::start(url, heartbeat, Arc::clone(hub), log.clone());
        let webhook = self.webhook.and_then(|url| {
            let started = start(url).map_err(MonitoringError::Webhook);
            started.map_err(|error| errors.push(error)).ok()
        });
        if let Some(address) = self.metrics {
            let notifier = webhook.as_ref().map(Webhook::notifier);
            let listening =
                metrics_token(address, metrics_token_file.as_deref(), token_file.as_deref())
                    .and_then(|token| Ok((token, listen(address)?)));
            match listening {
                Ok((token, (listener, address))) => {
                    let source = Arc::new(Source::new(Arc::clone(hub), notifier, token));
                    log.print(&format!("metrics at {address}{} (HTTP)", server::PATH));
                    let log = log.clone();
                    tokio::spawn(async move {
                        let Err(error) = server::serve(listener, source).await;
                        log.print(&MonitoringError::Metrics { address, error }.to_string());
                    });
                }
                Err(error) => errors.push(error),
            }
        }
        (Monitoring { webhook }, errors)
    }
}

fn listen(address: SocketAddr) -> Result<(TcpListener, SocketAddr), MonitoringError> {
    let listen = || {
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        Ok((listener, address))
    };
    listen().map_err(|error| MonitoringError::Metrics { address, error })
}

/// The secret that readers of the metrics have to send; `None`: everybody on this machine may read them.
fn metrics_token(
    address: SocketAddr,
    file: Option<&Path>,
    coordinators: Option<&Path>,
) -> Result<Option<Token>, MonitoringError> {
    let variable = |name: &str| std::env::var(name).ok().filter(|it| !it.trim().is_empty());
    let token = match (file, variable(METRICS_TOKEN)) {
        (Some(file), _) => Some(Token::read(file)?),
        (None, Some(text)) => Some(Token::new(&text)?),
        (None, None) => None,
    };
    if token.is_none() && !address.ip().is_loopback() {
        return Err(MonitoringError::NoToken(address));
    }
    let in_file = coordinators.and_then(|it| Token::read(it).ok());
    let in_variable = variable(VARIABLE).and_then(|it| Token::new(&it).ok());
    let mut others = in_file.iter().chain(&in_variable);
    if token.as_ref().is_some_and(|own| others.any(|it| own.is_same(it))) {
        return Err(MonitoringError::SameToken);
    }
    Ok(token)
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
