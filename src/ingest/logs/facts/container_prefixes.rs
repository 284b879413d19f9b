//! Prefixes of lines that name the container which wrote them.

use std::collections::BTreeMap;

use super::{failed_call, traceback};
use crate::logs::lines::{BEFORE, Name, named_stamp};
use crate::logs::scan;

/// Maximum number of prefixes of lines that may be those of containers.
const MAX_CONTAINERS: usize = 4096;

/// Prefixes of lines, some of which may be those of containers: all lines of a traceback have them.
#[derive(Debug, Default)]
pub(super) struct Prefixes(BTreeMap<String, Option<Name>>);

impl Prefixes {
    /// Takes the text of a line. A prefix is that of a container once a frame of the traceback has it as well.
    pub(super) fn read(&mut self, text: &str) {
        const FRAME: &str = "  File \"";
        if let Some((prefix, name)) = of_compose(text).filter(|_| self.0.len() < MAX_CONTAINERS) {
            self.0.entry(prefix.to_owned()).or_insert(Some(name));
        } else if let Some((prefix, name)) =
            of_stack(text).filter(|_| self.0.len() < MAX_CONTAINERS)
        {
            self.0.insert(prefix.to_owned(), Some(name));
        } else if traceback::is_message(text) {
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

/// The prefix in "sgl-a  | [2026-01-31 12:00:00 TP3] text" of Docker Compose: an engine's label follows it.
fn of_compose(text: &str) -> Option<(&str, Name)> {
    let at = scan::split(text, " | [20").map(|(prefix, _)| prefix.len() + " | ".len())?;
    let (prefix, rest) = text.split_at_checked(at).filter(|_| at <= BEFORE)?;
    let is_word = !prefix.trim_end_matches([' ', '|']).contains(' ');
    named_stamp(rest).filter(|_| is_word)?;
    Some((prefix, Name::of_container(prefix)?))
}

/// The prefix in "worker-1: #6 step from /a/train.py:118", a frame of a stack behind the host that pdsh puts in front.
fn of_stack(text: &str) -> Option<(&str, Name)> {
    const END: &str = ": #";
    let (host, _) = scan::split(text, END).filter(|(host, _)| host.len() <= BEFORE)?;
    let (prefix, frame) = text.split_at_checked(host.len() + END.len() - 1)?;
    failed_call::frame(frame).filter(|_| !host.contains(' '))?;
    Some((prefix, Name::of_container(prefix)?))
}
