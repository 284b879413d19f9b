//! A file as words in memory, shared with every process that maps it too.
#![expect(
    unsafe_code,
    reason = "maps files, and lends the memory as atomic words"
)]

#[cfg(target_endian = "big")]
compile_error!("black boxes are little-endian, and so far are only written in place");

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::slice;
use std::sync::atomic::AtomicU64;

use ddp_doctor_proto::blackbox::WORD;

use super::faults::Protected;
use crate::sys;

/// The first words of a file, or words that begin as zeros.
///
/// All access is atomic, so that another process that writes at the same time is no data race. A
/// read-only map lends the same type: its words may be loaded and nothing else.
#[derive(Debug)]
pub(super) struct Map {
    start: NonNull<AtomicU64>,
    words: usize,
    /// `None`: there is no file that could become shorter.
    protected: Option<Protected>,
}

// SAFETY: the memory is shared with other processes anyway, and is only lent as atomic words.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Map {
    /// Makes the file that long and maps it for writing. The room is taken first: a full file system
    /// is an error here and not a signal later.
    pub(super) fn create(file: &File, words: usize) -> io::Result<Self> {
        let bytes = words.checked_mul(WORD).ok_or(io::ErrorKind::InvalidInput)?;
        sys::reserve(file, bytes as u64)?;
        // Populated, so that the hot path meets no page fault that it could be spared.
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        Self::new(Some(file), words, libc::PROT_READ | libc::PROT_WRITE, flags)
    }

    /// Maps a file for reading. A file that is shorter is an error here; it would be a SIGBUS later.
    pub(super) fn read_only(file: &File, words: usize) -> io::Result<Self> {
        let bytes = words.checked_mul(WORD).ok_or(io::ErrorKind::InvalidInput)?;
        if file.metadata()?.len() < bytes as u64 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Self::new(Some(file), words, libc::PROT_READ, libc::MAP_SHARED)
    }

    /// Zeros of this process. They take no memory before they are touched.
    pub(super) fn private(words: usize) -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        Self::new(None, words, libc::PROT_READ | libc::PROT_WRITE, flags)
    }

    fn new(file: Option<&File>, words: usize, protection: i32, flags: i32) -> io::Result<Self> {
        let bytes = words.checked_mul(WORD).ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: asks for a new mapping at an address of the kernel's choice, which touches no
        // memory that anybody uses.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                protection,
                flags,
                file.map_or(-1, AsRawFd::as_raw_fd),
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::InvalidInput)?;
        let mut map = Self {
            start,
            words,
            protected: None,
        };
        if file.is_some() {
            let protected = Protected::new(start.as_ptr() as usize, bytes);
            map.protected = Some(protected.ok_or(io::ErrorKind::OutOfMemory)?);
        }
        Ok(map)
    }

    /// Whether the file became shorter and words were lost.
    pub(super) fn is_damaged(&self) -> bool {
        self.protected.as_ref().is_some_and(Protected::is_damaged)
    }

    /// The words of the file.
    #[inline]
    pub(super) fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is page-aligned, `words` long and lives as long as `self`; any bits
        // are a valid word. Of a read-only map nobody in this folder stores into the words.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.words) }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        self.protected = None;
        // SAFETY: unmaps exactly what `new` mapped; nothing borrowed from `self` is left.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.words * WORD) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn what_no_disk_holds_is_an_error() {
        let file = tempfile::tempfile().unwrap();
        assert!(Map::create(&file, 1 << 50).is_err());
        assert!(Map::create(&file, usize::MAX).is_err());
    }

    #[test]
    fn map_outlives_the_end_of_its_file() {
        let file = tempfile::tempfile().unwrap();
        let writer = Map::create(&file, 2048).unwrap();
        let reader = Map::read_only(&file, 2048).unwrap();
        writer.words()[2000].store(7, Ordering::Relaxed);
        assert_eq!(reader.words()[2000].load(Ordering::Relaxed), 7);
        file.set_len(4096).unwrap();
        assert!(!writer.is_damaged() && !reader.is_damaged());
        assert_eq!(reader.words()[2000].load(Ordering::Relaxed), 0);
        writer.words()[2000].store(8, Ordering::Relaxed);
        assert_eq!(writer.words()[2000].load(Ordering::Relaxed), 8);
        assert!(writer.is_damaged() && reader.is_damaged());
        writer.words()[0].store(9, Ordering::Relaxed);
        assert_eq!(reader.words()[0].load(Ordering::Relaxed), 9);
    }

    #[test]
    fn private_words_begin_as_zeros() {
        let map = Map::private(1000).unwrap();
        assert!(map.words().iter().all(|it| it.load(Ordering::Relaxed) == 0));
        assert!(Map::private(0).is_err());
    }

    #[test]
    fn a_short_file_is_an_error() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4095).unwrap();
        let error = Map::read_only(&file, 512).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        file.set_len(4096).unwrap();
        assert_eq!(Map::read_only(&file, 512).unwrap().words().len(), 512);
    }
}
