//! Lines of a text file of any size: bounded, decompressed, without colors and control characters.

use std::io::{self, BufRead};
use std::path::Path;

use ddp_doctor_diagnosis::words::bytes;
use ddp_doctor_host::input_files;

use super::wraps::{self, Widest};

/// Maximum length of a line in bytes; the rest of a longer one is skipped.
const MAX_LINE: usize = 16 << 10;
/// Maximum length of a time in bytes.
const MAX_TIME: usize = 40;
/// Number of zero bytes in a row behind which nothing is read: they cost nothing where a file has a hole.
const MAX_ZEROS: u64 = 1 << 20;

/// A compressed log is read up to this many times its size: lines that say nothing take next to no room.
const MAX_EXPANSION: u64 = 256;
/// Number of bytes of a compressed log that are read whatever its size.
const MIN_EXPANDED: u64 = 16 << 20;

/// Reads a file line by line.
pub(in super::super) struct Lines {
    reader: Box<dyn BufRead>,
    line: Vec<u8>,
    /// Lines of the message in the last line, the next one last.
    pending: Vec<String>,
    /// Bytes that may be read, and those that may still be.
    limit: u64,
    left: u64,
    /// Zero bytes that were read last, except for the part of a buffer.
    zeros: u64,
    widest: Widest,
    /// Width of the terminal that broke lines, if one did.
    width: Option<usize>,
    /// The line behind the last one, which does not continue it.
    next: Option<String>,
}

impl Lines {
    /// Reads up to `limit` bytes of a file, after decompression.
    pub(in super::super) fn open(path: &Path, limit: u64) -> io::Result<Self> {
        let file = input_files::open(path)?;
        let expanded = file.limit().saturating_mul(MAX_EXPANSION).max(MIN_EXPANDED);
        Ok(Self::new(input_files::decompressed(file)?, limit.min(expanded)))
    }

    pub(in super::super) fn new(reader: Box<dyn BufRead>, limit: u64) -> Self {
        Self {
            reader,
            line: Vec::new(),
            pending: Vec::new(),
            limit,
            left: limit,
            zeros: 0,
            widest: Widest::default(),
            width: None,
            next: None,
        }
    }

    /// Joins the lines that a terminal of this width broke.
    pub(in super::super) fn broken_at(self, width: Option<usize>) -> Self {
        Self { width, ..self }
    }

    /// The width of the terminal that broke the lines which were read; `None`: none did, or they are joined.
    pub(in super::super) fn terminal(&self) -> Option<usize> {
        self.widest.terminal().filter(|_| self.width.is_none())
    }

    /// Number of bytes that were read.
    pub(in super::super) fn bytes(&self) -> u64 {
        self.limit - self.left
    }

    /// Why the file was not read to its end; `None`: it was.
    pub(in super::super) fn detect_cut(&mut self) -> Option<String> {
        if self.zeros >= MAX_ZEROS {
            return Some("it was read up to a long run of zero bytes".into());
        }
        let is_longer = self.left == 0 && self.reader.fill_buf().is_ok_and(|rest| !rest.is_empty());
        is_longer.then(|| format!("only its first {} were read", bytes(self.limit)))
    }

    /// The next line that is not empty, cleaned into `text`; `false` at the end. A carriage return
    /// ends a line as well: progress bars redraw theirs.
    pub(in super::super) fn read(&mut self, text: &mut String) -> io::Result<bool> {
        loop {
            if let Some(line) = self.pending.pop() {
                *text = line;
                return Ok(true);
            }
            if !self.read_joined(text)? {
                return Ok(false);
            }
            self.pending = unwrapped(text);
            if !text.is_empty() && self.pending.is_empty() {
                return Ok(true);
            }
        }
    }

    /// Reads a line with those that continue it.
    fn read_joined(&mut self, text: &mut String) -> io::Result<bool> {
        if let Some(next) = self.next.take() {
            *text = next;
        } else if !self.read_clean(text)? {
            return Ok(false);
        }
        let Some(width) = self.width else {
            self.widest.read(text);
            return self.read_rest(text);
        };
        let mut last = text.len();
        let mut next = String::new();
        while wraps::may_be_full(last, width)
            && text.len() < MAX_LINE
            && self.read_clean(&mut next)?
        {
            if !wraps::join(text, last, &next, width) {
                self.next = Some(next);
                break;
            }
            last = next.len();
        }
        Ok(true)
    }

