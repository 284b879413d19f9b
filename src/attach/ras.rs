//! One query to the RAS subsystem of NCCL, which states how many collectives each rank has launched.
//!
//! Any process of a job answers for the whole job, on a port of the host that jobs share: an answer counts only for
//! the processes that it names. Queries have crashed jobs with some versions of NCCL, and earlier ones answer only as
//! text: these are never asked. No job is asked twice.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;
use std::time::{Duration, Instant};

use ddp_doctor_proto::Op;
use serde_json::Value;

use super::environment::Environment;
use crate::node::stacks::maps;

/// Where RAS listens if `NCCL_RAS_ADDR` does not name another address.
const ADDRESS: &str = "localhost:28028";
/// Time limit for the connection, and for the whole answer.
const CONNECT: Duration = Duration::from_millis(500);
const MAX_ANSWER: Duration = Duration::from_millis(2500);
/// Maximum size of an answer, in bytes: some hundred bytes for each rank of each communicator.
const MAX_BYTES: u64 = 64 << 20;
/// Maximum number of ranks in all communicators that are read.
const MAX_RANKS: usize = 65_536;
/// First version that answers in JSON.
const FIRST: Version = (2, 28, 7);
/// Versions whose answer dereferences a null pointer while a communicator is initialized, both included.
const CRASHING: [Version; 2] = [(2, 29, 7), (2, 30, 7)];
/// Collectives that RAS counts.
const COUNTED: [(&str, Op); 5] = [
    ("Broadcast", Op::Broadcast),
    ("Reduce", Op::Reduce),
    ("AllGather", Op::AllGather),
    ("ReduceScatter", Op::ReduceScatter),
    ("AllReduce", Op::AllReduce),
];

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

/// The version of NCCL in a process: from the name of its file, or from the Python package that contains it.
#[must_use]
pub fn version_in(pid: u32) -> Option<Version> {
    let images = maps::images(pid).ok()?;
    let library = images.iter().find(|it| it.file_name().starts_with("libnccl.so"))?;
    let of_name = library.file_name().strip_prefix("libnccl.so.").and_then(version);
    of_name.or_else(|| {
        // …/site-packages/nvidia/nccl/lib/libnccl.so.2, as the process sees it.
        let packages = Path::new(&library.path).ancestors().nth(4)?.strip_prefix("/").ok()?;
        let root = Path::new("/proc").join(pid.to_string()).join("root");
        let mut entries = std::fs::read_dir(root.join(packages)).ok()?.flatten();
        entries.find_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let rest = name.strip_prefix("nvidia_nccl_cu")?.strip_suffix(".dist-info")?;
            version(rest.split_once('-')?.1)
        })
    })
}

fn version(text: &str) -> Option<Version> {
    let mut parts = text.split('.').map(|it| it.parse::<u32>().ok());
    Some((parts.next()??, parts.next()??, parts.next()??))
}

/// Asks the RAS of the job with these variables.
///
/// # Errors
///
/// If it does not answer, or not in the expected form.
pub fn ask(environment: &Environment) -> io::Result<Answer> {
    let address = environment.get("NCCL_RAS_ADDR").unwrap_or(ADDRESS);
    let address = address.to_socket_addrs()?.next().ok_or(io::ErrorKind::NotFound)?;
    let until = Instant::now() + MAX_ANSWER;
    let mut stream = TcpStream::connect_timeout(&address, CONNECT)?;
    stream.set_write_timeout(Some(CONNECT))?;
    stream.set_read_timeout(Some(MAX_ANSWER))?;
    let mut reader = BufReader::new(stream.try_clone()?.take(MAX_BYTES));
    for (request, answer) in
        [("CLIENT PROTOCOL 2", "SERVER PROTOCOL"), ("TIMEOUT 2", "OK"), ("SET FORMAT json", "OK")]
    {
        stream.write_all(format!("{request}\n").as_bytes())?;
        let mut line = String::new();
        reader.read_line(&mut line)?;
        if !line.starts_with(answer) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, line.trim().to_owned()));
        }
    }
    stream.write_all(b"VERBOSE STATUS\n")?;
    let mut text = Vec::new();
    let mut part = vec![0; 64 << 10];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        stream.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        let count = reader.read(&mut part)?;
        if count == 0 || left.is_zero() {
            break;
        }
        text.extend(&part[..count]);
    }
    let value = serde_json::from_slice(&text)?;
    parse(&value).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
}

/// The communicators in an answer.
fn parse(answer: &Value) -> Option<Answer> {
    let mut left = MAX_RANKS;
    let communicators = answer.get("communicators")?.as_array()?.iter().filter_map(|it| {
        let ranks = it.get("ranks")?.as_array()?;
        left = left.checked_sub(ranks.len())?;
        Some(Communicator {
            hash: it.get("hash")?.as_str()?.chars().take(32).collect(),
            size: number(it, "size")?,
            ranks: ranks.iter().filter_map(member).collect(),
        })
    });
    Some(Answer { communicators: communicators.collect() })
}

fn member(value: &Value) -> Option<Member> {
    let counts = value.get("collective_counts")?;
    let count = |&(name, op): &(&str, Op)| Some((op, counts.get(name)?.as_u64()?));
    Some(Member {
        rank: number(value, "rank")?,
        pid: number(value, "pid")?,
        counts: COUNTED.iter().filter_map(count).collect(),
    })
}

fn number(value: &Value, name: &str) -> Option<u32> {
    value.get(name)?.as_u64()?.try_into().ok()
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
        let answer = ask(&environment(&server(ANSWER))).unwrap();
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
            assert!(ask(&environment(&server(answer))).is_err(), "{answer}");
        }
        assert!(ask(&environment("127.0.0.1:1")).is_err());
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
