//! Collectives whose calls came from different lines, as when two threads of a rank race.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use ddp_doctor_proto::report::{Timestamp, Where};

use crate::input::event::ThreadId;
use crate::model::{Join, keep_latest};

/// Number of crossings kept.
const MAX_CROSSINGS: usize = 16;
/// Maximum number of ranks kept per crossing: a race shows on few ranks as on many.
const MAX_RANKS: usize = 64;

/// Calls from different lines that met and otherwise agree.
#[derive(Clone, Debug)]
pub struct Crossing {
    /// Sequence number.
    pub seq: u64,
    /// When the last rank arrived.
    pub at: Timestamp,
    /// Line and thread of each rank.
    pub calls: BTreeMap<u32, (Arc<Where>, ThreadId)>,
}

/// The numbers of a line and of the frames of installed packages inside it.
fn lines_of(place: &Where) -> (u32, Vec<u32>) {
    let via: Vec<u32> = place.via.iter().map(|frame| frame.line).collect();
    (place.line, via)
}

/// The latest crossings of a group.
#[derive(Debug, Default)]
pub struct Crossings(VecDeque<Crossing>);

impl Crossings {
    /// The kept crossings, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &Crossing> {
        self.0.iter()
    }

    /// Adds a collective that every member has entered with agreeing calls.
    pub(super) fn add(&mut self, seq: u64, join: &Join) {
        let lines = || {
            let places = join.calls.values().map(|joined| &joined.call.place);
            places.map(|place| place.as_ref().map(|place| lines_of(place)))
        };
        let first = lines().next();
        if lines().all(|line| Some(line) == first) {
            return;
        }
        let shown = join.calls.iter().take(MAX_RANKS).filter(|(_, joined)| !joined.call.hidden);
        let calls = shown.filter_map(|(&rank, joined)| {
            let place = joined.call.place.as_ref()?;
            Some((rank, (Arc::clone(place), joined.call.thread)))
        });
        let crossing = Crossing { seq, at: join.last_at(), calls: calls.collect() };
        keep_latest(&mut self.0, crossing, MAX_CROSSINGS);
    }
}
