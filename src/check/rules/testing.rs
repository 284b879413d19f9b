//! Facts for the tests of rules.

use ddp_doctor_node::launch::shape::Shape;

use super::{Level, Line};
use crate::facts::{Directory, Facts, Interface, Limit, Resolved};
use crate::survey::{Launch, Node, Survey};

pub(super) const GIB: u64 = 1 << 30;
pub(super) const MIB: u64 = 1 << 20;

/// A healthy node `host-N` without GPU.
pub(super) fn facts(number: u8) -> Facts {
    let host = format!("host-{number}");
    let name =
        |number: u8| Resolved { addresses: vec![[10, 0, 0, number + 1].into()], error: None };
    let directory = |path: &str| Directory {
        path: path.into(),
        free: Some(64 * GIB),
        total: Some(64 * GIB),
        error: None,
    };
    let interface = |name: &str, address: [u8; 4]| Interface {
        name: name.into(),
        is_up: true,
        is_loopback: name == "lo",
        addresses: vec![address.into()],
    };
    Facts {
        machine: host.clone(),
        node_rank: Some(number.into()),
        ranks: Some(2),
        shared_memory: directory("/dev/shm"),
        has_shared_memory: true,
        run_dir: directory("/work"),
        memlock: Limit { soft: 8 * MIB, hard: 8 * MIB },
        descriptors: Limit { soft: 65536, hard: 65536 },
        interfaces: vec![
            interface("lo", [127, 0, 0, 1]),
            interface("eth0", [10, 0, 0, number + 1]),
        ],
        names: [(host.clone(), name(number)), ("host-0".into(), name(0))].into(),
        ephemeral_ports: Some((32768, 60999)),
        versions: [("ddp-doctor".into(), "1".into()), ("torch".into(), "2.9".into())].into(),
        host,
        ..Facts::default()
    }
}

/// A healthy launch of this many nodes.
pub(super) fn survey(count: u8) -> Survey {
    let nodes = (0..count).map(|number| Node {
        facts: facts(number),
        ranks: vec![number.into()],
        commands: 1,
        ..Node::default()
    });
    let commands = (u32::from(count), u32::from(count));
    Survey {
        nodes: nodes.collect(),
        launch: (count > 1).then(|| Launch {
            shape: Shape { commands, ranks: Some(2), is_dynamic: false, has_address: true },
            host: "host-0".into(),
            port: 29500,
            coordinator_port: 19500,
            waited_s: 60,
        }),
        ..Survey::default()
    }
}

/// The gravest level of lines of one check, with its reason.
#[track_caller]
pub(super) fn worst(lines: &[Line], check: &str) -> (Level, String) {
    let of_check = lines.iter().filter(|it| it.check == check);
    let worst = of_check.max_by_key(|it| it.level).unwrap();
    (worst.level, worst.reason.clone())
}

/// Sets a variable of a node.
pub(super) fn set(survey: &mut Survey, node: usize, name: &str, value: &str) {
    let variables = &mut survey.nodes[node].facts.variables;
    variables.insert(name.into(), value.into());
}

/// A change of a healthy launch of two nodes.
type Change = fn(&mut Survey);

/// Panics unless each change leads to its level, and to a reason with this part.
#[track_caller]
pub(super) fn assert_rule(
    lines: fn(&Survey) -> Vec<Line>,
    check: &str,
    cases: &[(Change, Level, &str)],
) {
    for (change, level, reason) in cases {
        let mut survey = survey(2);
        change(&mut survey);
        assert_worst(&lines(&survey), check, *level, reason);
    }
}

/// Panics unless this is the gravest level of a check, with this part of its reason.
#[track_caller]
pub(super) fn assert_worst(lines: &[Line], check: &str, level: Level, reason: &str) {
    let found = worst(lines, check);
    assert_eq!(found.0, level, "{}", found.1);
    assert!(found.1.contains(reason), "{}: {reason}", found.1);
}

#[test]
fn healthy_nodes_have_nothing_above_info() {
    for count in [1, 2, 5] {
        let lines = super::lines(&survey(count));
        let grave: Vec<&Line> = lines.iter().filter(|it| it.level > Level::Info).collect();
        assert!(grave.is_empty(), "{count}: {grave:#?}");
        assert!(lines.iter().any(|it| it.level == Level::Pass));
    }
}

#[test]
fn lines_about_several_nodes_are_merged() {
    let mut survey = survey(3);
    for node in &mut survey.nodes[1..] {
        node.facts.shared_memory.free = Some(MIB);
    }
    let lines = super::lines(&survey);
    assert_eq!(lines[0].level, Level::Critical);
    assert_eq!(lines[0].nodes, ["host-1", "host-2"]);
}

#[test]
fn sizes_and_lists_are_short() {
    assert_eq!(super::line::size(0), "0 B");
    assert_eq!(super::line::size(1536), "1.5 KiB");
    assert_eq!(super::line::size(64 * GIB), "64 GiB");
    let names: Vec<String> = (0..10).map(|it| it.to_string()).collect();
    assert_eq!(super::line::list(&names), "0, 1, 2, 3, 4, 5, 6, 7 and 2 others");
    assert_eq!(super::line::list(&names[..1]), "0");
}
