//! Lines of a check, and the parts of their sentences.

use serde::{Deserialize, Serialize};

/// How a line affects the job, from the least to the gravest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Level {
    /// As it should be.
    Pass,
    /// Worth knowing.
    Info,
    /// The job may fail or be slow.
    Warning,
    /// It could not be examined.
    Unknown,
    /// The job will fail or hang.
    Critical,
}

impl Level {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pass => "PASS",
            Self::Info => "INFO",
            Self::Warning => "WARNING",
            Self::Unknown => "UNKNOWN",
            Self::Critical => "CRITICAL",
        }
    }
}

/// One result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// How it affects the job.
    pub level: Level,
    /// What was checked.
    pub check: String,
    /// Names of the nodes that it is about; empty: the launch.
    pub nodes: Vec<String>,
    /// What was found, and why that matters.
    pub reason: String,
    /// What to do.
    pub fix: Option<String>,
}

impl Line {
    pub(super) fn new(level: Level, check: &str, reason: impl Into<String>) -> Self {
        Self { level, check: check.into(), nodes: Vec::new(), reason: reason.into(), fix: None }
    }

    pub(super) fn pass(check: &str, reason: impl Into<String>) -> Self {
        Self::new(Level::Pass, check, reason)
    }

    pub(super) fn info(check: &str, reason: impl Into<String>) -> Self {
        Self::new(Level::Info, check, reason)
    }

    pub(super) fn warning(check: &str, reason: impl Into<String>) -> Self {
        Self::new(Level::Warning, check, reason)
    }

    pub(super) fn unknown(check: &str, reason: impl Into<String>) -> Self {
        Self::new(Level::Unknown, check, reason)
    }

    pub(super) fn critical(check: &str, reason: impl Into<String>) -> Self {
        Self::new(Level::Critical, check, reason)
    }

    pub(super) fn fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = Some(fix.into());
        self
    }

    pub(super) fn at(mut self, node: impl Into<String>) -> Self {
        self.nodes.push(node.into());
        self
    }
}

/// A size in bytes for users.
pub(super) fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if value >= 10.0 || unit == 0 {
        format!("{value:.0} {}", UNITS[unit])
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

/// A list of names for users, of limited length.
pub(super) fn list<T: AsRef<str>>(names: &[T]) -> String {
    const MAX: usize = 8;
    let first: Vec<&str> = names.iter().take(MAX).map(AsRef::as_ref).collect();
    let shown = first.join(", ");
    match names.len().saturating_sub(MAX) {
        0 => shown,
        more => format!("{shown} and {more} others"),
    }
}
