//! The node where the nodes meet: waits for the others, lets all connect to each other, and sends
//! everybody the result.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener as StdTcpListener};
use std::sync::Arc;
use std::time::Duration;

use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_transport::handshakes::{Handshake, Handshakes, Host, MAX_HANDSHAKES};
use ddp_doctor_transport::{Keys, Stream};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::facts::Facts;
use super::network::{self, Port};
use super::probe;
use super::rules;
use super::survey::{Failure, Launch, Node, Offset, Survey};
use super::wire::{FROM_GUEST, Lines, Message, Peer, Probed, Roster, receive, send};

/// Maximum number of guests.
pub(super) const MAX_NODES: usize = 4096;
/// Maximum number of guests that have not sent their facts.
const MAX_GREETINGS: usize = 256;
/// Maximum number of addresses with another token that are reported.
const MAX_OTHERS: usize = 64;
/// Time limit for the facts of a peer that knows the token.
const HELLO: Duration = Duration::from_secs(10);
/// Time limit for the answer to one question about the time.
const PONG: Duration = Duration::from_secs(5);
/// Number of questions about the time; the answer with the shortest delay counts.
const PINGS: usize = 5;
/// Time limit for the connections of all guests.
pub(super) const PROBES: Duration = probe::ALL.saturating_add(Duration::from_secs(30));
/// Time limit for a guest to read the result and close its connection.
const CLOSE: Duration = Duration::from_secs(5);
/// Pause before the next `accept` after one failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(500);

/// A node that has come.
struct Guest {
    stream: Box<dyn Stream>,
    address: IpAddr,
    facts: Facts,
    clock: Option<Offset>,
}

/// What a guest answers: its node, what happened to its connections unless another command of its
/// node reports that, and its stream.
type Answer = (usize, Option<Probed>, Box<dyn Stream>);

/// What an acceptor reports.
enum Arrival {
    Guest(Box<Guest>),
    /// A peer with another token.
    Stranger(IpAddr),
}

/// The ports of a launch that this node could open.
#[derive(Default)]
pub(super) struct Ports {
    pub(super) listeners: Vec<StdTcpListener>,
    pub(super) in_use: Vec<Port>,
}

impl Ports {
    /// Listens at the port of the coordinator and then at that of the master; only at the latter if
    /// another program is known to use the former. `None`: the first one is in use, perhaps by another
    /// command of the launch.
    pub(super) fn open(launch: &Launch, is_coordinator_taken: bool) -> Option<Self> {
        let mut ports = Self { listeners: Vec::new(), in_use: Vec::new() };
        if is_coordinator_taken {
            ports.in_use.push(Port::Coordinator);
        } else {
            ports.listeners.push(probe::listen(launch.coordinator_port).ok()?);
        }
        match probe::listen(launch.port) {
            Ok(listener) => ports.listeners.push(listener),
            Err(_) => ports.in_use.push(Port::Master),
        }
        Some(ports)
    }
}

