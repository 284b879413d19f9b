//! Attacks by another user of the machine who plants files, directories and links where the directory of black boxes
//! of this user will be.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;
use std::time::{Duration, SystemTime};

use ddp_doctor::host::boxes::BoxDir;
use ddp_doctor::host::files::Dir;
use ddp_doctor::host::input_files;

use super::other_users::{OtherUser, text};
use super::victim::{
    SECRET, Victim, attackers_dir, attackers_file, attackers_link, beside_silent_mount,
    while_exchanging, with_two_users,
};

/// A directory of boxes, of a run that has ended, whose `owner` file names a run directory with a trap.
fn plant_ended_run(boxes: &Path, run_dir: &Path) {
    attackers_dir(boxes);
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    attackers_file(&boxes.join("owner"), &format!("4194304 1 {boot}{}\n", run_dir.display()));
    attackers_file(&boxes.join("1.2.x.box"), "the attacker's text");
}

#[test]
fn squatted_directory_overwrites_no_file() {
    let Some(victim) = Victim::new() else { return };
    let run = victim.path().join("evil-run");
    attackers_dir(&run);
    attackers_dir(&run.join("boxes"));
    attackers_link(&victim.secret(), &run.join("boxes/1.2.x.box.part"));
    // `copy` is for another file system, which a directory with the final name stands for here.
    attackers_dir(&run.join("boxes/1.2.x.box"));
    attackers_dir(&victim.squatted());
    plant_ended_run(&victim.squatted().join("a"), &run);
    BoxDir::sweep(&victim.shm());
    victim.assert_unharmed();
    assert!(victim.squatted().join("a/1.2.x.box").exists(), "left alone");
    let said = BoxDir::refusal(&victim.shm()).unwrap();
    assert!(said.contains("belongs to user 65534"), "{said}");
    let boxes = Dir::open_own(&victim.home()).unwrap();
    let made = BoxDir::create(&victim.shm(), "job", Some(&boxes)).unwrap();
    assert_eq!(made.path(), victim.home().join("boxes"));
    fs::remove_dir_all(victim.home().join("boxes")).unwrap();
    assert!(BoxDir::run_dirs(&victim.shm()).is_empty());
    assert!(BoxDir::awaited(&victim.shm(), &run).is_empty());
}

/// The same through the program, in the real `/dev/shm`, as a user that no other test uses.
#[test]
fn run_leaves_a_squatted_directory_alone_and_says_so() {
    let Some(other) = OtherUser::new() else { return };
    let squatted = Path::new("/dev/shm/ddp-doctor-64123");
    fs::remove_dir_all(squatted).ok();
    attackers_dir(squatted);
    let home = tempfile::tempdir().unwrap();
    chown(home.path(), Some(64123), Some(64123)).unwrap();
    let secret = home.path().join("secret");
    fs::write(&secret, SECRET).unwrap();
    chown(&secret, Some(64123), Some(64123)).unwrap();
    let run = other.path().join("evil-run");
    attackers_dir(&run);
    attackers_dir(&run.join("boxes"));
    fs::set_permissions(run.join("boxes"), fs::Permissions::from_mode(0o777)).unwrap();
    attackers_link(&secret, &run.join("boxes/1.2.x.box.part"));
    plant_ended_run(&squatted.join("a"), &run);
    let output = other
        .command_as(64123, "ddp-doctor")
        .current_dir(home.path())
        .args(["run", "--", "true"])
        .output();
    fs::remove_dir_all(squatted).unwrap();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    assert_eq!(fs::read_to_string(&secret).unwrap(), SECRET);
    let said = text(&output);
    assert!(said.contains("/dev/shm/ddp-doctor-64123 belongs to user 65534"), "{said}");
}

#[test]
fn link_in_place_of_the_directory_removes_nothing() {
    let Some(victim) = Victim::new() else { return };
    let old = victim.home().join("old");
    fs::create_dir(&old).unwrap();
    fs::write(old.join("key"), SECRET).unwrap();
    let long_ago = SystemTime::now() - Duration::from_secs(72 * 3600);
    fs::File::open(&old).unwrap().set_modified(long_ago).unwrap();
    attackers_link(&victim.home(), &victim.squatted());
    BoxDir::sweep(&victim.shm());
    victim.assert_unharmed();
    assert!(old.join("key").exists());
    assert!(BoxDir::refusal(&victim.shm()).is_some());
}

