//! Findings as SARIF 2.1.0, for code scanning and editors.
//!
//! Specification: <https://docs.oasis-open.org/sarif/sarif/v2.1.0/>.
//!
//! One run per job, one result per finding. The locations of a result are the lines of the root
//! cause ranks; the lines of other ranks are related locations.

use std::io::{self, Write};

use ddp_doctor_diagnosis::{findings, words};
use ddp_doctor_proto::catalogue::Code;
use ddp_doctor_proto::report::{Finding, RankCall, Report, Severity, Where};
use serde_json::{Map, Value, json};

use super::explain::{self, Page};
use super::text::plain;
use ddp_doctor_proto::words::sentence;

const SCHEMA: &str =
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json";

/// Writes reports as one log.
///
/// # Errors
///
/// Fails if `out` cannot be written.
pub fn log(out: &mut dyn Write, reports: &[Report]) -> io::Result<()> {
    let mut runs: Vec<Value> = reports.iter().map(run).collect();
    runs.iter_mut().for_each(make_plain);
    let log = json!({ "$schema": SCHEMA, "version": "2.1.0", "runs": runs });
    serde_json::to_writer_pretty(&mut *out, &log)?;
    writeln!(out)
}

/// Makes the texts of ranks plain, wherever they are. Messages, which have several lines, already are, and URIs are
/// encoded.
fn make_plain(value: &mut Value) {
    match value {
        Value::String(text) => *text = plain(text),
        Value::Array(items) => items.iter_mut().for_each(make_plain),
        Value::Object(fields) => fields
            .iter_mut()
            .filter(|(key, _)| !["text", "markdown", "uri"].contains(&key.as_str()))
            .for_each(|(_, it)| make_plain(it)),
        _ => {}
    }
}

/// Text of a message in one line. Brackets are escaped: they would embed a link.
fn message(text: &str) -> String {
    let mut out = String::new();
    for c in plain(text).chars() {
        if matches!(c, '[' | ']' | '\\') {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

fn run(report: &Report) -> Value {
    let mut codes: Vec<&str> = report.findings.iter().map(|it| it.code.as_str()).collect();
    codes.sort_unstable();
    codes.dedup();
    let rules: Vec<Value> = codes.iter().map(|code| rule(code, report)).collect();
    let results: Vec<Value> =
        report.findings.iter().map(|finding| result(finding, &codes)).collect();
    json!({
        "tool": { "driver": {
            "name": report.tool.name,
            "version": report.tool.version,
            "rules": rules,
        } },
        "automationDetails": { "id": format!("ddp-doctor/{}", report.job.id) },
        "invocations": [{ "executionSuccessful": true }],
        "results": results,
        "properties": {
            "job": report.job,
            "verdict": report.verdict,
            "evidence": report.evidence,
        },
    })
}

/// Fixed properties of a code. An unknown code, from a later version, is described by its finding.
fn rule(code: &str, report: &Report) -> Value {
    let finding = report.findings.iter().find(|finding| finding.code == code);
    let known = Code::find(code);
    let name = known.map(|it| it.name).or(finding.map(|it| it.name.as_str()));
    let severity = known.map(|it| it.severity).or(finding.map(|it| it.severity));
    let mut rule = json!({
        "id": code,
        "name": pascal(name.unwrap_or_default()),
        "shortDescription": { "text": sentence(&known.map_or_else(|| plain(code), |it| Page::new(it).summary())) },
        "defaultConfiguration": { "level": level(severity.unwrap_or(Severity::Error)) },
    });
    if let Some(code) = known.filter(|it| findings::detects(it.code)) {
        let page = Page::new(code);
        let meaning = page.meaning().join("\n\n");
        let mut help = meaning.clone();
        for (title, items) in explain::sections(page) {
            help += &format!("\n\n{title}:\n\n- {}", items.join("\n- "));
        }
        help.push('\n');
        rule["fullDescription"] = json!({ "text": meaning });
        rule["help"] = json!({ "text": help, "markdown": help });
    }
    rule
}

fn result(finding: &Finding, codes: &[&str]) -> Value {
    let root = |call: &&RankCall| finding.ranks.root.contains(&call.rank);
    let (roots, others): (Vec<&RankCall>, Vec<&RankCall>) = finding.per_rank.iter().partition(root);
    // Without a place of a root cause rank, the places of the others locate the finding.
    let (main, related) = if roots.iter().any(|call| call.place.is_some()) {
        (roots, others)
    } else {
        (others, roots)
    };
    let mut locations: Vec<Value> = Vec::new();
    for place in main.iter().filter_map(|call| call.place.as_ref()) {
        let location = location(place);
        if !locations.contains(&location) {
            locations.push(location);
        }
    }
    let related: Vec<Value> = related
        .iter()
        .filter_map(|call| {
            let mut location = location(call.place.as_ref()?);
            let op = call.op.as_deref().unwrap_or("no call");
            let text = format!("rank {}: {} {op}", call.rank, call.state);
            location["message"] = json!({ "text": message(&text) });
            Some(location)
        })
        .collect();
    let mut text = vec![message(finding.title())];
    text.extend(finding.reasons().iter().map(|why| message(why)));
    text.extend(finding.next.iter().map(|next| format!("Fix: {}", message(next))));
    let mut properties = Map::new();
    for (key, value) in [
        ("confidence", json!(finding.confidence)),
        ("effect", json!(finding.effect)),
        ("severity", json!(finding.severity)),
        ("role", json!(finding.role)),
        ("causedBy", json!(finding.caused_by)),
        ("cause", json!(finding.cause)),
        ("ranks", json!(finding.ranks)),
        ("group", json!(finding.group)),
        ("seq", json!(finding.seq)),
        ("op", json!(finding.op)),
    ] {
        properties.insert(key.into(), value);
    }
    // The same fault of a program has the same fingerprint in every run.
    let fingerprint = main
        .iter()
        .filter_map(|call| call.place.as_ref())
        .map(|place| format!("{}:{}", place.file, place.line))
        .fold(finding.code.clone(), |all, place| format!("{all} {place}"));
    json!({
        "ruleId": finding.code,
        "ruleIndex": codes.iter().position(|code| *code == finding.code),
        "level": level(finding.severity),
        "kind": "fail",
        "message": { "text": text.join("\n\n") },
        "locations": locations,
        "relatedLocations": related,
        "partialFingerprints": { "ddpDoctor/v1": format!("{:08x}", crc32fast::hash(fingerprint.as_bytes())) },
        "properties": properties,
    })
}

/// The location of a place. Names in angle brackets, such as Python's `<string>`, are not files.
fn location(place: &Where) -> Value {
    let logical = json!([{ "fullyQualifiedName": place.function, "kind": "function" }]);
    if place.file.is_empty() || place.file.starts_with('<') {
        let name = format!("{}:{}", place.file, place.function);
        return json!({ "logicalLocations": [{ "fullyQualifiedName": name }] });
    }
    let mut physical = json!({ "artifactLocation": { "uri": uri(&place.file) } });
    if place.line > 0 {
        physical["region"] = json!({ "startLine": place.line });
    }
    let mut location = json!({ "physicalLocation": physical });
    if !place.function.is_empty() {
        location["logicalLocations"] = logical;
    }
    location
}

/// A file as a URI reference (RFC 3986): a file URI if the path is absolute, otherwise relative.
fn uri(file: &str) -> String {
    let mut uri = String::new();
    let is_absolute = file.starts_with('/');
    if is_absolute {
        uri.push_str("file:///");
    }
    // Several slashes at the beginning would name a host.
    for byte in file.trim_start_matches('/').bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            uri.push(char::from(byte));
        } else {
            uri.push_str(&format!("%{byte:02X}"));
        }
    }
    uri
}

const fn level(severity: Severity) -> &'static str {
    match severity {
        Severity::Note => "note",
        Severity::Warning => "warning",
        Severity::Error | Severity::Critical => "error",
    }
}

