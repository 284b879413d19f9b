//! Opening of files whose paths come from outside, and decompression of their contents.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata};
use std::io::{self, BufRead, BufReader, Read, Take};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock};

use ddp_doctor_agent::files;
pub use ddp_doctor_agent::files::{regular, reopen};
use flate2::bufread::MultiGzDecoder;
use rustix::fs::{Dir as Listing, Mode, OFlags, openat};
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

use crate::files::Dir;
use crate::run_description::Description;
use crate::sys;

/// First bytes of a file compressed with gzip.
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// First bytes of a file compressed with zstd.
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Size of the buffers of [`decompressed`].
const BUFFER: usize = 256 << 10;

/// Whether files of other users are rejected.
static ONLY_OWN: AtomicBool = AtomicBool::new(false);
/// Paths of evidence that the user named: no link below one leads out of it.
static NAMED: RwLock<Vec<PathBuf>> = RwLock::new(Vec::new());

/// Rejects files of other users from now on, in this process. For evidence that the user did not name: whatever directory
/// another user puts at its path in a race, its contents are not believed.
pub fn accept_only_own() {
    ONLY_OWN.store(true, Ordering::Relaxed);
}

/// Follows links below a path from now on, in this process, only if they stay below it. For evidence that the user named:
/// an archive or a disk of somebody else has links that belong to this user.
pub fn confine(named: &Path) {
    let mut all = NAMED.write().unwrap_or_else(PoisonError::into_inner);
    if !all.iter().any(|it| it == named) {
        all.push(named.to_owned());
    }
}

/// The named path that a path is below, and the rest of it; `None`: it is not below one, or is itself named.
fn named_and_rest(path: &Path) -> Option<(PathBuf, PathBuf)> {
    let all = NAMED.read().unwrap_or_else(PoisonError::into_inner);
    let above = all.iter().filter_map(|it| Some((it, path.strip_prefix(it).ok()?)));
    let (named, rest) = above.min_by_key(|(_, rest)| rest.components().count())?;
    (!rest.as_os_str().is_empty()).then(|| (named.clone(), rest.to_owned()))
}

/// Whether a file that begins with these bytes is compressed.
#[must_use]
pub fn is_compressed(head: &[u8]) -> bool {
    head.starts_with(&GZIP) || head.starts_with(&ZSTD)
}

/// The contents of a stream, decompressed if it is compressed with gzip or zstd. Memory is bounded
/// by the largest window of zstd that is accepted, 128 MiB; the length is not bounded.
///
/// # Errors
///
/// Fails if the beginning cannot be read. Damage is an error of the returned stream.
pub fn decompressed<'a>(stream: impl Read + 'a) -> io::Result<Box<dyn BufRead + 'a>> {
    let mut stream = BufReader::with_capacity(BUFFER, stream);
    let head = stream.fill_buf()?;
    Ok(if head.starts_with(&GZIP) {
        Box::new(BufReader::with_capacity(BUFFER, MultiGzDecoder::new(stream)))
    } else if head.starts_with(&ZSTD) {
        Box::new(BufReader::with_capacity(BUFFER, Zstd::new(stream)))
    } else {
        Box::new(stream)
    })
}

/// Decompresses all frames of zstd in a stream.
struct Zstd<R> {
    stream: R,
    decoder: FrameDecoder,
    in_frame: bool,
}

impl<R: BufRead> Zstd<R> {
    fn new(stream: R) -> Self {
        Self { stream, decoder: FrameDecoder::new(), in_frame: false }
    }

    /// Begins the next frame; `false`: there is none.
    fn next_frame(&mut self) -> io::Result<bool> {
        while !self.stream.fill_buf()?.is_empty() {
            match self.decoder.init(&mut self.stream) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    let mut skipped = (&mut self.stream).take(u64::from(length));
                    io::copy(&mut skipped, &mut io::sink())?;
                }
                Err(error) => return Err(io::Error::other(error)),
            }
        }
        Ok(false)
    }
}

impl<R: BufRead> Read for Zstd<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if !self.in_frame && !self.next_frame()? {
                return Ok(0);
            }
            self.in_frame = true;
            while self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
                let one = BlockDecodingStrategy::UptoBlocks(1);
                let decoded = self.decoder.decode_blocks(&mut self.stream, one);
                decoded.map_err(io::Error::other)?;
            }
            let count = self.decoder.read(buffer)?;
            if count > 0 || buffer.is_empty() {
                return Ok(count);
            }
            self.in_frame = false;
        }
    }
}

/// Opens a regular file for reading: as many bytes as it has now, since a file that grows, or one of `/proc`, may
/// have no end. Other files are rejected, before they are opened: opening a FIFO can block, and opening a device
/// can have side effects. So is a path with a link of another user, who chooses where it leads, and after
/// [`accept_only_own`] a file of another user.
///
/// # Errors
///
/// Fails if the file cannot be opened, or is rejected.
pub fn open(path: &Path) -> io::Result<Take<File>> {
    opened(&reach(path)?, path)
}

