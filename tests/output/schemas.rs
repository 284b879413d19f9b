//! `analyze --format sarif` and `--format perfetto` against the schemas in `tests/fixtures/schemas`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use super::pages::{EIGHT, evidence, hostile, recording};
use crate::support::evidence::{analyze, stdout};

/// Evidence of all kinds of faults: one recording of each family of jobs, and others.
fn all_kinds() -> Vec<(String, TempDir)> {
    let recordings = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recordings");
    let mut kinds =
        vec![("one of eight".to_owned(), evidence(EIGHT)), ("markup".to_owned(), hostile())];
    for family in fs::read_dir(recordings).unwrap() {
        let family = family.unwrap();
        if !family.file_type().unwrap().is_dir() {
            continue;
        }
        let names = fs::read_dir(family.path())
            .unwrap()
            .map(|it| it.unwrap().file_name().into_string().unwrap());
        if let Some(name) = names.filter(|it| it.ends_with(".faulty.gz")).min() {
            let name = format!("{}/{name}", family.file_name().display());
            kinds.push((name.clone(), recording(&name)));
        }
    }
    assert!(kinds.len() > 12, "{kinds:?}");
    kinds
}

/// The output of `analyze` for evidence of all kinds of faults.
fn outputs(format: &str) -> Vec<(String, String)> {
    let of = |(name, dir): (String, TempDir)| {
        (name, stdout(&analyze(dir.path(), &[".", "--format", format])))
    };
    all_kinds().into_iter().map(of).collect()
}

/// Python's `jsonschema`, if this machine has it.
fn has_validator() -> bool {
    let import = Command::new("python3").args(["-c", "import jsonschema"]).output();
    let found = import.is_ok_and(|it| it.status.success());
    let is_needed = std::env::var_os("DDP_DOCTOR_REQUIRE_JSONSCHEMA").is_some();
    assert!(found || !is_needed, "python3 has no module jsonschema");
    if !found {
        eprintln!("skipped: python3 has no module jsonschema (Debian: python3-jsonschema)");
    }
    found
}

const VALIDATE: &str = "
import json, sys, jsonschema
schema, *documents = [json.load(open(file)) for file in sys.argv[1:]]
validator = jsonschema.Draft7Validator(schema)
for file, document in zip(sys.argv[2:], documents):
    for error in validator.iter_errors(document):
        print(file, list(error.absolute_path), error.message[:300])
";

/// Fails with the places at which documents violate a schema.
#[track_caller]
fn meet(schema: &str, documents: &[(String, String)]) {
    let dir = tempfile::tempdir().unwrap();
    let schemas = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/schemas");
    let mut command = Command::new("python3");
    command.current_dir(&dir).args(["-c", VALIDATE]).arg(schemas.join(schema));
    for (name, text) in documents {
        let file = name.replace('/', " ");
        fs::write(dir.path().join(&file), text).unwrap();
        command.arg(file);
    }
    let output = command.output().unwrap();
    let (said, error) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.is_empty(), "{said}{error}");
}

#[test]
fn sarif_meets_its_schema() {
    if !has_validator() {
        return;
    }
    meet("sarif-2.1.0.json", &outputs("sarif"));
}

#[test]
fn perfetto_meets_its_schema_and_draws_what_it_says() {
    let traces = outputs("perfetto");
    let mut arrows = 0;
    for (name, text) in &traces {
        arrows += is_drawn_whole(name, &serde_json::from_str(text).unwrap());
    }
    assert!(arrows > 10, "{arrows} arrows");
    if has_validator() {
        meet("trace-event.json", &traces);
    }
}

/// Fails if slices of a thread overlap, a thread has no name, or an arrow has no slice at an end.
/// Returns the number of arrows.
fn is_drawn_whole(name: &str, trace: &Value) -> usize {
    let events = trace["traceEvents"].as_array().unwrap();
    let thread = |it: &Value| (it["pid"].as_u64(), it["tid"].as_u64());
    let of = |kinds: &'static [&str]| {
        events.iter().filter(move |it| kinds.contains(&it["ph"].as_str().unwrap()))
    };
    let named: BTreeSet<_> =
        of(&["M"]).filter(|it| it["name"] == "thread_name").map(thread).collect();
    let mut slices: BTreeMap<_, Vec<(f64, f64)>> = BTreeMap::new();
    for slice in of(&["X"]) {
        let began = slice["ts"].as_f64().unwrap();
        let ended = began + slice["dur"].as_f64().unwrap();
        slices.entry(thread(slice)).or_default().push((began, ended));
    }
    for (thread, slices) in &mut slices {
        assert!(named.contains(thread), "{name}: {thread:?} has no name");
        slices.sort_by(|one, other| one.partial_cmp(other).unwrap());
        for pair in slices.windows(2) {
            // A double has 53 bits: the end, a sum, may differ from the next start in the last.
            assert!(pair[0].1 <= pair[1].0 + 1e-3, "{name}: {thread:?} {pair:?}");
        }
    }
    let mut ends: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
    for end in of(&["s", "f"]) {
        ends.entry(end["id"].as_str().unwrap()).or_default().push(end);
        let at = end["ts"].as_f64().unwrap();
        let around = slices.get(&thread(end)).is_some_and(|all| {
            all.iter().any(|&(began, ended)| began - 1e-3 <= at && at <= ended + 1e-3)
        });
        assert!(around, "{name}: no slice around {end}");
    }
    for (id, ends) in &ends {
        let kinds: Vec<&Value> = ends.iter().map(|it| &it["ph"]).collect();
        assert_eq!(kinds, ["s", "f"], "{name}: arrow {id}");
        assert!(ends[0]["ts"].as_f64() <= ends[1]["ts"].as_f64(), "{name}: arrow {id}");
    }
    ends.len()
}
