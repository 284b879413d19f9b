//! DD504 fragmentation: the CUDA allocator reserves memory that it cannot use, and has to retry.

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::{Confidence, Timestamp};

use crate::findings::draft::{Draft, KeyPlace};
use crate::findings::memory::{FRAGMENTATION_REMEDY, too};
use crate::findings::view::last_call;
use crate::input::allocation;
use crate::model::{Device, Process};
use crate::situation::Situation;
use crate::words;

/// Minimum number of retries, which must occur in at least two intervals between samples.
const RETRIES: u64 = 2;
/// Divisor of the device's memory: the minimum of reserved memory that cannot be used.
const SHARE: u64 = 20;

/// DD504: an allocator that retries although it has free memory.
pub(crate) fn detect(situation: &Situation<'_>) -> Option<Draft> {
    let processes = situation.model.processes.values();
    let mut found: Vec<Fragmented<'_>> = processes
        .flat_map(|process| {
            let devices = process.memory.devices.iter();
            devices.filter_map(move |(&number, device)| found(process, number, device))
        })
        .collect();
    found.sort_by_key(|it| (it.rank, it.number));
    let worst = found.iter().max_by_key(|it| it.retries)?;
    let mut draft = Draft::new(&catalogue::DD504, KeyPlace::Job, worst.at);
    draft.root = found.iter().map(|it| it.rank).collect();
    draft.root.dedup();
    draft.root_confidence = Confidence::Supported;
    draft.per_rank = found.iter().map(|it| last_call(it.rank, it.process)).collect();
    draft.per_rank.dedup_by_key(|call| call.rank);
    let rank = worst.rank;
    let too = too(&draft.root, rank, "affected");
    let beyond = worst.reserved.saturating_sub(worst.allocated);
    draft.summary = format!(
        "the allocator of rank {rank} had to release its cache {} times since step {}, and holds {} of \
         GPU memory beyond its tensors{too}",
        worst.retries,
        worst.since,
        words::bytes(beyond)
    );
    draft.say(format!(
        "On GPU {}, the allocator of rank {rank} holds {} of {}: {} in tensors, {} in unused parts of \
         blocks in use.{}",
        worst.number,
        words::bytes(worst.reserved),
        words::bytes(worst.total),
        words::bytes(worst.allocated),
        words::bytes(worst.split),
        largest(worst)
    ));
    draft.say(
        "Each retry (`num_alloc_retries`) waits for the device and allocates the memory again.",
    );
    draft.advise(FRAGMENTATION_REMEDY);
    draft.advise("Round the sizes of batches up to a few values (padding, buckets), and run the largest first.");
    Some(draft)
}

struct Fragmented<'a> {
    rank: u32,
    process: &'a Process,
    number: u32,
    total: u64,
    allocated: u64,
    reserved: u64,
    split: u64,
    /// Size of the largest free block, bytes.
    largest: Option<u64>,
    retries: u64,
    since: u64,
    at: Timestamp,
}

fn found<'a>(process: &'a Process, number: u32, device: &Device) -> Option<Fragmented<'a>> {
    let total = device.total?;
    let (allocated, reserved) = (device.allocated?.latest, device.reserved?.latest);
    // Without a count of split blocks, all reserved memory beyond tensors may consist of them.
    let beyond = reserved.saturating_sub(allocated);
    let split = device.split.map_or(beyond, |split| split.latest);
    let samples = device.retries_by_step.samples();
    let rises = || samples.windows(2).filter(|pair| pair[1].value > pair[0].value);
    let (first, last) = (samples.first()?, samples.last()?);
    let retries = last.value.saturating_sub(first.value);
    let is_much = split >= total / SHARE;
    (retries >= RETRIES && rises().nth(1).is_some() && is_much).then_some(Fragmented {
        rank: process.rank?,
        process,
        number,
        total,
        allocated,
        reserved,
        split,
        largest: device.largest.map(|largest| largest.latest),
        retries,
        since: first.step,
        at: last.at,
    })
}

/// A sentence on the largest free block and the size of the last allocation that failed.
fn largest(found: &Fragmented<'_>) -> String {
    let Some(largest) = found.largest else { return String::new() };
    let mut failed =
        found.process.exceptions.iter().rev().filter_map(|it| allocation::failed(&it.text));
    let asked = failed
        .find(|it| it.on_device)
        .and_then(|it| it.asked)
        .map(|asked| format!("; {} were requested when an allocation failed", words::bytes(asked)));
    format!(
        " The largest free block was {} when it last ran short{}.",
        words::bytes(largest),
        asked.unwrap_or_default()
    )
}
