//! Updates for tests.

use ddp_doctor_proto::report::{
    Confidence, Effect, Finding, Rank, RankState, Role, Severity, Timestamp, Verdict,
};
use ddp_doctor_proto::viewer::{GroupStatus, Update};

pub(crate) fn update(unix_ns: u64, ranks: Vec<Rank>) -> Update {
    Update { at: Timestamp(unix_ns), verdict: Verdict::Healthy, ranks, ..Default::default() }
}

pub(crate) fn rank(rank: u32, state: &str, step: u64) -> Rank {
    Rank {
        rank,
        host: format!("node{}", rank / 8),
        pid: 1000 + rank,
        state: RankState::from_word(state).unwrap(),
        step,
        ..Default::default()
    }
}

pub(crate) fn finding(code: &str, name: &str, root: &[u32]) -> Finding {
    let mut finding = Finding {
        code: code.into(),
        name: name.into(),
        severity: Severity::Error,
        effect: Effect::Blocks,
        role: Role::Initiating,
        confidence: Confidence::Proved,
        ..Default::default()
    };
    finding.ranks.root = root.to_vec();
    finding
}

pub(crate) fn group(number: u32, ranks: &[u32], issued: &[u64]) -> GroupStatus {
    GroupStatus {
        number,
        name: number.to_string(),
        layer: "c10d".into(),
        backend: "gloo".into(),
        ranks: ranks.to_vec(),
        issued: issued.to_vec(),
        completed: issued.to_vec(),
        ..Default::default()
    }
}
