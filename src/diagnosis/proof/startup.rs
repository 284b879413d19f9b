//! Certificates about ranks that begin to form a world.

use std::collections::BTreeMap;

use ddp_doctor_proto::report::{JoinFact, SettingFact, Timestamp};

use crate::input::backends::{Backend, InterfaceVariable};
use crate::proof::{Rejection, differ, ensure};

/// Two processes that expect each other, with contradicting descriptions of the world.
///
/// They expect each other because they meet at one address, or because one launcher started both
/// for one world. In the latter case they contradict each other if they use different ports.
pub(super) fn check_contradiction(a: &JoinFact, b: &JoinFact) -> Result<(), Rejection> {
    ensure(may_meet(a, b), Rejection::NotOneWorld)?;
    let contradict = if is_one_place(a, b) {
        let backends = matches!((&a.backend, &b.backend), (Some(a), Some(b)) if never_meet(a, b));
        differ(a.world_size, b.world_size) || backends || a.rank == b.rank
    } else {
        let one_launcher = a.launcher.is_some() && a.launcher == b.launcher;
        let one_launch = a.host == b.host && one_launcher && a.rank != b.rank;
        ensure(one_launch && a.world_size == b.world_size, Rejection::NotOneWorld)?;
        differ(a.port, b.port)
    };
    ensure(contradict, Rejection::CallsMatch)
}

/// Two processes that expect one world of a known size, with different values of a setting that must be equal, or with one
/// GPU that they must not share.
pub(super) fn check_settings(
    (a, of_a): (&JoinFact, &SettingFact),
    (b, of_b): (&JoinFact, &SettingFact),
) -> Result<(), Rejection> {
    let is_its = |setting: &SettingFact, process: &JoinFact| {
        (setting.rank, setting.pid) == (process.rank, process.pid) && setting.host == process.host
    };
    let is_one_size = a.world_size.is_some() && a.world_size == b.world_size;
    let is_one_world = may_meet(a, b) && is_one_place(a, b) && a.rank != b.rank && is_one_size;
    ensure(is_one_world && is_its(of_a, a) && is_its(of_b, b), Rejection::NotOneWorld)?;
    let (value, other) = (&of_a.value, &of_b.value);
    let contradict = of_a.name == of_b.name
        && match of_a.name.as_str() {
            // A PCI address is only unique within a host.
            "gpu" => {
                let of_host = value.as_ref().is_some_and(|gpu| gpu.starts_with("pci "));
                value.is_some() && value == other && (a.host == b.host || !of_host)
            }
            name if name.starts_with("env.") => value != other,
            _ => differ(value.as_deref(), other.as_deref()),
        };
    ensure(contradict, Rejection::CallsMatch)
}

/// Whether two processes may meet: they are different, present at one time, and initialize the world
/// for the same time.
fn may_meet(a: &JoinFact, b: &JoinFact) -> bool {
    let is_left = |end: Option<Timestamp>, by: Timestamp| end.is_some_and(|end| end < by);
    a.nth == b.nth
        && (&a.host, a.pid) != (&b.host, b.pid)
        && !is_left(a.until, b.since)
        && !is_left(b.until, a.since)
}

/// Whether two processes meet at one address.
fn is_one_place(a: &JoinFact, b: &JoinFact) -> bool {
    (&a.address, a.port) == (&b.address, b.port) && (a.host == b.host || !is_loopback(&a.address))
}

/// Whether the two backends share no device: "gloo" and "cpu:gloo,cuda:nccl" meet on the CPU.
pub(crate) fn never_meet(a: &str, b: &str) -> bool {
    let (a, b) = (by_device(a), by_device(b));
    let of = |backends: &BTreeMap<&str, String>, device: &str| {
        backends.get(device).or(backends.get("")).cloned()
    };
    let shares_none = |device: &&str| match (of(&a, device), of(&b, device)) {
        // PyTorch chooses which implementation a name selects.
        (Some(a), Some(b)) => a != b && !is_one_backend(&a, &b),
        _ => true,
    };
    !a.is_empty() && !b.is_empty() && a.keys().chain(b.keys()).all(shares_none)
}

fn is_one_backend(a: &str, b: &str) -> bool {
    let a = Backend::of_group(a);
    a.is_known() && a == Backend::of_group(b)
}

