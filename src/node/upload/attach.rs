//! Connects a node to its coordinator. While the coordinator is unreachable, this process diagnoses
//! the ranks of the node.

use std::future::pending;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use ddp_doctor_coordinator::{Hub, MAX_UPDATE, Updates};
use ddp_doctor_host::log::UserLog;
use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_proto::viewer::Update;
use ddp_doctor_proto::words::plain;
use ddp_doctor_proto::{VERSION, v1};
use ddp_doctor_transport::{Address, CONNECT, connect, document};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;
use v1::agent_service_client::AgentServiceClient;
use v1::request::Kind;
use v1::viewer_service_client::ViewerServiceClient;

use crate::follow::{Command, Commander};
use crate::timing::Timing;

/// Maximum number of batches that wait for the coordinator: at most 256 MiB.
const QUEUE: usize = 4_096;
/// First and maximum pause between two attempts to attach.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));
/// Maximum pause before a lost coordinator is tried again, relative to the first one.
const MAX_RETRY: u32 = 64;
/// Pause before the coordinator of this process is queried again for an unknown job.
const LOCAL_RETRY: Duration = Duration::from_millis(5);
/// Time limit for the conclusion after the end of the job.
pub const CONCLUSION: Duration = Duration::from_secs(5);
/// Time limit for the last update of another coordinator after that, which comes only if the other nodes
/// have ended as well; and for an unreachable coordinator.
const LAST_UPDATE: Duration = Duration::from_millis(500);

/// Where the diagnosis is made.
#[derive(Clone, Debug)]
pub enum Coordinator {
    /// In this process.
    Here(Arc<Hub>),
    /// In another process, at this address.
    There(Address),
}

/// Which coordinator has accepted the end of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Concluded {
    /// The one in this process.
    Here,
    /// The one in another process.
    There,
    /// None.
    Nowhere,
}

/// The connection of a node to the diagnosis of its job.
pub struct CoordinatorLink<T> {
    /// Reads the black boxes of the node.
    pub follower: Commander,
    /// Reports changes of the connection.
    pub log: UserLog,
    /// Id of the job.
    pub job: String,
    /// Handles an update; returns false if no more are needed.
    pub take: T,
    /// Whether updates of a remote coordinator are handled as well.
    pub takes_remote: bool,
    /// Time limits for a coordinator.
    pub timing: Timing,
    /// Becomes true when the job has ended.
    pub ending: watch::Receiver<bool>,
}

/// State of the connection to a coordinator in another process.
enum Link {
    Attached,
    /// Not attached, with the last error.
    Apart(Option<String>),
}

impl<T: Fn(Update) -> bool> CoordinatorLink<T> {
    /// Follows the diagnosis to the end of the job.
    pub async fn run(self, coordinator: Coordinator) -> Concluded {
        let address = match coordinator {
            Coordinator::Here(hub) => return self.here(&hub).await,
            Coordinator::There(address) => address,
        };
        let first = self.timing.coordinator_retry;
        let mut pause = first;
        let mut was_lost = false;
        let remarks = Remarks::default();
        loop {
            match self.there(&address, was_lost, &remarks).await {
                End::Finished => return Concluded::There,
                End::FollowerGone => return Concluded::Nowhere,
                End::Lost => {}
            }
            let hub = Arc::new(Hub::new());
            tokio::select! {
                concluded = self.here(&hub) => return concluded,
                () = self.answers_again(&address, pause) => {}
            }
            pause = (pause * 2).min(first * MAX_RETRY);
            was_lost = true;
        }
    }

    /// Runs the diagnosis in this process.
    async fn here(&self, hub: &Arc<Hub>) -> Concluded {
        let (session, mut attached) = watch::channel(None);
        let attach = async {
            loop {
                match attach_here(hub, &self.follower, &session).await {
                    Ok(End::Lost) | Err(_) => sleep(BACKOFF.0).await,
                    Ok(end) => return end,
                }
            }
        };
        let updates = async {
            loop {
                let session = known(&mut attached).await;
                match hub.watch_session(session, false) {
                    Ok(updates) => return forward(updates, &self.take).await,
                    Err(_) => sleep(LOCAL_RETRY).await,
                }
            }
        };
        // The time begins when it is awaited.
        let limit = async { sleep(CONCLUSION).await };
        match beside(attach, updates, limit).await {
            End::Finished => Concluded::Here,
            End::FollowerGone | End::Lost => Concluded::Nowhere,
        }
    }

