//! DD903 clock-skew: the clocks of two hosts differ by more than 500 ms.
//!
//! Times of other hosts are corrected by the measured difference, so a wrong clock does not affect
//! the diagnosis, but it makes the logs of the hosts incomparable. Without measurements, as in the
//! records of an ended job, causality shows a difference: no collective ends before its last member
//! enters it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::{Confidence, Fact, Timestamp};

use crate::findings::draft::{Draft, KeyPlace};
use crate::input::backends::Completion;
use crate::model::Model;
use crate::situation::Situation;
use crate::words::Ranks;

/// Tolerated difference: far more than that of hosts which synchronize with a time server.
const BEARABLE: Duration = Duration::from_millis(500);

/// DD903: clocks of hosts that differ, or may differ, too much.
pub(crate) fn detect(situation: &Situation<'_>) -> Option<Draft> {
    let model = situation.model;
    if model.hosts.len() < 2 {
        return None;
    }
    let skew = measured(model).or_else(|| from_causality(model));
    skew.map(|skew| draft(model, skew)).or_else(|| unknown(model))
}

/// Two hosts whose clocks differ.
struct Skew {
    behind: Arc<str>,
    ahead: Arc<str>,
    by: Duration,
    uncertainty: Duration,
    at: Timestamp,
    /// The difference was measured, and the times are corrected by it.
    corrected: bool,
}

fn measured(model: &Model) -> Option<Skew> {
    let clocks = || model.clocks.iter();
    let (behind, low) = clocks().min_by_key(|(_, clock)| clock.ahead_ns)?;
    let (ahead, high) = clocks().max_by_key(|(_, clock)| clock.ahead_ns)?;
    let by = Duration::from_nanos(high.ahead_ns.abs_diff(low.ahead_ns));
    let uncertainty = Duration::from_nanos(low.uncertainty_ns.saturating_add(high.uncertainty_ns));
    (by > BEARABLE.saturating_add(uncertainty)).then(|| Skew {
        behind: Arc::clone(behind),
        ahead: Arc::clone(ahead),
        by,
        uncertainty,
        at: low.at.max(high.at),
        corrected: true,
    })
}

/// The largest difference that shows in a collective which ended before its last member entered it.
fn from_causality(model: &Model) -> Option<Skew> {
    let mut found: Option<Skew> = None;
    for group in model.groups() {
        // A wait for a device does not wait for the collective.
        let complete = group.backend.completion == Completion::AtWait;
        let Some(early) = group.ended_early.as_ref().filter(|_| complete) else { continue };
        let host = |rank| model.member(group.id, rank).map(|process| &process.host);
        let (Some(behind), Some(ahead)) = (host(early.ended), host(early.arrived)) else {
            continue;
        };
        let failed = model
            .member(group.id, early.ended)
            .is_some_and(|process| !process.exceptions.is_empty());
        if behind == ahead || failed || early.by <= BEARABLE {
            continue;
        }
        if found.as_ref().is_none_or(|known| known.by < early.by) {
            found = Some(Skew {
                behind: Arc::clone(behind),
                ahead: Arc::clone(ahead),
                by: early.by,
                uncertainty: Duration::ZERO,
                at: early.at,
                corrected: false,
            });
        }
    }
    found
}

fn draft(model: &Model, skew: Skew) -> Draft {
    let Skew { behind, ahead, by, uncertainty, at, corrected } = skew;
    let mut draft = Draft::new(&catalogue::DD903, KeyPlace::Job, at);
    let on = |host: &Arc<str>| ranks_of(model, host);
    let seconds = by.as_secs_f64();
    let least = if corrected { "" } else { "at least " };
    draft.summary = format!(
        "the clock of host {ahead} is {least}{seconds:.1} s ahead of that of host {behind}"
    );
    draft.say(if corrected {
        format!(
            "Measured to within {:.1} ms by querying both clocks. The times in this report are \
             corrected for it; those in the logs of {} and {} are not.",
            uncertainty.as_secs_f64() * 1e3,
            Ranks(&on(&ahead)),
            Ranks(&on(&behind)),
        )
    } else {
        format!(
            "By their own clocks, a collective ended on host {behind} before a rank on host {ahead} \
             had entered it. These times do not show what happened first on different hosts."
        )
    });
    draft.advise("Synchronize all hosts with one time server (chronyc tracking, timedatectl).");
    // Which of the two clocks is wrong is unknown, and no rank is to blame.
    draft.root_confidence = Confidence::Suspected;
    draft.victims = [on(&behind), on(&ahead)].concat();
    draft.victims.sort_unstable();
    draft.observed(vec![Fact::ClocksDiffer {
        ahead: ahead.to_string(),
        behind: behind.to_string(),
        by_ms: by.as_millis() as u64,
        uncertainty_ms: uncertainty.as_millis() as u64 + u64::from(corrected),
    }])
}

/// A finding if the measurements are too uncertain to exclude a difference.
fn unknown(model: &Model) -> Option<Draft> {
    let uncertainty = model.clock_uncertainty();
    let (host, clock) = model.clocks.iter().max_by_key(|(_, clock)| clock.uncertainty_ns)?;
    if uncertainty <= BEARABLE {
        return None;
    }
    let mut draft = Draft::new(&catalogue::DD903, KeyPlace::Job, clock.at);
    draft.summary = format!(
        "the clocks of the hosts may be {:.1} s apart: the network to host {host} is too slow to \
         measure the difference",
        uncertainty.as_secs_f64(),
    );
    draft.say("Events on different hosts that are closer together than this cannot be ordered.");
    draft.advise("Run the coordinator near the ranks, on a network that is not loaded.");
    Some(draft)
}

fn ranks_of(model: &Model, host: &Arc<str>) -> Vec<u32> {
    let processes = model.processes.values().filter(|process| process.host == *host);
    let ranks: BTreeSet<u32> = processes.filter_map(|process| process.rank).collect();
    ranks.into_iter().collect()
}
