//! Rules about host names.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ddp_doctor_diagnosis::input::backends::GLOO;

use super::line::{Line, list};
use crate::facts::Resolved;
use crate::network::choice;
use crate::survey::{Alone, Launch, Survey};

const CHECK: &str = "name-resolution";

/// Lines about what names stand for on each node.
pub(super) fn lines(survey: &Survey) -> Vec<Line> {
    let mut lines = own_names(survey);
    if let Some(launch) = &survey.launch {
        lines.extend(master(survey, launch));
        lines.extend(peers(survey, launch));
    }
    if lines.is_empty() && survey.launch.is_some() && survey.alone.is_none() {
        lines.push(Line::pass(
            CHECK,
            "Host names resolve to the same reachable addresses on all nodes.",
        ));
    }
    lines
}

/// What the name of each host stands for on the host itself, which decides where Gloo listens.
fn own_names(survey: &Survey) -> Vec<Line> {
    if survey.launch.is_none() {
        return Vec::new();
    }
    let mut lines = Vec::new();
    for (index, node) in survey.nodes.iter().enumerate() {
        let facts = &node.facts;
        let variable = GLOO.interface.as_ref().map_or("", |it| it.name);
        let is_set = facts.variables.get(variable).is_some_and(|it| !it.trim().is_empty());
        let Some(resolved) = facts.names.get(&facts.host).filter(|_| !is_set) else {
            continue;
        };
        let host = &facts.host;
        let what = match (choice(facts, &GLOO), &resolved.error) {
            (Some(chosen), _) if chosen.address.is_loopback() => {
                format!(
                    "{host} resolves to the loopback address {} on the host itself",
                    chosen.address
                )
            }
            (Some(_), _) => continue,
            (None, Some(error)) => format!("{host} does not resolve on the host itself ({error})"),
            (None, None) => format!(
                "{host} resolves to {} on the host itself, which is not an address of its interfaces",
                addresses(resolved)
            ),
        };
        let fix = format!(
            "Correct {host} in /etc/hosts of that node, or set {variable} to the interface that reaches the other nodes."
        );
        let line = if survey.is_without_gpus() {
            Line::critical(
                CHECK,
                format!(
                    "{what}: Gloo listens at a loopback address, and the other nodes cannot connect."
                ),
            )
        } else {
            Line::warning(
                CHECK,
                format!("{what}: Gloo listens at a loopback address. NCCL is not affected."),
            )
        };
        lines.push(line.fix(fix).at(survey.name(index)));
    }
    lines
}

/// What the name of the master stands for on every node.
fn master(survey: &Survey, launch: &Launch) -> Vec<Line> {
    let host = &launch.host;
    let mut lines = Vec::new();
    let mut agreed: Option<(usize, &Resolved)> = None;
    for (index, node) in survey.nodes.iter().enumerate() {
        let Some(resolved) = node.facts.names.get(host) else {
            continue;
        };
        if let Some(error) = &resolved.error {
            if matches!(survey.alone, Some(Alone::Unmet(_))) {
                // That this node does not reach the others says the same.
                continue;
            }
            let reason = format!("{host}, the rendezvous host, does not resolve: {error}.");
            let fix =
                format!("Add {host} to the DNS or to /etc/hosts of that node, or pass an address.");
            lines.push(Line::critical(CHECK, reason).fix(fix).at(survey.name(index)));
            continue;
        }
        if node.facts.host == *host {
            // A host may know itself by a loopback address: the master listens at all addresses.
            continue;
        }
        let is_elsewhere = index != 0 || node.ranks.iter().any(|&rank| rank != 0);
        if is_elsewhere && resolved.addresses.iter().all(IpAddr::is_loopback) {
            let reason = format!(
                "{host}, the rendezvous host, resolves to {} here: this node waits for itself.",
                addresses(resolved)
            );
            let fix = format!("Correct {host} in /etc/hosts of that node.");
            lines.push(Line::critical(CHECK, reason).fix(fix).at(survey.name(index)));
            continue;
        }
        match agreed {
            None => agreed = Some((index, resolved)),
            Some((first, other)) if is_disjoint(other, resolved) => {
                let reason = format!(
                    "{host}, the rendezvous host, resolves to {} on {} and to {} on {}.",
                    addresses(other),
                    survey.name(first),
                    addresses(resolved),
                    survey.name(index)
                );
                let fix =
                    "Make the name resolve to the same address on all nodes, or pass an address.";
                lines.push(Line::warning(CHECK, reason).fix(fix));
            }
            Some(_) => {}
        }
    }
    lines.extend(differs_from_own(survey, launch, agreed));
    lines
}

/// Whether the others connect to an address that the node where the nodes meet has not.
fn differs_from_own(
    survey: &Survey,
    launch: &Launch,
    agreed: Option<(usize, &Resolved)>,
) -> Option<Line> {
    let (index, resolved) = agreed?;
    let first = &survey.nodes.first()?.facts;
    let own: BTreeSet<&IpAddr> = first.interfaces.iter().flat_map(|it| &it.addresses).collect();
    let is_own = resolved.addresses.iter().any(|it| own.contains(it));
    (!is_own && !own.is_empty() && index != 0).then(|| {
        let reason = format!(
            "{} resolves to {} on {}, which is not an address of {}: it belongs to another machine, or to a service in \
             between.",
            launch.host,
            addresses(resolved),
            survey.name(index),
            survey.name(0)
        );
        Line::warning(CHECK, reason).fix("Check that connections are forwarded to the right node.")
    })
}

