//! Flight Recorder dumps for tests, written as JSON.

use std::fs;
use std::path::PathBuf;

use ddp_doctor::postmortem::{self, Analysis};
use ddp_doctor_proto::report::{Report, Role};
use serde_json::{Value, json};

/// One entry of a dump.
#[derive(Clone)]
pub(crate) struct Entry(pub(crate) Value);

impl Entry {
    /// A complete call of a group, such as `nccl:all_reduce`, with one input and one output.
    pub(crate) fn new(name: &str, group: &str, seq: u64) -> Self {
        Self(json!({
            "profiling_name": name,
            "process_group": [group, "default"],
            "pg_id": group.parse::<i64>().unwrap_or(0),
            "collective_seq_id": seq,
            "p2p_seq_id": 0,
            "op_id": seq,
            "is_p2p": false,
            "state": "completed",
            "retired": true,
            "timeout_ms": 600_000,
            "time_created_ns": 1_700_000_000_000_000_000_u64 + seq * 1_000_000,
            "input_sizes": [[4, 4]], "input_dtypes": ["Float"],
            "output_sizes": [[4, 4]], "output_dtypes": ["Float"],
        }))
    }

    /// The n-th message of its rank in the group.
    pub(crate) fn message(name: &str, group: &str, nth: u64) -> Self {
        Self::new(name, group, 1).with("is_p2p", true).with("p2p_seq_id", nth)
    }

    pub(crate) fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.0[key] = value.into();
        self
    }

    pub(crate) fn sizes(self, inputs: Value, outputs: Value) -> Self {
        self.with("input_sizes", inputs).with("output_sizes", outputs)
    }

    /// Its device has not completed it.
    pub(crate) fn open(self) -> Self {
        self.with("state", "scheduled").with("retired", false)
    }
}

/// A dump of a process in these groups (name and ranks), with all entries of its ring.
pub(crate) fn dump(groups: &[(&str, &str)], entries: &[Entry]) -> Value {
    let mut dump = json!({ "version": "2.8", "pg_config": {}, "pg_status": {}, "entries": [] });
    for (name, ranks) in groups {
        dump["pg_config"][name] = json!({ "name": name, "desc": "default_pg", "ranks": ranks });
    }
    let numbered = entries.iter().enumerate().map(|(record, entry)| {
        let entry = entry.clone().with("record_id", record);
        entry.0
    });
    dump["entries"] = numbered.collect();
    dump
}

/// Analyzes the dumps of ranks from 0 on, in files named after them.
pub(crate) fn analyze(dumps: &[Value]) -> Analysis {
    let ranked: Vec<(u32, Value)> = (0..).zip(dumps.iter().cloned()).collect();
    analyze_ranks(&ranked)
}

/// Analyzes dumps of these ranks, in files named after them.
pub(crate) fn analyze_ranks(dumps: &[(u32, Value)]) -> Analysis {
    let dir = tempfile::tempdir().unwrap();
    let paths: Vec<PathBuf> = dumps
        .iter()
        .map(|(rank, dump)| {
            let path = dir.path().join(format!("trace_rank_{rank}.json"));
            fs::write(&path, dump.to_string()).unwrap();
            path
        })
        .collect();
    postmortem::analyze(&paths)
}

/// The only report of an analysis.
#[track_caller]
pub(crate) fn report(analysis: &Analysis) -> &Report {
    match &analysis.reports[..] {
        [report] => report,
        reports => panic!("{} reports, {:?}", reports.len(), analysis.remarks),
    }
}

/// Initiating findings: code, confidence and root.
pub(crate) fn findings(report: &Report) -> Vec<(String, String, Vec<u32>)> {
    let initiating = report.findings.iter().filter(|it| it.role == Role::Initiating);
    let shown = initiating.map(|it| {
        let confidence = format!("{:?}", it.confidence).to_lowercase();
        (it.code.clone(), confidence, it.ranks.root.clone())
    });
    shown.collect()
}
