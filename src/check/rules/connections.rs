//! Rules about the nodes of a launch: which arrived, which connections fail, whose clock is off.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ddp_doctor_diagnosis::input::backends::interface_variables;
use ddp_doctor_transport::token;

use super::line::{Line, list};
use crate::network::{Outcome, Port};
use crate::survey::{Alone, Launch, Survey};

const NODES: &str = "nodes";
const REACHABILITY: &str = "reachability";
const CLOCK: &str = "clock";
/// Clock difference that a rendezvous of torchrun does not survive: it drops nodes whose last sign of
/// life is older (`keep_alive_interval` × `keep_alive_max_attempt`).
const DYNAMIC_RENDEZVOUS: Duration = Duration::from_secs(15);
/// Maximum number of ranks of nodes that are searched for missing ones.
const MAX_RANKS: u32 = 4096;
/// Clock difference that makes logs of two hosts hard to compare.
const LOGS: Duration = Duration::from_secs(1);

/// Lines about the nodes of a launch and the connections between them.
pub(super) fn lines(survey: &Survey) -> Vec<Line> {
    if let Some(alone) = &survey.alone {
        return vec![alone_line(alone, survey)];
    }
    let Some(launch) = &survey.launch else {
        return Vec::new();
    };
    let mut lines = nodes(survey, launch);
    lines.extend(ports(survey, launch));
    lines.extend(reachability(survey, launch));
    lines.extend(clocks(survey, launch));
    lines
}

fn alone_line(alone: &Alone, survey: &Survey) -> Line {
    match alone {
        Alone::Token(error) => Line::unknown(
            NODES,
            format!("The other nodes are not checked: there is no usable token ({error})."),
        )
        .fix(format!(
            "Run export {}=$({}) once, and set the same value on every node.",
            token::VARIABLE,
            token::GENERATE
        )),
        Alone::NoAddress => Line::critical(
            NODES,
            "The command is for several nodes but does not name a rendezvous address: each node waits \
             at 127.0.0.1 for the others.",
        )
        .fix("Add --master-addr HOST (or --rdzv-endpoint HOST:PORT) with the name of one node."),
        Alone::Loopback => Line::warning(
            NODES,
            "The command is for several nodes, but its rendezvous is a loopback address: nodes on \
             other machines cannot reach it.",
        )
        .fix("Use the host name of the rendezvous node, unless all nodes are on this machine."),
        Alone::Unmet(ports) => unmet(ports, survey),
    }
}

/// The line about a node that did not reach the one where the nodes meet.
fn unmet(ports: &[(u16, Outcome)], survey: &Survey) -> Line {
    let (host, master, waited) = match &survey.launch {
        Some(it) => (it.host.as_str(), it.port, it.waited_s),
        None => ("?", 0, 0),
    };
    let has = |outcome: &Outcome| ports.iter().any(|(_, it)| it == outcome);
    let unresolved = ports.iter().find_map(|(_, it)| match it {
        Outcome::Unresolved(error) => Some(error),
        _ => None,
    });
    if let Some(error) = unresolved {
        return Line::critical(
            REACHABILITY,
            format!("This node cannot resolve the rendezvous host {host}: {error}."),
        )
        .fix(format!("Add {host} to the DNS or to /etc/hosts of this node, or pass an address."));
    }
    if has(&Outcome::OtherToken) {
        return Line::unknown(
            NODES,
            format!("The other nodes are not checked: {host} has another token."),
        )
        .fix(format!("Set {} to the same value on every node.", token::VARIABLE));
    }
    let outcomes: Vec<String> =
        ports.iter().map(|(port, outcome)| format!("port {port}: {outcome}")).collect();
    let shown = list(&outcomes);
    let at_master = ports.iter().find(|(port, _)| *port == master);
    match at_master.map(|(_, it)| it) {
        Some(Outcome::OtherHost) => Line::critical(
            REACHABILITY,
            format!("Another program answers at {host}:{master}, the port of the master."),
        )
        .fix("End that program, or choose another port (--master-port)."),
        Some(Outcome::NoAnswer | Outcome::Unreachable) => Line::critical(
            REACHABILITY,
            format!("This node cannot reach the rendezvous host {host} within {waited} s ({shown})."),
        )
        .fix(format!(
            "Check that {host} is up, that its name resolves to the right address here, and that no \
             firewall drops TCP to port {master}."
        )),
        _ => Line::unknown(
            NODES,
            format!("The check on the rendezvous host {host} was not found within {waited} s ({shown})."),
        )
        .fix("Start ddp-doctor check on every node at about the same time, or raise --wait."),
    }
}

