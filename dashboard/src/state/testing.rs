//! Messages for tests.

use ddp_doctor_proto::v1;

pub(crate) fn update(unix_ns: u64, ranks: Vec<v1::RankStatus>) -> v1::Update {
    v1::Update {
        unix_ns,
        verdict: "healthy".into(),
        ranks,
        ..Default::default()
    }
}

pub(crate) fn rank(rank: u32, state: &str, step: u64) -> v1::RankStatus {
    v1::RankStatus {
        rank,
        host: format!("node{}", rank / 8),
        pid: 1000 + rank,
        state: state.into(),
        step,
        ..Default::default()
    }
}

pub(crate) fn finding(code: &str, name: &str, root: &[u32]) -> v1::Finding {
    v1::Finding {
        code: code.into(),
        name: name.into(),
        severity: "error".into(),
        effect: "blocks".into(),
        role: "initiating".into(),
        confidence: "proved".into(),
        ranks: Some(v1::Ranks {
            root: root.to_vec(),
            ..Default::default()
        }),
        ..Default::default()
    }
}

pub(crate) fn group(number: u32, ranks: &[u32], issued: &[u64]) -> v1::GroupStatus {
    v1::GroupStatus {
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
