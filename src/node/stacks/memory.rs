//! Memory of another process, a page at a time, read once.
//!
//! What is read may change while it is read, and any pointer in it may lead anywhere: every read can
//! fail, and there is an end to how much is read at all.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Bytes that are read at a time. Pages may be larger, never smaller.
const PAGE: u64 = 4096;
/// Pages that are read for one look at a process: 64 MiB. PyTorch jobs take some hundred.
const MOST_PAGES: usize = 16_384;

/// Why something could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Nothing is there, or the process has ended.
    #[error("there is nothing at {0:#x}")]
    Unreadable(u64),
    /// It is not what it should be.
    #[error("{0} makes no sense")]
    Nonsense(&'static str),
    /// There is more than is read.
    #[error("there is more to read than anything should need")]
    TooMuch,
}

/// Something that has memory.
pub trait Memory {
    /// Fills the buffer from that address on; whether that could be done.
    fn read(&self, address: u64, buffer: &mut [u8]) -> bool;
}

/// The memory of a process, through `/proc/PID/mem`: nothing of it stops, runs or is changed.
#[derive(Debug)]
pub struct ProcessMemory(File);

impl ProcessMemory {
    /// Opens it. What was opened stays that of this process, whatever becomes of its number.
    ///
    /// # Errors
    ///
    /// When there is no such process, or we may not read it.
    pub fn open(pid: u32) -> io::Result<Self> {
        File::open(format!("/proc/{pid}/mem")).map(Self)
    }
}

impl Memory for ProcessMemory {
    fn read(&self, address: u64, buffer: &mut [u8]) -> bool {
        // The upper half is the kernel's, and not an offset in a file.
        address < 1 << 63 && self.0.read_exact_at(buffer, address).is_ok()
    }
}

/// The pages of a process that were read so far.
pub struct Pages<'a, M> {
    memory: &'a M,
    pages: HashMap<u64, Option<Box<[u8]>>>,
    left: usize,
}

impl<'a, M: Memory> Pages<'a, M> {
    /// None so far.
    pub fn new(memory: &'a M) -> Self {
        Self {
            memory,
            pages: HashMap::new(),
            left: MOST_PAGES,
        }
    }

    /// From now on everything is read anew. What may be read in all does not grow by that.
    pub fn forget(&mut self) {
        self.pages.clear();
    }

    /// Fills the buffer from that address on.
    ///
    /// # Errors
    ///
    /// When something of it cannot be read.
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
            at = at
                .checked_add(length as u64)
                .ok_or(Fault::Unreadable(address))?;
        }
        Ok(())
    }

    /// The number at that address.
    ///
    /// # Errors
    ///
    /// When it cannot be read.
    pub fn u64(&mut self, address: u64) -> Result<u64, Fault> {
        let mut bytes = [0; 8];
        self.bytes(address, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// The number at that address.
    ///
    /// # Errors
    ///
    /// When it cannot be read.
    pub fn u32(&mut self, address: u64) -> Result<u32, Fault> {
        let mut bytes = [0; 4];
        self.bytes(address, &mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    /// So many bytes from that address on. The caller has bounded how many.
    ///
    /// # Errors
    ///
    /// When something of it cannot be read.
    pub fn vec(&mut self, address: u64, length: usize) -> Result<Vec<u8>, Fault> {
        let mut bytes = vec![0; length];
        self.bytes(address, &mut bytes)?;
        Ok(bytes)
    }

    fn page(&mut self, start: u64) -> Result<&[u8], Fault> {
        let Self {
            memory,
            pages,
            left,
        } = self;
        let page = match pages.entry(start) {
            std::collections::hash_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::hash_map::Entry::Vacant(place) => {
                *left = left.checked_sub(1).ok_or(Fault::TooMuch)?;
                let mut page = vec![0; PAGE as usize].into_boxed_slice();
                let is_there = memory.read(start, &mut page);
                place.insert(is_there.then_some(page))
            }
        };
        page.as_deref().ok_or(Fault::Unreadable(start))
    }
}

/// An address so much further on.
///
/// # Errors
///
/// When there is no such address.
pub fn at(address: u64, offset: u64) -> Result<u64, Fault> {
    address
        .checked_add(offset)
        .ok_or(Fault::Unreadable(address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_memory_is_what_we_see() {
        let text = "x".repeat(10_000);
        let memory = ProcessMemory::open(std::process::id()).unwrap();
        let mut pages = Pages::new(&memory);
        let address = text.as_ptr() as u64;
        assert_eq!(pages.vec(address, text.len()), Ok(text.into_bytes()));
    }

    #[test]
    fn addresses_that_lead_nowhere_are_refused() {
        let memory = ProcessMemory::open(std::process::id()).unwrap();
        let mut pages = Pages::new(&memory);
        for address in [
            0,
            1,
            4097,
            u64::MAX,
            u64::MAX - 4095,
            1 << 63,
            0xffff_8000_0000_0000,
        ] {
            assert!(pages.u64(address).is_err(), "{address:#x}");
        }
    }

    #[test]
    fn there_is_an_end_to_reading() {
        struct Everything;
        impl Memory for Everything {
            fn read(&self, _: u64, _: &mut [u8]) -> bool {
                true
            }
        }
        let mut pages = Pages::new(&Everything);
        let read = (0..).find(|page| {
            pages.forget();
            pages.u64(page * PAGE) == Err(Fault::TooMuch)
        });
        assert_eq!(read, Some(MOST_PAGES as u64));
    }
}
