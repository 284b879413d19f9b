//! What differs between backends is in one table.

use std::fs;

use ddp_doctor::diagnosis::input::backends::ALL;

use super::{files_below, root};

/// Files in which "nccl" is the name of a version, or of a folder.
const OF_VERSIONS: [&str; 6] = [
    "src/attach/rank_facts.rs",
    "src/check/packages.rs",
    "src/check/rules/agreement.rs",
    "src/check/rules/nccl.rs",
    "src/diagnosis/input/settings.rs",
    "src/node/launch/nccl.rs",
];
/// Files with beginnings of texts that name "nccl" as the text does.
const OF_TEXTS: [&str; 1] = ["src/diagnosis/findings/devices/gpu_fault.rs"];
/// The Python module that repeats a part of the table.
const PYTHON: &str = "agent/python/ddp_doctor/_backends.py";

#[test]
fn only_the_table_of_backends_knows_them_by_name() {
    let names = ["gloo", "mpi", "ucc", "xccl", "hccl", "rccl", "fake"];
    let quoted = names.map(|name| format!("\"{name}\""));
    let others = [
        "\"cpu:",
        "\"cuda:",
        "contains(\"nccl",
        "contains(\"gloo",
        "SOCKET_IFNAME",
        "SOCKET_FAMILY",
        "NCCL_IB_HCA",
    ];
    for file in files_below("src", "rs") {
        let path = file.strip_prefix(root()).unwrap().to_str().unwrap();
        let is_table = path == "src/diagnosis/input/backends.rs";
        let text = fs::read_to_string(&file).unwrap();
        // Tests and texts of logs name backends as users do.
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        let is_test = file.iter().any(|it| it == "tests" || it == "demo")
            || file.file_stem().is_some_and(|it| {
                let name = it.to_string_lossy();
                name.ends_with("tests") || name == "testing"
            });
        if is_table || is_test {
            continue;
        }
        let nccl = "\"nccl\"".to_owned();
        let is_other = OF_VERSIONS.contains(&path) || OF_TEXTS.contains(&path);
        let names = quoted.iter().chain(Some(&nccl).filter(|_| !is_other)).map(String::as_str);
        let words: Vec<&str> = names.chain(others).collect();
        for (i, line) in code.lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            for word in &words {
                assert!(!code.contains(word), "{path}:{}: {word}", i + 1);
            }
        }
    }
}

#[test]
fn python_package_has_the_facts_of_the_table() {
    let python = fs::read_to_string(root().join(PYTHON)).unwrap();
    let mut interfaces: Vec<String> =
        ALL.iter().filter_map(|it| Some(format!("\"{}\"", it.interface.as_ref()?.name))).collect();
    interfaces.dedup();
    let deferred: Vec<String> = ALL
        .iter()
        .filter_map(|it| Some(format!("\"{}\": \"{}\"", it.name(), it.defers_connecting?)))
        .collect();
    for line in [
        format!("INTERFACE_VARIABLES = ({})", interfaces.join(", ")),
        format!("_DEFERS_CONNECTING = {{{}}}", deferred.join(", ")),
    ] {
        assert!(python.lines().any(|it| it == line), "{PYTHON} lacks {line}");
    }
    for file in files_below("agent/python/ddp_doctor", "py") {
        let text = fs::read_to_string(&file).unwrap();
        for word in ["\"gloo\"", "_SOCKET_IFNAME"] {
            let is_table = file.ends_with(PYTHON);
            assert!(is_table || !text.contains(word), "{}: {word}", file.display());
        }
    }
}
