//! Words about memory that grows, and about its limits.

use std::time::Duration;

use ddp_doctor_proto::catalogue::Code;
use ddp_doctor_proto::report::{Confidence, Timestamp};

use crate::findings::draft::{Draft, KeyPlace};
use crate::findings::view::last_call;
use crate::model::{Memory, Room};
use crate::situation::Situation;
use crate::trends::growth::{Exhausted, Grower, GrowsIn};
use crate::words::{self, Ranks};

/// A draft about the ranks of these growers, without sentences. Leaves one grower per rank.
pub(crate) fn about_growers(
    code: &'static Code,
    growers: &mut Vec<&Grower<'_>>,
    evidence_at: Timestamp,
) -> Draft {
    growers.sort_by_key(|grower| (grower.rank, grower.device));
    growers.dedup_by_key(|grower| grower.rank);
    // It was known when the last step began: what happened in that step does not contradict it.
    let last_step = growers.iter().map(|grower| grower.process.step_at).max();
    let evidence_at = last_step.map_or(evidence_at, |at| at.min(evidence_at));
    let mut draft = Draft::new(code, KeyPlace::Job, evidence_at);
    let ranks: Vec<u32> = growers.iter().map(|grower| grower.rank).collect();
    draft.blame(ranks, Confidence::Supported);
    draft.per_rank = growers.iter().map(|grower| last_call(grower.rank, grower.process)).collect();
    draft
}

/// "runs out of memory", or what would have followed if the job had not ended.
pub(crate) fn runs_out(situation: &Situation<'_>, memory: &str, end: &Exhausted) -> String {
    let (runs, more) = match situation.model.ended {
        Some(_) => ("would have run", "more "),
        None => ("runs", ""),
    };
    let (steps, between) = (about(end.steps), between(end.between));
    format!("{runs} out of {memory} in about {steps} {more}steps {between}")
}

/// A sentence on the growth of a rank's memory.
pub(crate) fn went(grower: &Grower<'_>) -> String {
    let growth = &grower.growth;
    let [slope, low, high] =
        [growth.trend.slope, growth.trend.low, growth.trend.high].map(|it| words::bytes(it as u64));
    let interval = if low == high { String::new() } else { format!(", between {low} and {high}") };
    format!(
        "From step {} to step {}, {} grew from {} to {}: {slope} per step{interval}.",
        growth.steps.0,
        growth.steps.1,
        match grower.device {
            Some(device) => format!("tensors of rank {} on GPU {device}", grower.rank),
            None => format!("rank {}", grower.rank),
        },
        words::bytes(growth.bytes.0),
        words::bytes(growth.bytes.1),
    )
}

/// A sentence on what a step is, if the program marks none.
pub(crate) fn repeats(grower: &Grower<'_>) -> Option<String> {
    let calls = match grower.repeated_calls? {
        1 => "the same call".to_owned(),
        calls => format!("the same {calls} calls"),
    };
    Some(format!(
        "The program marks no steps; a step here is one repetition of {calls} on every rank."
    ))
}

/// A sentence if nearly all growth of a rank is shared memory.
pub(crate) fn shared(grower: &Grower<'_>) -> Option<String> {
    matches!(grower.place, GrowsIn::Shared | GrowsIn::Shm).then(|| {
        "Nearly all of that is shared memory: mapped files in /dev/shm, or similar.".into()
    })
}

/// A sentence on how often the control group of a process has reached its limits recently.
pub(crate) fn held(memory: &Memory) -> Option<String> {
    let counts = [
        (&memory.cgroup_held, "held at its limit"),
        (&memory.cgroup_slowed, "slowed down at its lower limit (memory.high)"),
    ];
    let risen = counts.into_iter().filter_map(|(count, what)| {
        let (times, lately) = count.risen()?;
        let plural = if times == 1 { "" } else { "s" };
        Some((format!("{what} {times} time{plural}"), lately))
    });
    let (times, lately): (Vec<String>, Vec<Duration>) = risen.unzip();
    let lately = words::seconds(lately.into_iter().max()?);
    Some(format!(
        "In the last {lately}, it was {}: the kernel had to reclaim memory, mostly file pages.",
        times.join(", and ")
    ))
}

/// "; the host had 3.0 GiB left of 64.0 GiB": the limit that a process was closest to.
pub(crate) fn left(memory: &Memory) -> Option<String> {
    let room = memory.rooms().min_by_key(Room::left)?;
    let (left, limit) = (words::bytes(room.left()), words::bytes(room.limit));
    Some(format!("; {} had {left} left of {limit}", room.name()))
}

/// Advice on growing memory.
pub(crate) fn find_what_grows(ranks: &[u32]) -> String {
    format!(
        "Find what {} from step to step: a loss or an output with its graph, a list of tensors, \
         a cache without a limit.",
        Ranks(ranks).with("keeps", "keep"),
    )
}

/// "GPU memory" or "memory".
pub(crate) const fn memory_name(grower: &Grower<'_>) -> &'static str {
    match grower.device {
        Some(_) => "GPU memory",
        None => "memory",
    }
}

/// A number of steps, rounded to the two digits that are known.
fn about(steps: f64) -> u64 {
    rounded(steps, f64::round)
}

/// "(between 80 and 110)", "(at least 80)": rounded outwards.
fn between((least, most): (f64, f64)) -> String {
    let least = rounded(least, f64::floor);
    if most.is_finite() {
        format!("(between {least} and {})", rounded(most, f64::ceil))
    } else {
        format!("(at least {least})")
    }
}

fn rounded(steps: f64, round: fn(f64) -> f64) -> u64 {
    let scale = 10f64.powf(steps.max(1.0).log10().floor() - 1.0).max(1.0);
    (round(steps / scale) * scale) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_rounded_to_two_digits() {
        for (steps, rounded) in [(0.4, 0), (7.4, 7), (92.0, 92), (128.0, 130), (12_345.0, 12_000)] {
            assert_eq!(about(steps), rounded);
        }
        assert_eq!(between((81.3, f64::INFINITY)), "(at least 81)");
        assert_eq!(between((128.0, 171.0)), "(between 120 and 180)");
    }
}