#[test]
fn directory_that_is_exchanged_for_a_link_during_sweeps_removes_nothing() {
    let Some(victim) = Victim::new() else { return };
    let old = victim.home().join("old");
    fs::create_dir(&old).unwrap();
    fs::write(old.join("key"), SECRET).unwrap();
    let long_ago = SystemTime::now() - Duration::from_secs(72 * 3600);
    fs::File::open(&old).unwrap().set_modified(long_ago).unwrap();
    let own = victim.shm().join("own");
    fs::create_dir(&own).unwrap();
    fs::set_permissions(&own, fs::Permissions::from_mode(0o700)).unwrap();
    let link = victim.shm().join("link");
    attackers_link(&victim.home(), &link);
    fs::rename(&own, victim.squatted()).unwrap();
    while_exchanging(&link, &victim.squatted(), || {
        for _ in 0..300 {
            BoxDir::sweep(&victim.shm());
        }
    });
    victim.assert_unharmed();
    assert!(old.join("key").exists());
}

#[test]
fn owner_file_moves_boxes_only_to_the_directory_that_its_run_had_opened() {
    let Some(victim) = Victim::new() else { return };
    let shared = victim.path().join("shared");
    fs::create_dir(&shared).unwrap();
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o777)).unwrap();
    let run = shared.join("run");
    let dir = Dir::ensure_own(&run).unwrap();
    let boxes = BoxDir::create(&victim.shm(), "job", Some(&dir)).unwrap();
    let owner = boxes.path().join("owner");
    let alive = fs::read_to_string(&owner).unwrap();
    let pid = std::process::id().to_string();
    fs::write(&owner, alive.replacen(&pid, "4194304", 1)).unwrap();
    fs::write(boxes.path().join("1.2.x.box"), "box").unwrap();
    // The attacker can write to the parent of the run directory.
    fs::rename(&run, shared.join("away")).unwrap();
    attackers_link(&victim.home(), &run);
    BoxDir::sweep(&victim.shm());
    victim.assert_unharmed();
    fs::remove_file(&run).unwrap();
    attackers_dir(&run);
    attackers_dir(&run.join("boxes"));
    BoxDir::sweep(&victim.shm());
    assert_eq!(fs::read_dir(run.join("boxes")).unwrap().count(), 0);
    // Another directory of the victim's.
    fs::remove_dir_all(&run).unwrap();
    fs::create_dir_all(run.join("boxes")).unwrap();
    BoxDir::sweep(&victim.shm());
    assert_eq!(fs::read_dir(run.join("boxes")).unwrap().count(), 0);
    fs::remove_dir_all(&run).unwrap();
    fs::rename(shared.join("away"), &run).unwrap();
    BoxDir::sweep(&victim.shm());
    assert_eq!(fs::read_to_string(run.join("boxes/1.2.x.box")).unwrap(), "box");
}

/// As when another user exchanges the run directory after its description was read.
#[test]
fn evidence_of_another_user_is_not_that_of_the_newest_run() {
    let script = r#"
        cd /home/home
        victim ddp-doctor run --run-dir ddp-doctor-runs/own -- training 2 > /dev/null
        all() {
            for command in "status" "watch --once" "analyze" "analyze --format json"; do
                victim ddp-doctor $command $1 2>&1 || echo "status $?"
            done
        }
        echo "own: $(all)"
        find ddp-doctor-runs/own -type f ! -name run.json -exec chown 65534 {} + -exec chmod 644 {} +
        echo "theirs: $(all)"
        echo "named: $(all ddp-doctor-runs/own)"
    "#;
    let Some(output) = with_two_users(script) else { return };
    let said = text(&output);
    let (own, rest) = said.split_once("theirs: ").unwrap_or_else(|| panic!("{said}"));
    let (theirs, named) = rest.split_once("named: ").unwrap_or_else(|| panic!("{said}"));
    for believed in [own, named] {
        assert!(believed.contains("2 ranks") && !believed.contains("status 3"), "{said}");
    }
    assert_eq!(theirs.matches("status 3").count(), 4, "{said}");
    assert!(theirs.contains("it belongs to user 65534"), "{said}");
}

