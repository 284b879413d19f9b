//! Invariants of the architecture: allowed dependencies between crates, names that a module may not
//! use, and the size of the dependency tree.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use ddp_doctor::diagnosis::findings;
use ddp_doctor::report::explain::{self, Page};
use ddp_doctor_proto::catalogue;

mod imports;

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

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
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
    let manifest = fs::read_to_string(root().join("src/diagnosis/Cargo.toml")).unwrap();
    let manifest: toml::Table = manifest.parse().unwrap();
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

#[test]
fn engine_uses_no_io_clock_or_thread() {
    let forbidden = [
        "std::net",
        "std::fs",
        "std::io",
        "std::thread",
        "std::env",
        "std::process",
        "Instant::now",
        "SystemTime",
        "Timestamp::now",
    ];
    for file in files_below("src/diagnosis", "rs") {
        let text = fs::read_to_string(&file).unwrap();
        for (i, line) in text.lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            for word in forbidden {
                assert!(!code.contains(word), "{}:{}: {word}", file.display(), i + 1);
            }
        }
    }
}

#[test]
fn unsafe_code_is_limited_to_listed_files() {
    let fenced = [
        "agent/capi/src/lib.rs",
        "agent/capi/src/ptr.rs",
        "agent/capi/src/python.rs",
        "agent/capi/src/shared.rs",
        "agent/nccl/soname/src/lib.rs",
        "agent/nccl/src/communicators/communicator.rs",
        "agent/nccl/src/communicators/creation.rs",
        "agent/nccl/src/communicators/memory.rs",
        "agent/nccl/src/communicators/table.rs",
        "agent/nccl/src/cuda/driver.rs",
        "agent/nccl/src/hooks/exports.rs",
        "agent/nccl/src/nccl/abi.rs",
        "agent/nccl/src/nccl/library.rs",
        "agent/nccl/src/nccl/loader_search.rs",
        "agent/nccl/src/nccl/queries.rs",
        "agent/nccl/src/profiler/layout.rs",
        "agent/nccl/src/profiler/mod.rs",
        "agent/nccl/src/profiler/user_plugin.rs",
        "agent/nccl/src/recording/black_box.rs",
        "agent/nccl/src/recording/own_box.rs",
        "agent/nccl/src/return_address.rs",
        "agent/python/native/src/frame.rs",
        "agent/python/native/src/lib.rs",
        "agent/python/native/src/library.rs",
        "agent/python/native/src/object.rs",
        "agent/python/native/src/python.rs",
        "agent/src/blackbox/faults.rs",
        "agent/src/blackbox/map.rs",
        "agent/src/current.rs",
        "agent/src/detach.rs",
        "agent/src/gpu.rs",
        "agent/src/nccl/mod.rs",
        "agent/src/sys.rs",
        "src/node/sys.rs",
        "tests/doubles/cuda/src/abi.rs",
        "tests/doubles/cuda/src/pointers.rs",
        "tests/doubles/nccl/src/abi.rs",
        "tests/doubles/nccl/src/driver.rs",
        "tests/doubles/nccl/src/pointers.rs",
        "tests/jobs/nccl/pipeline.rs",
    ];
    let mut found = Vec::new();
    for folder in [
        "src",
        "proto/src",
        "agent/src",
        "agent/capi/src",
        "agent/nccl/soname/src",
        "agent/nccl/src",
        "agent/python/native/src",
        "dashboard/src",
        "tests/doubles",
        "tests/jobs",
    ] {
        for file in files_below(folder, "rs") {
            let text = fs::read_to_string(&file).unwrap();
            let uses = |line: &str| {
                let code = line.split("//").next().unwrap_or_default();
                code.contains("unsafe ") || code.contains("unsafe(")
            };
            if text.lines().any(uses) {
                found.push(file.strip_prefix(root()).unwrap().display().to_string());
            }
        }
    }
    found.sort();
    assert_eq!(found, fenced);
}

#[test]
fn every_finding_has_an_example_and_a_silent_scenario() {
    assert!(findings::ALL.is_sorted_by_key(|it| it.code.code), "by code");
    for code in findings::codes() {
        let scenarios = format!("tests/scenarios/findings/{}", code.name);
        let scenarios: Vec<_> = files_below(&scenarios, "toml")
            .iter()
            .map(|file| fs::read_to_string(file).unwrap())
            .collect();
        let any_has = |line: String| scenarios.iter().any(|it| it.contains(&line));
        let example = format!("\nexample = \"{}\"\n", code.code);
        assert!(any_has(example), "{}: no scenario is its example", code.code);
        let expected = format!("code = \"{}\"", code.code);
        let is_silent = scenarios.iter().any(|it| !it.contains(&expected));
        assert!(is_silent, "{}: no scenario without it", code.code);
    }
}

