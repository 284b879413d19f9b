//! The test vectors of PyTorch's analyzer of dumps (`test/distributed/flight_recorder`), with its
//! verdict and that of `analyze`. If `analyze` reports less, the reason is given.

use ddp_doctor_proto::report::Verdict;
use serde_json::{Value, json};

use crate::support::dumps::{Entry, analyze, dump, findings, report};

/// One vector: the calls of each rank.
struct Vector {
    name: String,
    ranks: Vec<Vec<Entry>>,
    groups: Vec<Vec<(&'static str, &'static str)>>,
    /// Whether upstream reports an error.
    upstream: bool,
    /// Verdict of `analyze`: codes with their roots, `healthy`, `insufficient`, or `remark`.
    expected: &'static str,
    /// Reason why `analyze` reports less than upstream; empty if it reports at least as much.
    reason: &'static str,
}

/// Verdict of `analyze` on the dumps of all ranks.
fn verdict(vector: &Vector) -> String {
    let ranks = vector.ranks.iter().zip(&vector.groups);
    let dumps: Vec<Value> = ranks.map(|(entries, groups)| dump(groups, entries)).collect();
    let analysis = analyze(&dumps);
    let report = report(&analysis);
    let found: Vec<String> =
        findings(report).into_iter().map(|(code, _, root)| format!("{code} {root:?}")).collect();
    match (&found[..], report.verdict) {
        ([], Verdict::Healthy) if !analysis.remarks.is_empty() => "remark".into(),
        ([], Verdict::Healthy) => "healthy".into(),
        ([], verdict) => format!("{verdict:?}"),
        (found, _) => found.join(", "),
    }
}

