//! Where the loader would have found NCCL, had this library not stood in its place.
//!
//! Under NCCL's own name (`run --nccl soname`) this library is what every program gets that asks for
//! `libnccl.so.2`, and the real one is loaded by nobody. So it is looked for in the loader's order: where
//! libraries and programs say themselves (`DT_RPATH`: that is how PyTorch's finds the one of its package), in
//! `LD_LIBRARY_PATH`, where they say that only now (`DT_RUNPATH`), in the loader's cache, and in the system's
//! own folders.
#![expect(
    unsafe_code,
    reason = "asks the loader where it looks for what a library needs"
)]

use std::env;
use std::ffi::{CStr, CString, OsStr, OsString, c_char, c_int, c_uint, c_void};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::ptr;

/// The names that it has there.
const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];
/// What the loader remembers of the system's libraries.
const CACHE: &str = "/etc/ld.so.cache";
/// Folders of one library, and bytes of the cache, that are believed.
const MOST_FOLDERS: usize = 1024;
const LONGEST_CACHE: u64 = 16 << 20;

/// Files that may be NCCL, the likeliest first. They may not be there, and this library may be among them.
pub(crate) fn candidates() -> Vec<CString> {
    let in_folders = |folders: Vec<PathBuf>| {
        let files = |folder: PathBuf| NAMES.map(|name| folder.join(name));
        folders.into_iter().flat_map(files)
    };
    let common = own_object().map(|it| folders_of(&it)).unwrap_or_default();
    // What an object names comes before `LD_LIBRARY_PATH`, or after it, as the linker was told.
    let (mut before, mut after) = (Vec::new(), Vec::new());
    for object in objects() {
        let mut into = &mut before;
        for folder in folders_of(&object) {
            if common.contains(&folder) {
                into = &mut after;
            } else if !into.contains(&folder) {
                into.push(folder);
            }
        }
    }
    let listed = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let listed = env::split_paths(&listed).filter(|it| it.is_absolute());
    let files = in_folders(before)
        .chain(in_folders(listed.collect()))
        .chain(in_folders(after))
        .chain(cached())
        .chain(in_folders(common));
    files
        .filter_map(|file| CString::new(file.into_os_string().into_vec()).ok())
        .collect()
}

// --- What the loader says ------------------------------------------------------------------------

/// Names of all that is part of this process, as the loader has them; the program's own is empty.
fn objects() -> Vec<CString> {
    unsafe extern "C" fn note(
        info: *mut libc::dl_phdr_info,
        _: libc::size_t,
        found: *mut c_void,
    ) -> c_int {
        // SAFETY: the loader passes a live description, and what we gave it.
        let (name, found) = unsafe { ((*info).dlpi_name, &mut *found.cast::<Vec<CString>>()) };
        if !name.is_null() {
            // SAFETY: the loader's name of an object ends in a zero.
            found.push(unsafe { CStr::from_ptr(name) }.to_owned());
        }
        0
    }
    let mut found: Vec<CString> = Vec::new();
    // SAFETY: the function takes what is passed here, which lives until it is done, and calls nothing of
    // the loader's.
    unsafe { libc::dl_iterate_phdr(Some(note), ptr::from_mut(&mut found).cast()) };
    found
}

/// This library, whose folders are those that every object has: it names none itself.
fn own_object() -> Option<CString> {
    // SAFETY: zeros are a valid value of it.
    let mut found: libc::Dl_info = unsafe { std::mem::zeroed() };
    let here = own_object as fn() -> Option<CString> as *const c_void;
    // SAFETY: the address is one of this code; `found` is valid for the write.
    let is_known = unsafe { libc::dladdr(here, &mut found) } != 0;
    if !is_known || found.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader's name of an object ends in a zero.
    Some(unsafe { CStr::from_ptr(found.dli_fname) }.to_owned())
}

/// `Dl_serpath`, `Dl_serinfo` and what asks for them, as `dlfcn.h` has them.
#[repr(C)]
struct Folder {
    name: *const c_char,
    flags: c_uint,
}

#[repr(C)]
struct Folders {
    bytes: usize,
    count: c_uint,
    first: [Folder; 1],
}

const FOLDERS: c_int = 4;
const SIZE_OF_FOLDERS: c_int = 5;