/// Whether nodes resolve each other's names.
fn peers(survey: &Survey, launch: &Launch) -> Vec<Line> {
    let from: BTreeSet<usize> = survey.unresolved.iter().map(|(from, _)| *from).collect();
    let lines = from.into_iter().map(|index| {
        let names: Vec<String> = survey
            .unresolved
            .iter()
            .filter(|(from, _)| *from == index)
            .map(|(_, to)| survey.name(*to))
            .collect();
        let reason = format!("These names of other nodes do not resolve: {}", list(&names));
        let line = if launch.shape.is_dynamic {
            let reason = format!("{reason}. A rendezvous of torchrun passes on the name of the node that has rank 0.");
            Line::warning(CHECK, reason).fix(
                "Add them to the DNS or to /etc/hosts of that node, or start torchrun with --local-addr.",
            )
        } else {
            Line::info(CHECK, format!("{reason}. PyTorch needs only the name of the master."))
        };
        line.at(survey.name(index))
    });
    lines.collect()
}

fn is_disjoint(one: &Resolved, other: &Resolved) -> bool {
    !one.addresses.iter().any(|it| other.addresses.contains(it))
}

fn addresses(resolved: &Resolved) -> String {
    let texts: Vec<String> = resolved.addresses.iter().map(IpAddr::to_string).collect();
    list(&texts)
}

#[cfg(test)]
mod tests {
    use super::super::Level::{self, Critical, Info, Pass, Warning};
    use super::super::testing::{survey, worst};
    use super::*;

    fn resolves(survey: &mut Survey, node: usize, name: &str, address: [u8; 4]) {
        let resolved = Resolved { addresses: vec![address.into()], error: None };
        survey.nodes[node].facts.names.insert(name.into(), resolved);
    }

    fn fails(survey: &mut Survey, node: usize, name: &str) {
        let resolved = Resolved { addresses: Vec::new(), error: Some("unknown".into()) };
        survey.nodes[node].facts.names.insert(name.into(), resolved);
    }

    #[test]
    fn names_must_resolve_to_the_same_reachable_addresses() {
        type Change = fn(&mut Survey);
        let cases: &[(Change, Level, &str)] = &[
            (|_| (), Pass, "on all nodes"),
            (
                |it| fails(it, 1, "host-0"),
                Critical,
                "host-0, the rendezvous host, does not resolve",
            ),
            (|it| resolves(it, 1, "host-0", [127, 0, 0, 1]), Critical, "waits for itself"),
            (
                |it| resolves(it, 2, "host-0", [10, 0, 0, 9]),
                Warning,
                "resolves to 10.0.0.1 on host-1 and to 10.0.0.9 on host-2",
            ),
            (
                |it| {
                    resolves(it, 1, "host-0", [10, 0, 0, 9]);
                    resolves(it, 2, "host-0", [10, 0, 0, 9]);
                },
                Warning,
                "not an address of host-0",
            ),
            // A node that is not the master, and that no other node reaches.
            (
                |it| {
                    it.nodes.remove(0);
                    resolves(it, 0, "host-0", [127, 0, 0, 1]);
                },
                Critical,
                "waits for itself",
            ),
            (|it| resolves(it, 1, "host-1", [127, 0, 1, 1]), Critical, "127.0.1.1"),
            (
                |it| {
                    resolves(it, 1, "host-1", [127, 0, 1, 1]);
                    it.nodes[1].facts.has_unified_memory = Some(true);
                },
                Warning,
                "NCCL is not affected",
            ),
            (
                |it| {
                    resolves(it, 1, "host-1", [127, 0, 1, 1]);
                    let variable = ("GLOO_SOCKET_IFNAME".into(), "eth0".into());
                    it.nodes[1].facts.variables.extend([variable]);
                },
                Pass,
                "on all nodes",
            ),
            (|it| fails(it, 2, "host-2"), Critical, "does not resolve on the host itself"),
            (
                |it| resolves(it, 2, "host-2", [192, 0, 2, 1]),
                Critical,
                "not an address of its interfaces",
            ),
            (|it| it.unresolved.push((1, 2)), Info, "only the name of the master"),
            (
                |it| {
                    it.unresolved.push((1, 2));
                    it.launch.as_mut().unwrap().shape.is_dynamic = true;
                },
                Warning,
                "host-2",
            ),
            // The master itself may know its name by a loopback address.
            (
                |it| {
                    resolves(it, 0, "host-0", [127, 0, 1, 1]);
                    let variable = ("GLOO_SOCKET_IFNAME".into(), "eth0".into());
                    it.nodes[0].facts.variables.extend([variable]);
                },
                Pass,
                "on all nodes",
            ),
        ];
        for (change, level, reason) in cases {
            let mut survey = survey(3);
            change(&mut survey);
            let found = worst(&lines(&survey), CHECK);
            assert_eq!(found.0, *level, "{}", found.1);
            assert!(found.1.contains(reason), "{}: {reason}", found.1);
        }
    }
}
