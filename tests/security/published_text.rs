//! What other users can read of a run, what evidence can do to the terminal of its reader, and which private files it can
//! make its reader publish.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use ddp_doctor::host::files;

use super::other_users::text;
use super::victim::with_two_users;
use crate::support::process::{program, run_to_end};

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn others_read_only_a_report_that_is_published() {
    let dir = tempfile::tempdir().unwrap();
    let kept = dir.path().join("kept");
    fs::create_dir(&kept).unwrap();
    fs::set_permissions(&kept, fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = program(dir.path());
    let inside =
        "umask 000; exec \"$0\" run --run-dir kept --report published.json -- true --key secret";
    let path = command.get_program().to_owned();
    command = {
        let mut shell = std::process::Command::new("sh");
        shell.current_dir(dir.path()).envs(command.get_envs().filter_map(|(k, v)| Some((k, v?))));
        shell.arg("-c").arg(inside).arg(path);
        shell
    };
    let finished = run_to_end(command);
    assert_eq!(finished.status, Some(0), "{finished}");
    for name in ["run.json", "report.json"] {
        let file = kept.join(name);
        assert!(!file.exists() || mode(&file) == 0o600, "{name}: {:o}", mode(&file));
    }
    assert_eq!(mode(&dir.path().join("published.json")), 0o644);
}

#[test]
fn report_in_place_of_a_link_to_a_device_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let link = dir.path().join("stdout");
    symlink("/dev/null", &link).unwrap();
    let error = files::publish(&link, b"report").unwrap_err();
    assert!(error.to_string().ends_with("is not a regular file"), "{error}");
    assert!(link.is_symlink());
}

#[test]
fn error_does_not_control_the_terminal() {
    let dir = tempfile::tempdir().unwrap();
    let name = "x\u{1b}]0;title\u{7}\nddp-doctor: all is well\u{9b}31m";
    let mut command = program(dir.path());
    command.args(["status", name]);
    let finished = run_to_end(command);
    assert_eq!(finished.status, Some(3), "{finished}");
    let is_control = |c: char| c.is_control() && c != '\n';
    assert!(!finished.stderr.contains(is_control), "{finished}");
    assert!(finished.stderr.lines().skip(1).all(|line| line.starts_with("    ")), "{finished}");
}

#[test]
fn invalid_variable_does_not_control_the_terminal() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = program(dir.path());
    command.env("DDP_DOCTOR_STALL_AFTER", "x\u{1b}]0;title\u{7}\n::error::forged");
    command.args(["run", "--", "true"]);
    let finished = run_to_end(command);
    assert_eq!(finished.status, Some(0), "{finished}");
    assert!(!finished.stderr.contains(|c: char| c.is_control() && c != '\n'), "{finished}");
    assert!(!finished.stderr.lines().any(|line| line.starts_with("::")), "{finished}");
    assert!(finished.stderr.contains("is ignored: not a valid value\n"), "{finished}");
}

/// A log of the victim's in a private folder, and a folder of the attacker's with one. `failure RANK TEXT` prints a log.
const PRIVATE_LOG: &str = r#"
    failure() {
        printf '[rank%s]: Traceback (most recent call last):\n[rank%s]:   File "/x/train.py", line 7, in f\n' $1 $1
        printf '[rank%s]: RuntimeError: %s\n' $1 "$2"
    }
    mkdir -m 777 /home/shared
    mkdir -m 700 /home/home/private
    failure 0 'text of the victim' > /home/home/private/rank0.log
    chmod 600 /home/home/private/rank0.log
    chown -R 64126:64126 /home/home/private
    cd /home/shared
    attacker mkdir theirs theirs/dumps
    cp "$SOURCE"/tests/fixtures/nccl-flight-recorder/_dump_0.gz theirs/dumps
    failure 1 'text of the attacker' > theirs/rank1.log
    chmod -R a+rX theirs
    chmod 777 theirs theirs/dumps
"#;

/// What a script with such files prints.
fn beside_private_log(script: &str) -> Option<String> {
    let output = with_two_users(&format!("{PRIVATE_LOG}{script}"))?;
    assert!(output.status.success(), "{}", text(&output));
    Some(text(&output))
}

