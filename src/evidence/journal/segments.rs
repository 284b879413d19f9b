//! A journal of bounded size: segments, of which the oldest but the first are dropped.
//!
//! ```text
//! RUN_DIR/journal.ddpj            the first segment, which stays
//! RUN_DIR/journal/000002.ddpj     dropped once the journal reaches its limit
//! RUN_DIR/journal/000003.ddpj
//! …
//! ```
//!
//! A later segment begins with the events of [`Kept`], in reports with `segment`. A reader passes them
//! on only if it has not read everything before them.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::{BufReader, Take};
use std::path::PathBuf;

use ddp_doctor_host::files::Dir;
use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_proto::v1::{Event, Report, Segment, event::Kind};
use ddp_doctor_proto::{NoteKind, v1};
use prost::Message;

use super::kept::Kept;
use super::{FRAME_HEADER, HEADER, JournalError, Reader, Skipped, Writer};

/// Name of the first segment in a run directory.
pub const FIRST: &str = "journal.ddpj";
/// Folder of the later segments in a run directory.
pub const LATER: &str = "journal";
/// Number of segments in which the limit of a journal is divided.
const SEGMENTS: u64 = 8;
/// Number of repeated events in a report.
const REPEATED_AT_ONCE: usize = 256;

/// Writes a journal of bounded size.
#[derive(Debug)]
pub struct Segments {
    /// The run directory.
    dir: Dir,
    writer: Writer,
    kept: Kept,
    /// Maximum size of all segments together, in bytes.
    limit: u64,
    /// Maximum size of the current segment.
    segment_limit: u64,
    /// Number of the current segment, from 1.
    number: u32,
    /// Size of the first segment, once it is complete.
    first: u64,
    /// Number and size of the complete later segments.
    complete: VecDeque<(u32, u64)>,
    /// Number of events so far, without repeated ones.
    events: u64,
}

impl Segments {
    /// Creates the journal of a run directory. All segments together stay below `limit` bytes.
    ///
    /// # Errors
    ///
    /// As [`Writer::create`].
    pub fn create(dir: &Dir, limit: u64) -> Result<Self, JournalError> {
        Ok(Self {
            dir: dir.clone(),
            writer: Writer::create_in(dir, FIRST.as_ref())?,
            kept: Kept::default(),
            limit,
            segment_limit: limit / SEGMENTS,
            number: 1,
            first: 0,
            complete: VecDeque::new(),
            events: 0,
        })
    }

    /// Appends one report, and begins a new segment before if the current one is full.
    ///
    /// # Errors
    ///
    /// Fails if the write fails, or the limit has no room for what a segment repeats. Nothing may be
    /// appended afterwards.
    pub fn append(&mut self, report: &Report) -> Result<(), JournalError> {
        if self.writer.length_with(report) > self.segment_limit {
            self.begin_segment(report.sent_unix_ns)?;
        }
        self.writer.append(report)?;
        for kind in report.events.iter().filter_map(|event| event.kind.as_ref()) {
            self.kept.add(kind);
        }
        self.events += report.events.len() as u64;
        Ok(())
    }

    /// Size of all segments in bytes after this report is appended.
    #[must_use]
    pub fn length_with(&self, report: &Report) -> u64 {
        self.complete_bytes() + self.writer.length_with(report)
    }

    /// The open file.
    #[must_use]
    pub const fn file(&self) -> &File {
        self.writer.file()
    }

    /// Flushes everything appended to the disk.
    ///
    /// # Errors
    ///
    /// Fails if the disk does not confirm it.
    pub fn sync(&self) -> Result<(), JournalError> {
        self.writer.sync()
    }

    fn complete_bytes(&self) -> u64 {
        self.first + self.complete.iter().map(|(_, bytes)| bytes).sum::<u64>()
    }

    fn begin_segment(&mut self, sent_unix_ns: u64) -> Result<(), JournalError> {
        let segment = Some(Segment { number: self.number + 1, events_before: self.events });
        let kept = self.kept.events();
        let reports: Vec<Report> = kept
            .chunks(REPEATED_AT_ONCE)
            .map(|kinds| {
                let events = kinds.iter().map(|kind| Event { kind: Some(kind.clone()) });
                Report { sent_unix_ns, events: events.collect(), pong: None, segment }
            })
            .collect();
        let frames = reports.iter().map(|report| (FRAME_HEADER + report.encoded_len()) as u64);
        let repeated = HEADER as u64 + frames.sum::<u64>();
        self.segment_limit = (self.limit / SEGMENTS).max(2 * repeated);
        match self.number {
            1 => self.first = self.writer.length(),
            number => self.complete.push_back((number, self.writer.length())),
        }
        self.writer.sync()?;
        let later = self.dir.ensure_own_child(LATER.as_ref())?;
        while self.complete_bytes() + self.segment_limit > self.limit {
            let Some((oldest, _)) = self.complete.pop_front() else {
                return Err(JournalError::Limit(self.limit >> 20));
            };
            later.remove_file(name(oldest).as_ref())?;
        }
        self.number += 1;
        self.writer = Writer::create_in(&later, name(self.number).as_ref())?;
        reports.iter().try_for_each(|report| self.writer.append(report))
    }
}

