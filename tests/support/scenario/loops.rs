//! Loops in the timeline of a scenario.

/// The lines with their 1-based numbers, without blank lines and comments, and with loops unrolled.
pub(super) fn unrolled(text: &str) -> Result<Vec<(usize, String)>, String> {
    let mut lines = Vec::new();
    let mut round: Option<(Loop, Vec<(usize, &str)>)> = None;
    for (i, line) in text.lines().enumerate() {
        let line = line.trim();
        match (&mut round, line) {
            (_, line) if line.is_empty() || line.starts_with('#') => {}
            (None, line) if line.starts_with("loop ") => {
                let parsed = Loop::parse(line).ok_or(format!("event line {}: {line}", i + 1))?;
                round = Some((parsed, Vec::new()));
            }
            (Some((repeat, body)), "end") => {
                lines.extend(repeat.unrolled(body)?);
                round = None;
            }
            (Some((_, body)), line) => body.push((i + 1, line)),
            (None, line) => lines.push((i + 1, line.to_owned())),
        }
    }
    match round {
        Some(_) => Err("a loop has no end".into()),
        None => Ok(lines),
    }
}

/// A line `loop FIRST-LAST from SECONDS every SECONDS`.
struct Loop {
    first: u64,
    last: u64,
    from: f64,
    every: f64,
}

impl Loop {
    fn parse(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let ["loop", range, "from", from, "every", every] = words[..] else {
            return None;
        };
        let (first, last) = range.split_once('-')?;
        Some(Self {
            first: first.parse().ok()?,
            last: last.parse().ok()?,
            from: from.parse().ok()?,
            every: every.parse().ok()?,
        })
    }

    fn unrolled(&self, body: &[(usize, &str)]) -> Result<Vec<(usize, String)>, String> {
        let mut lines = Vec::new();
        for (round, number) in (self.first..=self.last).enumerate() {
            for (i, line) in body {
                let (at, rest) = line.split_once(' ').ok_or(format!("event line {i}: {line}"))?;
                let offset: f64 = at.parse().ok().ok_or(format!("event line {i}: no time"))?;
                let at = self.from + self.every * round as f64 + offset;
                let rest = rest
                    .replace("$*2-1", &(number * 2 - 1).to_string())
                    .replace("$*2", &(number * 2).to_string())
                    .replace("$+1", &(number + 1).to_string())
                    .replace("$-1", &number.saturating_sub(1).to_string())
                    .replace('$', &number.to_string());
                lines.push((*i, format!("{at:.6} {rest}")));
            }
        }
        Ok(lines)
    }
}
