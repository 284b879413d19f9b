//! Conversions of findings between data for JSON and messages for viewers.
//!
//! Enum values are sent as words. An unknown word, from a newer coordinator, becomes the mildest
//! value of its enum instead of an error, so that a viewer can show the rest.

use crate::report::{
    Blame, CallState, Cause, CauseKind, Confidence, Effect, Evidence, Exit, Finding, Group, Job,
    Parameter, Rank, RankCall, RankState, Role, Severity, Timestamp, WaitingIn, Where,
};
use crate::v1;

impl From<&Finding> for v1::Finding {
    fn from(f: &Finding) -> Self {
        Self {
            code: f.code.clone(),
            name: f.name.clone(),
            severity: f.severity.to_string(),
            effect: f.effect.to_string(),
            confidence: f.confidence.to_string(),
            role: f.role.to_string(),
            caused_by: f.caused_by.iter().map(|&i| i as u32).collect(),
            summary: f.summary.clone(),
            cause: f.cause.map(|cause| v1::Cause {
                kind: cause.kind.to_string(),
                confidence: cause.confidence.to_string(),
            }),
            ranks: Some(v1::Ranks {
                root: f.ranks.root.clone(),
                root_confidence: f.ranks.root_confidence.to_string(),
                victims: f.ranks.victims.clone(),
            }),
            group: f.group.as_ref().map(|group| v1::Group {
                name: group.name.clone(),
                description: group.description.clone(),
                layer: group.layer.clone(),
                ranks: group.ranks.clone(),
            }),
            seq: f.seq,
            op: f.op.clone(),
            per_rank: f.per_rank.iter().map(v1::RankCall::from).collect(),
            parameters: f
                .parameters
                .iter()
                .map(|parameter| v1::Parameter {
                    name: parameter.name.clone(),
                    shape: parameter.shape.clone(),
                    missing_on: parameter.missing_on.clone(),
                })
                .collect(),
            certificate_json: f
                .certificate
                .as_ref()
                .and_then(|c| serde_json::to_string(c).ok()),
            why: f.why.clone(),
            next: f.next.clone(),
            blocked_at_unix_ns: f.blocked_at.map(|at| at.0),
            detected_at_unix_ns: f.detected_at.0,
            latency_ms: f.latency_ms,
            attempt: f.attempt,
        }
    }
}

impl From<v1::Finding> for Finding {
    fn from(f: v1::Finding) -> Self {
        let ranks = f.ranks.unwrap_or_default();
        Self {
            code: f.code,
            name: f.name,
            severity: Severity::from_word(&f.severity).unwrap_or(Severity::Note),
            effect: Effect::from_word(&f.effect).unwrap_or(Effect::None),
            confidence: Confidence::from_word(&f.confidence).unwrap_or(Confidence::Suspected),
            role: Role::from_word(&f.role).unwrap_or(Role::Cascade),
            caused_by: f.caused_by.iter().map(|&i| i as usize).collect(),
            summary: f.summary,
            cause: f.cause.map(|cause| Cause {
                kind: CauseKind::from_word(&cause.kind).unwrap_or(CauseKind::Unknown),
                confidence: Confidence::from_word(&cause.confidence)
                    .unwrap_or(Confidence::Suspected),
            }),
            ranks: Blame {
                root: ranks.root,
                root_confidence: Confidence::from_word(&ranks.root_confidence)
                    .unwrap_or(Confidence::Suspected),
                victims: ranks.victims,
            },
            group: f.group.map(|group| Group {
                name: group.name,
                description: group.description,
                layer: group.layer,
                ranks: group.ranks,
            }),
            seq: f.seq,
            op: f.op,
            per_rank: f.per_rank.into_iter().map(RankCall::from).collect(),
            parameters: f
                .parameters
                .into_iter()
                .map(|parameter| Parameter {
                    name: parameter.name,
                    shape: parameter.shape,
                    missing_on: parameter.missing_on,
                })
                .collect(),
            certificate: f
                .certificate_json
                .and_then(|text| serde_json::from_str(&text).ok()),
            why: f.why,
            next: f.next,
            blocked_at: f.blocked_at_unix_ns.map(Timestamp),
            detected_at: Timestamp(f.detected_at_unix_ns),
            latency_ms: f.latency_ms,
            attempt: f.attempt,
        }
    }
}

impl From<&RankCall> for v1::RankCall {
    fn from(call: &RankCall) -> Self {
        Self {
            rank: call.rank,
            state: call.state.to_string(),
            waited_ms: call.waited_ms,
            op: call.op.clone(),
            seq: call.seq,
            dtype: call.dtype.clone(),
            shapes: call.shapes.as_ref().map(|shapes| v1::Shapes {
                shapes: shapes
                    .iter()
                    .map(|dims| v1::Shape { dims: dims.clone() })
                    .collect(),
            }),
            numel: call.numel,
            reduce_op: call.reduce_op.clone(),
            root: call.root,
            peer: call.peer,
            tag: call.tag,
            step: call.step,
            r#where: call.place.as_ref().map(v1::Where::from),
        }
    }
}

