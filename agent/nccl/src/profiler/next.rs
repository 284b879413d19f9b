//! Another profiler, which NCCL would have loaded and is to hear of everything too.
//!
//! It gets what it asks for, with its own contexts and events in the place of ours, in the version that NCCL
//! speaks: one that does not know that version hears of nothing.
#![expect(unsafe_code, reason = "loads a profiler and calls it as NCCL would")]

use std::env;
use std::ffi::{CString, OsStr, OsString, c_int, c_void};
use std::mem;
use std::os::unix::ffi::OsStrExt;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

use super::events::{self, Event};
use super::layout::{self, Descriptor, kind};
use super::{Init4, Init5, Plugin, Said};

/// Names it, as `NCCL_PROFILER_PLUGIN` would: a path, a file, or what stands in a file's name.
const NAME: &str = "DDP_DOCTOR_NEXT_PROFILER";

/// What it asks for: one number for all communicators, which it may write at any time.
static MASK: AtomicI32 = AtomicI32::new(0);
/// The functions that are called without knowing a communicator; null: there is no other profiler.
static STOP: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
static RECORD: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// What it exports, whatever the version: only the type of `init` differs.
type Any = Plugin<*const c_void>;

/// It, for one communicator.
pub(super) struct Next {
    plugin: &'static Any,
    context: *mut c_void,
}

impl Next {
    /// Tells it of a communicator; `None`: there is no other profiler, or it wants none of this.
    pub(super) fn of(said: &Said) -> Option<Self> {
        /// NCCL speaks one version with all of a process.
        static FOUND: OnceLock<Option<&'static Any>> = OnceLock::new();
        let plugin = (*FOUND.get_or_init(|| load(&env::var_os(NAME)?, said.version)))?;
        let (mut context, mask) = (ptr::null_mut(), MASK.as_ptr());
        let (hash, name, log) = (said.hash, said.name, said.log);
        let (nodes, ranks, rank) = (said.nodes, said.ranks, said.rank);
        // SAFETY: the function has the type of that version, and is given what NCCL gave, a mask that lives
        // for ever, and where the context is to be put.
        let answer = unsafe {
            if said.version < 5 {
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

    /// What it asks for.
    #[expect(clippy::unused_self, reason = "what nobody has, nobody asks")]
    pub(super) fn mask(&self) -> u64 {
        u64::from(MASK.load(Ordering::Relaxed).cast_unsigned())
    }

    /// Whether it asks for such an event, or for what may be part of it.
    pub(super) fn wants(&self, descriptor: Descriptor) -> bool {
        self.mask() & with_parts(descriptor.kind()) != 0
    }

    /// Tells it of an event, and keeps what it gives for it.
    pub(super) fn start(&self, descriptor: Descriptor, event: &Event) {
        let mut copy = [0_u64; layout::LONGEST / 8];
        descriptor.copy(&mut copy);
        let is_foreign = descriptor.kind() == kind::PROXY_OP && descriptor.is_foreign();
        let parents: &[usize] = match (descriptor.version(), descriptor.kind()) {
            // What it belongs to is in another process: it is for nobody to look at here.
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
            // What is part of nothing that it knows, it is not told of.
            if at == layout::PARENT && ours != 0 && theirs.is_null() {
                return;
            }
            *word = theirs.addr() as u64;
        }
        let mut given = ptr::null_mut();
        // SAFETY: its context, and a descriptor that is laid out as NCCL's.
        let answer =
            unsafe { (self.plugin.start)(self.context, &raw mut given, copy.as_ptr().cast()) };
        if answer == 0 {
            event.next.store(given, Ordering::Release);
        }
    }

    /// The communicator is gone.
    pub(super) fn finalize(&self) {
        // SAFETY: its context, for the last time.
        unsafe { (self.plugin.finalize)(self.context) };
    }
}

/// An event has ended.
pub(super) fn stop(event: &Event) {
    let theirs = event.next();
    let stop = STOP.load(Ordering::Acquire);
    if theirs.is_null() || stop.is_null() {
        return;
    }
    // SAFETY: the function of the profiler that gave the event, of the type that all versions have.
    unsafe {
        let stop: unsafe extern "C" fn(*mut c_void) -> c_int = mem::transmute(stop);
        stop(theirs);
    }
}

/// An event is in another state.
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

/// A kind and those that may be part of it: whoever asks for a part is told of the whole.
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

/// Loads the profiler of a name, as NCCL would.
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
        // SAFETY: the name ends in a zero. What is loaded is what the user named for it; it stays, since
        // its threads and ours may be in it at any time.
        let library = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_NOW | libc::RTLD_NODELETE) };
        if library.is_null() {
            return None;
        }
        // SAFETY: the handle is that of a library, the name ends in a zero.
        let found = unsafe { libc::dlsym(library, symbol.as_ptr()) };
        // SAFETY: what is exported under this name has this layout, and lives as long as its library.
        unsafe { found.cast::<Any>().as_ref() }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_asks_for_a_part_is_told_of_the_whole() {
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
    fn what_is_no_profiler_is_none() {
        for name in [
            "",
            "none",
            "no-such-profiler",
            "/no/such/file.so",
            "libc.so.6",
        ] {
            assert!(load(OsStr::new(name), 7).is_none(), "{name}");
        }
    }
}
