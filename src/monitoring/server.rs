//! The endpoint that Prometheus reads: `GET /metrics` over plain HTTP.

use std::convert::Infallible;
use std::io;
use std::net::TcpListener as StdTcpListener;
use std::sync::Arc;
use std::time::Duration;

use ddp_doctor_coordinator::Hub;
use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_transport::Token;
use ddp_doctor_transport::handshakes::{Handshakes, Host};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, AUTHORIZATION, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use super::metrics;
use super::webhook::Notifier;

/// Path of the metrics.
pub const PATH: &str = "/metrics";
/// Scheme of the header with the token (RFC 6750).
const SCHEME: &[u8] = b"Bearer ";
/// Maximum number of connections.
const MAX_CONNECTIONS: usize = 64;
/// Time limit for a connection, which carries a single request.
const CONNECTION: Duration = Duration::from_secs(10);
/// Maximum size of the head of a request, in bytes.
const MAX_HEAD: usize = 16 << 10;
/// A page is computed again when it is older than this, so that many readers cost no more than one.
const MAX_AGE: Duration = Duration::from_secs(1);
/// Pause before the next `accept` after one failed, for example for lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(500);

/// What the metrics are computed from.
#[derive(Debug)]
pub struct Source {
    hub: Arc<Hub>,
    webhook: Option<Notifier>,
    /// What readers have to send; `None`: nothing.
    token: Option<Token>,
    started: Timestamp,
    /// The latest page, and when it was computed.
    latest: Mutex<Option<(Instant, Bytes)>>,
}

impl Source {
    /// Metrics of the jobs of a hub, and of a webhook if there is one, for readers with a token.
    #[must_use]
    pub fn new(hub: Arc<Hub>, webhook: Option<Notifier>, token: Option<Token>) -> Self {
        Self { hub, webhook, token, started: Timestamp::now(), latest: Mutex::new(None) }
    }

    async fn page(&self) -> Bytes {
        // Held while the page is computed: readers that come meanwhile wait for it.
        let mut latest = self.latest.lock().await;
        if let Some((at, page)) = &*latest
            && at.elapsed() < MAX_AGE
        {
            return page.clone();
        }
        let state = self.hub.state().await;
        let counts = self.webhook.as_ref().map(Notifier::counts);
        let page = Bytes::from(metrics::page(&state, self.started, counts));
        *latest = Some((Instant::now(), page.clone()));
        page
    }

    fn admits(&self, request: &Request<Incoming>) -> bool {
        let Some(token) = &self.token else {
            return true;
        };
        let given = request
            .headers()
            .get(AUTHORIZATION)
            .and_then(|it| it.as_bytes().split_at_checked(SCHEME.len()));
        given.is_some_and(|(scheme, it)| {
            scheme.eq_ignore_ascii_case(SCHEME) && token.is(it.trim_ascii())
        })
    }

    async fn answer(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        let text = |status, text: &'static str| {
            (status, "text/plain", Bytes::from_static(text.as_bytes()))
        };
        let (status, kind, body) = match (request.method(), request.uri().path()) {
            (_, PATH) if !self.admits(request) => text(
                StatusCode::UNAUTHORIZED,
                "the metrics need the bearer token of DDP_DOCTOR_METRICS_TOKEN\n",
            ),
            (&Method::GET | &Method::HEAD, PATH) => {
                let kind = "text/plain; version=0.0.4; charset=utf-8";
                (StatusCode::OK, kind, self.page().await)
            }
            (_, PATH) => text(StatusCode::METHOD_NOT_ALLOWED, "only GET\n"),
            _ => text(StatusCode::NOT_FOUND, "the metrics are at /metrics\n"),
        };
        let mut response = Response::new(Full::new(body));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        if status == StatusCode::METHOD_NOT_ALLOWED {
            headers.insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        }
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// Serves the metrics until the task is dropped.
///
/// # Errors
///
/// Fails if the listener cannot be used.
pub async fn serve(listener: StdTcpListener, source: Arc<Source>) -> io::Result<Infallible> {
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    let open = Handshakes::new(MAX_CONNECTIONS);
    loop {
        let Ok((stream, address)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let (turn, _) = open.begin(Host::of_peer(address));
        let source = Arc::clone(&source);
        tokio::spawn(async move {
            // A connection that is slow or breaks is closed without a message.
            let served = async { connection(stream, &source).await.map_err(io::Error::other) };
            drop(timeout(CONNECTION, turn.complete(served)).await);
        });
    }
}

async fn connection(stream: TcpStream, source: &Source) -> hyper::Result<()> {
    let answer = async |request| Ok::<_, Infallible>(source.answer(&request).await);
    http1::Builder::new()
        .keep_alive(false)
        .max_buf_size(MAX_HEAD)
        .serve_connection(TokioIo::new(stream), service_fn(answer))
        .await
}
