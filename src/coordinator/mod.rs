//! Takes what nodes report, feeds it to the engine and serves those who watch.
//!
//! A [`hub::Hub`] has a session per job: one task that owns the job's engine. Nodes attach to it
//! and viewers watch it, over gRPC ([`serve`]) or, within one process, directly; both ways lead
//! through the same functions.
//!
//! A slow viewer slows nobody: a session publishes its latest report and nothing else, and each
//! viewer's own task works out what changed since that viewer last heard. A node that reports faster
//! than the engine concludes is held back by its stream, and then loses records out of its rings,
//! which is counted.

use std::future::Future;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::Duration;

use ddp_doctor_proto::v1::agent_service_server::AgentServiceServer;
use ddp_doctor_proto::v1::viewer_service_server::ViewerServiceServer;
use tonic::transport::Server;

mod clock;
mod connections;
mod dump;
pub mod hub;
mod services;
mod session;
pub mod updates;

pub use connections::Access;
pub use hub::{AttachError, Begun, Hub};
pub use updates::Updates;

#[cfg(test)]
mod tests;

/// Largest message a node may send: some hundred times what a batch normally takes.
pub const MAX_MESSAGE: usize = 8 << 20;
/// Largest message a viewer has to take: a report about 16 384 ranks.
pub const MAX_UPDATE: usize = 64 << 20;
/// Streams of one connection: a node needs one, a viewer one.
const MAX_STREAMS: u32 = 16;

/// Why the coordinator cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The listening socket cannot be used.
    #[error("cannot listen: {0}")]
    Listen(#[from] std::io::Error),
    /// The gRPC server ended.
    #[error("cannot serve: {0}")]
    Server(#[from] tonic::transport::Error),
}

/// Serves the nodes and viewers of one user until `shutdown` is ready.
///
/// # Errors
///
/// When the socket cannot be used.
pub async fn serve(
    listener: UnixListener,
    access: Access,
    hub: Arc<Hub>,
    shutdown: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    listener.set_nonblocking(true)?;
    let listener = tokio::net::UnixListener::from_std(listener)?;
    let connections = connections::accept(listener, access);
    let services = services::Services::new(hub);
    let agents = AgentServiceServer::new(services.clone()).max_decoding_message_size(MAX_MESSAGE);
    let viewers = ViewerServiceServer::new(services).max_decoding_message_size(64 << 10);
    Server::builder()
        .max_concurrent_streams(MAX_STREAMS)
        .http2_keepalive_interval(Some(Duration::from_secs(20)))
        .http2_keepalive_timeout(Some(Duration::from_secs(20)))
        .add_service(agents)
        .add_service(viewers)
        .serve_with_incoming_shutdown(connections, shutdown)
        .await?;
    Ok(())
}
