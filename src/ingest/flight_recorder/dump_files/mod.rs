//! Finds dumps in files: plain, compressed, or in an archive (`archive`). Logs in an archive are read as well.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::UNIX_EPOCH;

use ddp_doctor_host::input_files;
use ddp_doctor_proto::report::Timestamp;

use super::document::{Document, Invalid};
use super::dump::{Dump, Room};
use crate::Progress;
use crate::logs::{self, Log};

mod archive;

/// Maximum size of a dump, decompressed.
const MAX_BYTES: u64 = 128 << 20;
/// Maximum number of entries of all dumps: 2 000 of each of 16 384 ranks.
const MAX_ENTRIES: usize = 1 << 25;
/// Maximum size of an archive, decompressed.
const MAX_ARCHIVE: u64 = 4 << 30;
/// Maximum number of bytes of all files, decompressed: holes and compression do not multiply the time.
const MAX_ALL: u64 = 64 << 30;
/// What a file contains, members of an archive included, is read up to this many times its size …
const MAX_EXPANSION: u64 = 256;
/// … or up to this many bytes, whatever its size.
const MIN_EXPANDED: u64 = 16 << 20;
/// Number of bytes that are read at once.
const PART: u64 = 1 << 20;

/// A dump and the file that contains it.
#[derive(Debug)]
pub(super) struct Found {
    /// The file, or the archive followed by the path within it.
    pub(super) path: PathBuf,
    pub(super) dump: Dump,
}

/// What a file contains, and what could not be read.
#[derive(Debug, Default)]
pub(super) struct Contents {
    pub(super) dumps: Vec<Found>,
    pub(super) unreadable: Vec<(PathBuf, String)>,
    /// Logs in an archive.
    pub(super) logs: Vec<Log>,
}

/// Whether a file that begins with these bytes, decompressed, may contain dumps.
pub(super) fn is_candidate(head: &[u8]) -> bool {
    let has = |key: &str| head.windows(key.len()).any(|it| it == key.as_bytes());
    let keys = ["\"entries\"", "\"pg_config\"", "\"comm_lib_version\"", "\"nccl_version\""];
    match head {
        // A pickle of protocol 2 or later.
        [0x80, 2..=5, ..] => true,
        _ if archive::is_archive(head) => true,
        // A report of NCCL's RAS subsystem.
        _ if has("\"communicators\"") => false,
        _ => head.trim_ascii_start().first() == Some(&b'{') && keys.iter().any(|key| has(key)),
    }
}

/// Reads all files, several at a time. The result is in the order of the paths.
pub(super) fn read_all(paths: &[PathBuf], progress: &Progress) -> Vec<Contents> {
    progress.found(paths.len());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicUsize::new(0);
    let room = Room::growing(MAX_ENTRIES, MAX_ALL);
    let done: Mutex<Vec<(usize, Contents)>> = Mutex::new(Vec::new());
    let work = || {
        let mut document = Document::default();
        while let Some((at, path)) = {
            let at = next.fetch_add(1, Ordering::Relaxed);
            paths.get(at).map(|path| (at, path))
        } {
            let contents = read(path, &room, &mut document);
            progress.read();
            let mut done = done.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            done.push((at, contents));
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..cores.min(paths.len()) {
            scope.spawn(work);
        }
        work();
    });
    let mut done = done.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    done.sort_unstable_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, contents)| contents).collect()
}

/// Dumps with these names, contents and times at which they were written.
pub(super) fn of_contents(
    dumps: impl IntoIterator<Item = (PathBuf, Vec<u8>, Timestamp)>,
) -> Contents {
    let room = Room::new(MAX_ENTRIES, MAX_ALL);
    let bytes = &Bytes { of_file: Cell::new(0), of_all: &room };
    let mut document = Document::default();
    let mut reader =
        Reader { contents: Contents::default(), room: &room, bytes, document: &mut document };
    for (path, contents, at) in dumps {
        reader.add(path, contents, None, Some(at.0));
    }
    reader.contents
}

/// The dump with these contents, if they are one.
pub(super) fn of_one(contents: Vec<u8>) -> Option<Dump> {
    parse(contents, None, &Room::new(MAX_ENTRIES, MAX_ALL)).ok()
}

/// Reads the dumps of one file.
fn read(path: &Path, room: &Room, document: &mut Document) -> Contents {
    let mut contents = Contents::default();
    let opened = input_files::open(path);
    let result = opened.and_then(|file| {
        let written = since_epoch(file.get_ref());
        room.grow(file.limit());
        let expanded = file.limit().saturating_mul(MAX_EXPANSION).max(MIN_EXPANDED);
        let bytes = &Bytes { of_file: Cell::new(expanded), of_all: room };
        let mut reader = Reader { contents: Contents::default(), room, bytes, document };
        let result = read_stream(path, file, written, &mut reader);
        contents = reader.contents;
        result
    });
    if let Err(error) = result {
        let text = format!("it cannot be read as a Flight Recorder dump: {error}");
        contents.unreadable.push((path.to_owned(), text));
    }
    contents
}

/// Reads the dumps of one file.
struct Reader<'a> {
    contents: Contents,
    /// Room for the entries of all dumps.
    room: &'a Room,
    bytes: &'a Bytes<'a>,
    /// Memory for one dump after the other.
    document: &'a mut Document,
}

/// The bytes that may still be read, decompressed.
struct Bytes<'a> {
    of_file: Cell<u64>,
    of_all: &'a Room,
}

/// When a file was last changed, in nanoseconds since the Unix epoch.
fn since_epoch(file: &File) -> Option<u64> {
    let changed = file.metadata().ok()?.modified().ok()?;
    let since = changed.duration_since(UNIX_EPOCH).ok()?;
    since.as_nanos().try_into().ok()
}

