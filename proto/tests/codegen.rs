//! Compares generated code with its sources: the tables of operations with the vocabulary, and the
//! protobuf code with the `.proto` files, without `protoc`. After a change of either, run with
//! `UPDATE_GENERATED=1` and `--test-threads=1`.

use std::{fs, path::Path};

use ddp_doctor_proto::Op;

const FILES: [&str; 3] = ["vocabulary", "agent", "viewer"];

/// The tables of operations in other languages: file, text before and after the table, and prefix,
/// separator and end of an entry.
const TABLES: [(&str, &str, &str, [&str; 2]); 3] = [
    (
        "ddpdoctor/v1/vocabulary.proto",
        "enum Op {\n  OP_UNSPECIFIED = 0;\n",
        "}\n",
        ["  OP_", ";\n"],
    ),
    ("../agent/python/ddp_doctor/_words.py", "\n# Operations.\n", "\n", ["", "\n"]),
    (
        "../agent/capi/include/ddp_doctor.h",
        "\nenum ddp_doctor_op {\n",
        "};\n",
        ["    DDP_DOCTOR_OP_", ",\n"],
    ),
];

#[test]
fn tables_of_operations_match_the_vocabulary() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (file, head, tail, [prefix, end]) in TABLES {
        let path = root.join(file);
        let text = fs::read_to_string(&path).unwrap();
        let begin = text.find(head).unwrap() + head.len();
        let length = text[begin..].find(&format!("{end}{tail}")).unwrap() + end.len();
        let entry = |op: &Op| {
            let name = op.name().unwrap().to_uppercase();
            format!("{prefix}{name} = {}{end}", op.number())
        };
        let table: String = Op::ALL.iter().map(entry).collect();
        let updated = format!("{}{table}{}", &text[..begin], &text[begin + length..]);
        if std::env::var_os("UPDATE_GENERATED").is_some() {
            fs::write(&path, &updated).unwrap();
        } else {
            assert!(
                text == updated,
                "{file} differs from src/vocabulary.rs; run the test with UPDATE_GENERATED=1"
            );
        }
    }
}

#[test]
fn committed_code_matches_the_proto_files() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = FILES.map(|name| format!("ddpdoctor/v1/{name}.proto"));
    let descriptors = protox::compile(&files, [root]).unwrap();

    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("generated");
    fs::create_dir_all(&out).unwrap();
    tonic_prost_build::configure()
        .build_transport(true)
        // Few records have one, and each event has room for the largest message.
        .boxed(".ddpdoctor.v1.Record.creation")
        .out_dir(&out)
        .compile_fds(descriptors)
        .unwrap();
    let generated = fs::read_to_string(out.join("ddpdoctor.v1.rs")).unwrap();

    let (messages, services) = split(&generated);
    for (name, text) in [("messages.rs", &messages), ("services.rs", &services)] {
        let committed = root.join("src/generated").join(name);
        if std::env::var_os("UPDATE_GENERATED").is_some() {
            fs::create_dir_all(committed.parent().unwrap()).unwrap();
            fs::write(&committed, text).unwrap();
        }
        let found = fs::read_to_string(&committed).unwrap_or_default();
        assert!(
            found == *text,
            "{} differs from what the .proto files say; run the test with UPDATE_GENERATED=1",
            committed.display()
        );
    }
}

/// Separates the messages, which do not need gRPC, from the service modules, which do.
fn split(generated: &str) -> (String, String) {
    let (mut messages, mut services) = (String::new(), String::new());
    let mut in_service = false;
    for line in generated.lines() {
        in_service |= line.starts_with("/// Generated client implementations.")
            || line.starts_with("/// Generated server implementations.");
        let out = if in_service { &mut services } else { &mut messages };
        out.push_str(line);
        out.push('\n');
        in_service &= line != "}";
    }
    (messages, services)
}
