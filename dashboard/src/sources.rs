//! The user's source files, as far as they are readable on this machine.

use std::collections::HashMap;
use std::rc::Rc;

use ddp_doctor_proto::report::Where;
use ddp_doctor_proto::words;

/// Maximum number of files kept.
const MAX_FILES: usize = 64;

/// Reads a whole file; `None`: not readable, or not permitted.
pub type Read = Box<dyn Fn(&str) -> Option<String>>;

/// Source files, each read once.
pub struct Sources {
    read: Read,
    /// Paths in this directory are shown relative to it.
    here: String,
    /// Why no file is read; `None`: files are read.
    pub(crate) withheld: Option<&'static str>,
    files: HashMap<String, Option<Rc<str>>>,
}

impl Sources {
    /// `here`: directory to which shown paths are relative, without a trailing slash.
    #[must_use]
    pub fn new(here: String, read: Read) -> Self {
        Self { read, here, withheld: None, files: HashMap::new() }
    }

    /// States why no file is read.
    #[must_use]
    pub const fn withheld(mut self, why: Option<&'static str>) -> Self {
        self.withheld = why;
        self
    }

    /// Without any readable file.
    #[must_use]
    pub fn none() -> Self {
        Self::new(String::new(), Box::new(|_| None))
    }

    /// Text of a line, if the file is readable.
    pub fn line(&mut self, place: &Where) -> Option<String> {
        words::source_line(self.text(&place.file)?.as_ref(), place.line)
    }

    /// Lines around a place, `more` on each side: their numbers and texts.
    pub fn around(&mut self, place: &Where, more: u32) -> Vec<(u32, String)> {
        let Some(text) = self.text(&place.file) else {
            return Vec::new();
        };
        let first = place.line.saturating_sub(more).max(1);
        let lines = text.lines().enumerate().skip(first as usize - 1);
        let count = place.line.saturating_sub(first).saturating_add(more);
        lines
            .take((count as usize).saturating_add(1))
            .map(|(index, line)| {
                let line = line.replace('\t', "    ");
                (index as u32 + 1, words::plain(&line))
            })
            .collect()
    }

    /// Formats a place relative to the current directory or its library, in at most `width`
    /// characters.
    #[must_use]
    pub fn shown(&self, place: &Where, width: usize) -> String {
        let here = Some(&self.here).filter(|here| !here.is_empty());
        let below =
            here.and_then(|here| place.file.strip_prefix(here)).and_then(|it| it.strip_prefix('/'));
        let file = below.or_else(|| in_library(&place.file)).unwrap_or(&place.file);
        let text = words::plain(&match place.line {
            // A frame of machine code, whose file is the library.
            0 => file.rsplit('/').next().unwrap_or_default().to_owned(),
            line => format!("{file}:{line}"),
        });
        let length = text.chars().count();
        if length <= width {
            return text;
        }
        // The end of a path is the most informative part.
        let end: String = text.chars().skip(length + 1 - width.max(1)).collect();
        format!("…{end}")
    }

    fn text(&mut self, file: &str) -> Option<Rc<str>> {
        if let Some(known) = self.files.get(file) {
            return known.clone();
        }
        if self.files.len() >= MAX_FILES {
            return None;
        }
        let text: Option<Rc<str>> = (self.read)(file).map(Rc::from);
        self.files.insert(file.to_owned(), text.clone());
        text
    }
}

/// `…/site-packages/torch/nn/x.py` → `torch/nn/x.py`, `…/lib/python3.11/queue.py` → `queue.py`;
/// `None`: not in a library.
#[must_use]
pub fn in_library(file: &str) -> Option<&str> {
    let package = file.split_once("-packages/").map(|(_, rest)| rest);
    let own = || {
        let (_, rest) = file.split_once("/lib/python3.")?;
        Some(rest.split_once('/')?.1)
    };
    package.or_else(own)
}

impl std::fmt::Debug for Sources {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sources")
            .field("here", &self.here)
            .field("files", &self.files.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(file: &str, line: u32) -> Where {
        Where { file: file.into(), line, function: String::new(), ..Where::default() }
    }

    #[test]
    fn lines_around_a_place_stop_at_the_end_of_the_file() {
        let read = |_: &str| Some("a\nb\nc\x1b\n".to_owned());
        let mut sources = Sources::new(String::new(), Box::new(read));
        let numbers =
            |lines: Vec<(u32, String)>| lines.into_iter().map(|it| it.0).collect::<Vec<_>>();
        assert_eq!(numbers(sources.around(&place("x", 1), 1)), [1, 2]);
        assert_eq!(numbers(sources.around(&place("x", 3), 1)), [2, 3]);
        assert_eq!(numbers(sources.around(&place("x", 0), 0)), [1]);
        assert_eq!(sources.around(&place("x", 3), 0)[0].1, "c\u{fffd}");
        assert!(sources.around(&place("x", u32::MAX), u32::MAX).len() <= 3);
    }

    #[test]
    fn shown_places_are_relative_and_keep_their_end() {
        let sources = Sources::new("/home/me".into(), Box::new(|_| None));
        assert_eq!(sources.shown(&place("/home/me/a/train.py", 9), 20), "a/train.py:9");
        assert_eq!(sources.shown(&place("/opt/long/path/train.py", 9), 11), "…train.py:9");
        assert_eq!(Sources::none().shown(&place("/x.py", 1), 20), "/x.py:1");
        assert_eq!(Sources::none().shown(&place("/usr/lib/libc.so.6", 0), 20), "libc.so.6");
    }
}