fn read_stream(
    path: &Path,
    file: impl Read,
    written: Option<u64>,
    reader: &mut Reader<'_>,
) -> io::Result<()> {
    let mut stream =
        BufReader::new(Counted { stream: input_files::decompressed(file)?, bytes: reader.bytes });
    // The first bytes remain to be read.
    if archive::is_archive(stream.fill_buf()?) {
        return archive::read(path, stream.take(MAX_ARCHIVE), reader);
    }
    let (bytes, cut) = read_bytes(stream, MAX_BYTES, reader.document.take_memory())?;
    reader.add(path.to_owned(), bytes, cut, written);
    Ok(())
}

/// A stream whose bytes are limited.
struct Counted<'a, R> {
    stream: R,
    bytes: &'a Bytes<'a>,
}

impl<R: Read> Read for Counted<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.stream.read(buffer)?;
        let Some(left) = self.bytes.of_file.get().checked_sub(count as u64) else {
            let text = format!("it expands to more than {MAX_EXPANSION} times its size");
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
        };
        self.bytes.of_file.set(left);
        if self.bytes.of_all.take_bytes(count as u64) {
            return Ok(count);
        }
        let text = format!("{} GiB of dumps were read before it", MAX_ALL >> 30);
        Err(io::Error::new(io::ErrorKind::FileTooLarge, text))
    }
}

/// Reads a stream to its end, or to the first zero byte of a text. Returns why it ends too early, if it does.
fn read_bytes(
    stream: impl Read,
    limit: u64,
    mut bytes: Vec<u8>,
) -> io::Result<(Vec<u8>, Option<String>)> {
    let mut stream = stream.take(limit + 1);
    let mut first = None;
    let result = loop {
        let before = bytes.len();
        let read = (&mut stream).take(PART).read_to_end(&mut bytes);
        let part = &bytes[before..];
        first = first.or_else(|| part.trim_ascii_start().first().copied());
        // JSON has no zero bytes: what follows is a hole.
        let is_text = first == Some(b'{');
        let hole = if is_text { part.iter().position(|&byte| byte == 0) } else { None };
        if let Some(at) = hole {
            bytes.truncate(before + at);
            break Ok(0);
        }
        if !matches!(read, Ok(1..)) {
            break read;
        }
    };
    if bytes.len() as u64 > limit {
        let text = format!("it has more than {} MiB, more than any dump", limit >> 20);
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
    }
    match result {
        Ok(_) => Ok((bytes, None)),
        Err(error) if error.kind() == io::ErrorKind::FileTooLarge => Err(error),
        // A compressed file that is damaged or was cut off: the beginning is there.
        Err(error) if !bytes.is_empty() => Ok((bytes, Some(error.to_string()))),
        Err(error) => Err(error),
    }
}

impl Contents {
    const fn is_empty(&self) -> bool {
        self.dumps.is_empty() && self.unreadable.is_empty() && self.logs.is_empty()
    }
}

impl Reader<'_> {
    fn unreadable(&mut self, path: PathBuf, text: impl Into<String>) {
        self.contents.unreadable.push((path, text.into()));
    }

    /// Reads a member of an archive. Members that are neither dumps nor logs are skipped.
    fn member(&mut self, path: PathBuf, stream: &mut impl Read, size: u64, written: Option<u64>) {
        let result = read_bytes(stream.take(size), MAX_BYTES, self.document.take_memory());
        let (bytes, cut) = match result {
            Ok(read) => read,
            Err(error) => return self.unreadable(path, error.to_string()),
        };
        let (bytes, cut) = if input_files::is_compressed(&bytes) {
            let inner = input_files::decompressed(&bytes[..])
                .map(|stream| Counted { stream, bytes: self.bytes });
            match inner.and_then(|inner| read_bytes(inner, MAX_BYTES, Vec::new())) {
                Ok((inner, damage)) => (inner, damage.or(cut)),
                Err(error) => return self.unreadable(path, error.to_string()),
            }
        } else {
            let missing = (bytes.len() as u64) < size;
            (bytes, cut.or_else(|| missing.then(|| "the archive is cut off".into())))
        };
        let head = &bytes[..bytes.len().min(4096)];
        if is_candidate(head) {
            self.add(path, bytes, cut, written);
        } else if logs::is_text(head) {
            let at = written.map_or_else(Timestamp::now, Timestamp);
            match logs::read_contents(&path, &bytes.into(), at) {
                Ok(log) if log.is_empty() => {}
                Ok(log) => self.contents.logs.push(log),
                Err(error) => self.unreadable(path, error.to_string()),
            }
        }
    }

    fn add(&mut self, path: PathBuf, bytes: Vec<u8>, damage: Option<String>, written: Option<u64>) {
        match decode(bytes, damage, self.room, self.document) {
            Ok(dump) => {
                let dump = Dump { written, ..dump };
                self.contents.dumps.push(Found { path, dump });
            }
            Err(Invalid(text)) => self.unreadable(path, text),
        }
    }
}

/// Reads a dump in either dialect.
pub(super) fn parse(bytes: Vec<u8>, damage: Option<String>, room: &Room) -> Result<Dump, Invalid> {
    decode(bytes, damage, room, &mut Document::default())
}

fn decode(
    bytes: Vec<u8>,
    damage: Option<String>,
    room: &Room,
    document: &mut Document,
) -> Result<Dump, Invalid> {
    room.decode(bytes.len() as u64, || {
        let root = document.read(bytes);
        let dump = root.and_then(|root| {
            let cut = damage.or(document.cut.take());
            Dump::new(document.node(root), cut, room)
        });
        document.clear();
        dump
    })
}

#[cfg(test)]
mod hostile_tests;
#[cfg(test)]
mod tests;