/// A link of the victim's or of root's, to a file or folder that the attacker cannot read.
#[test]
fn link_that_another_user_moved_shows_no_private_file() {
    let script = r#"
        cp -rp /home/home/private /home/roots
        chown -R 0:0 /home/roots
        victim ln -s /home/home/private/rank0.log latest
        victim ln -s /home/home/private checkpoints
        victim ln -s ../../../home/private relative
        victim ln -s /home/home/private logs
        ln -s /home/roots/rank0.log scratch
        attacker mv latest theirs/rank0.log
        attacker mv checkpoints theirs/dumps/host0
        attacker mv relative theirs/dumps/host1
        for target in theirs theirs/dumps logs logs/rank0.log; do victim ddp-doctor analyze $target || true; done
        attacker mv scratch theirs/rank2.log
        ddp-doctor analyze theirs || true
    "#;
    let Some(said) = beside_private_log(script) else { return };
    assert!(
        said.contains("text of the attacker") && !said.contains("text of the victim"),
        "{said}"
    );
    let why = "is a link that another user can have moved there: give the path that it leads to";
    for name in ["theirs/rank0.log", "dumps/host0", "dumps/host1", "logs", "rank2.log"] {
        let is_named = said.lines().any(|it| it.contains(name) && it.contains(why));
        assert!(is_named, "{name}: {said}");
    }
}

/// A private folder of the victim's under the name of the evidence.
#[test]
fn folder_that_another_user_renamed_shows_no_private_file() {
    let script = r#"
        victim cp -r /home/home/private theirs/mine
        victim cp -r /home/home/private theirs/dumps/mine
        victim chmod 700 theirs/mine theirs/dumps/mine
        attacker mv theirs/mine theirs/logs
        attacker mv theirs/dumps/mine theirs/dumps/host0
        for target in theirs/logs theirs/dumps; do victim ddp-doctor analyze $target || true; done
        ddp-doctor analyze theirs/logs || true
        echo "--- inside"
        cd theirs/logs
        victim ddp-doctor analyze . || true
    "#;
    let Some(said) = beside_private_log(script) else { return };
    let (outside, inside) = said.split_once("--- inside").unwrap();
    assert!(!outside.contains("text of the victim"), "{said}");
    let why = "another user can have put it there without being able to read it: give the path of a file or folder in it";
    assert_eq!(said.matches(why).count(), 3, "{said}");
    assert!(inside.contains("text of the victim"), "{said}");
}

/// Links as TARGET in a folder of one's own, links to what everybody can read, private logs in a shared folder of one's own, and the
/// directory of a run in a folder of another user.
#[test]
fn own_links_and_folders_are_evidence() {
    let script = r#"
        victim mkdir /home/home/mine shared runs
        victim ln -s /home/home/private/rank0.log /home/home/mine/rank0.log
        victim cp /home/home/private/rank0.log shared
        chmod 777 shared
        chmod 755 runs
        failure 0 'text of the victim' > runs/rank0.log
        chmod 644 runs/rank0.log
        victim ln -s runs latest
        victim ln -s /home/home/private /home/home/link
        for target in /home/home/mine/rank0.log /home/home/link shared latest latest/rank0.log; do
            victim ddp-doctor analyze $target || true
        done
        echo "--- run"
        cd theirs
        victim ddp-doctor run --run-dir run -- sh -c 'exit 3' || true
        victim ddp-doctor analyze run || true
        victim ddp-doctor analyze "$PWD/run" || true
    "#;
    let Some(said) = beside_private_log(script) else { return };
    let (links, run) = said.split_once("--- run").unwrap();
    assert_eq!(links.matches("RuntimeError: text of the victim").count(), 5, "{said}");
    assert!(!run.contains("another user can have put it there"), "{said}");
}

