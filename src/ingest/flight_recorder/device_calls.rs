//! Which collectives a device has completed, according to one dump of its process that was just requested.

use std::collections::BTreeMap;
use std::sync::Arc;

use ddp_doctor_diagnosis::input::backends::Backend;
use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_proto::{Op, v1};

use super::dump::{Dump, Entry, State, silent_backends};
use super::dump_files;

/// Maximum number of incomplete collectives of a group that are stated.
const MAX_INCOMPLETE: usize = 1024;

/// The entries of one collective: several if it is a coalesced group.
#[derive(Clone, Copy)]
struct Shown {
    op: Op,
    state: State,
    completed: u64,
}

/// What a dump shows of the collectives of a process over a device. `None`: it cannot be read as a whole, so an
/// incomplete call may be missing in it.
#[must_use]
pub fn device_calls(process: u64, contents: Vec<u8>, asked: Timestamp) -> Option<v1::DeviceCalls> {
    let dump = dump_files::of_one(contents).filter(|it| !it.is_partial())?;
    let entries: Vec<Entry<'_>> = dump.entries().collect();
    let silent = silent_backends(&dump, &entries);
    let mut groups: BTreeMap<&Arc<str>, BTreeMap<u64, Shown>> = BTreeMap::new();
    let is_shown = |it: &&Entry<'_>| {
        let backend = &it.group.backend;
        !it.is_message && Backend::of_group(backend).is_on_device() && !silent.contains(backend)
    };
    for entry in entries.iter().filter(is_shown) {
        let of_group = groups.entry(&entry.group.name).or_default();
        let new = Shown { op: entry.op, state: entry.state, completed: entry.completed };
        of_group.entry(entry.seq).and_modify(|it| it.join(entry)).or_insert(new);
    }
    Some(v1::DeviceCalls {
        process,
        asked_unix_ns: asked.0,
        records_starts: records_starts(&dump),
        groups: groups.into_iter().filter_map(|(name, calls)| group(name, &calls)).collect(),
    })
}

impl Shown {
    /// Adds a further entry of the collective. The one that ends a coalesced group has its state; without one, all
    /// entries have to be complete.
    fn join(&mut self, entry: &Entry<'_>) {
        self.op = Op::Unspecified;
        if entry.ends_group || self.state == State::Completed {
            (self.state, self.completed) = (entry.state, entry.completed);
        }
    }
}

/// Whether a process records when its device begins a call.
fn records_starts(dump: &Dump) -> bool {
    dump.status.values().any(|it| it.started.is_some())
        || dump.entries().any(|it| it.state == State::Started)
}

/// What is stated of a group; `None`: earlier calls than the dump shows may be incomplete.
fn group(name: &Arc<str>, calls: &BTreeMap<u64, Shown>) -> Option<v1::DeviceGroup> {
    let ((&first, oldest), (&last, latest)) = (calls.first_key_value()?, calls.last_key_value()?);
    let open = calls.iter().filter(|(_, it)| it.state != State::Completed);
    let incomplete: Vec<v1::DeviceCall> = open
        .map(|(&seq, it)| v1::DeviceCall {
            seq,
            op: number(it.op),
            has_started: it.state == State::Started,
        })
        .collect();
    let shows_first = first == 1 || oldest.state == State::Completed;
    let is_dense = last - first + 1 == calls.len() as u64;
    if !shows_first || !is_dense || incomplete.len() > MAX_INCOMPLETE {
        return None;
    }
    Some(v1::DeviceGroup {
        name: name.to_string(),
        first,
        last,
        last_op: number(latest.op),
        completed_unix_ns: calls.values().map(|it| it.completed).max().unwrap_or(0),
        incomplete,
    })
}

