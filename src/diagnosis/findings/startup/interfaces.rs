//! Network interfaces that environment variables select, and those that exist.

use std::fmt::{self, Display};

/// An environment variable that selects interfaces.
#[derive(Debug)]
pub struct Variable {
    /// Name of the variable.
    pub name: &'static str,
    /// Backend that reads it.
    pub backend: &'static str,
    /// Prefixes of names are enough, and names may be excluded or exact: "eth,ens", "^docker",
    /// "=eth0".
    by_prefix: bool,
}

/// The known variables.
pub const VARIABLES: &[Variable] = &[
    Variable { name: "GLOO_SOCKET_IFNAME", backend: "gloo", by_prefix: false },
    Variable { name: "NCCL_SOCKET_IFNAME", backend: "nccl", by_prefix: true },
];

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

impl Variable {
    /// Whether this value of the variable selects an interface of this name.
    pub fn selects(&self, value: &str, interface: &str) -> bool {
        if !self.by_prefix {
            return value.split(',').any(|name| name.trim() == interface);
        }
        let (leave_out, rest) = match value.strip_prefix('^') {
            Some(rest) => (true, rest),
            None => (false, value),
        };
        let (exact, rest) = match rest.strip_prefix('=') {
            Some(rest) => (true, rest),
            None => (false, rest),
        };
        let mut names = rest.split(',').map(str::trim);
        let is_named =
            names.any(|name| if exact { interface == name } else { interface.starts_with(name) });
        is_named != leave_out
    }
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
    variable: &Variable,
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
        let facts =
            [(self.is_up, "up"), (self.is_loopback, "loopback"), (self.has_address, "ipv4")];
        let facts: Vec<&str> = facts.iter().filter(|it| it.0).map(|it| it.1).collect();
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

    const SEEN: &str = "lo=up,loopback,ipv4,ipv6 eth0=up,ipv4 eth1=ipv4 docker0=up";

    fn gloo(value: &str) -> Option<Unusable> {
        unusable(&VARIABLES[0], value, &parse(SEEN), false)
    }

    fn nccl(value: &str) -> Option<Unusable> {
        unusable(&VARIABLES[1], value, &parse(SEEN), false)
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
        let of = |value: &str| unusable(&VARIABLES[0], value, &parse(SEEN), true);
        assert_eq!(of("lo"), Some(Unusable::Loopback));
        assert_eq!(of("eth0"), None);
    }

    #[test]
    fn unknown_interfaces_are_not_missing() {
        assert_eq!(unusable(&VARIABLES[0], "eth7", &[], false), None);
    }
}
