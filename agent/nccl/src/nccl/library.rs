//! Finds the NCCL library that is called.
//!
//! `dlsym(RTLD_NEXT)` finds nothing if NCCL was loaded with `RTLD_LOCAL`, as by every Python
//! extension. Then the first loaded `libnccl.so…` is used, since the loader gives it to all
//! libraries that need `libnccl.so.2`. Calls to another NCCL that was loaded by path do not pass
//! through the hooks. If the first one is this library itself, NCCL is searched for as the loader
//! would ([`loader_search`]).
#![expect(unsafe_code, reason = "asks the loader for libraries and functions")]

use std::env;
use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::mem::{self, MaybeUninit};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use super::loader_search;

/// Path of the NCCL library to use if none is found otherwise.
const PATH: &str = "DDP_DOCTOR_NCCL_PATH";
/// Name that programs pass to the loader.
const NAME: &CStr = c"libnccl.so.2";
/// A function that every NCCL has.
const ANY: &CStr = c"pncclGetVersion";

/// An NCCL function.
#[derive(Debug)]
pub(crate) struct Function {
    /// Its alias `pnccl…`, which is not interposed. The public name is the same without the `p`.
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Function {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self { name, address: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Address of the function; null: this NCCL does not have it.
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

/// Address of an NCCL function; null: there is no NCCL, or it does not have the function.
#[must_use]
pub fn address_of(name: &'static CStr) -> *mut c_void {
    find(name)
}

/// Handle of the library, once it is known.
static LIBRARY: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

fn find(name: &'static CStr) -> *mut c_void {
    let mut library = LIBRARY.load(Ordering::Acquire);
    if library.is_null() {
        library = library_of_the_program().unwrap_or(ptr::null_mut());
        LIBRARY.store(library, Ordering::Release);
    }
    // NCCL before 2.16 may have no `pnccl` aliases.
    let mut names = [Some(name), public_name(name)].into_iter().flatten();
    names
        .find_map(|name| {
            let handle = if library.is_null() { libc::RTLD_NEXT } else { library };
            function(handle, name)
        })
        .unwrap_or(ptr::null_mut())
}

fn public_name(name: &'static CStr) -> Option<&'static CStr> {
    CStr::from_bytes_with_nul(name.to_bytes_with_nul().strip_prefix(b"p")?).ok()
}

/// Address of a function in another library than this one.
fn function(handle: *mut c_void, name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the handle comes from the loader, the name is NUL-terminated.
    let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
    (!found.is_null() && object_of(found) != object_of(own_address())).then_some(found)
}

fn library_of_the_program() -> Option<*mut c_void> {
    if function(libc::RTLD_NEXT, ANY).is_some() {
        // `RTLD_NEXT` works.
        return None;
    }
    loaded()
        .iter()
        .find_map(|path| open(path, libc::RTLD_NOLOAD))
        .or_else(|| {
            let would_be =
                stands_in_its_place().then(loader_search::candidates).unwrap_or_default();
            would_be.iter().find_map(|path| open(path, libc::RTLD_LOCAL))
        })
        .or_else(|| {
            let path = env::var_os(PATH).filter(|path| !path.is_empty())?;
            open(&CString::new(path.as_bytes()).ok()?, libc::RTLD_LOCAL)
        })
}

/// Whether the loader gives this library to programs that load NCCL; then the real one is not
/// loaded.
fn stands_in_its_place() -> bool {
    // SAFETY: the name is NUL-terminated, and nothing is loaded.
    let named = unsafe { libc::dlopen(NAME.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if named.is_null() {
        return false;
    }
    // SAFETY: `named` is a library handle, the name is NUL-terminated. `dlclose` releases the
    // reference that `dlopen` took.
    let found = unsafe {
        let found = libc::dlsym(named, ANY.as_ptr());
        libc::dlclose(named);
        found
    };
    !found.is_null() && object_of(found) == object_of(own_address())
}

/// Opens a library if it defines NCCL's functions itself.
fn open(path: &CStr, how: c_int) -> Option<*mut c_void> {
    // SAFETY: the path is NUL-terminated. With RTLD_NOLOAD nothing is loaded; otherwise the path is
    // where the loader would find NCCL, or was set by the user.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | how) };
    if handle.is_null() {
        return None;
    }
    let has = [Some(ANY), public_name(ANY)]
        .into_iter()
        .flatten()
        .any(|name| function(handle, name).is_some());
    if !has {
        // SAFETY: releases the reference that `dlopen` took.
        unsafe { libc::dlclose(handle) };
        return None;
    }
    // The reference is kept, so that the library is not unloaded while it may be called.
    Some(handle)
}

/// Paths of all loaded libraries named `libnccl.so…`, in load order, without this one.
pub(crate) fn loaded() -> Vec<CString> {
    unsafe extern "C" fn note(
        info: *mut libc::dl_phdr_info,
        _: libc::size_t,
        found: *mut c_void,
    ) -> c_int {
        // SAFETY: the loader passes a valid description, and the pointer that it was given below.
        let (info, found) = unsafe { (&*info, &mut *found.cast::<OtherCopies>()) };
        if !info.dlpi_name.is_null() && info.dlpi_addr as usize != found.own {
            // SAFETY: the loader's name of an object is NUL-terminated.
            let name = unsafe { CStr::from_ptr(info.dlpi_name.cast::<c_char>()) };
            if is_nccl(name) {
                found.paths.push(name.to_owned());
            }
        }
        0
    }
    struct OtherCopies {
        /// Base address of this library.
        own: usize,
        paths: Vec<CString>,
    }
    let mut found = OtherCopies { own: object_of(own_address()), paths: Vec::new() };
    // SAFETY: the callback gets the pointer passed here, which lives until the iteration ends, and
    // does not call the loader.
    unsafe { libc::dl_iterate_phdr(Some(note), ptr::from_mut(&mut found).cast()) };
    found.paths
}

/// Version code of a library that is already loaded.
pub(super) fn version_of(path: &CStr) -> Option<c_int> {
    let library = open(path, libc::RTLD_NOLOAD)?;
    let code = [Some(ANY), public_name(ANY)]
        .into_iter()
        .flatten()
        .find_map(|name| function(library, name))
        .and_then(query_version);
    // SAFETY: releases the reference that `open` took.
    unsafe { libc::dlclose(library) };
    code
}

/// Calls `ncclGetVersion`; `None`: the function is null or failed.
pub(super) fn query_version(function: *mut c_void) -> Option<c_int> {
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

/// Whether a path's file name is `libnccl.so`, `libnccl.so.2`, `libnccl.so.2.27.5` or similar.
fn is_nccl(path: &CStr) -> bool {
    let path = Path::new(OsStr::from_bytes(path.to_bytes()));
    let name = path.file_name().unwrap_or_default().as_bytes();
    name == b"libnccl.so" || name.starts_with(b"libnccl.so.")
}

/// Base address of the object that contains an address; 0: none.
fn object_of(address: *const c_void) -> usize {
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: `info` is valid for the write; all zeros are a valid value.
    let found = unsafe {
        libc::dladdr(address, info.as_mut_ptr());
        info.assume_init()
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
    fn nccl_libraries_are_recognized_by_file_name() {
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
    fn missing_function_is_null() {
        static MISSING: Function = Function::new(c"pncclNoSuchFunction");
        assert!(MISSING.address().is_null());
        assert_eq!(public_name(MISSING.name), Some(c"ncclNoSuchFunction"));
    }
}