/// The nodes that arrived.
fn nodes(survey: &Survey, launch: &Launch) -> Vec<Line> {
    let (least, most) = launch.shape.commands;
    let arrived: u32 = survey.nodes.iter().map(|it| it.commands).sum();
    let names: Vec<String> = (0..survey.nodes.len()).map(|it| survey.name(it)).collect();
    let mut lines = Vec::new();
    let mut owners: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    for (index, node) in survey.nodes.iter().enumerate() {
        for rank in &node.ranks {
            owners.entry(*rank).or_default().push(survey.name(index));
        }
    }
    for (rank, owners) in owners.iter().filter(|(_, owners)| owners.len() > 1) {
        lines.push(
            Line::critical(
                NODES,
                format!("Several commands have node rank {rank}: on {}.", list(owners)),
            )
            .fix("Give every node its own --node-rank (in a batch script, expand it on the node)."),
        );
    }
    let unit = if arrived as usize == names.len() { "nodes" } else { "commands" };
    if arrived < least {
        let missing = if owners.len() == arrived as usize {
            let all = 0..least.min(MAX_RANKS);
            let missing: Vec<String> =
                all.filter(|it| !owners.contains_key(it)).map(|it| it.to_string()).collect();
            format!("missing: node rank {}", list(&missing))
        } else {
            format!("those of {} arrived", list(&names))
        };
        let waited = launch.waited_s;
        let reason = format!("{arrived} of {least} {unit} arrived within {waited} s; {missing}.");
        lines.push(
            Line::unknown(NODES, reason).fix(
                "Start ddp-doctor check on every node at about the same time, or raise --wait.",
            ),
        );
    } else {
        let of = if least == most { String::new() } else { format!(" of {least} to {most}") };
        let reason = format!("{arrived}{of} {unit} arrived: {}.", list(&names));
        lines.push(Line::pass(NODES, reason));
    }
    if !survey.other_tokens.is_empty() {
        let peers = list(&survey.other_tokens);
        lines.push(
            Line::unknown(NODES, format!("Not checked, because they have another token: {peers}."))
                .fix(format!("Set {} to the same value on every node.", token::VARIABLE)),
        );
    }
    lines
}

/// Ports of the launch that are in use.
fn ports(survey: &Survey, launch: &Launch) -> Vec<Line> {
    let in_use = survey.ports_in_use.iter().map(|port| match port {
        Port::Coordinator => Line::warning(
            REACHABILITY,
            format!(
                "Port {} of {} is in use: the coordinator cannot listen there, and each node diagnoses its own ranks.",
                launch.coordinator_port, launch.host
            ),
        )
        .fix("End the program that uses it, or choose another port for the launcher (--master-port)."),
        Port::Master | Port::Ephemeral => Line::critical(
            REACHABILITY,
            format!("Port {} of {}, the port of the master, is in use.", launch.port, launch.host),
        )
        .fix("End the program that uses it (an earlier job?), or choose another port (--master-port)."),
    });
    in_use.collect()
}

fn reachability(survey: &Survey, launch: &Launch) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut kinds: BTreeMap<(usize, Port, &Outcome, &str), Vec<usize>> = BTreeMap::new();
    for it in &survey.failures {
        let kind = (it.to, it.port, &it.outcome, it.address.as_str());
        kinds.entry(kind).or_default().push(it.from);
    }
    let at_master = survey.failures.iter().filter(|it| it.port == Port::Master);
    let without_master: BTreeSet<usize> = at_master.map(|it| it.from).collect();
    for ((to, port, outcome, address), from) in kinds {
        let names: Vec<String> = from.iter().map(|&it| survey.name(it)).collect();
        let reaches_master = !from.iter().any(|it| without_master.contains(it));
        let direction = format!("{} → {}", list(&names), survey.name(to));
        // The nodes meet at the first one.
        let context = (launch, reaches_master && to == 0);
        lines.push(failure(&direction, port, outcome, address, context));
    }
    let unprobed: Vec<String> = (0..survey.nodes.len())
        .filter(|&it| survey.nodes[it].is_unprobed)
        .map(|it| survey.name(it))
        .collect();
    if !unprobed.is_empty() {
        let reason = format!("{} did not report which nodes it reaches.", list(&unprobed));
        lines.push(
            Line::unknown(REACHABILITY, reason).fix("Run the check again; see its output there."),
        );
    }
    if lines.is_empty() && survey.ports_in_use.is_empty() && survey.nodes.len() > 1 {
        let reason =
            "All nodes reach each other, on the port of the master and on ephemeral ports.";
        lines.push(Line::pass(REACHABILITY, reason));
    }
    lines
}

