//! Lines in native programs: file and line of the machine code that called into the capture.
//!
//! In a program in C, C++ or Rust, capture records only the return address and resolves nothing
//! inside the training process. The box has the address in place of a file ([`ADDRESS`]). While the
//! process lives, it is resolved here to a line, by the file that is loaded at that address and its
//! DWARF debug information. An address without a line is not reported.
//!
//! Files are read as the process sees them, and only if they are still the ones that it has loaded.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use addr2line::Context;
use ddp_doctor_host::input_files;
use ddp_doctor_host::source_files::ProcessRoot;
use ddp_doctor_proto::blackbox::site::ADDRESS;
use ddp_doctor_proto::report::Where;
use ddp_doctor_proto::v1;
use gimli::{EndianArcSlice, LittleEndian, SectionId};
use object::read::elf::{ElfFile64, ProgramHeader};
use object::{Endianness, Object, ObjectSection, ReadCache};

use crate::stack_reader::maps::{self, FileId, Loaded};
use crate::stack_reader::native::readable;

/// Maximum size of a section that is read, in bytes.
const MAX_SECTION_BYTES: u64 = 512 << 20;
/// Maximum number of files whose lines are cached.
const MAX_FILES: usize = 4;
/// Maximum number of cached places of a process.
const MAX_PLACES: usize = 8192;
/// Parts of paths that identify code of libraries, as opposed to the user's program.
const LIBRARIES: [&str; 7] = [
    "/rustc/",
    "/.cargo/registry/",
    "/.cargo/git/",
    "/usr/include/",
    "/usr/lib/",
    "/site-packages/",
    "/dist-packages/",
];

type Slice = EndianArcSlice<LittleEndian>;

/// Cache of the lines of files, shared by all ranks of a node, which run the same program.
#[derive(Debug, Default)]
pub struct LineCache(Mutex<Vec<(FileId, Option<Arc<Lines>>)>>);

/// Debug information of a file.
struct Lines {
    context: Mutex<Context<Slice>>,
    /// Virtual address of the first byte of the file.
    base: u64,
}

/// The places of one process.
#[derive(Debug)]
pub struct ProcessLines {
    pid: u32,
    cache: Arc<LineCache>,
    /// By address in the notation of the box; `None` for an address without a line.
    by_address: HashMap<String, Option<Where>>,
}

impl ProcessLines {
    /// The places of this process.
    #[must_use]
    pub fn new(pid: u32, cache: Arc<LineCache>) -> Self {
        Self { pid, cache, by_address: HashMap::new() }
    }

    /// Replaces the address of a site by its line. Returns `false` if it has no line, or none can
    /// be determined.
    pub fn resolve(&mut self, site: &mut v1::SiteDefined) -> bool {
        let Some(address) = site.file.strip_prefix(ADDRESS) else {
            return true;
        };
        if !self.by_address.contains_key(&site.file) {
            if self.by_address.len() >= MAX_PLACES {
                return false;
            }
            let address = u64::from_str_radix(address, 16).ok();
            let place = address.and_then(|address| self.place(address));
            self.by_address.insert(site.file.clone(), place);
        }
        let Some(Some(place)) = self.by_address.get(&site.file) else {
            return false;
        };
        site.file.clone_from(&place.file);
        site.line = place.line;
        site.function.clone_from(&place.function);
        true
    }

    fn place(&self, address: u64) -> Option<Where> {
        // The return address follows the call and may be beyond the end of the function.
        let address = address.checked_sub(1)?;
        let images = maps::images(self.pid).ok()?;
        let loaded = images.iter().find(|it| (it.start..it.end).contains(&address))?;
        let lines = self.cache.lines(self.pid, loaded)?;
        lines.user_place(address - loaded.start)
    }
}

impl LineCache {
    fn lines(&self, pid: u32, loaded: &Loaded) -> Option<Arc<Lines>> {
        let mut files = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, lines)) = files.iter().find(|(id, _)| *id == loaded.id) {
            return lines.clone();
        }
        let lines = Lines::read(pid, loaded).map(Arc::new);
        if files.len() == MAX_FILES {
            files.remove(0);
        }
        files.push((loaded.id.clone(), lines.clone()));
        lines
    }
}

