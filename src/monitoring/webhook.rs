//! Messages to one webhook: JSON by POST, from a bounded queue, repeated until they are accepted.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ddp_doctor_coordinator::Hub;
use ddp_doctor_host::log::UserLog;
use ddp_doctor_proto::VERSION;
use ddp_doctor_proto::report::{Timestamp, Verdict};
use ddp_doctor_transport::Stream;
use ddp_doctor_transport::public_tls::PublicTls;
use ddp_doctor_transport::tls;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{CONTENT_TYPE, HOST, USER_AGENT};
use hyper::{Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::events::Event;

/// Capacity of the queue. Further messages are dropped.
const QUEUE: usize = 256;
/// Time limit for one attempt.
const ATTEMPT: Duration = Duration::from_secs(10);
/// Number of attempts for a message. With the pauses between them they last about ten minutes.
const ATTEMPTS: u32 = 14;
/// First pause between two attempts; each further one is twice as long, up to a limit.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Why a URL cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum UrlError {
    /// It is not an HTTP URL.
    #[error("not a URL like https://HOST/PATH")]
    Invalid,
    /// It contains a user name.
    #[error("a user name or a password in the URL is not supported")]
    Credentials,
}

/// URL of a webhook. Its path may be a secret and is never printed.
#[derive(Clone)]
pub struct Url {
    uri: Uri,
    host: String,
    port: u16,
    is_encrypted: bool,
}

impl std::fmt::Debug for Url {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

impl std::str::FromStr for Url {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        // Secrets that are mounted or generated often end in a newline.
        let uri: Uri = text.trim().parse().map_err(|_error| UrlError::Invalid)?;
        let is_encrypted = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(UrlError::Invalid),
        };
        let authority = uri.authority().ok_or(UrlError::Invalid)?;
        if authority.as_str().contains('@') {
            return Err(UrlError::Credentials);
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        let port = match authority.port() {
            Some(port) => port.as_u16(),
            None if is_encrypted => 443,
            None => 80,
        };
        if host.is_empty() {
            return Err(UrlError::Invalid);
        }
        Ok(Self { host: host.to_owned(), port, is_encrypted, uri })
    }
}

/// Numbers of messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Accepted by the webhook.
    pub sent: u64,
    /// Dropped: the queue was full, the webhook rejected them, or all attempts failed.
    pub dropped: u64,
    /// In the queue.
    pub queued: u64,
}

#[derive(Debug, Default)]
struct Counters {
    sent: AtomicU64,
    dropped: AtomicU64,
}

/// Puts messages into the queue, without waiting.
#[derive(Clone, Debug)]
pub struct Notifier {
    queue: mpsc::WeakSender<Event>,
    counters: Arc<Counters>,
}

impl Notifier {
    /// Sends a message, or drops it if the queue is full.
    pub fn send(&self, event: Event) {
        let sent = self.queue.upgrade().is_some_and(|queue| queue.try_send(event).is_ok());
        if !sent {
            self.counters.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Numbers of messages so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let queue = self.queue.upgrade();
        let queued = queue.map_or(0, |queue| queue.max_capacity() - queue.capacity());
        Counts {
            sent: self.counters.sent.load(Ordering::Relaxed),
            dropped: self.counters.dropped.load(Ordering::Relaxed),
            queued: queued as u64,
        }
    }
}

/// A webhook that accepts messages.
#[derive(Debug)]
pub struct Webhook {
    queue: mpsc::Sender<Event>,
    counters: Arc<Counters>,
    sending: tokio::task::JoinHandle<()>,
}

impl Webhook {
    /// Starts to send, and to send a heartbeat at this interval. Must be called inside a tokio runtime.
    ///
    /// # Errors
    ///
    /// If the URL is encrypted and this machine has no root certificates.
    pub fn start(
        url: Url,
        heartbeat: Option<Duration>,
        hub: Arc<Hub>,
        log: UserLog,
    ) -> io::Result<Self> {
        let tls = url.is_encrypted.then(PublicTls::new).transpose()?;
        let (queue, messages) = mpsc::channel(QUEUE);
        let counters = Arc::new(Counters::default());
        let client = Client { url, tls };
        let sender = Sender { client, counters: Arc::clone(&counters), log, is_failing: false };
        let sending = tokio::spawn(sender.run(messages));
        let webhook = Self { queue, counters, sending };
        if let Some(every) = heartbeat {
            tokio::spawn(beat(every, hub, webhook.notifier()));
        }
        Ok(webhook)
    }

    /// For senders of messages.
    #[must_use]
    pub fn notifier(&self) -> Notifier {
        Notifier { queue: self.queue.downgrade(), counters: Arc::clone(&self.counters) }
    }

