//! Finds the address of a symbol in the memory of a process, in the loaded image itself, like the
//! dynamic linker. No file is opened, since it may be in another container or have been replaced.
//!
//! Sources: System V ABI, "Dynamic Linking"; the hash table of DT_GNU_HASH as read by glibc
//! (`elf/dl-lookup.c`).

use crate::stack_reader::memory::{Fault, Memory, Pages, at};

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_GNU_EH_FRAME: u32 = 0x6474_e550;
const DT_NULL: u64 = 0;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_GNU_HASH: u64 = 0x6fff_fef5;
/// Maximum number of program headers, and of dynamic entries, of an image.
const MAX_ENTRIES: u64 = 512;
/// Maximum number of symbols read of one hash chain.
const MAX_CHAIN: u32 = 4096;
/// Maximum number of symbols read of an image; PyTorch's largest library has 76 000.
const MAX_SYMBOLS: u32 = 400_000;
/// Maximum length of the name of a function, in bytes.
const MAX_NAME: usize = 2048;
const STT_FUNC: u8 = 2;
const STT_GNU_IFUNC: u8 = 10;
/// Size of a symbol, in bytes.
const SYMBOL: u64 = 24;

/// A loaded image and its symbols.
#[derive(Clone, Copy, Debug)]
pub struct Image {
    /// Difference between addresses in memory and addresses in the file, modulo 2^64.
    bias: u64,
    strings: u64,
    symbols: u64,
    hashes: u64,
    /// Address of its sorted table of frames (`.eh_frame_hdr`), if it has one.
    pub unwind: Option<u64>,
}

impl Image {
    /// The image whose file header is at this address.
    ///
    /// # Errors
    ///
    /// If there is no image with symbols, or it is not a 64-bit little-endian image.
    pub fn at<M: Memory>(pages: &mut Pages<'_, M>, base: u64) -> Result<Self, Fault> {
        let mut header = [0; 64];
        pages.bytes(base, &mut header)?;
        if header[..6] != *b"\x7fELF\x02\x01" {
            return Err(Fault::Invalid("the program header"));
        }
        let u16 = |i: usize| u64::from(u16::from_le_bytes([header[i], header[i + 1]]));
        let table = at(base, u64::from(number(&header[32..36])))?;
        let (size, count) = (u16(54), u16(56));
        let mut bias = None;
        let mut dynamic = None;
        let mut unwind = None;
        for i in 0..count.min(MAX_ENTRIES) {
            let entry = at(table, i * size)?;
            let kind = pages.u32(entry)?;
            let offset = pages.u64(at(entry, 8)?)?;
            let address = pages.u64(at(entry, 16)?)?;
            match kind {
                PT_LOAD if bias.is_none() => {
                    bias = Some(base.wrapping_sub(address.wrapping_sub(offset)));
                }
                PT_DYNAMIC => dynamic = Some(address),
                PT_GNU_EH_FRAME => unwind = Some(address),
                _ => {}
            }
        }
        let (Some(bias), Some(dynamic)) = (bias, dynamic) else {
            return Err(Fault::Invalid("the dynamic section"));
        };
        let dynamic = dynamic.wrapping_add(bias);
        let (mut strings, mut symbols, mut hashes) = (None, None, None);
        for i in 0..MAX_ENTRIES {
            let entry = at(dynamic, 16 * i)?;
            let value = pages.u64(at(entry, 8)?)?;
            // glibc relocates these addresses to memory; other C libraries leave the file's
            // addresses.
            let address = if value >= base { value } else { value.wrapping_add(bias) };
            match pages.u64(entry)? {
                DT_NULL => break,
                DT_STRTAB => strings = Some(address),
                DT_SYMTAB => symbols = Some(address),
                DT_GNU_HASH => hashes = Some(address),
                _ => {}
            }
        }
        let (Some(strings), Some(symbols), Some(hashes)) = (strings, symbols, hashes) else {
            return Err(Fault::Invalid("the symbol table"));
        };
        Ok(Self {
            bias,
            strings,
            symbols,
            hashes,
            unwind: unwind.map(|address| address.wrapping_add(bias)),
        })
    }

