//! Communication between the ranks of a demonstration: the simplest mechanism that blocks like a
//! real collective.
//!
//! Every rank has a connection to the launcher. For a collective it sends a line, `group seq op
//! value`, and waits for the sum. The launcher answers when all ranks have sent the same group,
//! sequence number and op: mismatching calls wait forever, as do calls that an ended rank never
//! makes.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

/// Calls in which ranks wait: the sum so far, and the connections of the waiting ranks.
type Waiting = HashMap<String, (i64, Vec<TcpStream>)>;

/// Starts a fabric for `ranks` ranks that lives as long as this process. Returns its address.
pub(super) fn serve(ranks: u32) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    let waiting = Arc::new(Mutex::new(Waiting::new()));
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let waiting = waiting.clone();
            // An error means that the rank has ended.
            std::thread::spawn(move || serve_rank(stream, ranks, &waiting).ok());
        }
    });
    Ok(address)
}

fn serve_rank(stream: TcpStream, ranks: u32, waiting: &Mutex<Waiting>) -> io::Result<()> {
    stream.set_nodelay(true)?;
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
    stream: BufReader<TcpStream>,
    calls: HashMap<&'static str, u64>,
}

impl Connection {
    pub(super) fn new(fabric: &str) -> io::Result<Self> {
        let stream = TcpStream::connect(fabric)?;
        stream.set_nodelay(true)?;
        Ok(Self { stream: BufReader::new(stream), calls: HashMap::new() })
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
        let fabric = serve(3).unwrap().to_string();
        let ranks: Vec<_> = (0..3)
            .map(|rank| {
                let fabric = fabric.clone();
                std::thread::spawn(move || {
                    let mut connection = Connection::new(&fabric).unwrap();
                    [1, 10].map(|n| connection.collective("world", "sum", rank * n).unwrap())
                })
            })
            .collect();
        for rank in ranks {
            assert_eq!(rank.join().unwrap(), [3, 30]);
        }
    }
}
