//! Finds the NCCL library that the loader would have found without this library.
//!
//! With `run --nccl soname` this library has NCCL's name, so the loader gives it to every program
//! that asks for `libnccl.so.2`. The real one is searched for in the loader's order: `DT_RPATH` of
//! the loaded objects (PyTorch finds its NCCL package this way), `LD_LIBRARY_PATH`, `DT_RUNPATH`,
//! the loader's cache, and the system's folders.
#![expect(unsafe_code, reason = "asks the loader where it looks for what a library needs")]

use std::env;
use std::ffi::{CStr, CString, OsStr, OsString, c_char, c_int, c_uint, c_void};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::ptr;

/// File names of NCCL.
const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];
/// The loader's cache of system libraries.
const CACHE: &str = "/etc/ld.so.cache";
/// Limits on folders per library and on the size of the cache, in bytes.
const MAX_FOLDERS: usize = 1024;
const MAX_CACHE: u64 = 16 << 20;

/// Files that may be NCCL, most likely first. They may not exist, and may include this library.
pub(super) fn candidates() -> Vec<CString> {
    let in_folders = |folders: Vec<PathBuf>| {
        let files = |folder: PathBuf| NAMES.map(|name| folder.join(name));
        folders.into_iter().flat_map(files)
    };
    let common = own_object().map(|it| folders_of(&it)).unwrap_or_default();
    // DT_RPATH comes before `LD_LIBRARY_PATH`, DT_RUNPATH after it.
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
    let path_list = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let listed = env::split_paths(&path_list).filter(|it| it.is_absolute());
    let files = in_folders(before)
        .chain(in_folders(listed.collect()))
        .chain(in_folders(after))
        .chain(cached())
        .chain(in_folders(common));
    files.filter_map(|file| CString::new(file.into_os_string().into_vec()).ok()).collect()
}

// --- Folders of the loader -----------------------------------------------------------------------

/// Names of all loaded objects, as the loader has them; the program's own name is empty.
fn objects() -> Vec<CString> {
    unsafe extern "C" fn note(
        info: *mut libc::dl_phdr_info,
        _: libc::size_t,
        found: *mut c_void,
    ) -> c_int {
        // SAFETY: the loader passes a valid description, and the pointer that it was given below.
        let (name, found) = unsafe { ((*info).dlpi_name, &mut *found.cast::<Vec<CString>>()) };
        if !name.is_null() {
            // SAFETY: the loader's name of an object is NUL-terminated.
            found.push(unsafe { CStr::from_ptr(name) }.to_owned());
        }
        0
    }
    let mut found: Vec<CString> = Vec::new();
    // SAFETY: the callback gets the pointer passed here, which lives until the iteration ends, and
    // does not call the loader.
    unsafe { libc::dl_iterate_phdr(Some(note), ptr::from_mut(&mut found).cast()) };
    found
}

/// Name of this library. It has no DT_RPATH or DT_RUNPATH, so its folders are those that all
/// objects share.
fn own_object() -> Option<CString> {
    // SAFETY: all zeros are a valid value.
    let mut found: libc::Dl_info = unsafe { std::mem::zeroed() };
    let here = own_object as fn() -> Option<CString> as *const c_void;
    // SAFETY: the address is that of a function in this code; `found` is valid for the write.
    let is_known = unsafe { libc::dladdr(here, &mut found) } != 0;
    if !is_known || found.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader's name of an object is NUL-terminated.
    Some(unsafe { CStr::from_ptr(found.dli_fname) }.to_owned())
}

/// `Dl_serpath`, `Dl_serinfo` and their request codes, from `dlfcn.h`.
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

/// Folders that the loader searches for the dependencies of an object, in its order.
fn folders_of(object: &CStr) -> Vec<PathBuf> {
    let name = if object.is_empty() { ptr::null() } else { object.as_ptr() };
    // SAFETY: the name is NUL-terminated, or null for the program itself; nothing is loaded.
    let handle = unsafe { libc::dlopen(name, libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if handle.is_null() {
        return Vec::new();
    }
    let found = query_folders(handle).unwrap_or_default();
    // SAFETY: releases the reference that `dlopen` took.
    unsafe { libc::dlclose(handle) };
    found
}

fn query_folders(handle: *mut c_void) -> Option<Vec<PathBuf>> {
    // SAFETY: all zeros are a valid value.
    let mut size: Folders = unsafe { std::mem::zeroed() };
    let asked = ptr::from_mut(&mut size).cast();
    // SAFETY: the handle comes from the loader, which writes the first two fields.
    if unsafe { libc::dlinfo(handle, SIZE_OF_FOLDERS, asked) } != 0
        || size.count as usize > MAX_FOLDERS
    {
        return None;
    }
    // Allocated in words for alignment.
    let mut room = vec![0_usize; size.bytes.div_ceil(size_of::<usize>()).max(4)];
    let folders = room.as_mut_ptr().cast::<Folders>();
    // SAFETY: there is room for the reported size, and the first two fields state it.
    unsafe {
        (*folders).bytes = size.bytes;
        (*folders).count = size.count;
        if libc::dlinfo(handle, FOLDERS, folders.cast()) != 0 {
            return None;
        }
    }
    let mut found = Vec::new();
    for i in 0..size.count as usize {
        // SAFETY: the loader has filled in that many entries, each with a NUL-terminated text in
        // the same allocation.
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

// --- Cache of the loader -------------------------------------------------------------------------

/// Paths of NCCL in the loader's cache.
fn cached() -> Vec<PathBuf> {
    let is_short = fs::metadata(CACHE).is_ok_and(|it| it.len() <= MAX_CACHE);
    let cache = is_short.then(|| fs::read(CACHE).ok()).flatten();
    NAMES.iter().flat_map(|name| in_cache(cache.as_deref().unwrap_or_default(), name)).collect()
}

/// Paths of a library in a cache: the format of glibc since 2.2, which may follow an older one
/// (`struct cache_file_new` in its `dl-cache.h`).
fn in_cache(cache: &[u8], name: &str) -> Vec<PathBuf> {
    const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
    /// Sizes of the header and of an entry, in bytes.
    const HEAD: usize = 48;
    const ENTRY: usize = 24;
    /// Library type in an entry's flags: glibc, any architecture.
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

    /// A cache with these flags, names and paths.
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
    fn damaged_loader_cache_is_tolerated() {
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
        // After a cache in the older format.
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
    fn loader_reports_its_search_folders() {
        let program = folders_of(c"");
        assert!(!program.is_empty() && program.iter().all(|it| it.is_absolute()));
        assert!(folders_of(c"no such object").is_empty());
        assert!(objects().iter().any(|it| it.is_empty()));
        assert!(own_object().is_some());
        // The files need not exist on this machine.
        assert!(
            candidates().iter().all(|it| it.to_bytes().ends_with(b"libnccl.so")
                || it.to_bytes().ends_with(b"libnccl.so.2"))
        );
    }
}