fn opened(reached: &File, path: &Path) -> io::Result<Take<File>> {
    let (opened, metadata) = regular(reached, path)?;
    if ONLY_OWN.load(Ordering::Relaxed) && metadata.uid() != sys::user_id() {
        let why = format!("it belongs to user {}", metadata.uid());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    Ok(opened.take(metadata.len()))
}

/// Opens what a path leads to with `O_PATH`, unless a component is a link of another user, who chooses where it leads, one
/// that another user can have moved, and that leads to what not everybody can read, or one that leads out of evidence
/// ([`confine`]).
///
/// # Errors
///
/// Fails if it cannot be opened, or there is such a link.
pub fn reach(path: &Path) -> io::Result<File> {
    let reached = match named_and_rest(path) {
        Some((named, rest)) => files::reach_below(&named, &rest),
        None => files::reach(path),
    };
    Ok(reached?.into())
}

/// Like [`reach`], for a file with a secret, which is never displayed: links that another user can have moved are followed
/// to private files as well.
///
/// # Errors
///
/// Fails like [`reach`].
pub fn reach_secret(path: &Path) -> io::Result<File> {
    Ok(files::reach_secret(path)?.into())
}

/// The path of what [`reach`] opens, without links.
///
/// # Errors
///
/// Fails like [`reach`].
pub fn canonical(path: &Path) -> io::Result<PathBuf> {
    path_of(&reach(path)?)
}

/// The path without links by which the kernel knows an open file.
///
/// # Errors
///
/// Fails if `/proc` is not there.
pub fn path_of(file: &File) -> io::Result<PathBuf> {
    fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// Metadata of a file or folder that the user named as evidence.
///
/// # Errors
///
/// Fails like [`reach`], and [`open_folder`] for a folder.
pub fn evidence(path: &Path) -> io::Result<Metadata> {
    let metadata = reach(path)?.metadata()?;
    if metadata.is_dir() {
        open_folder(path)?;
    }
    Ok(metadata)
}

/// Opens a folder that is searched for evidence with `O_PATH`. One that another user can have renamed without being able to
/// read it is opened only if it is the directory of a run of this user.
///
/// # Errors
///
/// Fails like [`reach`], and for such a folder.
pub fn open_folder(dir: &Path) -> io::Result<File> {
    let is_own_run = || Dir::open_own(dir).is_ok_and(|it| Description::of_original(&it).is_some());
    let searched = match named_and_rest(dir) {
        Some((named, rest)) => files::reach_folder_below(&named, &rest),
        None => files::reach_folder(dir),
    };
    match searched {
        Err(_) if is_own_run() => reach(dir),
        opened => Ok(opened?.into()),
    }
}

/// The paths of the entries of a folder that is searched for evidence.
///
/// # Errors
///
/// Fails like [`open_folder`], or if the folder cannot be read.
pub fn entries(dir: &Path) -> io::Result<impl Iterator<Item = PathBuf>> {
    let opened = open_folder(dir)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let listing = Listing::read_from(openat(&opened, ".", flags, Mode::empty())?)?;
    let all = listing.flatten().map(|it| OsString::from_vec(it.file_name().to_bytes().to_vec()));
    let names = all.filter(|it| it != "." && it != "..");
    let dir = dir.to_owned();
    Ok(names.map(move |name| dir.join(name)))
}

/// Metadata of an entry of a directory that was reached. A link is followed only by [`reach`]: where another user's leads,
/// a lookup alone can mount the directory of another host, or never return.
///
/// # Errors
///
/// Fails like [`reach`].
pub fn metadata(path: &Path) -> io::Result<Metadata> {
    let found = fs::symlink_metadata(path)?;
    if found.is_symlink() { reach(path)?.metadata() } else { Ok(found) }
}

/// Whether [`metadata`] is that of a directory.
#[must_use]
pub fn is_dir(path: &Path) -> bool {
    metadata(path).is_ok_and(|it| it.is_dir())
}

/// Reads a regular file of at most `limit` bytes as text.
///
/// # Errors
///
/// Fails like [`open`], or if the file is longer or not UTF-8.
pub fn read_text(path: &Path, limit: u64) -> io::Result<String> {
    text_of(open(path)?, limit)
}

/// Like [`read_text`], in an open directory.
///
/// # Errors
///
/// Fails like [`read_text`].
pub fn read_text_in(dir: &Dir, name: &OsStr, limit: u64) -> io::Result<String> {
    text_of(opened(&dir.reach(name)?, &dir.path().join(name))?, limit)
}

fn text_of(file: Take<File>, limit: u64) -> io::Result<String> {
    if file.limit() > limit {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    io::read_to_string(file)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::{lchown, symlink};

    use super::*;
    use crate::files::user_id;

    fn why(result: io::Result<Take<File>>) -> String {
        result.map(|_| ()).unwrap_err().to_string()
    }

    #[test]
    fn devices_are_rejected_before_they_are_opened() {
        // Opening this device creates a pseudoterminal in /dev/pts.
        let terminals = || fs::read_dir("/dev/pts").map_or(0, Iterator::count);
        let before = terminals();
        assert_eq!(why(open(Path::new("/dev/ptmx"))), "it is not a regular file");
        assert_eq!(why(open(Path::new("/dev"))), "it is not a regular file");
        assert_eq!(terminals(), before);
    }

    #[test]
    fn endless_file_is_read_up_to_its_length() {
        // Its length is given as 0, and it has 256 GiB.
        assert_eq!(read_text(Path::new("/proc/self/pagemap"), 1 << 20).unwrap(), "");
        let mut growing = tempfile::NamedTempFile::new().unwrap();
        growing.write_all(b"four").unwrap();
        let mut opened = open(growing.path()).unwrap();
        growing.write_all(b" and more").unwrap();
        let mut read = String::new();
        opened.read_to_string(&mut read).unwrap();
        assert_eq!(read, "four");
    }

    #[test]
    fn link_of_another_user_is_rejected() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        fs::write(&file, "text").unwrap();
        symlink(&file, &link).unwrap();
        assert_eq!(read_text(&link, 4).unwrap(), "text");
        assert_eq!(read_text(&link, 3).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        if user_id() != 0 {
            return;
        }
        assert_eq!(metadata(&link).unwrap().len(), 4);
        lchown(&link, Some(4001), None).unwrap();
        assert_eq!(why(open(&link)), "it is a link of user 4001: give the path that it leads to");
        assert!(metadata(&link).is_err() && metadata(&file).is_ok());
    }
}
