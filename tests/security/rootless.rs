//! Rootless containers: in a user namespace in which only one user has an id, everything of root's belongs to user 65534.

use super::other_users::text;
use super::victim::with_two_users;

/// An installation of root's, and `rootless`, which runs a command as the victim in such a namespace.
const INSTALLED: &str = r#"
mkdir -p /home/app/bin /home/app/lib/ddp-doctor/python
cp /home/bin/ddp-doctor /home/app/bin
cp /home/bin/*.so /home/app/lib/ddp-doctor
cp -r "$SOURCE/agent/python/ddp_doctor" /home/app/lib/ddp-doctor/python
chmod -R go+rX /home/app
rootless() { victim unshare --user --map-root-user "$@"; }
export LD_LIBRARY_PATH=/home/bin
cd /home/home
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
        rootless sh -c 'stat -c "owner: %u" /home/app/bin/ddp-doctor'
        rootless /home/app/bin/ddp-doctor run --report report.json -- sh -c '
            echo "path: $PYTHONPATH"
            echo "library: $DDP_DOCTOR_LIBRARY"
            exec /home/bin/training 2'
        cat report.json
    "#;
    let Some((succeeded, said)) = outcome(script) else { return };
    assert!(succeeded && said.contains("owner: 65534\n"), "{said}");
    assert!(said.contains("path: /home/app/lib/ddp-doctor/python/ddp_doctor/activate:"), "{said}");
    assert!(said.contains("library: /home/app/lib/ddp-doctor/libddp_doctor.so\n"), "{said}");
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
        victim /home/app/bin/ddp-doctor run --report report.json -- \
            unshare --user --map-root-user /home/bin/training 2
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
        attacker unshare --user --map-root-user /home/app/bin/ddp-doctor run -- true
        rootless /home/app/bin/ddp-doctor run -- true
        victim /home/app/bin/ddp-doctor run -- true
        /home/app/bin/ddp-doctor run --run-dir /home/root -- true
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
        mkdir /home/theirs
        chown 65534:65534 /home/theirs
        for name in rep ddp-doctor-runs; do attacker ln -s /home/home/kept /home/theirs/$name; done
        for folder in . /home/theirs; do
            (cd /home/theirs; rootless /home/app/bin/ddp-doctor run --report $folder/rep/report.json -- true) || true
        done
        rootless /home/app/bin/ddp-doctor run --run-dir /home/theirs/rep/run -- true || true
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
        mkdir /home/theirs
        chown 65534:65534 /home/theirs
        mkdir /home/theirs/own
        chown 64126:64126 /home/theirs/own
        cd /home/theirs/own
        rootless /home/app/bin/ddp-doctor run --run-dir out --nccl profiler -- \
            sh -c 'echo "folder: ${LD_LIBRARY_PATH:-none}"'
    "#;
    let Some((succeeded, said)) = outcome(script) else { return };
    assert!(succeeded, "{said}");
    assert!(said.contains("folder: /home/home/.cache/ddp-doctor/"), "{said}");
    let notice =
        "another user of the host may own /home/theirs, and can remove or replace the evidence";
    assert!(said.contains(notice), "{said}");
}

/// There, an owner without an id can be anybody: code of such an owner is not used where others can put it. What is then
/// said is true: the package was found, and whether ranks joined a process group is unknown.
#[test]
fn refused_package_is_not_reported_as_missing() {
    let script = r#"
        mkdir -m 1777 /home/shared
        cp -r /home/app /home/shared
        rootless /home/shared/app/bin/ddp-doctor run -- true
    "#;
    let Some((succeeded, said)) = outcome(script) else { return };
    assert!(succeeded, "{said}");
    let captured = "collectives of Python programs will not be captured: ";
    assert!(said.contains(captured) && said.contains("is ignored, because /home/shared"), "{said}");
    assert!(said.contains("set DDP_DOCTOR_PYTHON to use it"), "{said}");
    assert!(!said.contains("not found"), "{said}");
    assert!(!said.contains("joined"), "{said}");
}

/// The volume of a container: a directory of another user of the host, mounted at the top.
const VOLUME: &str = r#"
    mkdir /home/volume
    chown 65534:65534 /home/volume
    in_container() {
        victim unshare --user --map-root-user --mount sh -ec 'mount --bind /home/volume /mnt; "$@"' sh "$@"
    }
"#;

#[test]
fn owner_of_a_volume_at_the_top_is_not_trusted() {
    let script = r#"
        victim mkdir kept
        echo precious > kept/report.json
        chown 64126:64126 kept/report.json
        attacker ln -s /home/home/kept /home/volume/out
        mkdir /home/volume/own
        chown 64126:64126 /home/volume/own
        in_container /home/app/bin/ddp-doctor run --report /mnt/out/report.json --run-dir /mnt/out/run -- true || true
        in_container /home/app/bin/ddp-doctor run --nccl profiler --run-dir /mnt/own/run -- \
            sh -c 'echo "folder: ${LD_LIBRARY_PATH:-none}"'
        echo "left: $(ls -A kept) $(cat kept/report.json)"
    "#;
    let Some((_, said)) = outcome(&format!("{VOLUME}{script}")) else { return };
    assert!(said.contains("left: report.json precious\n"), "{said}");
    assert!(said.contains("/mnt/out is a link that another user can change"), "{said}");
    assert!(said.contains("folder: /home/home/.cache/ddp-doctor/"), "{said}");
    assert!(said.contains("another user of the host may own /mnt, and can remove"), "{said}");
}

#[test]
fn evidence_of_another_user_of_the_host_leads_to_no_file() {
    let script = r#"
        echo '[rank0]: RuntimeError: precious' > private.log
        chown 64126:64126 private.log
        chmod 600 private.log
        attacker ln -s /home/home/private.log /home/volume/rank0.log
        rootless /home/app/bin/ddp-doctor analyze /home/volume || true
    "#;
    let Some((_, said)) = outcome(&format!("{VOLUME}{script}")) else { return };
    assert!(said.contains("link of user 65534") && !said.contains("precious"), "{said}");
}

#[test]
fn interpreter_of_another_user_of_the_host_is_not_executed() {
    let script = r#"
        attacker sh -c 'echo "touch /home/home/executed" > /home/volume/python; chmod 755 /home/volume/python'
        rootless /home/app/bin/ddp-doctor check -- srun /home/volume/python train.py || true
        ls -A .
    "#;
    let Some((_, said)) = outcome(&format!("{VOLUME}{script}")) else { return };
    assert!(said.contains("belongs to user 65534") && !said.contains("executed"), "{said}");
}

#[test]
fn shared_group_of_the_host_is_not_the_own_one() {
    let script = r#"
        mkdir -m 2770 /home/project
        chown 64126:100 /home/project
        as_member() { setpriv --reuid=64126 --regid=100 --clear-groups "$@"; }
        chmod 770 /home/home
        doctor="/home/app/bin/ddp-doctor run --run-dir"
        for enter in env "unshare --user --map-root-user"; do
            as_member $enter $doctor /home/project/run-${enter%% *} -- true
            victim $enter $doctor /home/home/run-${enter%% *} -- true
        done
    "#;
    let Some((succeeded, said)) = outcome(script) else { return };
    assert!(succeeded, "{said}");
    assert_eq!(said.matches("other users can write to /home/project").count(), 2, "{said}");
    assert_eq!(said.matches("other users can write to").count(), 2, "{said}");
}

/// There, the id of the user on the host is unknown.
#[test]
fn nested_namespace_has_no_private_group() {
    let script = r#"
        mkdir -m 2770 /home/project
        chown 64126:100 /home/project
        nested() { "$@" unshare --user --map-root-user unshare --user --map-root-user /home/app/bin/ddp-doctor run \
            --run-dir /home/project/run-nested -- true; }
        nested setpriv --reuid=64126 --regid=100 --clear-groups
    "#;
    let Some((succeeded, said)) = outcome(script) else { return };
    assert!(succeeded, "{said}");
    assert!(said.contains("other users can write to /home/project"), "{said}");
}

/// A container whose image is a directory of the file system that the volume at `/data` is on, so that both have one device
/// number. It runs the commands of a script.
const IMAGE: &str = r#"
        victim mkdir kept
        echo precious > kept/report.json
        chown 64126:64126 kept/report.json
        mkdir /home/image /home/volume/own
        printf '#!/bin/sh\ntouch /kept/executed\n' > /home/volume/own/python
        chmod 755 /home/volume/own/python
        chown -R 64126:64126 /home/image /home/volume/own
        mkdir /home/image/scratch
        chown 65534:65534 /home/image/scratch
        for folder in volume image/scratch; do attacker ln -s /kept /home/$folder/out; done
        cat > /home/inside <<'END'
            set -e
            mount --bind /home/image /home/image
            cd /home/image
            mkdir app bin data dev etc home kept lib lib64 old proc tmp usr
            for name in usr lib lib64 bin etc dev proc; do mount --rbind /$name $name; done
            mkdir home/bin
            mount --bind /home/bin home/bin
            mount --bind /home/app app
            mount --bind /home/volume data
            mount --bind /home/home/kept kept
            /usr/sbin/pivot_root . old
            cd /
            umount -l /old
            export HOME=/home
            doctor=/app/bin/ddp-doctor
END
        in_image() {
            cat >> /home/inside
            victim unshare --user --map-root-user --mount sh /home/inside
            echo "left: $(ls kept) $(cat kept/report.json)"
        }
    "#;

#[test]
fn owner_of_a_volume_on_the_file_system_of_the_image_is_not_trusted() {
    let script = r#"
        in_image <<'END'
            stat -c 'device: %d' / /data
            $doctor run --report /data/out/report.json -- true || true
            $doctor run --run-dir /data/out/run -- true || true
            $doctor check -- srun /data/own/python train.py || true
END
    "#;
    let Some((succeeded, said)) = outcome(&format!("{VOLUME}{IMAGE}{script}")) else { return };
    assert!(succeeded, "{said}");
    let devices: Vec<&str> = said.lines().filter(|it| it.starts_with("device: ")).collect();
    assert!(devices.len() == 2 && devices[0] == devices[1], "{said}");
    assert!(said.contains("left: report.json precious\n"), "{said}");
    assert!(said.contains("/data/out is a link that another user can change"), "{said}");
    let words: Vec<&str> = said.split_whitespace().collect();
    assert!(words.join(" ").contains("/data belongs to user 65534"), "{said}");
}

/// Root makes directories in `/` for any user.
#[test]
fn owner_of_a_directory_at_the_top_is_not_trusted() {
    let script = r#"
        in_image <<'END'
            $doctor run --report /scratch/out/report.json -- true || true
            $doctor run --run-dir /scratch/out/run -- true || true
            $doctor analyze /scratch/out || true
END
    "#;
    let Some((succeeded, said)) = outcome(&format!("{VOLUME}{IMAGE}{script}")) else { return };
    assert!(succeeded && said.contains("left: report.json precious\n"), "{said}");
    assert!(said.contains("/scratch/out is a link that another user can change"), "{said}");
    assert!(said.contains("it is a link of user 65534"), "{said}");
}

/// As in `--volume /projects/team/tmp:/tmp`.
#[test]
fn owner_of_a_volume_with_the_name_of_its_mount_point_is_not_trusted() {
    let script = r#"
        victim mkdir kept
        echo precious > kept/report.json
        chown 64126:64126 kept/report.json
        mkdir -p /home/team/tmp
        chown 65534:65534 /home/team/tmp
        attacker ln -s /home/home/kept /home/team/tmp/out
        victim unshare --user --map-root-user --mount sh -ec 'mount --bind /home/team/tmp /tmp; "$@"' sh \
            /home/app/bin/ddp-doctor run --report /tmp/out/report.json -- true || true
        echo "left: $(ls -A kept) $(cat kept/report.json)"
    "#;
    let Some((_, said)) = outcome(script) else { return };
    assert!(said.contains("left: report.json precious\n"), "{said}");
    assert!(said.contains("/tmp/out is a link that another user can change"), "{said}");
}

/// The program is in `~/.local/bin`, from which a source tree would be in the home of a user named `agent`.
#[test]
fn home_of_another_user_is_not_a_source_tree() {
    let script = r#"
        victim mkdir -p /home/home/.local/bin
        cp /home/bin/ddp-doctor /home/bin/*.so /home/home/.local/bin
        mkdir /home/agent
        chown 65534:65534 /home/agent
        attacker mkdir -p /home/agent/python/ddp_doctor/activate
        attacker touch /home/agent/python/ddp_doctor/__init__.py /home/agent/python/ddp_doctor/activate/sitecustomize.py
        for user in victim rootless; do
            $user /home/home/.local/bin/ddp-doctor run -- sh -c 'echo "path: ${PYTHONPATH:-none}"'
        done
    "#;
    let Some((succeeded, said)) = outcome(script) else { return };
    assert!(succeeded, "{said}");
    assert_eq!(said.matches("path: none\n").count(), 2, "{said}");
    assert!(!said.contains("/home/agent"), "{said}");
}
