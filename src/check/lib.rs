//! The check before a job: does this machine have what the job needs, and do the nodes of its launch
//! reach each other and agree?
//!
//! ```text
//! gather ─► facts ─┐                          one per node
//! host ◄─ guests ──┴─► survey ─► rules ─► lines ─► every node prints all of them
//! ```
//!
//! The nodes meet where the job itself would: the node of the master serves, the others connect to it,
//! and then all connect to each other, as NCCL and Gloo do. [`rules`] and [`network`] do no I/O.

use std::ffi::OsString;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use anyhow::Context;
use ddp_doctor_node::launch::rendezvous::Rendezvous;
use ddp_doctor_node::launch::shape::Shape;
use ddp_doctor_transport::{Credentials, Keys, loopback};
use tokio::time::Instant;

mod coordinator;
pub mod facts;
mod gather;
mod guest;
mod host;
pub mod network;
pub mod output;
mod packages;
mod probe;
pub mod rules;
pub mod survey;
mod wire;

use facts::Facts;
pub use output::Checked;
use survey::{Alone, Launch, Node, Survey};

/// What to check.
#[derive(Clone, Debug)]
pub struct Options {
    /// The command that will be started; empty: none.
    pub command: Vec<OsString>,
    /// Address of the coordinator of the job; `None`: none of its own.
    pub coordinator: Option<String>,
    /// How long to wait for the other nodes.
    pub wait: Duration,
    /// Where the token is found.
    pub credentials: Credentials,
}

/// Checks this machine, and the other nodes of the launch that the command and the environment name.
///
/// # Errors
///
/// If this process can neither listen nor start threads.
pub fn check(options: &Options) -> anyhow::Result<Checked> {
    let variable = |name: &str| std::env::var(name).ok();
    let shape = Shape::from_command(&options.command, &variable);
    let rendezvous = Rendezvous::from_command(&options.command, &variable);
    let mut facts = gather::facts(&options.command, &shape, rendezvous.as_ref());
    let address = options.coordinator.as_deref();
    facts.coordinator = address.map(|it| coordinator::ask(it, &options.credentials));
    if shape.commands.1 < 2 {
        return Ok(alone(facts, None, None));
    }
    let Some(rendezvous) = rendezvous else {
        return Ok(alone(facts, None, Some(Alone::NoAddress)));
    };
    if loopback(&rendezvous.host).is_some() {
        return Ok(alone(facts, None, Some(Alone::Loopback)));
    }
    let launch = Launch {
        shape,
        host: rendezvous.host.clone(),
        port: rendezvous.port,
        coordinator_port: rendezvous.coordinator_port(),
        waited_s: options.wait.as_secs(),
    };
    let token = match options.credentials.token() {
        Ok(token) => token,
        Err(error) => {
            let why = Alone::Token(error.to_string());
            return Ok(alone(facts, Some(launch), Some(why)));
        }
    };
    let keys = Keys::derive(&token).context("no keys can be made from the token")?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let is_here = rendezvous.is_here();
    let results = runtime.block_on(meet(facts, launch, &keys, is_here, options.wait));
    // A name server that does not answer must not delay the exit.
    runtime.shutdown_background();
    results
}

/// Checks all nodes together.
async fn meet(
    mut facts: Facts,
    launch: Launch,
    keys: &Keys,
    is_here: bool,
    wait: Duration,
) -> anyhow::Result<Checked> {
    let deadline = Instant::now() + wait;
    let listener = probe::listen(0).context("cannot listen at any port")?;
    let address = listener.local_addr().context("cannot listen at any port")?;
    facts.probe_port = address.port();
    // The random keys of a hash map are sufficient here.
    facts.probe_answer = RandomState::new().hash_one(address);
    let answering = tokio::spawn(probe::answer(listener, facts.probe_answer));
    let lines = if is_here {
        let mut ports = host::Ports::open(&launch, false);
        if ports.is_none() {
            // Another command on this machine may host the check.
            let joined = guest::attempt(&facts, &launch, keys, launch.coordinator_port).await;
            if let Ok(lines) = joined {
                return Ok(lines.bounded().into());
            }
            ports = host::Ports::open(&launch, true);
        }
        let ports = ports.unwrap_or_default();
        Ok(host::serve(facts.clone(), &launch, keys, ports, deadline).await)
    } else {
        guest::join(&facts, &launch, keys, deadline).await
    };
    answering.abort();
    Ok(match lines {
        Ok(lines) => lines.into(),
        Err(ports) => alone(facts, Some(launch), Some(Alone::Unmet(ports))),
    })
}

/// The result about this machine alone.
fn alone(facts: Facts, launch: Option<Launch>, why: Option<Alone>) -> Checked {
    let survey = Survey {
        nodes: vec![Node {
            ranks: facts.node_rank.into_iter().collect(),
            facts,
            commands: 1,
            ..Node::default()
        }],
        launch,
        alone: why,
        ..Survey::default()
    };
    Checked { nodes: vec![survey.name(0)], lines: rules::lines(&survey) }
}

impl From<wire::Lines> for Checked {
    fn from(it: wire::Lines) -> Self {
        Self { nodes: it.nodes, lines: it.lines }
    }
}
