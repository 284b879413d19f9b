//! Allowed dependencies between crates, and the size of the dependency tree.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use super::root;

/// Names of the crates that a package needs to be built, without those for tests only.
fn crates_of(package: &str, features: &[&str]) -> BTreeSet<String> {
    let output = Command::new(env!("CARGO"))
        .current_dir(root())
        .args(["tree", "--offline", "--edges", "normal,build", "--prefix", "none"])
        .args(["--format", "{p}", "--package", package])
        .args(features)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let name = |line: &str| {
        let mut words = line.split_whitespace();
        Some(format!("{} {}", words.next()?, words.next()?))
    };
    text.lines().filter_map(name).collect()
}

#[track_caller]
fn must_not_reach(package: &str, forbidden: &[&str]) {
    let crates = crates_of(package, &[]);
    for name in forbidden {
        let found = crates.iter().find(|found| found.split(' ').next() == Some(name));
        assert!(found.is_none(), "{package} depends on {name}");
    }
}

#[test]
fn in_process_crates_have_few_dependencies() {
    // The C library queries GPU memory through CUDA bindings: three crates, which link nothing.
    for (package, most) in [
        ("ddp-doctor-agent", 3),
        ("ddp-doctor-capi", 7),
        ("ddp-doctor-python", 3),
        ("ddp-doctor-nccl", 4),
        ("ddp-doctor-nccl-soname", 5),
    ] {
        must_not_reach(package, &["tokio", "tonic", "prost", "serde", "ddp-doctor"]);
        let crates = crates_of(package, &[]);
        assert!(crates.len() <= most, "{package} needs {crates:?}");
    }
}

#[test]
fn dashboard_and_proto_depend_on_no_higher_crate() {
    must_not_reach("ddp-doctor-dashboard", &["ddp-doctor", "ddp-doctor-agent"]);
    must_not_reach(
        "ddp-doctor-proto",
        &["ddp-doctor", "ddp-doctor-agent", "ddp-doctor-dashboard", "libc"],
    );
}

#[test]
fn engine_depends_on_proto_alone() {
    let manifest: toml::Table =
        fs::read_to_string(root().join("src/diagnosis/Cargo.toml")).unwrap().parse().unwrap();
    let dependencies: Vec<&String> = manifest["dependencies"].as_table().unwrap().keys().collect();
    assert_eq!(dependencies, ["ddp-doctor-proto", "thiserror"]);
    for kind in ["build-dependencies", "target"] {
        assert!(!manifest.contains_key(kind), "{kind}");
    }
}

#[test]
fn workspace_stays_within_its_crate_budget() {
    let crates = crates_of("ddp-doctor", &["--all-features"]);
    assert!(crates.len() <= 220, "{} crates: {crates:?}", crates.len());
}
