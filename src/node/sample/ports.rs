//! The network ports of a node: once a second while a rank may wait, otherwise every ten.
//!
//! A thread reads the files of the kernel, since drivers ask their hardware for some counters. Without ports there is
//! none.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use ddp_doctor_evidence::ports::Samples;
use ddp_doctor_host::ports::Port;
use ddp_doctor_proto::v1::{self, event::Kind};

use crate::timing::Timing;
use crate::upload::outbox::Outbox;

/// Maximum number of samples that wait for the follower. Further ones are dropped.
const QUEUE: usize = 1024;
/// Interval at which the thread looks whether a rank has begun to wait.
const TICK: Duration = Duration::from_millis(250);

/// Samples the ports of a node.
#[derive(Debug)]
pub struct PortSampler {
    timing: Timing,
    sampled: Option<Receiver<v1::PortSample>>,
    /// Whether a rank may wait.
    is_urgent: Arc<AtomicBool>,
    reported: Samples,
    /// When a sample of a port was last reported, by its name.
    reported_at: BTreeMap<String, Instant>,
}

impl PortSampler {
    /// Samples all ports of this host from now on.
    #[must_use]
    pub fn start(timing: Timing) -> Self {
        let is_urgent = Arc::new(AtomicBool::new(false));
        let ports = Port::find();
        let sampled = (!ports.is_empty()).then(|| {
            let (sender, receiver) = sync_channel(QUEUE);
            let is_urgent = Arc::clone(&is_urgent);
            // It is not joined: a driver may never answer.
            let sample = move || sample(&ports, timing, &is_urgent, &sender);
            let thread = thread::Builder::new().name("ddp-ports".into()).spawn(sample);
            thread.ok().map(|_| receiver)
        });
        Self {
            timing,
            sampled: sampled.flatten(),
            is_urgent,
            reported: Samples::default(),
            reported_at: BTreeMap::new(),
        }
    }

    /// Whether there is a port.
    #[must_use]
    pub const fn is_active(&self) -> bool {
        self.sampled.is_some()
    }

    /// Reports what has changed since the last call. `is_urgent`: a rank may wait.
    pub fn poll(&mut self, is_urgent: bool, now: Instant, out: &mut Outbox) {
        self.is_urgent.store(is_urgent, Ordering::Relaxed);
        let Some(sampled) = &self.sampled else { return };
        let samples: Vec<v1::PortSample> = sampled.try_iter().collect();
        // That nothing has changed since a rank began to wait is news as well.
        let heartbeat =
            if is_urgent { self.timing.waiting_port_heartbeat } else { self.timing.port_heartbeat };
        for sample in samples {
            let at = self.reported_at.get(&sample.name);
            let is_due = at.is_none_or(|at| now.duration_since(*at) >= heartbeat);
            if is_due || self.reported.latest(&sample.name).is_none_or(|it| differs(it, &sample)) {
                self.reported_at.insert(sample.name.clone(), now);
                self.reported.add(&sample);
                out.push(Kind::PortSample(sample));
            }
        }
    }

    /// Repeats what a coordinator needs that may not have it.
    pub fn repeat(&self, out: &mut Outbox) {
        for sample in self.reported.iter() {
            out.push_live(Kind::PortSample(sample.clone()));
        }
    }
}

/// Whether a sample has to be reported after this one.
fn differs(last: &v1::PortSample, now: &v1::PortSample) -> bool {
    let state = |it: &v1::PortSample| (it.up, it.downs, it.errors, it.retries);
    state(last) != state(now)
}

/// Samples ports until nobody receives them.
fn sample(
    ports: &[Port],
    timing: Timing,
    is_urgent: &AtomicBool,
    sender: &SyncSender<v1::PortSample>,
) {
    let mut previous = 0;
    loop {
        let began = Instant::now();
        let mut latest = 0;
        for port in ports {
            let Some(sample) = port.read() else { continue };
            latest = sample.unix_ns;
            let sample = v1::PortSample { previous_unix_ns: previous, ..sample };
            if matches!(sender.try_send(sample), Err(TrySendError::Disconnected(_))) {
                return;
            }
        }
        previous = latest;
        let interval = || {
            let is_urgent = is_urgent.load(Ordering::Relaxed);
            if is_urgent { timing.waiting_port_interval } else { timing.port_interval }
        };
        while began.elapsed() < interval() {
            thread::sleep(TICK.min(interval()));
        }
    }
}
