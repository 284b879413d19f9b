//! What a thread waits for in the kernel, by name.
//!
//! The kernel states the system call that a sleeping thread is in, with its arguments
//! (`/proc/PID/task/TID/syscall`). `syscall` reads it, `files` names descriptors, paths and their mounts, `locks`
//! finds the holder of a file lock, `mutex` that of a mutex, `peers` and `unix_sockets` the other end of a pipe or socket,
//! and `children` what a child does. `chain` follows a wait for a child to what that one waits for.

use std::time::Duration;

use ddp_doctor_proto::report::Where;
use ddp_doctor_proto::{BlockKind, v1};

use crate::stack_reader::memory::Memory;
pub use locks::held as held_locks;
pub use mutex::owner as mutex_owner;
pub use peers::between as connections;
use peers::{End, SocketEnd};
use syscall::{Argument, Syscall, nanoseconds};

mod chain;
mod children;
mod files;
mod locks;
mod mutex;
pub mod peers;
pub mod syscall;
mod unix_sockets;

/// A thread whose wait is to be named.
#[derive(Clone, Copy, Debug)]
pub struct Waiter<'a> {
    /// Process id.
    pub pid: u32,
    /// Thread id.
    pub tid: u32,
    /// Its Python frames, innermost first.
    pub python: &'a [Where],
    /// Its native frames, innermost first.
    pub native: &'a [Where],
}

/// A wait, and what can end it.
struct Wait {
    on: v1::BlockedOn,
    ended_by: Enders,
}

/// The processes that can end a wait.
enum Enders {
    /// The exit of this one.
    Exit(u32),
    /// Those that have one of these ends.
    Holders(Vec<End>),
    /// It may end in another way, or this is unknown.
    Unknown,
}

impl From<v1::BlockedOn> for Wait {
    fn from(on: v1::BlockedOn) -> Self {
        Self { on, ended_by: Enders::Unknown }
    }
}

/// What a thread waits for; `None`: nothing, or unknown. `memory` is that of its process. Of a process that waits for
/// another one below it, kind and process are those of the end of the chain.
#[must_use]
pub fn on<M: Memory>(waiter: Waiter<'_>, memory: &M) -> Option<v1::BlockedOn> {
    Some(chain::to_its_end(waiter.pid, wait_of(waiter, memory)?))
}

fn wait_of<M: Memory>(waiter: Waiter<'_>, memory: &M) -> Option<Wait> {
    if let Some(key) = store_key(&waiter) {
        return Some(blocked(BlockKind::StoreKey, key, 0).into());
    }
    if let Some((pid, what)) = children::data_loader_worker(&waiter) {
        return Some(blocked(BlockKind::Child, what, pid).into());
    }
    let syscall = Syscall::read(waiter.pid, waiter.tid)?;
    let pid = waiter.pid;
    match syscall.argument(memory)? {
        Argument::Descriptor(verb, fd) => on_descriptor(pid, verb, fd),
        Argument::Descriptors(fds, has_timeout) => {
            let waits: Vec<Wait> =
                fds.iter().filter_map(|&fd| on_descriptor(pid, "wait for", fd)).collect();
            let is_known = !has_timeout && waits.len() == fds.len();
            let ends = waits
                .iter()
                .map(|it| match &it.ended_by {
                    Enders::Holders(ends) => Some(&ends[..]),
                    _ => None,
                })
                .collect::<Option<Vec<_>>>()
                .filter(|_| is_known);
            let ended_by = ends.map_or(Enders::Unknown, |it| Enders::Holders(it.concat()));
            Some(Wait { on: waits.into_iter().next()?.on, ended_by })
        }
        Argument::Path(verb, path) => {
            let what = format!("{verb} {}", files::path_and_mount(pid, &path));
            Some(blocked(BlockKind::File, what, 0).into())
        }
        Argument::Lock(fd) => {
            let file = files::target(pid, fd)?;
            let holder = locks::holder(pid, fd);
            let held = holder
                .map_or_else(String::new, |it| format!(", held by {}", children::process(pid, it)));
            let what = format!("lock of {}{held}", files::path_and_mount(pid, &file));
            Some(blocked(BlockKind::FileLock, what, holder.unwrap_or(0)).into())
        }
        Argument::Child(child) => {
            let child = child.or_else(|| children::only(pid))?;
            let place = children::place(pid, child).unwrap_or_default();
            let what = format!("exit of {}{place}", children::process(pid, child));
            let on = blocked(BlockKind::Child, what, child);
            Some(Wait { on, ended_by: Enders::Exit(child) })
        }
        Argument::Sleep(left) => {
            Some(ending(left, blocked(BlockKind::Sleep, "a sleep to end".into(), 0)).into())
        }
        Argument::Thread(left) => {
            let what = "another thread, or the end of a timeout".into();
            Some(ending(Some(left), blocked(BlockKind::Thread, what, 0)).into())
        }
    }
}

/// A wait that ends by itself after this time at the latest.
fn ending(left: Option<Duration>, on: v1::BlockedOn) -> v1::BlockedOn {
    v1::BlockedOn { ends_in_ns: left.map(nanoseconds), ..on }
}

fn blocked(kind: BlockKind, what: String, pid: u32) -> v1::BlockedOn {
    v1::BlockedOn { kind: i32::from(kind.number()), what, pid, ..v1::BlockedOn::default() }
}

fn on_descriptor(pid: u32, verb: &str, fd: u32) -> Option<Wait> {
    let target = files::target(pid, fd)?;
    let other = |kind: BlockKind, name: &str, end: Option<End>| {
        // A process that has both ends is not the one that it waits for.
        let peer = end.clone().and_then(|it| it.holders(pid).find(|&it| it != pid));
        let whose = peer.map_or_else(String::new, |it| {
            let place = children::place(pid, it).unwrap_or_default();
            format!(", whose other end is {}{place}", children::process(pid, it))
        });
        let ended_by = end.map_or(Enders::Unknown, |it| Enders::Holders(vec![it]));
        let on = blocked(kind, format!("{verb} a {name}{whose}"), peer.unwrap_or(0));
        Some(Wait { on, ended_by })
    };
    if let Some(inode) = files::inode_of(&target, "pipe") {
        return other(BlockKind::Pipe, "pipe", peers::of_pipe(pid, fd, inode));
    }
    if let Some(inode) = files::inode_of(&target, "socket") {
        let SocketEnd { end, address, is_waiting } = peers::of_socket(pid, inode);
        let address = address.map_or_else(String::new, |it| format!(" to {it}"));
        let state = if is_waiting { " (not accepted yet)" } else { "" };
        return other(BlockKind::Socket, &format!("socket{address}{state}"), end);
    }
    // Timers, events and epoll descriptors name nothing.
    if !target.starts_with('/') {
        return None;
    }
    let kind = if target.starts_with("/dev/") { BlockKind::Device } else { BlockKind::File };
    Some(blocked(kind, format!("{verb} {}", files::path_and_mount(pid, &target)), 0).into())
}

/// The line that waits for a key of a store of c10d.
fn store_key(waiter: &Waiter<'_>) -> Option<String> {
    let mut native = waiter.native.iter();
    native.find(|frame| frame.function.contains("Store::"))?;
    let frame = waiter.python.first()?;
    let line = files::source_line(waiter.pid, &frame.file, frame.line)?;
    Some(format!("key of a store: {line}"))
}
