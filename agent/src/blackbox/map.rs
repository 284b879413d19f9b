//! Shared memory maps of files, accessed as atomic words.
#![expect(unsafe_code, reason = "maps files, and lends the memory as atomic words")]

#[cfg(target_endian = "big")]
compile_error!("black boxes are little-endian, and so far are only written in place");

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::slice;
use std::sync::atomic::{AtomicU64, Ordering};

use ddp_doctor_proto::blackbox::WORD;

use super::faults::Protected;
use crate::sys;

/// Words of a cache line.
const WORDS_PER_LINE: usize = 64 / WORD;
/// Words of the smallest page.
const WORDS_PER_PAGE: usize = 4096 / WORD;

/// The first words of a file, or anonymous memory that begins as zeros.
///
/// All access is atomic, so concurrent writes by other processes are not data races. The words of a
/// read-only map may only be loaded.
#[derive(Debug)]
pub(super) struct Map {
    start: NonNull<AtomicU64>,
    words: usize,
    /// `None`: anonymous memory, which cannot be truncated.
    protected: Option<Protected>,
}

// SAFETY: the memory is shared with other processes anyway, and is only lent as atomic words.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Map {
    /// Sets the length of the file and maps it for writing. Disk space for the first `reserved` words
    /// is reserved first, so that a full file system is an error here and not a SIGBUS later.
    pub(super) fn create(file: &File, words: usize, reserved: usize) -> io::Result<Self> {
        let bytes = |words: usize| {
            let bytes = words.checked_mul(WORD).ok_or(io::ErrorKind::InvalidInput)?;
            Ok::<_, io::Error>(bytes as u64)
        };
        sys::reserve(file, bytes(reserved)?)?;
        sys::set_length(file, bytes(words)?)?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let map = Self::new(Some(file), words, protection, libc::MAP_SHARED)?;
        // The pages are populated to avoid page faults on the hot path.
        for word in map.words().iter().take(reserved).step_by(WORDS_PER_PAGE) {
            word.fetch_or(0, Ordering::Relaxed);
        }
        Ok(map)
    }

    /// Maps a file for reading. A shorter file is an error here; it would be a SIGBUS later.
    pub(super) fn read_only(file: &File, words: usize) -> io::Result<Self> {
        let bytes = words.checked_mul(WORD).ok_or(io::ErrorKind::InvalidInput)?;
        if file.metadata()?.len() < bytes as u64 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Self::new(Some(file), words, libc::PROT_READ, libc::MAP_SHARED)
    }

    /// Anonymous zeros, private to this process. Pages take no memory before they are touched.
    pub(super) fn private(words: usize) -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        Self::new(None, words, libc::PROT_READ | libc::PROT_WRITE, flags)
    }

    fn new(file: Option<&File>, words: usize, protection: i32, flags: i32) -> io::Result<Self> {
        let bytes = words.checked_mul(WORD).ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: asks for a new mapping at an address chosen by the kernel, which affects no
        // memory in use.
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
        let mut map = Self { start, words, protected: None };
        if file.is_some() {
            let protected = Protected::new(start.as_ptr() as usize, bytes);
            map.protected = Some(protected.ok_or(io::ErrorKind::OutOfMemory)?);
        }
        Ok(map)
    }

    /// Whether the file was truncated and words were lost.
    pub(super) fn is_damaged(&self) -> bool {
        self.protected.as_ref().is_some_and(Protected::is_damaged)
    }

    /// The mapped words.
    #[inline]
    pub(super) fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is page-aligned, `words` long and lives as long as `self`; all bit
        // patterns are valid words. Code in this folder does not store into read-only maps.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.words) }
    }

    /// Asks the processor to bring these words into its cache, without waiting for them.
    #[inline]
    pub(super) fn prefetch(&self, at: usize, count: usize) {
        let words = self.words().get(at..at + count).unwrap_or_default();
        for word in words.iter().step_by(WORDS_PER_LINE) {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a hint, which does not access memory; x86-64 includes SSE.
            unsafe {
                _mm_prefetch::<_MM_HINT_T0>(word.as_ptr().cast_const().cast());
            }
            #[cfg(not(target_arch = "x86_64"))]
            let _ = word;
        }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        self.protected = None;
        // SAFETY: unmaps exactly what `new` mapped; no borrow of `self` is left.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.words * WORD) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oversized_file_is_an_error() {
        let file = tempfile::tempfile().unwrap();
        assert!(Map::create(&file, 1 << 50, 1 << 50).is_err());
        assert!(Map::create(&file, 1 << 50, 512).is_err());
        assert!(Map::create(&file, usize::MAX, 512).is_err());
    }

    #[test]
    fn map_survives_truncation_of_its_file() {
        let file = tempfile::tempfile().unwrap();
        let writer = Map::create(&file, 2048, 2048).unwrap();
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
    fn short_file_is_an_error() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4095).unwrap();
        let error = Map::read_only(&file, 512).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        file.set_len(4096).unwrap();
        assert_eq!(Map::read_only(&file, 512).unwrap().words().len(), 512);
    }
}
