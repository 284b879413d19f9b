//! The NCCL that is called: found where the loader's own search does not lead.
//!
//! `dlsym(RTLD_NEXT)` finds nothing where the library was loaded for one other library only
//! (`RTLD_LOCAL`), as for every extension of Python. Then it is looked for among what is loaded: the
//! loader gives all who need `libnccl.so.2` the one that was loaded first, and so that is the one. Whoever
//! loads another by its path, and asks that for its functions, does not come here at all. Where that first
//! one is this library itself, the real one is looked for as the loader would have (`search.rs`).
#![expect(unsafe_code, reason = "asks the loader for libraries and functions")]

use std::env;
use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::mem::{self, MaybeUninit};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::search;

/// Names a library to be called where none is found otherwise.
const PATH: &str = "DDP_DOCTOR_NCCL_PATH";
/// What programs ask the loader for.
const NAME: &CStr = c"libnccl.so.2";
/// A function that every NCCL has.
const ANY: &CStr = c"pncclGetVersion";

/// A function of NCCL.
#[derive(Debug)]
pub(crate) struct Function {
    /// Its second name, which nobody interposes on: `pnccl…`. The first one is the same without the `p`.
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Function {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self {
            name,
            address: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Where it is; null: this NCCL does not have it.
    #[inline]
    pub(crate) fn address(&self) -> *mut c_void {
        let known = self.address.load(Ordering::Acquire);
        if known.is_null() { self.find() } else { known }
    }

    #[cold]
    fn find(&self) -> *mut c_void {
        let found = find(self.name);
        self.address.store(found, Ordering::Release);
        found
    }
}

/// Where NCCL has something of this name; null: it does not have it, or there is no NCCL.
#[must_use]
pub fn address_of(name: &'static CStr) -> *mut c_void {
    find(name)
}

/// The library's handle, once it is known.
static LIBRARY: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

fn find(name: &'static CStr) -> *mut c_void {
    let mut library = LIBRARY.load(Ordering::Acquire);
    if library.is_null() {
        library = library_of_the_program().unwrap_or(ptr::null_mut());
        LIBRARY.store(library, Ordering::Release);
    }
    // NCCL of before 2.16 may have no second names.
    let names = [Some(name), first_name(name)];
    let mut names = names.into_iter().flatten();
    names
        .find_map(|name| {
            let handle = if library.is_null() {
                libc::RTLD_NEXT
            } else {
                library
            };
            function(handle, name)
        })
        .unwrap_or(ptr::null_mut())
}

fn first_name(name: &'static CStr) -> Option<&'static CStr> {
    CStr::from_bytes_with_nul(name.to_bytes_with_nul().strip_prefix(b"p")?).ok()
}

/// A function of a library that is not this one.
fn function(handle: *mut c_void, name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the handle is one of the loader's, the name ends in a zero.
    let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
    (!found.is_null() && object_of(found) != object_of(own_address())).then_some(found)
}

fn library_of_the_program() -> Option<*mut c_void> {
    if function(libc::RTLD_NEXT, ANY).is_some() {
        // The next one in the loader's own order.
        return None;
    }
    loaded()
        .iter()
        .find_map(|path| open(path, libc::RTLD_NOLOAD))
        .or_else(|| {
            let would_be = stands_in_its_place().then(search::candidates);
            let would_be = would_be.unwrap_or_default();
            would_be
                .iter()
                .find_map(|path| open(path, libc::RTLD_LOCAL))
        })
        .or_else(|| {
            let path = env::var_os(PATH).filter(|path| !path.is_empty())?;
            open(&CString::new(path.as_bytes()).ok()?, libc::RTLD_LOCAL)
        })
}

/// Whether this library is what programs get that ask for NCCL: then nobody loads the real one.
fn stands_in_its_place() -> bool {
    // SAFETY: the names end in a zero, and nothing is loaded.
    let named = unsafe { libc::dlopen(NAME.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if named.is_null() {
        return false;
    }
    // SAFETY: the handle is that of a library, the name ends in a zero. What was counted is given back.
    let found = unsafe {
        let found = libc::dlsym(named, ANY.as_ptr());
        libc::dlclose(named);
        found
    };
    !found.is_null() && object_of(found) == object_of(own_address())
}

/// Opens a library that has NCCL's functions itself.
fn open(path: &CStr, how: c_int) -> Option<*mut c_void> {
    // SAFETY: the path ends in a zero. With RTLD_NOLOAD nothing is loaded; otherwise it is what somebody
    // named for it.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | how) };
    if handle.is_null() {
        return None;
    }
    let has = [Some(ANY), first_name(ANY)];
    let has = has
        .into_iter()
        .flatten()
        .any(|name| function(handle, name).is_some());
    if !has {
        // SAFETY: gives back what `dlopen` counted.
        unsafe { libc::dlclose(handle) };
        return None;
    }
    // It stays open: the library must not be unloaded while it may be called from here.
    Some(handle)
}

/// Paths of all libraries called `libnccl.so…` that are part of this process, in the order in which they
/// were loaded; without this one, which may be called so, too.
pub(crate) fn loaded() -> Vec<CString> {
    unsafe extern "C" fn note(
        info: *mut libc::dl_phdr_info,
        _: libc::size_t,
        found: *mut c_void,
    ) -> c_int {
        // SAFETY: the loader passes a live description, and what we gave it.
        let (info, found) = unsafe { (&*info, &mut *found.cast::<Found>()) };
        if !info.dlpi_name.is_null() && info.dlpi_addr as usize != found.own {
            // SAFETY: the loader's name of an object ends in a zero.
            let name = unsafe { CStr::from_ptr(info.dlpi_name.cast::<c_char>()) };
            if is_nccl(name) {
                found.paths.push(name.to_owned());
            }
        }
        0
    }
    struct Found {
        /// Where this library begins.
        own: usize,
        paths: Vec<CString>,
    }
    let mut found = Found {
        own: object_of(own_address()),
        paths: Vec::new(),
    };
    // SAFETY: the function takes what is passed here, which lives until it is done, and calls nothing of
    // the loader's.
    unsafe { libc::dl_iterate_phdr(Some(note), ptr::from_mut(&mut found).cast()) };
    found.paths
}

/// The version code of a library that is part of this process already.
pub(crate) fn version_of(path: &CStr) -> Option<c_int> {
    let library = open(path, libc::RTLD_NOLOAD)?;
    let code = [Some(ANY), first_name(ANY)]
        .into_iter()
        .flatten()
        .find_map(|name| function(library, name))
        .and_then(ask_version);
    // SAFETY: gives back what `open` counted.
    unsafe { libc::dlclose(library) };
    code
}

/// What a function `ncclGetVersion` says; null: there is none.
pub(crate) fn ask_version(function: *mut c_void) -> Option<c_int> {
    if function.is_null() {
        return None;
    }
    let mut code: c_int = 0;
    // SAFETY: this is the function's type since 2.2, and `code` is valid for the write.
    let status = unsafe {
        let function: unsafe extern "C" fn(*mut c_int) -> c_int = mem::transmute(function);
        function(&mut code)
    };
    (status == 0).then_some(code)
}

/// By its file's name: `libnccl.so`, `libnccl.so.2`, `libnccl.so.2.27.5`.
fn is_nccl(path: &CStr) -> bool {
    let path = Path::new(OsStr::from_bytes(path.to_bytes()));
    let name = path.file_name().unwrap_or_default().as_bytes();
    name == b"libnccl.so" || name.starts_with(b"libnccl.so.")
}

/// The object that an address belongs to, by where it begins; 0: none.
fn object_of(address: *const c_void) -> usize {
    let mut found = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: `found` is valid for the write; zeros are a valid value of it.
    let found = unsafe {
        libc::dladdr(address, found.as_mut_ptr());
        found.assume_init()
    };
    found.dli_fbase.addr()
}

fn own_address() -> *const c_void {
    (object_of as fn(*const c_void) -> usize as *const ()).cast()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_known_by_their_files_names() {
        for name in [c"/a/libnccl.so.2", c"libnccl.so", c"/x y/libnccl.so.2.27.5"] {
            assert!(is_nccl(name), "{name:?}");
        }
        for name in [
            c"",
            c"/libnccl.so.2/libc.so.6",
            c"libddp_doctor_nccl.so",
            c"libnccl-net.so",
            c"libnccl_static.so.2",
        ] {
            assert!(!is_nccl(name), "{name:?}");
        }
    }

    #[test]
    fn what_no_library_has_is_null_and_no_error() {
        static MISSING: Function = Function::new(c"pncclNoSuchFunction");
        assert!(MISSING.address().is_null());
        assert_eq!(first_name(MISSING.name), Some(c"ncclNoSuchFunction"));
    }
}
