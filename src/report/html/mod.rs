//! The report as one HTML file that needs no network: the diagnosis, the timeline of the ranks, the
//! graph of waits, memory and stacks.
//!
//! The page is built in the browser from one block of JSON (`data.rs`); the other files of this folder
//! are the page. Its content security policy admits only the compiled-in script, by its hash, and no
//! external resource: text from ranks cannot run as code.

use std::io::{self, Write};

use ddp_doctor_host::source_files::SourceFolders;
use ddp_doctor_proto::report::Report;
use serde::Serialize;
use serde_json::ser::{CharEscape, Formatter};

use super::timeline::Timeline;

mod data;
mod shares;

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("style.css");
/// The script of the page, in the order of its parts.
const SCRIPT: [&str; 10] = [
    include_str!("base.js"),
    include_str!("answer.js"),
    include_str!("lanes.js"),
    include_str!("timeline.js"),
    include_str!("shares.js"),
    include_str!("graph.js"),
    include_str!("ranks.js"),
    include_str!("memory.js"),
    include_str!("devices.js"),
    include_str!("main.js"),
];
/// SHA-256 of the script in base64. A test updates it with `UPDATE_DOCS=1`.
const SCRIPT_HASH: &str = include_str!("script.sha256");

/// Writes one page about all jobs. Source lines of each job are read below its folders.
///
/// # Errors
///
/// Fails if `out` cannot be written.
pub fn page(
    out: &mut dyn Write,
    jobs: &[(&Report, &Timeline)],
    folders: &[SourceFolders],
) -> io::Result<()> {
    let titles = jobs.iter().map(|(report, _)| {
        let verdict = report.verdict;
        format!("{verdict}: job {}", report.job.id)
    });
    let title: Vec<String> = titles.collect();
    let mut rest = PAGE;
    while let Some((before, after)) = rest.split_once("{{") {
        let (name, after) = after.split_once("}}").unwrap_or_default();
        out.write_all(before.as_bytes())?;
        match name {
            "title" => out.write_all(escaped(&title.join(", ")).as_bytes())?,
            "hash" => out.write_all(SCRIPT_HASH.trim().as_bytes())?,
            "style" => out.write_all(STYLE.as_bytes())?,
            "data" => write_inert(out, &data::page(jobs, folders))?,
            "script" => SCRIPT.iter().try_for_each(|part| out.write_all(part.as_bytes()))?,
            _ => {}
        }
        rest = after;
    }
    out.write_all(rest.as_bytes())
}

/// Writes JSON whose strings have no control characters and none that HTML interprets.
///
/// # Errors
///
/// Fails if `out` cannot be written.
pub(super) fn write_inert(out: &mut dyn Write, value: &impl Serialize) -> io::Result<()> {
    let mut serializer = serde_json::Serializer::with_formatter(&mut *out, InertFormatter);
    value.serialize(&mut serializer).map_err(io::Error::from)
}

/// Formatter for [`write_inert`].
struct InertFormatter;

impl Formatter for InertFormatter {
    fn write_string_fragment<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        let fragment = super::text::plain(fragment);
        let mut rest = fragment.as_str();
        while let Some(at) = rest.find(['<', '>', '&']) {
            let (before, after) = rest.split_at(at);
            writer.write_all(before.as_bytes())?;
            let mut letters = after.chars();
            let code = letters.next().map_or(0, u32::from);
            write!(writer, "\\u{code:04x}")?;
            rest = letters.as_str();
        }
        writer.write_all(rest.as_bytes())
    }

    fn write_char_escape<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        escape: CharEscape,
    ) -> io::Result<()> {
        writer.write_all(match escape {
            CharEscape::Quote => b"\\\"",
            CharEscape::ReverseSolidus => b"\\\\",
            CharEscape::Solidus => b"/",
            _ => b"\\ufffd",
        })
    }
}

