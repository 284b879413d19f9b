//! Keeps a node attached to its coordinator, wherever that is and however often it is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_proto::v1;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};
use v1::agent_service_client::AgentServiceClient;
use v1::request::Kind;
use v1::viewer_service_client::ViewerServiceClient;

use super::Say;
use super::follow::{Command, Commander};
use super::socket;
use crate::coordinator::{Hub, MAX_UPDATE, Updates};

/// Batches on their way to the coordinator.
const QUEUE: usize = 1024;
/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(5);
/// First and longest time between two attempts.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));

/// A coordinator that does not answer for so long, from the start, is none.
const NOBODY_THERE: Duration = Duration::from_secs(10);

/// Time until our own coordinator is asked again for a job that it does not know yet.
const HERE: Duration = Duration::from_millis(5);

/// Where the diagnosis is made.
#[derive(Clone, Debug)]
pub enum Coordinator {
    /// In this process.
    Here(Arc<Hub>),
    /// In another one, with this address ([`socket::check`]).
    There(String),
}

impl Coordinator {
    /// The coordinator itself once it answers; our own where it does not for too long, or until
    /// there is no more time to wait.
    pub async fn settle(self, say: &Say, no_more_time: &Notify) -> Self {
        let Self::There(address) = &self else {
            return self;
        };
        let answers = async {
            let mut backoff = BACKOFF.0;
            while socket::reach(address).await.is_err() {
                tokio::time::sleep(backoff).await;
                backoff = (backoff * 2).min(BACKOFF.1);
            }
        };
        tokio::select! {
            biased;
            () = answers => return self,
            () = tokio::time::sleep(NOBODY_THERE) => {}
            () = no_more_time.notified() => {}
        }
        say.say(&format!(
            "no coordinator answers at {address}; the diagnosis is made here, of this node alone"
        ));
        Self::Here(Arc::new(Hub::new()))
    }

    /// Keeps the node attached until the coordinator has taken in the end of the job. `attached`
    /// says whether it is at the moment.
    pub async fn keep_attached(
        self,
        follower: Commander,
        say: Say,
        attached: Arc<AtomicBool>,
        finished: oneshot::Sender<()>,
    ) {
        let mut backoff = BACKOFF.0;
        let mut complained = false;
        loop {
            let end = self.attach(&follower, &attached).await;
            if attached.swap(false, Ordering::Relaxed) {
                backoff = BACKOFF.0;
            }
            match end {
                Ok(End::Finished) => break,
                Ok(End::FollowerGone) => return,
                Ok(End::Lost) => {}
                Err(error) => {
                    if !std::mem::replace(&mut complained, true) {
                        say.say(&format!("{error}; the job runs on, and so do the attempts"));
                    }
                }
            }
            tokio::time::sleep(backoff).await;
            backoff = (backoff * 2).min(BACKOFF.1);
        }
        // Nobody waits for it any more: no harm.
        finished.send(()).ok();
    }

    async fn attach(&self, follower: &Commander, attached: &AtomicBool) -> anyhow::Result<End> {
        let (reports, queue) = mpsc::channel(QUEUE);
        let reports = Command::Attached(reports);
        match self {
            Self::Here(hub) => {
                if !follower.tell(reports) {
                    return Ok(End::FollowerGone);
                }
                let mut requests = hub.attach(ReceiverStream::new(queue)).await?;
                attached.store(true, Ordering::Relaxed);
                while let Some(request) = requests.recv().await {
                    if let Some(end) = obey(request, follower) {
                        return Ok(end);
                    }
                }
            }
            Self::There(address) => {
                // Connected first: the follower repeats everything for every new stream.
                let mut client = AgentServiceClient::new(connect(address).await?);
                if !follower.tell(reports) {
                    return Ok(End::FollowerGone);
                }
                let requests = client.attach(ReceiverStream::new(queue)).await;
                let mut requests = requests
                    .map_err(|status| {
                        anyhow::anyhow!("coordinator {address}: {}", status.message())
                    })?
                    .into_inner();
                attached.store(true, Ordering::Relaxed);
                while let Ok(Some(request)) = requests.message().await {
                    if let Some(end) = obey(request, follower) {
                        return Ok(end);
                    }
                }
            }
        }
        Ok(End::Lost)
    }

    /// Follows the diagnosis of a job and hands on every update, until the job has ended or nobody
    /// takes them.
    pub async fn follow_updates(self, job: String, take: impl Fn(v1::Update) -> bool) {
        loop {
            let ended = match &self {
                Self::Here(hub) => match hub.watch(&job, false) {
                    Ok(updates) => hand_on(updates, &take).await,
                    Err(_) => false,
                },
                Self::There(address) => watch(address, &job, &take).await.unwrap_or(false),
            };
            if ended {
                return;
            }
            // It does not know the job yet, or was lost.
            let pause = match &self {
                Self::Here(_) => HERE,
                Self::There(_) => BACKOFF.0,
            };
            tokio::time::sleep(pause).await;
        }
    }
}

/// How an attachment ended.
enum End {
    /// The coordinator has taken in the end of the job.
    Finished,
    /// There is nobody left to report.
    FollowerGone,
    /// The stream broke.
    Lost,
}

fn obey(request: v1::Request, follower: &Commander) -> Option<End> {
    let command = match request.kind? {
        Kind::Welcome(_) => return None,
        Kind::Finished(_) => return Some(End::Finished),
        Kind::SendRecords(v1::SendRecords {
            process,
            from_ticket: ticket,
        }) => Command::Repeat { process, ticket },
        Kind::Ping(v1::Ping { unix_ns }) => Command::Ping {
            sent_unix_ns: unix_ns,
            received: Timestamp::now(),
        },
        Kind::CaptureStacks(v1::CaptureStacks {
            processes,
            on_request,
        }) => Command::TakeStacks {
            processes,
            on_request,
        },
    };
    (!follower.tell(command)).then_some(End::FollowerGone)
}

/// A connection to the coordinator at that address.
///
/// # Errors
///
/// When nobody answers there.
pub async fn connect(address: &str) -> anyhow::Result<Channel> {
    let path = socket::find(address)?;
    let endpoint = Endpoint::from_shared(format!("unix:{}", path.display()))?
        .connect_timeout(CONNECT)
        .http2_keep_alive_interval(Duration::from_secs(20));
    endpoint
        .connect()
        .await
        .with_context(|| format!("no coordinator answers at {address}"))
}

/// Whether there is nothing more to come, or nobody to take it.
async fn hand_on(mut updates: Updates, take: &impl Fn(v1::Update) -> bool) -> bool {
    while let Some(update) = updates.next().await {
        if !take(update) {
            return true;
        }
    }
    true
}

async fn watch(
    address: &str,
    job: &str,
    take: &impl Fn(v1::Update) -> bool,
) -> anyhow::Result<bool> {
    let mut client =
        ViewerServiceClient::new(connect(address).await?).max_decoding_message_size(MAX_UPDATE);
    let request = v1::WatchRequest {
        job: job.to_owned(),
    };
    let mut updates = client.watch(request).await?.into_inner();
    while let Some(update) = updates.message().await? {
        let ended = update.ended;
        if !take(update) || ended {
            return Ok(true);
        }
    }
    Ok(false)
}