/// Waits for the other nodes and returns the result, which all of them have received.
pub(super) async fn serve(
    own: Facts,
    launch: &Launch,
    keys: &Keys,
    ports: Ports,
    deadline: Instant,
) -> Lines {
    let (arrived, mut arrivals) = mpsc::channel(64);
    let handshakes = Handshakes::new(MAX_HANDSHAKES);
    let greetings = Arc::new(Semaphore::new(MAX_GREETINGS));
    for listener in ports.listeners {
        let door = Door {
            keys: keys.clone(),
            deadline,
            handshakes: handshakes.clone(),
            greetings: Arc::clone(&greetings),
        };
        tokio::spawn(accept(listener, door, arrived.clone()));
    }
    drop(arrived);
    let mut guests = Vec::new();
    let mut strangers: Vec<String> = Vec::new();
    let most = usize::try_from(launch.shape.commands.1).unwrap_or(MAX_NODES);
    while guests.len() + 1 < most.min(MAX_NODES) {
        match timeout_at(deadline, arrivals.recv()).await {
            Ok(Some(Arrival::Guest(guest))) => {
                // One that lost its connection and came again.
                guests.retain(|it: &Guest| it.facts.probe_answer != guest.facts.probe_answer);
                guests.push(*guest);
            }
            Ok(Some(Arrival::Stranger(address))) => {
                let address = address.to_string();
                if strangers.len() < MAX_OTHERS && !strangers.contains(&address) {
                    strangers.push(address);
                }
            }
            Ok(None) | Err(_) => break,
        }
    }
    // The order of their arrival does not matter.
    guests.sort_by_key(|it| {
        let rank = it.facts.node_rank;
        (rank.is_none(), rank, it.facts.host.clone())
    });
    let mut survey = Survey {
        launch: Some(launch.clone()),
        ports_in_use: ports.in_use,
        other_tokens: strangers,
        ..Survey::default()
    };
    let (nodes, places) = nodes(own, &guests);
    let peers = peers(&nodes, &guests, &places);
    survey.nodes = nodes;
    let mut streams = Vec::new();
    let answered = connect_all(&peers, guests, &places, &mut streams).await;
    for (node, probed) in answered {
        add(&mut survey, node, probed);
    }
    let lines = Lines {
        nodes: (0..survey.nodes.len()).map(|it| survey.name(it)).collect(),
        lines: rules::lines(&survey),
    };
    publish(&lines, streams).await;
    lines
}

/// How guests are received.
#[derive(Clone)]
struct Door {
    keys: Keys,
    deadline: Instant,
    handshakes: Handshakes,
    greetings: Arc<Semaphore>,
}

async fn accept(
    listener: StdTcpListener,
    door: Door,
    arrived: mpsc::Sender<Arrival>,
) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    loop {
        let next = tokio::select! {
            next = listener.accept() => next,
            () = arrived.closed() => return Ok(()),
        };
        let Ok((stream, address)) = next else {
            sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let (handshake, _) = door.handshakes.begin(Host::of_peer(address));
        let (door, arrived) = (door.clone(), arrived.clone());
        tokio::spawn(async move {
            if let Some(arrival) = welcome(stream, address, handshake, &door).await {
                // After the deadline nothing receives it.
                arrived.send(arrival).await.ok();
            }
        });
    }
}

/// Reads the facts of a peer and compares its clock.
async fn welcome(
    stream: TcpStream,
    address: SocketAddr,
    handshake: Handshake,
    door: &Door,
) -> Option<Arrival> {
    let address = address.ip().to_canonical();
    let mut stream = match handshake.complete(door.keys.accept(stream)).await {
        Ok(stream) => stream,
        // A connection without a handshake is a probe, or of another program.
        Err(error) if error.kind() == io::ErrorKind::InvalidData && is_refusal(&error) => {
            return Some(Arrival::Stranger(address));
        }
        Err(_) => return None,
    };
    let _turn = door.greetings.acquire().await.ok()?;
    let hello = receive(&mut stream, FROM_GUEST, HELLO).await.ok()?;
    let Message::Hello(facts) = hello else {
        return None;
    };
    let time_left = door.deadline.saturating_duration_since(Instant::now());
    let remaining = u64::try_from(time_left.as_millis()).unwrap_or(u64::MAX);
    send(&mut stream, &Message::Welcome(remaining)).await.ok()?;
    let clock = clock(&mut stream).await;
    Some(Arrival::Guest(Box::new(Guest {
        stream: Box::new(stream),
        address,
        facts: facts.bounded(),
        clock,
    })))
}

/// Whether a handshake failed because the keys differ.
fn is_refusal(error: &io::Error) -> bool {
    let text = error.to_string().to_ascii_lowercase();
    text.contains("certificate") || text.contains("alert")
}

/// The clock of a peer relative to this one's.
async fn clock(stream: &mut impl Stream) -> Option<Offset> {
    let mut best: Option<Offset> = None;
    for _ in 0..PINGS {
        let before = Timestamp::now().0;
        send(stream, &Message::Ping).await.ok()?;
        let Message::Pong(theirs) = receive(stream, FROM_GUEST, PONG).await.ok()? else {
            return None;
        };
        let offset = offset(before, theirs, Timestamp::now().0)?;
        if best.is_none_or(|it| offset.error_ns < it.error_ns) {
            best = Some(offset);
        }
    }
    best
}

