//! DD505 memory-skew: a rank uses at least twice as much memory as most of its peers.

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::{Confidence, Timestamp};

use crate::findings::draft::{Draft, KeyPlace};
use crate::findings::view::last_call;
use crate::model::{Process, Series};
use crate::situation::Situation;
use crate::words::{self, Ranks, number};

/// Number of last steps in which the rank must have held more than its peers.
const STEPS: u64 = 20;
/// Minimum memory of the rank, in halves of the median.
const HALVES: u64 = 4;
/// Minimum difference from the median, bytes.
const BYTES: u64 = 1 << 30;

/// DD505: ranks that hold far more memory than the others.
pub(crate) fn detect(situation: &Situation<'_>) -> Option<Draft> {
    let processes = || situation.model.processes.values();
    let on_device = processes().filter_map(|process| {
        let (_, device) = process.memory.devices.first_key_value()?;
        Usage::new(process, "GPU memory", &device.allocated_by_step)
    });
    let in_host = processes()
        .filter_map(|process| Usage::new(process, "memory", &process.memory.rss_by_step));
    let found =
        draft(&on_device.collect::<Vec<_>>()).or_else(|| draft(&in_host.collect::<Vec<_>>()));
    // Growth has findings of its own.
    let growers = &situation.growers;
    let grows = |draft: &Draft| growers.iter().any(|it| draft.root.contains(&it.rank));
    found.filter(|draft| !grows(draft))
}

/// Memory that a rank held in the last steps.
struct Usage<'a> {
    rank: u32,
    process: &'a Process,
    what: &'static str,
    /// Minimum and maximum in the last [`STEPS`] steps, bytes.
    least: u64,
    most: u64,
    at: Timestamp,
}

impl<'a> Usage<'a> {
    fn new(process: &'a Process, what: &'static str, series: &Series) -> Option<Self> {
        let from = process.training_step().checked_sub(STEPS)?;
        let samples = series.samples();
        // The last sample before these steps counts as well.
        let begin = samples.partition_point(|it| it.step <= from).checked_sub(1)?;
        let lately = &samples[begin..];
        Some(Self {
            rank: process.rank?,
            process,
            what,
            least: lately.iter().map(|it| it.value).min()?,
            most: lately.iter().map(|it| it.value).max()?,
            at: lately.last()?.at,
        })
    }
}

fn draft(held: &[Usage<'_>]) -> Option<Draft> {
    let mut by_most: Vec<&Usage<'_>> = held.iter().collect();
    by_most.sort_by_key(|it| it.most);
    // The lower median.
    let usual = by_most.get(by_most.len().checked_sub(1)? / 2)?.most;
    let far = |it: &&&Usage<'_>| {
        it.least >= usual.saturating_mul(HALVES) / 2 && it.least - usual >= BYTES
    };
    let mut more: Vec<&Usage<'_>> = by_most.iter().filter(far).copied().collect();
    // If many ranks differ, the program is made that way.
    if more.is_empty() || more.len() * 4 > held.len().max(4) {
        return None;
    }
    more.sort_by_key(|it| it.rank);
    let first = more.iter().max_by_key(|it| it.least)?;
    let ranks: Vec<u32> = more.iter().map(|it| it.rank).collect();
    let mut draft = Draft::new(&catalogue::DD505, KeyPlace::Job, first.at);
    draft.per_rank = more.iter().map(|it| last_call(it.rank, it.process)).collect();
    draft.summary = format!(
        "{} {} of {}, most others {}",
        Ranks(&ranks).with("holds", "hold up to"),
        words::bytes(first.most),
        first.what,
        words::bytes(usual)
    );
    draft.say(format!("For the last {STEPS} steps, no other rank has held nearly as much."));
    draft.advise(format!(
        "Find out what {} alone {}: an evaluation, the gathering of outputs, a second model, a cache, \
         tensors that other ranks put on {} device.",
        Ranks(&ranks),
        number(&ranks, "does", "do"),
        number(&ranks, "its", "their"),
    ));
    draft.blame(ranks, Confidence::Supported);
    Some(draft)
}
