//! Peers that have the token and send too much, send what is not true, or read nothing; and users without it who open
//! connections.

use bytes::{BufMut, Bytes, BytesMut};
use ddp_doctor::transport::{Keys, Token};
use ddp_doctor_proto::{ProcessState, v1};
use h2::SendStream;
use h2::client::{Connection, ResponseFuture, SendRequest};
use http::Request;
use prost::Message;
use tokio::runtime::Runtime;
use v1::event::Kind;

use super::other_users::OtherUser;
use crate::support::coordinator::Coordinator;
use crate::support::process::IdleConnections;

const TOKEN: &str = "the-token-of-hostile-peers";
const ATTACH: &str = "/ddpdoctor.v1.AgentService/Attach";
const WATCH: &str = "/ddpdoctor.v1.ViewerService/Watch";
/// Length that the messages of a flood announce, in bytes: below the limit of a message.
const ANNOUNCED: usize = 8_000_000;

/// A peer of the coordinator that can send parts of messages.
struct Peer {
    body: SendStream<Bytes>,
    _response: ResponseFuture,
    _requests: SendRequest<Bytes>,
}

impl Peer {
    /// Connects and begins a request.
    async fn begin(coordinator: &Coordinator, path: &str) -> Self {
        let port = coordinator.port();
        let keys = Keys::derive(&Token::new(TOKEN).unwrap()).unwrap();
        let stream = keys.connect("127.0.0.1", port).await.unwrap();
        let (mut requests, connection): (SendRequest<Bytes>, Connection<_>) =
            h2::client::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        let request = Request::post(format!("http://coordinator{path}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(())
            .unwrap();
        let (response, body) = requests.send_request(request, false).unwrap();
        Self { body, _response: response, _requests: requests }
    }

    /// Sends bytes as far as the coordinator takes them; false: it closed the connection.
    async fn send(&mut self, mut bytes: Bytes) -> bool {
        while !bytes.is_empty() {
            self.body.reserve_capacity(bytes.len().min(1 << 16));
            let capacity = std::future::poll_fn(|context| self.body.poll_capacity(context)).await;
            let Some(Ok(capacity)) = capacity else {
                return false;
            };
            let part = bytes.split_to(capacity.min(bytes.len()));
            if self.body.send_data(part, false).is_err() {
                return false;
            }
        }
        true
    }
}

/// A gRPC message that announces more bytes than it has.
fn message(announced: usize, bytes: &[u8]) -> Bytes {
    let mut frame = BytesMut::with_capacity(5 + bytes.len());
    frame.put_u8(0);
    frame.put_u32(announced as u32);
    frame.put_slice(bytes);
    frame.freeze()
}

fn whole(message_: &impl Message) -> Bytes {
    let bytes = message_.encode_to_vec();
    message(bytes.len(), &bytes)
}

fn event(kind: Kind) -> v1::Event {
    v1::Event { kind: Some(kind) }
}

fn hello(job: &str, host: &str) -> Kind {
    Kind::Hello(v1::Hello {
        job: job.into(),
        host: host.into(),
        boot_id: "boot".into(),
        started_unix_ns: 1,
        ..v1::Hello::default()
    })
}

/// A job whose rank was killed.
fn killed(job: &str, host: &str) -> v1::Report {
    let joined = Kind::ProcessJoined(v1::ProcessJoined {
        process: 1,
        rank: Some(0),
        world_size: Some(2),
        pid: 1,
        anchor_unix_ns: 1,
        ..v1::ProcessJoined::default()
    });
    let ended = Kind::ProcessChanged(v1::ProcessChanged {
        process: 1,
        state: i32::from(ProcessState::Dead.number()),
        unix_ns: 2,
        exit_signal: Some(9),
        ..v1::ProcessChanged::default()
    });
    v1::Report {
        sent_unix_ns: 3,
        events: vec![event(hello(job, host)), event(joined), event(ended)],
        ..v1::Report::default()
    }
}

/// Panics unless a job is diagnosed as if nothing else were there.
fn assert_diagnosed(runtime: &Runtime, coordinator: &Coordinator, job: &str) {
    let mut node = runtime.block_on(Peer::begin(coordinator, ATTACH));
    assert!(runtime.block_on(node.send(whole(&killed(job, "usual")))));
    coordinator.until(job, |report| report.findings.iter().any(|it| it.code == "DD201"));
}

#[test]
fn unfinished_messages_of_many_connections_take_bounded_memory() {
    let runtime = Runtime::new().unwrap();
    let coordinator = Coordinator::start_remote(TOKEN);
    let part = message(ANNOUNCED, &vec![0; ANNOUNCED - 1]);
    let (peers, kept) = runtime.block_on(async {
        let (mut peers, mut kept) = (Vec::new(), 0);
        for _ in 0..80 {
            let mut peer = Peer::begin(&coordinator, ATTACH).await;
            kept += usize::from(peer.send(part.clone()).await);
            peers.push(peer);
        }
        (peers, kept)
    });
    assert!((20..40).contains(&kept), "{kept} of {}", peers.len());
    assert_diagnosed(&runtime, &coordinator, "usual");
    let peak = coordinator.peak_mib();
    assert!(peak < 512, "{peak} MiB");
}

#[test]
fn definitions_of_one_node_take_bounded_memory() {
    let runtime = Runtime::new().unwrap();
    let coordinator = Coordinator::start_remote(TOKEN);
    runtime.block_on(async {
        let mut node = Peer::begin(&coordinator, ATTACH).await;
        assert!(node.send(whole(&killed("greedy", "greedy"))).await);
        for batch in 0..500_u32 {
            let site = |number: u32| {
                let id = 1 + batch * 128 + number;
                event(Kind::SiteDefined(v1::SiteDefined {
                    process: 1,
                    id,
                    file: "x".repeat(8000),
                    line: id,
                    ..v1::SiteDefined::default()
                }))
            };
            let report =
                v1::Report { events: (0..128).map(site).collect(), ..v1::Report::default() };
            assert!(node.send(whole(&report)).await);
        }
    });
    assert_diagnosed(&runtime, &coordinator, "usual");
    let peak = coordinator.peak_mib();
    assert!(peak < 448, "{peak} MiB");
    let report =
        coordinator.until("greedy", |report| report.findings.iter().any(|it| it.code == "DD901"));
    assert!(report.findings.iter().any(|it| it.code == "DD201"));
}

#[test]
fn false_and_giant_fields_stay_within_their_job() {
    const GIANT: usize = 7_000_000;
    let runtime = Runtime::new().unwrap();
    let coordinator = Coordinator::start_remote(TOKEN);
    assert_diagnosed(&runtime, &coordinator, "usual");
    let joined = |process: u64, rank: u32| {
        event(Kind::ProcessJoined(v1::ProcessJoined {
            process,
            rank: Some(rank),
            world_size: Some(u32::MAX),
            layer: "c10d".into(),
            anchor_unix_ns: 1,
            ..v1::ProcessJoined::default()
        }))
    };
    let group = |members: Vec<u32>| {
        event(Kind::GroupDefined(v1::GroupDefined {
            process: 1,
            id: 1,
            name: "g".into(),
            members,
            ..v1::GroupDefined::default()
        }))
    };
    let record = |group: u32| {
        event(Kind::Record(v1::Record {
            process: 1,
            group,
            seq: u64::MAX,
            numel: Some(u64::MAX),
            dims: vec![u32::MAX; 100_000],
            shape_known: true,
            ..v1::Record::default()
        }))
    };
    let lies: [Vec<v1::Event>; 6] = [
        vec![joined(1, u32::MAX), joined(1, 0), joined(u64::MAX, 0)],
        vec![joined(1, 0), group((0..1_000_000).collect())],
        vec![joined(1, 0), group(vec![7; 1_000_000])],
        vec![joined(1, 0), record(1), record(u32::MAX)],
        vec![event(Kind::ProcessJoined(v1::ProcessJoined {
            process: 1,
            layer: "l".repeat(GIANT),
            world: "w".repeat(GIANT / 8),
            ..v1::ProcessJoined::default()
        }))],
        vec![event(Kind::JobEnded(v1::JobEnded::default())), joined(1, 0)],
    ];
    let _peers: Vec<Peer> = runtime.block_on(async {
        let mut peers = Vec::new();
        for (number, events) in lies.into_iter().enumerate() {
            let mut peer = Peer::begin(&coordinator, ATTACH).await;
            let hello = event(hello(&format!("false-{number}"), "liar"));
            let events = [vec![hello], events].concat();
            let report = v1::Report { sent_unix_ns: 3, events, ..v1::Report::default() };
            peer.send(whole(&report)).await;
            peers.push(peer);
        }
        // A name of another job, with text that a terminal would obey.
        let mut peer = Peer::begin(&coordinator, ATTACH).await;
        let name = format!("usual\x1b[2J{}", "x".repeat(GIANT));
        peer.send(whole(&killed(&name, "liar"))).await;
        peers.push(peer);
        peers
    });
    assert_diagnosed(&runtime, &coordinator, "later");
    let report = coordinator.reports("usual").pop().unwrap();
    let hosts: Vec<&str> = report.ranks.iter().map(|it| it.host.as_str()).collect();
    assert_eq!((report.job.nodes, hosts), (1, vec!["usual"]), "{report:#?}");
    let peak = coordinator.peak_mib();
    assert!(peak < 448, "{peak} MiB");
    assert!(!coordinator.stderr().contains("\x1b[2J"));
}

#[test]
fn viewers_that_do_not_read_delay_no_job() {
    let runtime = Runtime::new().unwrap();
    let coordinator = Coordinator::start_remote(TOKEN);
    assert_diagnosed(&runtime, &coordinator, "first");
    let request = whole(&v1::WatchRequest { job: "first".into(), ..Default::default() });
    let _viewers: Vec<Peer> = runtime.block_on(async {
        let mut viewers = Vec::new();
        for _ in 0..64 {
            let mut viewer = Peer::begin(&coordinator, WATCH).await;
            assert!(viewer.send(request.clone()).await);
            viewers.push(viewer);
        }
        viewers
    });
    assert_diagnosed(&runtime, &coordinator, "second");
}

#[test]
fn idle_connections_of_another_user_exclude_no_node() {
    let Some(other) = OtherUser::new() else {
        return;
    };
    let runtime = Runtime::new().unwrap();
    let coordinator = Coordinator::start_remote(TOKEN);
    let port = coordinator.port();
    let _idle = IdleConnections::open(other.command("perl"), "127.0.0.1", 700, &[port]);
    for job in ["first", "second", "third"] {
        assert_diagnosed(&runtime, &coordinator, job);
    }
    let log = coordinator.stderr();
    let lines = log.lines().filter(|it| it.contains("too many connections")).count();
    assert_eq!(lines, 1, "{log}");
    assert!(log.contains("most of them from this machine: the oldest of them are closed"), "{log}");
}
