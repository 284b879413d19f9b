//! Forwards events to another profiler plugin, which NCCL would have loaded.
//!
//! The plugin gets the events that it requests, with its own contexts and event handles, in the
//! interface version that NCCL uses. A plugin that does not support this version gets nothing.
#![expect(unsafe_code, reason = "loads a profiler and calls it as NCCL would")]

use std::env;
use std::ffi::{CString, OsStr, OsString, c_int, c_void};
use std::mem;
use std::os::unix::ffi::OsStrExt;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

use super::events::{self, Event};
use super::layout::{self, Descriptor, Init4, Init5, InitArguments, Plugin, kind};

/// Name of the plugin in the format of `NCCL_PROFILER_PLUGIN`: a path, a file name, or a part of
/// one.
const NAME: &str = "DDP_DOCTOR_NEXT_PROFILER";

/// Events that the plugin requests: one mask for all communicators, which it may change at any
/// time.
static MASK: AtomicI32 = AtomicI32::new(0);
/// Functions that are called without a communicator; null: there is no other plugin.
static STOP: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
static RECORD: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// The plugin's structure in any version: only the type of `init` differs.
type Any = Plugin<*const c_void>;

/// The plugin with its context for one communicator.
pub(super) struct UserPlugin {
    plugin: &'static Any,
    context: *mut c_void,
}

impl UserPlugin {
    /// Initializes the plugin for a communicator; `None`: there is no plugin, or it failed.
    pub(super) fn load(arguments: &InitArguments) -> Option<Self> {
        /// NCCL uses one interface version per process.
        static FOUND: OnceLock<Option<&'static Any>> = OnceLock::new();
        let plugin = (*FOUND.get_or_init(|| load(&env::var_os(NAME)?, arguments.version)))?;
        let (mut context, mask) = (ptr::null_mut(), MASK.as_ptr());
        let (hash, name, log) = (arguments.hash, arguments.name, arguments.log);
        let (nodes, ranks, rank) = (arguments.nodes, arguments.ranks, arguments.rank);
        // SAFETY: the function has the type of this version, and gets NCCL's arguments, a mask that
        // lives forever, and a valid location for the context.
        let answer = unsafe {
            if arguments.version < 5 {
                let init: Init4 = mem::transmute(plugin.init);
                init(&raw mut context, mask, name, hash, nodes, ranks, rank, log)
            } else {
                let init: Init5 = mem::transmute(plugin.init);
                init(&raw mut context, hash, mask, name, nodes, ranks, rank, log)
            }
        };
        if answer != 0 {
            return None;
        }
        STOP.store(plugin.stop as *mut c_void, Ordering::Release);
        RECORD.store(plugin.record as *mut c_void, Ordering::Release);
        Some(Self { plugin, context })
    }

    /// Events that the plugin requests.
    #[expect(clippy::unused_self, reason = "what nobody has, nobody asks")]
    pub(super) fn mask(&self) -> u64 {
        u64::from(MASK.load(Ordering::Relaxed).cast_unsigned())
    }

    /// Whether the plugin requests this event or a possible descendant.
    pub(super) fn wants(&self, descriptor: Descriptor) -> bool {
        self.mask() & with_parts(descriptor.kind()) != 0
    }

    /// Forwards the start of an event and stores the plugin's handle.
    pub(super) fn start(&self, descriptor: Descriptor, event: &Event) {
        let mut copy = [0_u64; layout::MAX_SIZE / 8];
        descriptor.copy(&mut copy);
        let is_foreign = descriptor.kind() == kind::PROXY_OP && descriptor.is_foreign();
        let parents: &[usize] = match (descriptor.version(), descriptor.kind()) {
            // The parent is in another process and must not be looked up here.
            _ if is_foreign => &[],
            (5.., kind::COLL) => &[layout::PARENT, layout::GROUP_OF_COLL],
            (5.., kind::P2P) => &[layout::PARENT, layout::GROUP_OF_P2P],
            _ => &[layout::PARENT],
        };
        for &at in parents {
            let Some(word) = copy.get_mut(at / 8) else {
                continue;
            };
            let ours = *word as usize;
            let theirs = events::find(ours).map_or(ptr::null_mut(), Event::next);
            // The plugin does not know the parent, so the event is not forwarded.
            if at == layout::PARENT && ours != 0 && theirs.is_null() {
                return;
            }
            *word = theirs.addr() as u64;
        }
        let mut given = ptr::null_mut();
        // SAFETY: the context is the plugin's, and the descriptor has NCCL's layout.
        let answer =
            unsafe { (self.plugin.start)(self.context, &raw mut given, copy.as_ptr().cast()) };
        if answer == 0 {
            event.next.store(given, Ordering::Release);
        }
    }

