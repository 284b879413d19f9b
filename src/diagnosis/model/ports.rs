//! The network ports of the nodes, and the NVLinks of their GPUs.

use std::collections::BTreeMap;
use std::sync::Arc;

use ddp_doctor_proto::PortKind;
use ddp_doctor_proto::report::{RankPort, Timestamp};

use crate::input::event::{GpuIdentity, GpuSample, PortIdentity, PortSample};

/// Maximum number of ports in a job: some for each rank.
const MAX_PORTS: usize = 4 * super::MAX_WORLD as usize;
/// Maximum number of samples that are kept of a port.
const MAX_SAMPLES: usize = 64;
/// Minimum number of bytes that a port has carried which the job may use. Others carry what hosts say to their
/// neighbors.
const MIN_BYTES: u64 = 1 << 20;

/// All ports.
#[derive(Debug, Default)]
pub struct Ports(BTreeMap<Arc<PortIdentity>, Port>);

/// A port.
#[derive(Debug)]
pub struct Port {
    /// Its identity.
    pub identity: Arc<PortIdentity>,
    /// Samples by time: the first, the latest, and a limited number between them.
    samples: BTreeMap<Timestamp, PortSample>,
    /// What is reported of it; `None`: it has shown no fault.
    fault: Option<RankPort>,
}

/// What the counters of a port show between two samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rise {
    /// Damaged packets.
    pub errors: u64,
    /// Repeated packets.
    pub retries: u64,
}

/// The first time that a port was seen to have gone down, and what followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Down {
    /// When it was last measured before: it went down after that.
    pub after: Timestamp,
    /// When it was seen.
    pub at: Timestamp,
    /// How often it went down, as far as it is known.
    pub times: u64,
    /// Whether it was up again in the latest sample.
    pub is_up: bool,
}

impl Ports {
    pub(super) fn sampled(&mut self, port: Arc<PortIdentity>, sample: PortSample, at: Timestamp) {
        if self.0.len() >= MAX_PORTS && !self.0.contains_key(&port) {
            return;
        }
        let identity = Arc::clone(&port);
        let port =
            self.0.entry(port).or_insert(Port { identity, samples: BTreeMap::new(), fault: None });
        port.samples.insert(at, sample);
        port.limit();
        port.fault = port.reported();
    }

    /// Takes the state of NVLinks from a sample of their GPU.
    pub(super) fn sampled_gpu(&mut self, gpu: &GpuIdentity, sample: &GpuSample, at: Timestamp) {
        let Some((links, active)) = sample.links.zip(sample.active_links) else { return };
        let identity = PortIdentity {
            host: Arc::clone(&gpu.host),
            name: gpu.index.to_string().into(),
            kind: PortKind::Nvlink,
            gpu: Some(Arc::clone(&gpu.uuid)),
        };
        let sample = PortSample {
            previous: None,
            // One that is not connected is down from the start.
            is_up: active > 0,
            downs: Some(u64::from(links.saturating_sub(active))),
            errors: sample.link_errors,
            retries: sample.link_retries,
            bytes: None,
        };
        self.sampled(Arc::new(identity), sample, at);
    }

    /// The links of a host, or of one of its GPUs, that have shown a fault.
    pub fn faulty(&self, host: &Arc<str>, gpu: Option<&str>, has_peers: bool) -> Vec<RankPort> {
        let first = PortIdentity {
            host: Arc::clone(host),
            name: "".into(),
            kind: PortKind::default(),
            gpu: None,
        };
        let of_host =
            self.0.range::<PortIdentity, _>(first..).take_while(|(it, _)| it.host == *host);
        let of_rank = of_host.filter(|(it, _)| match &it.gpu {
            Some(uuid) => gpu == Some(&**uuid),
            // Ranks of one host do not use its network.
            None => has_peers,
        });
        of_rank.filter_map(|(_, port)| port.fault.clone()).collect()
    }

    /// All ports.
    pub fn iter(&self) -> impl Iterator<Item = &Port> {
        self.0.values()
    }
}

impl Port {
    /// Drops samples that say least: every second one of those that only continue the state of their neighbors.
    fn limit(&mut self) {
        if self.samples.len() <= MAX_SAMPLES {
            return;
        }
        let state = |it: &PortSample| (it.is_up, it.downs);
        let all: Vec<(Timestamp, &PortSample)> =
            self.samples.iter().map(|(at, it)| (*at, it)).collect();
        let plain: Vec<Timestamp> = all
            .windows(3)
            .filter(|it| state(it[0].1) == state(it[1].1) && state(it[1].1) == state(it[2].1))
            .map(|it| it[1].0)
            .step_by(2)
            .collect();
        let dropped = if plain.is_empty() { vec![all[1].0] } else { plain };
        for at in dropped {
            self.samples.remove(&at);
        }
    }

    /// Its faults since it was first measured; `None`: it has shown none, or the job does not use it.
    fn reported(&self) -> Option<RankPort> {
        let (first, _) = self.samples.first_key_value()?;
        let rise = self.rise(*first).map_or(Rise::default(), |[(rise, _), _]| rise);
        let down = self.down();
        let is_faulty = self.is_used() && (down.is_some() || rise != Rise::default());
        is_faulty.then(|| RankPort {
            name: self.identity.name.to_string(),
            kind: self.identity.kind.to_string(),
            is_up: down.is_none_or(|it| it.is_up),
            downs: down.map_or(0, |it| it.times),
            errors: rise.errors,
            retries: rise.retries,
        })
    }

    /// When it was measured last.
    pub fn measured(&self) -> Option<Timestamp> {
        self.samples.keys().next_back().copied()
    }

