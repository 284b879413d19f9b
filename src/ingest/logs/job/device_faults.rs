//! Faults of devices that the driver reports of processes which the text does not name otherwise.

use std::sync::Arc;
use std::time::Duration;

use ddp_doctor_diagnosis::input::allocation;
use ddp_doctor_proto::report::Timestamp;

use super::rank::Raised;
use super::{LoggedJob, before};
use crate::logs::facts::{Fact, Statement};

/// Parts of exceptions that a fault of a device leads to.
const ERRORS: [&str; 4] =
    ["CUDA error: ", "AcceleratorError: ", "unhandled cuda error", "ncclUnhandledCudaError"];
/// Maximum number of faults that are kept.
const MAX_FAULTS: usize = 256;

/// A fault of a device.
#[derive(Debug)]
pub(super) struct DeviceFault {
    fact: Fact,
    at: Timestamp,
}

impl LoggedJob {
    /// Keeps the fault of a device until all ranks are known. Returns whether it is one.
    pub(super) fn keep_device_fault(&mut self, fact: &Fact, at: Timestamp) -> bool {
        let is_kept = fact.who.gpu.is_some() && self.device_faults.len() < MAX_FAULTS;
        if is_kept {
            self.device_faults.push(DeviceFault { fact: fact.clone(), at });
        }
        is_kept
    }

    /// Takes the fault of a device as that of the only rank with an error of its device that uses it, or the only faulty
    /// device of a host as that of its only rank with such an error. Others are noted.
    pub(super) fn assign_device_faults(&mut self) {
        let faults = std::mem::take(&mut self.device_faults);
        for DeviceFault { fact, at } in &faults {
            let who = &fact.who;
            let mut all = faults.iter().map(|it| &it.fact.who);
            let mut same_host = all.clone().filter(|it| it.host == who.host);
            let is_only = same_host
                .all(|it| it.gpu.as_ref().map(|it| it.bus) == who.gpu.as_ref().map(|it| it.bus));
            // Where the text names no other host, it is that of all ranks.
            let is_only_host =
                self.names.has_one_host(who.host.as_deref()) && all.all(|it| it.host == who.host);
            let host = who.host.as_deref().unwrap_or_default();
            let ranks = self.ranks.keys().copied().filter(|rank| self.has_error_of_device(*rank));
            let is_here = |rank: &u32| is_only_host || self.names.is_on(*rank, host);
            let ranks: Vec<u32> = ranks.filter(is_here).collect();
            let users = who.gpu.as_ref().map_or_else(Vec::new, |gpu| self.names.users_of(gpu));
            let may_use = |rank: &u32| users.contains(rank) || users.is_empty() && is_only;
            match ranks[..] {
                [rank] if may_use(&rank) => self.raised_by_device(rank, fact),
                _ => self.add_exception(fact, *at),
            }
        }
    }

    /// Whether a rank reports an error to which a fault of its device may lead.
    pub(super) fn has_error_of_device(&self, rank: u32) -> bool {
        self.ranks.get(&rank).is_some_and(|rank| rank.raised.iter().any(is_of_device))
    }

    /// Puts the fault in front of the exceptions of its rank.
    pub(super) fn raised_by_device(&mut self, number: u32, fact: &Fact) {
        let Statement::Raised { text, .. } = &fact.what else { return };
        let rank = self.ranks.entry(number).or_default();
        let first = rank.raised.iter().map(|it| it.at).min().unwrap_or_default();
        let fault = Raised {
            at: before(first, Duration::from_micros(1)),
            text: Arc::clone(text),
            place: None,
            uncaught: true,
            is_last: false,
            is_dated: false,
            is_logged: false,
            is_caught: false,
        };
        if rank.raised.iter().all(|it| it.text != fault.text) {
            rank.raised.insert(0, fault);
        }
    }
}

fn is_of_device(raised: &Raised) -> bool {
    let is_error = ERRORS.iter().any(|it| raised.text.contains(it));
    is_error && allocation::failed(&raised.text).is_none()
}
