//! What is known of calls that ranks are in: the second stage of a situation.

use std::ops::Deref;

use crate::situation::moment::Moment;

mod devices;
mod divergence;
mod inside;

pub use devices::DeviceCycle;
pub use divergence::{Divergence, Nature};
pub use inside::{DumpedProgress, Inside};

/// The second stage: what is known of calls that ranks are in.
pub struct OpenCalls<'a> {
    earlier: Moment<'a>,
    /// The first collective of each group that every member has entered and ranks wait for.
    pub inside: Vec<Inside>,
    /// Ranks whose devices wait for each other.
    pub device_cycle: Option<DeviceCycle>,
    /// The first place in each group at which calls met that cannot match.
    pub divergences: Vec<Divergence>,
}

impl<'a> Deref for OpenCalls<'a> {
    type Target = Moment<'a>;

    fn deref(&self) -> &Moment<'a> {
        &self.earlier
    }
}

impl<'a> OpenCalls<'a> {
    pub(super) fn new(moment: Moment<'a>) -> Self {
        let groups = moment.model.groups();
        Self {
            inside: inside::find(&moment),
            device_cycle: devices::cycle(&moment),
            divergences: groups.filter_map(|group| moment.divergence(group)).collect(),
            earlier: moment,
        }
    }
}
