//! What nodes exchange: JSON documents, each after its length in bytes (4 bytes, big-endian).

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use super::facts::{self, Facts};
use super::network::{Outcome, Port};
use super::rules::Line;

/// Maximum length of a document from a guest, in bytes.
pub(super) const FROM_GUEST: u32 = 1 << 20;
/// Maximum length of a document from the host, in bytes.
pub(super) const FROM_HOST: u32 = 16 << 20;
/// Time limit for writing one document.
const WRITE: Duration = Duration::from_secs(10);
/// Maximum number of lines and names that a guest accepts.
const MAX_LINES: usize = 16_384;

/// A document. The host is the node where the nodes meet; the guests are the others.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Message {
    /// Guest: its facts.
    Hello(Box<Facts>),
    /// Host: for how many milliseconds it still waits for others.
    Welcome(u64),
    /// Host: asks for the time.
    Ping,
    /// Guest: its clock, in nanoseconds since 1970.
    Pong(u64),
    /// Host: the nodes that the guest connects to.
    Roster(Roster),
    /// Guest: what happened.
    Probed(Probed),
    /// Host: all lines, for all nodes.
    Lines(Lines),
}

/// The nodes that a guest connects to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Roster {
    /// Peers by their index in the survey, without the guest.
    pub(super) peers: Vec<Peer>,
}

/// How a peer is reached.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Peer {
    /// Index of the node in the survey.
    pub(super) node: usize,
    /// Name of its host.
    pub(super) host: String,
    /// Its addresses.
    pub(super) addresses: Vec<IpAddr>,
    /// Port of its probes.
    pub(super) port: u16,
    /// What it answers there.
    pub(super) answer: u64,
}

/// What happened to the connections of a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Probed {
    /// Connections that failed.
    pub(super) failures: Vec<Failed>,
    /// Peers whose names do not resolve, by index.
    pub(super) unresolved: Vec<usize>,
    /// Whether time was too short for all peers.
    pub(super) is_partial: bool,
}

/// A connection that failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Failed {
    /// Index of the peer.
    pub(super) to: usize,
    /// Which port.
    pub(super) port: Port,
    /// What happened.
    pub(super) outcome: Outcome,
    /// Address and port.
    pub(super) address: String,
}

/// The result for all nodes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Lines {
    /// Names of the nodes.
    pub(super) nodes: Vec<String>,
    /// The lines, the gravest first.
    pub(super) lines: Vec<Line>,
}

impl Lines {
    /// The same with bounded texts and lists, and without control characters.
    pub(super) fn bounded(mut self) -> Self {
        self.nodes.truncate(MAX_LINES);
        self.lines.truncate(MAX_LINES);
        self.nodes.iter_mut().for_each(|it| *it = facts::text(it));
        for line in &mut self.lines {
            line.nodes.truncate(MAX_LINES);
            line.nodes.iter_mut().for_each(|it| *it = facts::text(it));
            line.check = facts::text(&line.check);
            line.reason = facts::long_text(&line.reason);
            line.fix = line.fix.as_deref().map(facts::long_text);
        }
        self
    }
}

/// Sends one document.
pub(super) async fn send<S>(stream: &mut S, message: &Message) -> io::Result<()>
where
    S: AsyncWrite + Unpin,
{
    let text = serde_json::to_vec(message)?;
    let length = u32::try_from(text.len()).map_err(io::Error::other)?;
    let write = async {
        stream.write_all(&length.to_be_bytes()).await?;
        stream.write_all(&text).await?;
        stream.flush().await
    };
    timeout(WRITE, write).await?
}

/// Receives one document of limited length within a time limit.
pub(super) async fn receive<S>(stream: &mut S, most: u32, limit: Duration) -> io::Result<Message>
where
    S: AsyncRead + Unpin,
{
    let read = async {
        let length = stream.read_u32().await?;
        if length > most {
            let error = format!("a document of {length} bytes is too long");
            return Err(io::Error::new(io::ErrorKind::InvalidData, error));
        }
        // Memory grows with what arrives, not with what is announced.
        let mut text = Vec::new();
        let read = (&mut *stream).take(length.into()).read_to_end(&mut text).await?;
        if read < length as usize {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(serde_json::from_slice(&text)?)
    };
    timeout(limit, read).await?
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::Level;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test]
    async fn documents_are_received_as_sent() {
        let (mut one, mut other) = tokio::io::duplex(1 << 16);
        let message = Message::Hello(Box::default());
        send(&mut one, &message).await.unwrap();
        assert_eq!(receive(&mut other, FROM_GUEST, SECOND).await.unwrap(), message);
    }

    #[tokio::test]
    async fn invalid_documents_are_errors() {
        for (bytes, reason) in [
            (&[0xff, 0xff, 0xff, 0xff][..], "too long"),
            (&[0, 0, 0, 9, b'{'], ""),
            (&[0, 0, 0, 2, b'{', b'}'], ""),
            (&[0, 0, 0, 1, 0xff], ""),
            (&[0, 0], ""),
        ] {
            let (mut one, mut other) = tokio::io::duplex(64);
            one.write_all(bytes).await.unwrap();
            drop(one);
            let error = receive(&mut other, FROM_GUEST, SECOND).await.unwrap_err();
            assert!(error.to_string().contains(reason), "{error}");
        }
        let (_one, mut other) = tokio::io::duplex(64);
        let limit = Duration::from_millis(1);
        assert!(receive(&mut other, FROM_GUEST, limit).await.is_err());
    }

    #[test]
    fn lines_of_others_are_bounded() {
        let line = Line {
            level: Level::Info,
            check: "a\x1b".into(),
            nodes: vec!["b\n".into()],
            reason: "c\r".repeat(100_000),
            fix: Some("d\u{202e}".into()),
        };
        let lines = Lines { nodes: vec!["e\t".into()], lines: vec![line] };
        let it = lines.bounded();
        let text = format!("{it:?}");
        assert!(!text.contains(['\x1b', '\n', '\r', '\u{202e}', '\t']), "{text}");
        assert!(text.len() < 20_000, "{}", text.len());
    }
}