#[track_caller]
fn check(vectors: Vec<Vector>) {
    let mut wrong = Vec::new();
    for vector in vectors {
        let expected = verdict(&vector);
        let says_less = vector.upstream && (expected == "healthy" || expected == "remark");
        let is_explained = !says_less || !vector.reason.is_empty();
        if expected != vector.expected || !is_explained {
            wrong.push(format!("{}: {expected}, expected {}", vector.name, vector.expected));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

const WORLD: [(&str, &str); 1] = [("0", "[0, 1]")];

/// A vector of two ranks in one group.
fn pair(
    name: &str,
    [a, b]: [&[Entry]; 2],
    upstream: bool,
    expected: &'static str,
    reason: &'static str,
) -> Vector {
    Vector {
        name: name.into(),
        ranks: vec![a.to_vec(), b.to_vec()],
        groups: vec![WORLD.to_vec(); 2],
        upstream,
        expected,
        reason,
    }
}

/// A vector of one call on each of two ranks.
fn calls(name: &str, a: &Entry, b: &Entry, upstream: bool, expected: &'static str) -> Vector {
    let (a, b) = (std::slice::from_ref(a), std::slice::from_ref(b));
    pair(name, [a, b], upstream, expected, "")
}

/// A complete call of the default group at number 1.
fn call(op: &str) -> Entry {
    Entry::new(&format!("nccl:{op}"), "0", 1)
}

fn sized(op: &str, inputs: Value, outputs: Value) -> Entry {
    call(op).sizes(inputs, outputs)
}

const LEFT: &str = "PyTorch refuses such a call before it is recorded; both ranks agree on it";
const STATE: &str = "a rank that has not yet noticed the completion did nothing wrong";
const TYPES: &str = "these variants run the same operation on the wire and work together";

#[test]
fn a_two_matching_calls() {
    let all_reduce = || call("all_reduce");
    let square = json!([[4, 4]]);
    let taller = json!([[5, 4]]);
    let gather = |outputs: Value| sized("gather", json!([[4, 4]]), outputs);
    let both = json!([[4, 4], [4, 4]]);
    let mut half = all_reduce();
    half.0["output_dtypes"] = json!(["Half"]);
    let empty = |outputs: Value| gather(outputs).with("output_dtypes", json!([]));
    check(vec![
        calls("A1", &all_reduce(), &all_reduce(), false, "healthy"),
        calls("A2", &all_reduce(), &call("all_gather"), true, "DD103 [0, 1]"),
        calls("A3", &call("all_to_all"), &call("all_to_all"), false, "healthy"),
        calls(
            "A4",
            &all_reduce(),
            &sized("all_reduce", taller.clone(), square.clone()),
            true,
            "DD104 [0, 1]",
        ),
        calls(
            "A5",
            &all_reduce(),
            &sized("all_reduce", square.clone(), taller.clone()),
            true,
            "DD104 [0, 1]",
        ),
        Vector {
            reason: LEFT,
            ..calls(
                "A6",
                &sized("all_reduce", square.clone(), taller.clone()),
                &sized("all_reduce", square, taller),
                true,
                "healthy",
            )
        },
        Vector {
            reason: STATE,
            ..calls("A7", &all_reduce().open(), &all_reduce(), true, "DD116 [0]")
        },
        calls("A8", &half, &all_reduce(), true, "DD105 [0, 1]"),
        calls("A9", &gather(both.clone()), &empty(json!([[]])), false, "healthy"),
        calls("A10", &gather(both), &empty(json!([[4, 4]])), false, "healthy"),
    ]);
}

#[test]
fn b_every_operation_agrees_with_itself() {
    let ops = [
        "broadcast",
        "_broadcast_oop",
        "reduce",
        "_reduce_oop",
        "all_gather",
        "all_reduce",
        "_all_gather_base",
        "all_gather_into_tensor_coalesced",
        "reduce_scatter",
        "reduce_scatter_tensor_coalesced",
        "_reduce_scatter_base",
        "gather",
        "scatter",
        "all_to_all",
        "all_to_all_single",
        "all_reduce_barrier",
        "barrier",
        "allreduce_coalesced",
        "ALLGATHER_coalesced",
        "REDUCE_SCATTER_coalesced",
    ];
    let vectors = ops.map(|op| {
        let outputs = match op {
            "reduce_scatter" | "_reduce_scatter_base" => json!([[8]]),
            "all_gather" | "_all_gather_base" => json!([[32]]),
            _ => json!([[4, 4]]),
        };
        let entry = sized(op, json!([[4, 4]]), outputs);
        calls(&format!("B {op}"), &entry, &entry, false, "healthy")
    });
    check(vectors.into());
    let unknown = ["split", "new_window", "of_a_later_version"]
        .map(|op| calls(op, &call(op), &call(op), false, "remark"));
    check(unknown.into());
}

#[test]
fn c_variants_of_one_operation() {
    let pairs = [
        ("all_gather", "_all_gather_base", json!([[16]])),
        ("reduce_scatter", "_reduce_scatter_base", json!([[4]])),
        ("all_to_all", "all_to_all_single", json!([[8]])),
    ];
    let vectors = pairs.map(|(a, b, outputs)| Vector {
        reason: TYPES,
        ..calls(
            &format!("C {a}"),
            &sized(a, json!([[8]]), outputs.clone()),
            &sized(b, json!([[8]]), outputs),
            true,
            "healthy",
        )
    });
    check(vectors.into());
    let coalesced =
        calls("C", &call("all_reduce"), &call("allreduce_coalesced"), true, "DD103 [0, 1]");
    check(vec![coalesced]);
}

#[test]
fn d_e_sizes_of_gathers_and_splits() {
    let gather = |outputs| sized("_all_gather_base", json!([[8]]), outputs);
    let odd = gather(json!([[24]]));
    let uneven = |inputs, outputs| sized("all_to_all_single", inputs, outputs);
    check(vec![
        calls("D1", &gather(json!([[16]])), &gather(json!([[16]])), false, "healthy"),
        Vector { reason: LEFT, ..calls("D2", &odd, &odd, true, "remark") },
        calls(
            "E",
            &uneven(json!([[8]]), json!([[12]])),
            &uneven(json!([[12]]), json!([[8]])),
            false,
            "healthy",
        ),
    ]);
}

#[test]
fn f_receive_from_any_rank() {
    let message = |name: &str, elements: u32| {
        let shape = json!([[elements]]);
        Entry::message(name, "0", 1).sizes(shape.clone(), shape)
    };
    let receive = message("nccl:recv 1<-?", 8);
    check(vec![
        calls("F1", &message("nccl:send 0->1", 8), &receive, false, "healthy"),
        Vector {
            reason: "which message a receive from any rank takes is not recorded; both are complete",
            ..calls("F2", &message("nccl:send 0->1", 4), &receive, true, "healthy")
        },
        calls(
            "F3",
            &message("nccl:send 0->1", 4),
            &message("nccl:recv 1<-0", 8),
            true,
            "DD113 [0, 1]",
        ),
    ]);
}

#[test]
fn g_prefixes_of_backends() {
    for prefix in
        ["nccl", "ncclx", "gloo", "xccl", "nccl2", "c10d", "unknown_backend", "weird:backend"]
    {
        let entry = Entry::new(&format!("{prefix}:all_reduce"), "0", 1);
        check(vec![calls(prefix, &entry, &entry, false, "healthy")]);
        let other = Entry::new(&format!("{prefix}:broadcast"), "0", 1);
        check(vec![calls(prefix, &entry, &other, true, "DD103 [0, 1]")]);
    }
    let plain = Entry::new("all_reduce", "0", 1);
    check(vec![calls("no prefix", &plain, &plain, false, "healthy")]);
}

#[test]
fn i_whole_dumps() {
    let at = |op: &str| Entry::new(&format!("nccl:{op}"), "0", 0);
    let end = |op: &str| at(op).sizes(json!([[]]), json!([[]]));
    let larger = |op: &str| at(op).sizes(json!([[5, 5]]), json!([[5, 5]]));
    let own = Entry::new("nccl:all_reduce", "1", 0).sizes(json!([[5, 5]]), json!([[5, 5]]));
    let two = [at("all_reduce"), own];
    let i1 = Vector {
        groups: vec![vec![("0", "[0, 1]"), ("1", "[0]")], vec![("0", "[0, 1]"), ("1", "[1]")]],
        ..pair("I1", [&two, &two], false, "healthy", "")
    };
    let i2 = [at("allreduce_coalesced")];
    let i3 = [at("broadcast"), at("broadcast"), end("coalesced")];
    let i4 = |second| [at("_broadcast_oop"), second, end("ALLGATHER_coalesced")];
    let (odd, even) = (i4(larger("_broadcast_oop")), i4(at("_broadcast_oop")));
    let i5 = [at("_reduce_oop"), at("_reduce_oop"), end("REDUCE_SCATTER_coalesced")];
    let i6 = [at("all_reduce")];
    let i6_more =
        [at("all_reduce"), at("_reduce_oop"), at("_reduce_oop"), end("REDUCE_SCATTER_coalesced")];
    check(vec![
        i1,
        pair("I2", [&i2, &i2], false, "healthy", ""),
        pair("I3", [&i3, &i3], false, "healthy", ""),
        pair("I4", [&odd, &even], true, "DD104 [0, 1]", ""),
        pair("I5", [&i5, &i5], false, "healthy", ""),
        pair(
            "I6",
            [&i6, &i6_more],
            true,
            "healthy",
            "the calls that rank 0 did not make are complete on rank 1: nothing waits for them",
        ),
    ]);
}

#[test]
fn j_traces_of_hooks() {
    let hooked = |op: &str, seq: u64, inputs: Value, outputs: Value| {
        let entry = Entry::new(&format!("nccl2:{op}"), "0", seq).sizes(inputs, outputs);
        entry.with("state", "scheduled")
    };
    let one = || json!([[8]]);
    let order = [
        hooked("all_reduce", 1, one(), one()),
        hooked("reduce", 2, one(), one()),
        hooked("all_gather", 3, one(), json!([[8], [8]])),
        hooked("reduce_scatter", 4, json!([[8], [8]]), one()),
        hooked("allreduce_coalesced", 5, json!([[8], [4]]), json!([[8], [4]])),
    ];
    check(vec![
        pair("J1", [&order, &order], false, "healthy", ""),
        pair("J1, behind", [&order, &order[..3]], true, "DD101 [1]", ""),
    ]);
    for (name, inputs, outputs) in [
        ("all_gather", one(), json!([[8], [8], [8]])),
        ("reduce_scatter", json!([[8], [8], [8]]), one()),
        ("all_gather", one(), json!([[17]])),
        ("reduce_scatter", json!([[17]]), one()),
    ] {
        let entry = sized(name, inputs, outputs);
        check(vec![Vector {
            reason: LEFT,
            ..calls(&format!("J {name}"), &entry, &entry, true, "remark")
        }]);
    }
}

#[test]
fn k_hangs_and_swapped_calls() {
    let at = |op: &str, seq| Entry::new(&format!("nccl:{op}"), "0", seq);
    let done = at("all_reduce", 1);
    let ahead = [done.clone(), at("all_reduce", 2).open()];
    let swapped =
        [[at("all_reduce", 1), at("broadcast", 2)], [at("broadcast", 1), at("all_reduce", 2)]];
    check(vec![
        pair("K1", [&ahead, &ahead[..1]], true, "DD101 [1]", ""),
        pair("K2", [&swapped[0], &swapped[1]], true, "DD109 [0, 1]", ""),
        Vector { reason: STATE, ..calls("K3", &done.clone().open(), &done, true, "DD116 [0]") },
    ]);
}
