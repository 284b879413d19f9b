//! Creation and destruction of communicators.

use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;

use crate::bootstrap::{self, MAX_RANKS, UniqueId};
use crate::comm::{COMMS, Comm, Control, Memory, Name};
use crate::fault;
use crate::group::{self, Meeting};
use crate::mesh::Mesh;
use crate::pointers::{In, Out};
use crate::{Result, Status, driver, identity, refuse};

/// Color of a rank that gets no communicator.
const NO_COLOR: i32 = -1;

/// The first fields of `ncclConfig_t`; the others are ignored.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: i32,
    of_kernels: [i32; 3],
    net_name: usize,
    split_share: i32,
}

impl Config {
    const MAGIC: u32 = 0xcafe_beef;
    const UNDEFINED: i32 = i32::MIN;

    /// Whether it requests a blocking communicator; `None` if it is undefined.
    fn blocking(given: &In<Self>) -> Result<Option<bool>> {
        match given.get() {
            None => Ok(None),
            Some(config) if config.magic != Self::MAGIC || config.size < size_of::<Self>() => {
                refuse(
                    Status::INVALID_ARGUMENT,
                    "ncclConfig_t argument not initialized via NCCL_CONFIG_INITIALIZER".into(),
                )
            }
            Some(config) => match config.blocking {
                Self::UNDEFINED => Ok(None),
                0 => Ok(Some(false)),
                1 => Ok(Some(true)),
                other => {
                    refuse(Status::INVALID_ARGUMENT, format!("invalid config blocking {other}"))
                }
            },
        }
    }

    /// Whether a split communicator shares its parent's memory.
    fn shares(given: &In<Self>) -> bool {
        given.get().is_some_and(|config| config.split_share == 1)
    }
}

/// Takes device memory for a new communicator, added to the parent's if that is given.
fn memory(of_parent: Option<&Arc<Memory>>) -> Result<Arc<Memory>> {
    let memory = of_parent.map_or_else(Arc::default, Arc::clone);
    memory.take(Memory::OF_ONE)?;
    Ok(memory)
}

/// Creates a communicator for one rank.
pub(crate) fn init(
    function: &'static str,
    comm: &Out<usize>,
    ranks: i32,
    id: UniqueId,
    rank: i32,
    config: &In<Config>,
) -> Result<()> {
    group::within(|| {
        let is_blocking = Config::blocking(config)?.unwrap_or(true);
        init_on(function, comm, ranks, id, rank, id.name(), is_blocking)
    })
}

/// Creates the communicators of all ranks in this process.
pub(crate) fn init_all(
    comms: &Out<usize>,
    count: i32,
    devices: &In<i32>,
    unique_id: impl FnOnce() -> Result<UniqueId>,
) -> Result<()> {
    group::within(|| {
        if count < 1 {
            return refuse(
                Status::INVALID_ARGUMENT,
                format!("Invalid device count requested : {count}"),
            );
        }
        let mut devices = devices.values(usize::try_from(count).unwrap_or(0));
        if devices.is_empty() {
            devices = (0..count).collect();
        }
        let mut sorted = devices.clone();
        sorted.sort_unstable();
        sorted.dedup();
        if sorted.len() < devices.len() {
            return refuse(Status::INVALID_USAGE, "a device is used by several ranks".into());
        }
        let id = unique_id()?;
        let before = driver::context()?;
        for (rank, device) in (0..count).zip(devices) {
            let context = driver::context_of(device)?;
            driver::make_current(context)?;
            let comm = comms.at(usize::try_from(rank).unwrap_or(0));
            init_on("CommInitAll", &comm, count, id, rank, id.name(), true)?;
        }
        driver::make_current(before)
    })
}

