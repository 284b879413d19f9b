//! A node that connects to the one where the nodes meet.

use std::io;
use std::time::Duration;

use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_transport::{Keys, Stream};
use tokio::time::{Instant, sleep};

use super::facts::Facts;
use super::network::{Outcome, Port};
use super::probe::{self, Meeting};
use super::survey::Launch;
use super::wire::{FROM_HOST, Lines, Message, receive, send};
use super::{gather, host};

/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(500);
/// Time limit for the answer to the first document.
const WELCOME: Duration = Duration::from_secs(10);
/// Maximum time that a host is believed to wait for others.
const MAX_WAIT: Duration = Duration::from_secs(24 * 3600);

/// Connects to the host until it has the result, or the time is over; then returns what happened at
/// each port.
pub(super) async fn join(
    facts: &Facts,
    launch: &Launch,
    keys: &Keys,
    deadline: Instant,
) -> Result<Lines, Vec<(u16, Outcome)>> {
    let ports = [launch.coordinator_port, launch.port];
    loop {
        let mut outcomes = Vec::new();
        for port in ports {
            match attempt(facts, launch, keys, port).await {
                Ok(lines) => return Ok(lines.bounded()),
                Err(outcome) => outcomes.push((port, outcome)),
            }
        }
        let is_final = outcomes.iter().any(|(_, it)| *it == Outcome::OtherToken);
        if is_final || Instant::now() >= deadline {
            return Err(outcomes);
        }
        sleep(PAUSE).await;
    }
}

/// Connects to the host at one port.
pub(super) async fn attempt(
    facts: &Facts,
    launch: &Launch,
    keys: &Keys,
    port: u16,
) -> Result<Lines, Outcome> {
    let name = launch.host.clone();
    let resolved = tokio::task::spawn_blocking(move || gather::resolve(&name)).await;
    if let Ok(error) = resolved.map(|it| it.error)
        && let Some(error) = error
    {
        return Err(Outcome::Unresolved(error));
    }
    let mut stream = keys
        .connect(&launch.host, port)
        .await
        .map_err(|error| Outcome::from_error(&error).bounded())?;
    let conversed = converse(&mut stream, facts, launch).await;
    // It knows the token, but is over, full, or no check.
    conversed.map_err(|error| Outcome::Failed(format!("it sent no result: {error}")).bounded())
}

/// Exchanges documents until the host sends the result.
async fn converse(stream: &mut impl Stream, facts: &Facts, launch: &Launch) -> io::Result<Lines> {
    send(stream, &Message::Hello(Box::new(facts.clone()))).await?;
    let Message::Welcome(remaining) = receive(stream, FROM_HOST, WELCOME).await? else {
        return Err(unexpected());
    };
    let patience = Duration::from_millis(remaining).min(MAX_WAIT) + host::PROBES;
    loop {
        match receive(stream, FROM_HOST, patience).await? {
            Message::Ping => {
                send(stream, &Message::Pong(Timestamp::now().0)).await?;
            }
            Message::Roster(roster) => {
                let ports =
                    vec![(Port::Master, launch.port), (Port::Coordinator, launch.coordinator_port)];
                let meeting = Meeting { host: launch.host.clone(), ports };
                let is_first = !roster.peers.is_empty();
                let mut peers = roster.peers;
                peers.truncate(host::MAX_NODES);
                let probed = probe::probe(peers, is_first.then_some(meeting)).await;
                send(stream, &Message::Probed(probed)).await?;
            }
            Message::Lines(lines) => return Ok(lines),
            _ => return Err(unexpected()),
        }
    }
}

fn unexpected() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "an unexpected document")
}