    /// The latest sample.
    pub fn latest(&self) -> Option<&PortSample> {
        self.samples.values().next_back()
    }

    /// Whether the job may use it: it was up, and has carried data.
    pub fn is_used(&self) -> bool {
        let first = self.samples.values().next().and_then(|it| it.bytes);
        let last = self.latest().and_then(|it| it.bytes);
        let carried = last.zip(first).map(|(last, first)| last.saturating_sub(first));
        carried.is_none_or(|it| it >= MIN_BYTES) && self.samples.values().any(|it| it.is_up)
    }

    /// When it first went down while it was measured.
    pub fn down(&self) -> Option<Down> {
        let pairs = || self.samples.iter().zip(self.samples.iter().skip(1));
        let downs = |before: &PortSample, after: &PortSample| {
            let counted = after
                .downs
                .zip(before.downs)
                .map_or(0, |(after, before)| after.saturating_sub(before));
            counted.max(u64::from(before.is_up && !after.is_up))
        };
        let ((before, earlier), (&at, sample)) =
            pairs().find(|((_, before), (_, after))| downs(before, after) > 0)?;
        let times = pairs().map(|((_, before), (_, after))| downs(before, after)).sum();
        let after = sample.previous.map_or(*before, |it| it.max(*before)).min(at);
        // Of several NVLinks, some may be down while others are up.
        let is_of_gpu = self.identity.gpu.is_some();
        let is_up = self.latest().is_some_and(|latest| {
            if is_of_gpu { latest.downs <= earlier.downs } else { latest.is_up }
        });
        Some(Down { after, at, times, is_up })
    }

    /// What its counters show since this time, and how long that took; and the same for the time before, which may be
    /// zero. `None`: it was not measured at both ends.
    pub fn rise(&self, since: Timestamp) -> Option<[(Rise, std::time::Duration); 2]> {
        let (first_at, first) = self.samples.first_key_value()?;
        let (from_at, from) = self.samples.range(..=since).next_back()?;
        let (last_at, last) = self.samples.last_key_value().filter(|(at, _)| **at > since)?;
        let of = |now: Option<u64>, before: Option<u64>| {
            now.zip(before).map_or(0, |(now, before)| now.saturating_sub(before))
        };
        let between = |before: &PortSample, now: &PortSample| Rise {
            errors: of(now.errors, before.errors),
            retries: of(now.retries, before.retries),
        };
        Some([
            (between(from, last), last_at.since(*from_at)),
            (between(first, from), from_at.since(*first_at)),
        ])
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn port(samples: &[(u64, bool, u64, u64)]) -> Port {
        let identity = PortIdentity {
            host: "a".into(),
            name: "eth0".into(),
            kind: PortKind::Ethernet,
            gpu: None,
        };
        let mut ports = Ports::default();
        for &(at, is_up, downs, errors) in samples {
            let sample = PortSample {
                is_up,
                downs: Some(downs),
                errors: Some(errors),
                ..PortSample::default()
            };
            ports.sampled(Arc::new(identity.clone()), sample, second(at));
        }
        ports.0.into_values().next().unwrap()
    }

    fn second(at: u64) -> Timestamp {
        Timestamp(at * 1_000_000_000)
    }

    #[test]
    fn faults_of_ports_are_reported_of_their_host() {
        let mut ports = Ports::default();
        for (name, errors) in [("eth0", 0), ("eth1", 7)] {
            let identity = PortIdentity {
                host: "a".into(),
                name: name.into(),
                kind: PortKind::Ethernet,
                gpu: None,
            };
            for (at, errors) in [(1, 0), (2, errors)] {
                let sample =
                    PortSample { is_up: true, errors: Some(errors), ..PortSample::default() };
                ports.sampled(Arc::new(identity.clone()), sample, second(at));
            }
        }
        let found = ports.faulty(&"a".into(), None, true);
        let texts: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["Ethernet eth1: 7 damaged and 0 repeated packets"]);
        let down = RankPort { is_up: false, downs: 1, errors: 0, ..found[0].clone() };
        assert_eq!(down.to_string(), "Ethernet eth1: down");
        assert_eq!(ports.faulty(&"a".into(), None, false), []);
        assert_eq!(ports.faulty(&"b".into(), None, true), []);
    }

    #[test]
    fn port_that_was_never_up_is_not_used_and_did_not_go_down() {
        let down = port(&[(1, false, 3, 0), (9, false, 3, 0)]);
        assert_eq!((down.down(), down.is_used()), (None, false));
    }

    #[test]
    fn flap_between_samples_is_counted() {
        let flapped = port(&[(1, true, 3, 0), (9, true, 5, 0)]);
        let down = flapped.down().unwrap();
        assert_eq!((down.after, down.at, down.times, down.is_up), (second(1), second(9), 2, true));
    }

    #[test]
    fn rise_is_that_since_a_time() {
        let port = port(&[(1, true, 0, 2), (10, true, 0, 3), (15, true, 0, 40)]);
        let [(during, lasted), (before, earlier)] = port.rise(second(12)).unwrap();
        assert_eq!((during.errors, lasted), (37, Duration::from_secs(5)));
        assert_eq!((before.errors, earlier), (1, Duration::from_secs(9)));
        assert_eq!(port.rise(second(15)), None);
    }

    #[test]
    fn samples_around_changes_are_kept() {
        let samples: Vec<_> =
            (1..=1000).map(|at| (at, at < 500, u64::from(at >= 500), at)).collect();
        let port = port(&samples);
        assert!(port.samples.len() <= MAX_SAMPLES);
        let down = port.down().unwrap();
        assert_eq!((down.after, down.at), (second(499), second(500)));
    }
}