impl Lines {
    fn read(pid: u32, loaded: &Loaded) -> Option<Self> {
        let file = open(pid, loaded)?;
        let cache = ReadCache::new(file);
        let elf = ElfFile64::<Endianness, _>::parse(&cache).ok()?;
        if !elf.is_little_endian() {
            return None;
        }
        let endian = elf.endian();
        let first = elf
            .elf_program_headers()
            .iter()
            .find(|it| it.p_type(endian) == object::elf::PT_LOAD)?;
        let base = first.p_vaddr(endian).wrapping_sub(first.p_offset(endian));
        let section = |id: SectionId| -> Result<Slice, gimli::Error> {
            let section =
                elf.section_by_name(id.name()).filter(|it| it.size() <= MAX_SECTION_BYTES);
            let bytes = section.and_then(|it| it.data().ok()).unwrap_or_default();
            Ok(EndianArcSlice::new(Arc::from(bytes), LittleEndian))
        };
        let dwarf = gimli::Dwarf::load(section).ok()?;
        let context = Mutex::new(Context::from_dwarf(dwarf).ok()?);
        Some(Self { context, base })
    }

    /// The innermost line of the user's program for the code at an offset in the file, including
    /// inlined functions.
    fn user_place(&self, offset: u64) -> Option<Where> {
        let context = self.context.lock().unwrap_or_else(PoisonError::into_inner);
        let address = self.base.wrapping_add(offset);
        let mut frames = context.find_frames(address).skip_all_loads().ok()?;
        while let Ok(Some(frame)) = frames.next() {
            let Some(location) = frame.location else {
                continue;
            };
            let (Some(file), Some(line)) = (location.file, location.line) else {
                continue;
            };
            if line == 0 || LIBRARIES.iter().any(|part| file.contains(part)) {
                continue;
            }
            let name = frame.function.as_ref().and_then(|it| it.raw_name().ok());
            return Some(Where {
                file: file.to_owned(),
                line,
                function: name.map(|name| readable(&name)).unwrap_or_default(),
                ..Where::default()
            });
        }
        None
    }
}

impl std::fmt::Debug for Lines {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lines").field("base", &self.base).finish()
    }
}

/// Opens a file as the process sees it, if it is still the one that was loaded.
fn open(pid: u32, loaded: &Loaded) -> Option<File> {
    let (_, inode, path) = &loaded.id;
    // Another file may be in its place by now, such as a FIFO, which would block.
    let found = match ProcessRoot::open(pid) {
        Some(root) => root.find(Path::new(path))?,
        None => File::options().read(true).custom_flags(libc::O_PATH).open(path).ok()?,
    };
    let metadata = found.metadata().ok()?;
    let is_same = metadata.is_file() && metadata.ino().to_string() == *inode;
    // Opening a device may have an effect: what is found is looked at first.
    is_same.then(|| input_files::reopen(&found).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(pid: u32, file: &str) -> Option<v1::SiteDefined> {
        let mut site = v1::SiteDefined { file: file.into(), ..v1::SiteDefined::default() };
        let mut lines = ProcessLines::new(pid, Arc::default());
        lines.resolve(&mut site).then_some(site)
    }

    #[test]
    fn address_resolves_to_a_line_of_the_program() {
        let own = u64::try_from((resolved as fn(u32, &str) -> _ as *const ()).addr()).unwrap();
        let site = resolved(std::process::id(), &format!("@{:x}", own + 1)).unwrap();
        let line =
            include_str!("native_lines.rs").lines().position(|it| it.contains("fn resolved("));
        assert!(site.file.ends_with("src/node/follow/native_lines.rs"), "{site:?}");
        assert_eq!(site.line as usize, line.unwrap() + 1);
    }

    #[test]
    fn address_without_a_line_is_no_place() {
        let pid = std::process::id();
        let library = format!("@{:x}", (libc::getpid as *const ()).addr() + 1);
        for nowhere in [library.as_str(), "@10", "@", "@-7f", "@ffffffffffffffffff"] {
            assert_eq!(resolved(pid, nowhere), None, "{nowhere}");
        }
        assert_eq!(resolved(u32::MAX, "@7f0000001000"), None);
    }

    /// A writer that waits for a reader of a FIFO notices when it is opened, even if it is closed at once.
    #[test]
    fn fifo_in_the_place_of_a_program_is_not_opened() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("program");
        let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(made.success());
        let (sender, opened) = std::sync::mpsc::channel();
        let fifo = path.clone();
        let writer = std::thread::spawn(move || {
            let file = File::options().write(true).open(fifo);
            sender.send(file.is_ok()).unwrap();
        });
        let inode = path.metadata().unwrap().ino().to_string();
        let shown = path.to_str().unwrap().to_owned();
        let id = (String::new(), inode, shown.clone());
        let loaded = Loaded { start: 0, end: 1, path: shown, id };
        let limit = std::time::Duration::from_millis(50);
        for _ in 0..10 {
            assert!(open(std::process::id(), &loaded).is_none());
            assert!(opened.recv_timeout(limit).is_err());
        }
        drop(File::open(&path).unwrap());
        writer.join().unwrap();
    }

    #[test]
    fn known_line_is_kept() {
        let site = resolved(u32::MAX, "train.c").unwrap();
        assert_eq!(site.file, "train.c");
    }
}
