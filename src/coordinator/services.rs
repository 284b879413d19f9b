//! The gRPC services of a hub.

use std::sync::Arc;

use ddp_doctor_proto::v1;
use ddp_doctor_transport::document;
use prost::Message;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};
use v1::agent_service_server::AgentService;
use v1::viewer_service_server::ViewerService;

use super::connections::Traffic;
use super::hub::{AttachError, Hub};

/// Capacity of the queue of requests to a node, and of updates to a viewer.
const OUTGOING: usize = 2;

#[derive(Clone, Debug)]
pub(super) struct Services {
    hub: Arc<Hub>,
}

impl Services {
    pub(super) const fn new(hub: Arc<Hub>) -> Self {
        Self { hub }
    }
}

#[tonic::async_trait]
impl AgentService for Services {
    type AttachStream = ReceiverStream<Result<v1::Request, Status>>;

    async fn attach(
        &self,
        request: Request<Streaming<v1::Report>>,
    ) -> Result<Response<Self::AttachStream>, Status> {
        let traffic = traffic(&request);
        // An error ends the stream: the node attaches again.
        let reports = request.into_inner().take_while(Result::is_ok).filter_map(move |report| {
            let report = report.ok()?;
            if let Some(traffic) = &traffic {
                traffic.finished(report.encoded_len());
            }
            Some(report)
        });
        let mut requests = self.hub.attach(Box::pin(reports)).await?;
        let (sender, receiver) = mpsc::channel(OUTGOING);
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    request = requests.recv() => {
                        let Some(request) = request else { return };
                        if sender.send(Ok(request)).await.is_err() {
                            return;
                        }
                    }
                    () = sender.closed() => return,
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}

#[tonic::async_trait]
impl ViewerService for Services {
    type WatchStream = ReceiverStream<Result<v1::Document, Status>>;
    type DumpStream = tokio_stream::Iter<std::vec::IntoIter<Result<v1::Document, Status>>>;

    async fn watch(
        &self,
        request: Request<v1::WatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        traffic(&request);
        let mut updates = match request.into_inner() {
            v1::WatchRequest { job, session: 0, past: true } => self.hub.watch_with_past(&job)?,
            v1::WatchRequest { job, session: 0, past: false } => self.hub.watch(&job, true)?,
            v1::WatchRequest { session, .. } => self.hub.watch_session(session, true)?,
        };
        let (sender, receiver) = mpsc::channel(OUTGOING);
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    update = updates.next() => {
                        let Some(update) = update else { return };
                        if sender.send(document::encode(&update)).await.is_err() {
                            return;
                        }
                    }
                    () = sender.closed() => return,
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn dump(
        &self,
        request: Request<v1::DumpRequest>,
    ) -> Result<Response<Self::DumpStream>, Status> {
        traffic(&request);
        let mut dump = self.hub.dump(&request.into_inner().job).await?;
        let processes = std::mem::take(&mut dump.processes);
        let mut documents = vec![document::encode(&dump)];
        documents.extend(processes.iter().map(document::encode));
        Ok(Response::new(tokio_stream::iter(documents)))
    }
}

/// The traffic of the connection, whose first request has arrived.
fn traffic<T>(request: &Request<T>) -> Option<Traffic> {
    let traffic = request.extensions().get::<Traffic>()?;
    traffic.requested();
    Some(traffic.clone())
}

impl From<AttachError> for Status {
    fn from(error: AttachError) -> Self {
        let text = error.to_string();
        match error {
            AttachError::NoHello | AttachError::BadJobId => Self::invalid_argument(text),
            AttachError::NoSuchJob => Self::not_found(text),
            AttachError::Ended => Self::failed_precondition(text),
            AttachError::TooManyJobs | AttachError::TooManyViewers => {
                Self::resource_exhausted(text)
            }
        }
    }
}