impl From<v1::RankCall> for RankCall {
    fn from(call: v1::RankCall) -> Self {
        Self {
            rank: call.rank,
            state: CallState::from_word(&call.state).unwrap_or(CallState::Issued),
            waited_ms: call.waited_ms,
            op: call.op,
            seq: call.seq,
            dtype: call.dtype,
            shapes: call
                .shapes
                .map(|s| s.shapes.into_iter().map(|shape| shape.dims).collect()),
            numel: call.numel,
            reduce_op: call.reduce_op,
            root: call.root,
            peer: call.peer,
            tag: call.tag,
            step: call.step,
            place: call.r#where.map(Where::from),
        }
    }
}

impl From<&Where> for v1::Where {
    fn from(place: &Where) -> Self {
        Self {
            file: place.file.clone(),
            line: place.line,
            function: place.function.clone(),
            library: place.library,
            via: place.via.iter().map(Self::from).collect(),
        }
    }
}

impl From<v1::Where> for Where {
    fn from(place: v1::Where) -> Self {
        Self {
            file: place.file,
            line: place.line,
            function: place.function,
            library: place.library,
            via: place.via.into_iter().map(Self::from).collect(),
        }
    }
}

impl From<&Job> for v1::Job {
    fn from(job: &Job) -> Self {
        Self {
            id: job.id.clone(),
            attempt: job.attempt,
            world_size: job.world_size,
            nodes: job.nodes,
            backends: job.backends.clone(),
            started_unix_ns: job.started_at.map_or(0, |at| at.0),
            ended_unix_ns: job.ended_at.map(|at| at.0),
        }
    }
}

impl From<v1::Job> for Job {
    fn from(job: v1::Job) -> Self {
        Self {
            id: job.id,
            attempt: job.attempt,
            world_size: job.world_size,
            nodes: job.nodes,
            backends: job.backends,
            started_at: (job.started_unix_ns > 0).then_some(Timestamp(job.started_unix_ns)),
            ended_at: job.ended_unix_ns.map(Timestamp),
        }
    }
}

impl From<&Evidence> for v1::Evidence {
    fn from(evidence: &Evidence) -> Self {
        Self {
            ranks_expected: evidence.ranks_expected,
            ranks_reporting: evidence.ranks_reporting,
            missing_ranks: evidence.missing_ranks.clone(),
            layers: evidence.layers.clone(),
            records: evidence.records,
            records_lost: evidence.records_lost,
            clock_uncertainty_ms: evidence.clock_uncertainty_ms,
        }
    }
}

impl From<v1::Evidence> for Evidence {
    fn from(evidence: v1::Evidence) -> Self {
        Self {
            ranks_expected: evidence.ranks_expected,
            ranks_reporting: evidence.ranks_reporting,
            missing_ranks: evidence.missing_ranks,
            layers: evidence.layers,
            records: evidence.records,
            records_lost: evidence.records_lost,
            clock_uncertainty_ms: evidence.clock_uncertainty_ms,
        }
    }
}

impl From<&Rank> for v1::RankStatus {
    fn from(rank: &Rank) -> Self {
        Self {
            rank: rank.rank,
            host: rank.host.clone(),
            pid: rank.pid,
            attempt: rank.attempt,
            state: rank.state.to_string(),
            exit_code: rank.exit.code,
            exit_signal: rank.exit.signal,
            step: rank.step,
            r#where: rank.place.as_ref().map(v1::Where::from),
            waiting_in: rank.waiting_in.as_ref().map(|waiting| v1::WaitingIn {
                group: waiting.group.clone(),
                seq: waiting.seq,
                op: waiting.op.clone(),
                waited_ms: waiting.waited_ms,
            }),
        }
    }
}

impl From<v1::RankStatus> for Rank {
    fn from(rank: v1::RankStatus) -> Self {
        Self {
            rank: rank.rank,
            host: rank.host,
            pid: rank.pid,
            attempt: rank.attempt,
            state: RankState::from_word(&rank.state).unwrap_or(RankState::Unknown),
            exit: Exit {
                code: rank.exit_code,
                signal: rank.exit_signal,
            },
            step: rank.step,
            place: rank.r#where.map(Where::from),
            waiting_in: rank.waiting_in.map(|waiting| WaitingIn {
                group: waiting.group,
                seq: waiting.seq,
                op: waiting.op,
                waited_ms: waiting.waited_ms,
            }),
        }
    }
}
