//! Attacks by another user of the machine who exchanges the directory of black boxes for another one, or puts files into
//! it, because the path to it leads through a directory to which everybody can write.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use ddp_doctor::host::boxes::boxes_in;
use ddp_doctor::host::files::{Identity, KnownDirectories};
use ddp_doctor_agent::blackbox::{FollowedBy, Following, Reader};

use super::other_users::text;
use super::victim::{Victim, while_exchanging, with_two_users};
use crate::support::compiled_programs::training;
use crate::support::coordinator::Coordinator;
use crate::support::evidence::boxes_of;
use crate::support::job_without_run::{Bare, reporters};
use crate::support::process::{eventually, program, run_to_end};

/// A run whose black boxes are in its run directory, since another user has made the directory in shared memory.
const IN_RUN_DIRECTORY: &str = r#"
mkdir -m 777 /home/shared
cd /home/shared
attacker mkdir /dev/shm/ddp-doctor-64126
"#;

/// Another directory of the victim's takes the place of the run directory before the ranks start.
#[test]
fn ranks_use_only_the_directory_that_run_made() {
    let script = r#"
        victim mkdir -p archive/boxes
        echo precious > archive/boxes/followed
        chown 64126:64126 archive/boxes/followed
        victim ddp-doctor run --run-dir out -- sh -c '
            touch /home/home/started
            while [ ! -e /home/home/go ]; do sleep 0.05; done
            LD_LIBRARY_PATH=/home/bin exec /home/bin/training 2' &
        until_exists /home/home/started
        attacker mv out away
        attacker mv archive out
        touch /home/home/go
        wait $!
        echo "left: $(ls -A out out/boxes | tr '\n' ' ')"
        cat out/boxes/followed
    "#;
    let Some(output) = with_two_users(&format!("{IN_RUN_DIRECTORY}{script}")) else { return };
    let said = text(&output);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("left: out: boxes  out/boxes: followed \nprecious\n"), "{said}");
}

#[test]
fn marker_of_another_user_is_not_a_rank() {
    let script = r#"
        victim mkdir out out/boxes
        chmod 755 out
        chmod 777 out/boxes
        victim ddp-doctor run --run-dir out --report /home/home/report.json -- sh -c '
            touch /home/home/started
            while [ ! -e /home/home/go ]; do sleep 0.05; done
            sleep 0.3' &
        until_exists /home/home/started
        attacker touch out/boxes/nobox.31337.7
        victim touch out/boxes/nobox.31338.6
        touch /home/home/go
        wait $!
        cat /home/home/report.json
    "#;
    let Some(output) = with_two_users(&format!("{IN_RUN_DIRECTORY}{script}")) else { return };
    let said = text(&output);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("31338") && !said.contains("31337"), "{said}");
}

fn identity(path: &Path) -> Identity {
    let found = fs::metadata(path).unwrap();
    Identity { device: found.dev(), inode: found.ino() }
}

/// A directory of boxes in one where anybody can write, and a box in it.
fn boxes_that_others_can_exchange(victim: &Victim) -> (PathBuf, PathBuf) {
    let shared = victim.path().join("shared");
    fs::create_dir(&shared).unwrap();
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o777)).unwrap();
    let boxes = shared.join("boxes");
    let black_box = boxes_of(&boxes, [3, 3], [false, false]).remove(0);
    (boxes, black_box)
}

