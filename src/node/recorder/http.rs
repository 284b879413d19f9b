//! A question over HTTP/1.1 on a Unix socket: one request, one answer of known or open length.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// Longest head of an answer.
const MAX_HEAD: usize = 16 << 10;
/// Most header lines of an answer.
const MAX_HEADERS: usize = 64;

/// Posts nothing to a path and returns the body of the answer.
///
/// # Errors
///
/// When there is no answer within `patience`, it is longer than `limit`, no HTTP, or a refusal: of kind
/// `NotFound` where there is no such path.
pub(super) fn post(
    socket: &Path,
    path: &str,
    patience: Duration,
    limit: usize,
) -> io::Result<Vec<u8>> {
    let deadline = Instant::now() + patience;
    let mut stream = UnixStream::connect(socket)?;
    stream.set_write_timeout(Some(patience))?;
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    );
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    let mut part = [0; 64 << 10];
    let mut head = None;
    loop {
        if head.is_none() {
            head = head_of(&answer)?;
        }
        if let Some(Head { begins, length }) = head {
            let got = answer.len() - begins;
            if length.is_some_and(|length| length > limit) || got > limit {
                return Err(invalid("the answer is too long"));
            }
            if length.is_some_and(|length| got >= length) {
                let ends = begins + length.unwrap_or(got);
                return Ok(answer[begins..ends].to_vec());
            }
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut part) {
            Ok(0) => {
                let whole = head.filter(|head| head.length.is_none());
                let begins = whole.ok_or(io::ErrorKind::UnexpectedEof)?.begins;
                return Ok(answer.split_off(begins));
            }
            Ok(n) => answer.extend_from_slice(&part[..n]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(io::ErrorKind::TimedOut.into());
            }
            Err(error) => return Err(error),
        }
    }
}

#[derive(Clone, Copy)]
struct Head {
    /// Where the body begins.
    begins: usize,
    /// Its length; `None`: until the connection ends.
    length: Option<usize>,
}

/// The head of an answer; `None`: it is not all there yet.
fn head_of(answer: &[u8]) -> io::Result<Option<Head>> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut response = httparse::Response::new(&mut headers);
    let begins = match response.parse(answer) {
        Ok(httparse::Status::Complete(begins)) => begins,
        Ok(httparse::Status::Partial) if answer.len() <= MAX_HEAD => return Ok(None),
        Ok(httparse::Status::Partial) | Err(_) => return Err(invalid("the answer is no HTTP")),
    };
    match response.code {
        Some(200) => {}
        Some(404) => return Err(io::ErrorKind::NotFound.into()),
        _ => return Err(invalid("the question was refused")),
    }
    let named = |name: &str| {
        let mut headers = response.headers.iter();
        let found = headers.find(|header| header.name.eq_ignore_ascii_case(name))?;
        std::str::from_utf8(found.value).ok()
    };
    if named("Transfer-Encoding").is_some() {
        return Err(invalid("the answer comes in pieces"));
    }
    let length = match named("Content-Length") {
        Some(length) => {
            let length = length.trim().parse().ok();
            Some(length.ok_or_else(|| invalid("the answer has no length"))?)
        }
        None => None,
    };
    Ok(Some(Head { begins, length }))
}

fn invalid(text: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}