fn init_on(
    function: &'static str,
    comm: &Out<usize>,
    ranks: i32,
    id: UniqueId,
    rank: i32,
    name: Name,
    is_blocking: bool,
) -> Result<()> {
    let context = driver::context()?;
    let asked = (usize::try_from(ranks), usize::try_from(rank));
    let (Ok(ranks @ 1..=MAX_RANKS), Ok(rank)) = asked else {
        return refuse(
            Status::INVALID_ARGUMENT,
            format!("Invalid rank requested : {rank}/{ranks}"),
        );
    };
    if rank >= ranks {
        return refuse(
            Status::INVALID_ARGUMENT,
            format!("Invalid rank requested : {rank}/{ranks}"),
        );
    }
    fault::meet(function, rank)?;
    let new = Comm::new(rank, ranks, driver::device()?, is_blocking, name, memory(None)?);
    let handle = COMMS.insert(Arc::clone(&new));
    comm.put(handle)?;
    let comm = comm.later();
    group::meet(Meeting {
        comm: Arc::clone(&new),
        run: Box::new(move || {
            driver::make_current(context)?;
            match bootstrap::join(&id, ranks, rank) {
                Ok(mesh) => {
                    new.has_met(mesh);
                    Ok(())
                }
                Err(error) => {
                    COMMS.remove(handle);
                    comm.put(0)?;
                    Err(error)
                }
            }
        }),
    });
    Ok(())
}

/// Splits a communicator by color; within a color, ranks are ordered by key.
pub(crate) fn split(
    parent: usize,
    color: i32,
    key: i32,
    child: &Out<usize>,
    config: &In<Config>,
) -> Result<()> {
    group::within(|| {
        let parent = Comm::find(parent, "CommSplit")?;
        let is_blocking = Config::blocking(config)?.unwrap_or(parent.is_blocking);
        let shares = Config::shares(config);
        if color < NO_COLOR {
            return refuse(Status::INVALID_ARGUMENT, format!("invalid color {color}"));
        }
        fault::meet("CommSplit", parent.rank)?;
        parent.mesh()?;
        child.put(0)?;
        let child = child.later();
        let nth = parent.have_child();
        let name = Name::new(identity::of_split(parent.name.hash, nth, color));
        group::meet(Meeting {
            comm: Arc::clone(&parent),
            run: Box::new(move || {
                let others: Vec<usize> =
                    (0..parent.ranks).filter(|it| *it != parent.rank).collect();
                let (listener, port) = listen()?;
                let said = [i64::from(color), i64::from(key), i64::from(port)];
                let answers = exchange(&parent, &others, Control::Split, said)?;
                let mut members: Vec<_> = others.into_iter().zip(answers).collect();
                members.push((parent.rank, said));
                members.retain(|(_, [of, ..])| *of == i64::from(color));
                members.sort_by_key(|(rank, [_, key, _])| (*key, *rank));
                if color == NO_COLOR {
                    return Ok(());
                }
                let members = members.into_iter().map(|(rank, [.., port])| (rank, port));
                let comm = make(
                    &parent,
                    &listener,
                    &members.collect::<Vec<_>>(),
                    is_blocking,
                    name,
                    memory(shares.then_some(&parent.memory))?,
                )?;
                child.put(comm)
            }),
        });
        Ok(())
    })
}

