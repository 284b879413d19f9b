//! Sends rounds to a coordinator, in this process or in that of another host, and receives its diagnosis.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ddp_doctor_host::log::UserLog;
use ddp_doctor_node::follow::{Command, Commander, Commands};
use ddp_doctor_node::launch::coordinator::{Chosen, serve_here};
use ddp_doctor_node::launch::rendezvous::Rendezvous;
use ddp_doctor_node::timing::Timing;
use ddp_doctor_node::upload::attach::{CONCLUSION, Concluded, CoordinatorLink};
use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_proto::v1;
use ddp_doctor_proto::viewer::Update;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot, watch};
use v1::event::Kind;

use super::find::RankProcess;

/// Time limit for the last update to viewers of a coordinator in this process.
const VIEWER_SHUTDOWN: Duration = Duration::from_millis(100);

/// The connection to a coordinator.
#[derive(Debug)]
pub struct Connection {
    outgoing: Arc<Mutex<Outgoing>>,
    commander: Commander,
    ending: watch::Sender<bool>,
    diagnosis: tokio::task::JoinHandle<Concluded>,
    stop_serving: oneshot::Sender<()>,
    runtime: Runtime,
}

/// What is sent.
#[derive(Debug, Default)]
struct Outgoing {
    /// The stream to the coordinator; `None`: it is not connected.
    stream: Option<mpsc::Sender<v1::Report>>,
    /// The latest round.
    round: Vec<v1::Report>,
}

/// Where the ranks of a job meet, from the variables of its lowest rank on this host.
#[must_use]
pub fn rendezvous(first: &RankProcess) -> Option<Rendezvous> {
    let variable = |name: &str| match name {
        "RANK" => Some(first.rank.to_string()),
        "WORLD_SIZE" => first.world_size.map(|it| it.to_string()),
        name => first.environment.get(name).map(str::to_owned),
    };
    Rendezvous::from_command(&[], &variable)
}

impl Connection {
    /// Connects to the coordinator of a job, and serves viewers and other hosts if that is in this process. `take`
    /// receives its updates until it returns false.
    ///
    /// # Errors
    ///
    /// If threads cannot be started.
    pub fn start(
        chosen: Chosen,
        job: &str,
        timing: Timing,
        log: UserLog,
        take: impl Fn(Update) -> bool + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let (commander, commands) = Commander::new();
        let outgoing = Arc::<Mutex<Outgoing>>::default();
        let sender = Arc::clone(&outgoing);
        std::thread::Builder::new()
            .name("ddp-attach".into())
            .spawn(move || execute(&commands, &sender))?;
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime =
            builder.worker_threads(1).thread_name("ddp-coordinator").enable_all().build()?;
        let (stop_serving, stop) = oneshot::channel();
        serve_here(&runtime, chosen.listening, &chosen.coordinator, &log, stop);
        let (ending, has_ended) = watch::channel(false);
        let link = CoordinatorLink {
            follower: commander.clone(),
            log,
            job: job.to_owned(),
            take,
            takes_remote: true,
            timing,
            ending: has_ended,
        };
        let diagnosis = runtime.spawn(link.run(chosen.coordinator));
        Ok(Self { outgoing, commander, ending, diagnosis, stop_serving, runtime })
    }

    /// Sends a round, which replaces the earlier one.
    pub fn send(&self, round: Vec<v1::Report>) {
        let mut outgoing = lock(&self.outgoing);
        outgoing.round = round;
        outgoing.send_round();
    }

    /// Sends the end of the rounds to the coordinator. Returns once it has published its last update, or its time
    /// is over.
    pub fn end(self) {
        let ended = v1::JobEnded { unix_ns: Timestamp::now().0, ..v1::JobEnded::default() };
        let event = v1::Event { kind: Some(Kind::JobEnded(ended)) };
        let last = v1::Report {
            sent_unix_ns: Timestamp::now().0,
            events: vec![event],
            ..v1::Report::default()
        };
        lock(&self.outgoing).send(last);
        self.ending.send_replace(true);
        let end = async { tokio::time::timeout(CONCLUSION, self.diagnosis).await };
        // Without a conclusion, the latest update is the last one.
        drop(self.runtime.block_on(end));
        self.commander.send(Command::Stop);
        self.stop_serving.send(()).ok();
        self.runtime.shutdown_timeout(VIEWER_SHUTDOWN);
    }
}

impl Outgoing {
    fn send_round(&mut self) {
        if self.round.is_empty() {
            return;
        }
        for report in self.round.clone() {
            self.send(report);
        }
        // A report without events ends a round.
        self.send(v1::Report { sent_unix_ns: Timestamp::now().0, ..v1::Report::default() });
    }

    fn send(&mut self, report: v1::Report) {
        if let Some(stream) = &self.stream
            && stream.blocking_send(report).is_err()
        {
            self.stream = None;
        }
    }
}

/// Executes what the coordinator requests, until the connection ends. Only a new stream needs an answer.
fn execute(commands: &Commands, outgoing: &Mutex<Outgoing>) {
    while let Some(command) = commands.wait() {
        match command {
            Command::Attached(stream) => {
                let mut outgoing = lock(outgoing);
                outgoing.stream = Some(stream);
                outgoing.send_round();
            }
            Command::Stop => return,
            _ => {}
        }
    }
}

fn lock(outgoing: &Mutex<Outgoing>) -> MutexGuard<'_, Outgoing> {
    outgoing.lock().unwrap_or_else(PoisonError::into_inner)
}