/// Escapes text for HTML.
fn escaped(text: &str) -> String {
    let text = super::text::plain(text);
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use ddp_doctor_proto::report::Timestamp;
    use serde_json::Value;

    use super::*;
    use crate::testing::{self, MARKUP};

    fn written(report: &Report, timeline: &Timeline) -> String {
        let mut out = Vec::new();
        page(&mut out, &[(report, timeline)], &[SourceFolders::default()]).unwrap();
        String::from_utf8(out).unwrap()
    }

    fn data_of(page: &str) -> Value {
        let (_, rest) = page.split_once("id=\"data\">").unwrap();
        serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
    }

    #[test]
    fn page_has_the_finding_the_calls_and_the_waits() {
        let page = written(&testing::report(), &testing::timeline());
        assert!(page.contains("<title>hang: job j-1</title>"));
        let data = data_of(&page);
        let job = &data["jobs"][0];
        assert_eq!(job["verdict"], "hang");
        // Microseconds since 1 s.
        assert_eq!((&job["base"], &job["until"]), (&1_000_000.into(), &9_000_000.into()));
        let finding = &job["findings"][0];
        assert_eq!(finding["root"], serde_json::json!([1]));
        assert_eq!(finding["sides"][0]["ranks"], "0, 2");
        assert_eq!(finding["excerpts"][0]["place"], "train.py:9");
        let track = &job["tracks"][0];
        // The second call is issued 800 ms after the first, returns after 1 ms and is waited for.
        let calls = serde_json::json!([
            [0, 22, 7, 7_000_000, 1000, 1000, 200_000, -1, 0],
            [0, 23, 8, 800_000, 1000, 1000, -1, -1, 0],
        ]);
        assert_eq!(track["calls"], calls);
        assert_eq!(job["kinds"][0]["call"], "all_reduce float32[4680]");
        assert_eq!(job["tracks"][1]["ended"], serde_json::json!([7_700_000, "ended, status 0"]));
        let node = &job["waits"][0];
        assert_eq!((&node["text"], &node["needs"]), (&"0, 2".into(), &serde_json::json!([1])));
    }

    #[test]
    fn text_of_ranks_is_escaped_everywhere() {
        let mut report = testing::report();
        report.job.id = MARKUP.into();
        let finding = &mut report.findings[0];
        finding.summary = format!("{MARKUP} \u{2028} \u{202e} \x1b[2J");
        finding.group.as_mut().unwrap().name = MARKUP.into();
        finding.per_rank[0].place.as_mut().unwrap().file = MARKUP.into();
        report.ranks[0].host = format!("{{{{script}}}}{MARKUP}");
        let page = written(&report, &testing::timeline());
        assert_eq!(page.matches("<img").count(), 0);
        assert_eq!(page.matches("</script>").count(), 2, "data and script");
        assert!(page.contains("&lt;/script&gt;&lt;img"), "title");
        let data = data_of(&page);
        let job = &data["jobs"][0];
        let summary = job["findings"][0]["summary"].as_str().unwrap();
        assert_eq!(summary, format!("{MARKUP} \u{fffd} \u{fffd} \u{fffd}[2J"));
        assert_eq!(job["ranks"][0]["host"], format!("{{{{script}}}}{MARKUP}"));
    }

    #[test]
    fn hidden_characters_and_links_of_a_job_are_inert() {
        let page = written(&testing::hostile_report(), &testing::timeline());
        testing::assert_inert(&data_of(&page)["jobs"].to_string());
        let (title, _) = page.split_once("<title>").unwrap().1.split_once("</title>").unwrap();
        testing::assert_inert(title);
    }

    #[test]
    fn page_is_self_contained() {
        let page = written(&testing::report(), &testing::timeline());
        for outside in [" src=", "@import", "url(http", "fetch(", "<link", "innerHTML"] {
            assert!(!page.contains(outside), "{outside}");
        }
        assert!(page.contains("default-src 'none'"));
    }

    #[test]
    fn large_job_keeps_the_latest_calls_within_bounds() {
        let mut timeline = testing::timeline();
        let track = timeline.tracks[0].clone();
        timeline.tracks = (0..1024).map(|_| track.clone()).collect();
        for track in &mut timeline.tracks {
            let call = track.calls[0].clone();
            track.calls = vec![call; 200];
            track.calls[0].wait = Some((Timestamp(1), None));
        }
        let page = written(&testing::report(), &timeline);
        let track = &data_of(&page)["jobs"][0]["tracks"][7];
        // 120 000 / 1024, and the oldest, which has not ended.
        assert_eq!(track["calls"].as_array().map(Vec::len), Some(117 + 1));
        assert_eq!(track["omitted"], 82);
        assert!(page.len() < 8 << 20, "{} bytes", page.len());
    }

    /// SHA-256 of a text in base64, by the program `sha256sum`.
    fn sha256(text: &str) -> String {
        let mut child =
            Command::new("sha256sum").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let hex = String::from_utf8(output.stdout).unwrap();
        let byte = |at: usize| u32::from_str_radix(&hex[at..at + 2], 16).unwrap();
        let mut bytes: Vec<u32> = (0..32).map(|at| byte(at * 2)).collect();
        bytes.push(0);
        let digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let mut text = String::new();
        for part in bytes.chunks(3) {
            let bits = part[0] << 16 | part[1] << 8 | part[2];
            for shift in [18, 12, 6, 0] {
                text.push(char::from(digits[(bits >> shift & 63) as usize]));
            }
        }
        text.pop();
        text + "="
    }

    #[test]
    fn policy_admits_the_script_of_the_page() {
        let script = SCRIPT.concat();
        let hash = sha256(&script);
        if hash != SCRIPT_HASH.trim() && std::env::var_os("UPDATE_DOCS").is_some() {
            let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/html");
            std::fs::write(format!("{folder}/script.sha256"), format!("{hash}\n")).unwrap();
            return;
        }
        assert_eq!(hash, SCRIPT_HASH.trim(), "run the test with UPDATE_DOCS=1");
        let page = written(&testing::report(), &testing::timeline());
        assert!(page.contains(&format!("<script>{script}</script>")));
        assert!(page.contains(&format!("script-src 'sha256-{hash}'")));
    }
}
