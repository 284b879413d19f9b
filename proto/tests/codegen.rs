//! Compares the committed protobuf code with the output of the generator.
//!
//! Runs the generator without `protoc`. After a change of a `.proto` file, run with
//! `UPDATE_GENERATED=1`.

use std::{fs, path::Path};

const FILES: [&str; 4] = ["vocabulary", "agent", "finding", "viewer"];

#[test]
fn committed_code_matches_the_proto_files() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = FILES.map(|name| format!("ddpdoctor/v1/{name}.proto"));
    let descriptors = protox::compile(&files, [root]).unwrap();

    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("generated");
    fs::create_dir_all(&out).unwrap();
    tonic_prost_build::configure()
        .build_transport(true)
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
        let out = if in_service {
            &mut services
        } else {
            &mut messages
        };
        out.push_str(line);
        out.push('\n');
        in_service &= line != "}";
    }
    (messages, services)
}