    /// Runs the diagnosis by another coordinator, until it is unreachable for too long. A coordinator
    /// that `was_lost` gets one attempt; if it fails, this process continues the diagnosis.
    async fn there(&self, address: &Address, was_lost: bool, remarks: &Remarks) -> End {
        let (link, state) = watch::channel(Link::Apart(None));
        let (session, mut attached) = watch::channel(None);
        let (updated, mut first) = watch::channel(false);
        let take = |update| {
            updated.send_replace(true);
            (self.take)(update)
        };
        let welcome = |welcome: &v1::Welcome| {
            session.send_replace(Some(welcome.session));
            for remark in remarks.about(address, &self.job, welcome) {
                self.log.print(&remark);
            }
        };
        let attach = async {
            let mut backoff = BACKOFF.0;
            loop {
                let error = match attach_there(address, &self.follower, &link, &welcome).await {
                    Ok(End::Lost) => None,
                    Ok(end) => return end,
                    Err(error) => Some(error.to_string()),
                };
                if let Link::Attached = link.send_replace(Link::Apart(error)) {
                    backoff = BACKOFF.0;
                }
                sleep(backoff).await;
                backoff = (backoff * 2).min(BACKOFF.1);
            }
        };
        let updates = async {
            if !self.takes_remote {
                return;
            }
            loop {
                let session = known(&mut attached).await;
                let watched = watch_there(address, &self.job, session, &take).await;
                if watched.unwrap_or(false) {
                    return;
                }
                // The coordinator was lost.
                sleep(BACKOFF.0).await;
            }
        };
        let attach = async {
            tokio::select! {
                end = attach => end,
                why = self.lost(address, state, was_lost) => {
                    if let Some(why) = why {
                        self.log.print(&format!(
                            "{why}: the diagnosis continues on this node, without the ranks of other nodes"
                        ));
                    }
                    End::Lost
                }
            }
        };
        let last = async {
            // Until the first one, the report may be that of this node alone.
            drop(timeout(CONCLUSION, first.wait_for(|is_so| *is_so)).await);
            sleep(LAST_UPDATE).await;
        };
        beside(attach, updates, last).await
    }

