//! Communication between the ranks of a demonstration: the simplest mechanism that blocks like a
//! real collective.
//!
//! Every rank has a connection to the launcher, a pair of sockets that no other process can reach.
//! For a collective it sends a line, `group seq op value`, and waits for the sum. The launcher answers
//! when all ranks have sent the same group, sequence number and op: mismatching calls wait forever, as
//! do calls that an ended rank never makes.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};

/// Calls in which ranks wait: the sum so far, and the connections of the waiting ranks.
type Waiting = HashMap<String, (i64, Vec<UnixStream>)>;

/// Starts a fabric for `ranks` ranks that lives as long as this process. Returns the end of each rank's connection.
pub(super) fn serve(ranks: u32) -> io::Result<Vec<UnixStream>> {
    let waiting = Arc::new(Mutex::new(Waiting::new()));
    let connect = |_| {
        let (stream, end) = UnixStream::pair()?;
        let waiting = Arc::clone(&waiting);
        // An error means that the rank has ended.
        std::thread::spawn(move || serve_rank(stream, ranks, &waiting).ok());
        Ok(end)
    };
    (0..ranks).map(connect).collect()
}

fn serve_rank(stream: UnixStream, ranks: u32, waiting: &Mutex<Waiting>) -> io::Result<()> {
    for line in BufReader::new(stream.try_clone()?).lines() {
        let line = line?;
        let (call, value) = line.rsplit_once(' ').ok_or(io::ErrorKind::InvalidData)?;
        let value: i64 = value.parse().map_err(io::Error::other)?;
        let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let (sum, streams) = waiting.entry(call.to_owned()).or_default();
        *sum += value;
        streams.push(stream.try_clone()?);
        if streams.len() == ranks as usize
            && let Some((sum, streams)) = waiting.remove(call)
        {
            for mut stream in streams {
                // A rank that has ended must not block the others.
                writeln!(stream, "{sum}").ok();
            }
        }
    }
    Ok(())
}

/// A rank's connection to the fabric.
#[derive(Debug)]
pub(super) struct Connection {
    stream: BufReader<UnixStream>,
    calls: HashMap<&'static str, u64>,
}

impl Connection {
    pub(super) fn new(end: UnixStream) -> Self {
        Self { stream: BufReader::new(end), calls: HashMap::new() }
    }

    /// The connection that the launcher passed as standard input.
    pub(super) fn inherited() -> io::Result<Self> {
        Ok(Self::new(io::stdin().as_fd().try_clone_to_owned()?.into()))
    }

    /// A collective: blocks until every rank makes the same call, and returns the sum of their
    /// values.
    pub(super) fn collective(
        &mut self,
        group: &'static str,
        op: &str,
        value: i64,
    ) -> io::Result<i64> {
        let seq = self.calls.entry(group).or_default();
        *seq += 1;
        let line = format!("{group} {seq} {op} {value}\n");
        self.stream.get_mut().write_all(line.as_bytes())?;
        let mut answer = String::new();
        if self.stream.read_line(&mut answer)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        answer.trim_end().parse().map_err(io::Error::other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn collective_returns_the_sum_to_all_ranks() {
        let ranks: Vec<_> = (0..)
            .zip(serve(3).unwrap())
            .map(|(rank, end)| {
                std::thread::spawn(move || {
                    let mut connection = Connection::new(end);
                    [1, 10].map(|n| connection.collective("world", "sum", rank * n).unwrap())
                })
            })
            .collect();
        for rank in ranks {
            assert_eq!(rank.join().unwrap(), [3, 30]);
        }
    }
}
