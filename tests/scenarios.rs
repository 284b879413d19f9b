//! The engine on the scenario files in `tests/scenarios`.

use std::path::{Path, PathBuf};

use crate::support::scenario::Scenario;

#[test]
fn every_scenario_meets_its_expectations() {
    let mut files = Vec::new();
    collect(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios"),
        &mut files,
    );
    files.sort();
    let mut failures = Vec::new();
    for file in &files {
        let text = std::fs::read_to_string(file).unwrap();
        if let Err(failure) = Scenario::parse(&text).and_then(|scenario| scenario.check()) {
            failures.push(format!("{}: {failure}", file.display()));
        }
    }
    println!("{} scenarios", files.len());
    assert!(!files.is_empty(), "no scenario was found");
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, files);
        } else if path
            .extension()
            .is_some_and(|extension| extension == "toml")
        {
            files.push(path);
        }
    }
}
