//! Duration of collectives themselves: from the arrival of all ranks until they continue.
//!
//! Late ranks are the subject of [`crate::delays::lateness`]; here a call begins when its last rank has
//! arrived, so that no wait for a peer counts. This requires recorded waits that block their
//! threads: those for collectives on Gloo, and for DDP's buckets of one backward pass together, but
//! not those on a device.

use std::time::Duration;

use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_proto::vocabulary::Direction;

use crate::delays;
use crate::delays::clocks::Clocks;
use crate::delays::lateness;
use crate::input::event::Call;
use crate::model::{CompletedCall, Group, Model};

mod slow;
mod small;
mod times;

pub use slow::Slow;
pub use small::{Bucketed, Small};

use slow::slow;
use small::small;
use times::Times;

/// Findings about the duration of collectives.
#[derive(Clone, Debug, Default)]
pub struct CommunicationFindings {
    /// A collective that has become slow.
    pub slow: Option<Slow>,
    /// Small collectives that take much of the time.
    pub small: Vec<Small>,
}

/// Durations of collectives, evaluated from time to time.
#[derive(Debug, Default)]
pub struct Review(delays::Review<CommunicationFindings>);

impl Review {
    /// The result of an evaluation at most a moment ago; up to three seconds in large jobs.
    pub fn look(&mut self, model: &Model, now: Timestamp) -> &CommunicationFindings {
        let patience = [250, 1000, 3000].map(Duration::from_millis);
        self.0.look(model, now, patience, || findings(model))
    }
}

/// What the durations of collectives show.
pub fn findings(model: &Model) -> CommunicationFindings {
    let Some(begin) = lateness::warmed_up(model) else { return CommunicationFindings::default() };
    let times = Times::since(model, begin);
    CommunicationFindings { slow: slow(model, &times), small: small(model, &times) }
}

/// The duration of one collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CollectiveTime {
    /// When the first rank arrived …
    first: Timestamp,
    /// … and the last one.
    last: Timestamp,
    /// When the first rank continued.
    end: Timestamp,
    /// Mean time that ranks were kept after the last arrival …
    mean: Duration,
    /// … and the minimum of all ranks.
    least: Duration,
}

/// Whether all ranks wait inside of these calls.
fn holds_all(group: &Group, call: &Call) -> bool {
    call.op.direction() == Direction::Symmetric && group.holds_threads(call.op)
}

/// The duration of a collective; the last of DDP's buckets stands for all of them. `None`: not
/// recorded.
fn collective_time(clocks: &Clocks<'_>, completed: &CompletedCall) -> Option<CollectiveTime> {
    let last = completed.last()?;
    let (mut sum, mut least, mut end) = (Duration::ZERO, Duration::MAX, last.at);
    for arrival in completed.arrivals.iter() {
        let begins = match arrival.is_async {
            _ if arrival.hidden => arrival.waits.filter(|_| completed.buckets().is_some())?,
            true => arrival.waits?,
            false => arrival.at,
        };
        let until = arrival.until?;
        // The clock of a rank may be behind: then part of its wait would count as duration.
        let all_had_come = last.at.plus(clocks.apart(arrival.rank, last.rank));
        let kept = until.since(begins.max(all_had_come));
        sum += kept;
        if kept < least {
            (least, end) = (kept, until);
        }
    }
    Some(CollectiveTime {
        first: completed.first_at()?,
        last: last.at,
        end,
        mean: sum / u32::try_from(completed.arrivals.len()).ok()?,
        least,
    })
}

/// The value below which this part of the values is.
fn quantile<T: Ord + Copy>(values: impl Iterator<Item = T>, part: f64) -> Option<T> {
    let mut values: Vec<T> = values.collect();
    values.sort_unstable();
    let at = (values.len() as f64 * part) as usize;
    values.get(at.min(values.len().checked_sub(1)?)).copied()
}
