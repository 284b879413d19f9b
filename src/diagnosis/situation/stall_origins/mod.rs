//! Waits for ranks that have not arrived, each with its origin: the third stage of a situation.

use std::collections::BTreeMap;
use std::ops::Deref;

use crate::situation::open_calls::OpenCalls;
use crate::situation::origin_kind::{OriginKind, StallOrigin};
use crate::situation::stall::Stall;

mod absence;
mod omission;
mod origin;
mod search;

pub use omission::{LeftOut, Omission};

/// The third stage: waits for ranks that have not arrived, each with its origin.
pub struct Stalls<'a> {
    pub(super) earlier: OpenCalls<'a>,
    /// Stalls: in each group the first place for each set of missing members, and the first
    /// point-to-point call of each rank that waits for a partner.
    pub stalls: Vec<Stall>,
    /// Calls that explain a cycle of waits: one rank left them out, or made them alone.
    pub omissions: Vec<Omission>,
}

impl<'a> Deref for Stalls<'a> {
    type Target = OpenCalls<'a>;

    fn deref(&self) -> &OpenCalls<'a> {
        &self.earlier
    }
}

impl<'a> Stalls<'a> {
    pub(super) fn new(calls: OpenCalls<'a>) -> Self {
        let model = calls.model;
        let mut stalls: Vec<Stall> =
            model.groups().flat_map(|group| calls.stalls_of(group)).collect();
        stalls.extend(model.groups().flat_map(|group| calls.unpartnered(group)));
        for (at, origin) in calls.origins(&stalls).into_iter().enumerate() {
            stalls[at].origin = origin;
        }
        let omissions = omission::find(&calls, &mut stalls);
        for stall in &mut stalls {
            let origin = stall.origin.clone();
            let astray = match origin.why {
                OriginKind::Leaving => true,
                OriginKind::Raised => origin.ranks == stall.waiting,
                _ => false,
            };
            // A rank is not a victim of a stall that it causes.
            stall.waiting.retain(|rank| astray || !origin.ranks.contains(rank));
            stall.rank_guard = calls.parting_of(stall);
        }
        Self { earlier: calls, stalls, omissions }
    }

    /// Stalls by origin, those at the origin itself first.
    pub fn stalls_by_origin(&self) -> BTreeMap<&StallOrigin, Vec<&Stall>> {
        let mut by_origin: BTreeMap<&StallOrigin, Vec<&Stall>> = BTreeMap::new();
        for stall in &self.stalls {
            by_origin.entry(&stall.origin).or_default().push(stall);
        }
        for stalls in by_origin.values_mut() {
            stalls.sort_by_key(|stall| (!stall.is_direct(), stall.since));
        }
        by_origin
    }

    /// What `of` makes of the stalls of each origin.
    pub fn by_origin<T>(&self, of: impl Fn(&StallOrigin, &[&Stall]) -> Option<T>) -> Vec<T> {
        let by_origin = self.stalls_by_origin().into_iter();
        by_origin.filter_map(|(origin, stalls)| of(origin, &stalls)).collect()
    }

    /// The stalls that this origin explains.
    pub fn stalls_from(&self, origin: &StallOrigin) -> Vec<&Stall> {
        self.stalls.iter().filter(|stall| stall.origin == *origin).collect()
    }
}