/// File name of a later segment.
fn name(number: u32) -> String {
    format!("{number:06}.ddpj")
}

/// Reads the segments of a journal that are left, as one journal.
#[derive(Debug)]
pub struct SegmentReader {
    rest: VecDeque<PathBuf>,
    reader: Reader<BufReader<Take<File>>>,
    /// The next report of the current segment.
    next: Option<Report>,
    /// Number of events of the journal up to the current report.
    events: u64,
    /// Time of the latest report.
    until: Option<Timestamp>,
    /// Whether the current segment repeats what was not read.
    repeats: bool,
    /// Losses that were passed on, by process.
    lost: HashMap<u64, u64>,
    /// What could not be read.
    skipped: Vec<(PathBuf, Skipped)>,
    path: PathBuf,
}

impl SegmentReader {
    /// Opens the first of these segments, which are in the order of their numbers.
    ///
    /// # Errors
    ///
    /// Fails like [`Reader::open`], or if there are none.
    pub fn open(paths: impl IntoIterator<Item = PathBuf>) -> Result<Self, JournalError> {
        let mut rest: VecDeque<PathBuf> = paths.into_iter().collect();
        let path = rest.pop_front().ok_or(JournalError::NotAJournal)?;
        let mut reader = Reader::open(&path)?;
        let next = reader.read()?;
        Ok(Self {
            rest,
            reader,
            next,
            events: 0,
            until: None,
            repeats: false,
            lost: HashMap::new(),
            skipped: Vec::new(),
            path,
        })
    }

    /// Whether events are missing between the latest report and the next one.
    #[must_use]
    pub fn is_before_gap(&self) -> bool {
        let segment = self.next.as_ref().and_then(|report| report.segment);
        !self.repeats && segment.is_some_and(|it| it.events_before != self.events)
    }

    /// Reads the next report; `None`: the end.
    ///
    /// # Errors
    ///
    /// Fails if a file cannot be read.
    pub fn read(&mut self) -> Result<Option<Report>, JournalError> {
        loop {
            let begins_gap = self.is_before_gap();
            let Some(mut report) = self.next.take() else {
                return Ok(None);
            };
            self.advance()?;
            let sent = Timestamp(report.sent_unix_ns);
            if let Some(segment) = report.segment {
                self.repeats |= begins_gap;
                if !self.repeats {
                    continue;
                }
                report.events.retain_mut(|event| self.count_new(event));
                if begins_gap {
                    report.events.push(self.note(segment, sent));
                    self.events = segment.events_before;
                }
            } else {
                self.repeats = false;
                self.events = self.events.saturating_add(report.events.len() as u64);
                for event in &report.events {
                    if let Some(Kind::RecordsLost(lost)) = &event.kind {
                        let sum = self.lost.entry(lost.process).or_default();
                        *sum = sum.saturating_add(lost.count);
                    }
                }
            }
            self.until = self.until.max(Some(sent));
            return Ok(Some(report));
        }
    }

    /// What could not be read, by segment.
    #[must_use]
    pub fn skipped(&self) -> &[(PathBuf, Skipped)] {
        &self.skipped
    }

    /// Whether a repeated event has to be passed on. Of losses, only those that were not.
    fn count_new(&mut self, event: &mut Event) -> bool {
        let Some(Kind::RecordsLost(lost)) = &mut event.kind else {
            return true;
        };
        let known = self.lost.entry(lost.process).or_default();
        lost.count = lost.count.saturating_sub(*known);
        *known += lost.count;
        lost.count > 0
    }

    /// The note about the events that are missing before this segment.
    fn note(&self, segment: Segment, until: Timestamp) -> Event {
        let count = segment.events_before.saturating_sub(self.events);
        let from = self.until.map_or_else(|| "the start".to_owned(), |at| at.to_string());
        let text = format!(
            "the journal lacks {count} events between {from} and {until}, which were dropped to keep it within its limit"
        );
        Event {
            kind: Some(Kind::Note(v1::Note {
                process: 0,
                kind: i32::from(NoteKind::JournalCut.number()),
                rank: None,
                pid: 0,
                text,
                unix_ns: until.0,
            })),
        }
    }

    /// Reads the next report of this segment, or of the next one.
    fn advance(&mut self) -> Result<(), JournalError> {
        loop {
            self.next = self.reader.read()?;
            if self.next.is_some() {
                return Ok(());
            }
            if let Some(skipped) = self.reader.skipped() {
                self.skipped.push((self.path.clone(), skipped.clone()));
            }
            let Some(path) = self.rest.pop_front() else {
                return Ok(());
            };
            // It may be dropped by a run that goes on.
            if let Ok(reader) = Reader::open(&path) {
                (self.reader, self.path) = (reader, path);
            }
        }
    }
}
