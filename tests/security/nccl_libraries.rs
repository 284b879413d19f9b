//! Attacks by another user of the machine on the folder in which the loader finds the library that traces NCCL calls.

use super::other_users::text;
use super::victim::with_two_users;

/// A library that says that it was loaded, and a job that loads the profiler as NCCL does.
const EVIL: &str = r#"
printf '%s\n' '#include <stdio.h>' \
    '__attribute__((constructor)) static void loaded(void) { puts("code of another user"); }' \
    | gcc -shared -fPIC -x c -o /home/evil.so -
cat > /home/load <<'END'
#!/usr/bin/python3
import ctypes
ctypes.CDLL("libnccl-profiler-ddp_doctor.so")
END
chmod 755 /home/load
"#;

/// As when the user logs out while the job goes on (`RemoveIPC` of systemd-logind).
#[test]
fn library_does_not_disappear_with_shared_memory() {
    let script = r#"
        cd /home/home
        victim ddp-doctor run --run-dir out --nccl profiler -- sh -c '
            printf %s "${LD_LIBRARY_PATH%%:*}" > folder; touch started
            while [ ! -e go ]; do sleep 0.05; done
            /home/load && echo loaded' &
        until_exists started
        rm -rf /dev/shm/*
        attacker mkdir -p "$(cat folder)" || true
        attacker cp /home/evil.so "$(cat folder)/libnccl-profiler-ddp_doctor.so" || true
        touch go
        wait $!
        echo "folder: $(cat folder)"; ls -A out
    "#;
    let Some(output) = with_two_users(&format!("{EVIL}{script}")) else { return };
    let said = text(&output);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("\nloaded\n") || said.starts_with("loaded\n"), "{said}");
    assert!(!said.contains("code of another user"), "{said}");
    assert!(said.contains("folder: /home/home/out/"), "{said}");
    assert!(!said.contains("\nnccl\n"), "the folder is removed: {said}");
}

/// In a working directory to which everybody can write, with and without a home. Black boxes are in the run directory,
/// since another user has made the directory in shared memory.
#[test]
fn library_is_not_in_a_shared_directory() {
    let script = r#"
        mkdir -m 1777 /home/shared
        cd /home/shared
        attacker mkdir /dev/shm/ddp-doctor-64126
        job='echo "folder: ${LD_LIBRARY_PATH:-none}"'
        victim ddp-doctor run --nccl profiler -- sh -c "$job; /home/load && echo loaded"
        victim env -u HOME ddp-doctor run --nccl profiler -- sh -c "$job; /home/load || echo not loaded"
        ls -A /home/home/.cache/ddp-doctor
    "#;
    let Some(output) = with_two_users(&format!("{EVIL}{script}")) else { return };
    let said = text(&output);
    assert!(output.status.success(), "{said}");
    let folders: Vec<&str> =
        said.lines().filter_map(|line| line.strip_prefix("folder: ")).collect();
    let [traced, untraced] = folders[..] else { panic!("{said}") };
    assert!(traced.starts_with("/home/home/.cache/ddp-doctor/"), "{said}");
    assert!(said.contains("loaded\n"), "{said}");
    assert_eq!(untraced, "none", "{said}");
    let why = "NCCL calls are not traced: its library needs a directory that only you can write to (other users \
               can write to /home/shared; HOME is not set)";
    assert!(said.contains(why), "{said}");
    assert!(said.contains("not loaded\n"), "{said}");
    let name = traced.rsplit('/').next().unwrap();
    assert!(said.contains("key\n"), "{said}");
    assert!(!said.lines().any(|line| line == name), "the folder is removed: {said}");
}

/// A group can have other members, whatever its number: the one of the victim's own group, and one that has the number of
/// the victim by chance. The second one is not taken for the victim's own group elsewhere, either.
#[test]
fn library_is_not_in_a_directory_of_a_group() {
    let script = r#"
        mkdir /home/project
        chown 64126:64126 /home/project
        chmod 2775 /home/project
        cd /home/project
        for group in 64126 100; do
            setpriv --reuid=64126 --regid=$group --clear-groups \
                ddp-doctor run --run-dir out-$group --nccl profiler -- sh -c 'echo "folder: ${LD_LIBRARY_PATH:-none}"'
        done
    "#;
    let Some(output) = with_two_users(script) else { return };
    let said = text(&output);
    assert!(output.status.success(), "{said}");
    assert_eq!(said.matches("folder: /home/home/.cache/ddp-doctor/").count(), 2, "{said}");
    let notice = "other users can write to /home/project, and can remove or replace the evidence";
    assert_eq!(said.matches(notice).count(), 1, "{said}");
}

/// The loader and Python divide their variables at colons: what follows one would be relative to the working directory.
#[test]
fn path_that_is_divided_is_not_searched() {
    let script = r#"
        cd /home/home
        mkdir '/home/12:30' && cp -r "$SOURCE/agent/python" '/home/12:30/python'
        job='echo "folder: ${LD_LIBRARY_PATH:-none} ${PYTHONPATH:-none}"'
        export DDP_DOCTOR_PYTHON='/home/12:30/python'
        for name in 12:30 '12;30' 'a$b'; do
            victim ddp-doctor run --run-dir "runs/$name" --nccl profiler -- sh -c "$job"
        done
        victim mkdir 'a:home'
        victim env HOME='/home/home/a:home' ddp-doctor run --run-dir 1:2 --nccl profiler -- sh -c "$job"
    "#;
    let Some(output) = with_two_users(script) else { return };
    let said = text(&output);
    assert!(output.status.success(), "{said}");
    let folders: Vec<&str> =
        said.lines().filter_map(|line| line.strip_prefix("folder: ")).collect();
    let [first, second, third, last] = folders[..] else { panic!("{said}") };
    for folder in [first, second, third] {
        assert!(folder.starts_with("/home/home/.cache/ddp-doctor/"), "{said}");
        assert!(folder.ends_with(" none") && !folder.contains(':'), "{said}");
    }
    assert_eq!(last, "none none", "{said}");
    assert!(
        said.contains("a:home/.cache/ddp-doctor has a colon, a semicolon or a dollar sign"),
        "{said}"
    );
    assert!(
        said.contains("/home/12:30/python has a colon, at which Python divides PYTHONPATH"),
        "{said}"
    );
}

/// On another host of the job, the path of a run directory may lead to what another user put there.
#[test]
fn library_is_in_the_home_of_a_job_on_several_hosts() {
    let script = r#"
        cd /home/home
        for nodes in 1 2; do
            victim env SLURM_NNODES=$nodes ddp-doctor run --run-dir out-$nodes --nccl profiler -- \
                sh -c 'echo "folder: $LD_LIBRARY_PATH"'
        done
    "#;
    let Some(output) = with_two_users(script) else { return };
    let said = text(&output);
    assert!(said.contains("folder: /home/home/out-1/nccl"), "{said}");
    assert!(said.contains("folder: /home/home/.cache/ddp-doctor/"), "{said}");
}
