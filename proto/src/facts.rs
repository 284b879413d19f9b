//! Facts of certificates as text, for viewers that list them.

use serde_json::{Map, Value};

use crate::report::Fact;
use crate::words::plain;

/// Formats a fact: "issued: rank 0, all_reduce #24 float32[8 elements] sum, in the default group, step 3".
#[must_use]
pub fn text(fact: &Fact) -> String {
    let Ok(Value::Object(mut fields)) = serde_json::to_value(fact) else {
        return String::new();
    };
    let name = fields.remove("fact").map(|it| value_text(&it)).unwrap_or_default();
    // Records without a step have step 0.
    let is_step_zero = |key: &str, value: &Value| key == "step" && value.as_u64() == Some(0);
    fields.retain(|key, value| {
        !value.is_null() && *value != Value::Bool(false) && !is_step_zero(key, value)
    });
    let mut parts = Vec::new();
    parts.extend(fields.remove("rank").map(|it| format!("rank {it}")));
    let seq = fields.remove("seq").map(|it| format!("#{it}"));
    match (fields.remove("call"), seq) {
        (Some(Value::Object(call)), seq) => parts.push(call_text(&call, seq)),
        (_, Some(seq)) => parts.push(format!("call {seq}")),
        _ => {}
    }
    parts.extend(fields.remove("group").map(|it| format!("in {}", group_text(&it))));
    let rest = fields.iter().map(|(key, value)| match value {
        Value::Bool(true) => key.replace('_', " "),
        value => format!("{} {}", key.replace('_', " "), value_text(value)),
    });
    parts.extend(rest);
    plain(&format!("{}: {}", name.replace('-', " "), parts.join(", ")))
}

/// A call with what peers must agree on: "all_reduce #24 float32[8 elements] sum".
fn call_text(call: &Map<String, Value>, seq: Option<String>) -> String {
    let known = |key: &str| call.get(key).filter(|it| !it.is_null()).map(value_text);
    let size = known("numel").map(|it| format!("[{it} elements]")).unwrap_or_default();
    let tensor = known("dtype").unwrap_or_default() + &size;
    let parts = [
        known("op"),
        seq,
        Some(tensor).filter(|it| !it.is_empty()),
        known("reduce_op"),
        known("root").map(|it| match known("op").as_deref() {
            Some("send") => format!("to rank {it}"),
            Some("recv") => format!("from rank {it}"),
            _ => format!("root {it}"),
        }),
        known("tag").map(|it| format!("tag {it}")),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(" ")
}

/// PyTorch names its default group "0".
fn group_text(group: &Value) -> String {
    let text = |key: &str| group[key].as_str().unwrap_or_default();
    match (text("layer"), text("name")) {
        ("c10d", "0") => "the default group".to_owned(),
        (_, name) => format!("group {name}"),
    }
}

fn value_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(all) => all.iter().map(value_text).collect::<Vec<_>>().join(" "),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{CallSignature, GroupRef};

    fn group(layer: &str, name: &str) -> GroupRef {
        GroupRef { layer: layer.into(), name: name.into(), ..GroupRef::default() }
    }

    #[test]
    fn fact_names_rank_call_and_default_group() {
        let call = CallSignature {
            op: "all_reduce".into(),
            numel: Some(8),
            dtype: Some("float32".into()),
            reduce_op: Some("sum".into()),
            root: None,
            tag: None,
        };
        let issued = Fact::Issued {
            rank: 1,
            group: group("c10d", "0"),
            seq: 24,
            call: call.clone(),
            step: 0,
        };
        let expected =
            "issued: rank 1, all_reduce #24 float32[8 elements] sum, in the default group";
        assert_eq!(text(&issued), expected);
        let waits = Fact::Waits {
            rank: 1,
            thread: 0,
            group: group("nccl", "0"),
            seq: 3,
            call: CallSignature { numel: None, dtype: None, ..call },
            only_thread: true,
        };
        let expected = "waits: rank 1, all_reduce #3 sum, in group 0, only thread, thread 0";
        assert_eq!(text(&waits), expected);
    }

    #[test]
    fn other_fields_follow_without_those_that_are_unknown() {
        let never = Fact::NeverIssued { rank: 1, group: group("c10d", "tp\u{1b}"), last: 2 };
        assert_eq!(text(&never), "never issued: rank 1, in group tp\u{fffd}, last 2");
        let ended = Fact::Ended { rank: 1, pid: 7, code: None, signal: Some(9) };
        assert_eq!(text(&ended), "ended: rank 1, pid 7, signal 9");
    }
}
