//! Connections between nodes: each answers at an ephemeral port, as NCCL and Gloo do, and connects to
//! the others.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener as StdTcpListener};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};

use super::gather;
use super::network::{Outcome, Port};
use super::wire::{Failed, Peer, Probed};

/// Time limit for a connection, and for an answer. The system repeats a lost packet after 1 s.
const CONNECT: Duration = Duration::from_secs(4);
/// Time limit for all connections of a node.
pub(super) const ALL: Duration = Duration::from_secs(120);
/// Maximum number of connections at a time.
const AT_A_TIME: usize = 64;
/// Maximum number of failures that are reported.
pub(super) const MAX_FAILURES: usize = 4096;
/// Pause before the next `accept` after one failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(500);

/// Listens at a port of all addresses, where 0 lets the system choose it.
pub(super) fn listen(port: u16) -> io::Result<StdTcpListener> {
    let both = StdTcpListener::bind((Ipv6Addr::UNSPECIFIED, port));
    let listener = match both {
        Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
            StdTcpListener::bind((Ipv4Addr::UNSPECIFIED, port))
        }
        both => both,
    }?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Answers every connection with a number, until the task is aborted.
pub(super) async fn answer(listener: StdTcpListener, number: u64) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    loop {
        match listener.accept().await {
            Ok((mut stream, _)) => {
                let number = number.to_be_bytes();
                // The buffer of a new connection has room for it; a peer that is gone needs no answer.
                timeout(CONNECT, stream.write_all(&number)).await.ok();
            }
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}

/// Where the nodes meet, for the guests: the ports that the host of the launch has open.
#[derive(Clone, Debug)]
pub(super) struct Meeting {
    /// Host name or address.
    pub(super) host: String,
    /// Its ports.
    pub(super) ports: Vec<(Port, u16)>,
}

/// Connects to all peers, and to the ports of the host of the launch, which is node 0.
pub(super) async fn probe(peers: Vec<Peer>, meeting: Option<Meeting>) -> Probed {
    let deadline = Instant::now() + ALL;
    let turns = Arc::new(Semaphore::new(AT_A_TIME));
    let mut tasks: JoinSet<(Vec<Failed>, Option<usize>)> = JoinSet::new();
    for peer in peers {
        let turns = Arc::clone(&turns);
        tasks.spawn(async move {
            let _turn = turns.acquire_owned().await;
            let node = peer.node;
            let name = peer.host.clone();
            let resolved = tokio::task::spawn_blocking(move || gather::resolve(&name)).await;
            let is_unresolved = resolved.is_ok_and(|it| it.error.is_some());
            (probe_peer(peer).await, is_unresolved.then_some(node))
        });
    }
    if let Some(meeting) = meeting {
        tasks.spawn(async move { (probe_meeting(meeting).await, None) });
    }
    let mut probed = Probed::default();
    loop {
        match timeout_at(deadline, tasks.join_next()).await {
            Ok(Some(Ok((failures, unresolved)))) => {
                probed.failures.extend(failures);
                probed.unresolved.extend(unresolved);
            }
            Ok(Some(Err(_))) => probed.is_partial = true,
            Ok(None) => break,
            Err(_) => {
                probed.is_partial = true;
                break;
            }
        }
    }
    probed.failures.truncate(MAX_FAILURES);
    probed
}

async fn probe_peer(peer: Peer) -> Vec<Failed> {
    let mut failures = Vec::new();
    if peer.addresses.is_empty() {
        failures.push(Failed {
            to: peer.node,
            port: Port::Ephemeral,
            outcome: Outcome::Failed("no address for others".into()),
            address: peer.host.clone(),
        });
    }
    for address in peer.addresses {
        let address = SocketAddr::new(address, peer.port);
        let answered = ask(address).await;
        let outcome = match answered {
            Ok(answer) if answer == peer.answer => continue,
            Ok(_) => Outcome::OtherHost,
            Err(outcome) => outcome,
        };
        failures.push(Failed {
            to: peer.node,
            port: Port::Ephemeral,
            outcome,
            address: address.to_string(),
        });
    }
    failures
}

/// Connects and reads the number there.
async fn ask(address: SocketAddr) -> Result<u64, Outcome> {
    let mut stream = connect(address).await?;
    let answer = timeout(CONNECT, stream.read_u64()).await;
    // Something that accepts connections and sends nothing is not the peer.
    answer.ok().and_then(Result::ok).ok_or(Outcome::OtherHost)
}

async fn connect(address: SocketAddr) -> Result<TcpStream, Outcome> {
    match timeout(CONNECT, TcpStream::connect(address)).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error)) => Err(Outcome::from_error(&error)),
        Err(_) => Err(Outcome::NoAnswer),
    }
}

async fn probe_meeting(meeting: Meeting) -> Vec<Failed> {
    let mut failures = Vec::new();
    for (port, number) in meeting.ports {
        let name = meeting.host.clone();
        let resolved = tokio::task::spawn_blocking(move || gather::resolve(&name)).await;
        let addresses = resolved.map(|it| it.addresses).unwrap_or_default();
        let outcome = any_of(&addresses, number).await;
        let host = &meeting.host;
        if let Some(outcome) = outcome {
            failures.push(Failed { to: 0, port, outcome, address: format!("{host}:{number}") });
        }
    }
    failures
}

/// `None`: one of the addresses accepts connections; otherwise what happened at the last.
async fn any_of(addresses: &[IpAddr], port: u16) -> Option<Outcome> {
    let mut last = None;
    for &address in addresses {
        match connect(SocketAddr::new(address, port)).await {
            Ok(_) => return None,
            Err(outcome) => last = Some(outcome),
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(node: usize, port: u16, answer: u64) -> Peer {
        Peer {
            node,
            host: "localhost".into(),
            addresses: vec![Ipv4Addr::LOCALHOST.into()],
            port,
            answer,
        }
    }

    #[tokio::test]
    async fn peer_is_recognized_by_its_answer() {
        let listener = listen(0).unwrap();
        let port = listener.local_addr().unwrap().port();
        let answering = tokio::spawn(answer(listener, 7));
        let silent = listen(0).unwrap();
        let silent_port = silent.local_addr().unwrap().port();
        let peers = vec![peer(1, port, 7), peer(2, port, 8), peer(3, silent_port, 7)];
        let meeting = Meeting { host: "127.0.0.1".into(), ports: vec![(Port::Master, port)] };
        let mut probed = probe(peers, Some(meeting)).await;
        probed.failures.sort_by_key(|it| it.to);
        let outcomes: Vec<(usize, &Outcome)> =
            probed.failures.iter().map(|it| (it.to, &it.outcome)).collect();
        assert_eq!(outcomes, [(2, &Outcome::OtherHost), (3, &Outcome::OtherHost)]);
        assert_eq!((probed.unresolved, probed.is_partial), (vec![], false));
        answering.abort();
    }

    #[tokio::test]
    async fn closed_port_and_unknown_name_are_failures() {
        let listener = listen(0).unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let mut unknown = peer(1, port, 7);
        unknown.host = "no-such-host.invalid".into();
        let meeting = Meeting { host: "127.0.0.1".into(), ports: vec![(Port::Coordinator, port)] };
        let probed = probe(vec![unknown], Some(meeting)).await;
        assert_eq!(probed.failures.len(), 2);
        assert!(probed.failures.iter().all(|it| it.outcome == Outcome::Refused));
        assert_eq!(probed.unresolved, [1]);
    }
}