    /// All functions that it exports.
    ///
    /// # Errors
    ///
    /// If its tables cannot be read.
    pub fn functions<M: Memory>(&self, pages: &mut Pages<'_, M>) -> Result<Functions, Fault> {
        let mut functions = Vec::new();
        let table = Table { start: self.symbols, size: SYMBOL as usize };
        let count = self.count(pages)?;
        table.visit(pages, count, |symbol| {
            let [name, _, value_low, value_high, size_low, size_high] =
                std::array::from_fn(|i| number(&symbol[4 * i..4 * i + 4]));
            let long = |low, high| u64::from(low) | u64::from(high) << 32;
            let (kind, section) = (symbol[4] & 0x0f, [symbol[6], symbol[7]]);
            let size = long(size_low, size_high);
            if section != [0, 0] && size > 0 && matches!(kind, STT_FUNC | STT_GNU_IFUNC) {
                functions.push((long(value_low, value_high), size, name));
            }
        })?;
        functions.sort_unstable();
        Ok(Functions(functions))
    }

    /// The name of the exported function that contains this address; `None` if there is none.
    pub fn name<M: Memory>(
        &self,
        pages: &mut Pages<'_, M>,
        functions: &Functions,
        address: u64,
    ) -> Option<String> {
        let address = address.wrapping_sub(self.bias);
        let behind = functions.0.partition_point(|(start, ..)| *start <= address);
        // A function can have several names, and some contain others.
        let before = functions.0[..behind].iter().rev().take(8);
        let mut candidates = before.filter(|(start, size, _)| address - start < *size);
        let (.., name) = candidates.next()?;
        let mut start = at(self.strings, u64::from(*name)).ok()?;
        let mut text = Vec::new();
        while text.len() < MAX_NAME {
            let mut byte = [0];
            pages.bytes(start, &mut byte).ok()?;
            if byte == [0] {
                break;
            }
            text.push(byte[0]);
            start = at(start, 1).ok()?;
        }
        Some(String::from_utf8_lossy(&text).into_owned())
    }

    /// Number of symbols. Only the hash table has it: its symbols are the last ones.
    fn count<M: Memory>(&self, pages: &mut Pages<'_, M>) -> Result<u32, Fault> {
        let buckets = pages.u32(self.hashes)?;
        let first = pages.u32(at(self.hashes, 4)?)?;
        let bloom = pages.u32(at(self.hashes, 8)?)?;
        let bucket_table = at(self.hashes, 16 + 8 * u64::from(bloom))?;
        let chains = at(bucket_table, 4 * u64::from(buckets))?;
        let mut last = 0;
        let table = Table { start: bucket_table, size: 4 };
        table.visit(pages, buckets, |bucket| last = last.max(number(bucket)))?;
        if last < first {
            return Ok(first);
        }
        while last < MAX_SYMBOLS && pages.u32(at(chains, 4 * u64::from(last - first))?)? & 1 == 0 {
            last += 1;
        }
        Ok(last + 1)
    }