fn failure(
    direction: &str,
    port: Port,
    outcome: &Outcome,
    address: &str,
    (launch, reaches_master): (&Launch, bool),
) -> Line {
    if *outcome == Outcome::OtherHost {
        return Line::critical(
            REACHABILITY,
            format!("{direction}: another host or program answers at {address}."),
        )
        .fix(format!(
            "Several hosts may have this address (docker0 and other bridges do). Select the interface \
             ({}), and check what the host name resolves to.",
            interface_variables()
        ));
    }
    let tried = format!("{direction}: {outcome} from {address}");
    match port {
        Port::Coordinator => Line::warning(
            REACHABILITY,
            format!("{tried}, the port of the coordinator: the job runs, and that node is diagnosed alone."),
        )
        .fix(format!("Allow TCP port {} between the nodes.", launch.coordinator_port)),
        Port::Master => Line::critical(REACHABILITY, format!("{tried}, the port of the master."))
            .fix(format!("Allow TCP port {} between the nodes.", launch.port)),
        Port::Ephemeral => {
            let but = if reaches_master {
                format!(
                    ", although port {} is reachable. The job would start and then hang when it connects its ranks",
                    launch.port
                )
            } else {
                String::new()
            };
            Line::critical(
                REACHABILITY,
                format!("{tried}, an ephemeral port like those that NCCL and Gloo use{but}."),
            )
            .fix(format!(
                "Allow TCP between the nodes on all ephemeral ports (sysctl net.ipv4.ip_local_port_range), \
                 or choose an interface whose network does ({}).",
                interface_variables()
            ))
        }
    }
}

