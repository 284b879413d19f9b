//! What collectives take by themselves: from when all ranks have come until they go on.
//!
//! Who comes late is the business of [`super::lateness`]; here a call begins when its last rank has come, so
//! that no wait for a peer counts. That can be seen where a thread waits for its call and is seen to: of
//! Gloo's collectives, of DDP's own those of a backward together, and on no device.

use std::time::Duration;

use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_proto::vocabulary::Direction;

use super::lateness::apart;
use super::model::{Encounter, Model};

mod slow;
mod small;

pub use slow::{Slow, slow};
pub use small::{Bucketed, Small, small};

/// What was found at the last look, and how far evidence had come then.
#[derive(Debug, Default)]
pub struct Review {
    looked_at: Option<Timestamp>,
    found: Found,
}

/// What there is to say of collectives by themselves.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// One that has become slow.
    pub slow: Option<Slow>,
    /// Small ones that take much of the time.
    pub small: Vec<Small>,
}

impl Review {
    /// Looks at the job, unless it did so a moment ago: all of this takes seconds to come about.
    pub fn look(&mut self, model: &Model, now: Timestamp) -> &Found {
        /// Arrivals from which on it is looked at less often.
        const MANY: usize = 4096;
        let patience = match model.arrivals.kept() {
            0..MANY => Duration::from_millis(250),
            n if n < 8 * MANY => Duration::from_secs(1),
            _ => Duration::from_secs(3),
        };
        let is_fresh = |at: Timestamp| now.since(at) < patience && model.over().is_none();
        if !self.looked_at.is_some_and(is_fresh) {
            self.looked_at = Some(now);
            self.found = Found {
                slow: slow(model),
                small: small(model),
            };
        }
        &self.found
    }
}

/// A collective by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Took {
    /// When the first rank came, …
    first: Timestamp,
    /// … and the last one.
    last: Timestamp,
    /// When the first rank went on.
    end: Timestamp,
    /// For how long a rank was kept on an average after the last one had come, …
    mean: Duration,
    /// … and the rank that was kept for the shortest time.
    least: Duration,
}

/// What a collective took, the last of DDP's buckets together with those before it; `None`: that is not seen.
fn took(model: &Model, encounter: &Encounter) -> Option<Took> {
    let group = model.group(encounter.group);
    let is_seen =
        encounter.direction == Direction::Symmetric && group.holds_threads(encounter.call.op);
    if !is_seen {
        return None;
    }
    let last = encounter.last()?;
    let (mut sum, mut least, mut end) = (Duration::ZERO, Duration::MAX, last.at);
    for came in &encounter.came {
        let begins = match came.is_async {
            _ if came.hidden => came.waits.filter(|_| encounter.buckets.is_some())?,
            true => came.waits?,
            false => came.at,
        };
        let until = came.until?;
        // A clock that is behind would make a wait for the last one part of the call.
        let all_had_come = last.at.plus(apart(model, came.rank, last.rank));
        let kept = until.since(begins.max(all_had_come));
        sum += kept;
        if kept < least {
            (least, end) = (kept, until);
        }
    }
    Some(Took {
        first: encounter.first_at()?,
        last: last.at,
        end,
        mean: sum / u32::try_from(encounter.came.len()).ok()?,
        least,
    })
}

/// The value that so large a part of these are below; they are put into order for that.
fn quantile<T: Ord + Copy>(values: &mut [T], part: f64) -> Option<T> {
    values.sort_unstable();
    let at = (values.len() as f64 * part) as usize;
    values.get(at.min(values.len().checked_sub(1)?)).copied()
}
