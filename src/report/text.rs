//! A diagnosis as text for a terminal.

use std::io;

use ddp_doctor_proto::report::{Finding, Severity};

/// How text looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    /// Whether colours may be used.
    pub color: bool,
}

impl Style {
    const fn paint(self, severity: Severity) -> (&'static str, &'static str) {
        match (self.color, severity) {
            (false, _) => ("", ""),
            (true, Severity::Note) => ("\x1b[1;36m", "\x1b[0m"),
            (true, Severity::Warning) => ("\x1b[1;33m", "\x1b[0m"),
            (true, Severity::Error | Severity::Critical) => ("\x1b[1;31m", "\x1b[0m"),
        }
    }
}

/// Writes one finding.
///
/// # Errors
///
/// When `out` cannot be written.
pub fn finding(out: &mut dyn io::Write, finding: &Finding, style: &Style) -> io::Result<()> {
    let (on, off) = style.paint(finding.severity);
    let Finding {
        code,
        name,
        severity,
        summary,
        confidence,
        ..
    } = finding;
    writeln!(
        out,
        "{on}{severity}[{code}]{off} {name}: {}",
        plain(summary)
    )?;
    if let Some(group) = &finding.group {
        writeln!(
            out,
            "    group {} ({}), {} ranks, {confidence}",
            plain(&group.name),
            plain(&group.description),
            group.ranks.len()
        )?;
    }
    for call in &finding.per_rank {
        let op = call.op.as_deref().unwrap_or("?");
        let place = call.place.as_ref().map_or_else(String::new, |place| {
            format!(
                "  {}:{} {}",
                plain(&place.file),
                place.line,
                plain(&place.function)
            )
        });
        let seq = call.seq.map_or_else(String::new, |seq| format!(" #{seq}"));
        writeln!(
            out,
            "    rank {:<4} {:<11} {}{seq}{place}",
            call.rank,
            call.state,
            plain(op)
        )?;
    }
    for (label, lines) in [("why", &finding.why), ("fix", &finding.next)] {
        for line in lines {
            writeln!(out, "    {label}    {}", plain(line))?;
        }
    }
    Ok(())
}

/// What comes from a rank may hold anything: a terminal gets no control characters from it.
#[must_use]
pub fn plain(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect()
}