/// Whether the interfaces that the variable names are not up with an address: any of them, or all of them where
/// prefixes are enough.
pub(super) fn is_unusable(variable: &str, value: &str, seen: &[String]) -> bool {
    let Some(variable) = InterfaceVariable::by_name(variable) else { return false };
    let usable: Vec<&str> = seen
        .iter()
        .filter_map(|interface| {
            let (name, facts) = interface.split_once('=').unwrap_or((interface, ""));
            let has = |fact: &str| facts.split(',').any(|known| known == fact);
            (has("up") && (has("ipv4") || has("ipv6"))).then_some(name)
        })
        .collect();
    if seen.is_empty() || value.trim().is_empty() {
        return false;
    }
    let names = |value: &str| -> Vec<String> {
        let names = value.split(',').map(str::trim).filter(|name| !name.is_empty());
        names.map(str::to_owned).collect()
    };
    if !variable.by_prefix {
        return names(value).iter().any(|name| !usable.contains(&name.as_str()));
    }
    let listed = names(value.trim_start_matches(['^', '=']));
    let mut plain = listed.iter().map(String::as_str);
    match value.as_bytes().first() {
        Some(b'=') => plain.all(|name| !usable.contains(&name)),
        Some(b'^') => usable.iter().all(|it| plain.clone().any(|name| it.starts_with(name))),
        _ => plain.all(|name| !usable.iter().any(|it| it.starts_with(name))),
    }
}

/// Backends by device; the key "" holds for all other devices.
fn by_device(text: &str) -> BTreeMap<&str, String> {
    let parts = text.split(',').filter(|part| !part.trim().is_empty());
    parts
        .map(|part| match part.split_once(':') {
            Some((device, backend)) => (device.trim(), backend.trim().to_ascii_lowercase()),
            None => ("", part.trim().to_ascii_lowercase()),
        })
        .collect()
}

fn is_loopback(address: &str) -> bool {
    matches!(address, "localhost" | "::1" | "[::1]") || address.starts_with("127.")
}

#[cfg(test)]
mod tests {
    use ddp_doctor_proto::report::{Certificate, CertificateKind, Fact};

    use super::*;
    use crate::proof::check;

    /// A process from "RANK/SIZE ADDRESS:PORT BACKEND [HOST]"; the default host is "node".
    fn joins(text: &str, pid: u32, launcher: Option<u32>) -> Fact {
        let words: Vec<&str> = text.split(' ').collect();
        let (rank, size) = words[0].split_once('/').unwrap();
        let (address, port) = words[1].rsplit_once(':').unwrap();
        Fact::Joins(JoinFact {
            rank: rank.parse().unwrap(),
            host: words.get(3).unwrap_or(&"node").to_string(),
            pid,
            world_size: size.parse().ok(),
            address: address.into(),
            port: port.parse().ok(),
            backend: Some(words[2].to_owned()),
            launcher,
            nth: 0,
            since: Timestamp(u64::from(pid)),
            until: None,
        })
    }

    fn checked(a: &str, b: &str) -> Result<(), Rejection> {
        launched(a, b, None)
    }

    fn launched(a: &str, b: &str, launcher: Option<u32>) -> Result<(), Rejection> {
        let facts = vec![joins(a, 1, launcher), joins(b, 2, launcher)];
        check(&Certificate { kind: CertificateKind::Contradiction, facts })
    }

    #[test]
    fn ranks_at_one_address_must_agree() {
        let one = "0/2 localhost:29500 gloo";
        assert_eq!(checked(one, "1/3 localhost:29500 gloo"), Ok(()));
        assert_eq!(checked(one, "0/2 localhost:29500 gloo"), Ok(()));
        assert_eq!(checked(one, "1/2 localhost:29500 nccl"), Ok(()));
        let fine = checked(one, "1/2 localhost:29500 gloo");
        assert_eq!(fine, Err(Rejection::CallsMatch));
    }

    #[test]
    fn ended_process_meets_no_later_one() {
        let mut facts = vec![
            joins("0/2 localhost:29500 gloo", 1, None),
            joins("0/2 localhost:29500 gloo", 9, None),
        ];
        if let Fact::Joins(joined) = &mut facts[0] {
            joined.until = Some(Timestamp(5));
        }
        let kind = CertificateKind::Contradiction;
        let verdict = check(&Certificate { kind, facts });
        assert_eq!(verdict, Err(Rejection::NotOneWorld));
    }

    #[test]
    fn different_ports_contradict_only_under_one_launcher() {
        let (one, other) = ("0/2 localhost:29500 gloo", "1/2 localhost:29501 gloo");
        assert_eq!(checked(one, other), Err(Rejection::NotOneWorld));
        assert_eq!(launched(one, other, Some(7)), Ok(()));
        // Another name may be the same host.
        let named = launched(one, "1/2 node:29500 gloo", Some(7));
        assert_eq!(named, Err(Rejection::CallsMatch));
        let there = launched(one, "1/2 localhost:29501 gloo other", Some(7));
        assert_eq!(there, Err(Rejection::NotOneWorld));
    }

    #[test]
    fn each_host_has_its_own_localhost() {
        let one = "0/2 127.0.0.1:29500 gloo";
        let there = checked(one, "0/2 127.0.0.1:29500 gloo other");
        assert_eq!(there, Err(Rejection::NotOneWorld));
    }

