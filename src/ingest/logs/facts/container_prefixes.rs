//! Prefixes of lines that name the container which wrote them.

use std::collections::BTreeMap;

use super::traceback;
use crate::ingest::logs::lines::{BEFORE, Name};
use crate::ingest::logs::scan;

/// Maximum number of prefixes of lines that may be those of containers.
const MAX_CONTAINERS: usize = 4096;

/// Prefixes of lines, some of which may be those of containers: all lines of a traceback have them.
#[derive(Debug, Default)]
pub(super) struct Prefixes(BTreeMap<String, Option<Name>>);

impl Prefixes {
    /// Takes the text of a line. A prefix is that of a container once a frame of the traceback has it as well.
    pub(super) fn read(&mut self, text: &str) {
        const FRAME: &str = "  File \"";
        if traceback::is_message(text) {
            let prefix = &text[..text.len() - traceback::BEGIN.len()];
            if prefix.len() <= BEFORE && self.0.len() < MAX_CONTAINERS {
                self.0.entry(prefix.to_owned()).or_default();
            }
        } else if !self.0.is_empty()
            && let Some((prefix, _)) = scan::split(text, FRAME)
            && let Some(name) = self.0.get_mut(prefix)
        {
            *name = Name::of_container(prefix);
        }
    }

    /// The prefixes of containers.
    pub(super) fn containers(self) -> BTreeMap<String, Name> {
        let known = self.0.into_iter();
        known.filter_map(|(prefix, name)| Some((prefix, name?))).collect()
    }
}
