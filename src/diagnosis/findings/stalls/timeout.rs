//! When the calls of a group time out.

use std::time::Duration;

use crate::model::Group;
use crate::words;

/// The shortest timeout among the waiting ranks, or the default of the backend; also in words: "30 min
/// (the default of its backend)".
pub(crate) fn limit(group: &Group, waiting: &[u32]) -> (Duration, String) {
    let configured = waiting.iter().filter_map(|rank| group.members.get(rank)?.timeout).min();
    let length = configured.unwrap_or(group.backend.default_timeout);
    let source = if configured.is_none() { " (the default of its backend)" } else { "" };
    (length, format!("{}{source}", words::seconds(length)))
}
