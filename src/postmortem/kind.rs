//! The kind of a file.

use std::io::{self, Read};
use std::path::Path;

use ddp_doctor_host::input_files;
use ddp_doctor_ingest::{flight_recorder, logs};

/// Number of bytes at the beginning of a file that determine its kind.
const HEAD: usize = 4096;

/// Kind of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileKind {
    Journal,
    BlackBox,
    FlightRecorder,
    Report,
    /// Stacks, written by `dump --format json`.
    Dump,
    Description,
    Text,
    Empty,
    Unknown,
}

/// Detects the kind of a file from its beginning.
pub(super) fn kind_of(path: &Path) -> io::Result<FileKind> {
    let mut head = Vec::new();
    input_files::open(path)?.take(HEAD as u64).read_to_end(&mut head)?;
    let text = String::from_utf8_lossy(&head);
    let has = |key: &str| text.contains(&format!("\"{key}\""));
    Ok(match head.as_slice() {
        [] => FileKind::Empty,
        [b'D', b'D', b'P', b'J', ..] => FileKind::Journal,
        [b'D', b'D', b'P', b'D', b'B', b'O', b'X', ..] => FileKind::BlackBox,
        [b'{', ..] if has("ddp-doctor/report") => FileKind::Report,
        [b'{', ..] if has("ddp-doctor/dump") => FileKind::Dump,
        [b'{', ..] if has("boot_id") && has("start_ticks") => FileKind::Description,
        head => kind_of_output(head, &inflated(path, head)),
    })
}

/// Tells dumps from logs by the beginning of a file, as it is and decompressed.
fn kind_of_output(head: &[u8], inflated: &[u8]) -> FileKind {
    // A compressed file of which nothing is readable is more likely a dump: it is named.
    let is_damaged = head != inflated && inflated.is_empty();
    if is_damaged || flight_recorder::is_candidate(inflated) {
        FileKind::FlightRecorder
    } else if logs::is_text(inflated) {
        FileKind::Text
    } else {
        FileKind::Unknown
    }
}

/// The beginning of a file, decompressed if it is compressed.
fn inflated(path: &Path, head: &[u8]) -> Vec<u8> {
    if !input_files::is_compressed(head) {
        return head.to_vec();
    }
    let mut inner = Vec::new();
    let stream = input_files::open(path).and_then(input_files::decompressed);
    if let Ok(stream) = stream {
        // The part before the damage decides.
        let _damage = stream.take(HEAD as u64).read_to_end(&mut inner);
    }
    inner
}

/// Whether a file is compressed or an archive in a form that is not read, by its name.
pub(super) fn is_packed(path: &Path) -> bool {
    let suffix = path.extension().and_then(|it| it.to_str());
    suffix.is_some_and(|it| ["bz2", "tbz2", "xz", "txz", "zip", "7z", "lz4"].contains(&it))
}

/// Whether a file has a name of logs.
pub(super) fn is_named_log(path: &Path) -> bool {
    let file_name = path.file_name().unwrap_or_default().to_string_lossy();
    let name = file_name.trim_end_matches(".gz").trim_end_matches(".zst");
    let end = name.rsplit('.').next();
    end.is_some_and(|it| ["log", "out", "err", "txt", "stdout", "stderr"].contains(&it))
}