/// Creates a communicator of the ranks that are not excluded.
pub(crate) fn shrink(
    parent: usize,
    excluded: &[i32],
    child: &Out<usize>,
    config: &In<Config>,
    flags: i32,
) -> Result<()> {
    const ABORT: i32 = 1;
    group::within(|| {
        let parent = Comm::find(parent, "CommShrink")?;
        let is_blocking = Config::blocking(config)?.unwrap_or(parent.is_blocking);
        let mut is_member = vec![true; parent.ranks];
        for rank in excluded {
            let known = usize::try_from(*rank).ok().and_then(|it| is_member.get_mut(it));
            match known {
                Some(is_member) => *is_member = false,
                None => {
                    return refuse(
                        Status::INVALID_ARGUMENT,
                        format!("invalid rank {rank} to exclude"),
                    );
                }
            }
        }
        if !is_member[parent.rank] {
            return refuse(Status::INVALID_ARGUMENT, "an excluded rank must not call".into());
        }
        fault::meet("CommShrink", parent.rank)?;
        parent.mesh()?;
        child.put(0)?;
        let child = child.later();
        let name = Name::new(identity::of_split(parent.name.hash, 0, 0));
        group::meet(Meeting {
            comm: Arc::clone(&parent),
            run: Box::new(move || {
                let members: Vec<usize> = (0..parent.ranks).filter(|it| is_member[*it]).collect();
                let others: Vec<usize> =
                    members.iter().copied().filter(|it| *it != parent.rank).collect();
                let (listener, port) = listen()?;
                let said = [i64::from(port), 0, 0];
                let answers = exchange(&parent, &others, Control::Shrink, said)?;
                let mut members: Vec<_> = others.into_iter().zip(answers).collect();
                members.push((parent.rank, said));
                members.sort_unstable();
                let members = members.into_iter().map(|(rank, [port, ..])| (rank, port));
                let comm = make(
                    &parent,
                    &listener,
                    &members.collect::<Vec<_>>(),
                    is_blocking,
                    name,
                    memory(None)?,
                )?;
                if flags == ABORT {
                    parent.abort();
                }
                child.put(comm)
            }),
        });
        Ok(())
    })
}

/// The id with which new ranks join a communicator the next time it grows.
pub(crate) fn growth_id(comm: usize) -> Result<UniqueId> {
    let comm = Comm::find(comm, "CommGetUniqueId")?;
    fault::meet("CommGetUniqueId", comm.rank)?;
    let magic = identity::of_growth(comm.name.magic, comm.next_child());
    UniqueId::that_begins(magic).or_else(|e| refuse(Status::SYSTEM_ERROR, e.to_string()))
}

/// Creates a communicator of all ranks of another one and of new ranks, which pass no parent.
pub(crate) fn grow(
    parent: usize,
    ranks: i32,
    id: &In<UniqueId>,
    rank: i32,
    child: &Out<usize>,
    config: &In<Config>,
) -> Result<()> {
    let name = |id: &UniqueId, ranks: i32| Name {
        hash: identity::of_grow(id.magic(), ranks.cast_unsigned()),
        magic: id.magic(),
    };
    group::within(|| {
        if parent == 0 {
            let Some(id) = id.get() else {
                return refuse(
                    Status::INVALID_ARGUMENT,
                    "CommGrow : a new rank needs an id".into(),
                );
            };
            let is_blocking = Config::blocking(config)?.unwrap_or(true);
            let name = name(&id, ranks);
            return init_on("CommGrow", child, ranks, id, rank, name, is_blocking);
        }
        let parent = Comm::find(parent, "CommGrow")?;
        let is_blocking = Config::blocking(config)?.unwrap_or(parent.is_blocking);
        let count = usize::try_from(ranks).unwrap_or(0);
        if rank != -1 || count <= parent.ranks || count > MAX_RANKS {
            return refuse(
                Status::INVALID_ARGUMENT,
                format!("CommGrow : rank {rank} of {ranks} ranks"),
            );
        }
        fault::meet("CommGrow", parent.rank)?;
        parent.mesh()?;
        child.put(0)?;
        parent.have_child();
        let (child, given) = (child.later(), id.get());
        group::meet(Meeting {
            comm: Arc::clone(&parent),
            run: Box::new(move || {
                let others: Vec<usize> =
                    (0..parent.ranks).filter(|it| *it != parent.rank).collect();
                // A rank with the id sends it to the others.
                let said = given.as_ref().map_or(&[][..], UniqueId::bytes);
                let told = parent
                    .gather(&others, Control::Grow, said)?
                    .iter()
                    .find_map(|it| UniqueId::from_bytes(it));
                let Some(id) = given.or(told) else {
                    return refuse(Status::INVALID_USAGE, "CommGrow : nobody has an id".into());
                };
                let mesh = bootstrap::join(&id, count, parent.rank)?;
                let (device, name) = (parent.device, name(&id, ranks));
                let memory = memory(None)?;
                let comm = Comm::new(parent.rank, count, device, is_blocking, name, memory);
                comm.has_met(mesh);
                child.put(COMMS.insert(comm))
            }),
        });
        Ok(())
    })
}

