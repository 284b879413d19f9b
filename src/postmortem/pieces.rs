//! Files with evidence that ddp-doctor recorded.

use std::io;
use std::path::PathBuf;

use ddp_doctor_agent::blackbox::{Identity, NoBox, OpenError, Reader as BoxReader};
use ddp_doctor_evidence::blackbox;
use ddp_doctor_proto::v1;

/// Index of the path through which a file was found: files of one run directory belong together.
pub(super) type Place = usize;

/// A readable journal, or segment of one.
#[derive(Debug)]
pub(super) struct JournalFile {
    pub(super) path: PathBuf,
    /// Number of the segment, from 1.
    pub(super) segment: u32,
    /// Later segments, in order, and where they are.
    pub(super) later: Vec<(u32, PathBuf, Place)>,
    pub(super) place: Place,
    pub(super) hello: v1::Hello,
    /// Whether the run that writes it is still active.
    pub(super) goes_on: bool,
}

impl JournalFile {
    /// Whether `other` is a later segment than those of this journal.
    pub(super) fn is_before(&self, other: &Self) -> bool {
        self.later.last().map_or(self.segment, |(segment, ..)| *segment) < other.segment
    }

    /// The files of the journal, in order.
    pub(super) fn paths(&self) -> impl Iterator<Item = PathBuf> {
        let later = self.later.iter().map(|(_, path, _)| path.clone());
        std::iter::once(self.path.clone()).chain(later)
    }

    /// Where its files are.
    pub(super) fn places(&self) -> impl Iterator<Item = Place> {
        std::iter::once(self.place).chain(self.later.iter().map(|(.., place)| *place))
    }
}

/// A readable black box.
#[derive(Debug)]
pub(super) struct BoxFile {
    pub(super) path: PathBuf,
    /// Where another process may move it meanwhile.
    pub(super) moved: Option<PathBuf>,
    pub(super) place: Place,
    pub(super) identity: Identity,
}

impl BoxFile {
    /// Opens the box, also if it was moved.
    ///
    /// # Errors
    ///
    /// As [`blackbox::open`].
    pub(super) fn open(&self) -> Result<BoxReader, OpenError> {
        let opened = blackbox::open(&self.path);
        match (&opened, &self.moved) {
            (Err(error), Some(moved)) if is_gone(error) => blackbox::open(moved),
            _ => opened,
        }
    }
}

/// The marker of a process for whose box there was no room.
#[derive(Debug)]
pub(super) struct NoBoxFile {
    pub(super) place: Place,
    pub(super) marker: NoBox,
}

/// Evidence that exists and is unreadable.
#[derive(Debug)]
pub(super) struct Gap {
    pub(super) place: Place,
    pub(super) text: String,
}

/// Whether a black box does not exist, or no longer.
pub(super) fn is_gone(error: &OpenError) -> bool {
    matches!(error, OpenError::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use ddp_doctor_agent::blackbox::{Options, Place as BoxPlace, Writer};

    use super::*;

    #[test]
    fn box_that_was_moved_is_opened_where_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let place = BoxPlace::within(dir.path());
        let writer = Writer::create(&place, &Options::default()).unwrap();
        let path = writer.path().to_owned();
        let kept = dir.path().join("kept");
        let found = |moved: Option<&Path>| BoxFile {
            path: path.clone(),
            moved: moved.map(Path::to_owned),
            place: 0,
            identity: BoxReader::open(&kept).unwrap().identity(),
        };
        std::fs::rename(&path, &kept).unwrap();
        let error = found(None).open().err().unwrap();
        assert!(is_gone(&error), "{error}");
        let moved = found(Some(&kept)).open().unwrap();
        assert_eq!(moved.identity().pid, std::process::id());
    }
}
