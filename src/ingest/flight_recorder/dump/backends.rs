//! How backends execute calls, and whether they record that a call is complete.

use std::collections::BTreeSet;
use std::sync::Arc;

use ddp_doctor_diagnosis::input::backends::{Backend, Completion};

use super::{Dump, State};

/// Whether calls of a backend are executed by threads of the host.
pub(in super::super) fn is_on_host(backend: &str) -> bool {
    Backend::of_group(backend).completion == Completion::AtWait
}

/// Backends that never record that a call is complete: hooks record a call and retire it at once.
pub(in super::super) fn silent_backends(dump: &Dump) -> BTreeSet<Arc<str>> {
    let mut backends: Vec<(&Arc<str>, bool)> = Vec::new();
    for entry in &dump.entries {
        let backend = &entry.group.backend;
        let is_silent = entry.retired && entry.state == State::Scheduled;
        // Equal names of a dump are one.
        match backends.iter_mut().find(|(it, _)| Arc::ptr_eq(it, backend)) {
            Some((_, all)) => *all &= is_silent,
            None => backends.push((backend, is_silent)),
        }
    }
    let silent = backends.into_iter().filter(|(it, all)| *all && !is_on_host(it));
    silent.map(|(it, _)| Arc::clone(it)).collect()
}

/// Whether calls of both dumps are of one backend.
pub(in super::super) fn have_one_backend(one: &Dump, other: &Dump) -> bool {
    let backends = |dump: &Dump| -> BTreeSet<String> {
        let kinds = dump.kinds.iter();
        kinds.map(|it| it.group.backend.to_string()).collect()
    };
    !backends(one).is_disjoint(&backends(other))
}
