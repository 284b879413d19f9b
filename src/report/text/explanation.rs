//! Why a finding holds and what to do about it, within the lines that a finding may take.

use std::io::{self, Write};

use ddp_doctor_diagnosis::{findings, source::cause};
use ddp_doctor_proto::report::Finding;
use ddp_doctor_proto::words::certainty;

use super::{MIN_WIDTH, Style, WIDTH, plain, wrapped};

/// Width of the label and indentation of wrapped text.
const INDENT: usize = 11;

/// A line as far as the terminal shows it.
pub(super) fn shortened(line: &str, columns: Option<usize>) -> String {
    let Some(columns) = columns.map(|it| it.clamp(MIN_WIDTH, WIDTH)) else {
        return line.to_owned();
    };
    match line.char_indices().nth(columns) {
        Some(_) => line.chars().take(columns - 1).chain(['…']).collect(),
        None => line.to_owned(),
    }
}

/// Writes why a finding holds, and what to do about it, in at most `left` lines where its last reasons can be left out.
pub(super) fn explanation(
    out: &mut dyn Write,
    finding: &Finding,
    style: Style,
    left: usize,
) -> io::Result<()> {
    let lines = |text: &str| wrapped(&plain(text), style.width() - INDENT);
    let cause = finding.cause.and_then(|cause| {
        Some(format!("{} ({})", cause::sentence(cause)?, certainty(cause.confidence)))
    });
    // A newer coordinator may report codes that this version does not know.
    let more =
        findings::detects(&finding.code).then(|| format!("ddp-doctor explain {}", finding.code));
    let advice = finding.next.iter().map(|it| lines(it).len()).sum::<usize>();
    let rest = [&cause, &more].into_iter().flatten().map(|it| lines(it).len()).sum::<usize>();
    let mut left = left.saturating_sub(1 + advice + rest);

    writeln!(out)?;
    let reasons = finding.reasons();
    for (i, why) in reasons.iter().enumerate() {
        let needed = lines(why).len();
        let is_last = i + 1 == reasons.len();
        // A line remains for the number of those that are left out.
        if i > 0 && needed + usize::from(!is_last) > left {
            let omitted = reasons.len() - i;
            labeled(
                out,
                "",
                &format!(
                    "… {omitted} more reason{} in the JSON report",
                    if omitted == 1 { "" } else { "s" }
                ),
                style,
            )?;
            break;
        }
        left = left.saturating_sub(needed);
        labeled(out, if i == 0 { "why" } else { "" }, why, style)?;
    }
    if let Some(cause) = &cause {
        labeled(out, "cause", cause, style)?;
    }
    for (i, next) in finding.next.iter().enumerate() {
        labeled(out, if i == 0 { "fix" } else { "" }, next, style)?;
    }
    if let Some(more) = &more {
        labeled(out, "more", more, style)?;
    }
    Ok(())
}

fn labeled(out: &mut dyn Write, label: &str, text: &str, style: Style) -> io::Result<()> {
    let (on, off) = style.label();
    let mut label = label;
    for line in wrapped(&plain(text), style.width() - INDENT) {
        writeln!(out, "    {on}{label:<6}{off} {line}")?;
        label = "";
    }
    Ok(())
}
