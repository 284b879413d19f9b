//! Connections between the processes of a job and its coordinator.
//!
//! On one machine they use unix sockets that only their user can reach ([`socket`]); between machines,
//! TLS with keys that are derived from a token ([`tls`]). The address decides which ([`Address`]).

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use anyhow::Context as _;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tonic::codegen::Service;
use tonic::codegen::http::Uri;
use tonic::transport::{Channel, Endpoint};

mod address;
pub mod document;
pub mod handshakes;
pub mod public_tls;
pub mod socket;
pub mod tls;
pub mod token;

pub use address::{Address, AddressError, loopback, split};
pub use tls::Keys;
pub use token::{Credentials, Token, TokenError};

/// Time limit for a connection, and for the answer to a request.
pub const CONNECT: Duration = Duration::from_secs(5);
/// Interval of keep-alive pings, and time limit for their answers.
const KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(10));

/// A stream of bytes to a process on this or another machine.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// Connects to the coordinator at this address.
///
/// # Errors
///
/// If no coordinator answers.
pub async fn connect(address: &Address) -> anyhow::Result<Channel> {
    // The name is part of requests only; the connector knows the address.
    let endpoint = Endpoint::from_static("http://coordinator")
        .http2_keep_alive_interval(KEEP_ALIVE.0)
        .keep_alive_timeout(KEEP_ALIVE.1);
    let connector = Connector(address.clone());
    let channel = tokio::time::timeout(CONNECT, endpoint.connect_with_connector(connector)).await;
    let no_answer = || format!("no coordinator answers at {address}");
    match channel.with_context(no_answer)? {
        Ok(channel) => Ok(channel),
        Err(error) => {
            // The connector's own error says more than those around it.
            let sources = anyhow::Chain::new(&error);
            let reason = sources.filter_map(|it| it.downcast_ref::<io::Error>()).last();
            match reason.filter(|it| it.raw_os_error().is_none()) {
                // Such an error names the address itself.
                Some(reason) if is_about_address(reason) => Err(anyhow::anyhow!("{reason}")),
                Some(reason) => Err(anyhow::anyhow!("{}: {reason}", no_answer())),
                None => Err(anyhow::Error::from(error).context(no_answer())),
            }
        }
    }
}

fn is_about_address(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|it| it.is::<AddressError>())
}

/// Opens streams to one address.
#[derive(Clone, Debug)]
struct Connector(Address);

impl Service<Uri> for Connector {
    type Response = TokioIo<Box<dyn Stream>>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, io::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let address = self.0.clone();
        Box::pin(async move {
            let stream: Box<dyn Stream> = match address.remote() {
                Some((host, port, keys)) => Box::new(keys.connect(host, port).await?),
                None => {
                    let socket = address.socket().map_err(io::Error::other)?;
                    Box::new(socket.connect().await?)
                }
            };
            Ok(TokioIo::new(stream))
        })
    }
}
