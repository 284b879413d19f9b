//! Stalls and divergences at one moment, and the origin of each.
//!
//! Which finding a stall leads to is decided here, for all findings: a stall has exactly one
//! [`StallOrigin`], and each detector handles only its own kinds of origin.

use std::ops::Deref;

use ddp_doctor_proto::report::Timestamp;

use crate::config::Config;
use crate::delays::communication;
use crate::delays::lateness::Straggler;
use crate::model::Model;
use crate::trends::growth::{self, Grower};

pub mod contract;
pub mod creations;
mod file_locks;
mod moment;
mod occupation;
mod open_calls;
mod origin_kind;
mod overdue;
mod stall;
mod stall_origins;
pub mod startup;
mod termination;
mod timeouts;

pub use contract::Breach;
pub use file_locks::LockHolder;
pub use moment::Moment;
pub use open_calls::{DeviceCycle, Divergence, DumpedProgress, Inside, Nature, OpenCalls};
pub use origin_kind::{OriginKind, StallOrigin};
pub use stall::{Absent, Stall};
pub use stall_origins::{LeftOut, Omission, Stalls};

/// The model at one moment, and what follows from it. It is built in stages, each of which is complete before the
/// next one begins, and has the fields and functions of the earlier ones.
pub struct Situation<'a> {
    earlier: Stalls<'a>,
    /// The first breach of DDP's contract in each group.
    pub breaches: Vec<Breach>,
    /// The first mismatch of group creations in each initialization of each world.
    pub mismatches: Vec<creations::Mismatch<'a>>,
    /// Time that ranks lose.
    pub losses: LostTime,
    /// Ranks whose memory grows with every step.
    pub growers: Vec<Grower<'a>>,
}

/// Analyses of lost time, which are reused from one evaluation to the next.
#[derive(Clone, Debug, Default)]
pub struct LostTime {
    /// Ranks that repeatedly keep the others waiting.
    pub straggler: Option<Straggler>,
    /// Analysis of the duration of collectives.
    pub communication: communication::CommunicationFindings,
}

impl<'a> Deref for Situation<'a> {
    type Target = Stalls<'a>;

    fn deref(&self) -> &Stalls<'a> {
        &self.earlier
    }
}

impl<'a> Situation<'a> {
    /// Evaluates the model at `now`.
    pub fn new(model: &'a Model, config: &'a Config, now: Timestamp, losses: LostTime) -> Self {
        let mut stalls = Stalls::new(OpenCalls::new(Moment::new(model, config, now)));
        let breaches = contract::breaches(&stalls);
        contract::trace_back(&mut stalls, &breaches);
        Self {
            breaches,
            mismatches: creations::mismatches(&stalls),
            losses,
            growers: growth::growers(model),
            earlier: stalls,
        }
    }
}
