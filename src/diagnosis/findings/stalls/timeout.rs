//! When the calls of a group time out.

use std::time::Duration;

use crate::model::Group;
use crate::words;

/// The shortest timeout among the waiting ranks, or the default of the backend; also in words: "30 min
/// (the default of its backend)".
pub(crate) fn limit(group: &Group, waiting: &[u32]) -> (Duration, String) {
    let length = group.timeout(waiting);
    let is_default = group.configured_timeout(waiting).is_none();
    let source = if is_default { " (the default of its backend)" } else { "" };
    (length, format!("{}{source}", words::seconds(length)))
}
