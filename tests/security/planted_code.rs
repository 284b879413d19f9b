//! Attacks by another user of the machine who puts links where the program and the agent search for code. What they lead to
//! belongs to root, which is not enough: any library or program of root's could be chosen.

use super::other_users::text;
use super::victim::with_two_users;

/// The program is in a folder of root's, below one to which everybody can write.
const BELOW_SHARED: &str = r#"
mkdir -m 1777 /mnt/shared
mkdir -p /mnt/shared/a/bin /mnt/tree/python/ddp_doctor/activate
cp /mnt/bin/ddp-doctor /mnt/shared/a/bin
touch /mnt/tree/python/ddp_doctor/activate/sitecustomize.py
"#;

#[test]
fn links_of_another_user_beside_the_program_are_not_followed() {
    let script = r#"
        chmod 1777 /mnt/shared/a
        for name in libddp_doctor.so libddp_doctor_nccl.so; do
            attacker ln -s /mnt/bin/libddp_doctor_python.so /mnt/shared/a/$name
        done
        attacker ln -s /mnt/tree /mnt/shared/agent
        cd /mnt/home
        victim /mnt/shared/a/bin/ddp-doctor run --nccl always -- env
    "#;
    let Some(output) = with_two_users(&format!("{BELOW_SHARED}{script}")) else { return };
    let said = text(&output);
    assert!(output.status.success(), "{said}");
    for variable in ["DDP_DOCTOR_LIBRARY=", "LD_PRELOAD=", "PYTHONPATH="] {
        assert!(!said.contains(&format!("\n{variable}/mnt")), "{said}");
    }
    assert!(said.contains("is ignored, because /mnt/shared is writable by other users"), "{said}");
}

#[test]
fn link_of_another_user_beside_the_library_starts_no_reporter() {
    let script = r#"
        chmod 1777 /mnt/shared/a
        mkdir /mnt/shared/a/lib
        cp /mnt/bin/libddp_doctor.so /mnt/shared/a/lib
        printf '#!/bin/sh\n: > /mnt/home/started\n' > /mnt/other
        chmod 755 /mnt/other
        attacker ln -s /mnt/other /mnt/shared/a/ddp-doctor
        cd /mnt/home
        victim env LD_LIBRARY_PATH=/mnt/shared/a/lib PATH=/nowhere DDP_DOCTOR_COORDINATOR=127.0.0.1:1 \
            /mnt/bin/training 2
        sleep 0.5
        ls /mnt/home
    "#;
    let Some(output) = with_two_users(&format!("{BELOW_SHARED}{script}")) else { return };
    let said = text(&output);
    assert!(output.status.success(), "{said}");
    assert!(
        said.contains("is ignored, because /mnt/shared/a is writable by other users"),
        "{said}"
    );
    assert!(!said.contains("started"), "{said}");
}

/// Compiled code in a folder that Python once made with the umask of another program.
#[test]
fn package_with_modules_that_others_can_replace_is_ignored() {
    let script = r#"
        mkdir -p /mnt/installed/bin /mnt/installed/lib/ddp-doctor/python
        cp /mnt/bin/ddp-doctor /mnt/installed/bin
        cp -r "$SOURCE/agent/python/ddp_doctor" /mnt/installed/lib/ddp-doctor/python
        chmod -R go-w /mnt/installed
        find /mnt/installed -name __pycache__ -prune -exec rm -r {} +
        cd /mnt/home
        package=/mnt/installed/lib/ddp-doctor/python/ddp_doctor
        run() {
            for mode in 755 777; do
                chmod $mode $1
                victim /mnt/installed/bin/ddp-doctor run -- sh -c "echo $2 $mode: \$PYTHONPATH"
            done
        }
        mkdir $package/__pycache__
        run $package/__pycache__ own
        # Packages of link farms consist of links, to folders as well.
        chmod 755 $package/__pycache__
        mkdir -m 755 /mnt/farm
        mv $package/_process /mnt/farm
        ln -s /mnt/farm/_process $package/_process
        ln -s .. /mnt/farm/_process/above
        mkdir /mnt/farm/_process/__pycache__
        run /mnt/farm/_process/__pycache__ linked
    "#;
    let Some(output) = with_two_users(script) else { return };
    let said = text(&output);
    for case in ["own", "linked"] {
        assert!(said.contains(&format!("{case} 755: /mnt/installed")), "{said}");
        assert!(!said.contains(&format!("{case} 777: /mnt")), "{said}");
    }
    assert!(said.contains("ddp_doctor/__pycache__ is writable by other users"), "{said}");
    assert!(said.contains("farm/_process/__pycache__ is writable by other users"), "{said}");
}
