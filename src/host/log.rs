//! Lines for the user.

use std::sync::Arc;

/// Prints lines for the user, from any thread.
#[derive(Clone)]
pub struct UserLog(Arc<dyn Fn(&str) + Send + Sync>);

impl UserLog {
    /// Passes every line to a function.
    pub fn new(to: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self(Arc::new(to))
    }

    /// Discards every line.
    #[must_use]
    pub fn discard() -> Self {
        Self::new(|_| {})
    }

    /// Prints a line.
    pub fn print(&self, line: &str) {
        (self.0)(line);
    }
}

impl std::fmt::Debug for UserLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("UserLog")
    }
}