fn listen() -> Result<(TcpListener, u16)> {
    let listen = || -> io::Result<_> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port();
        Ok((listener, port))
    };
    listen().or_else(|e| refuse(Status::SYSTEM_ERROR, e.to_string()))
}

/// Sends three numbers to ranks and returns theirs.
fn exchange(comm: &Comm, ranks: &[usize], what: Control, said: [i64; 3]) -> Result<Vec<[i64; 3]>> {
    let bytes: Vec<u8> = said.iter().flat_map(|it| it.to_le_bytes()).collect();
    let answers = comm.gather(ranks, what, &bytes)?;
    let numbers = |bytes: &Vec<u8>| {
        let mut numbers = [0; 3];
        for (number, bytes) in numbers.iter_mut().zip(bytes.chunks_exact(8)) {
            *number = i64::from_le_bytes(bytes.try_into().unwrap_or_default());
        }
        numbers
    };
    Ok(answers.iter().map(numbers).collect())
}

/// Creates a communicator of ranks of another one, given with their ports; returns its handle.
fn make(
    parent: &Comm,
    listener: &TcpListener,
    members: &[(usize, i64)],
    is_blocking: bool,
    name: Name,
    memory: Arc<Memory>,
) -> Result<usize> {
    let ports: Vec<u16> =
        members.iter().map(|(_, port)| u16::try_from(*port).unwrap_or(0)).collect();
    let Some(rank) = members.iter().position(|(rank, _)| *rank == parent.rank) else {
        return Err(Status::INTERNAL_ERROR);
    };
    let mesh = Mesh::connect(listener, &ports, rank, u64::from(ports[0]))
        .or_else(|e| refuse(Status::SYSTEM_ERROR, e.to_string()))?;
    let comm = Comm::new(rank, members.len(), parent.device, is_blocking, name, memory);
    comm.has_met(mesh);
    Ok(COMMS.insert(comm))
}

/// Waits for the work in progress, and for all ranks to do so.
pub(crate) fn finalize(comm: usize) -> Result<()> {
    group::within(|| {
        let comm = Comm::find(comm, "CommFinalize")?;
        fault::meet("CommFinalize", comm.rank)?;
        comm.mesh()?;
        group::meet(Meeting { comm: Arc::clone(&comm), run: Box::new(move || comm.finalize()) });
        Ok(())
    })
}

/// Finalizes the communicator if necessary and destroys it.
pub(crate) fn destroy(handle: usize) -> Result<()> {
    if handle == 0 {
        return Ok(());
    }
    group::within(|| {
        let comm = Comm::find(handle, "CommDestroy")?;
        fault::meet("CommDestroy", comm.rank)?;
        comm.mesh()?;
        group::meet(Meeting {
            comm: Arc::clone(&comm),
            run: Box::new(move || {
                comm.finalize()?;
                COMMS.remove(handle);
                comm.abort();
                Ok(())
            }),
        });
        Ok(())
    })
}

/// Aborts the communicator and its work in progress.
pub(crate) fn abort(handle: usize) -> Result<()> {
    if handle == 0 {
        return Ok(());
    }
    let comm = Comm::find(handle, "CommAbort")?;
    fault::meet("CommAbort", comm.rank)?;
    COMMS.remove(handle);
    comm.abort();
    Ok(())
}

/// Registers a window; collective.
pub(crate) fn register_window(comm: usize, register: impl FnOnce() -> Result<()>) -> Result<()> {
    group::within(|| {
        let comm = Comm::find(comm, "CommWindowRegister")?;
        fault::meet("CommWindowRegister", comm.rank)?;
        comm.mesh()?;
        register()?;
        group::meet(Meeting {
            comm: Arc::clone(&comm),
            run: Box::new(move || {
                let others: Vec<usize> = (0..comm.ranks).filter(|it| *it != comm.rank).collect();
                comm.gather(&others, Control::Window, &[]).map(|_| ())
            }),
        });
        Ok(())
    })
}