/// The offset of a clock that showed `theirs` between two readings of this one.
fn offset(before: u64, theirs: u64, after: u64) -> Option<Offset> {
    let error = i64::try_from(after.checked_sub(before)?.div_ceil(2)).ok()?;
    let middle = i64::try_from(before).ok()?.checked_add(error)?;
    Some(Offset { ahead_ns: i64::try_from(theirs).ok()?.checked_sub(middle)?, error_ns: error })
}

/// The nodes, this one first, and the node of each guest. Commands on one machine are one node.
fn nodes(own: Facts, guests: &[Guest]) -> (Vec<Node>, Vec<usize>) {
    let mut places: BTreeMap<String, usize> = BTreeMap::from([(own.machine.clone(), 0)]);
    let mut nodes = vec![Node {
        ranks: own.node_rank.into_iter().collect(),
        facts: own,
        commands: 1,
        clock: None,
        is_unprobed: false,
    }];
    let mut of_guests = Vec::new();
    for guest in guests {
        let known = places.get(&guest.facts.machine).filter(|_| !guest.facts.machine.is_empty());
        if let Some(&node) = known {
            nodes[node].ranks.extend(guest.facts.node_rank);
            nodes[node].commands += 1;
            of_guests.push(node);
            continue;
        }
        places.insert(guest.facts.machine.clone(), nodes.len());
        of_guests.push(nodes.len());
        nodes.push(Node {
            facts: guest.facts.clone(),
            ranks: guest.facts.node_rank.into_iter().collect(),
            commands: 1,
            clock: guest.clock,
            is_unprobed: true,
        });
    }
    (nodes, of_guests)
}

/// How each node is reached: at the addresses that NCCL and Gloo choose, else where it came from.
fn peers(nodes: &[Node], guests: &[Guest], places: &[usize]) -> Vec<Peer> {
    let peers = nodes.iter().enumerate().map(|(node, it)| {
        let mut addresses = network::addresses(&it.facts);
        if addresses.is_empty() {
            let matching = places.iter().zip(guests).find(|(place, _)| **place == node);
            addresses.extend(matching.map(|(_, guest)| guest.address));
        }
        Peer {
            node,
            host: it.facts.host.clone(),
            addresses,
            port: it.facts.probe_port,
            answer: it.facts.probe_answer,
        }
    });
    peers.collect()
}

/// Lets all nodes connect to each other; returns what each reports. Streams of guests that answered are
/// kept.
async fn connect_all(
    peers: &[Peer],
    guests: Vec<Guest>,
    places: &[usize],
    streams: &mut Vec<Box<dyn Stream>>,
) -> Vec<(usize, Probed)> {
    let others =
        |node: usize| -> Vec<Peer> { peers.iter().filter(|it| it.node != node).cloned().collect() };
    let mut asked: JoinSet<Option<Answer>> = JoinSet::new();
    let mut known = vec![0];
    for (guest, &node) in guests.into_iter().zip(places) {
        // One command of each machine connects to the others.
        let is_first = !known.contains(&node);
        let roster = if is_first {
            known.push(node);
            Roster { peers: others(node) }
        } else {
            Roster::default()
        };
        let mut stream = guest.stream;
        asked.spawn(async move {
            send(&mut stream, &Message::Roster(roster)).await.ok()?;
            match receive(&mut stream, FROM_GUEST, PROBES).await.ok()? {
                Message::Probed(probed) => Some((node, is_first.then_some(probed), stream)),
                _ => None,
            }
        });
    }
    let mut answered = vec![(0, probe::probe(others(0), None).await)];
    while let Some(done) = asked.join_next().await {
        if let Ok(Some((node, probed, stream))) = done {
            answered.extend(probed.map(|it| (node, it)));
            streams.push(stream);
        }
    }
    answered
}

