//! What notes on gaps in the evidence state.

use std::sync::Arc;

/// The text of a note.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NoteText {
    /// What was noticed.
    pub what: Arc<str>,
    /// What to do about it, if that does not follow from the kind of the note.
    pub advice: Option<Arc<str>>,
}

impl NoteText {
    /// A note that states what to do.
    pub fn new(what: impl Into<Arc<str>>, advice: impl Into<Arc<str>>) -> Self {
        Self { what: what.into(), advice: Some(advice.into()) }
    }
}

impl From<Arc<str>> for NoteText {
    fn from(what: Arc<str>) -> Self {
        Self { what, advice: None }
    }
}

impl From<String> for NoteText {
    fn from(what: String) -> Self {
        Arc::<str>::from(what).into()
    }
}

impl From<&str> for NoteText {
    fn from(what: &str) -> Self {
        Arc::<str>::from(what).into()
    }
}