/// Folders in which the loader looks for what an object needs, in its order.
fn folders_of(object: &CStr) -> Vec<PathBuf> {
    let name = if object.is_empty() {
        ptr::null()
    } else {
        object.as_ptr()
    };
    // SAFETY: the name ends in a zero, or is null for the program itself; nothing is loaded.
    let handle = unsafe { libc::dlopen(name, libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if handle.is_null() {
        return Vec::new();
    }
    let found = ask_for_folders(handle).unwrap_or_default();
    // SAFETY: gives back what `dlopen` counted.
    unsafe { libc::dlclose(handle) };
    found
}

fn ask_for_folders(handle: *mut c_void) -> Option<Vec<PathBuf>> {
    // SAFETY: all zeros are a valid value of it.
    let mut size: Folders = unsafe { std::mem::zeroed() };
    let asked = ptr::from_mut(&mut size).cast();
    // SAFETY: the handle is one of the loader's, which writes the first two fields.
    if unsafe { libc::dlinfo(handle, SIZE_OF_FOLDERS, asked) } != 0
        || size.count as usize > MOST_FOLDERS
    {
        return None;
    }
    // As many words as it says, so that what is put there is aligned.
    let mut room = vec![0_usize; size.bytes.div_ceil(size_of::<usize>()).max(4)];
    let folders = room.as_mut_ptr().cast::<Folders>();
    // SAFETY: there is room for so many, and the head says for how many.
    unsafe {
        (*folders).bytes = size.bytes;
        (*folders).count = size.count;
        if libc::dlinfo(handle, FOLDERS, folders.cast()) != 0 {
            return None;
        }
    }
    let mut found = Vec::new();
    for i in 0..size.count as usize {
        // SAFETY: the loader has filled in so many, each with a text that ends in a zero and lies in
        // the same room.
        let name = unsafe {
            let first = ptr::addr_of!((*folders).first).cast::<Folder>();
            (*first.add(i)).name
        };
        if !name.is_null() {
            // SAFETY: as above.
            let name = unsafe { CStr::from_ptr(name) };
            found.push(PathBuf::from(OsStr::from_bytes(name.to_bytes())));
        }
    }
    Some(found)
}

// --- What it remembers ---------------------------------------------------------------------------

/// The paths that the loader's cache has for the name.
fn cached() -> Vec<PathBuf> {
    let is_short = fs::metadata(CACHE).is_ok_and(|it| it.len() <= LONGEST_CACHE);
    let cache = is_short.then(|| fs::read(CACHE).ok()).flatten();
    NAMES
        .iter()
        .flat_map(|name| in_cache(cache.as_deref().unwrap_or_default(), name))
        .collect()
}

/// The paths that a cache has for a name: the format of glibc from 2.2 on, which may stand behind an
/// older one (`struct cache_file_new` in its `dl-cache.h`).
fn in_cache(cache: &[u8], name: &str) -> Vec<PathBuf> {
    const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
    /// Bytes of the head, and of an entry.
    const HEAD: usize = 48;
    const ENTRY: usize = 24;
    /// The kind of library in an entry's flags: of this C library, whatever the processor.
    const OF_GLIBC: u32 = 3;
    let Some(start) = cache.windows(MAGIC.len()).position(|it| it == MAGIC) else {
        return Vec::new();
    };
    let cache = cache.get(start..).unwrap_or_default();
    let number = |at: usize| {
        let bytes = cache.get(at..)?.first_chunk::<4>()?;
        Some(u32::from_ne_bytes(*bytes))
    };
    let text = |at: u32| {
        let text = CStr::from_bytes_until_nul(cache.get(at as usize..)?).ok()?;
        Some(text.to_bytes())
    };
    let count = number(MAGIC.len()).unwrap_or(0) as usize;
    let entries = cache.get(HEAD..).unwrap_or_default().chunks_exact(ENTRY);
    (0..count.min(entries.len()))
        .filter_map(|i| {
            let at = HEAD + i * ENTRY;
            let (flags, key, value) = (number(at)?, number(at + 4)?, number(at + 8)?);
            let is_meant = flags & 0xff == OF_GLIBC && text(key)? == name.as_bytes();
            let path = OsString::from_vec(text(value)?.to_vec());
            is_meant.then(|| PathBuf::from(path))
        })
        .filter(|path| path.is_absolute())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A cache with these names and paths.
    fn cache(entries: &[(u32, &str, &str)]) -> Vec<u8> {
        let mut texts = Vec::new();
        let mut table = Vec::new();
        let first = 48 + 24 * entries.len();
        for (flags, name, path) in entries {
            let key = first + texts.len();
            texts.extend_from_slice(name.as_bytes());
            texts.push(0);
            let value = first + texts.len();
            texts.extend_from_slice(path.as_bytes());
            texts.push(0);
            for number in [*flags, key as u32, value as u32, 0, 0, 0] {
                table.extend_from_slice(&number.to_ne_bytes());
            }
        }
        let mut cache = b"glibc-ld.so.cache1.1".to_vec();
        cache.extend_from_slice(&(entries.len() as u32).to_ne_bytes());
        cache.resize(48, 0);
        cache.extend(table);
        cache.extend(texts);
        cache
    }

    #[test]
    fn the_loaders_cache_is_read_and_never_believed_too_far() {
        let known = cache(&[
            (0x303, "libc.so.6", "/lib/libc.so.6"),
            (0x303, "libnccl.so.2", "/opt/nccl/libnccl.so.2"),
            (0x301, "libnccl.so.2", "/of/another/libc"),
            (0x303, "libnccl.so.2", "not/absolute"),
        ]);
        let found = |cache: &[u8]| in_cache(cache, "libnccl.so.2");
        let paths = [PathBuf::from("/opt/nccl/libnccl.so.2")];
        assert_eq!(found(&known), paths);
        assert!(in_cache(&known, "libnccl.so").is_empty());
        // Behind an older one.
        let behind = [b"ld.so-1.7.0\0\0\0\0\0".to_vec(), known.clone()].concat();
        assert_eq!(found(&behind), paths);
        for length in 0..known.len() {
            let whole = found(&known[..length]);
            assert!(whole.is_empty() || whole == paths, "{length}: {whole:?}");
        }
        let mut many = known;
        many[20..24].fill(0xff);
        assert_eq!(found(&many), paths);
    }

    #[test]
    fn the_loader_says_where_it_looks() {
        let program = folders_of(c"");
        assert!(!program.is_empty() && program.iter().all(|it| it.is_absolute()));
        assert!(folders_of(c"no such object").is_empty());
        assert!(objects().iter().any(|it| it.is_empty()));
        assert!(own_object().is_some());
        // Whatever of it there is on this machine.
        assert!(
            candidates()
                .iter()
                .all(|it| it.to_bytes().ends_with(b"libnccl.so")
                    || it.to_bytes().ends_with(b"libnccl.so.2"))
        );
    }
}