/// Between the start of a reporter and its first look at the directory, another one has been put there.
#[test]
fn reporter_uses_only_the_directory_of_its_rank() {
    let Some(victim) = Victim::new() else { return };
    let (boxes, black_box) = boxes_that_others_can_exchange(&victim);
    let elsewhere = KnownDirectories::new([identity(victim.path())]);
    let error = Following::begin_in(&boxes, FollowedBy::Reporter, &elsewhere).unwrap_err();
    assert!(error.to_string().contains("is not the directory that was made"), "{error}");
    let mut reporter = program(victim.path());
    reporter.arg("reporter").args([&black_box, &boxes]);
    reporter.env("DDP_DOCTOR_COORDINATOR", "127.0.0.1:1");
    reporter.env(KnownDirectories::VARIABLE, elsewhere.to_string());
    let finished = run_to_end(reporter);
    assert!(finished.stderr.contains("is not the directory that was made"), "{finished}");
    let names = fs::read_dir(&boxes).unwrap().map(|it| it.unwrap().file_name());
    assert!(names.into_iter().all(|it| it.to_string_lossy().ends_with(".box")));
    let known = KnownDirectories::new([identity(victim.path()), identity(&boxes)]);
    assert!(Following::begin_in(&boxes, FollowedBy::Reporter, &known).unwrap().is_some());
    // In a place where nobody else can have put it, any directory of this user is used.
    let own = victim.path().join("own");
    fs::create_dir(&own).unwrap();
    assert!(Following::begin_in(&own, FollowedBy::Reporter, &elsewhere).unwrap().is_some());
}

/// Identities that cannot be parsed are not those of all directories.
#[test]
fn reporter_with_invalid_identities_uses_no_directory_that_others_can_exchange() {
    let Some(victim) = Victim::new() else { return };
    let (boxes, black_box) = boxes_that_others_can_exchange(&victim);
    for (identities, is_refused) in [("", false), ("device:inode", true), ("12", true)] {
        let mut reporter = program(victim.path());
        reporter.arg("reporter").args([&black_box, &boxes]);
        // An invalid address, which is reported if the directory is used.
        reporter.env("DDP_DOCTOR_COORDINATOR", "nowhere");
        reporter.env(KnownDirectories::VARIABLE, identities);
        let finished = run_to_end(reporter);
        let refused = finished.stderr.contains("is not the directory that was made");
        assert_eq!(refused, is_refused, "{identities}: {finished}");
    }
}

/// While a reporter follows the boxes, the directory is exchanged for a copy of them that the victim keeps.
#[test]
fn reporter_removes_boxes_only_from_the_directory_that_it_followed() {
    let dir = tempfile::tempdir().unwrap();
    let shared = dir.path().join("shared");
    fs::create_dir(&shared).unwrap();
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o777)).unwrap();
    let (boxes, away) = (shared.join("boxes"), shared.join("away"));
    let count = |of: &Path| boxes_in(of).unwrap().len();
    let coordinator = Coordinator::start();
    let environment = [("DDP_DOCTOR_BOX_DIR", boxes.to_str().unwrap())];
    let command = [training(), "3", "early-exit"];
    let job = Bare::start_with("kept", coordinator.address(), &command, &environment);
    coordinator.until("kept", |report| !report.findings.is_empty());
    let copied = Command::new("cp").arg("-a").args([&boxes, &shared.join("copy")]).status();
    assert!(copied.unwrap().success());
    let kept = count(&boxes);
    fs::rename(&boxes, &away).unwrap();
    fs::rename(shared.join("copy"), &boxes).unwrap();
    job.signal("-KILL");
    eventually("the reporter is gone", || reporters(&shared).is_empty());
    assert_eq!(count(&boxes), kept);
    assert_eq!(count(&away), 0);
}

/// Opening a device can have side effects, and opening a FIFO shows here that it happened.
#[test]
fn file_that_is_exchanged_for_a_fifo_is_not_opened() {
    let dir = tempfile::tempdir().unwrap();
    let black_box = boxes_of(dir.path(), [3, 3], [false, false]).remove(0);
    let fifo = dir.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let fifo_itself = File::options().read(true).custom_flags(libc::O_PATH).open(&fifo).unwrap();
    let writer = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fifo_itself));
    let stop = AtomicBool::new(false);
    let mut opened = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                // Succeeds only while a reader has it open.
                let nonblocking = libc::O_NONBLOCK;
                let found = File::options().write(true).custom_flags(nonblocking).open(&writer);
                assert!(found.is_err(), "it was opened for reading");
            }
        });
        while_exchanging(&black_box, &fifo, || {
            for _ in 0..20_000 {
                opened += u32::from(Reader::open(&black_box).is_ok());
            }
        });
        stop.store(true, Ordering::Relaxed);
    });
    assert!(opened > 0, "the file was never opened");
}
