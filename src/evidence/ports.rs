//! The state of network ports: conversion from messages to the engine, and which samples of them are kept.

use std::collections::BTreeMap;
use std::sync::Arc;

use ddp_doctor_diagnosis::event::{PortIdentity, PortSample};
use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_proto::{PortKind, v1};

use super::values::name;

/// Maximum number of samples that are kept of each port.
const MAX_SAMPLES: usize = 32;
/// Maximum number of ports of which samples are kept.
const MAX_PORTS: usize = 64;

/// The samples of each port from which later ones start, by name.
#[derive(Debug, Default)]
pub struct Samples(BTreeMap<String, Vec<v1::PortSample>>);

impl Samples {
    /// Adds a sample. The first and the latest two are kept, and those around changes of state, of which the earliest
    /// go first.
    pub fn add(&mut self, sample: &v1::PortSample) {
        if self.0.len() >= MAX_PORTS && !self.0.contains_key(&sample.name) {
            return;
        }
        let state = |it: &v1::PortSample| (it.up, it.downs);
        let samples = self.0.entry(sample.name.clone()).or_default();
        if let [.., a, b, c] = &samples[..]
            && state(a) == state(b)
            && state(b) == state(c)
        {
            samples.remove(samples.len() - 2);
        } else if samples.len() >= MAX_SAMPLES {
            samples.remove(1);
        }
        samples.push(sample.clone());
    }

    /// The latest sample of a port.
    #[must_use]
    pub fn latest(&self, port: &str) -> Option<&v1::PortSample> {
        self.0.get(port)?.last()
    }

    /// All that are kept, those of a port in their order.
    pub fn iter(&self) -> impl Iterator<Item = &v1::PortSample> {
        self.0.values().flatten()
    }
}

/// The port of a host; `None`: the message does not identify it.
pub(super) fn identity(sample: &v1::PortSample, host: &Arc<str>) -> Option<Arc<PortIdentity>> {
    let kind = u8::try_from(sample.kind).ok()?;
    (!sample.name.is_empty()).then(|| {
        Arc::new(PortIdentity {
            host: Arc::clone(host),
            name: name(&sample.name),
            kind: PortKind::from_number(kind),
            gpu: None,
        })
    })
}

/// Decodes a sample. `time`: converts a time of the host.
pub(super) fn sample(sample: &v1::PortSample, time: impl Fn(u64) -> Timestamp) -> PortSample {
    PortSample {
        previous: Some(sample.previous_unix_ns).filter(|&it| it > 0).map(time),
        is_up: sample.up,
        downs: sample.downs,
        errors: sample.errors,
        retries: sample.retries,
        bytes: sample.bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_of_state_are_kept() {
        let mut samples = Samples::default();
        for at in 0..1000 {
            samples.add(&v1::PortSample {
                name: "eth0".into(),
                unix_ns: at,
                up: at < 500,
                downs: Some(u64::from(at >= 500)),
                errors: Some(at),
                ..v1::PortSample::default()
            });
        }
        let kept: Vec<u64> = samples.iter().map(|it| it.unix_ns).collect();
        assert_eq!((kept[0], kept.len() < 10, kept.last()), (0, true, Some(&999)));
        assert!(kept.contains(&499) && kept.contains(&500), "{kept:?}");
    }
}
