//! One query to the RAS subsystem of NCCL, which states how many collectives each rank has launched.
//!
//! Any process of a job answers for the whole job, on a port of the host that jobs share: an answer counts only for
//! the processes that it names. Queries have crashed jobs with some versions of NCCL, and earlier ones answer only as
//! text: these are never asked. No job is asked twice.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::path::Path;
use std::time::{Duration, Instant};

use ddp_doctor_host::proc;
use ddp_doctor_host::sys;
use ddp_doctor_node::stack_reader::maps::Loaded;
use ddp_doctor_proto::Op;
use serde::Deserialize;

use super::environment::Environment;
use super::rank_facts;

mod listener;

/// Where RAS listens if `NCCL_RAS_ADDR` does not name another address.
const ADDRESS: &str = "localhost:28028";
/// Time limit for the connection, and for everything: the address, the connection and the answer.
const CONNECT: Duration = Duration::from_millis(500);
const MAX_ANSWER: Duration = Duration::from_millis(2500);
/// Maximum size of an answer, in bytes: some hundred bytes for each rank of each communicator.
const MAX_BYTES: u64 = 16 << 20;
/// Maximum length of a line before the answer, in bytes.
const MAX_LINE: u64 = 256;
/// Maximum number of ranks in all communicators that are read.
const MAX_RANKS: usize = 65_536;
/// First version that answers in JSON.
const FIRST: Version = (2, 28, 7);
/// Versions whose answer dereferences a null pointer while a communicator is initialized, both included.
const CRASHING: [Version; 2] = [(2, 29, 7), (2, 30, 7)];

/// A version of NCCL.
pub type Version = (u32, u32, u32);

/// The communicators of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// Its communicators.
    pub communicators: Vec<Communicator>,
}

/// A communicator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Communicator {
    /// Its hash, the same on all ranks: "0x9b0a…".
    pub hash: String,
    /// Number of its ranks.
    pub size: u32,
    /// Its ranks that answered.
    pub ranks: Vec<Member>,
}

/// A rank of a communicator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its number in the communicator.
    pub rank: u32,
    /// Its process, as its host numbers it.
    pub pid: u32,
    /// Number of collectives that it has launched, by operation.
    pub counts: Vec<(Op, u64)>,
}

/// Whether RAS of this version may be asked; otherwise the reason.
///
/// # Errors
///
/// Why it may not.
pub fn may_be_asked(version: Option<Version>) -> Result<(), String> {
    let Some(version) = version else {
        return Err("the version of NCCL is unknown".into());
    };
    let (major, minor, patch) = version;
    if version < FIRST {
        return Err(format!("NCCL {major}.{minor}.{patch} does not answer safely in JSON"));
    }
    if (CRASHING[0]..=CRASHING[1]).contains(&version) {
        return Err(format!("a query can crash NCCL {major}.{minor}.{patch}"));
    }
    Ok(())
}

/// The version of NCCL in a process with these files; `None` if it is unknown, or there are several.
#[must_use]
pub fn version_in(pid: u32, images: &[Loaded]) -> Option<Version> {
    let libraries = images.iter().filter(|it| it.file_name().starts_with("libnccl.so"));
    let mut versions = libraries.map(|it| version_of_file(pid, it));
    let first = versions.next()??;
    versions.all(|it| it == Some(first)).then_some(first)
}

/// The version of an NCCL that a process has loaded: from the name of its file, or from the Python package that
/// contains it.
fn version_of_file(pid: u32, library: &Loaded) -> Option<Version> {
    let of_name = library.file_name().strip_prefix("libnccl.so.").and_then(version);
    of_name.or_else(|| {
        // …/site-packages/nvidia/nccl/lib/libnccl.so.2, as the process sees it.
        let packages = Path::new(&library.path).ancestors().nth(4)?;
        version(rank_facts::package_version(pid, packages, "nvidia_nccl_cu")?.split_once('-')?.1)
    })
}

fn version(text: &str) -> Option<Version> {
    let mut parts = text.split('.').map(|it| it.parse::<u32>().ok());
    Some((parts.next()??, parts.next()??, parts.next()??))
}

