//! Attacks by another user of the machine who exchanges the directory of black boxes for another one, or puts files into
//! it, because the path to it leads through a directory to which everybody can write.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use ddp_doctor::host::files::{Identity, KnownDirectories};
use ddp_doctor_agent::blackbox::{FollowedBy, Following, Reader};

use super::other_users::text;
use super::victim::{Victim, with_two_users};
use crate::support::evidence::boxes_of;
use crate::support::process::{program, run_to_end};

/// A run whose black boxes are in its run directory, since another user has made the directory in shared memory.
const IN_RUN_DIRECTORY: &str = r#"
mkdir -m 777 /mnt/shared
cd /mnt/shared
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
            touch /mnt/home/started
            while [ ! -e /mnt/home/go ]; do sleep 0.05; done
            LD_LIBRARY_PATH=/mnt/bin exec /mnt/bin/training 2' &
        until_exists /mnt/home/started
        attacker mv out away
        attacker mv archive out
        touch /mnt/home/go
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
        victim ddp-doctor run --run-dir out --report /mnt/home/report.json -- sh -c '
            touch /mnt/home/started
            while [ ! -e /mnt/home/go ]; do sleep 0.05; done
            sleep 0.3' &
        until_exists /mnt/home/started
        attacker touch out/boxes/nobox.31337.7
        victim touch out/boxes/nobox.31338.6
        touch /mnt/home/go
        wait $!
        cat /mnt/home/report.json
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

/// Between the start of a reporter and its first look at the directory, another one has been put there.
#[test]
fn reporter_uses_only_the_directory_of_its_rank() {
    let Some(victim) = Victim::new() else { return };
    let shared = victim.path().join("shared");
    fs::create_dir(&shared).unwrap();
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o777)).unwrap();
    let boxes = shared.join("boxes");
    let black_box = boxes_of(&boxes, [3, 3], [false, false]).remove(0);
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
                let exchange = rustix::fs::RenameFlags::EXCHANGE;
                let cwd = rustix::fs::CWD;
                rustix::fs::renameat_with(cwd, &black_box, cwd, &fifo, exchange).unwrap();
            }
        });
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                // Succeeds only while a reader has it open.
                let nonblocking = libc::O_NONBLOCK;
                let found = File::options().write(true).custom_flags(nonblocking).open(&writer);
                assert!(found.is_err(), "it was opened for reading");
            }
        });
        for _ in 0..20_000 {
            opened += u32::from(Reader::open(&black_box).is_ok());
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(opened > 0, "the file was never opened");
}
