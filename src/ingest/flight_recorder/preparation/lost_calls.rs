//! Calls that counters alone show: the first incomplete ones of ranks whose rings have lost them. Of
//! several groups, any may be the first.

use std::collections::BTreeMap;

use ddp_doctor_proto::{DType, Op};

use crate::flight_recorder::calls::{Calls, GroupAt, Groups, Unit};
use crate::flight_recorder::dump::{Dump, Entry, Kind};
use crate::flight_recorder::dumped_jobs::DumpedJob;

/// A call that a ring has lost.
struct Lost {
    group: GroupAt,
    /// Number in its group, beginning with 1.
    seq: u64,
    /// Kind of the first call of its group that the ring contains.
    later: Kind,
    /// Number of the call in its entry, if it had one.
    entry_seq: u64,
}

/// Adds these calls to the dumps of a job, before all others. Returns whether there are any.
pub(super) fn add(job: &mut DumpedJob, groups: &Groups) -> bool {
    let mut by_rank: BTreeMap<u32, Vec<Lost>> = BTreeMap::new();
    for (&rank, dump) in &mut job.ranks {
        if let Some(calls) = lost(rank, dump, groups) {
            dump.shows_waits = true;
            by_rank.insert(rank, calls);
        }
    }
    let calls = by_rank.values().flatten();
    let mut ops: BTreeMap<(GroupAt, u64), Op> =
        calls.map(|it| ((it.group, it.seq), Op::Unspecified)).collect();
    if ops.is_empty() {
        return false;
    }
    // Ranks that made the call have recorded its operation.
    for (&rank, dump) in &job.ranks {
        for entry in dump.entries().filter(|it| !it.is_message) {
            let group = groups.of_kind(rank, &entry);
            let place = group.map(|at| (at, groups.all[at].seq(&entry)));
            if let Some(op) = place.and_then(|place| ops.get_mut(&place)) {
                *op = entry.op;
            }
        }
    }
    for (rank, calls) in by_rank {
        if let Some(dump) = job.ranks.get_mut(&rank) {
            let first = dump.kinds.len();
            for call in &calls {
                let kind = call.kind(dump, ops[&(call.group, call.seq)]);
                dump.kinds.push(kind);
            }
            let added = dump.kinds[first..]
                .iter()
                .zip(&calls)
                .map(|(kind, it)| Entry::counted(kind, it.entry_seq, dump.period.0));
            dump.packed = added.chain(dump.entries()).collect();
        }
    }
    true
}

/// The calls of one rank; `None`: counters do not show the first incomplete one of each group.
fn lost(rank: u32, dump: &Dump, groups: &Groups) -> Option<Vec<Lost>> {
    // With messages in a group, its counters are those of whichever came last.
    let is_uncounted = |it: &Kind| it.is_message || it.group.is_on_host;
    let is_counted = !dump.status.is_empty() && !dump.kinds.iter().any(is_uncounted);
    if dump.is_whole || dump.is_partial() || !is_counted {
        return None;
    }
    let calls = Calls::new(rank, dump, groups);
    let mut first_of: BTreeMap<i64, (&Unit, &Entry<'_>)> = BTreeMap::new();
    for unit in &calls.units {
        let entry = calls.entry(unit);
        first_of.entry(entry.pg).or_insert((unit, entry));
    }
    let mut lost = Vec::new();
    for (id, status) in &dump.status {
        let Some(&(first, later)) = first_of.get(id) else {
            // Of a group without entries, no call may be incomplete.
            (status.enqueued == status.completed).then_some(())?;
            continue;
        };
        let by = later.seq.saturating_sub(status.completed? + 1);
        if !first.is_complete && by > 0 {
            lost.push(Lost {
                group: first.group,
                seq: first.seq - by,
                later: later.kind.clone(),
                entry_seq: later.seq - by,
            });
        }
    }
    Some(lost)
}

impl Lost {
    /// The kind of the call in a dump: nothing but its group, its thread and perhaps its operation is known.
    fn kind(&self, dump: &Dump, op: Op) -> Kind {
        Kind {
            index: dump.kinds.len() as u32,
            op,
            dtype: DType::Unspecified,
            numel: None,
            shape: None,
            tensors: 1,
            pieces: None,
            exchanged: None,
            place: None,
            ends_group: false,
            ends: None,
            ..self.later.clone()
        }
    }
}
