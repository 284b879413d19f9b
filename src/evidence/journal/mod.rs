//! The journal: the events of a node, on disk.
//!
//! ```text
//! "DDPJ" u32 version            header, 8 bytes
//! u32 length, u32 crc32, bytes  a frame: one protobuf `Report`; numbers are little-endian
//! …
//! ```
//!
//! Files are append-only, and a journal may be several of them ([`segments`]). A process killed during a write leaves at most an incomplete frame at
//! the end: the reader returns the complete frames and reports what it skipped.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufReader, Read, Take, Write};
use std::path::Path;

use ddp_doctor_host::files::{self, Dir};
use ddp_doctor_proto::v1::Report;
use prost::Message;
use prost::encoding::{self, DecodeContext, WireType};

mod kept;
pub mod segments;

pub use kept::Kept;
pub use segments::{FIRST, LATER, SegmentReader, Segments};

/// First bytes of every journal.
const MAGIC: [u8; 4] = *b"DDPJ";
/// Version of the format.
const VERSION: u32 = 1;
/// Bytes of the header.
pub const HEADER: usize = 8;
/// Bytes before the message in a frame.
const FRAME_HEADER: usize = 8;
/// Maximum size of a frame, in bytes. Batches are kept far below it.
pub const MAX_FRAME: usize = 8 << 20;

/// Maximum number of messages and texts in a frame, nested ones included. An empty message takes two bytes in the file
/// and hundreds once it is decoded; batches have some thousands of events.
const MAX_PARTS: usize = 262_144;
/// Depth up to which they are counted, beyond that of any message.
const MAX_DEPTH: usize = 16;

/// Why a journal cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// An operation on the file failed.
    #[error("the journal cannot be used: {0}")]
    Io(#[from] io::Error),
    /// The file is not a journal.
    #[error("this is not a journal")]
    NotAJournal,
    /// The journal has a later format version.
    #[error("the journal has format version {0}; this program reads up to {VERSION}")]
    Version(u32),
    /// The limit of the journal, in MiB, has no room for what every segment repeats.
    #[error("its limit of {0} MiB has no room for the definitions of its processes")]
    Limit(u64),
}

/// Appends reports to a journal.
#[derive(Debug)]
pub struct Writer {
    file: File,
    frame: Vec<u8>,
    written: u64,
}

impl Writer {
    /// Creates a new journal.
    ///
    /// # Errors
    ///
    /// Fails if the file exists, or cannot be created or written.
    pub fn create(path: &Path) -> Result<Self, JournalError> {
        let (dir, name) = files::parent(path)?;
        Self::create_in(&dir, name)
    }

    /// Creates a new journal in an open directory.
    ///
    /// # Errors
    ///
    /// Like [`Self::create`].
    pub fn create_in(dir: &Dir, name: &OsStr) -> Result<Self, JournalError> {
        let mut file = dir.new_file(name)?;
        let mut header = [0; HEADER];
        header[..4].copy_from_slice(&MAGIC);
        header[4..].copy_from_slice(&VERSION.to_le_bytes());
        file.write_all(&header)?;
        Ok(Self { file, frame: Vec::new(), written: HEADER as u64 })
    }

    /// Appends one report with a single write, unless it has no content.
    ///
    /// # Errors
    ///
    /// Fails if the write fails. Nothing may be appended afterwards: the file may end with an
    /// incomplete frame, after which further frames would be lost.
    pub fn append(&mut self, report: &Report) -> Result<(), JournalError> {
        self.frame.clear();
        self.frame.resize(FRAME_HEADER, 0);
        report
            .encode(&mut self.frame)
            .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
        let length = self.frame.len() - FRAME_HEADER;
        if length > MAX_FRAME {
            return Err(io::Error::from(io::ErrorKind::FileTooLarge).into());
        }
        if length == 0 {
            return Ok(());
        }
        let crc = crc32fast::hash(&self.frame[FRAME_HEADER..]);
        self.frame[..4].copy_from_slice(&(length as u32).to_le_bytes());
        self.frame[4..8].copy_from_slice(&crc.to_le_bytes());
        if let Err(error) = self.file.write_all(&self.frame) {
            // If this fails too, the reader skips the incomplete frame.
            drop(self.file.set_len(self.written));
            return Err(error.into());
        }
        self.written += self.frame.len() as u64;
        Ok(())
    }

    /// Size of the file in bytes.
    #[must_use]
    pub const fn length(&self) -> u64 {
        self.written
    }

    /// Size of the journal in bytes after this report is appended.
    #[must_use]
    pub fn length_with(&self, report: &Report) -> u64 {
        self.written + (FRAME_HEADER + report.encoded_len()) as u64
    }

    /// The open file.
    #[must_use]
    pub const fn file(&self) -> &File {
        &self.file
    }

    /// Flushes everything appended to the disk.
    ///
    /// # Errors
    ///
    /// Fails if the disk does not confirm it.
    pub fn sync(&self) -> Result<(), JournalError> {
        Ok(self.file.sync_data()?)
    }
}

