//! Which interface a backend chooses on a node, and what can happen to a connection.

use std::fmt;
use std::net::IpAddr;

use ddp_doctor_diagnosis::input::backends::{self, Backend, DefaultInterface};
use serde::{Deserialize, Serialize};

use super::facts::{Facts, Interface};

/// The interface and the address that a backend chooses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Name of the interface.
    pub interface: String,
    /// Address of the node for its peers.
    pub address: IpAddr,
    /// Other interfaces that it could have chosen.
    pub others: Vec<String>,
}

/// What a backend chooses on a node; `None`: nothing, or it is unknown.
#[must_use]
pub fn choice(facts: &Facts, backend: &Backend) -> Option<Choice> {
    let variable = backend.interface.as_ref()?;
    let value = facts.variables.get(variable.name).map(|it| it.trim()).filter(|it| !it.is_empty());
    let usable: Vec<&Interface> = facts.interfaces.iter().filter(|it| it.is_up).collect();
    let family = variable.family.and_then(|it| facts.variables.get(it)).map_or("", String::as_str);
    let is_usable = |it: &IpAddr| match family {
        "AF_INET" => it.is_ipv4(),
        "AF_INET6" => it.is_ipv6() && !is_link_local(it),
        _ => !is_link_local(it),
    };
    let address = |it: &Interface| it.addresses.iter().copied().find(is_usable);
    let first = |interfaces: Vec<&Interface>| {
        let mut found = interfaces.into_iter().filter_map(|it| Some((it, address(it)?)));
        let (interface, address) = found.next()?;
        Some(Choice {
            interface: interface.name.clone(),
            address,
            others: found.map(|(it, _)| it.name.clone()).collect(),
        })
    };
    match (&variable.default, value) {
        (_, Some(value)) => {
            let selected = |it: &&Interface| variable.selects(value, &it.name);
            first(usable.into_iter().filter(selected).collect())
        }
        (DefaultInterface::FirstUp { preferred, avoided }, None) => {
            let with = |prefix: &str| named(&usable, |it| it.name.starts_with(prefix));
            let is_avoided = |it: &Interface| avoided.iter().any(|n| it.name.starts_with(n));
            let plain = named(&usable, |it| !is_avoided(it));
            let last = avoided.iter().map(|prefix| with(prefix));
            [with(preferred), plain].into_iter().chain(last).find_map(first)
        }
        (DefaultInterface::OfHostName, None) => {
            let resolved = facts.names.get(&facts.host)?;
            let mut own = resolved.addresses.iter().filter_map(|address| {
                let has = |it: &&&Interface| it.addresses.contains(address);
                let interface = usable
                    .iter()
                    .find(has)
                    // Every address 127.x.y.z is one of the loopback interface.
                    .or_else(|| {
                        let loopback = usable.iter().find(|it| it.is_loopback);
                        loopback.filter(|_| address.is_loopback())
                    })?;
                Some((*interface, *address))
            });
            let (interface, address) = own.next()?;
            Some(Choice { interface: interface.name.clone(), address, others: Vec::new() })
        }
    }
}

fn named<'a>(all: &[&'a Interface], is_so: impl Fn(&'a Interface) -> bool) -> Vec<&'a Interface> {
    all.iter().copied().filter(|it| is_so(it)).collect()
}

/// Whether an address is only valid together with an interface.
fn is_link_local(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(_) => false,
        IpAddr::V6(it) => it.segments()[0] & 0xffc0 == 0xfe80,
    }
}

/// Whether jobs on a node use a backend: it is for hosts, or the node has GPUs.
#[must_use]
pub fn is_used(facts: &Facts, backend: &Backend) -> bool {
    backend.default_for == Some("cpu") || facts.has_unified_memory.is_some()
}

/// The addresses at which the peers of a node connect to it: at most one per backend, without
/// loopback addresses. If the backends in use choose none, that of the first one that would choose one.
#[must_use]
pub fn addresses(facts: &Facts) -> Vec<IpAddr> {
    let address = |backend: &&'static Backend| {
        let chosen = choice(facts, backend)?;
        Some(chosen.address).filter(|it| !it.is_loopback())
    };
    let used = backends::CHECKED.iter().filter(|it| is_used(facts, it));
    let mut addresses: Vec<IpAddr> = used.filter_map(address).collect();
    addresses.dedup();
    if addresses.is_empty() {
        addresses.extend(backends::CHECKED.iter().find_map(address));
    }
    addresses
}

/// A kind of port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Port {
    /// The port of the master.
    Master,
    /// A port that the system assigned, as it does for NCCL and Gloo.
    Ephemeral,
    /// The port of the coordinator.
    Coordinator,
}

/// What happened to a connection.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Nothing came back.
    NoAnswer,
    /// It was refused.
    Refused,
    /// The network reports that there is no way.
    Unreachable,
    /// Another host or program has answered.
    OtherHost,
    /// The name does not resolve.
    Unresolved(String),
    /// The peer has another token.
    OtherToken,
    /// Another error.
    Failed(String),
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAnswer => f.write_str("no answer"),
            Self::Refused => f.write_str("connection refused"),
            Self::Unreachable => f.write_str("network unreachable"),
            Self::OtherHost => f.write_str("another host or program answers"),
            Self::Unresolved(error) => write!(f, "the name does not resolve ({error})"),
            Self::OtherToken => f.write_str("another token"),
            Self::Failed(error) => f.write_str(error),
        }
    }
}

