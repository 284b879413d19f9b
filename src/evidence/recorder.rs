//! What PyTorch's Flight Recorder says, as JSON, of the collectives of one process.
//!
//! A recorder is a ring of calls with what PyTorch knows of each. Its format (here versions 2.2 to 2.10)
//! is described by nothing but PyTorch's source, so a reader has to be tolerant: what is missing is
//! unknown, and what is strange is left out and counted. It is input like any other: bounded before it
//! comes here, and believed by nobody.

use std::collections::BTreeMap;

use ddp_doctor_proto::{DType, Op, v1};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::decode::cut;

/// Longest body that is read. A full ring of 20 000 entries, ten times PyTorch's default, has 10 MB.
pub const MAX_BODY: usize = 32 << 20;
/// Most entries that are taken from one body: the latest ones.
const MAX_ENTRIES: usize = 65_536;
/// Longest name that is taken.
const MAX_NAME: usize = 256;
/// Most dimensions that are taken of a tensor.
const MAX_DIMS: usize = 64;

/// Why a body is no answer of a Flight Recorder.
#[derive(Debug, thiserror::Error)]
pub enum RecorderError {
    /// It is too long.
    #[error("it has {0} bytes, more than the {MAX_BODY} that are read")]
    TooLong(usize),
    /// It is no JSON, or other JSON.
    #[error("it is not what a Flight Recorder says: {0}")]
    Format(#[from] serde_json::Error),
    /// It is of a version that this program does not know.
    #[error("it has format version {0:?}; this program reads 2.x")]
    Version(String),
}

/// What one recorder holds.
#[derive(Debug, Default, PartialEq)]
pub struct Recorded {
    /// Its calls, oldest first. Their `process` is 0; `over_unix_ns` is what was asked for where they are
    /// over.
    pub calls: Vec<v1::RecorderCall>,
    /// Entries that made no sense, or tell of what this program takes from elsewhere: messages.
    pub left_out: usize,
}

/// As PyTorch writes it; what this program has no use for is not named.
#[derive(Debug, Deserialize)]
struct Dump<'a> {
    version: String,
    /// Each is read by itself, so that a strange one costs no more than itself.
    #[serde(default, borrow)]
    entries: Vec<&'a RawValue>,
}

#[derive(Debug, Deserialize)]
struct Entry {
    record_id: u64,
    #[serde(default)]
    pg_id: u64,
    process_group: (String, String),
    collective_seq_id: u64,
    #[serde(default)]
    is_p2p: bool,
    profiling_name: String,
    time_created_ns: u64,
    #[serde(default)]
    input_sizes: Vec<Vec<u64>>,
    #[serde(default)]
    output_sizes: Vec<Vec<u64>>,
    #[serde(default)]
    input_dtypes: Vec<String>,
    #[serde(default)]
    output_dtypes: Vec<String>,
    #[serde(default)]
    state: String,
    #[serde(default)]
    retired: bool,
    #[serde(default)]
    thread_id: String,
}

/// Decodes a body; calls that are over are taken to be over since `now`.
///
/// # Errors
///
/// When it is no JSON of a Flight Recorder.
pub fn decode(body: &[u8], now: u64) -> Result<Recorded, RecorderError> {
    if body.len() > MAX_BODY {
        return Err(RecorderError::TooLong(body.len()));
    }
    let dump: Dump<'_> = serde_json::from_slice(body)?;
    if dump.version.split('.').next() != Some("2") {
        return Err(RecorderError::Version(
            cut(&dump.version, MAX_NAME).to_owned(),
        ));
    }
    let mut recorded = Recorded::default();
    let skipped = dump.entries.len().saturating_sub(MAX_ENTRIES);
    // Several entries of one collective are the parts of a coalesced one: the first stands for it.
    let mut last: BTreeMap<(String, u64), u64> = BTreeMap::new();
    for entry in dump.entries.into_iter().skip(skipped) {
        let Some(call) = serde_json::from_str::<Entry>(entry.get())
            .ok()
            .filter(|it| !it.is_p2p)
            .and_then(|it| call(it, now))
        else {
            recorded.left_out += 1;
            continue;
        };
        let group = (call.recorder.clone(), call.group_number);
        if last.insert(group, call.seq) != Some(call.seq) {
            recorded.calls.push(call);
        }
    }
    Ok(recorded)
}

