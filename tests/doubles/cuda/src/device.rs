//! Devices, their contexts and their memory.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock};

use crate::handles::Handles;
use crate::{Result, Status, capture, lock, pointers};

/// Contexts, each with its device.
static CONTEXTS: Handles<usize> = Handles::new(0x7c00_0000_0000);
static IS_INITIALIZED: AtomicBool = AtomicBool::new(false);
/// Primary contexts by device: retain count and handle.
static PRIMARY: Mutex<BTreeMap<usize, (u32, usize)>> = Mutex::new(BTreeMap::new());
/// Allocations by address: bytes and device.
static ALLOCATED: Mutex<BTreeMap<usize, (usize, usize)>> = Mutex::new(BTreeMap::new());

thread_local! {
    /// Contexts of this thread, the current one last.
    static STACK: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

pub(crate) fn initialize() {
    IS_INITIALIZED.store(true, Ordering::Release);
}

pub(crate) fn must_be_initialized() -> Result<()> {
    if IS_INITIALIZED.load(Ordering::Acquire) {
        return Ok(());
    }
    Err(Status::NOT_INITIALIZED)
}

fn setting(name: &str, default: usize) -> usize {
    let value = std::env::var(name).ok();
    value.and_then(|it| it.parse().ok()).unwrap_or(default)
}

pub(crate) fn count() -> usize {
    static COUNT: OnceLock<usize> = OnceLock::new();
    *COUNT.get_or_init(|| setting("CUDA_DOUBLE_DEVICES", 8))
}

/// Memory of a device, in bytes.
pub(crate) fn total() -> usize {
    static TOTAL: OnceLock<usize> = OnceLock::new();
    *TOTAL.get_or_init(|| setting("CUDA_DOUBLE_MEMORY", 1 << 30))
}

/// A device by its number.
pub(crate) fn device(number: i32) -> Result<usize> {
    let device = usize::try_from(number).ok().filter(|it| *it < count());
    device.ok_or(Status::INVALID_DEVICE)
}

// --- Contexts ------------------------------------------------------------------------------------

/// The current context of this thread.
pub(crate) fn current() -> Result<usize> {
    let top = STACK.with_borrow(|stack| stack.last().copied());
    top.ok_or(Status::INVALID_CONTEXT)
}

pub(crate) fn device_of(context: usize) -> Result<usize> {
    CONTEXTS.get(context).ok_or(Status::INVALID_CONTEXT)
}

pub(crate) fn create(device: usize) -> usize {
    let context = CONTEXTS.insert(device);
    STACK.with_borrow_mut(|stack| stack.push(context));
    context
}

pub(crate) fn destroy(context: usize) -> Result<()> {
    CONTEXTS.remove(context).ok_or(Status::INVALID_CONTEXT)?;
    STACK.with_borrow_mut(|stack| stack.retain(|it| *it != context));
    Ok(())
}

pub(crate) fn push(context: usize) -> Result<()> {
    device_of(context)?;
    STACK.with_borrow_mut(|stack| stack.push(context));
    Ok(())
}

pub(crate) fn pop() -> Result<usize> {
    let popped = STACK.with_borrow_mut(Vec::pop);
    popped.ok_or(Status::INVALID_CONTEXT)
}

/// Replaces the current context; 0 for none.
pub(crate) fn set_current(context: usize) -> Result<()> {
    if context != 0 {
        device_of(context)?;
    }
    STACK.with_borrow_mut(|stack| {
        stack.pop();
        if context != 0 {
            stack.push(context);
        }
    });
    Ok(())
}

pub(crate) fn retain_primary(device: usize) -> usize {
    let mut primary = lock(&PRIMARY);
    let (times, context) = primary.entry(device).or_insert((0, 0));
    if *times == 0 {
        *context = CONTEXTS.insert(device);
    }
    *times += 1;
    *context
}

pub(crate) fn release_primary(device: usize) -> Result<()> {
    let mut primary = lock(&PRIMARY);
    match primary.get_mut(&device) {
        Some((times, context)) if *times > 0 => {
            *times -= 1;
            if *times == 0 {
                CONTEXTS.remove(*context);
            }
            Ok(())
        }
        _ => Err(Status::INVALID_CONTEXT),
    }
}

pub(crate) fn has_primary(device: usize) -> bool {
    lock(&PRIMARY).get(&device).is_some_and(|(times, _)| *times > 0)
}

// --- Memory --------------------------------------------------------------------------------------

pub(crate) fn allocate(bytes: usize) -> Result<usize> {
    capture::may_disturb()?;
    let device = device_of(current()?)?;
    let mut allocated = lock(&ALLOCATED);
    if bytes > total().saturating_sub(used(&allocated, device)) {
        return Err(Status::OUT_OF_MEMORY);
    }
    let address = pointers::allocate(bytes)?;
    allocated.insert(address, (bytes, device));
    Ok(address)
}

pub(crate) fn free(address: usize) -> Result<()> {
    capture::may_disturb()?;
    if address == 0 {
        return Ok(());
    }
    let known = lock(&ALLOCATED).remove(&address);
    let (bytes, _) = known.ok_or(Status::INVALID_VALUE)?;
    pointers::free(address, bytes)
}

/// Free bytes of the current device.
pub(crate) fn unused() -> Result<usize> {
    let device = device_of(current()?)?;
    Ok(total().saturating_sub(used(&lock(&ALLOCATED), device)))
}

fn used(allocated: &BTreeMap<usize, (usize, usize)>, device: usize) -> usize {
    let here = allocated.values().filter(|(_, on)| *on == device);
    here.map(|(bytes, _)| bytes).sum()
}
