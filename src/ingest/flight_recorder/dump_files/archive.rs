//! Members of tar archives.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::Reader;

/// Maximum number of files of an archive.
const MAX_MEMBERS: usize = 65_536;
/// Maximum number of bytes read of a header that names the next file.
const MAX_HEADER: u64 = 4096;
/// Size of a block of an archive.
const BLOCK: usize = 512;

/// Whether a file that begins with these bytes, decompressed, is an archive.
pub(super) fn is_archive(head: &[u8]) -> bool {
    head.get(257..262) == Some(b"ustar")
}

/// Reads the members of a tar archive: blocks of 512 bytes, a header before the data of each.
pub(super) fn read(path: &Path, mut stream: impl Read, reader: &mut Reader<'_>) -> io::Result<()> {
    let mut long_name: Option<PathBuf> = None;
    for _ in 0..MAX_MEMBERS {
        let mut header = [0; BLOCK];
        if let Err(error) = stream.read_exact(&mut header) {
            let text = format!("the archive is cut off: {error}");
            reader.unreadable(path.to_owned(), text);
            return Ok(());
        }
        if header.iter().all(|&byte| byte == 0) {
            if reader.contents.is_empty() {
                let text = "the archive contains neither a Flight Recorder dump nor a log that \
                            states how a job ended";
                reader.unreadable(path.to_owned(), text);
            }
            return Ok(());
        }
        let Some(size) = (is_archive(&header)).then(|| number(&header[124..136])).flatten() else {
            let text = "it is damaged: a header of the archive is invalid";
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        };
        let padded = size.div_ceil(BLOCK as u64).saturating_mul(BLOCK as u64);
        let kind = header[156];
        let mut member = (&mut stream).take(padded);
        match kind {
            // The name of the next member, if it is longer than a header allows: of GNU tar …
            b'L' => {
                let bytes = beginning((&mut member).take(size))?;
                long_name = bytes.split(|&byte| byte == 0).next().map(path_of);
            }
            // … and of POSIX.
            b'x' => {
                let bytes = beginning((&mut member).take(size))?;
                long_name = pax_path(&bytes).map(path_of).or(long_name);
            }
            b'g' => {}
            _ => {
                let name = long_name.take().unwrap_or_else(|| name_of(&header));
                if matches!(kind, b'0' | 0) {
                    reader.member(path.join(name), &mut member, size, written_at(&header));
                }
            }
        }
        io::copy(&mut member, &mut io::sink())?;
    }
    let text = format!("only the first {MAX_MEMBERS} files of the archive are read");
    reader.unreadable(path.to_owned(), text);
    Ok(())
}

/// The first bytes of the data of a header.
fn beginning(stream: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    stream.take(MAX_HEADER).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The path in the records of a header of POSIX: "LENGTH KEYWORD=VALUE\n", where the length is that
/// of the record.
fn pax_path(mut records: &[u8]) -> Option<&[u8]> {
    let mut path = None;
    while let Some(space) = records.iter().position(|&byte| byte == b' ') {
        let len =
            std::str::from_utf8(&records[..space]).ok().and_then(|it| it.parse().ok()).unwrap_or(0);
        // The last record may be cut off.
        let Some(record) = records.get(space + 1..len) else {
            break;
        };
        path = record.strip_prefix(b"path=").or(path);
        records = &records[len..];
    }
    path.map(|it| it.strip_suffix(b"\n").unwrap_or(it))
}

fn path_of(name: &[u8]) -> PathBuf {
    String::from_utf8_lossy(name).into_owned().into()
}

/// An octal number of a tar header.
fn number(field: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(field).ok()?.trim_matches(['\0', ' ']);
    u64::from_str_radix(text, 8).ok()
}

/// When a member was last changed, in nanoseconds since the Unix epoch.
fn written_at(header: &[u8; BLOCK]) -> Option<u64> {
    number(&header[136..148])?.checked_mul(1_000_000_000)
}

/// Path of a member: the prefix and the name of its header.
fn name_of(header: &[u8; BLOCK]) -> PathBuf {
    let text = |field: &[u8]| {
        let end = field.iter().position(|&byte| byte == 0);
        String::from_utf8_lossy(&field[..end.unwrap_or(field.len())]).into_owned()
    };
    PathBuf::from(text(&header[345..500])).join(text(&header[..100]))
}
