//! Network interfaces that environment variables select, and those that exist.

use std::fmt::{self, Display};

use crate::input::backends::InterfaceVariable;

/// An interface as seen by a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Name of the interface.
    pub name: String,
    /// Whether it is up.
    pub is_up: bool,
    /// Whether it is a loopback interface.
    pub is_loopback: bool,
    /// Whether it has an address.
    pub has_address: bool,
}

/// Why an interface cannot be used, ordered from the gravest reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unusable {
    /// There is no interface of that name.
    Missing,
    /// It is down.
    Down,
    /// It has no address.
    NoAddress,
    /// It reaches only its own host.
    Loopback,
}

/// Parses "lo=up,loopback,ipv4 eth0=up,ipv4".
pub(crate) fn parse(said: &str) -> Vec<Interface> {
    let interfaces = said.split_whitespace().filter_map(|word| {
        let (name, facts) = word.split_once('=')?;
        let has = |fact: &str| facts.split(',').any(|known| known == fact);
        Some(Interface {
            name: name.into(),
            is_up: has("up"),
            is_loopback: has("loopback"),
            has_address: has("ipv4") || has("ipv6"),
        })
    });
    interfaces.collect()
}

/// Why the selected interfaces cannot be used; `None`: they can, or this is unknown.
pub fn unusable(
    variable: &InterfaceVariable,
    value: &str,
    seen: &[Interface],
    several_hosts: bool,
) -> Option<Unusable> {
    if seen.is_empty() || value.trim().is_empty() {
        return None;
    }
    let why = |interface: &Interface| match interface {
        it if !it.is_up => Some(Unusable::Down),
        it if !it.has_address => Some(Unusable::NoAddress),
        it if it.is_loopback && several_hosts => Some(Unusable::Loopback),
        _ => None,
    };
    // Why none of the selected interfaces can be used.
    let of_selected = |value: &str| {
        let selected = seen.iter().filter(|it| variable.selects(value, &it.name));
        let reasons: Option<Vec<Unusable>> = selected.map(why).collect();
        // Report the least grave reason.
        reasons.map(|reasons| reasons.into_iter().max().unwrap_or(Unusable::Missing))
    };
    if variable.by_prefix {
        return of_selected(value);
    }
    // Every named interface is required.
    let mut names = value.split(',').filter(|name| !name.trim().is_empty());
    names.find_map(of_selected)
}

impl Interface {
    /// The form in which a process reports it.
    pub(crate) fn as_said(&self) -> String {
        let facts: Vec<&str> =
            [(self.is_up, "up"), (self.is_loopback, "loopback"), (self.has_address, "ipv4")]
                .iter()
                .filter(|it| it.0)
                .map(|it| it.1)
                .collect();
        format!("{}={}", self.name, facts.join(","))
    }
}

impl Display for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        match (self.is_up, self.has_address) {
            (false, _) => f.write_str(" (down)"),
            (true, false) => f.write_str(" (no address)"),
            (true, true) if self.is_loopback => f.write_str(" (loopback)"),
            (true, true) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variable(name: &str) -> &'static InterfaceVariable {
        InterfaceVariable::by_name(name).expect("a known variable")
    }

    const SEEN: &str = "lo=up,loopback,ipv4,ipv6 eth0=up,ipv4 eth1=ipv4 docker0=up";

    fn gloo(value: &str) -> Option<Unusable> {
        unusable(variable("GLOO_SOCKET_IFNAME"), value, &parse(SEEN), false)
    }

    fn nccl(value: &str) -> Option<Unusable> {
        unusable(variable("NCCL_SOCKET_IFNAME"), value, &parse(SEEN), false)
    }

    #[test]
    fn gloo_requires_each_full_name() {
        assert_eq!(gloo("eth0"), None);
        assert_eq!(gloo("lo"), None);
        assert_eq!(gloo("eth"), Some(Unusable::Missing));
        assert_eq!(gloo("eth0,nope0"), Some(Unusable::Missing));
        assert_eq!(gloo("eth1"), Some(Unusable::Down));
        assert_eq!(gloo("docker0"), Some(Unusable::NoAddress));
        assert_eq!(gloo(""), None);
    }

    #[test]
    fn nccl_accepts_any_prefix() {
        assert_eq!(nccl("eth"), None);
        assert_eq!(nccl("ib,eth"), None);
        assert_eq!(nccl("=eth"), Some(Unusable::Missing));
        assert_eq!(nccl("=eth0"), None);
        assert_eq!(nccl("^docker"), None);
        assert_eq!(nccl("^lo,eth"), Some(Unusable::NoAddress));
        assert_eq!(nccl("ib"), Some(Unusable::Missing));
    }

    #[test]
    fn loopback_is_unusable_between_hosts() {
        let of = |value: &str| unusable(variable("GLOO_SOCKET_IFNAME"), value, &parse(SEEN), true);
        assert_eq!(of("lo"), Some(Unusable::Loopback));
        assert_eq!(of("eth0"), None);
    }

    #[test]
    fn unknown_interfaces_are_not_missing() {
        assert_eq!(unusable(variable("GLOO_SOCKET_IFNAME"), "eth7", &[], false), None);
    }
}