/// Links of an archive belong to the user who unpacks it, and those of a disk to whomever its maker states.
#[test]
fn link_that_leads_out_of_the_evidence_is_not_followed() {
    let script = r#"
        exec 2>&1
        victim mkdir -p /home/home/unpacked/logs /home/home/unpacked/dumps
        cp "$SOURCE"/tests/fixtures/nccl-flight-recorder/_dump_0.gz /home/home/unpacked/dumps
        failure 1 'text of the archive' > /home/home/unpacked/logs/rank1.log
        cd /home/home/unpacked
        victim ln -s rank1.log logs/same.log
        victim ln -s /home/home/unpacked/logs/rank1.log logs/absolute.log
        for target in logs /home/home/unpacked/logs /home/home/unpacked; do victim ddp-doctor analyze $target || true; done
        echo "--- out"
        victim ln -s /home/home/private/rank0.log logs/rank0.log
        victim ln -s ../../private/rank0.log logs/relative.log
        victim ln -s /home/home/unpacked/../private/rank0.log logs/dots.log
        victim ln -s ../../private dumps/host0
        for target in logs /home/home/unpacked/logs dumps; do victim ddp-doctor analyze $target || true; done
        echo "--- named"
        victim ddp-doctor analyze logs logs/rank0.log || true
    "#;
    let Some(said) = beside_private_log(script) else { return };
    let (below, rest) = said.split_once("--- out").unwrap();
    let (out, named) = rest.split_once("--- named").unwrap();
    assert!(below.contains("text of the archive") && !below.contains("leads out"), "{said}");
    assert!(out.contains("text of the archive") && !out.contains("text of the victim"), "{said}");
    for name in ["rank0.log", "relative.log", "dots.log", "dumps/host0"] {
        let is_named = |line: &str| {
            line.contains(name)
                && line.contains("is a link that leads out of ")
                && line.contains("give the path")
        };
        assert!(out.lines().any(is_named), "{name}: {said}");
    }
    assert!(named.contains("text of the victim"), "{said}");
}

/// The kernel states root as the owner of the links of a process that cannot be dumped. Its mounts show a private folder
/// among the logs.
#[test]
fn process_of_another_user_shows_no_private_folder() {
    let script = r#"
        mkdir -m 700 /home/private
        failure 0 'text of root' > /home/private/rank0.log
        chmod 600 /home/private/rank0.log
        attacker mkdir logs
        cat > /home/hide.py <<'END'
import ctypes, os, sys, time
libc = ctypes.CDLL(None)
user = os.getuid()
if libc.unshare(0x10020000) != 0: sys.exit(1)
open("/proc/self/uid_map", "w").write("0 %d 1" % user)
libc.mount(b"none", b"/", None, 0x44000, None)
if libc.mount(b"/home/private", b"/home/shared/logs", None, 0x5000, None) != 0: sys.exit(1)
libc.prctl(4, 0, 0, 0, 0)
open("/home/shared/pid", "w").write(str(os.getpid()))
time.sleep(60)
END
        (attacker /usr/bin/python3 /home/hide.py || echo none > /home/shared/pid) &
        until [ -s /home/shared/pid ]; do sleep 0.05; done
        ddp-doctor analyze /proc/$(cat /home/shared/pid)/root/home/shared/logs || true
        stat -c "owner: %u" /proc/$(cat /home/shared/pid)/root || true
    "#;
    let Some(said) = beside_private_log(script) else { return };
    if !said.contains("owner: 0\n") {
        eprintln!("skipped: this system permits no user namespaces, or has no Python");
        return;
    }
    assert!(!said.contains("text of root"), "{said}");
    assert!(said.contains("is a link of a process of another user"), "{said}");
}

/// Its own `/proc` shows processes of the host, whose root directories root can enter, and the container cannot.
#[test]
fn link_in_a_container_does_not_lead_out_of_it() {
    let script = r#"
        mkdir -m 700 /home/private
        failure 0 'text of root' > /home/private/rank0.log
        mkdir /home/image
        cat > /home/inside <<'END'
            set -e
            mount --bind /home/image /home/image
            cd /home/image
            mkdir old usr lib lib64 bin proc evidence
            for name in usr lib lib64 bin; do mount --rbind /$name $name; done
            mount -t proc none proc
            /usr/sbin/pivot_root . old
            cd /
            umount -l /old
            for process in 1 self thread-self; do
                ln -s /proc/$process/root/home/private/rank0.log /evidence/$process.log
            done
            printf '[rank1]: RuntimeError: text of the container\n' > /evidence/rank1.log
            ln -s /evidence/rank1.log /evidence/inside.log
            echo $$ > /pid
            exec sleep 60
END
        (unshare --mount sh /home/inside || echo none > /home/image/pid) &
        until [ -s /home/image/pid ]; do sleep 0.05; done
        evidence=/proc/$(cat /home/image/pid)/root/evidence
        for name in 1.log self.log thread-self.log inside.log; do ddp-doctor analyze $evidence/$name || true; done
        ddp-doctor analyze $evidence || true
    "#;
    let Some(said) = beside_private_log(script) else { return };
    assert!(!said.contains("text of root"), "{said}");
    assert_eq!(said.matches("RuntimeError: text of the container").count(), 2, "{said}");
    assert_eq!(said.matches("is a link of the kernel").count(), 3, "{said}");
}