/// Reads the reports of a journal in order.
#[derive(Debug)]
pub struct Reader<R> {
    from: R,
    at: u64,
    skipped: Option<Skipped>,
    done: bool,
}

/// The end of a journal that was skipped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// Offset in bytes from the start of the file.
    pub at: u64,
    /// Reason.
    pub reason: &'static str,
}

impl std::fmt::Display for Skipped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the journal was read up to byte {}: {}", self.at, self.reason)
    }
}

impl Reader<BufReader<Take<File>>> {
    /// Opens a journal.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be read, or is not a journal of a supported version.
    pub fn open(path: &Path) -> Result<Self, JournalError> {
        Self::new(BufReader::new(ddp_doctor_host::input_files::open(path)?))
    }
}

impl<R: Read> Reader<R> {
    /// Reads the header.
    ///
    /// # Errors
    ///
    /// Fails like [`Reader::open`].
    pub fn new(mut from: R) -> Result<Self, JournalError> {
        let mut header = [0; HEADER];
        if fill(&mut from, &mut header)? < HEADER || header[..4] != MAGIC {
            return Err(JournalError::NotAJournal);
        }
        let version = u32_at(&header, 4);
        if version == 0 || version > VERSION {
            return Err(JournalError::Version(version));
        }
        Ok(Self { from, at: HEADER as u64, skipped: None, done: false })
    }

    /// Reads the next report; `None`: the end, or the rest is unreadable, see [`Reader::skipped`].
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be read.
    pub fn read(&mut self) -> Result<Option<Report>, JournalError> {
        if self.done {
            return Ok(None);
        }
        let mut header = [0; FRAME_HEADER];
        match fill(&mut self.from, &mut header)? {
            0 => return Ok(self.end(None)),
            FRAME_HEADER => {}
            _ => return Ok(self.end(Some("the last frame is cut off"))),
        }
        let length = u32_at(&header, 0) as usize;
        if length == 0 {
            // Blocks that the file system never wrote would parse as frames without content.
            return Ok(self.end(Some("a frame is empty")));
        }
        if length > MAX_FRAME {
            return Ok(self.end(Some("a frame exceeds the maximum size")));
        }
        // `take` reads only existing bytes: a wrong length costs no memory.
        let mut bytes = Vec::new();
        (&mut self.from).take(length as u64).read_to_end(&mut bytes)?;
        if bytes.len() < length {
            return Ok(self.end(Some("the last frame is cut off")));
        }
        if crc32fast::hash(&bytes) != u32_at(&header, 4) {
            return Ok(self.end(Some("a frame's checksum is wrong")));
        }
        if parts_of(&bytes, MAX_DEPTH) > MAX_PARTS {
            return Ok(self.end(Some("a frame has too many parts")));
        }
        let Ok(report) = Report::decode(bytes.as_slice()) else {
            return Ok(self.end(Some("a frame contains no report")));
        };
        self.at += (FRAME_HEADER + length) as u64;
        Ok(Some(report))
    }

    /// The skipped end, if any, once [`Reader::read`] has returned `None`.
    #[must_use]
    pub const fn skipped(&self) -> Option<&Skipped> {
        self.skipped.as_ref()
    }

    fn end(&mut self, reason: Option<&'static str>) -> Option<Report> {
        self.done = true;
        self.skipped = reason.map(|reason| Skipped { at: self.at, reason });
        None
    }
}

/// Number of messages and texts in an encoded message, up to the first damage. A text that looks like a message is
/// counted as one.
fn parts_of(mut bytes: &[u8], depth: usize) -> usize {
    let mut parts = 0;
    while let Ok((field, kind)) = encoding::decode_key(&mut bytes) {
        if kind != WireType::LengthDelimited {
            match encoding::skip_field(kind, field, &mut bytes, DecodeContext::default()) {
                Ok(()) => continue,
                Err(_) => break,
            }
        }
        let length = encoding::decode_varint(&mut bytes).ok().and_then(|it| it.try_into().ok());
        let Some((inner, rest)) = length.and_then(|length| bytes.split_at_checked(length)) else {
            break;
        };
        parts += 1 + if depth > 1 { parts_of(inner, depth - 1) } else { 0 };
        bytes = rest;
    }
    parts
}

