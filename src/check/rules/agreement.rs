//! Rules about versions and settings that all nodes should share, and settings that are known to cause
//! trouble.

use std::collections::{BTreeMap, BTreeSet};

use ddp_doctor_diagnosis::input::settings::{meaning, must_agree};

use super::line::{Line, list};
use crate::facts::Facts;
use crate::survey::Survey;

const VERSIONS: &str = "versions";
const SETTINGS: &str = "settings";
/// Versions that nodes should share, with their names for users.
const COMPARED: [(&str, &str); 6] = [
    ("nccl", "NCCL"),
    ("torch", "PyTorch"),
    ("torch.cuda", "PyTorch's CUDA"),
    ("nvidia-driver", "NVIDIA's driver"),
    ("python", "Python"),
    ("ddp-doctor", "ddp-doctor"),
];

/// Lines about versions, settings and GPUs that differ between nodes.
pub(super) fn lines(survey: &Survey) -> Vec<Line> {
    let mut lines = versions(survey);
    lines.extend(settings(survey));
    lines.extend(gpus(survey));
    lines.extend(risks(survey));
    lines
}

fn versions(survey: &Survey) -> Vec<Line> {
    let mut lines = Vec::new();
    for (name, label) in COMPARED {
        let Some(sides) = sides(survey, |it| it.versions.get(name).cloned()) else {
            continue;
        };
        let reason = format!("{label} differs: {}", shown(&sides));
        // NCCL refuses to start since 2.23.4.
        let line = if name == "nccl" && !survey.is_without_gpus() {
            Line::critical(
                VERSIONS,
                format!("{reason}. NCCL refuses to connect different versions."),
            )
        } else {
            Line::warning(VERSIONS, format!("{reason}."))
        };
        lines.push(line.fix(format!("Install one version of {label} on all nodes.")));
    }
    if lines.is_empty() {
        let versions = survey.nodes.first().map(|it| &it.facts.versions);
        let known: Vec<String> = COMPARED
            .iter()
            .filter_map(|(name, label)| Some(format!("{label} {}", versions?.get(*name)?)))
            .collect();
        lines.push(Line::pass(VERSIONS, format!("{}.", list(&known))));
    }
    if !survey.nodes.iter().any(|it| it.facts.versions.contains_key("torch")) {
        let reason =
            "PyTorch was not found in the environment of the command: its version is not compared.";
        lines.push(Line::info(VERSIONS, reason));
    }
    lines
}

fn settings(survey: &Survey) -> Vec<Line> {
    let names: BTreeSet<&String> = survey
        .nodes
        .iter()
        .flat_map(|it| it.facts.variables.keys())
        .filter(|it| must_agree(it))
        .collect();
    let differing = names.iter().filter_map(|name| {
        let value = |it: &Facts| it.variables.get(*name).map(|it| it.trim().to_owned());
        // Values with the same effect do not differ.
        sides(survey, |it| {
            Some(
                meaning(name, value(it).filter(|it| !it.is_empty()).as_deref()).unwrap_or_default(),
            )
        })?;
        let sides = sides(survey, |it| Some(value(it).unwrap_or_else(|| "not set".into())))?;
        let reason = format!(
            "{name} differs: {}. Ranks may choose different algorithms and hang.",
            shown(&sides)
        );
        Some(
            Line::warning(SETTINGS, reason)
                .fix(format!("Set {name} to the same value on all nodes, or leave it unset.")),
        )
    });
    let mut lines: Vec<Line> = differing.collect();
    if lines.is_empty() && survey.nodes.len() > 1 {
        lines.push(Line::pass(SETTINGS, "Variables that must agree are equal on all nodes."));
    }
    lines
}

/// GPUs that differ between nodes.
fn gpus(survey: &Survey) -> Option<Line> {
    let sides = sides(survey, |it| {
        let mut models = it.gpus.clone();
        models.dedup();
        Some(format!("{} × {}", it.gpus.len(), list(&models)))
    })?;
    let reason = format!("GPUs differ: {}.", shown(&sides));
    Some(
        Line::warning("gpu", reason)
            .fix("Check --nproc-per-node on each node, and that all GPUs are present."),
    )
}