/// Adds what a node reports about its connections.
fn add(survey: &mut Survey, node: usize, probed: Probed) {
    let count = survey.nodes.len();
    survey.nodes[node].is_unprobed = probed.is_partial;
    let failures: Vec<Failure> = probed
        .failures
        .into_iter()
        .take(probe::MAX_FAILURES)
        .filter(|it| it.to < count && it.to != node)
        .filter(|it| !survey.ports_in_use.contains(&it.port))
        .map(|it| Failure {
            from: node,
            to: it.to,
            port: it.port,
            outcome: it.outcome.bounded(),
            address: super::facts::text(&it.address),
        })
        .collect();
    survey.failures.extend(failures);
    let unresolved =
        probed.unresolved.into_iter().take(count).filter(|&it| it < count).map(|it| (node, it));
    survey.unresolved.extend(unresolved);
}

/// Sends the result to all guests, and waits until they have closed their connections: the side that
/// closes first keeps the port for a while.
async fn publish(lines: &Lines, streams: Vec<Box<dyn Stream>>) {
    let message = Arc::new(Message::Lines(lines.clone()));
    let mut sending = JoinSet::new();
    for mut stream in streams {
        let message = Arc::clone(&message);
        sending.spawn(async move {
            if send(&mut stream, &message).await.is_ok() {
                // Whether the guest closes or sends something, it has the result.
                timeout(CLOSE, stream.read_u8()).await.ok();
            }
        });
    }
    sending.join_all().await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offset_is_known_up_to_half_the_delay() {
        let found = offset(1_000, 5_000, 1_200).unwrap();
        assert_eq!((found.ahead_ns, found.error_ns), (3_900, 100));
        let behind = offset(1_000, 0, 1_000).unwrap();
        assert_eq!((behind.ahead_ns, behind.error_ns), (-1_000, 0));
        assert_eq!(offset(2, 0, 1), None);
        assert_eq!(offset(0, u64::MAX, 1), None);
    }

    #[test]
    fn commands_on_one_machine_are_one_node() {
        let facts = |machine: &str, rank| Facts {
            machine: machine.into(),
            node_rank: Some(rank),
            ..Facts::default()
        };
        let guest = |machine: &str, rank| Guest {
            stream: Box::new(tokio::io::empty()),
            address: [10, 0, 0, 9].into(),
            facts: facts(machine, rank),
            clock: None,
        };
        let guests = [guest("a", 1), guest("b", 2), guest("b", 3), guest("", 4), guest("", 5)];
        let (nodes, places) = nodes(facts("a", 0), &guests);
        assert_eq!(places, [0, 1, 1, 2, 3]);
        let commands: Vec<u32> = nodes.iter().map(|it| it.commands).collect();
        assert_eq!(commands, [2, 2, 1, 1]);
        assert_eq!(nodes[1].ranks, [2, 3]);
        let peers = peers(&nodes, &guests, &places);
        assert_eq!(peers[1].addresses, [IpAddr::from([10, 0, 0, 9])]);
        assert_eq!(peers[0].addresses, [IpAddr::from([10, 0, 0, 9])]);
    }

    #[test]
    fn reports_about_unknown_nodes_are_dropped() {
        let mut survey =
            Survey { nodes: vec![Node::default(), Node::default()], ..Survey::default() };
        let failed = |to| super::super::wire::Failed {
            to,
            port: Port::Ephemeral,
            outcome: network::Outcome::Failed("a\x1b".into()),
            address: "b\n".into(),
        };
        let probed = Probed {
            failures: vec![failed(0), failed(1), failed(7)],
            unresolved: vec![0, 9],
            is_partial: true,
        };
        add(&mut survey, 1, probed);
        assert_eq!(survey.failures.len(), 1);
        assert_eq!(survey.failures[0].address, "b\u{fffd}");
        assert_eq!(survey.unresolved, [(1, 0)]);
        assert!(survey.nodes[1].is_unprobed && !survey.nodes[0].is_unprobed);
    }
}
