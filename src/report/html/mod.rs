//! The report as one HTML file that needs no network: the diagnosis, the timeline of the ranks, the
//! graph of waits, memory and stacks.
//!
//! The page is built in the browser from one block of JSON. `data.rs` is that block; the other files
//! of this folder are the page. Its content security policy admits only the script that is compiled
//! in, by its hash, and nothing from outside: text from ranks cannot run, even if it were misplaced.

use std::io::{self, Write};

use ddp_doctor_proto::report::Report;
use serde::Serialize;
use serde_json::ser::{CharEscape, Formatter};

use super::timeline::Timeline;

mod data;

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("style.css");
/// The script of the page, in the order of its parts.
const SCRIPT: [&str; 8] = [
    include_str!("base.js"),
    include_str!("answer.js"),
    include_str!("lanes.js"),
    include_str!("timeline.js"),
    include_str!("graph.js"),
    include_str!("ranks.js"),
    include_str!("memory.js"),
    include_str!("main.js"),
];
/// SHA-256 of the script in base64. A test updates it with `UPDATE_DOCS=1`.
const SCRIPT_HASH: &str = include_str!("script.sha256");

/// Writes one page about all jobs.
///
/// # Errors
///
/// Fails if `out` cannot be written.
pub fn page(out: &mut dyn Write, jobs: &[(&Report, &Timeline)]) -> io::Result<()> {
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
            "data" => write_inert(out, &data::page(jobs))?,
            "script" => SCRIPT
                .iter()
                .try_for_each(|part| out.write_all(part.as_bytes()))?,
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
    let mut serializer = serde_json::Serializer::with_formatter(&mut *out, Inert);
    value.serialize(&mut serializer).map_err(io::Error::from)
}

/// Formats strings as [`write_inert`] promises.
struct Inert;

impl Formatter for Inert {
    fn write_string_fragment<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        let fragment = super::text::plain(fragment);
        let mut rest = fragment.as_str();
        while let Some(at) = rest.find(['<', '>', '&', '\u{2028}', '\u{2029}']) {
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
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