    /// Adds the next line if a message was cut within its words.
    fn read_rest(&mut self, text: &mut String) -> io::Result<bool> {
        let mut next = String::new();
        if wraps::may_be_cut(text) && self.read_clean(&mut next)? {
            self.widest.read(&next);
            if wraps::is_rest(text, &next) {
                text.push(' ');
                text.push_str(&next);
            } else {
                self.next = Some(next);
            }
        }
        Ok(true)
    }

    fn read_clean(&mut self, text: &mut String) -> io::Result<bool> {
        self.line.clear();
        let is_read = self.read_raw()?;
        clean(&self.line, text);
        Ok(is_read)
    }

    fn read_raw(&mut self) -> io::Result<bool> {
        let mut any = false;
        while self.left > 0 && self.zeros < MAX_ZEROS {
            let buffer = match self.reader.fill_buf() {
                Ok(buffer) => buffer,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                // What was read of a damaged archive counts.
                Err(_) if any => return Ok(true),
                Err(error) => return Err(error),
            };
            if buffer.is_empty() {
                return Ok(any);
            }
            any = true;
            let is_blank = buffer.iter().all(|byte| *byte == 0);
            self.zeros = if is_blank { self.zeros + buffer.len() as u64 } else { 0 };
            if self.zeros >= MAX_ZEROS {
                return Ok(any);
            }
            let end = buffer.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
            let used = end.unwrap_or(buffer.len());
            let room = MAX_LINE - self.line.len();
            self.line.extend(&buffer[..used.min(room)]);
            let used = used + usize::from(end.is_some());
            self.reader.consume(used);
            self.left = self.left.saturating_sub(used as u64);
            if end.is_some() {
                return Ok(true);
            }
        }
        Ok(any)
    }
}

/// Whether a file that begins like this, decompressed, may be a text.
pub(in super::super) fn is_text(head: &[u8]) -> bool {
    let is_control = |byte: &&u8| **byte < 0x20 && !matches!(byte, b'\n' | b'\r' | b'\t' | 0x1b);
    let controls = head.iter().filter(is_control).count();
    let text = String::from_utf8_lossy(head);
    let invalid = text.chars().filter(|&it| it == '\u{fffd}').count();
    !head.is_empty() && (controls + invalid) * 20 <= head.len()
}

/// Decodes a line into `text`, without escape sequences, control characters and trailing space.
fn clean(line: &[u8], text: &mut String) {
    text.clear();
    // Mails quote lines.
    let line = line.strip_prefix(b"> ").unwrap_or(line);
    let decoded = String::from_utf8_lossy(line);
    // Most lines are plain.
    if line.iter().all(|byte| matches!(byte, b' '..=b'~' | b'\t')) {
        text.push_str(decoded.trim_end());
        return;
    }
    let mut rest = decoded.chars();
    while let Some(letter) = rest.next() {
        match letter {
            '\u{1b}' => skip_escape(&mut rest),
            '\t' => text.push('\t'),
            it if it.is_control() => {}
            it => text.push(it),
        }
    }
    text.truncate(text.trim_end().len());
}

/// The lines of a message in JSON behind its time, the first one last: Docker and structured loggers wrap
/// each line. Empty: the line is none.
fn unwrapped(line: &str) -> Vec<String> {
    type Object = serde_json::Map<String, serde_json::Value>;
    let value = |keys: &[&str], object: &Object| {
        let found = keys.iter().find_map(|key| object.get(*key)?.as_str());
        found.map(str::to_owned)
    };
    let Some(Ok(object)) = line.starts_with('{').then(|| serde_json::from_str::<Object>(line))
    else {
        return Vec::new();
    };
    // An error file of torchrun has the traceback in its message.
    let info = object.get("message").and_then(|it| it.get("extraInfo"));
    let traceback = info.and_then(|it| it.get("py_callstack")?.as_str()).map(str::to_owned);
    let message = value(&["log", "msg", "message"], &object).or(traceback);
    let Some(message) = message else {
        return Vec::new();
    };
    let time = value(&["time", "ts", "timestamp"], &object)
        .filter(|it| it.len() <= MAX_TIME)
        .map_or_else(String::new, |it| format!("{it} "));
    let mut text = String::new();
    let mut lines: Vec<String> = message
        .lines()
        .filter_map(|it| {
            clean(it.as_bytes(), &mut text);
            (!text.is_empty()).then(|| format!("{time}{text}"))
        })
        .collect();
    lines.reverse();
    lines
}

