//! Memory of another process, read and cached by page.
//!
//! The memory may change while it is read, and pointers in it may be invalid. Every read can
//! therefore fail, and the total amount is limited.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Number of bytes read at a time. Pages of the system may be larger, but not smaller.
const PAGE: u64 = 4096;
/// Maximum number of pages read in one capture, 64 MiB. PyTorch jobs need some hundred.
const MAX_PAGES: usize = 16_384;

/// Error of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The address is not mapped, or the process has ended.
    #[error("address {0:#x} cannot be read")]
    Unreadable(u64),
    /// The content is invalid.
    #[error("{0} is invalid")]
    Invalid(&'static str),
    /// The limit of pages is reached.
    #[error("the limit of memory to read is reached")]
    LimitReached,
}

/// Readable memory.
pub trait Memory {
    /// Fills the buffer from an address on; returns whether that succeeded.
    fn read(&self, address: u64, buffer: &mut [u8]) -> bool;
}

/// The memory of a process, read through `/proc/PID/mem` without stopping or changing the process.
#[derive(Debug)]
pub struct ProcessMemory(File);

impl ProcessMemory {
    /// Opens the memory of a process. It refers to this process even after the pid is reused.
    ///
    /// # Errors
    ///
    /// If there is no such process, or access is denied.
    pub fn open(pid: u32) -> io::Result<Self> {
        File::open(format!("/proc/{pid}/mem")).map(Self)
    }
}

impl Memory for ProcessMemory {
    fn read(&self, address: u64, buffer: &mut [u8]) -> bool {
        // The upper half belongs to the kernel and is not a valid file offset.
        address < 1 << 63 && self.0.read_exact_at(buffer, address).is_ok()
    }
}

/// Cache of the pages of a process.
pub struct Pages<'a, M> {
    memory: &'a M,
    pages: HashMap<u64, Option<Box<[u8]>>>,
    left: usize,
}

impl<'a, M: Memory> Pages<'a, M> {
    /// Creates an empty cache.
    pub fn new(memory: &'a M) -> Self {
        Self { memory, pages: HashMap::new(), left: MAX_PAGES }
    }

    /// Clears the cache. The limit of pages is not reset.
    pub fn clear(&mut self) {
        self.pages.clear();
    }

    /// Fills the buffer from an address on.
    ///
    /// # Errors
    ///
    /// If a part of it cannot be read.
    pub fn bytes(&mut self, address: u64, buffer: &mut [u8]) -> Result<(), Fault> {
        let mut at = address;
        let mut rest = buffer;
        while !rest.is_empty() {
            let offset = (at % PAGE) as usize;
            let page = self.page(at - offset as u64)?;
            let length = rest.len().min(page.len() - offset);
            let (now, later) = rest.split_at_mut(length);
            now.copy_from_slice(&page[offset..offset + length]);
            rest = later;
            at = at.checked_add(length as u64).ok_or(Fault::Unreadable(address))?;
        }
        Ok(())
    }

    /// The little-endian number at an address.
    ///
    /// # Errors
    ///
    /// If it cannot be read.
    pub fn u64(&mut self, address: u64) -> Result<u64, Fault> {
        let mut bytes = [0; 8];
        self.bytes(address, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// The little-endian number at an address.
    ///
    /// # Errors
    ///
    /// If it cannot be read.
    pub fn u32(&mut self, address: u64) -> Result<u32, Fault> {
        let mut bytes = [0; 4];
        self.bytes(address, &mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    /// Reads `length` bytes from an address on. The caller must bound the length.
    ///
    /// # Errors
    ///
    /// If a part of it cannot be read.
    pub fn vec(&mut self, address: u64, length: usize) -> Result<Vec<u8>, Fault> {
        let mut bytes = vec![0; length];
        self.bytes(address, &mut bytes)?;
        Ok(bytes)
    }

    fn page(&mut self, start: u64) -> Result<&[u8], Fault> {
        let Self { memory, pages, left } = self;
        let page = match pages.entry(start) {
            std::collections::hash_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::hash_map::Entry::Vacant(place) => {
                *left = left.checked_sub(1).ok_or(Fault::LimitReached)?;
                let mut page = vec![0; PAGE as usize].into_boxed_slice();
                let is_there = memory.read(start, &mut page);
                place.insert(is_there.then_some(page))
            }
        };
        page.as_deref().ok_or(Fault::Unreadable(start))
    }
}

/// Adds an offset to an address.
///
/// # Errors
///
/// If the sum overflows.
pub fn at(address: u64, offset: u64) -> Result<u64, Fault> {
    address.checked_add(offset).ok_or(Fault::Unreadable(address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_memory_is_read_correctly() {
        let text = "x".repeat(10_000);
        let memory = ProcessMemory::open(std::process::id()).unwrap();
        let mut pages = Pages::new(&memory);
        let address = text.as_ptr() as u64;
        assert_eq!(pages.vec(address, text.len()), Ok(text.into_bytes()));
    }

    #[test]
    fn invalid_addresses_are_rejected() {
        let memory = ProcessMemory::open(std::process::id()).unwrap();
        let mut pages = Pages::new(&memory);
        for address in [0, 1, 4097, u64::MAX, u64::MAX - 4095, 1 << 63, 0xffff_8000_0000_0000] {
            assert!(pages.u64(address).is_err(), "{address:#x}");
        }
    }

    #[test]
    fn reading_stops_at_the_page_limit() {
        struct Everything;
        impl Memory for Everything {
            fn read(&self, _: u64, _: &mut [u8]) -> bool {
                true
            }
        }
        let mut pages = Pages::new(&Everything);
        let read = (0..).find(|page| {
            pages.clear();
            pages.u64(page * PAGE) == Err(Fault::LimitReached)
        });
        assert_eq!(read, Some(MAX_PAGES as u64));
    }
}
