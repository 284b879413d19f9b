//! Code that is allowed in listed places only.

use std::fs;
use std::path::Path;

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

/// Words in code that changes files, or connects to something, by a path.
const CHANGES_BY_NAME: [&str; 17] = [
    "fs::create_dir",
    "fs::rename",
    "fs::remove_",
    "fs::write",
    "fs::copy",
    "fs::hard_link",
    "fs::set_permissions",
    "DirBuilder",
    "File::create",
    "fs::symlink(",
    ".append(true)",
    ".create(true)",
    ".create_new(true)",
    ".write(true)",
    ".truncate(true)",
    "UnixListener::bind",
    "UnixStream::connect",
];

/// Uses of these words in the code of a file, without its tests and comments.
fn uses(file: &Path, forbidden: &[&str], comment: &str) -> Vec<String> {
    let text = fs::read_to_string(file).unwrap();
    let code = text.split("#[cfg(test)]").next().unwrap_or_default();
    let lines = code.lines().map(|line| line.split(comment).next().unwrap_or_default());
    let word = |line: &str| forbidden.iter().find(|word| line.contains(**word)).copied();
    let found = lines.enumerate().filter_map(|(i, line)| Some((i + 1, word(line)?)));
    found.map(|(line, word)| format!("{}:{line}: {word}", file.display())).collect()
}

/// Another user can exchange what a path leads to for a link at any moment: only descriptors of directories whose
/// owner was checked are safe.
#[test]
fn only_host_files_changes_files_or_connects_by_name() {
    // It opens /dev/null and the terminal.
    let devices = root().join("src/host/sys.rs");
    let room = root().join("src/host/files");
    let mut found = Vec::new();
    for file in ["src", "dashboard/src"].iter().flat_map(|folder| files_below(folder, "rs")) {
        let is_test = file.iter().any(|it| it == "tests")
            || file.file_stem().is_some_and(|it| it.to_string_lossy().ends_with("tests"));
        if is_test || file == devices || file.starts_with(&room) {
            continue;
        }
        found.extend(uses(&file, &CHANGES_BY_NAME, "//"));
    }
    assert!(found.is_empty(), "{found:#?}");
}

/// Text of another user, such as an address or the name of a file, must not control the terminal of a reader.
#[test]
fn lines_on_standard_error_are_cleaned() {
    let listed = ["src/cli/output.rs", "src/node/upload/reporter.rs"].map(|it| root().join(it));
    let files = files_below("src", "rs").into_iter().filter(|file| !listed.contains(file));
    let found: Vec<String> = files
        .flat_map(|file| uses(&file, &["writeln!(io::stderr()", "io::stderr();"], "//"))
        .collect();
    assert!(found.is_empty(), "{found:#?}");
}

/// The same in a training process.
#[test]
fn only_agent_files_changes_files_or_connects_by_name() {
    let calls = [
        "libc::open",
        "libc::creat",
        "libc::mkdir",
        "libc::mknod",
        "libc::mkfifo",
        "libc::rename",
        "libc::unlink",
        "libc::rmdir",
        "libc::link",
        "libc::symlink",
        "libc::chmod",
        "libc::chown",
        "libc::truncate",
        "libc::shm_",
        "libc::bind",
        "libc::connect",
        "libc::fopen",
        "libc::SYS_",
    ];
    let words = [&CHANGES_BY_NAME[..], &calls].concat();
    // They open /dev/null, close descriptors, and ask whether a thread exists.
    let listed = [
        "agent/src/detach.rs: libc::open",
        "agent/src/detach.rs: libc::SYS_",
        "agent/src/sys.rs: libc::SYS_",
    ];
    let room = root().join("agent/src/files");
    let folders = [
        "agent/src",
        "agent/capi/src",
        "agent/nccl/src",
        "agent/nccl/soname/src",
        "agent/python/native/src",
        "proto/src",
    ];
    let mut found = Vec::new();
    for file in folders.iter().flat_map(|folder| files_below(folder, "rs")) {
        let name = file.strip_prefix(root()).unwrap().display().to_string();
        if !file.starts_with(&room) && file.file_stem().is_some_and(|it| it != "tests") {
            let is_listed = |it: &String| {
                let word = it.rsplit(' ').next().unwrap_or_default();
                listed.contains(&&*format!("{name}: {word}"))
            };
            found.extend(uses(&file, &words, "//").into_iter().filter(|it| !is_listed(it)));
        }
    }
    assert!(found.is_empty(), "{found:#?}");
    // The libraries have no code in C.
    for file in files_below("agent", "c") {
        assert!(file.iter().any(|it| it == "tests" || it == "examples"), "{}", file.display());
    }
}