/// The mode of a directory does not show everybody who can write to it, such as those whom an access control list
/// admits.
#[test]
fn link_is_followed_only_where_its_maker_alone_can_have_put_it() {
    let Some(victim) = Victim::new() else { return };
    let (private, shared) = (victim.path().join("private"), victim.path().join("shared"));
    for (dir, mode) in [(&private, 0o700), (&shared, 0o1777)] {
        fs::create_dir(dir).unwrap();
        fs::set_permissions(dir, fs::Permissions::from_mode(mode)).unwrap();
        attackers_link(&victim.home(), &dir.join("theirs"));
        let error = Dir::open(&dir.join("theirs")).unwrap_err().to_string();
        assert!(error.contains("is a link that another user can change"), "{error}");
    }
    symlink(victim.home(), private.join("own")).unwrap();
    assert!(Dir::open(&private.join("own")).is_ok());
}

/// In a run directory to which everybody can write: links by symbolic and other names, and FIFOs, under every name that
/// the run uses, some before it starts and some while it runs.
#[test]
fn planted_names_in_a_run_directory_change_no_other_file() {
    let script = r#"
        plant() {
            for name in report.json journal.ddpj ddp-doctor.token .report.json .report.json.$1 .run.json; do
                rm -rf out/$name
                case $2 in
                    hard) ln /home/home/secret out/$name ;;
                    symbolic) attacker ln -s /home/home/secret out/$name ;;
                    fifo) attacker mkfifo out/$name ;;
                esac
            done
        }
        mkdir -m 777 /home/shared
        cd /home/shared
        echo "the secret" > /home/home/secret
        chown 64126 /home/home/secret
        for kind in hard symbolic fifo; do
            rm -rf out /home/home/started /home/home/go
            victim mkdir out
            chmod 777 out
            plant 0 $kind
            victim env DDP_DOCTOR_TOKEN=0123456789abcdef ddp-doctor run --run-dir out -- sh -c '
                touch /home/home/started
                while [ ! -e /home/home/go ]; do sleep 0.05; done' &
            until_exists /home/home/started
            for directory in out out/*/; do
                [ -d "$directory" ] && plant $! $kind
            done
            touch /home/home/go
            wait $!
            echo "$kind: $(cat /home/home/secret); $(ls -A /home/home | tr '\n' ' ')"
        done
    "#;
    let Some(output) = with_two_users(script) else { return };
    let said = text(&output);
    assert!(output.status.success(), "{said}");
    for kind in ["hard", "symbolic", "fifo"] {
        assert!(
            said.contains(&format!("{kind}: the secret; .cache go secret started \n")),
            "{said}"
        );
    }
}

/// A link of the victim's, which the attacker has moved to a directory like `/tmp`, and a link of the attacker's there.
#[test]
fn link_in_a_shared_directory_is_not_followed() {
    let script = r#"
        mkdir -m 777 /home/project
        mkdir -m 1777 /home/shared
        victim mkdir /home/home/checkpoints
        victim ln -s /home/home/checkpoints /home/project/checkpoints
        attacker mv /home/project/checkpoints /home/shared/ddp-doctor-runs
        cd /home/shared
        victim ddp-doctor run --report ddp-doctor-runs/report.json -- true || true
        echo "checkpoints: $(ls -A /home/home/checkpoints)"
    "#;
    let Some(output) = with_two_users(script) else { return };
    let said = text(&output);
    assert!(said.contains("checkpoints: \n"), "{said}");
    assert!(said.contains("is a link that another user can change"), "{said}");
}

/// In a directory where others can create entries, its owner did not choose the name of a link.
#[test]
fn link_of_root_that_another_user_moved_is_not_followed() {
    let script = r#"
        mkdir -m 777 /home/project
        mkdir -m 1777 /home/sticky
        for user in root victim; do
            mkdir -m 700 /home/kept-$user
            echo precious > /home/kept-$user/report.json
            ln -s /home/kept-$user /home/project/$user
        done
        chown -R 64126:64126 /home/kept-victim
        attacker mv /home/project/root /home/project/victim /home/sticky
        cd /home/sticky
        ddp-doctor run --report root/report.json --run-dir root/run -- true || true
        victim ddp-doctor run --report victim/report.json --run-dir victim/run -- true || true
        for user in root victim; do
            echo "left: $(ls -A /home/kept-$user) $(cat /home/kept-$user/report.json)"
        done
    "#;
    let Some(output) = with_two_users(script) else { return };
    let said = text(&output);
    assert_eq!(said.matches("left: report.json precious\n").count(), 2, "{said}");
}

/// Directories of the victim's change their names while it runs.
#[test]
fn report_is_written_to_the_directory_that_was_named_at_the_start() {
    let script = r#"
        mkdir -m 777 /home/project
        cd /home/project
        victim mkdir rep kept
        echo precious > kept/report.json
        chown 64126:64126 kept/report.json
        victim ddp-doctor run --report rep/report.json --run-dir /home/home/out -- sh -c '
            touch /home/home/started
            while [ ! -e /home/home/go ]; do sleep 0.05; done' &
        until_exists /home/home/started
        attacker mv rep away
        attacker mv kept rep
        touch /home/home/go
        wait $!
        echo "left: $(cat rep/report.json)"
        grep verdict away/report.json
    "#;
    let Some(output) = with_two_users(script) else { return };
    let said = text(&output);
    assert!(said.contains("left: precious\n"), "{said}");
    assert!(said.contains("\"verdict\": "), "{said}");
}

/// Two private directories of the victim in one of the attacker's, who exchanges them while the program runs.
const PRIVATE_IN_SHARED: &str = r#"
    mkdir -m 777 /home/shared
    cd /home/shared
    victim mkdir -m 700 out thesis
    echo precious > thesis/x.json
    chown 64126:64126 thesis/x.json
    chmod 600 thesis/x.json
    exchange() { attacker mv out away; attacker mv thesis out; }
"#;

#[test]
fn report_of_attach_goes_to_the_named_directory() {
    let script = r#"
        cp "$LIBRARIES"/libnccl_double.so /home/bin/libnccl.so.2
        setpriv --reuid=64126 --regid=64126 --clear-groups env LD_PRELOAD=/home/bin/libnccl.so.2 \
            RANK=0 WORLD_SIZE=1 LOCAL_WORLD_SIZE=1 MASTER_PORT=77 sleep 60 &
        rank=$!
        sleep 0.2
        setpriv --reuid=64126 --regid=64126 --clear-groups \
            ddp-doctor attach --report /home/shared/out/x.json $rank &
        attach=$!
        for turn in $(seq 100); do
            ls -l /proc/$attach/fd | grep -q /home/shared/out && break
            sleep 0.02
        done
        exchange
        wait $attach || true
        kill $rank
        echo "left: $(cat out/x.json)"
        grep verdict away/x.json
    "#;
    let Some(output) = with_two_users(&format!("{PRIVATE_IN_SHARED}{script}")) else { return };
    let said = text(&output);
    assert!(said.contains("left: precious\n"), "{said}");
    assert!(said.contains("\"verdict\": "), "{said}");
}

#[test]
fn reports_of_a_coordinator_go_to_the_named_directory() {
    let script = r#"
        setpriv --reuid=64126 --regid=64126 --clear-groups \
            ddp-doctor coordinator --listen 127.0.0.1:0 --report-dir out > /home/home/address &
        coordinator=$!
        until [ -s /home/home/address ]; do sleep 0.05; done
        exchange
        cd /home/home
        victim ddp-doctor -q run --coordinator "$(head -n 1 /home/home/address)" -- true
        kill -INT $coordinator
        wait $coordinator || true
        echo "private: $(ls -A /home/shared/out) reports: $(ls -A /home/shared/away)"
    "#;
    let Some(output) = with_two_users(&format!("{PRIVATE_IN_SHARED}{script}")) else { return };
    let said = text(&output);
    assert!(said.contains("private: x.json reports: "), "{said}");
    assert!(said.contains(".json\n"), "{said}");
}

/// The text of a file that its user alone can read does not get into a report because of a link among the evidence.
#[test]
fn link_among_the_evidence_shows_no_file() {
    let script = r#"
        mkdir -m 777 /home/shared
        cd /home/shared
        printf 'Traceback (most recent call last):\n  File "a.py", line 3, in f\nValueError: private\n' \
            > /home/home/history
        chown 64126 /home/home/history
        chmod 600 /home/home/history
        attacker mkdir evidence
        printf '[rank0]: Traceback (most recent call last):\n[rank0]:   File "b.py", line 4, in g\n[rank0]: KeyError: 7\n' \
            > evidence/rank0.log
        chmod 644 evidence/rank0.log
        attacker ln -s /home/home/history evidence/rank1.log
        victim mkdir /home/home/private
        cp /home/home/history /home/home/private/rank2.log
        chown -R 64126 /home/home/private
        attacker mkdir dumps
        cp "$SOURCE"/tests/fixtures/nccl-flight-recorder/_dump_0.gz dumps
        chmod -R a+rX dumps
        attacker ln -s /home/home/private dumps/node2
        victim ddp-doctor analyze dumps || true
        for format in text json markdown; do
            victim ddp-doctor analyze --format $format evidence || true
        done
    "#;
    let Some(output) = with_two_users(script) else { return };
    let said = text(&output);
    assert!(said.contains("KeyError"), "{said}");
    assert!(!said.contains("ValueError"), "{said}");
    assert!(said.contains("node2: it cannot be read: it is a link of user 65534"), "{said}");
}

/// The entry is a file of the attacker's when it is examined, and a link when it is opened, or the reverse.
#[test]
fn evidence_exchanged_for_a_link_shows_no_file() {
    let Some(victim) = Victim::new() else { return };
    let (entry, link) = (victim.shm().join("rank0.log"), victim.shm().join("other"));
    attackers_file(&entry, "the attacker's text");
    attackers_link(&victim.secret(), &link);
    let (mut refused, mut read) = (0, 0);
    while_exchanging(&link, &entry, || {
        for _ in 0..20_000 {
            match input_files::read_text(&entry, 1 << 10) {
                Ok(text) => {
                    assert_eq!(text, "the attacker's text");
                    read += 1;
                }
                Err(_) => refused += 1,
            }
        }
    });
    assert!(read > 0 && refused > 0, "{read} {refused}");
}

/// A directory of the same name and owner, which was private to the victim, is renamed to where the boxes were.
#[test]
fn end_of_a_run_removes_only_its_own_directory() {
    let Some(victim) = Victim::new() else { return };
    let boxes = BoxDir::create(&victim.shm(), "job", None).unwrap();
    // A cleaner empties the shared memory.
    fs::remove_dir_all(victim.squatted()).unwrap();
    let shared = victim.shm().join("shared");
    attackers_dir(&shared);
    let thesis = shared.join("job");
    fs::create_dir(&thesis).unwrap();
    fs::set_permissions(&thesis, fs::Permissions::from_mode(0o700)).unwrap();
    fs::write(thesis.join("chapter"), SECRET).unwrap();
    fs::rename(&shared, victim.squatted()).unwrap();
    boxes.remove().unwrap_err();
    assert_eq!(fs::read_to_string(victim.squatted().join("job/chapter")).unwrap(), SECRET);
}

/// What the file system of another user states about owners and modes is that user's choice, and this one never answers.
#[test]
fn file_system_of_another_user_is_not_asked() {
    let script = r#"
        attacker mkdir /dev/shm/ddp-doctor-64126
        exec 3<>/dev/fuse
        options=fd=3,rootmode=40000,user_id=65534,group_id=65534,allow_other,default_permissions
        mount -i -t fuse -o "$options" planted /dev/shm/ddp-doctor-64126 || { echo "no FUSE"; exit 0; }
        cd /home/home
        victim timeout -s KILL 60 ddp-doctor run -- echo the job starts 3>&- || echo "status $?"
    "#;
    let Some(output) = with_two_users(script) else { return };
    let said = text(&output);
    if said.contains("no FUSE") {
        eprintln!("skipped: {said}");
        return;
    }
    assert!(said.contains("the job starts") && !said.contains("status"), "{said}");
    assert!(said.contains("ddp-doctor-64126 is a file system of another user"), "{said}");
}

/// The directory is in one of root's, as a home directory is.
#[test]
fn file_system_of_another_user_in_the_own_directory_is_not_asked() {
    let script = r#"
        silent /home/theirs
        doctor run --run-dir /home/theirs/run -- echo the job starts
        doctor run --report /home/theirs/report.json -- echo the job starts
    "#;
    let Some(said) = beside_silent_mount(script) else { return };
    assert_eq!(said.matches("the job starts\n").count(), 2, "{said}");
    assert!(!said.contains("status 137"), "{said}");
    assert!(said.contains("/home/theirs is a file system of another user"), "{said}");
}

/// A lookup alone can mount the directory of another host, or, as here, never return.
#[test]
fn link_of_another_user_in_evidence_is_not_looked_up() {
    let script = r#"
        silent /home/mount
        for name in boxes journal journal.ddpj run.json report.json rank1.log attempt_0; do
            mkdir -p /home/theirs-$name/sub
            echo '[rank0]: RuntimeError: x' > /home/theirs-$name/rank0.log
            chown 65534 /home/theirs-$name /home/theirs-$name/*
            attacker ln -s /home/mount/x /home/theirs-$name/$name
            attacker ln -s /home/mount/x /home/theirs-$name/sub/$name
            doctor analyze /home/theirs-$name
        done
    "#;
    let Some(said) = beside_silent_mount(script) else { return };
    assert!(!said.contains("status 137"), "{said}");
    assert_eq!(said.matches("RuntimeError: x").count().min(7), 7, "{said}");
    assert!(said.contains("is a link of user 65534"), "{said}");
}

#[test]
fn link_of_another_user_in_place_of_a_target_is_not_looked_up() {
    let script = r#"
        silent /home/mount
        mkdir -m 777 /home/shared
        attacker ln -s /home/mount/x /home/shared/run
        for target in /home/shared/run /home/shared/run/below; do
            for command in "status" "watch --once" "dump" "coordinator --listen 127.0.0.1:0 --attach"; do
                echo "$command: $(doctor $command $target 2>&1)"
            done
            doctor analyze --source $target /home/home
        done
    "#;
    let Some(said) = beside_silent_mount(script) else { return };
    assert!(!said.contains("status 137"), "{said}");
    assert!(said.matches("is a link of user 65534").count() >= 8, "{said}");
}

#[test]
fn link_in_place_of_a_report_is_replaced_without_a_lookup() {
    let script = r#"
        silent /home/mount
        mkdir -m 777 /home/shared
        attacker ln -s /home/mount/x /home/shared/report.json
        doctor run --report /home/shared/report.json -- true
        stat -c "report: %F" /home/shared/report.json
    "#;
    let Some(said) = beside_silent_mount(script) else { return };
    assert!(said.contains("report: regular file") && !said.contains("status 137"), "{said}");
}

#[test]
fn link_in_place_of_the_run_directory_does_not_delay_the_end() {
    let script = r#"
        silent /home/mount
        mkdir -m 777 /home/shared
        (sleep 1; attacker mv /home/shared/out /home/shared/away; attacker ln -s /home/mount /home/shared/out) &
        doctor run --run-dir /home/shared/out -- sh -c 'sleep 3; exit 7'
        stat -c "out: %F" /home/shared/out
    "#;
    let Some(said) = beside_silent_mount(script) else { return };
    assert!(said.contains("out: symbolic link") && said.contains("status 7\n"), "{said}");
}

#[test]
fn group_of_root_is_not_the_own_one() {
    let script = r#"
        mkdir -m 2770 /home/project
        chown 64126:0 /home/project
        victim ddp-doctor run --run-dir /home/project/run -- true
    "#;
    let Some(output) = with_two_users(script) else { return };
    let said = text(&output);
    assert!(said.contains("other users can write to /home/project"), "{said}");
}

/// A hard link, or a private file that was moved: the attacker publishes what others read from his folder.
#[test]
fn file_that_the_attacker_cannot_have_read_is_no_evidence() {
    let Some(victim) = Victim::new() else { return };
    let folder = victim.path().join("evidence");
    attackers_dir(&folder);
    let file = folder.join("rank0.log");
    let opened = || input_files::open(&file).map(drop).map_err(|it| it.to_string());
    let refused = || opened().unwrap_err().contains("without being able to read it");
    fs::hard_link(victim.secret(), &file).unwrap();
    assert!(refused(), "a hard link");
    fs::remove_file(&file).unwrap();
    fs::write(&file, SECRET).unwrap();
    assert_eq!(opened(), Ok(()), "a file that everybody can read");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    assert!(refused(), "a private file");
    attackers_file(&file, "his own text");
    assert_eq!(opened(), Ok(()), "a private file of the attacker's own");
    // Others can make links where they can write, also in folders of the victim's.
    let (private, linked) = (victim.home().join("old"), victim.shm().join("rank0.log"));
    fs::write(&private, SECRET).unwrap();
    fs::hard_link(&private, &linked).unwrap();
    let opened = || input_files::open(&linked).map(drop).map_err(|it| it.to_string());
    assert_eq!(opened(), Ok(()), "a file that everybody can read");
    fs::set_permissions(&private, fs::Permissions::from_mode(0o600)).unwrap();
    let refused = opened().unwrap_err();
    assert!(refused.contains("without being able to read it"), "{refused}");
    fs::remove_file(&private).unwrap();
    assert_eq!(opened(), Ok(()), "a private file with one name");
    // Links in a folder of one's own are one's own choice.
    let linked = victim.home().join("linked");
    fs::hard_link(victim.secret(), &linked).unwrap();
    input_files::open(&linked).unwrap();
}
