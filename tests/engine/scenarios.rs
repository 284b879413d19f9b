//! The engine on the scenario files in `tests/scenarios`.

use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread;

use crate::support::scenario::Scenario;

#[test]
fn every_scenario_meets_its_expectations() {
    let mut files = Vec::new();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios");
    collect(&folder, &mut files);
    let selected = std::env::var("SCENARIO").unwrap_or_default();
    files.retain(|file| file.to_string_lossy().contains(&selected));
    println!("{} scenarios", files.len());
    assert!(!files.is_empty(), "no scenario was found");
    let next = Mutex::new(files.iter());
    let failures = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                let pop = || next.lock().unwrap().next();
                while let Some(file) = pop() {
                    let text = std::fs::read_to_string(file).unwrap();
                    let check = || Scenario::parse(&text).and_then(|scenario| scenario.check());
                    let result = catch_unwind(check).unwrap_or_else(|_| Err("panicked".into()));
                    let failed = |failure| format!("{}: {failure}", file.display());
                    failures.lock().unwrap().extend(result.err().map(failed));
                }
            });
        }
    });
    let mut failures = failures.into_inner().unwrap();
    failures.sort();
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "toml") {
            files.push(path);
        }
    }
}