    /// Sends the messages in the queue, within a time limit.
    pub async fn end(self, limit: Duration) {
        drop(self.queue);
        let mut sending = self.sending;
        if timeout(limit, &mut sending).await.is_err() {
            sending.abort();
        }
    }
}

/// Sends heartbeats until the webhook has ended.
async fn beat(every: Duration, hub: Arc<Hub>, notifier: Notifier) {
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if notifier.queue.strong_count() == 0 {
            return;
        }
        // A heartbeat also states whether diagnoses answer: it should not beat on if they do not.
        let state = hub.state().await;
        let running = || state.jobs.iter().filter(|job| job.is_running);
        let hangs = |verdict| verdict == Verdict::Hang;
        notifier.send(Event::Heartbeat {
            running: running().count(),
            unresponsive: running().filter(|job| !job.is_current).count(),
            hanging: running()
                .filter(|job| job.summary.as_ref().is_some_and(|it| hangs(it.verdict)))
                .count(),
        });
    }
}

/// Result of an attempt.
enum Answer {
    Accepted,
    /// Another attempt may succeed.
    Failed(String),
    /// Another attempt would have the same result.
    Rejected(String),
}

struct Sender {
    client: Client,
    counters: Arc<Counters>,
    log: UserLog,
    /// The last attempt failed, and that was logged.
    is_failing: bool,
}

impl Sender {
    async fn run(mut self, mut messages: mpsc::Receiver<Event>) {
        while let Some(event) = messages.recv().await {
            let body = body(&event, self.counters.dropped.load(Ordering::Relaxed));
            let counter =
                if self.deliver(body).await { &self.counters.sent } else { &self.counters.dropped };
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Sends one message. Returns whether it was accepted.
    async fn deliver(&mut self, body: Bytes) -> bool {
        let mut pause = PAUSES.0;
        for attempt in 1..=ATTEMPTS {
            let why = match self.client.post(body.clone()).await {
                Answer::Accepted => {
                    if std::mem::take(&mut self.is_failing) {
                        self.log.print("the webhook accepts messages again");
                    }
                    return true;
                }
                Answer::Rejected(why) => {
                    self.log.print(&format!("the webhook rejects a message: {why}"));
                    return false;
                }
                Answer::Failed(why) => why,
            };
            if !std::mem::replace(&mut self.is_failing, true) {
                let url = &self.client.url;
                self.log.print(&format!(
                    "the webhook at {url:?} does not accept messages, which are repeated: {why}"
                ));
            }
            if attempt < ATTEMPTS {
                sleep(pause).await;
                pause = (pause * 2).min(PAUSES.1);
            }
        }
        false
    }
}

/// The JSON document of a message.
fn body(event: &Event, dropped: u64) -> Bytes {
    #[derive(Serialize)]
    struct Message<'a> {
        schema: &'static str,
        schema_version: &'static str,
        text: String,
        #[serde(flatten)]
        event: &'a Event,
        created_at: Timestamp,
        messages_dropped: u64,
    }
    let message = Message {
        schema: "ddp-doctor/webhook",
        schema_version: "1.0",
        text: event.text(),
        event,
        created_at: Timestamp::now(),
        messages_dropped: dropped,
    };
    // Serialization fails only for maps whose keys are not strings.
    serde_json::to_vec(&message).map(Bytes::from).unwrap_or_default()
}

struct Client {
    url: Url,
    tls: Option<PublicTls>,
}

impl Client {
    async fn post(&self, body: Bytes) -> Answer {
        let status = match timeout(ATTEMPT, self.status(body)).await {
            Ok(Ok(status)) => status,
            Ok(Err(error)) => return Answer::Failed(format!("{error:#}")),
            Err(_elapsed) => return Answer::Failed("no answer in time".into()),
        };
        let again = [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_MANY_REQUESTS];
        if status.is_success() {
            Answer::Accepted
        } else if status.is_server_error() || again.contains(&status) {
            Answer::Failed(format!("status {status}"))
        } else {
            Answer::Rejected(format!("status {status}"))
        }
    }

    async fn status(&self, body: Bytes) -> anyhow::Result<StatusCode> {
        let url = &self.url;
        let socket = tls::connect(&url.host, url.port).await?;
        let stream: Box<dyn Stream> = match &self.tls {
            Some(tls) => Box::new(tls.connect(&url.host, socket).await?),
            None => Box::new(socket),
        };
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        let path = url.uri.path_and_query().map_or("/", |it| it.as_str());
        let authority = url.uri.authority().map_or("", |it| it.as_str());
        let request = Request::post(path)
            .header(HOST, authority)
            .header(CONTENT_TYPE, "application/json")
            .header(USER_AGENT, format!("ddp-doctor/{VERSION}"))
            .body(Full::new(body))?;
        // Carries the request and the answer, and is aborted when this function returns.
        let mut connections = JoinSet::new();
        connections.spawn(connection);
        Ok(sender.send_request(request).await?.status())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_is_split_and_its_path_is_not_shown() {
        for (text, expected) in [
            ("https://hooks.example/secret", Some("hooks.example:443")),
            ("http://[::1]:8080/x?y=1", Some("::1:8080")),
            ("http://127.0.0.1", Some("127.0.0.1:80")),
            ("ftp://a/b", None),
            ("hooks.example/secret", None),
            ("https://user:password@a/b", None),
            ("", None),
        ] {
            let url = text.parse::<Url>().ok().map(|url| format!("{url:?}"));
            assert_eq!(url.as_deref(), expected, "{text}");
        }
    }
}
