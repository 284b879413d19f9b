//! Rootless containers: in a user namespace in which only one user has an id, everything of root's belongs to user 65534.

use super::other_users::text;
use super::victim::with_two_users;

/// An installation of root's, and `rootless`, which runs a command as the victim in such a namespace.
const INSTALLED: &str = r#"
mkdir -p /mnt/app/bin /mnt/app/lib/ddp-doctor/python
cp /mnt/bin/ddp-doctor /mnt/app/bin
cp /mnt/bin/*.so /mnt/app/lib/ddp-doctor
cp -r "$SOURCE/agent/python/ddp_doctor" /mnt/app/lib/ddp-doctor/python
chmod -R go+rX /mnt/app
rootless() { victim unshare --user --map-root-user "$@"; }
export LD_LIBRARY_PATH=/mnt/bin
cd /mnt/home
"#;

/// Whether a script with the installation succeeds, and its output; `None`: this system permits no user namespaces, or the
/// test does not run as root.
fn outcome(script: &str) -> Option<(bool, String)> {
    let output = with_two_users(&format!("{INSTALLED}{script}"))?;
    let said = text(&output);
    if said.contains("unshare failed") {
        eprintln!("skipped: this system permits no user namespaces");
        return None;
    }
    Some((output.status.success(), said))
}

#[test]
fn job_in_a_rootless_container_is_diagnosed() {
    let script = r#"
        rootless sh -c 'stat -c "owner: %u" /mnt/app/bin/ddp-doctor'
        rootless /mnt/app/bin/ddp-doctor run --report report.json -- sh -c '
            echo "path: $PYTHONPATH"
            echo "library: $DDP_DOCTOR_LIBRARY"
            exec /mnt/bin/training 2'
        cat report.json
    "#;
    let Some((succeeded, said)) = outcome(script) else { return };
    assert!(succeeded && said.contains("owner: 65534\n"), "{said}");
    assert!(said.contains("path: /mnt/app/lib/ddp-doctor/python/ddp_doctor/activate:"), "{said}");
    assert!(said.contains("library: /mnt/app/lib/ddp-doctor/libddp_doctor.so\n"), "{said}");
    assert!(said.contains("\"ranks_reporting\": 2"), "{said}");
    assert!(said.contains("verdict: healthy"), "{said}");
    for word in ["not found", "ignored", "belongs to", "left alone", "process group"] {
        assert!(!said.contains(word), "{word}: {said}");
    }
}

/// The job starts its container itself.
#[test]
fn ranks_in_a_rootless_container_are_diagnosed() {
    let script = r#"
        victim /mnt/app/bin/ddp-doctor run --report report.json -- \
            unshare --user --map-root-user /mnt/bin/training 2
        cat report.json
    "#;
    let Some((succeeded, said)) = outcome(script) else { return };
    assert!(succeeded, "{said}");
    assert!(said.contains("\"ranks_reporting\": 2") && said.contains("verdict: healthy"), "{said}");
}

/// There everybody has the user id 0, and shares memory with the host.
#[test]
fn users_of_rootless_containers_have_directories_of_their_own() {
    let script = r#"
        attacker unshare --user --map-root-user /mnt/app/bin/ddp-doctor run -- true
        rootless /mnt/app/bin/ddp-doctor run -- true
        victim /mnt/app/bin/ddp-doctor run -- true
        /mnt/app/bin/ddp-doctor run --run-dir /mnt/root -- true
        echo "names: $(ls /dev/shm | tr '\n' ' ')"
    "#;
    let Some((succeeded, said)) = outcome(script) else { return };
    assert!(succeeded, "{said}");
    assert!(said.contains("names: ddp-doctor-0 ddp-doctor-64126 ddp-doctor-65534 \n"), "{said}");
    for word in ["left alone", "cannot connect", "belongs to"] {
        assert!(!said.contains(word), "{word}: {said}");
    }
}

/// An owner without an id there is root of the host, or any other user.
#[test]
fn link_of_another_user_of_the_host_is_not_followed_in_a_container() {
    let script = r#"
        victim mkdir kept
        echo precious > kept/report.json
        chown 64126:64126 kept/report.json
        mkdir /mnt/theirs
        chown 65534:65534 /mnt/theirs
        for name in rep ddp-doctor-runs; do attacker ln -s /mnt/home/kept /mnt/theirs/$name; done
        for folder in . /mnt/theirs; do
            (cd /mnt/theirs; rootless /mnt/app/bin/ddp-doctor run --report $folder/rep/report.json -- true) || true
        done
        rootless /mnt/app/bin/ddp-doctor run --run-dir /mnt/theirs/rep/run -- true || true
        echo "left: $(ls -A kept) $(cat kept/report.json)"
    "#;
    let Some((_, said)) = outcome(script) else { return };
    assert!(said.contains("left: report.json precious\n"), "{said}");
    assert!(said.contains("rep is a link that another user can change"), "{said}");
}

/// The owner of a directory above the run directory can exchange it.
#[test]
fn library_is_not_below_a_directory_of_another_user_of_the_host() {
    let script = r#"
        mkdir /mnt/theirs
        chown 65534:65534 /mnt/theirs
        mkdir /mnt/theirs/own
        chown 64126:64126 /mnt/theirs/own
        cd /mnt/theirs/own
        rootless /mnt/app/bin/ddp-doctor run --run-dir out --nccl profiler -- \
            sh -c 'echo "folder: ${LD_LIBRARY_PATH:-none}"'
    "#;
    let Some((succeeded, said)) = outcome(script) else { return };
    assert!(succeeded, "{said}");
    assert!(said.contains("folder: /mnt/home/.cache/ddp-doctor/"), "{said}");
    let notice =
        "another user of the host may own /mnt/theirs, and can remove or replace the evidence";
    assert!(said.contains(notice), "{said}");
}

/// There, an owner without an id can be anybody: code of such an owner is not used where others can put it. What is then
/// said is true: the package was found, and whether ranks joined a process group is unknown.
#[test]
fn refused_package_is_not_reported_as_missing() {
    let script = r#"
        mkdir -m 1777 /mnt/shared
        cp -r /mnt/app /mnt/shared
        rootless /mnt/shared/app/bin/ddp-doctor run -- true
    "#;
    let Some((succeeded, said)) = outcome(script) else { return };
    assert!(succeeded, "{said}");
    let captured = "collectives of Python programs will not be captured: ";
    assert!(said.contains(captured) && said.contains("is ignored, because /mnt/shared"), "{said}");
    assert!(said.contains("set DDP_DOCTOR_PYTHON to use it"), "{said}");
    assert!(!said.contains("not found"), "{said}");
    assert!(!said.contains("joined"), "{said}");
}
