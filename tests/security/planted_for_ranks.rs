//! Attacks by another user of the machine on the files that a training process creates and reads.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::Command;

use ddp_doctor_agent::blackbox::{FollowedBy, Following, Options, Place, Reader, Writer};

use super::other_users::OtherUser;
use super::victim::{
    OTHER, SECRET, Victim, attackers_dir, attackers_file, attackers_link, while_exchanging,
};
use crate::support::compiled_programs::training;
use crate::support::evidence::boxes_of;
use crate::support::healthy_job::assert_same_result;

/// A directory of the victim's to which everybody can write.
fn open_to_all(path: &Path) {
    fs::create_dir(path).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
}

#[test]
fn lock_file_that_is_a_link_is_replaced_and_not_truncated() {
    let Some(victim) = Victim::new() else { return };
    for is_hard in [true, false] {
        let boxes = victim.path().join(format!("boxes-{is_hard}"));
        open_to_all(&boxes);
        let link = boxes.join("followed");
        if is_hard {
            fs::hard_link(victim.secret(), &link).unwrap();
        } else {
            attackers_link(&victim.secret(), &link);
        }
        let following = Following::begin(&boxes, FollowedBy::Run).unwrap();
        assert!(following.is_some());
        victim.assert_unharmed();
        assert_eq!(fs::read_to_string(&link).unwrap(), "run\n");
        assert_eq!(Following::found(&boxes), Some(FollowedBy::Run));
    }
}

#[test]
fn lock_of_another_user_does_not_hide_a_job() {
    let Some(victim) = Victim::new() else { return };
    attackers_dir(&victim.squatted());
    attackers_file(&victim.squatted().join("followed"), "run\n");
    let held = fs::File::open(victim.squatted()).unwrap();
    held.lock().unwrap();
    assert_eq!(Following::found(&victim.squatted()), None);
    Following::begin(&victim.squatted(), FollowedBy::Reporter).unwrap_err();
    // What it says about a directory of this user counts only if this user wrote it.
    let boxes = victim.path().join("boxes");
    open_to_all(&boxes);
    attackers_file(&boxes.join("followed"), "run\n");
    // A lock on the directory does not count where others can open it.
    let held = fs::File::open(&boxes).unwrap();
    held.lock().unwrap();
    assert_eq!(Following::found(&boxes), None);
    let following = Following::begin(&boxes, FollowedBy::Run).unwrap();
    assert!(following.is_some());
    assert_eq!(Following::found(&boxes), Some(FollowedBy::Run));
}

#[test]
fn rank_creates_no_box_below_a_link_of_another_user() {
    let Some(victim) = Victim::new() else { return };
    let shared = victim.path().join("shared");
    open_to_all(&shared);
    attackers_link(&victim.home(), &shared.join("run"));
    let options = || Options { layer: "c10d".into(), ..Options::default() };
    let error = Writer::create(&Place::within(shared.join("run/boxes")), &options()).unwrap_err();
    assert!(error.to_string().contains("is a link that another user can change"), "{error}");
    victim.assert_unharmed();
    // Such a link of the victim's in a place of the victim's is used.
    symlink(victim.home(), victim.path().join("own")).unwrap();
    let own = victim.path().join("own/boxes");
    assert!(Writer::create(&Place::within(own), &options()).is_ok());
}

#[test]
fn rank_creates_no_box_in_a_directory_of_another_user() {
    let Some(victim) = Victim::new() else { return };
    let boxes = victim.path().join("boxes");
    attackers_dir(&boxes);
    fs::set_permissions(&boxes, fs::Permissions::from_mode(0o777)).unwrap();
    let options = Options { layer: "c10d".into(), ..Options::default() };
    let error = Writer::create(&Place::within(&boxes), &options).unwrap_err();
    assert!(error.to_string().contains("belongs to user 65534"), "{error}");
    assert_eq!(fs::read_dir(&boxes).unwrap().count(), 0);
}