/// Fills the buffer as far as possible. Returns the number of bytes read.
fn fill(from: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match from.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(filled)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[cfg(test)]
mod tests {
    use ddp_doctor_proto::v1::{
        self, Event, JobEnded, RecordsLost, Stacks, ThreadStack, event::Kind,
    };

    use super::*;

    fn reports() -> Vec<Report> {
        let event = |kind| Event { kind: Some(kind) };
        vec![
            Report {
                sent_unix_ns: 5,
                events: vec![
                    event(Kind::RecordsLost(RecordsLost { process: 1, count: 300 })),
                    event(Kind::JobEnded(JobEnded { unix_ns: 9, status: 137, reason: None })),
                ],
                pong: None,
                segment: None,
            },
            Report { sent_unix_ns: 6, ..Report::default() },
            Report { sent_unix_ns: 7, ..Report::default() },
        ]
    }

    fn journal_of(report: &Report) -> Vec<u8> {
        let frame = report.encode_to_vec();
        let mut bytes = [&MAGIC[..], &VERSION.to_le_bytes()].concat();
        bytes.extend((frame.len() as u32).to_le_bytes());
        bytes.extend(crc32fast::hash(&frame).to_le_bytes());
        bytes.extend(frame);
        bytes
    }

    #[test]
    fn number_of_earlier_events_may_be_any() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal.ddpj");
        let mut writer = Writer::create(&path).unwrap();
        let segment = Some(v1::Segment { number: 1, events_before: u64::MAX });
        writer.append(&Report { sent_unix_ns: 1, segment, ..Report::default() }).unwrap();
        for report in reports() {
            writer.append(&report).unwrap();
        }
        let mut reader = SegmentReader::open([path]).unwrap();
        let mut events = 0;
        while let Some(report) = reader.read().unwrap() {
            events += report.events.len();
        }
        assert!(events >= 2, "those of the reports, and a note of the gap");
    }

    #[test]
    fn frame_with_too_many_parts_is_not_decoded() {
        let events = |count| Report { events: vec![Event::default(); count], ..Report::default() };
        let threads = |count| {
            let stacks =
                Stacks { threads: vec![ThreadStack::default(); count], ..Stacks::default() };
            Report { events: vec![Event { kind: Some(Kind::Stacks(stacks)) }], ..Report::default() }
        };
        let read = |report: &Report| {
            let bytes = journal_of(report);
            let mut reader = Reader::new(&bytes[..]).unwrap();
            let found = reader.read().unwrap();
            assert_eq!(reader.skipped().is_none(), found.is_some());
            found
        };
        for report in [events(MAX_PARTS), threads(MAX_PARTS - 2)] {
            assert!(read(&report).is_some());
        }
        for report in [events(MAX_PARTS + 1), threads(MAX_PARTS - 1)] {
            assert!(read(&report).is_none());
        }
    }

    fn journal() -> Vec<u8> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal.ddpj");
        let mut writer = Writer::create(&path).unwrap();
        for report in reports() {
            writer.append(&report).unwrap();
        }
        writer.sync().unwrap();
        std::fs::read(path).unwrap()
    }

    fn read_all(bytes: &[u8]) -> Result<(Vec<Report>, Option<Skipped>), JournalError> {
        let mut reader = Reader::new(bytes)?;
        let mut found = Vec::new();
        while let Some(report) = reader.read()? {
            found.push(report);
        }
        Ok((found, reader.skipped().cloned()))
    }

    #[test]
    fn written_reports_are_read_back() {
        let (found, skipped) = read_all(&journal()).unwrap();
        assert_eq!(found, reports());
        assert_eq!(skipped, None);
    }

    #[test]
    fn cut_journal_yields_complete_frames_and_reports_the_cut() {
        let bytes = journal();
        let mut ends = vec![HEADER];
        for report in reports() {
            ends.push(ends[ends.len() - 1] + FRAME_HEADER + report.encoded_len());
        }
        for cut in 0..bytes.len() {
            let result = read_all(&bytes[..cut]);
            if cut < HEADER {
                assert!(matches!(result, Err(JournalError::NotAJournal)), "{cut}");
                continue;
            }
            let (found, skipped) = result.unwrap();
            let whole = ends.iter().filter(|&&end| end <= cut).count() - 1;
            assert_eq!(found, reports()[..whole], "{cut}");
            assert_eq!(skipped.is_some(), !ends.contains(&cut), "{cut}");
            if let Some(skipped) = skipped {
                assert_eq!(skipped.at as usize, ends[whole]);
            }
        }
    }

    #[test]
    fn zeros_are_no_frames() {
        let mut bytes = journal();
        let end = bytes.len();
        bytes.resize(end + 4096, 0);
        let (found, skipped) = read_all(&bytes).unwrap();
        assert_eq!(found, reports());
        assert_eq!(skipped.unwrap().at as usize, end);
    }

    #[test]
    fn corrupt_byte_affects_no_earlier_frame() {
        let bytes = journal();
        for at in HEADER..bytes.len() {
            let mut bytes = bytes.clone();
            bytes[at] ^= 0x41;
            let (found, skipped) = read_all(&bytes).unwrap();
            assert!(skipped.is_some(), "{at}");
            assert_eq!(found, reports()[..found.len()], "{at}");
        }
    }

    #[test]
    fn later_version_is_rejected_with_its_number() {
        let mut bytes = journal();
        bytes[4] = 2;
        let error = read_all(&bytes).unwrap_err();
        assert!(error.to_string().contains("format version 2"), "{error}");
    }
}
