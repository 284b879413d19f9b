//! Collectives and messages: arguments are checked and calls are queued.

use crate::arithmetic::{DataType, Reduction};
use crate::comm::{Comm, Factor};
use crate::group;
use crate::pointers::Buffer;
use crate::work::{Call, Collective, Kind, Transfer};
use crate::{Result, Status, driver, fault, refuse};

/// Arguments of a call.
pub(crate) struct CallArguments {
    pub(crate) function: &'static str,
    pub(crate) input: Buffer,
    pub(crate) output: Buffer,
    pub(crate) count: usize,
    pub(crate) dtype: i32,
    pub(crate) comm: usize,
    pub(crate) stream: usize,
}

/// Operation of a collective, with the arguments specific to it.
#[derive(Clone, Copy)]
pub(crate) enum What {
    AllReduce { by: i32 },
    AllGather,
    ReduceScatter { by: i32 },
    Broadcast { root: i32 },
    Reduce { by: i32, root: i32 },
    AllToAll,
    Gather { root: i32 },
    Scatter { root: i32 },
}

pub(crate) fn collective(what: What, asked: &CallArguments) -> Result<()> {
    group::within(|| {
        let function = asked.function;
        let comm = Comm::find(asked.comm, function)?;
        let dtype = DataType::new(asked.dtype)?;
        let bytes = bytes(asked.count, dtype)?;
        let root = |root: i32| match usize::try_from(root) {
            Ok(root) if root < comm.ranks => Ok(root),
            _ => refuse(
                Status::INVALID_ARGUMENT,
                format!(
                    "{function} : invalid root {root} (root should be in the 0..{} range)",
                    comm.ranks
                ),
            ),
        };
        let (kind, by) = match what {
            What::AllReduce { by } => (Kind::AllReduce, by),
            What::AllGather => (Kind::AllGather, 0),
            What::ReduceScatter { by } => (Kind::ReduceScatter, by),
            What::Broadcast { root: at } => (Kind::Broadcast(root(at)?), 0),
            What::Reduce { by, root: at } => (Kind::Reduce(root(at)?), by),
            What::AllToAll => (Kind::AllToAll, 0),
            What::Gather { root: at } => (Kind::Gather(root(at)?), 0),
            What::Scatter { root: at } => (Kind::Scatter(root(at)?), 0),
        };
        let (reduction, factor) = reduction(&comm, by, dtype)?;
        let gives = match kind {
            Kind::Broadcast(root) | Kind::Scatter(root) => root == comm.rank,
            _ => true,
        };
        let gets = match kind {
            Kind::Reduce(root) | Kind::Gather(root) => root == comm.rank,
            _ => true,
        };
        if bytes > 0 && (gives && asked.input.is_null() || gets && asked.output.is_null()) {
            return refuse(Status::INVALID_ARGUMENT, format!("{function} : a buffer is NULL"));
        }
        comm.mesh()?;
        let fault = fault::meet(function, comm.rank)?;
        if bytes > 0 {
            if !driver::is_capturing(asked.stream)? {
                comm.connect()?;
            }
            let call = Call::Collective(Collective {
                kind,
                input: asked.input,
                output: asked.output,
                bytes,
                dtype,
                reduction,
                factor,
            });
            group::call(comm, call, fault, asked.stream);
        }
        Ok(())
    })
}

/// Queues a send or a receive.
pub(crate) fn transfer(is_sent: bool, peer: i32, asked: &CallArguments) -> Result<()> {
    group::within(|| {
        let function = asked.function;
        let comm = Comm::find(asked.comm, function)?;
        let dtype = DataType::new(asked.dtype)?;
        let bytes = bytes(asked.count, dtype)?;
        let peer = match usize::try_from(peer) {
            Ok(peer) if peer < comm.ranks => peer,
            _ => {
                return refuse(
                    Status::INVALID_ARGUMENT,
                    format!("{function} : invalid peer {peer}"),
                );
            }
        };
        if bytes > 0 && asked.input.is_null() {
            return refuse(Status::INVALID_ARGUMENT, format!("{function} : the buffer is NULL"));
        }
        comm.mesh()?;
        let fault = fault::meet(function, comm.rank)?;
        let transfer = Transfer { buffer: asked.input, bytes, peer };
        let call = if is_sent { Call::Send(transfer) } else { Call::Receive(transfer) };
        group::call(comm, call, fault, asked.stream);
        Ok(())
    })
}

/// Defines a reduction: a sum of inputs that are multiplied by a factor first.
pub(crate) fn define(scalar: Buffer, dtype: i32, is_on_host: bool, comm: usize) -> Result<i32> {
    let comm = Comm::find(comm, "RedOpCreatePreMulSum")?;
    let dtype = DataType::new(dtype)?;
    if scalar.is_null() {
        return refuse(
            Status::INVALID_ARGUMENT,
            "RedOpCreatePreMulSum : the scalar is NULL".into(),
        );
    }
    let factor = if is_on_host {
        Factor::Value(scalar.read(dtype.size()))
    } else {
        Factor::InMemory(scalar)
    };
    Ok(comm.define(dtype, factor))
}

pub(crate) fn undefine(op: i32, comm: usize) -> Result<()> {
    let comm = Comm::find(comm, "RedOpDestroy")?;
    match comm.undefine(op) {
        Some(()) => Ok(()),
        None => refuse(
            Status::INVALID_ARGUMENT,
            format!("RedOpDestroy : {op} is not a defined reduction"),
        ),
    }
}

fn bytes(count: usize, dtype: DataType) -> Result<usize> {
    match count.checked_mul(dtype.size()) {
        Some(bytes) => Ok(bytes),
        None => refuse(Status::INVALID_ARGUMENT, format!("{count} elements are too many")),
    }
}

fn reduction(comm: &Comm, by: i32, dtype: DataType) -> Result<(Reduction, Option<Factor>)> {
    let built_in = match by {
        0 => Reduction::Sum,
        1 => Reduction::Product,
        2 => Reduction::Max,
        3 => Reduction::Min,
        4 => Reduction::Average,
        _ => {
            return match comm.defined(by) {
                Some((of, factor)) if of == dtype => Ok((Reduction::Sum, Some(factor))),
                _ => refuse(Status::INVALID_ARGUMENT, format!("invalid reduction operation {by}")),
            };
        }
    };
    Ok((built_in, None))
}