/// `None`: it makes no sense.
fn call(entry: Entry, now: u64) -> Option<v1::RecorderCall> {
    let (recorder, name) = entry.profiling_name.split_once(':')?;
    if recorder.is_empty() || recorder.len() > MAX_NAME || entry.process_group.0.len() > MAX_NAME {
        return None;
    }
    let op = op(name);
    let by_output = matches!(op, Op::ReduceScatter | Op::Scatter);
    let (sizes, dtypes) = match by_output {
        true => (&entry.output_sizes, &entry.output_dtypes),
        false => (&entry.input_sizes, &entry.input_dtypes),
    };
    // Some operations name their tensor as an output only.
    let (sizes, dtypes) = match sizes.is_empty() && !matches!(op, Op::Gather) {
        true if by_output => (sizes, dtypes),
        true => (&entry.output_sizes, &entry.output_dtypes),
        false => (sizes, dtypes),
    };
    let dims = sizes.first().filter(|dims| dims.len() <= MAX_DIMS);
    let numel = dims.and_then(|dims| {
        let mut dims = dims.iter();
        dims.try_fold(1_u64, |numel, &dim| numel.checked_mul(dim))
    });
    let dims: Option<Vec<u32>> = dims.and_then(|dims| {
        let dims = dims.iter().map(|&dim| u32::try_from(dim).ok());
        dims.collect()
    });
    let dtype = dtypes.first().map_or(DType::Unspecified, |it| dtype(it));
    let is_over = entry.retired || entry.state == "completed";
    (entry.collective_seq_id > 0 && entry.time_created_ns > 0).then(|| v1::RecorderCall {
        process: 0,
        recorder: recorder.to_owned(),
        id: entry.record_id,
        group: entry.process_group.0,
        group_number: entry.pg_id,
        seq: entry.collective_seq_id,
        op: i32::from(op.number()),
        dtype: i32::from(dtype.number()),
        // Without dimensions it is not known whether there are no tensors or only none were said.
        numel: numel.filter(|_| dims.is_some()),
        dims: dims.unwrap_or_default(),
        tensors: u32::try_from(sizes.len()).unwrap_or(u32::MAX),
        unix_ns: entry.time_created_ns,
        thread: entry.thread_id.parse().unwrap_or(0),
        over_unix_ns: is_over.then_some(now),
    })
}

/// The operation that a recorder calls so.
fn op(name: &str) -> Op {
    match name {
        "all_reduce" | "allreduce" | "all_reduce_sparse" | "sparse_all_reduce" => Op::AllReduce,
        "all_gather" | "_all_gather_base" | "_allgather_base" | "all_gather_into_tensor" => {
            Op::AllGather
        }
        "reduce_scatter"
        | "_reduce_scatter_base"
        | "reduce_scatter_tensor"
        | "reduce_scatter_base" => Op::ReduceScatter,
        "all_to_all" | "all_to_all_single" | "alltoall" | "all_to_all_base" => Op::AllToAll,
        "barrier" | "all_reduce_barrier" => Op::Barrier,
        "broadcast" | "_broadcast_oop" => Op::Broadcast,
        "reduce" | "_reduce_oop" => Op::Reduce,
        "gather" => Op::Gather,
        "scatter" => Op::Scatter,
        "allreduce_coalesced" | "all_reduce_coalesced" => Op::AllReduceCoalesced,
        "allgather_coalesced" | "all_gather_coalesced" | "all_gather_into_tensor_coalesced" => {
            Op::AllGatherCoalesced
        }
        "reduce_scatter_tensor_coalesced" | "reduce_scatter_coalesced" => {
            Op::ReduceScatterCoalesced
        }
        _ => Op::Other,
    }
}

/// The element type that PyTorch's C++ calls so.
fn dtype(name: &str) -> DType {
    match name {
        "Float" => DType::Float32,
        "Double" => DType::Float64,
        "Half" => DType::Float16,
        "BFloat16" => DType::BFloat16,
        "Char" => DType::Int8,
        "Short" => DType::Int16,
        "Int" => DType::Int32,
        "Long" => DType::Int64,
        "Byte" => DType::UInt8,
        "UInt16" => DType::UInt16,
        "UInt32" => DType::UInt32,
        "UInt64" => DType::UInt64,
        "Bool" => DType::Bool,
        "Float8_e4m3fn" => DType::Float8E4M3,
        "Float8_e5m2" => DType::Float8E5M2,
        "ComplexFloat" => DType::Complex64,
        "ComplexDouble" => DType::Complex128,
        _ => DType::Other,
    }
}

#[cfg(test)]
#[path = "recorder_tests.rs"]
mod tests;