    /// The address of a symbol that it defines.
    ///
    /// # Errors
    ///
    /// If its tables cannot be read.
    pub fn symbol<M: Memory>(
        &self,
        pages: &mut Pages<'_, M>,
        name: &str,
    ) -> Result<Option<u64>, Fault> {
        let buckets = pages.u32(self.hashes)?;
        let first = pages.u32(at(self.hashes, 4)?)?;
        let bloom = pages.u32(at(self.hashes, 8)?)?;
        if buckets == 0 {
            return Ok(None);
        }
        let bucket_table = at(self.hashes, 16 + 8 * u64::from(bloom))?;
        let chains = at(bucket_table, 4 * u64::from(buckets))?;
        let wanted = gnu_hash(name);
        let start = pages.u32(at(bucket_table, 4 * u64::from(wanted % buckets))?)?;
        if start < first {
            return Ok(None);
        }
        for index in start..start.saturating_add(MAX_CHAIN) {
            let hash = pages.u32(at(chains, 4 * u64::from(index - first))?)?;
            if hash | 1 == wanted | 1 {
                let symbol = at(self.symbols, SYMBOL * u64::from(index))?;
                let text = at(self.strings, u64::from(pages.u32(symbol)?))?;
                let section = pages.u32(at(symbol, 4)?)? >> 16;
                let is_it = pages.vec(text, name.len() + 1)?;
                if section != 0 && is_it.strip_suffix(b"\0") == Some(name.as_bytes()) {
                    let address = pages.u64(at(symbol, 8)?)?;
                    return Ok(Some(address.wrapping_add(self.bias)));
                }
            }
            if hash & 1 == 1 {
                return Ok(None);
            }
        }
        Ok(None)
    }
}

/// Functions of a file, sorted by address: address in the file, size, and offset of the name.
#[derive(Clone, Debug, Default)]
pub struct Functions(Vec<(u64, u64, u32)>);

/// A table of consecutive entries of one size.
#[derive(Clone, Copy)]
struct Table {
    start: u64,
    size: usize,
}

impl Table {
    /// Passes the first `count` entries, at most [`MAX_SYMBOLS`], to a function.
    fn visit<M: Memory>(
        self,
        pages: &mut Pages<'_, M>,
        count: u32,
        mut see: impl FnMut(&[u8]),
    ) -> Result<(), Fault> {
        /// Number of entries read at a time.
        const AT_ONCE: usize = 4096;
        let mut left = count.min(MAX_SYMBOLS) as usize;
        let mut start = self.start;
        while left > 0 {
            let now = left.min(AT_ONCE);
            let bytes = pages.vec(start, now * self.size)?;
            bytes.chunks_exact(self.size).for_each(&mut see);
            start = at(start, bytes.len() as u64)?;
            left -= now;
        }
        Ok(())
    }
}

fn gnu_hash(name: &str) -> u32 {
    name.bytes().fold(5381, |hash: u32, byte| hash.wrapping_mul(33).wrapping_add(u32::from(byte)))
}

fn number(bytes: &[u8]) -> u32 {
    bytes.iter().rev().fold(0, |number, &byte| number << 8 | u32::from(byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stack_reader::maps;
    use crate::stack_reader::memory::ProcessMemory;

    #[test]
    fn libc_symbol_is_found_at_its_address() {
        let pid = std::process::id();
        let memory = ProcessMemory::open(pid).unwrap();
        let mut pages = Pages::new(&memory);
        let images = maps::images(pid).unwrap();
        let c_library = images.iter().find(|image| image.file_name().starts_with("libc.so"));
        let image = Image::at(&mut pages, c_library.unwrap().start).unwrap();
        let found = image.symbol(&mut pages, "getpid").unwrap();
        assert_eq!(found, Some(libc::getpid as *const () as u64));
        assert_eq!(image.symbol(&mut pages, "no_such_symbol"), Ok(None));
        let functions = image.functions(&mut pages).unwrap();
        let name = |address| image.name(&mut pages, &functions, address);
        let names = [found.unwrap(), found.unwrap() + 1, 0].map(name);
        assert_eq!(names, [Some("getpid".into()), Some("getpid".into()), None]);
    }

    #[test]
    fn invalid_image_is_rejected() {
        let bytes = vec![0x7f_u8; 8192];
        let memory = ProcessMemory::open(std::process::id()).unwrap();
        assert!(Image::at(&mut Pages::new(&memory), bytes.as_ptr() as u64).is_err());
        assert_eq!(gnu_hash("printf"), 0x156b_2bb8);
    }
}