impl Outcome {
    /// The outcome of a connection that failed.
    #[must_use]
    pub fn from_error(error: &std::io::Error) -> Self {
        use std::io::ErrorKind;
        match error.kind() {
            ErrorKind::TimedOut => Self::NoAnswer,
            ErrorKind::ConnectionRefused => Self::Refused,
            ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => Self::Unreachable,
            // The system's own error is that of a local firewall.
            ErrorKind::PermissionDenied if error.raw_os_error().is_none() => Self::OtherToken,
            ErrorKind::InvalidData
            | ErrorKind::UnexpectedEof
            | ErrorKind::ConnectionReset
            | ErrorKind::BrokenPipe => Self::OtherHost,
            _ => Self::Failed(error.to_string()),
        }
    }

    /// The same with bounded text.
    #[must_use]
    pub fn bounded(self) -> Self {
        match self {
            Self::Unresolved(error) => Self::Unresolved(super::facts::text(&error)),
            Self::Failed(error) => Self::Failed(super::facts::text(&error)),
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use ddp_doctor_diagnosis::input::backends::{GLOO, NCCL};

    use super::*;
    use crate::facts::Resolved;

    fn interface(name: &str, addresses: &[&str]) -> Interface {
        Interface {
            name: name.into(),
            is_up: true,
            is_loopback: name == "lo",
            addresses: addresses.iter().map(|it| it.parse().unwrap()).collect(),
        }
    }

    fn facts(variable: Option<(&str, &str)>, resolved: &str) -> Facts {
        let mut down = interface("eth9", &["10.9.0.1"]);
        down.is_up = false;
        let name = Resolved { addresses: vec![resolved.parse().unwrap()], error: None };
        let variables = variable.into_iter();
        Facts {
            host: "node0".into(),
            interfaces: vec![
                interface("lo", &["127.0.0.1", "::1"]),
                down,
                interface("docker0", &["172.17.0.1"]),
                interface("eth0", &["10.0.0.1", "fe80::1", "fd00::1"]),
                interface("eth1", &["10.1.0.1"]),
            ],
            names: [("node0".to_owned(), name)].into(),
            variables: variables.map(|(a, b)| (a.into(), b.into())).collect(),
            ..Facts::default()
        }
    }

    #[test]
    fn backends_choose_as_they_do_in_a_job() {
        let nccl = "NCCL_SOCKET_IFNAME";
        let gloo = "GLOO_SOCKET_IFNAME";
        for (backend, variable, resolved, expected) in [
            (&NCCL, None, "10.0.0.1", Some("eth0 10.0.0.1")),
            (&NCCL, Some((nccl, "eth1")), "10.0.0.1", Some("eth1 10.1.0.1")),
            (&NCCL, Some((nccl, "^eth,lo")), "10.0.0.1", Some("docker0 172.17.0.1")),
            (&NCCL, Some((nccl, "=eth")), "10.0.0.1", None),
            (&NCCL, Some((nccl, "eth9")), "10.0.0.1", None),
            (&NCCL, Some(("NCCL_SOCKET_FAMILY", "AF_INET6")), "10.0.0.1", Some("eth0 fd00::1")),
            (&GLOO, None, "10.1.0.1", Some("eth1 10.1.0.1")),
            (&GLOO, None, "127.0.1.1", Some("lo 127.0.1.1")),
            (&GLOO, None, "192.0.2.1", None),
            (&GLOO, Some((gloo, "eth0")), "127.0.1.1", Some("eth0 10.0.0.1")),
            (&GLOO, Some((gloo, "eth")), "10.0.0.1", None),
        ] {
            let chosen = choice(&facts(variable, resolved), backend)
                .map(|it| format!("{} {}", it.interface, it.address));
            assert_eq!(chosen.as_deref(), expected, "{} {variable:?} {resolved}", backend.label);
        }
    }

    #[test]
    fn nccl_prefers_infiniband_and_falls_back_to_docker() {
        let mut facts = facts(None, "10.0.0.1");
        facts.interfaces.push(interface("ib0", &["10.2.0.1"]));
        let chosen = choice(&facts, &NCCL).unwrap();
        assert_eq!((chosen.interface.as_str(), chosen.others.len()), ("ib0", 0));
        facts.interfaces.truncate(3);
        assert_eq!(choice(&facts, &NCCL).unwrap().interface, "docker0");
        facts.interfaces.truncate(1);
        assert_eq!(choice(&facts, &NCCL).unwrap().interface, "lo");
    }

    #[test]
    fn peers_connect_to_no_loopback_address() {
        let mut facts = facts(None, "127.0.1.1");
        let first: IpAddr = "10.0.0.1".parse().unwrap();
        assert_eq!(addresses(&facts), [first]);
        facts.has_unified_memory = Some(true);
        assert_eq!(addresses(&facts), [first]);
        facts.names.clear();
        facts.interfaces.truncate(1);
        assert_eq!(addresses(&facts), Vec::<IpAddr>::new());
    }

    #[test]
    fn errors_of_the_system_and_of_the_peer_differ() {
        let local = std::io::Error::from_raw_os_error(libc::EPERM);
        assert!(matches!(Outcome::from_error(&local), Outcome::Failed(_)));
        let token = std::io::Error::new(std::io::ErrorKind::PermissionDenied, "another token");
        assert_eq!(Outcome::from_error(&token), Outcome::OtherToken);
    }
}