/// Asks the RAS of a job: `rank` is one of its processes, `environment` has its variables.
///
/// # Errors
///
/// If it does not answer in time, or not in the expected form, or if a process of another user listens there.
pub fn ask(rank: u32, environment: &Environment) -> io::Result<Answer> {
    let address = environment.get("NCCL_RAS_ADDR").unwrap_or(ADDRESS).to_owned();
    let until = Instant::now() + MAX_ANSWER;
    let user = proc::owner(rank).ok_or(io::ErrorKind::NotFound)?;
    // The resolution of a name has no time limit of its own.
    let asked = sys::within(MAX_ANSWER, move || {
        let address = socket_address(&address, user)?;
        let stream = TcpStream::connect_timeout(&address, CONNECT)?;
        let is_here = listener::is_on_this_host(&stream)?;
        if is_here && !listener::is_of(stream.peer_addr()?, user) {
            return Err(io::Error::other("a process of another user listens at its address"));
        }
        converse(Limited { stream, until })
    });
    asked.unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into()))
}

/// The socket address that a job of this user names. For a job of another user no name is resolved, since that user
/// could choose what is asked of which server.
fn socket_address(address: &str, user: u32) -> io::Result<SocketAddr> {
    let is_own = user == sys::user_id();
    let is_local = || {
        address.starts_with("localhost:")
            || address.parse().is_ok_and(|it: SocketAddr| it.ip().is_loopback())
    };
    if !is_own && !is_local() {
        return Err(io::Error::other("the job of another user names another host"));
    }
    let found = address.to_socket_addrs()?.find(|it| is_own || it.ip().is_loopback());
    found.ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// A connection until a point in time.
struct Limited {
    stream: TcpStream,
    until: Instant,
}

impl Limited {
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }

    fn send(&mut self, line: &str) -> io::Result<()> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write_all(format!("{line}\n").as_bytes())
    }
}

impl Read for Limited {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(buffer)
    }
}

fn converse(stream: Limited) -> io::Result<Answer> {
    let mut reader = BufReader::new(stream);
    for (request, answer) in
        [("CLIENT PROTOCOL 2", "SERVER PROTOCOL"), ("TIMEOUT 2", "OK"), ("SET FORMAT json", "OK")]
    {
        reader.get_mut().send(request)?;
        let mut line = String::new();
        (&mut reader).take(MAX_LINE).read_line(&mut line)?;
        if !line.starts_with(answer) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, line.trim().to_owned()));
        }
    }
    reader.get_mut().send("VERBOSE STATUS")?;
    Ok(serde_json::from_reader::<_, Sent>(reader.take(MAX_BYTES))?.into())
}

/// What is read of an answer. A field that is not used takes no memory.
#[derive(Deserialize)]
struct Sent {
    communicators: Vec<SentCommunicator>,
}

#[derive(Deserialize)]
struct SentCommunicator {
    hash: String,
    size: u32,
    ranks: Vec<SentMember>,
}

#[derive(Deserialize)]
struct SentMember {
    rank: u32,
    pid: u32,
    collective_counts: SentCounts,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct SentCounts {
    broadcast: Option<u64>,
    reduce: Option<u64>,
    all_gather: Option<u64>,
    reduce_scatter: Option<u64>,
    all_reduce: Option<u64>,
}

impl From<Sent> for Answer {
    fn from(sent: Sent) -> Self {
        let mut left = MAX_RANKS;
        let communicators = sent.communicators.into_iter().map_while(|it| {
            left = left.checked_sub(it.ranks.len())?;
            Some(Communicator {
                hash: it.hash.chars().take(32).collect(),
                size: it.size,
                ranks: it.ranks.into_iter().map(Member::from).collect(),
            })
        });
        Self { communicators: communicators.collect() }
    }
}

impl From<SentMember> for Member {
    fn from(sent: SentMember) -> Self {
        let sent_counts = &sent.collective_counts;
        let by_op = [
            (Op::Broadcast, sent_counts.broadcast),
            (Op::Reduce, sent_counts.reduce),
            (Op::AllGather, sent_counts.all_gather),
            (Op::ReduceScatter, sent_counts.reduce_scatter),
            (Op::AllReduce, sent_counts.all_reduce),
        ];
        let counts = by_op.into_iter().filter_map(|(op, count)| Some((op, count?)));
        Self { rank: sent.rank, pid: sent.pid, counts: counts.collect() }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// The answer of a job of two ranks in the format of NCCL 2.28.9; rank 1 has launched one AllReduce less.
    const ANSWER: &str = r#"{
  "nccl_version": "2.28.9", "cuda_runtime_version": 13000, "cuda_driver_version": 13000, "communicators_count": 1,
  "communicators": [{"hash": "0x9b0a1c2d", "secondary_hash": "0x1:0x2", "size": 2, "ranks_count": 2,
    "missing_ranks_count": 0, "ranks": [
      {"rank": 0, "host": "a", "pid": 71, "cuda_dev": 0, "nvml_dev": 0, "status": {"init_state": 0, "async_error": 0},
       "collective_counts": {"Broadcast": 2, "Reduce": 0, "AllGather": 0, "ReduceScatter": 0, "AllReduce": 21}},
      {"rank": 1, "host": "a", "pid": 72, "cuda_dev": 0, "nvml_dev": 0, "status": {"init_state": 0, "async_error": 0},
       "collective_counts": {"Broadcast": 2, "Reduce": 0, "AllGather": 0, "ReduceScatter": 0, "AllReduce": 20}}],
    "missing_ranks": []}],
  "ras": {"collection_time_sec": 0.001, "timeouts_count": 0}
}"#;