    /// Waits until the coordinator has been unreachable for too long; returns the reason, or `None` if it
    /// `was_lost` and is still unreachable.
    async fn lost(
        &self,
        address: &Address,
        mut state: watch::Receiver<Link>,
        was_lost: bool,
    ) -> Option<String> {
        let mut is_back = !was_lost;
        let mut ending = self.ending.clone();
        let mut since = Instant::now();
        let mut last = None;
        loop {
            let is_attached = matches!(*state.borrow_and_update(), Link::Attached);
            let is_ending = *ending.borrow_and_update();
            // Another failed attempt does not restart the timeout.
            if last.replace((is_attached, is_ending)) != Some((is_attached, is_ending)) {
                since = Instant::now();
            }
            if is_attached && !std::mem::replace(&mut is_back, true) {
                self.log.print(&format!(
                    "the coordinator at {address} answers again and continues the diagnosis"
                ));
            }
            if !is_back && matches!(*state.borrow(), Link::Apart(Some(_))) {
                return None;
            }
            let patience = match (is_attached, is_ending) {
                (true, false) => None,
                (true, true) => Some(CONCLUSION),
                // The job ends: waiting longer for an unreachable coordinator is unlikely to help.
                (false, true) => Some(LAST_UPDATE.min(self.timing.coordinator_patience)),
                (false, false) => Some(self.timing.coordinator_patience),
            };
            let expired = async {
                match patience {
                    Some(patience) => sleep_until(since + patience).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                () = expired => break,
                () = changed(&mut state) => {}
                () = changed(&mut ending) => {}
            }
        }
        is_back.then(|| match &*state.borrow() {
            Link::Attached => {
                format!("the coordinator at {address} did not accept the end of the job")
            }
            Link::Apart(Some(error)) => error.clone(),
            Link::Apart(None) => format!("no coordinator answers at {address}"),
        })
    }

    /// Returns when a lost coordinator answers requests again while the job runs.
    async fn answers_again(&self, address: &Address, pause: Duration) {
        loop {
            sleep(pause).await;
            if *self.ending.borrow() {
                pending::<()>().await;
            }
            if answers(address, &self.job).await {
                return;
            }
        }
    }
}

/// How an attachment ended.
enum End {
    /// The coordinator has accepted the end of the job.
    Finished,
    /// The follower has ended: there is nothing more to report.
    FollowerGone,
    /// The stream broke.
    Lost,
}

/// Runs `updates` beside `attach`, and after its end until the last update or the `limit`.
async fn beside(
    attach: impl Future<Output = End>,
    updates: impl Future<Output = ()>,
    limit: impl Future<Output = ()>,
) -> End {
    let (mut attach, mut updates) = (pin!(attach), pin!(updates));
    tokio::select! {
        end = &mut attach => {
            if let End::Finished = end {
                tokio::select! {
                    () = updates => {}
                    () = limit => {}
                }
            }
            end
        }
        () = &mut updates => attach.await,
    }
}

/// Waits for a change of a value whose sender may be gone.
async fn changed<V>(value: &mut watch::Receiver<V>) {
    if value.changed().await.is_err() {
        pending::<()>().await;
    }
}

/// What was printed about a coordinator.
#[derive(Debug, Default)]
struct Remarks {
    version: AtomicBool,
    name: AtomicBool,
}

impl Remarks {
    /// Lines about the answer of a coordinator that were not printed before.
    fn about(&self, address: &Address, job: &str, welcome: &v1::Welcome) -> Vec<String> {
        let mut lines = Vec::new();
        let version = plain(&welcome.coordinator_version);
        if version != VERSION && !self.version.swap(true, Ordering::Relaxed) {
            lines.push(format!(
                "the coordinator at {address} is ddp-doctor {version}, and this node has {VERSION}: install one \
                 version on all nodes, or evidence that only the newer one knows is left out"
            ));
        }
        if welcome.namesakes > 0 && !self.name.swap(true, Ordering::Relaxed) {
            lines.push(format!(
                "another job named {job} runs at the coordinator at {address}: both are diagnosed separately, but \
                 `watch`, `status` and `dump` show the newer one; set another name by --job or DDP_DOCTOR_JOB"
            ));
        }
        lines
    }
}

/// Waits until the coordinator has named the session of the job.
async fn known(session: &mut watch::Receiver<Option<u64>>) -> u64 {
    loop {
        let number = *session.borrow_and_update();
        match number {
            Some(number) => return number,
            None => changed(session).await,
        }
    }
}

async fn attach_here(
    hub: &Arc<Hub>,
    follower: &Commander,
    session: &watch::Sender<Option<u64>>,
) -> anyhow::Result<End> {
    let (reports, queue) = mpsc::channel(QUEUE);
    if !follower.send(Command::Attached(reports)) {
        return Ok(End::FollowerGone);
    }
    let mut requests = hub.attach(ReceiverStream::new(queue)).await?;
    while let Some(request) = requests.recv().await {
        if let Some(Kind::Welcome(welcome)) = &request.kind {
            session.send_replace(Some(welcome.session));
        }
        if let Some(end) = execute(request, follower) {
            return Ok(end);
        }
    }
    Ok(End::Lost)
}

async fn attach_there(
    address: &Address,
    follower: &Commander,
    link: &watch::Sender<Link>,
    welcome: &impl Fn(&v1::Welcome),
) -> anyhow::Result<End> {
    let no_answer = || format!("no coordinator answers at {address}");
    // Connect first: the follower sends everything again for each new stream.
    let mut client = AgentServiceClient::new(connect(address).await?);
    let (reports, queue) = mpsc::channel(QUEUE);
    if !follower.send(Command::Attached(reports)) {
        return Ok(End::FollowerGone);
    }
    let attach = client.attach(ReceiverStream::new(queue));
    let answer = timeout(CONNECT, attach).await.with_context(no_answer)?;
    let mut requests = match answer {
        Ok(requests) => requests.into_inner(),
        Err(status) if is_answer(&status) => {
            anyhow::bail!("the coordinator at {address} refuses this job ({})", status.message())
        }
        Err(_) => anyhow::bail!(no_answer()),
    };
    link.send_replace(Link::Attached);
    while let Ok(Some(request)) = requests.message().await {
        if let Some(Kind::Welcome(it)) = &request.kind {
            welcome(it);
        }
        if let Some(end) = execute(request, follower) {
            return Ok(end);
        }
    }
    Ok(End::Lost)
}

/// Whether a coordinator answers requests: one that is stopped still accepts connections.
async fn answers(address: &Address, job: &str) -> bool {
    let ask = async {
        let mut client = ViewerServiceClient::new(connect(address).await?);
        let request = v1::WatchRequest { job: job.to_owned(), ..Default::default() };
        match client.watch(request).await {
            Err(status) if !is_answer(&status) => Err(anyhow::Error::from(status)),
            _ => Ok(()),
        }
    };
    matches!(timeout(CONNECT, ask).await, Ok(Ok(())))
}

/// Whether a coordinator sent this status; the others are failures of the connection.
fn is_answer(status: &tonic::Status) -> bool {
    matches!(
        status.code(),
        Code::InvalidArgument | Code::NotFound | Code::FailedPrecondition | Code::ResourceExhausted
    )
}

fn execute(request: v1::Request, follower: &Commander) -> Option<End> {
    let command = match request.kind? {
        Kind::Welcome(_) => return None,
        Kind::Finished(_) => return Some(End::Finished),
        Kind::SendRecords(v1::SendRecords { process, from_ticket: ticket }) => {
            Command::Repeat { process, ticket }
        }
        Kind::Summarize(_) => Command::Summarize,
        Kind::Pull(pull) => Command::Pull(pull),
        Kind::Ping(v1::Ping { unix_ns }) => {
            Command::Ping { sent_unix_ns: unix_ns, received: Timestamp::now() }
        }
        Kind::CaptureStacks(v1::CaptureStacks { processes, on_request }) => {
            Command::TakeStacks { processes, on_request }
        }
        Kind::ReadDeviceCalls(it) => Command::ReadDeviceCalls { processes: it.processes },
    };
    (!follower.send(command)).then_some(End::FollowerGone)
}

/// Forwards updates until the last one, or until no more are needed.
async fn forward(mut updates: Updates, take: &impl Fn(Update) -> bool) {
    while let Some(update) = updates.next().await {
        if !take(update) {
            return;
        }
    }
}

/// Forwards the updates of another coordinator; returns false if the stream broke before the last.
async fn watch_there(
    address: &Address,
    job: &str,
    session: u64,
    take: &impl Fn(Update) -> bool,
) -> anyhow::Result<bool> {
    let mut client =
        ViewerServiceClient::new(connect(address).await?).max_decoding_message_size(MAX_UPDATE);
    let request = v1::WatchRequest { job: job.to_owned(), session, past: false };
    let mut updates = client.watch(request).await?.into_inner();
    while let Some(update) = updates.message().await? {
        let update: Update = document::decode(&update)?;
        let ended = update.ended;
        if !take(update) || ended {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::sync::Mutex;
    use std::sync::atomic::AtomicUsize;

    use tokio::net::UnixListener;
    use tokio_stream::wrappers::UnixListenerStream;
    use tonic::{Request, Response, Status, Streaming};
    use v1::agent_service_server::{AgentService, AgentServiceServer};
    use v1::viewer_service_server::{ViewerService, ViewerServiceServer};

    use super::*;
    use ddp_doctor_diagnosis::timing::TimeScale;
    use ddp_doctor_transport::Credentials;

    /// A coordinator that refuses every job.
    #[derive(Clone, Default)]
    struct Full(Arc<AtomicUsize>);

    #[tonic::async_trait]
    impl AgentService for Full {
        type AttachStream = ReceiverStream<Result<v1::Request, Status>>;

        async fn attach(
            &self,
            _: Request<Streaming<v1::Report>>,
        ) -> Result<Response<Self::AttachStream>, Status> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Err(Status::resource_exhausted("too many jobs"))
        }
    }

    #[tonic::async_trait]
    impl ViewerService for Full {
        type WatchStream = ReceiverStream<Result<v1::Document, Status>>;
        type DumpStream = ReceiverStream<Result<v1::Document, Status>>;

        async fn watch(
            &self,
            _: Request<v1::WatchRequest>,
        ) -> Result<Response<Self::WatchStream>, Status> {
            Err(Status::not_found("no such job"))
        }

        async fn dump(
            &self,
            _: Request<v1::DumpRequest>,
        ) -> Result<Response<Self::DumpStream>, Status> {
            Err(Status::not_found("no such job"))
        }
    }

    #[tokio::test]
    async fn refusal_is_reported_once() {
        let dir = tempfile::tempdir().unwrap();
        let private = std::fs::Permissions::from_mode(0o700);
        std::fs::set_permissions(dir.path(), private).unwrap();
        let path = dir.path().join("socket");
        let listener = UnixListenerStream::new(UnixListener::bind(&path).unwrap());
        let full = Full::default();
        let server = tonic::transport::Server::builder()
            .add_service(AgentServiceServer::new(full.clone()))
            .add_service(ViewerServiceServer::new(full.clone()));
        tokio::spawn(server.serve_with_incoming(listener));

        let lines: Arc<Mutex<Vec<String>>> = Arc::default();
        let sink = Arc::clone(&lines);
        let (follower, _commands) = Commander::new();
        let (_job, ending) = watch::channel(false);
        // Enough for the first answer on a slow machine, such as an emulated one.
        let timing = Timing {
            coordinator_patience: Duration::from_secs(2),
            ..Timing::default().scaled(TimeScale::new(0.01).unwrap())
        };
        let diagnosis = CoordinatorLink {
            follower,
            log: UserLog::new(move |line| sink.lock().unwrap().push(line.to_owned())),
            job: "job".into(),
            take: |_| true,
            takes_remote: false,
            timing,
            ending,
        };
        let address = format!("unix:{}", path.display());
        let there = Address::parse(&address, &Credentials::default()).unwrap();
        let running = tokio::spawn(diagnosis.run(Coordinator::There(there)));
        let first = || lines.lock().unwrap().len();
        while first() == 0 {
            sleep(LOCAL_RETRY).await;
        }
        // Two more attempts follow.
        let attempts = full.0.load(Ordering::Relaxed);
        while full.0.load(Ordering::Relaxed) < attempts + 2 {
            sleep(LOCAL_RETRY).await;
        }
        running.abort();
        let why = format!("the coordinator at {address} refuses this job (too many jobs)");
        let lines = lines.lock().unwrap();
        assert!(lines[0].starts_with(&why), "{lines:?}");
        assert_eq!(lines.len(), 1, "{lines:?}");
    }

    #[test]
    fn each_remark_about_a_coordinator_is_printed_once() {
        let address = Address::parse("unix:/socket", &Credentials::default()).unwrap();
        let remarks = Remarks::default();
        let mut welcome =
            v1::Welcome { coordinator_version: VERSION.into(), ..v1::Welcome::default() };
        assert!(remarks.about(&address, "job", &welcome).is_empty());
        welcome.coordinator_version = "9\x1b[2J".into();
        welcome.namesakes = 1;
        let lines = remarks.about(&address, "job", &welcome);
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[0].contains("is ddp-doctor 9\u{fffd}[2J, and this node has"));
        assert!(lines[1].starts_with("another job named job runs at"));
        assert!(remarks.about(&address, "job", &welcome).is_empty());
    }
}
