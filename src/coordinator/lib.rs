//! Receives the reports of nodes, passes them to the engine and serves viewers.
//!
//! A [`hub::Hub`] has a session per job: one task that owns the job's engine. Nodes attach to it
//! and viewers watch it, over gRPC ([`serve`]) or, within one process, directly; both use the same
//! functions.
//!
//! A slow viewer delays no other: a session publishes its latest report only, and a task per viewer
//! computes the changes since that viewer's last update. A node that reports faster than the engine
//! processes is slowed down by flow control of its stream. Its rings may then lose records, which
//! is counted.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use ddp_doctor_host::log::UserLog;
use ddp_doctor_proto::v1::agent_service_server::AgentServiceServer;
use ddp_doctor_proto::v1::viewer_service_server::ViewerServiceServer;
use tonic::transport::Server;

mod clock;
mod connections;
mod digests;
mod dump;
mod flow;
mod gathering;
pub mod hub;
mod meeting;
mod services;
mod session;
pub mod summary;
pub mod updates;

pub use connections::{Access, Listeners};
pub use hub::{AttachError, Begun, Hub};
pub use updates::Updates;

#[cfg(test)]
mod tests;

/// Maximum size of a node's message, in bytes: more than a hundred times a usual batch.
pub const MAX_MESSAGE: usize = 8 << 20;
/// Maximum size of an update to a viewer, in bytes: enough for a report about 16 384 ranks.
pub const MAX_UPDATE: usize = 64 << 20;
/// Bytes of a connection that may wait for the decoder. A node that is ahead by more waits itself: the
/// usual mebibyte would be half a gibibyte in a job of 512 nodes.
const WINDOW: u32 = 64 << 10;
/// Maximum number of streams per connection: a node or a viewer needs one.
const MAX_STREAMS: u32 = 16;

/// Errors of [`serve`].
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The listening socket failed.
    #[error("cannot listen: {0}")]
    Listen(#[from] std::io::Error),
    /// The gRPC server failed.
    #[error("cannot serve: {0}")]
    Server(#[from] tonic::transport::Error),
}

/// Serves the nodes and viewers of one user until `shutdown` completes. Lines about no job go to `log`.
///
/// # Errors
///
/// Fails if a socket or the server fails.
pub async fn serve(
    listeners: Listeners,
    access: Access,
    hub: Arc<Hub>,
    log: UserLog,
    shutdown: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let connections = connections::accept(listeners, access, log)?;
    let services = services::Services::new(hub);
    let agents = AgentServiceServer::new(services.clone()).max_decoding_message_size(MAX_MESSAGE);
    let viewers = ViewerServiceServer::new(services).max_decoding_message_size(64 << 10);
    Server::builder()
        .max_concurrent_streams(MAX_STREAMS)
        .initial_connection_window_size(WINDOW)
        .initial_stream_window_size(WINDOW)
        .http2_keepalive_interval(Some(Duration::from_secs(20)))
        .http2_keepalive_timeout(Some(Duration::from_secs(20)))
        .add_service(agents)
        .add_service(viewers)
        .serve_with_incoming_shutdown(connections, shutdown)
        .await?;
    Ok(())
}
