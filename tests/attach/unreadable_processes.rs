//! A process of another user that keeps readers waiting for ever keeps no command of root from ending.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::security::other_users::{OtherUser, text};
use crate::support::process::PROGRAM;

/// Runs commands of root beside an ordinary rank and an unreadable one, in a process namespace of their own: `ps` would
/// hang as well.
const COMMANDS: &str = r#"
rank() { number=$1; shift; env RANK=0 WORLD_SIZE=1 MASTER_PORT=377$number setpriv --reuid=6553$number --regid=6553$number --clear-groups ./unreadable ./libtorch_cpu.so "$@" > ready$number & }
rank 3; ordinary=$!
rank 4 ./fuse; unreadable=$!
for i in $(seq 200); do [ -s ready3 ] && [ -s ready4 ] && break; sleep 0.1; done
[ -s ready3 ] && [ -s ready4 ] || { echo "no FUSE here"; exit; }
for command in "attach --job job-3773 --time-scale 0.05" "attach $ordinary --time-scale 0.05" status "watch --once" dump "dump --pid $unreadable"; do
    timeout -s KILL 30 "$0" $command 2>&1
    echo "$command: $?"
done
# The command of `run` starts a process of another user.
timeout -s KILL 60 "$0" run --run-dir run -- bash -c 'setpriv --reuid=65534 --regid=65534 --clear-groups ./unreadable ./libtorch_cpu.so ./fuse > ready5 & while [ ! -s ready5 ]; do sleep 0.1; done; sleep 3' 2>&1
echo "run: $?"
"#;

#[test]
fn process_that_nobody_can_read_keeps_no_command_from_ending() {
    let Some(other) = OtherUser::new() else {
        return;
    };
    let folder = other.path();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/programs/unreadable.c");
    let compiled = Command::new("gcc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-o"])
        .args([folder.join("unreadable").to_str().unwrap(), source, "-lpthread"])
        .status();
    assert!(compiled.unwrap().success());
    fs::write(folder.join("libtorch_cpu.so"), [0; 4096]).unwrap();
    let fuse = folder.join("fuse");
    let made = Command::new("mknod").arg(&fuse).args(["c", "10", "229"]).status();
    if !made.unwrap().success() {
        println!("skipped: no devices can be made here");
        return;
    }
    fs::set_permissions(&fuse, fs::Permissions::from_mode(0o666)).unwrap();
    let output = Command::new("unshare")
        .args([
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "bash",
            "-c",
            COMMANDS,
        ])
        .arg(PROGRAM)
        .current_dir(folder)
        .output()
        .unwrap();
    let said = text(&output);
    if said.contains("no FUSE here") || !output.status.success() {
        println!("skipped: {said}");
        return;
    }
    assert!(said.contains("run: 0") && !said.contains(": 137"), "{said}");
    // The job of the other user is diagnosed, without the process that cannot be read.
    assert!(said.contains("1 process of other users could not be read in time"), "{said}");
    assert_eq!(said.matches("rank 0: ").count(), 2, "{said}");
    assert!(said.contains("its memory could not be read within 2 s"), "{said}");
}
