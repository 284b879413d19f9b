//! Findings and their scenarios and pages, and tests that documents name.

use std::collections::BTreeSet;
use std::fs;

use ddp_doctor::diagnosis::findings;
use ddp_doctor::report::explain::{self, Page};
use ddp_doctor_proto::catalogue;

use super::{files_below, root};

#[test]
fn every_finding_has_an_example_and_a_silent_scenario() {
    assert!(findings::ALL.is_sorted_by_key(|it| it.code.code), "by code");
    for code in findings::ALL.iter().map(|rule| rule.code) {
        let folder = format!("tests/scenarios/findings/{}", code.name);
        let scenarios: Vec<_> = files_below(&folder, "toml")
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
        let words: Vec<&str> = about
            .split(|c: char| !c.is_ascii_alphanumeric())
            .filter(|word| !word.is_empty())
            .collect();
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
        let page = Page::new(code);
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
                    let is_known = catalogue::Code::find(word).is_some();
                    assert!(!is_code || is_known, "{}: {word} is not a code", code.code);
                }
            }
        }
    }
}

#[test]
fn tables_of_findings_are_those_of_their_pages() {
    check_or_update("docs/findings/README.md", "findings", &explain::table(""));
    check_or_update("README.md", "findings", &explain::table("docs/findings/"));
}

#[test]
fn table_of_advice_is_that_of_the_findings() {
    check_or_update("docs/findings/README.md", "advice", &explain::advice_table());
}

/// Panics unless a file has that text between the markers of a table; or updates it.
fn check_or_update(file: &str, table: &str, text: &str) {
    let markers = [format!("<!-- {table} -->\n"), format!("<!-- /{table} -->\n")];
    let path = root().join(file);
    let page = fs::read_to_string(&path).unwrap();
    let (head, rest) = page.split_once(&markers[0]).unwrap();
    let (table, tail) = rest.split_once(&markers[1]).unwrap();
    if table == text {
        return;
    }
    let update = std::env::var_os("UPDATE_DOCS").is_some();
    assert!(update, "{file} is out of date; run the test with UPDATE_DOCS=1");
    let [begin, end] = markers;
    fs::write(&path, format!("{head}{begin}{text}{end}{tail}")).unwrap();
}

/// Source of a test function that is named as `module::function`.
fn test_source(name: &str) -> String {
    let (module, function) = name.rsplit_once("::").unwrap();
    let path = module.replace("::", "/");
    let file = root().join("tests").join(path);
    let text = fs::read_to_string(file.with_extension("rs"))
        .or_else(|_| fs::read_to_string(file.join("mod.rs")))
        .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let start = text.find(&format!("\n#[test]\nfn {function}() {{"));
    let source = &text[start.unwrap_or_else(|| panic!("no test {name}"))..];
    source[..source.find("\n}\n").unwrap()].to_owned()
}

#[test]
fn versions_agree() {
    let version = env!("CARGO_PKG_VERSION");
    for (file, line) in [
        ("agent/python/pyproject.toml", format!("version = \"{version}\"")),
        ("agent/python/ddp_doctor/__init__.py", format!("__version__ = \"{version}\"")),
        ("CITATION.cff", format!("version: {version}")),
    ] {
        let text = fs::read_to_string(root().join(file)).unwrap();
        assert!(text.lines().any(|it| it == line), "{file} has no line {line:?}");
    }
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

#[test]
fn every_finding_has_a_file_of_its_name() {
    let files = files_below("src/diagnosis/findings", "rs");
    let names: BTreeSet<_> = files.iter().filter_map(|it| it.file_stem()?.to_str()).collect();
    for code in findings::ALL.iter().map(|rule| rule.code) {
        let name = code.name.replace('-', "_");
        assert!(names.contains(name.as_str()), "{}: no {name}.rs", code.code);
    }
}
