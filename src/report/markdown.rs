//! The report as Markdown, for an issue or a chat.

use std::io::{self, Write};

use ddp_doctor_diagnosis::source::cause;
use ddp_doctor_host::source_files::{SourceFolders, SourceLines};
use ddp_doctor_proto::report::{Finding, Report, Role};
use ddp_doctor_proto::words::certainty;

use super::text::{RankTable, about, context, plain, rows};

/// Writes a whole report. Source lines are read below `folders`.
///
/// # Errors
///
/// Fails if `out` cannot be written.
pub fn report(out: &mut dyn Write, report: &Report, folders: &SourceFolders) -> io::Result<()> {
    let title = format!("{}: job {}", report.verdict, report.job.id);
    writeln!(out, "# {}\n", escaped(&title))?;
    writeln!(out, "{}", escaped(&about(report)))?;
    if report.findings.is_empty() {
        writeln!(out, "\nNo problems found.")?;
    }
    let ranks = RankTable::new(&report.ranks);
    let mut sources = SourceLines::below(folders);
    for finding in &report.findings {
        one(out, finding, &ranks, &mut sources)?;
    }
    let tool = &report.tool;
    writeln!(out, "\n<sub>{} {}</sub>", escaped(&tool.name), escaped(&tool.version))
}

fn one(
    out: &mut dyn Write,
    finding: &Finding,
    ranks: &RankTable<'_>,
    sources: &mut SourceLines,
) -> io::Result<()> {
    let [name, title] = [finding.name.as_str(), finding.title()].map(escaped);
    writeln!(out, "\n## {} {name}: {title}\n", finding.code)?;
    let role = match finding.role {
        Role::Initiating => "",
        Role::Cascade => ", a consequence",
    };
    writeln!(out, "**{}**{role} · {}", finding.severity, escaped(&context(finding, true)))?;
    let rows = rows(finding, ranks, sources);
    if !rows.is_empty() {
        writeln!(out, "\n| rank | state | line | | call |")?;
        writeln!(out, "|---|---|---|---|---|")?;
        for [who, state, place, source, call] in rows {
            let who = match who.strip_prefix('▸') {
                Some(who) => format!("**{}**", escaped(who.trim())),
                None => escaped(who.trim()),
            };
            writeln!(
                out,
                "| {who} | {} | {} | {} | {} |",
                escaped(&state),
                escaped(&place),
                code(&source),
                escaped(&call)
            )?;
        }
    }
    for why in finding.reasons() {
        writeln!(out, "\n{}", escaped(&why))?;
    }
    let cause = finding.cause.and_then(|cause| Some((cause, cause::sentence(cause)?)));
    if let Some((cause, sentence)) = cause {
        writeln!(out, "\n**Cause** ({}): {}", certainty(cause.confidence), escaped(sentence))?;
    }
    if !finding.next.is_empty() {
        writeln!(out, "\n**Fix**\n")?;
        for next in &finding.next {
            writeln!(out, "- {}", escaped(next))?;
        }
    }
    Ok(())
}

/// Escapes text: text from a job must not act as markup.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::new();
    let text = plain(text);
    let mut letters = text.chars().peekable();
    while let Some(c) = letters.next() {
        let in_word = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
        match c {
            // Not markup inside a word.
            '_' if in_word(out.chars().next_back()) && in_word(letters.peek().copied()) => {
                out.push(c);
            }
            '\\' | '`' | '*' | '_' | '[' | ']' | '<' | '>' | '|' | '~' | '&' => {
                out.push('\\');
                out.push(c);
            }
            // An issue would link `#24` and `@name`: a word joiner prevents that.
            '#' | '@' => {
                out.push(c);
                out.push('\u{2060}');
            }
            c => out.push(c),
        }
    }
    out
}

/// A source line as code, with as many backquotes as necessary.
fn code(source: &str) -> String {
    if source.is_empty() {
        return String::new();
    }
    let longest = source.split(|c| c != '`').map(str::len).max().unwrap_or_default();
    let fence = "`".repeat(longest + 1);
    // A bar ends a table cell even in code.
    format!("{fence} {} {fence}", source.replace('|', "\\|"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    fn written(it: &Report) -> String {
        let mut out = Vec::new();
        report(&mut out, it, &SourceFolders::default()).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn report_is_formatted_as_a_page() {
        let template = "\
# hang: job j-1

3 ranks on 1 node · gloo · began 1970-01-01T00:00:01.000Z, ended after 9.0 s · 12 records

## DD102 early-exit: rank 1 has ended; ranks 0 and 2 wait for it in all_reduce #\u{2060}23

**error** · default group, 3 ranks · step 8 · fault: proved · rank at fault: proved

| rank | state | line | | call |
|---|---|---|---|---|
| rank 0, 2 | waiting 1.2 s | train.py:9 |  | all_reduce #\u{2060}23 float32\\[4680\\] |
| **rank 1** | ended, status 0 | train.py:9 |  | last call all_reduce #\u{2060}22, step 7 |

all_reduce #\u{2060}23 needs all three ranks.

**Cause** (likely): uneven inputs: the ranks have different numbers of batches

**Fix**

- Give every rank the same number of batches.

<sub>ddp-doctor VERSION</sub>
";
        let expected = template.replace("VERSION", ddp_doctor_proto::VERSION);
        assert_eq!(written(&testing::report()), expected);
    }

    #[test]
    fn text_of_a_job_is_escaped() {
        let mut report = testing::report();
        report.job.id = "<img src=x> @everyone\n# no".into();
        report.findings[0].summary = "a | b `c` [d](e) \x1b[31m".into();
        let text = written(&report);
        assert!(text.contains("\\<img src=x\\> @\u{2060}everyone"), "{text}");
        assert!(text.contains("a \\| b \\`c\\` \\[d\\](e)"), "{text}");
        assert!(!text.contains('\x1b') && !text.contains("\n# no"), "{text}");
    }

    #[test]
    fn hidden_characters_and_links_of_a_job_are_inert() {
        testing::assert_inert(&written(&testing::hostile_report()));
    }

    #[test]
    fn source_is_formatted_as_code() {
        assert_eq!(code("x | `y`"), "`` x \\| `y` ``");
        assert_eq!(code(""), "");
    }
}
