//! Rules about network interfaces.

use ddp_doctor_diagnosis::findings::startup::interfaces::{Interface, Unusable, unusable};
use ddp_doctor_diagnosis::input::backends::{
    Backend, CHECKED, DefaultInterface, InterfaceVariable,
};

use super::line::{Line, list};
use crate::facts::Facts;
use crate::network::{Choice, choice, is_used};
use crate::survey::Survey;

const CHECK: &str = "interfaces";
/// Prefixes of names of bridges and tunnels that rarely reach other nodes.
const VIRTUAL: [&str; 6] = ["docker", "virbr", "br-", "veth", "cni", "tailscale"];

/// Lines about the interfaces that backends choose on each node.
pub(super) fn lines(survey: &Survey) -> Vec<Line> {
    let several = survey.launch.is_some();
    let nodes = survey.nodes.iter().enumerate().flat_map(|(index, node)| {
        let name = survey.name(index);
        let lines = CHECKED.iter().filter_map(move |backend| line(&node.facts, backend, several));
        lines.map(move |line| line.at(name.clone()))
    });
    nodes.collect()
}

fn line(facts: &Facts, backend: &Backend, several: bool) -> Option<Line> {
    let is_used = is_used(facts, backend);
    let variable = backend.interface.as_ref()?;
    let value = facts.variables.get(variable.name).map(|it| it.trim()).filter(|it| !it.is_empty());
    if let Some(value) = value
        && let Some(why) = unusable(variable, value, &seen(facts), several)
    {
        let what = match why {
            Unusable::Missing => "no interface of this node has that name",
            Unusable::Down => "it is down or has no carrier",
            Unusable::NoAddress => "it has no address",
            Unusable::Loopback => "a loopback interface does not reach the other nodes",
        };
        let reason = format!(
            "{}={value}: {what}. {} cannot connect the ranks. Interfaces: {}.",
            variable.name,
            backend.label,
            described(facts)
        );
        let fix = format!(
            "Set {} to an interface that reaches the other nodes, or leave it unset.",
            variable.name
        );
        let line =
            if is_used { Line::critical(CHECK, reason) } else { Line::warning(CHECK, reason) };
        return Some(line.fix(fix));
    }
    if !several || !is_used {
        return None;
    }
    let Some(chosen) = choice(facts, backend) else {
        // What the name of the host stands for is reported by the rule about names.
        return (variable.default != DefaultInterface::OfHostName).then(|| {
            let reason = format!(
                "{} finds no interface that is up and has an address: {}.",
                backend.label,
                described(facts)
            );
            Line::critical(CHECK, reason).fix("Connect the node to the network of the other nodes.")
        });
    };
    let is_by_host_name = value.is_none() && variable.default == DefaultInterface::OfHostName;
    if is_by_host_name && chosen.address.is_loopback() {
        // Reported by the same rule.
        return None;
    }
    Some(chosen_line(backend, variable, &chosen, value.is_some()))
}

fn chosen_line(
    backend: &Backend,
    variable: &InterfaceVariable,
    chosen: &Choice,
    is_set: bool,
) -> Line {
    let (name, variable, default) = (backend.label, variable.name, &variable.default);
    let by = match (is_set, default) {
        (true, _) => format!("by {variable}"),
        (false, DefaultInterface::OfHostName) => "by the name of the host".into(),
        (false, DefaultInterface::FirstUp { .. }) => "by default".into(),
    };
    let takes = format!("{name} uses {} ({by})", chosen.interface);
    let is_virtual = VIRTUAL.iter().any(|it| chosen.interface.starts_with(it));
    let is_loopback = chosen.address.is_loopback();
    let is_by_name = *default == DefaultInterface::OfHostName;
    if !is_set && !is_by_name && (is_virtual || is_loopback) {
        return Line::warning(CHECK, format!("{takes}, which may not reach the other nodes."))
            .fix(format!("Set {variable} to the interface that does."));
    }
    if chosen.others.is_empty() || is_set {
        return Line::pass(CHECK, format!("{takes}."));
    }
    let others = list(&chosen.others);
    Line::info(CHECK, format!("{takes}; it could also use {others}: {variable} decides."))
}

/// The interfaces as the rules of the diagnosis expect them.
fn seen(facts: &Facts) -> Vec<Interface> {
    let interfaces = facts.interfaces.iter().map(|it| Interface {
        name: it.name.clone(),
        is_up: it.is_up,
        is_loopback: it.is_loopback,
        has_address: !it.addresses.is_empty(),
    });
    interfaces.collect()
}

fn described(facts: &Facts) -> String {
    let texts: Vec<String> = seen(facts).iter().map(Interface::to_string).collect();
    list(&texts)
}

#[cfg(test)]
mod tests {
    use super::super::Level::{self, Critical, Info, Pass, Warning};
    use super::super::testing::{set, survey, worst};
    use super::*;
    use crate::facts;

    fn with_gpu(it: &mut Survey) {
        it.nodes[1].facts.has_unified_memory = Some(true);
    }

    fn add(it: &mut Survey, name: &str) {
        let interface = facts::Interface {
            name: name.into(),
            is_up: true,
            is_loopback: false,
            addresses: vec![[10, 1, 0, 2].into()],
        };
        it.nodes[1].facts.interfaces.push(interface);
    }

    #[test]
    fn interface_must_exist_and_reach_the_other_nodes() {
        type Change = fn(&mut Survey);
        let cases: &[(Change, Level, &str)] = &[
            (|_| (), Pass, "Gloo uses eth0 (by the name of the host)"),
            (|it| set(it, 1, "GLOO_SOCKET_IFNAME", "eth0"), Pass, "by the name of the host"),
            (|it| set(it, 1, "GLOO_SOCKET_IFNAME", "nope0"), Critical, "no interface of this node"),
            (|it| set(it, 1, "GLOO_SOCKET_IFNAME", "lo"), Critical, "does not reach"),
            (
                |it| {
                    set(it, 1, "GLOO_SOCKET_IFNAME", "eth0");
                    it.nodes[1].facts.interfaces[1].is_up = false;
                },
                Critical,
                "down",
            ),
            (|it| set(it, 1, "NCCL_SOCKET_IFNAME", "ib"), Warning, "NCCL cannot connect"),
            (
                |it| {
                    set(it, 1, "NCCL_SOCKET_IFNAME", "ib");
                    with_gpu(it);
                },
                Critical,
                "NCCL cannot connect",
            ),
            (
                |it| {
                    add(it, "eth1");
                    with_gpu(it);
                },
                Info,
                "NCCL uses eth0 (by default); it could also use eth1",
            ),
            (
                |it| {
                    with_gpu(it);
                    it.nodes[1].facts.interfaces.truncate(1);
                    add(it, "docker0");
                },
                Warning,
                "docker0",
            ),
            (
                |it| {
                    with_gpu(it);
                    it.nodes[1].facts.interfaces.clear();
                },
                Critical,
                "no interface",
            ),
        ];
        for (change, level, reason) in cases {
            let mut survey = survey(2);
            change(&mut survey);
            let found = worst(&lines(&survey), CHECK);
            assert_eq!(found.0, *level, "{}", found.1);
            assert!(
                lines(&survey).iter().any(|it| it.level == *level && it.reason.contains(reason)),
                "{}: {reason}",
                found.1
            );
        }
    }

    #[test]
    fn one_node_may_use_the_loopback_interface() {
        let mut survey = survey(1);
        survey.nodes[0].facts.variables.insert("GLOO_SOCKET_IFNAME".into(), "lo".into());
        assert_eq!(lines(&survey), []);
    }
}
