//! Rules about NCCL on a node with GPUs: its InfiniBand devices and its release.

use ddp_doctor_diagnosis::input::backends::NCCL;

use super::gpus;
use super::line::{Level, Line, list};
use crate::facts::Facts;
use crate::survey::Survey;

const DEVICES: &str = "interfaces";
const RELEASE: &str = "versions";

/// Releases with known defects: how a version begins, how the defect affects a job, and what it is.
const DEFECTS: [(&str, Level, &str); 6] = [
    (
        "2.31",
        Level::Warning,
        "jobs that hang without an error were reported (NVIDIA/nccl#2385, #2389)",
    ),
    ("2.26.2", Level::Info, QUERIES),
    ("2.26.5", Level::Info, QUERIES),
    ("2.27.3", Level::Info, QUERIES),
    ("2.27.7", Level::Info, QUERIES),
    ("2.29.7", Level::Info, QUERIES),
];
const QUERIES: &str = "queries of its RAS service (ncclras, port 28028) have crashed jobs: do not query a running job";

/// Lines about NCCL and the GPUs of each node that has some.
pub(super) fn lines(survey: &Survey) -> Vec<Line> {
    let nodes = survey.nodes.iter().enumerate().flat_map(|(index, node)| {
        let facts = &node.facts;
        let has_gpus = facts.has_unified_memory.is_some()
            || !(facts.gpus.is_empty() && facts.gpu_states.is_empty());
        let lines = has_gpus.then(|| {
            let gpus = gpus::lines(facts, survey.launch.is_some());
            devices(facts).into_iter().chain(release(facts)).chain(gpus)
        });
        lines.into_iter().flatten().map(move |line| line.at(survey.name(index)))
    });
    nodes.collect()
}

/// A line if the user names devices of the network that the node lacks.
fn devices(facts: &Facts) -> Option<Line> {
    let variable = NCCL.device_variable?;
    let value = facts.variables.get(variable)?.trim();
    let is_disabled = facts.variables.get("NCCL_IB_DISABLE").is_some_and(|it| it.trim() == "1");
    // "^" excludes devices: names that match none exclude none.
    if is_disabled || value.starts_with('^') {
        return None;
    }
    let (names, is_exact) = value.strip_prefix('=').map_or((value, false), |it| (it, true));
    let is_there = |name: &&str| {
        let device = name.split(':').next().unwrap_or_default();
        let mut devices = facts.infiniband.iter();
        devices.any(|it| if is_exact { it == device } else { it.starts_with(device) })
    };
    let names = names.split(',').map(str::trim).filter(|it| !it.is_empty());
    let (present, missing): (Vec<&str>, Vec<&str>) = names.partition(is_there);
    if missing.is_empty() {
        return None;
    }
    let known = match &*facts.infiniband {
        [] => "This node has no InfiniBand or RoCE device".to_owned(),
        devices => format!("Devices of this node: {}", list(devices)),
    };
    let (missing, is_alone) = (list(&missing), present.is_empty());
    let line = if is_alone {
        let reason = format!(
            "{variable}={value} names no device of this node: NCCL uses the slower sockets there. {known}."
        );
        Line::warning(DEVICES, reason)
    } else {
        Line::warning(DEVICES, format!("{variable}={value}: this node lacks {missing}. {known}."))
    };
    Some(line.fix(format!("Set {variable} to devices that every node has, or leave it unset.")))
}

/// A line if the release of NCCL has a known defect.
fn release(facts: &Facts) -> Option<Line> {
    let version = facts.versions.get("nccl")?;
    let is_of = |start: &str| {
        let rest = version.strip_prefix(start);
        rest.is_some_and(|rest| !rest.starts_with(|it: char| it.is_ascii_digit()))
    };
    let (_, level, what) = DEFECTS.iter().find(|(start, ..)| is_of(start))?;
    let line = Line::new(*level, RELEASE, format!("NCCL {version}: {what}."));
    Some(if *level > Level::Info { line.fix("Use another release of NCCL.") } else { line })
}

#[cfg(test)]
mod tests {
    use super::super::testing::{set, survey};
    use super::*;

    const VARIABLE: &str = "NCCL_IB_HCA";

    fn found(change: impl Fn(&mut Survey)) -> Vec<(Level, String)> {
        let mut survey = survey(2);
        survey.nodes[1].facts.has_unified_memory = Some(true);
        survey.nodes[1].facts.infiniband = vec!["mlx5_0".into(), "mlx5_10".into()];
        survey.nodes[1].facts.has_peer_memory = true;
        change(&mut survey);
        lines(&survey).into_iter().map(|it| (it.level, it.reason)).collect()
    }

    #[test]
    fn infiniband_devices_must_exist() {
        let cases = [
            ("mlx4", "names no device of this node"),
            ("mlx5_0,mlx4_0:1", "lacks mlx4_0:1"),
            ("=mlx5_1", "names no device"),
        ];
        for (value, reason) in cases {
            let found = found(|it| set(it, 1, VARIABLE, value));
            let (level, text) = &found[0];
            assert_eq!((*level, found.len()), (Level::Warning, 1));
            assert!(text.contains(reason), "{text}");
        }
        for value in ["mlx5", "mlx5_1", "=mlx5_0", "mlx5_0:1,mlx5_10", "^mlx4", "^=mlx5_0", ""] {
            assert_eq!(found(|it| set(it, 1, VARIABLE, value)), [], "{value}");
        }
    }

    #[test]
    fn infiniband_devices_are_checked_only_if_used() {
        assert_eq!(found(|it| set(it, 0, VARIABLE, "mlx4")), [], "a node without GPUs");
        let disabled = |it: &mut Survey| {
            set(it, 1, VARIABLE, "mlx4");
            set(it, 1, "NCCL_IB_DISABLE", "1");
        };
        assert_eq!(found(disabled), []);
        let none = found(|it| {
            set(it, 1, VARIABLE, "mlx5");
            it.nodes[1].facts.infiniband.clear();
        });
        assert!(none[0].1.contains("has no InfiniBand or RoCE device"), "{none:?}");
    }

    #[test]
    fn known_defects_of_releases_are_reported() {
        let version = |version: &'static str| {
            found(move |it| {
                it.nodes[1].facts.versions.insert("nccl".into(), version.into());
            })
        };
        assert_eq!(version("2.31.2")[0].0, Level::Warning);
        assert_eq!(version("2.27.3")[0].0, Level::Info);
        for healthy in ["2.3.1", "2.27.5", "2.27.30", "2.30.7", "2.310.0", "2.32.3"] {
            assert_eq!(version(healthy), [], "{healthy}");
        }
    }
}
