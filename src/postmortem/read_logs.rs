//! The logs that were read: each file once, however many names it has, and a limited number of bytes of all together.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use ddp_doctor_host::input_files;
use ddp_doctor_ingest::logs::Log;

/// Maximum number of bytes of logs that are read, after decompression.
const MAX_BYTES: u64 = 64 << 30;
/// Remark on a log that is not read.
pub(super) const FULL: &str = "it is left out: 64 GiB of logs were read before it";

/// The logs that were read.
#[derive(Debug, Default)]
pub(super) struct ReadLogs {
    bytes: u64,
    /// By device and inode: whether the log states anything about a job.
    known: HashMap<(u64, u64), bool>,
}

impl ReadLogs {
    /// Whether a log that was read before, under any name, states anything about a job; `None`: it was not.
    pub(super) fn known(&self, path: &Path) -> Option<bool> {
        self.known.get(&identity(path)?).copied()
    }

    /// Number of bytes that may still be read; `None`: none.
    pub(super) fn room(&self) -> Option<u64> {
        MAX_BYTES.checked_sub(self.bytes).filter(|it| *it > 0)
    }

    /// Adds a log that was read.
    pub(super) fn add(&mut self, path: &Path, log: &Log) {
        self.bytes = self.bytes.saturating_add(log.bytes);
        if let Some(identity) = identity(path) {
            self.known.insert(identity, !log.is_empty() || log.states_success());
        }
    }
}

/// Device and inode of a file.
fn identity(path: &Path) -> Option<(u64, u64)> {
    let metadata = input_files::metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use ddp_doctor_ingest::logs;

    #[test]
    fn bytes_of_all_logs_are_limited() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rank0.log");
        fs::write(&path, "[rank0]: ValueError: x\n").unwrap();
        let log = logs::read(&path, u64::MAX).unwrap();
        assert_eq!(log.bytes, 23);
        let mut read = ReadLogs { bytes: MAX_BYTES - 24, ..ReadLogs::default() };
        read.add(&path, &log);
        assert_eq!(read.room(), Some(1));
        read.add(&path, &log);
        assert_eq!(read.room(), None);
    }
}