#[test]
fn directory_that_is_exchanged_for_a_link_gets_no_box() {
    let Some(victim) = Victim::new() else { return };
    let shared = victim.path().join("shared");
    open_to_all(&shared);
    let (run, link) = (shared.join("run"), shared.join("link"));
    fs::create_dir(&run).unwrap();
    attackers_link(&victim.home(), &link);
    let mut made = 0;
    while_exchanging(&link, &run, || {
        for i in 0..2000 {
            let boxes = run.join(format!("boxes-{i}"));
            made += u32::from(Following::begin(&boxes, FollowedBy::Run).is_ok());
            let options = Options { layer: "c10d".into(), ..Options::default() };
            if let Ok(writer) = Writer::create(&Place::within(&boxes), &options) {
                made += 1;
                drop(writer);
            }
        }
    });
    assert!(made > 0, "the directory was never used");
    victim.assert_unharmed();
}

#[test]
fn box_that_another_user_can_have_planted_is_not_read() {
    let Some(victim) = Victim::new() else { return };
    let boxes = victim.path().join("boxes");
    open_to_all(&boxes);
    let own = boxes_of(&boxes, [3, 3], [false, false]).remove(0);
    assert!(Reader::open_own(&own).is_ok());
    let why = |path: &Path| Reader::open_own(path).unwrap_err().to_string();

    let planted = boxes.join("1.2.c10d.box");
    fs::hard_link(&own, &planted).unwrap();
    assert!(why(&planted).contains("it has another name"), "{}", why(&planted));
    fs::remove_file(&planted).unwrap();

    attackers_link(&own, &planted);
    assert!(why(&planted).contains("it is not a regular file"), "{}", why(&planted));
    fs::remove_file(&planted).unwrap();

    fs::copy(&own, &planted).unwrap();
    chown(&planted, Some(OTHER), Some(OTHER)).unwrap();
    assert!(why(&planted).contains("it belongs to another user"), "{}", why(&planted));
    fs::remove_file(&planted).unwrap();

    fs::copy(&own, &planted).unwrap();
    fs::set_permissions(&planted, fs::Permissions::from_mode(0o666)).unwrap();
    assert!(why(&planted).contains("it is writable by other users"), "{}", why(&planted));
    fs::remove_file(&planted).unwrap();

    // Opening it would wait for a writer.
    assert!(Command::new("mkfifo").arg(&planted).status().unwrap().success());
    assert!(why(&planted).contains("it is not a regular file"), "{}", why(&planted));
    assert!(Reader::open(&planted).is_err());
}

/// A job without `run`, as a user that no other test uses, whose directory in shared memory belongs to another user.
#[test]
fn rank_uses_no_directory_of_another_user_in_shared_memory() {
    let Some(other) = OtherUser::new() else { return };
    let user = 64124;
    let squatted = Path::new("/dev/shm/ddp-doctor-64124");
    let home = tempfile::tempdir().unwrap();
    chown(home.path(), Some(user), Some(user)).unwrap();
    let program = other.path().join("training");
    fs::copy(training(), &program).unwrap();
    let secret = home.path().join("secret");
    fs::write(&secret, SECRET).unwrap();
    chown(&secret, Some(user), Some(user)).unwrap();
    for is_link in [false, true] {
        fs::remove_dir_all(squatted).ok();
        fs::remove_file(squatted).ok();
        if is_link {
            attackers_link(home.path(), squatted);
        } else {
            attackers_dir(squatted);
            fs::set_permissions(squatted, fs::Permissions::from_mode(0o777)).unwrap();
        }
        let output = other
            .command_as(user, program.to_str().unwrap())
            .current_dir(home.path())
            .env("DDP_DOCTOR_JOB", "job")
            .arg("4")
            .output();
        let left = fs::read_dir(squatted).unwrap().count();
        if is_link {
            fs::remove_file(squatted).unwrap();
        } else {
            fs::remove_dir_all(squatted).unwrap();
        }
        let output = output.unwrap();
        assert_same_result(&[training(), "4"], output.status.code(), &output.stdout);
        assert_eq!(left, usize::from(is_link), "{output:?}");
        assert_eq!(fs::read_to_string(&secret).unwrap(), SECRET);
    }
}
