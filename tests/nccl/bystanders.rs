//! Processes that inherit the preloaded library but are not ranks must not be affected.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use super::library;
use crate::support::process::run_to_end;

#[test]
fn program_without_nccl_is_unaffected() {
    let dir = tempfile::tempdir().unwrap();
    let run = |preload: bool| {
        let mut bash = Command::new("bash");
        bash.args(["-c", "cat /proc/$$/maps; ls | cat; env"])
            .current_dir(dir.path())
            .env("DDP_DOCTOR_BOX_DIR", dir.path())
            .env_remove("DDP_DOCTOR_TEST_NCCL");
        if preload {
            bash.env("LD_PRELOAD", library());
        }
        bash.output().unwrap()
    };
    let output = run(true);
    assert!(output.status.success() && output.stderr.is_empty());
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("libddp_doctor_nccl.so"), "it was loaded");
    assert!(!said.contains("libnccl.so"), "and loads nothing");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    assert!(run(false).status.success());
}

/// Build tools start many processes, as a training program does that compiles an extension; their
/// results and their output must stay the same.
#[test]
fn build_tools_are_unaffected() {
    const MAKE: &str = "all: a b\n\t@cat a b\n%: %.txt\n\t@tr a-z A-Z <$< >$@\n";
    const NINJA: &str = "rule up\n command = tr a-z A-Z <$in >$out && cat $out\n\
        build a: up a.txt\nbuild b: up b.txt | a\n";
    for (tool, file, rules) in [("make", "Makefile", MAKE), ("ninja", "build.ninja", NINJA)] {
        if Command::new(tool).arg("--version").output().is_err() {
            eprintln!("skipped: there is no {tool}");
            continue;
        }
        let run = |preload: bool| {
            let dir = tempfile::tempdir().unwrap();
            let boxes = tempfile::tempdir().unwrap();
            fs::write(dir.path().join(file), rules).unwrap();
            for name in ["a", "b"] {
                fs::write(dir.path().join(format!("{name}.txt")), name).unwrap();
            }
            let mut command = Command::new(tool);
            // With these variables a rank would create a box and start a reporter.
            command
                .current_dir(dir.path())
                .env("DDP_DOCTOR_BOX_DIR", boxes.path())
                .env("DDP_DOCTOR_COORDINATOR", "127.0.0.1:9")
                .env_remove("LD_PRELOAD");
            // Variables of an outer `make test` would make this a recursive make.
            for name in ["MAKEFLAGS", "MAKELEVEL", "MFLAGS"] {
                command.env_remove(name);
            }
            if preload {
                command.env("LD_PRELOAD", library());
            }
            let finished = run_to_end(command);
            assert_eq!(finished.status, Some(0), "{tool}: {finished}");
            assert_eq!(fs::read_dir(boxes.path()).unwrap().count(), 0);
            (finished.stdout, finished.stderr)
        };
        let with = run(true);
        assert_eq!(with, run(false), "{tool}");
        assert!(with.0.contains("AB") || with.0.contains('B'), "{with:?}");
    }
}

/// Every process of a job loads the library. It needs only the C library and the unwinder, and has
/// two initializers: the C runtime's, and Rust's for the arguments of the program.
#[test]
fn preloaded_library_has_few_dependencies_and_initializers() {
    if Command::new("readelf").arg("--version").output().is_err() {
        eprintln!("skipped: there is no readelf");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let link = dir.path().join("library.so");
    symlink(library(), &link).unwrap();
    let dynamic = dynamic_section(&link);
    let needed: Vec<&str> = entries(&dynamic, "(NEEDED)").collect();
    for name in &needed {
        let known = ["[libc.so.6]", "[libgcc_s.so.1]", "[ld-linux-x86-64.so.2]"];
        assert!(known.contains(name), "{needed:?}");
    }
    let bytes: u32 = entries(&dynamic, "(INIT_ARRAYSZ)").map(|it| it.parse::<u32>().unwrap()).sum();
    assert!(bytes <= 2 * 8, "{dynamic}");
}

fn dynamic_section(library: &Path) -> String {
    let read = Command::new("readelf").args(["--wide", "--dynamic"]).arg(library).output();
    String::from_utf8(read.unwrap().stdout).unwrap()
}

/// First word of each entry's value, without "Shared library:".
fn entries<'d>(dynamic: &'d str, kind: &'d str) -> impl Iterator<Item = &'d str> {
    let said = dynamic.lines().filter_map(move |line| line.split_once(kind));
    said.filter_map(|(_, said)| {
        let said = said.trim().trim_start_matches("Shared library: ");
        said.split_whitespace().next()
    })
}