    #[test]
    fn job_of_another_user_names_no_host() {
        let (own, other) = (sys::user_id(), sys::user_id() + 1);
        for local in ["127.0.0.1:28028", "[::1]:28028", ADDRESS] {
            assert!(socket_address(local, other).unwrap().ip().is_loopback(), "{local}");
        }
        // The last one would be asked of a name server.
        for remote in ["192.0.2.1:28028", "0.0.0.0:28028", "host.invalid:28028"] {
            let error = socket_address(remote, other).unwrap_err();
            assert!(error.to_string().contains("another user names another host"), "{error}");
        }
        assert_eq!(socket_address("192.0.2.1:1", own).unwrap().to_string(), "192.0.2.1:1");
    }

    /// A server that speaks RAS's protocol to one client; returns its address.
    fn server(answer: &'static str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            while let Some(Ok(line)) = lines.next() {
                let text = match line.as_str() {
                    "CLIENT PROTOCOL 2" => "SERVER PROTOCOL 2\n",
                    "VERBOSE STATUS" => {
                        stream.write_all(answer.as_bytes()).unwrap();
                        return;
                    }
                    _ => "OK\n",
                };
                stream.write_all(text.as_bytes()).unwrap();
            }
        });
        address
    }

    fn environment(address: &str) -> Environment {
        let address: &'static str = Box::leak(address.to_owned().into_boxed_str());
        [("NCCL_RAS_ADDR", address)].into_iter().collect()
    }

    #[test]
    fn counts_of_each_rank_are_read_from_the_socket() {
        let answer = ask(std::process::id(), &environment(&server(ANSWER))).unwrap();
        let [communicator] = &answer.communicators[..] else { panic!("{answer:?}") };
        assert_eq!((communicator.hash.as_str(), communicator.size), ("0x9b0a1c2d", 2));
        let counts: Vec<_> = communicator
            .ranks
            .iter()
            .map(|it| (it.rank, it.pid, it.counts.last().copied()))
            .collect();
        assert_eq!(
            counts,
            [(0, 71, Some((Op::AllReduce, 21))), (1, 72, Some((Op::AllReduce, 20)))]
        );
    }

    #[test]
    fn answer_in_another_form_is_an_error() {
        for answer in
            ["", "NCCL version 2.27.5 compiled with CUDA 12.9", "{}", r#"{"communicators": 7}"#]
        {
            assert!(ask(std::process::id(), &environment(&server(answer))).is_err(), "{answer}");
        }
        assert!(ask(std::process::id(), &environment("127.0.0.1:1")).is_err());
    }

    #[test]
    fn versions_that_a_query_can_crash_are_not_asked() {
        for refused in
            [(2, 26, 2), (2, 26, 5), (2, 27, 3), (2, 27, 7), (2, 28, 3), (2, 29, 7), (2, 30, 7)]
        {
            assert!(may_be_asked(Some(refused)).is_err(), "{refused:?}");
        }
        assert!(may_be_asked(None).is_err());
        for asked in [(2, 28, 7), (2, 28, 9), (2, 29, 2), (2, 31, 2), (2, 32, 3)] {
            assert_eq!(may_be_asked(Some(asked)), Ok(()), "{asked:?}");
        }
        assert_eq!(version("2.28.9"), Some((2, 28, 9)));
        assert_eq!(version("2"), None);
    }
}