/// Skips an escape sequence: "[" … a letter, "]" … the bell or "ESC \\", "(" and the name of a
/// character set, or a single character.
fn skip_escape(rest: &mut std::str::Chars<'_>) {
    match rest.next() {
        Some('[') => {
            rest.find(|it| ('@'..='~').contains(it));
        }
        Some(']') => {
            let end = rest.find(|it| matches!(it, '\u{7}' | '\u{1b}'));
            if end == Some('\u{1b}') {
                rest.next();
            }
        }
        Some('(' | ')' | '*' | '+' | '#' | '%' | ' ') => {
            rest.next();
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufReader, Cursor, Read};

    use super::*;

    fn lines(bytes: &[u8]) -> Vec<String> {
        let mut lines = Lines::new(Box::new(Cursor::new(bytes.to_vec())), u64::MAX);
        let mut found = Vec::new();
        let mut text = String::new();
        while lines.read(&mut text).unwrap() {
            found.push(text.clone());
        }
        found
    }

    #[test]
    fn colors_carriage_returns_and_invalid_bytes_are_removed() {
        let bytes = b"\x1b[1;31mone\x1b[0m\r\n 12%\r 13%\rtwo \xff\x07\n\n\x1b]0;title\x07three
\x1b]8;;file://x\x1b\\four\x1b(B\x1b[m";
        assert_eq!(lines(bytes), ["one", " 12%", " 13%", "two \u{fffd}", "three", "four"]);
    }

    #[test]
    fn long_line_is_cut_and_the_next_one_is_whole() {
        let mut bytes = vec![b'x'; 800_000];
        bytes.extend(b"\nnext\n");
        let found = lines(&bytes);
        assert_eq!(found[0].len(), MAX_LINE);
        assert_eq!(found[1..], ["next"]);
    }

    #[test]
    fn text_is_read_up_to_a_long_run_of_zero_bytes() {
        let few = [b"one\n".as_slice(), &[0; 1000], b"two\n"].concat();
        assert_eq!(lines(&few), ["one", "two"]);
        let endless = io::repeat(0).take(1 << 40);
        let reader = BufReader::with_capacity(1 << 16, Cursor::new("one\ntwo").chain(endless));
        let mut lines = Lines::new(Box::new(reader), 1 << 40);
        let mut text = String::new();
        for line in ["one", "two"] {
            assert!(lines.read(&mut text).unwrap());
            assert_eq!(text, line);
        }
        assert!(!lines.read(&mut text).unwrap());
        assert!(lines.bytes() < 2 << 20, "{}", lines.bytes());
        assert_eq!(lines.detect_cut().unwrap(), "it was read up to a long run of zero bytes");
    }

    #[test]
    fn compressed_text_is_read_up_to_a_multiple_of_its_size() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rank0.log.gz");
        let file = std::fs::File::create(&path).unwrap();
        let mut packed = flate2::write::GzEncoder::new(file, flate2::Compression::best());
        io::copy(&mut io::repeat(b'\n').take(4 * MIN_EXPANDED), &mut packed).unwrap();
        assert!(packed.finish().unwrap().metadata().unwrap().len() < 100_000);
        let mut lines = Lines::open(&path, u64::MAX).unwrap();
        assert!(!lines.read(&mut String::new()).unwrap());
        assert_eq!(lines.bytes(), MIN_EXPANDED);
        assert_eq!(lines.detect_cut().unwrap(), "only its first 16.0 MiB were read");
    }

    #[test]
    fn text_is_read_up_to_its_limit() {
        let mut lines = Lines::new(Box::new(Cursor::new("one\ntwo\nthree\n")), 5);
        let mut text = String::new();
        while lines.read(&mut text).unwrap() {}
        assert_eq!(lines.detect_cut().unwrap(), "only its first 5 B were read");
    }

    #[test]
    fn binary_files_are_no_text() {
        assert!(is_text(b"Traceback (most recent call last):\n"));
        assert!(is_text("Schritt 1: 3,4 \u{2588}\u{2588}".as_bytes()));
        assert!(!is_text(&[0, 1, 2, 3, 0, 0, 200, 201]));
        assert!(!is_text(b""));
        assert!(is_text(b"{\"loss\": 1.8}"));
    }
}