fn clocks(survey: &Survey, launch: &Launch) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut largest = Duration::ZERO;
    let mut measured = BTreeSet::new();
    for (index, node) in survey.nodes.iter().enumerate() {
        let Some(offset) = node.clock else { continue };
        measured.insert(index);
        let apart = offset.ahead_ns.unsigned_abs();
        let certain = Duration::from_nanos(apart.saturating_sub(offset.error_ns.unsigned_abs()));
        largest = largest.max(certain);
        if certain < LOGS {
            continue;
        }
        let way = if offset.ahead_ns > 0 { "ahead of" } else { "behind" };
        let reason = format!(
            "The clock of {} is {:.1} s {way} that of {}",
            survey.name(index),
            certain.as_secs_f64(),
            survey.name(0)
        );
        let fix = "Synchronize the clocks (chronyc tracking, timedatectl).";
        if launch.shape.is_dynamic && certain >= DYNAMIC_RENDEZVOUS {
            let reason = format!(
                "{reason}: a rendezvous of torchrun (--rdzv-backend) drops nodes whose clock is more than 15 s behind."
            );
            lines.push(Line::critical(CLOCK, reason).fix(fix));
        } else {
            let reason = format!("{reason}. ddp-doctor corrects for it; logs cannot be compared.");
            lines.push(Line::warning(CLOCK, reason).fix(fix));
        }
    }
    if lines.is_empty() && !measured.is_empty() {
        let reason = format!("Clocks differ by at most {} ms.", largest.as_millis().max(1));
        lines.push(Line::pass(CLOCK, reason));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::super::Level::{Critical, Pass, Unknown, Warning};
    use super::super::testing::assert_rule;
    use super::*;
    use crate::survey::{Failure, Offset};

    fn fails(survey: &mut Survey, port: Port, outcome: Outcome) {
        survey.failures.push(Failure {
            from: 1,
            to: 0,
            port,
            outcome,
            address: "10.0.0.1:41234".into(),
        });
    }

    #[test]
    fn node_that_does_not_come_is_named() {
        assert_rule(
            lines,
            NODES,
            &[
                (|_| (), Pass, "2 nodes arrived: host-0, host-1"),
                (
                    |it| drop(it.nodes.pop()),
                    Unknown,
                    "1 of 2 nodes arrived within 60 s; missing: node rank 1",
                ),
                (
                    |it| {
                        it.nodes.pop();
                        it.nodes[0].ranks.clear();
                    },
                    Unknown,
                    "those of host-0 arrived",
                ),
                (
                    |it| {
                        it.nodes.pop();
                        it.launch.as_mut().unwrap().shape.commands = (1, 2);
                    },
                    Pass,
                    "1 of 1 to 2 nodes",
                ),
                (|it| it.nodes[1].ranks = vec![0], Critical, "node rank 0: on host-0, host-1"),
                (|it| it.other_tokens.push("10.0.0.9".into()), Unknown, "10.0.0.9"),
            ],
        );
    }

    #[test]
    fn failed_connection_names_direction_and_port() {
        assert_rule(
            lines,
            REACHABILITY,
            &[
                (|_| (), Pass, "reach each other"),
                (
                    |it| fails(it, Port::Ephemeral, Outcome::NoAnswer),
                    Critical,
                    "host-1 → host-0: no answer from 10.0.0.1:41234, an ephemeral port like those that \
                     NCCL and Gloo use, although port 29500 is reachable",
                ),
                (
                    |it| {
                        fails(it, Port::Ephemeral, Outcome::Refused);
                        fails(it, Port::Master, Outcome::Refused);
                    },
                    Critical,
                    "connection refused",
                ),
                (
                    |it| fails(it, Port::Coordinator, Outcome::NoAnswer),
                    Warning,
                    "that node is diagnosed alone",
                ),
                (
                    |it| fails(it, Port::Ephemeral, Outcome::OtherHost),
                    Critical,
                    "another host or program answers at 10.0.0.1:41234",
                ),
                (|it| it.ports_in_use.push(Port::Master), Critical, "29500"),
                (|it| it.ports_in_use.push(Port::Coordinator), Warning, "19500"),
                (|it| it.nodes[1].is_unprobed = true, Unknown, "host-1 did not report"),
            ],
        );
    }

    #[test]
    fn clock_difference_matters_by_its_size() {
        fn ahead(it: &mut Survey, seconds: i64, error: i64) {
            it.nodes[1].clock =
                Some(Offset { ahead_ns: seconds * 1_000_000_000, error_ns: error * 1_000_000_000 });
        }
        assert_rule(
            lines,
            CLOCK,
            &[
                (|it| ahead(it, 0, 0), Pass, "at most 1 ms"),
                (|it| ahead(it, 3, 2), Warning, "1.0 s ahead of that of host-0"),
                (|it| ahead(it, 3, 3), Pass, "at most"),
                (|it| ahead(it, -90, 0), Warning, "90.0 s behind"),
                (
                    |it| {
                        ahead(it, -90, 0);
                        it.launch.as_mut().unwrap().shape.is_dynamic = true;
                    },
                    Critical,
                    "rendezvous of torchrun",
                ),
            ],
        );
    }

    #[test]
    fn node_that_is_alone_has_a_reason() {
        fn unmet(it: &mut Survey, outcome: Outcome) {
            it.alone = Some(Alone::Unmet(vec![(19500, outcome.clone()), (29500, outcome)]));
        }
        assert_rule(
            lines,
            NODES,
            &[
                (|it| it.alone = Some(Alone::Token("x".into())), Unknown, "no usable token"),
                (|it| it.alone = Some(Alone::NoAddress), Critical, "127.0.0.1"),
                (|it| it.alone = Some(Alone::Loopback), Warning, "loopback"),
                (
                    |it| unmet(it, Outcome::Refused),
                    Unknown,
                    "within 60 s (port 19500: connection refused",
                ),
                (|it| unmet(it, Outcome::OtherToken), Unknown, "another token"),
            ],
        );
        assert_rule(
            lines,
            REACHABILITY,
            &[
                (
                    |it| unmet(it, Outcome::NoAnswer),
                    Critical,
                    "cannot reach the rendezvous host host-0",
                ),
                (
                    |it| unmet(it, Outcome::OtherHost),
                    Critical,
                    "Another program answers at host-0:29500",
                ),
                (|it| unmet(it, Outcome::Unresolved("x".into())), Critical, "cannot resolve"),
            ],
        );
    }
}
