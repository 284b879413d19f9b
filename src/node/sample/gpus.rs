//! The GPUs of a node: their state once a second, and the faults that they report.
//!
//! A thread asks their driver, which may block. Without a driver there is none.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::Instant;

use ddp_doctor_host::gpu::{Gpus, Observation};
use ddp_doctor_proto::v1::{self, event::Kind};

use crate::timing::Timing;
use crate::upload::outbox::Outbox;

/// Maximum number of observations that wait for the follower. Further ones are dropped.
const QUEUE: usize = 1024;
/// Divisor of a GPU's memory, power limit or maximum clock that gives its minimum reported change.
const CHANGE_DIVISOR: u64 = 20;
/// Minimum reported change of a share of the time, in percent.
const MIN_SHARE_CHANGE: u32 = 20;
/// Minimum reported change of a temperature, in degrees.
const MIN_TEMPERATURE_CHANGE: u32 = 5;

/// Samples the GPUs of a node.
#[derive(Debug)]
pub struct GpuSampler {
    timing: Timing,
    observed: Vec<Receiver<Observation>>,
    /// The last reported samples by UUID, each with its time.
    reported: BTreeMap<String, (Instant, v1::GpuSample)>,
}

impl GpuSampler {
    /// Observes all GPUs of this host from now on.
    #[must_use]
    pub fn start(timing: Timing) -> Self {
        let observed = Gpus::find().into_iter().filter_map(|gpus| {
            let (sender, receiver) = sync_channel(QUEUE);
            let observe = move || {
                use std::sync::mpsc::TrySendError::Disconnected;
                gpus.observe(|it| !matches!(sender.try_send(it), Err(Disconnected(_))));
            };
            // It is not joined: the driver of a GPU with a fault may never answer.
            let thread = thread::Builder::new().name("ddp-gpus".into()).spawn(observe);
            thread.ok().map(|_| receiver)
        });
        Self { timing, observed: observed.collect(), reported: BTreeMap::new() }
    }

    /// Reports noticeable changes since the last call. Returns the faults, which the caller reports.
    pub fn poll(&mut self, now: Instant, out: &mut Outbox) -> Vec<v1::GpuFault> {
        let observed: Vec<Observation> =
            self.observed.iter().flat_map(Receiver::try_iter).collect();
        let mut faults = Vec::new();
        for observation in observed {
            match observation {
                Observation::Fault(fault) => faults.push(fault),
                Observation::Sample(sample) => {
                    if let Some(sample) = self.take_news(*sample, now) {
                        out.push(Kind::GpuSample(sample));
                    }
                }
            }
        }
        faults
    }

    /// Repeats the last samples for a coordinator that may not have them.
    pub fn repeat(&self, out: &mut Outbox) {
        for (_, sample) in self.reported.values() {
            out.push_live(Kind::GpuSample(sample.clone()));
        }
    }

    /// Returns a sample that has to be reported.
    fn take_news(&mut self, sample: v1::GpuSample, now: Instant) -> Option<v1::GpuSample> {
        let uuid = &sample.gpu.as_ref()?.uuid;
        if let Some((at, reported)) = self.reported.get(uuid)
            && now.duration_since(*at) < self.timing.gpu_heartbeat
            && !differs(reported, &sample)
        {
            return None;
        }
        self.reported.insert(uuid.clone(), (now, sample.clone()));
        Some(sample)
    }
}

/// Whether a sample differs noticeably from the last reported one.
fn differs(reported: &v1::GpuSample, now: &v1::GpuSample) -> bool {
    let apart = |reported: Option<u32>, now: Option<u32>, step: u32| match (reported, now) {
        (Some(reported), Some(now)) => reported.abs_diff(now) >= step.max(1),
        (reported, now) => reported != now,
    };
    let part = |of: Option<u32>| of.unwrap_or(0) / CHANGE_DIVISOR as u32;
    let memory = reported.memory_free.unwrap_or(0).abs_diff(now.memory_free.unwrap_or(0));
    // Every change of these is reported.
    let rare = |it: &v1::GpuSample| {
        (
            (it.lost, it.slowdown, it.power_limit_mw, it.max_clock_mhz),
            (it.pcie_generation, it.pcie_width, it.uncorrected_errors),
            (it.remapped_rows, it.remapping_pending, it.remapping_failed),
            (it.links, it.active_links, it.pcie_replays),
            (it.link_errors, it.link_retries),
            it.processes.iter().map(|it| it.pid).collect::<Vec<_>>(),
        )
    };
    rare(reported) != rare(now)
        || memory > now.memory_total.unwrap_or(0) / CHANGE_DIVISOR
        || apart(reported.busy_percent, now.busy_percent, MIN_SHARE_CHANGE)
        || apart(reported.memory_busy_percent, now.memory_busy_percent, MIN_SHARE_CHANGE)
        || apart(reported.power_mw, now.power_mw, part(now.power_limit_mw))
        || apart(reported.clock_mhz, now.clock_mhz, part(now.max_clock_mhz))
        || apart(reported.celsius, now.celsius, MIN_TEMPERATURE_CHANGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noticeable_changes_are_reported() {
        let reported = v1::GpuSample {
            busy_percent: Some(100),
            memory_busy_percent: Some(10),
            memory_free: Some(60 << 30),
            memory_total: Some(80 << 30),
            power_mw: Some(127_000),
            power_limit_mw: Some(700_000),
            ..v1::GpuSample::default()
        };
        let with = |change: fn(&mut v1::GpuSample)| {
            let mut sample = reported.clone();
            change(&mut sample);
            differs(&reported, &sample)
        };
        assert!(!with(|_| {}));
        assert!(!with(|it| it.busy_percent = Some(81)) && with(|it| it.busy_percent = Some(80)));
        assert!(!with(|it| it.memory_free = Some(57 << 30)));
        assert!(with(|it| it.memory_free = Some(50 << 30)));
        assert!(!with(|it| it.power_mw = Some(160_000)) && with(|it| it.power_mw = Some(90_000)));
        assert!(with(|it| it.lost = true) && with(|it| it.uncorrected_errors = Some(0)));
        assert!(with(|it| it.processes.push(v1::GpuProcess { pid: 7, memory: None })));
    }
}