#[test]
fn every_scenario_is_about_something_else() {
    let mut known = BTreeSet::new();
    for file in files_below("tests/scenarios", "toml") {
        let scenario: toml::Table = fs::read_to_string(&file).unwrap().parse().unwrap();
        let about = scenario["about"].as_str().unwrap().to_owned();
        let words = about.split(|c: char| !c.is_ascii_alphanumeric());
        let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
        let stem = file.file_stem().unwrap().to_str().unwrap();
        let repeats = words.join("_").eq_ignore_ascii_case(stem);
        assert!(!repeats, "{}: repeats its name", file.display());
        assert!(known.insert(about), "{}: not unique", file.display());
    }
}

#[test]
fn every_finding_is_explained() {
    let pages = files_below("docs/findings", "md");
    // One for each code, and the index.
    assert_eq!(pages.len(), catalogue::ALL.len() + 1);
    for code in catalogue::ALL {
        let page = Page::of(code);
        let summary = page.summary();
        assert!(summary.len() > 20, "{}: {summary:?}", code.code);
        if !findings::detects(code.code) {
            continue;
        }
        let head = format!("[{}] {}: ", code.code, code.name);
        assert!(page.example().contains(&head), "{}: example", code.code);
        for (section, items) in [
            ("meaning", page.meaning()),
            ("causes", page.causes()),
            ("fix", page.fix()),
            ("not", page.exclusions()),
        ] {
            assert!(!items.is_empty(), "{}: {section} is empty", code.code);
            for item in items {
                let is_sentence =
                    item.split_whitespace().count() >= 3 && item.ends_with(['.', '`']);
                assert!(is_sentence, "{}: {section}: {item:?}", code.code);
                for word in item.split(|c: char| !c.is_ascii_alphanumeric()) {
                    let number = word.strip_prefix("DD").unwrap_or_default();
                    let is_code = number.len() == 3 && number.parse::<u16>().is_ok();
                    let is_known = catalogue::Code::of(word).is_some();
                    assert!(!is_code || is_known, "{}: {word} is no code", code.code);
                }
            }
        }
    }
}

#[test]
fn tables_of_findings_are_those_of_their_pages() {
    is_generated("docs/findings/README.md", &explain::table(""));
    is_generated("README.md", &explain::table("docs/findings/"));
}

/// Panics unless a file has that text between its markers; or updates it.
fn is_generated(file: &str, text: &str) {
    const MARKERS: [&str; 2] = ["<!-- findings -->\n", "<!-- /findings -->\n"];
    let path = root().join(file);
    let page = fs::read_to_string(&path).unwrap();
    let (head, rest) = page.split_once(MARKERS[0]).unwrap();
    let (table, tail) = rest.split_once(MARKERS[1]).unwrap();
    if table == text {
        return;
    }
    let update = std::env::var_os("UPDATE_DOCS").is_some();
    assert!(update, "{file} is out of date; run the test with UPDATE_DOCS=1");
    let [begin, end] = MARKERS;
    fs::write(&path, format!("{head}{begin}{text}{end}{tail}")).unwrap();
}

fn files_below(folder: &str, extension: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|found| found == extension) {
                files.push(path);
            }
        }
    }
    assert!(!files.is_empty(), "no files below {folder}");
    files
}

/// Source of a test function that is named as `module::function`.
fn test_source(name: &str) -> String {
    let (module, function) = name.rsplit_once("::").unwrap();
    let file = module.replace("::", "/");
    let file = root().join("tests").join(file);
    let text = fs::read_to_string(file.with_extension("rs"))
        .or_else(|_| fs::read_to_string(file.join("mod.rs")))
        .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let start = text.find(&format!("\n#[test]\nfn {function}() {{"));
    let source = &text[start.unwrap_or_else(|| panic!("no test {name}"))..];
    source[..source.find("\n}\n").unwrap()].to_owned()
}

#[test]
fn first_tests_of_unaffected_jobs_compare_their_results() {
    let page = fs::read_to_string(root().join("docs/operations/faults.md")).unwrap();
    let mut count = 0;
    for row in page.lines() {
        let cells: Vec<&str> = row.split(" | ").collect();
        if cells.len() != 4 || !cells[1].starts_with("unaffected") {
            continue;
        }
        let name = cells[3].split('`').nth(1).unwrap();
        let compares = test_source(name).contains("assert_same_result");
        assert!(compares, "{name} does not compare the result of its job");
        count += 1;
    }
    assert!(count > 20, "{count} rows");
}