/// The Python package only reads files.
#[test]
fn python_package_changes_no_file_and_connects_to_no_socket() {
    let words = [
        "os.rename",
        "os.replace",
        "os.remove",
        "os.unlink",
        "os.rmdir",
        "os.mkdir",
        "os.makedirs",
        "os.symlink",
        "os.link",
        "os.mkfifo",
        "os.mknod",
        "os.chmod",
        "os.chown",
        "os.truncate",
        "os.utime",
        "O_WRONLY",
        "O_RDWR",
        "O_CREAT",
        "O_TRUNC",
        "O_APPEND",
        "shutil.copy",
        "shutil.move",
        "shutil.rmtree",
        "shutil.make",
        "tempfile",
        "pathlib",
        "FileHandler",
        "mmap",
        "sqlite3",
        "shelve",
        "AF_UNIX",
        ".connect(",
    ];
    // Modes of open() other than "r" and "rb".
    let modes = ["\"w", "'w", "\"a", "'a", "\"x", "'x", "+\"", "+'", "b+", "mode"];
    let mut found = Vec::new();
    for file in files_below("agent/python/ddp_doctor", "py") {
        found.extend(uses(&file, &words, "#"));
        let text = fs::read_to_string(&file).unwrap();
        for (i, line) in text.lines().enumerate() {
            let mut opened = line.match_indices("open(").map(|(at, word)| &line[at + word.len()..]);
            if opened.any(|it| modes.iter().any(|mode| it.contains(mode))) {
                found.push(format!("{}:{}: {line}", file.display(), i + 1));
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
        "agent/python/native/src/interpreter/exceptions.rs",
        "agent/python/native/src/interpreter/frame.rs",
        "agent/python/native/src/interpreter/object.rs",
        "agent/python/native/src/interpreter/python.rs",
        "agent/python/native/src/lib.rs",
        "agent/python/native/src/library.rs",
        "agent/python/native/src/torch/arguments.rs",
        "agent/python/native/src/torch/boxes.rs",
        "agent/python/native/src/torch/functions.rs",
        "agent/src/blackbox/faults.rs",
        "agent/src/blackbox/map.rs",
        "agent/src/current.rs",
        "agent/src/detach.rs",
        "agent/src/files/calls.rs",
        "agent/src/gpu.rs",
        "agent/src/nccl/mod.rs",
        "agent/src/sys.rs",
        "src/host/processes.rs",
        "src/host/sys.rs",
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

/// The parts of a finding that are sentences, or decide on them.
const SENTENCES: [&str; 5] = [".summary", ".why", ".next", ".headline", ".cause"];
/// What has fields of these names that are no sentences.
const OTHER_OWNERS: [&str; 3] = ["self", "state", "node"];
/// What follows a field that is changed.
const EDITS: [&str; 24] = [
    " =",
    " +=",
    "[",
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
    ".truncate(",
    ".drain(",
    ".swap(",
    ".append(",
    ".dedup",
    ".first_mut(",
    ".last_mut(",
    ".get_mut(",
    ".pop(",
    ".take(",
    ".sort",
];

/// Sentences of findings are made where their facts are known.
#[test]
fn only_the_engine_edits_sentences_of_findings() {
    let is_edit = |line: &str| {
        let code = line.split("//").next().unwrap_or_default();
        SENTENCES.iter().any(|field| {
            code.match_indices(field).any(|(at, _)| {
                let (before, after) = (&code[..at], &code[at + field.len()..]);
                let is_path = |c: char| c.is_alphanumeric() || "_.[]".contains(c);
                let receiver =
                    before.rfind(|c: char| !is_path(c)).map_or(before, |it| &before[it + 1..]);
                let is_other =
                    OTHER_OWNERS.contains(&receiver.split('.').next().unwrap_or_default());
                let is_lent = before.trim_end_matches(is_path).ends_with("&mut ")
                    && !after.starts_with(|c: char| c.is_alphanumeric() || c == '_');
                let is_changed = EDITS.iter().any(|it| after.starts_with(it))
                    && !after.starts_with(" ==")
                    && (!after.starts_with('[') || after.contains(" = "));
                !is_other && (is_lent || is_changed)
            })
        })
    };
    for edit in [
        "it.summary = text;",
        "finding.why[0] = text;",
        "finding.next += text;",
        "mem::take(&mut finding.why)",
        "report.findings[0].summary.push_str(text)",
        "for line in &mut finding.next {",
        "it.cause = None;",
    ] {
        assert!(is_edit(edit), "{edit}");
    }
    let reads = ["self.next = it;", "if it.summary == text {", "lines.next()", "&finding.why[0]"];
    for read in reads {
        assert!(!is_edit(read), "{read}");
    }
    let mut found = Vec::new();
    for file in ["src", "dashboard/src"].iter().flat_map(|folder| files_below(folder, "rs")) {
        let name = file.strip_prefix(root()).unwrap().display().to_string();
        if name.starts_with("src/diagnosis/") || name.ends_with("/tests.rs") {
            continue;
        }
        let source = fs::read_to_string(&file).unwrap();
        let text = source.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
        if text.lines().any(is_edit) {
            found.push(name);
        }
    }
    assert!(found.is_empty(), "{found:?}");
}