/// Pascal case, as usual for rule names: "early-exit" → "EarlyExit".
fn pascal(name: &str) -> String {
    name.split('-').map(words::begin).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    fn written(reports: &[Report]) -> Value {
        let mut out = Vec::new();
        log(&mut out, reports).unwrap();
        serde_json::from_slice(&out).unwrap()
    }

    #[test]
    fn result_is_located_at_the_line_of_the_culprit() {
        let log = written(&[testing::report(), testing::report()]);
        assert_eq!(log["version"], "2.1.0");
        assert_eq!(log["runs"].as_array().map(Vec::len), Some(2));
        let run = &log["runs"][0];
        let rule = &run["tool"]["driver"]["rules"][0];
        assert_eq!((&rule["id"], &rule["name"]), (&json!("DD102"), &json!("EarlyExit")));
        let result = &run["results"][0];
        assert_eq!(result["ruleIndex"], 0);
        assert_eq!(result["level"], "error");
        let place = &result["locations"][0]["physicalLocation"];
        assert_eq!(place["artifactLocation"]["uri"], "train.py");
        assert_eq!(place["region"]["startLine"], 9);
        assert_eq!(result["relatedLocations"].as_array().map(Vec::len), Some(2));
    }

    #[test]
    fn hidden_characters_and_links_of_a_job_are_inert() {
        let log = written(&[testing::hostile_report()]);
        let text = log["runs"][0]["results"][0]["message"]["text"].as_str().unwrap();
        assert!(text.contains("\\[link\\](3)"), "{text}");
        let without_uris = |line: &&str| !line.trim_start().starts_with("\"uri\":");
        let lines: String = serde_json::to_string_pretty(&log["runs"])
            .unwrap()
            .lines()
            .filter(without_uris)
            .collect();
        testing::assert_inert(&lines);
    }

    #[test]
    fn file_names_become_valid_uris() {
        for (file, expected) in [
            ("train.py", "train.py"),
            ("/home/me/a b/ü#?.py", "file:///home/me/a%20b/%C3%BC%23%3F.py"),
            ("C:\\x", "C%3A%5Cx"),
            ("//evil.example/share/train.py", "file:///evil.example/share/train.py"),
        ] {
            assert_eq!(uri(file), expected);
        }
    }

    #[test]
    fn place_outside_a_file_has_no_line() {
        let at = |file: &str, line| Where {
            file: file.into(),
            line,
            function: "f".into(),
            ..Where::default()
        };
        assert_eq!(location(&at("<string>", 3)).get("physicalLocation"), None);
        let unknown = location(&at("x.py", 0));
        assert_eq!(unknown["physicalLocation"].get("region"), None, "lines begin with 1");
    }
}