/// Settings that are known to cause hangs.
fn risks(survey: &Survey) -> Vec<Line> {
    let risks = [
        ("CUDA_LAUNCH_BLOCKING", "kernels of several communicators can wait for each other"),
        ("NCCL_IGNORE_NET_MISMATCH", "nodes with different networks hang instead of failing"),
    ];
    let mut lines = Vec::new();
    for (index, node) in survey.nodes.iter().enumerate() {
        for (name, why) in risks {
            let value = node.facts.variables.get(name);
            if value.is_some_and(|it| !matches!(it.trim(), "" | "0")) {
                let line = Line::warning(SETTINGS, format!("{name} is set: {why}."))
                    .fix(format!("Unset {name}, except for debugging."));
                lines.push(line.at(survey.name(index)));
            }
        }
    }
    lines
}

/// The nodes by their value; `None`: all that are known are equal.
fn sides(
    survey: &Survey,
    value: impl Fn(&Facts) -> Option<String>,
) -> Option<BTreeMap<String, Vec<String>>> {
    let mut sides: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (index, node) in survey.nodes.iter().enumerate() {
        if let Some(value) = value(&node.facts) {
            sides.entry(value).or_default().push(survey.name(index));
        }
    }
    (sides.len() > 1).then_some(sides)
}

fn shown(sides: &BTreeMap<String, Vec<String>>) -> String {
    let texts: Vec<String> =
        sides.iter().map(|(value, nodes)| format!("{value} on {}", list(nodes))).collect();
    list(&texts)
}

#[cfg(test)]
mod tests {
    use super::super::Level::{Critical, Info, Pass, Warning};
    use super::super::testing::{assert_rule, set};
    use super::*;

    fn version(it: &mut Survey, name: &str, version: &str) {
        it.nodes[1].facts.versions.insert(name.into(), version.into());
    }

    #[test]
    fn versions_must_agree() {
        assert_rule(
            lines,
            VERSIONS,
            &[
                (|_| (), Pass, "PyTorch 2.9, ddp-doctor 1"),
                (
                    |it| version(it, "torch", "2.8"),
                    Warning,
                    "PyTorch differs: 2.8 on host-1, 2.9 on host-0",
                ),
                (|it| version(it, "ddp-doctor", "2"), Warning, "ddp-doctor differs"),
                // A version that only one node knows differs from nothing.
                (|it| version(it, "nccl", "2.27.3"), Pass, "ddp-doctor 1"),
                (
                    |it| {
                        version(it, "nccl", "2.27.3");
                        it.nodes[0].facts.versions.insert("nccl".into(), "2.26.2".into());
                    },
                    Warning,
                    "NCCL differs",
                ),
                (
                    |it| {
                        version(it, "nccl", "2.27.3");
                        it.nodes[0].facts.versions.insert("nccl".into(), "2.26.2".into());
                        it.nodes[0].facts.has_unified_memory = Some(true);
                    },
                    Critical,
                    "refuses",
                ),
                (
                    |it| {
                        it.nodes.iter_mut().for_each(|it| drop(it.facts.versions.remove("torch")));
                    },
                    Info,
                    "PyTorch was not found",
                ),
            ],
        );
    }

    #[test]
    fn settings_must_agree_in_their_effect() {
        assert_rule(
            lines,
            SETTINGS,
            &[
                (|_| (), Pass, "equal"),
                (
                    |it| set(it, 1, "NCCL_ALGO", "Ring"),
                    Warning,
                    "NCCL_ALGO differs: Ring on host-1, not set on host-0",
                ),
                (
                    |it| {
                        set(it, 0, "NCCL_ALGO", "Ring");
                        set(it, 1, "NCCL_ALGO", "ring");
                    },
                    Pass,
                    "equal",
                ),
                (|it| set(it, 1, "NCCL_P2P_DISABLE", "0"), Pass, "equal"),
                (|it| set(it, 1, "NCCL_SOCKET_IFNAME", "eth0"), Pass, "equal"),
                (|it| set(it, 0, "CUDA_LAUNCH_BLOCKING", "1"), Warning, "CUDA_LAUNCH_BLOCKING"),
                (|it| set(it, 0, "CUDA_LAUNCH_BLOCKING", "0"), Pass, "equal"),
            ],
        );
    }

    #[test]
    fn gpus_must_agree() {
        assert_rule(
            lines,
            "gpu",
            &[(
                |it| {
                    it.nodes[0].facts.gpus = vec!["H100".into(); 8];
                    it.nodes[1].facts.gpus = vec!["H100".into(); 7];
                },
                Warning,
                "7 × H100 on host-1, 8 × H100 on host-0",
            )],
        );
    }
}
