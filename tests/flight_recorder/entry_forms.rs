//! The forms in which backends record the sides of one call. NCCL records a tensor that does not exist for
//! the outputs of a rank that is not the destination of a gather, and for the inputs of one that is not the
//! source of a scatter; Gloo and the hooks of PyTorch record none. Each form has a twin that differs.

use serde_json::{Value, json};

use crate::support::dumps::{Entry, analyze, dump, findings, report};

/// Tensors of a call: sizes and types of the inputs, then of the outputs.
type Tensors = [Value; 4];

/// One call of three ranks: the side of the first rank, that of the others, and that of a rank whose call
/// does not fit.
struct Form {
    name: &'static str,
    root: Tensors,
    leaf: Tensors,
    odd: Tensors,
    /// Code of the finding about the odd one; empty: the difference is legal.
    code: &'static str,
}

/// A tensor that does not exist, as NCCL records it.
fn placeholder() -> [Value; 2] {
    [json!([[0]]), json!(["UNKNOWN_SCALAR"])]
}

fn none() -> [Value; 2] {
    [json!([]), json!([])]
}

fn tensors(dtype: &str, sizes: Value) -> [Value; 2] {
    let dtypes: Vec<&str> = sizes.as_array().unwrap().iter().map(|_| dtype).collect();
    [sizes, json!(dtypes)]
}

fn both([sizes, dtypes]: [Value; 2], [out_sizes, out_dtypes]: [Value; 2]) -> Tensors {
    [sizes, dtypes, out_sizes, out_dtypes]
}

/// The same tensor as input and output.
fn in_place(dtype: &str, sizes: Value) -> Tensors {
    both(tensors(dtype, sizes.clone()), tensors(dtype, sizes))
}

fn entry(form: &Form, [sizes, dtypes, out_sizes, out_dtypes]: &Tensors, seq: u64) -> Entry {
    let is_gloo = form.name.starts_with("gloo:");
    let entry = Entry::new(form.name, "0", seq)
        .sizes(sizes.clone(), out_sizes.clone())
        .with("input_dtypes", dtypes.clone())
        .with("output_dtypes", out_dtypes.clone());
    // Gloo retires calls, and never records that they are complete.
    if is_gloo { entry.with("state", "scheduled") } else { entry }
}

/// Findings of a job of three ranks whose second call has this form, all calls complete; `last`: the
/// tensors of rank 2.
fn found(form: &Form, last: &Tensors) -> Vec<(String, String, Vec<u32>)> {
    let backend = form.name.split(':').next().unwrap();
    let around = |seq| {
        let around = Form {
            name: if backend == "gloo" { "gloo:all_reduce" } else { "nccl:all_reduce" },
            root: in_place("Float", json!([[3]])),
            leaf: in_place("Float", json!([[3]])),
            odd: in_place("Float", json!([[3]])),
            code: "",
        };
        entry(&around, &around.root, seq)
    };
    let sides = [&form.root, &form.leaf, last];
    let dumps = sides
        .map(|side| dump(&[("0", "[0, 1, 2]")], &[around(1), entry(form, side, 2), around(3)]));
    findings(report(&analyze(&dumps)))
}

