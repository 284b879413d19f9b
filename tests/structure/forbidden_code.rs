//! Code that is allowed in listed places only.

use std::fs;

use super::{files_below, root};

#[test]
fn engine_uses_no_io_clock_or_thread() {
    let forbidden = [
        "std::net",
        "std::fs",
        "std::io",
        "std::thread",
        "std::env",
        "std::process",
        "Instant::now",
        "SystemTime",
        "Timestamp::now",
    ];
    for file in files_below("src/diagnosis", "rs") {
        let text = fs::read_to_string(&file).unwrap();
        for (i, line) in text.lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            for word in forbidden {
                assert!(!code.contains(word), "{}:{}: {word}", file.display(), i + 1);
            }
        }
    }
}

/// What differs between backends is in the table `evidence/backends.rs`; "nccl" is also the name of a layer.
#[test]
fn only_the_table_of_backends_knows_them_by_name() {
    let names = ["gloo", "mpi", "ucc", "xccl", "hccl", "rccl", "fake"];
    let quoted = names.map(|name| format!("\"{name}\""));
    let by_device = ["\"cpu:", "\"cuda:", "contains(\"nccl", "contains(\"gloo"].map(str::to_owned);
    for file in files_below("src", "rs") {
        let is_table = file.ends_with("src/diagnosis/evidence/backends.rs");
        let text = fs::read_to_string(&file).unwrap();
        // Tests and texts of logs name backends as users do.
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        let is_test = file.iter().any(|it| it == "tests" || it == "demo")
            || file.file_stem().is_some_and(|it| {
                let name = it.to_string_lossy();
                name.ends_with("tests") || name == "testing"
            });
        if is_table || is_test {
            continue;
        }
        for (i, line) in code.lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            for word in quoted.iter().chain(&by_device) {
                assert!(!code.contains(word), "{}:{}: {word}", file.display(), i + 1);
            }
        }
    }
}

/// Another user can exchange what a path leads to for a link at any moment: only descriptors of directories whose
/// owner was checked are safe.
#[test]
fn only_host_files_changes_files_or_connects_by_name() {
    let forbidden = [
        "fs::create_dir",
        "fs::rename",
        "fs::remove_",
        "fs::write",
        "fs::copy",
        "fs::hard_link",
        "fs::set_permissions",
        "DirBuilder",
        "File::create",
        "fs::symlink",
        ".append(true)",
        ".create(true)",
        ".create_new(true)",
        ".write(true)",
        ".truncate(true)",
        "UnixListener::bind",
        "UnixStream::connect",
    ];
    // It opens /dev/null and the terminal.
    let devices = root().join("src/node/sys.rs");
    let room = root().join("src/host/files");
    let mut found = Vec::new();
    for file in ["src", "dashboard/src"].iter().flat_map(|folder| files_below(folder, "rs")) {
        let is_test = file.iter().any(|it| it == "tests")
            || file.file_stem().is_some_and(|it| it.to_string_lossy().ends_with("tests"));
        if is_test || file == devices || file.starts_with(&room) {
            continue;
        }
        let text = fs::read_to_string(&file).unwrap();
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        for (i, line) in code.lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            if let Some(word) = forbidden.iter().find(|word| code.contains(**word)) {
                found.push(format!("{}:{}: {word}", file.display(), i + 1));
            }
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn unsafe_code_is_limited_to_listed_files() {
    let fenced = [
        "agent/capi/src/lib.rs",
        "agent/capi/src/ptr.rs",
        "agent/capi/src/python.rs",
        "agent/capi/src/shared.rs",
        "agent/nccl/soname/src/lib.rs",
        "agent/nccl/src/communicators/communicator.rs",
        "agent/nccl/src/communicators/creation.rs",
        "agent/nccl/src/communicators/memory.rs",
        "agent/nccl/src/communicators/table.rs",
        "agent/nccl/src/cuda/driver.rs",
        "agent/nccl/src/hooks/exports.rs",
        "agent/nccl/src/nccl/abi.rs",
        "agent/nccl/src/nccl/library.rs",
        "agent/nccl/src/nccl/loader_search.rs",
        "agent/nccl/src/nccl/queries.rs",
        "agent/nccl/src/profiler/layout.rs",
        "agent/nccl/src/profiler/plugin.rs",
        "agent/nccl/src/profiler/user_plugin.rs",
        "agent/nccl/src/recording/black_box.rs",
        "agent/nccl/src/recording/own_box.rs",
        "agent/nccl/src/return_address.rs",
        "agent/python/native/src/frame.rs",
        "agent/python/native/src/lib.rs",
        "agent/python/native/src/library.rs",
        "agent/python/native/src/object.rs",
        "agent/python/native/src/python.rs",
        "agent/src/blackbox/faults.rs",
        "agent/src/blackbox/map.rs",
        "agent/src/current.rs",
        "agent/src/detach.rs",
        "agent/src/gpu.rs",
        "agent/src/nccl/mod.rs",
        "agent/src/sys.rs",
        "src/node/processes.rs",
        "src/node/sys.rs",
        "tests/doubles/cuda/src/abi.rs",
        "tests/doubles/cuda/src/pointers.rs",
        "tests/doubles/nccl/src/abi.rs",
        "tests/doubles/nccl/src/driver.rs",
        "tests/doubles/nccl/src/pointers.rs",
        "tests/jobs/nccl/pipeline.rs",
    ];
    let mut found = Vec::new();
    for folder in [
        "src",
        "proto/src",
        "agent/src",
        "agent/capi/src",
        "agent/nccl/soname/src",
        "agent/nccl/src",
        "agent/python/native/src",
        "dashboard/src",
        "tests/doubles",
        "tests/jobs",
    ] {
        for file in files_below(folder, "rs") {
            let text = fs::read_to_string(&file).unwrap();
            let uses = |line: &str| {
                let code = line.split("//").next().unwrap_or_default();
                code.contains("unsafe ") || code.contains("unsafe(")
            };
            if text.lines().any(uses) {
                found.push(file.strip_prefix(root()).unwrap().display().to_string());
            }
        }
    }
    found.sort();
    assert_eq!(found, fenced);
}

/// Sentences of findings are made where their facts are known.
#[test]
fn only_the_engine_edits_sentences_of_findings() {
    let fields = ["finding.summary", ".why", "finding.next"];
    let edits = [
        " =",
        ".push(",
        ".push_str(",
        ".insert(",
        ".remove(",
        ".retain(",
        ".clear(",
        ".extend(",
        ".splice(",
        ".replace(",
        ".iter_mut(",
    ];
    let mut found = Vec::new();
    for file in ["src", "dashboard/src"].iter().flat_map(|folder| files_below(folder, "rs")) {
        let name = file.strip_prefix(root()).unwrap().display().to_string();
        if name.starts_with("src/diagnosis/") || name.ends_with("/tests.rs") {
            continue;
        }
        let text = fs::read_to_string(&file).unwrap();
        let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
        let is_edit = |line: &str| {
            let code = line.split("//").next().unwrap_or_default();
            fields.iter().any(|field| {
                let mut uses = code.match_indices(field).map(|(at, _)| &code[at + field.len()..]);
                uses.any(|rest| {
                    edits.iter().any(|it| rest.starts_with(it)) && !rest.starts_with(" ==")
                })
            })
        };
        if text.lines().any(is_edit) {
            found.push(name);
        }
    }
    assert!(found.is_empty(), "{found:?}");
}