    /// Checks two processes that join at these places with these values of a setting.
    fn settings(places: [&str; 2], name: &str, values: [Option<&str>; 2]) -> Result<(), Rejection> {
        let joins = [joins(places[0], 1, None), joins(places[1], 2, None)];
        let setting = |rank: u32, place: &str| {
            Fact::Setting(SettingFact {
                rank,
                host: place.split(' ').nth(3).unwrap_or("node").to_owned(),
                pid: rank + 1,
                name: name.to_owned(),
                value: values[rank as usize].map(str::to_owned),
            })
        };
        let has = [setting(0, places[0]), setting(1, places[1])];
        check(&Certificate {
            kind: CertificateKind::Contradiction,
            facts: joins.into_iter().chain(has).collect(),
        })
    }

    #[test]
    fn ranks_at_one_address_need_equal_settings_and_separate_gpus() {
        let here = ["0/2 node:29500 nccl", "1/2 node:29500 nccl"];
        let fine = Err(Rejection::CallsMatch);
        assert_eq!(settings(here, "nccl", [Some("2.26"), Some("2.27")]), Ok(()));
        assert_eq!(settings(here, "nccl", [Some("2.27"), Some("2.27")]), fine);
        assert_eq!(settings(here, "nccl", [Some("2.27"), None]), fine);
        assert_eq!(settings(here, "env.NCCL_ALGO", [Some("Tree"), None]), Ok(()));
        assert_eq!(settings(here, "env.NCCL_ALGO", [None, None]), fine);
        assert_eq!(settings(here, "gpu", [Some("GPU-1"), Some("GPU-1")]), Ok(()));
        assert_eq!(settings(here, "gpu", [Some("GPU-1"), Some("GPU-2")]), fine);
        assert_eq!(settings(here, "gpu", [None, None]), fine);
        let hosts = ["0/2 node:29500 nccl a", "1/2 node:29500 nccl b"];
        let place = [Some("pci 0000:1b:00"); 2];
        assert_eq!(settings(hosts, "gpu", place), fine);
        assert_eq!(settings(here, "gpu", place), Ok(()));
    }

    #[test]
    fn ranks_at_different_addresses_may_have_other_settings() {
        let ports = ["0/2 node:29500 nccl", "1/2 node:29501 nccl"];
        let values = [Some("2.26"), Some("2.27")];
        let of_others = Err(Rejection::NotOneWorld);
        assert_eq!(settings(ports, "nccl", values), of_others);
        let loopbacks = ["0/2 localhost:29500 nccl a", "1/2 localhost:29500 nccl b"];
        assert_eq!(settings(loopbacks, "nccl", values), of_others);
        let one_rank = ["0/2 node:29500 nccl", "0/2 node:29500 nccl"];
        assert_eq!(settings(one_rank, "nccl", values), of_others);
        for (one, other) in [("2", "3"), ("2", "?"), ("?", "?")] {
            let (first, second) = (format!("0/{one} n:1 nccl"), format!("1/{other} n:1 nccl"));
            assert_eq!(settings([&first, &second], "nccl", values), of_others, "{one} {other}");
        }
    }

    #[test]
    fn unusable_interface_settings_are_detected() {
        let seen = ["lo=up,loopback,ipv4", "eth0=up,ipv4", "eth1=ipv4"].map(str::to_owned);
        let check = |variable: &str, value: &str| is_unusable(variable, value, &seen);
        assert!(check("GLOO_SOCKET_IFNAME", "eth"));
        assert!(check("GLOO_SOCKET_IFNAME", "eth1"));
        assert!(!check("GLOO_SOCKET_IFNAME", "eth0,lo"));
        assert!(check("NCCL_SOCKET_IFNAME", "ib"));
        assert!(check("NCCL_SOCKET_IFNAME", "^eth,lo"));
        assert!(!check("NCCL_SOCKET_IFNAME", "eth"));
        assert!(!check("NCCL_SOCKET_IFNAME", "^lo"));
        assert!(!check("GLOO_SOCKET_IFNAME", ""));
    }

    #[test]
    fn backends_meet_on_a_common_device() {
        assert!(never_meet("gloo", "nccl"));
        assert!(never_meet("cpu:gloo", "nccl,cpu:mpi"));
        assert!(!never_meet("gloo", "cpu:gloo,cuda:nccl"));
        assert!(!never_meet("nccl", "cpu:gloo,cuda:nccl"));
        assert!(!never_meet("nccl", "nccl2"));
        assert!(never_meet("nccl2", "cuda:gloo"));
        assert!(never_meet("fake", "gloo"));
        assert!(!never_meet("", "gloo"));
    }
}