    /// Forwards the end of the communicator.
    pub(super) fn finalize(&self) {
        // SAFETY: the context is the plugin's, and is not used afterwards.
        unsafe { (self.plugin.finalize)(self.context) };
    }
}

/// Forwards the end of an event.
pub(super) fn stop(event: &Event) {
    let theirs = event.next();
    let stop = STOP.load(Ordering::Acquire);
    if theirs.is_null() || stop.is_null() {
        return;
    }
    // SAFETY: the function belongs to the plugin that returned the handle; all versions have this
    // type.
    unsafe {
        let stop: unsafe extern "C" fn(*mut c_void) -> c_int = mem::transmute(stop);
        stop(theirs);
    }
}

/// Forwards a state change of an event.
pub(super) fn record(event: &Event, state: c_int, arguments: *mut c_void) {
    let theirs = event.next();
    let record = RECORD.load(Ordering::Acquire);
    if theirs.is_null() || record.is_null() {
        return;
    }
    // SAFETY: as above; the arguments are NCCL's.
    unsafe {
        let record: unsafe extern "C" fn(*mut c_void, c_int, *mut c_void) -> c_int =
            mem::transmute(record);
        record(theirs, state, arguments);
    }
}

/// A kind and its possible descendants: a plugin that requests a part also gets the whole.
fn with_parts(kind: u64) -> u64 {
    let of_proxy = kind::PROXY_OP | kind::PROXY_STEP | kind::NET_PLUGIN;
    let of_work = of_proxy | kind::KERNEL_CHANNEL | kind::KERNEL_PHASE;
    let of_engine = kind::CE_COLL | kind::CE_SYNC | kind::CE_BATCH;
    let works = kind::COLL | kind::P2P | of_work;
    kind | match kind {
        kind::GROUP => works,
        kind::GROUP_API => works | of_engine | kind::COLL_API | kind::P2P_API | kind::KERNEL_LAUNCH,
        kind::COLL_API => kind::COLL | of_work | of_engine,
        kind::P2P_API => kind::P2P | of_work,
        kind::COLL | kind::P2P => of_work,
        kind::CE_COLL => of_engine,
        kind::PROXY_OP => of_proxy,
        kind::PROXY_STEP => kind::NET_PLUGIN,
        kind::KERNEL_CHANNEL => kind::KERNEL_PHASE,
        _ => 0,
    }
}

/// Loads a plugin by name, as NCCL does.
fn load(name: &OsStr, version: u32) -> Option<&'static Any> {
    if name.is_empty() || name == "none" {
        return None;
    }
    let mut file = OsString::from("libnccl-profiler-");
    file.push(name);
    file.push(".so");
    let symbol = CString::new(format!("ncclProfiler_v{version}")).ok()?;
    [name, &file].into_iter().find_map(|file| {
        let file = CString::new(file.as_bytes()).ok()?;
        // SAFETY: the name is NUL-terminated. The user has configured this library. It is never
        // unloaded, since other threads may be running its code.
        let library = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_NOW | libc::RTLD_NODELETE) };
        if library.is_null() {
            return None;
        }
        // SAFETY: `library` is a library handle, the name is NUL-terminated.
        let found = unsafe { libc::dlsym(library, symbol.as_ptr()) };
        // SAFETY: an export of this name has this layout and lives as long as its library.
        unsafe { found.cast::<Any>().as_ref() }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_for_a_part_includes_the_whole() {
        for (kind, whole) in [
            (kind::KERNEL_PHASE, kind::KERNEL_CHANNEL),
            (kind::NET_PLUGIN, kind::PROXY_STEP),
            (kind::NET_PLUGIN, kind::P2P),
            (kind::KERNEL_CHANNEL, kind::GROUP_API),
            (kind::COLL, kind::COLL_API),
            (kind::CE_BATCH, kind::CE_COLL),
        ] {
            assert_ne!(with_parts(whole) & kind, 0, "{whole} {kind}");
            assert_eq!(with_parts(kind) & whole, 0, "{kind} {whole}");
        }
    }

    #[test]
    fn library_without_profiler_is_ignored() {
        for name in ["", "none", "no-such-profiler", "/no/such/file.so", "libc.so.6"] {
            assert!(load(OsStr::new(name), 7).is_none(), "{name}");
        }
    }
}