fn forms() -> Vec<Form> {
    let bytes = |elements: u32| tensors("Byte", json!([[elements]]));
    let floats = |elements: u32| tensors("Float", json!([[elements]]));
    let list = |dtype, elements: u32| tensors(dtype, json!([[elements], [elements], [elements]]));
    vec![
        Form {
            name: "nccl:gather",
            root: both(bytes(21), list("Byte", 21)),
            leaf: both(bytes(21), placeholder()),
            odd: both(floats(21), placeholder()),
            code: "DD105",
        },
        Form {
            name: "nccl:gather",
            root: both(bytes(21), list("Byte", 21)),
            leaf: both(bytes(21), placeholder()),
            odd: both(bytes(22), placeholder()),
            code: "DD104",
        },
        Form {
            name: "xccl:gather",
            root: both(bytes(21), list("Byte", 21)),
            leaf: both(bytes(21), placeholder()),
            odd: both(floats(21), placeholder()),
            code: "DD105",
        },
        Form {
            name: "nccl2:gather",
            root: both(bytes(21), list("Byte", 21)),
            leaf: both(bytes(21), none()),
            odd: both(floats(21), none()),
            code: "DD105",
        },
        Form {
            name: "gloo:gather",
            root: both(floats(5), tensors("Float", json!([[3, 5]]))),
            leaf: both(floats(5), none()),
            odd: both(floats(6), none()),
            code: "DD104",
        },
        Form {
            name: "nccl:scatter",
            root: both(list("Long", 4), tensors("Long", json!([[4]]))),
            leaf: both(placeholder(), tensors("Long", json!([[4]]))),
            odd: both(placeholder(), tensors("Float", json!([[4]]))),
            code: "DD105",
        },
        Form {
            name: "gloo:scatter",
            root: both(tensors("Byte", json!([[3, 5]])), bytes(5)),
            leaf: both(none(), bytes(5)),
            odd: both(none(), bytes(6)),
            code: "DD104",
        },
        Form {
            name: "nccl:reduce",
            root: in_place("Float", json!([[4]])),
            leaf: in_place("Float", json!([[4]])),
            odd: in_place("Half", json!([[4]])),
            code: "DD105",
        },
        Form {
            name: "nccl:broadcast",
            root: in_place("Float", json!([[2, 3]])),
            leaf: in_place("Float", json!([[6]])),
            odd: in_place("Float", json!([[7]])),
            code: "DD104",
        },
        Form {
            name: "nccl:all_reduce",
            root: in_place("Float", json!([[]])),
            leaf: in_place("Float", json!([[1]])),
            odd: in_place("Float", json!([[0]])),
            code: "DD104",
        },
        Form {
            name: "gloo:all_reduce",
            root: in_place("Float", json!([[3], [4]])),
            leaf: in_place("Float", json!([[7]])),
            odd: in_place("Float", json!([[3], [5]])),
            code: "DD104",
        },
        Form {
            name: "gloo:all_gather",
            root: both(tensors("Float", json!([[3], [4]])), tensors("Float", json!([[2, 3]]))),
            leaf: both(tensors("Float", json!([[3], [4]])), tensors("Float", json!([[2, 3]]))),
            odd: both(tensors("Float", json!([[3], [5]])), tensors("Float", json!([[2, 3]]))),
            code: "DD104",
        },
        Form {
            name: "nccl:all_gather",
            root: both(floats(6), tensors("Float", json!([[3, 6]]))),
            leaf: both(floats(6), list("Float", 6)),
            odd: both(floats(7), list("Float", 7)),
            code: "DD104",
        },
        Form {
            name: "nccl:reduce_scatter",
            root: both(tensors("Float", json!([[3, 2]])), floats(2)),
            leaf: both(list("Float", 2), floats(2)),
            odd: both(list("Float", 3), floats(3)),
            code: "DD104",
        },
        Form {
            name: "nccl:all_to_all",
            root: both(list("Float", 2), list("Float", 2)),
            leaf: both(floats(6), floats(6)),
            odd: both(tensors("Half", json!([[6]])), tensors("Half", json!([[6]]))),
            code: "DD105",
        },
        Form {
            name: "nccl:allreduce_coalesced",
            root: in_place("Float", json!([[3], [5]])),
            leaf: in_place("Float", json!([[3], [5]])),
            odd: in_place("Half", json!([[3], [5]])),
            code: "DD105",
        },
        Form {
            name: "gloo:barrier",
            root: both(none(), none()),
            leaf: both(none(), none()),
            odd: both(placeholder(), placeholder()),
            code: "",
        },
    ]
}

#[test]
fn sides_of_one_call_agree_in_every_form() {
    for form in forms() {
        let agreeing = found(&form, &form.leaf);
        assert!(agreeing.is_empty(), "{} {:?}: {agreeing:?}", form.name, form.leaf);
    }
}

#[test]
fn call_that_does_not_fit_is_found_in_every_form() {
    for form in forms() {
        let findings = found(&form, &form.odd);
        let found: Vec<(&str, &[u32])> =
            findings.iter().map(|(code, _, root)| (&**code, &root[..])).collect();
        let expected: &[(&str, &[u32])] =
            if form.code.is_empty() { &[] } else { &[(form.code, &[2])] };
        assert_eq!(found, expected, "{} {:?}", form.name, form.odd);
    }
}

#[test]
fn received_tensor_is_the_size_of_a_message() {
    let send = Entry::message("nccl2:send 0->1", "0", 1).sizes(json!([[4]]), json!([]));
    let receive = |elements: u32| {
        let receive =
            Entry::message("nccl2:recv 1<-0", "0", 1).sizes(json!([]), json!([[elements]]));
        receive.with("input_dtypes", json!([])).open()
    };
    let found = |elements| {
        let dumps = [
            dump(&[("0", "[0, 1]")], &[send.clone().with("output_dtypes", json!([])).open()]),
            dump(&[("0", "[0, 1]")], &[receive(elements)]),
        ];
        findings(report(&analyze(&dumps)))
    };
    let codes = |elements| found(elements).into_iter().map(|it| it.0).collect::<Vec<_>>();
    assert_eq!(codes(5), ["DD113"]);
    assert_ne!(codes(4), ["DD113"]);
}