fn number(op: Op) -> i32 {
    i32::from(op.number())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn entry(seq: u64, name: &str, state: &str) -> Value {
        json!({
            "record_id": seq, "pg_id": 0, "process_group": ["0", "default_pg"], "collective_seq_id": seq,
            "p2p_seq_id": 0, "op_id": seq, "profiling_name": name, "time_created_ns": seq * 1000,
            "input_sizes": [[8]], "output_sizes": [[8]], "input_dtypes": ["Float"], "output_dtypes": ["Float"],
            "state": state, "time_discovered_started_ns": 0,
            "time_discovered_completed_ns": if state == "completed" { seq * 1000 + 500 } else { 0 },
            "retired": state == "completed", "timeout_ms": 600_000, "is_p2p": name.contains("send"),
        })
    }

    fn read(version: &str, started: i64, entries: &[Value]) -> Option<v1::DeviceCalls> {
        let dump = json!({
            "version": version, "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
            "pg_status": {"0": {"last_enqueued_collective": 2, "last_started_collective": started,
                                "last_completed_collective": 1}},
            "entries": entries,
        });
        device_calls(7, dump.to_string().into_bytes(), Timestamp(9))
    }

    #[test]
    fn incomplete_calls_are_stated_with_what_is_known_of_their_start() {
        for version in ["2.4", "2.7", "2.10", "3.0"] {
            let entries = [
                entry(1, "nccl:all_reduce", "completed"),
                entry(2, "nccl:broadcast", "scheduled"),
                entry(3, "nccl:all_reduce_barrier", "scheduled"),
            ];
            let calls = read(version, -1, &entries).unwrap();
            assert_eq!((calls.process, calls.asked_unix_ns, calls.records_starts), (7, 9, false));
            let [group] = &calls.groups[..] else { panic!("{calls:?}") };
            assert_eq!((&*group.name, group.first, group.last), ("0", 1, 3));
            assert_eq!((group.last_op, group.completed_unix_ns), (number(Op::Barrier), 1500));
            let open: Vec<_> = group.incomplete.iter().map(|it| (it.seq, it.op)).collect();
            assert_eq!(open, [(2, number(Op::Broadcast)), (3, number(Op::Barrier))]);
        }
        let entries =
            [entry(1, "nccl:all_reduce", "completed"), entry(2, "nccl:broadcast", "started")];
        let calls = read("2.10", 2, &entries).unwrap();
        assert!(calls.records_starts && calls.groups[0].incomplete[0].has_started);
    }

    #[test]
    fn coalesced_group_is_one_call_with_the_state_of_its_end() {
        let open = |states: [&str; 2], end: Option<&str>| {
            let pieces = states.map(|it| entry(1, "nccl:_all_gather_base", it));
            let end = end.map(|it| {
                let mut end = entry(1, "nccl:ALLGATHER_coalesced", it);
                (end["input_sizes"], end["output_sizes"]) = (json!([]), json!([]));
                end
            });
            let entries: Vec<Value> = pieces.into_iter().chain(end).collect();
            let calls = read("2.4", -1, &entries).unwrap();
            assert_eq!(calls.groups[0].last_op, 0, "any operation");
            calls.groups[0].incomplete.len()
        };
        assert_eq!(open(["scheduled", "scheduled"], Some("completed")), 0);
        assert_eq!(open(["scheduled", "scheduled"], Some("scheduled")), 1);
        assert_eq!(open(["completed", "scheduled"], None), 1);
        assert_eq!(open(["completed", "completed"], None), 0);
    }

    #[test]
    fn groups_that_may_hide_an_incomplete_call_are_left_out() {
        let groups = |entries: &[Value]| read("2.10", -1, entries).unwrap().groups.len();
        let [first, second] = ["scheduled", "completed"].map(|it| entry(4, "nccl:all_reduce", it));
        assert_eq!(groups(&[first]), 0, "an earlier one may be incomplete as well");
        assert_eq!(groups(&[second]), 1);
        let holes = [1, 3].map(|it| entry(it, "nccl:all_reduce", "completed"));
        assert_eq!(groups(&holes), 0, "one is missing");
        assert_eq!(groups(&[entry(1, "gloo:all_reduce", "scheduled")]), 0, "not on a device");
        assert_eq!(groups(&[entry(1, "nccl:send 0->1", "scheduled")]), 0, "a message");
        let hooked = json!({"retired": true});
        let mut silent = entry(1, "nccl2:all_reduce", "scheduled");
        silent.as_object_mut().unwrap().extend(hooked.as_object().unwrap().clone());
        assert_eq!(groups(&[silent]), 0, "its completion is never recorded");
    }

    #[test]
    fn dump_that_cannot_be_read_as_a_whole_shows_nothing() {
        let entries = [1, 2, 3].map(|it| entry(it, "nccl:all_reduce", "completed"));
        let text = json!({"version": "2.10", "pg_config": {}, "pg_status": {}, "entries": entries})
            .to_string()
            .into_bytes();
        assert!(device_calls(1, text.clone(), Timestamp(1)).is_some());
        for cut in [1, text.len() / 2, text.len() - 2] {
            assert_eq!(device_calls(1, text[..cut].to_vec(), Timestamp(1)), None, "{cut}");
        }
        assert_eq!(device_calls(1, Vec::new(), Timestamp(1)), None);
    }
}
