//! How backends execute calls, and whether they record that a call is complete.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ddp_doctor_diagnosis::input::backends::{Backend, Completion};

use super::{Dump, Entry, State};

/// Whether calls of a backend are executed by threads of the host.
pub(super) fn is_on_host(backend: &str) -> bool {
    Backend::of_group(backend).completion == Completion::AtWait
}

/// Backends that never record that a call is complete: hooks record a call and retire it at once.
pub(in super::super) fn silent_backends(dump: &Dump, entries: &[Entry<'_>]) -> BTreeSet<Arc<str>> {
    // Kinds whose entries are all like this.
    let mut are_silent = vec![true; dump.kinds.len()];
    for entry in entries {
        are_silent[entry.index as usize] &= entry.retired && entry.state == State::Scheduled;
    }
    let kinds = dump.kinds.iter().zip(are_silent).filter(|it| dump.packed.numbers(it.0).count > 0);
    let mut backends: BTreeMap<&Arc<str>, bool> = BTreeMap::new();
    for (kind, is_silent) in kinds.filter(|it| !it.0.group.is_on_host) {
        *backends.entry(&kind.group.backend).or_insert(true) &= is_silent;
    }
    let silent = backends.into_iter().filter(|(_, is_silent)| *is_silent);
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
