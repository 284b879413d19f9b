//! Attacks by another user of the machine who puts links where the program and the agent search for code. What they lead to
//! belongs to root, which is not enough: any library or program of root's could be chosen.

use super::other_users::text;
use super::victim::{beside_silent_mount, with_two_users};

/// The program is in a folder of root's, below one to which everybody can write.
const BELOW_SHARED: &str = r#"
mkdir -m 1777 /home/shared
mkdir -p /home/shared/target/bin /home/tree/python/ddp_doctor/activate
cp /home/bin/ddp-doctor /home/shared/target/bin
touch /home/tree/python/ddp_doctor/activate/sitecustomize.py
"#;

#[test]
fn links_of_another_user_beside_the_program_are_not_followed() {
    let script = r#"
        chmod 1777 /home/shared/target
        for name in libddp_doctor.so libddp_doctor_nccl.so; do
            attacker ln -s /home/bin/libddp_doctor_python.so /home/shared/target/$name
        done
        attacker ln -s /home/tree /home/shared/agent
        cd /home/home
        victim /home/shared/target/bin/ddp-doctor run --nccl always -- env
    "#;
    let Some(output) = with_two_users(&format!("{BELOW_SHARED}{script}")) else { return };
    let said = text(&output);
    assert!(output.status.success(), "{said}");
    for variable in ["DDP_DOCTOR_LIBRARY=", "LD_PRELOAD=", "PYTHONPATH="] {
        assert!(!said.contains(&format!("\n{variable}/home")), "{said}");
    }
    assert!(said.contains("is ignored, because /home/shared is writable by other users"), "{said}");
}

#[test]
fn link_of_another_user_beside_the_library_starts_no_reporter() {
    let script = r#"
        chmod 1777 /home/shared/target
        mkdir /home/shared/target/lib
        cp /home/bin/libddp_doctor.so /home/shared/target/lib
        printf '#!/bin/sh\n: > /home/home/started\n' > /home/other
        chmod 755 /home/other
        attacker ln -s /home/other /home/shared/target/ddp-doctor
        cd /home/home
        victim env LD_LIBRARY_PATH=/home/shared/target/lib PATH=/nowhere DDP_DOCTOR_COORDINATOR=127.0.0.1:1 \
            /home/bin/training 2
        sleep 0.5
        ls /home/home
    "#;
    let Some(output) = with_two_users(&format!("{BELOW_SHARED}{script}")) else { return };
    let said = text(&output);
    assert!(output.status.success(), "{said}");
    assert!(
        said.contains("is ignored, because /home/shared/target is writable by other users"),
        "{said}"
    );
    assert!(!said.contains("started"), "{said}");
}

/// Compiled code in a folder that Python once made with the umask of another program.
#[test]
fn package_with_modules_that_others_can_replace_is_ignored() {
    let script = r#"
        mkdir -p /home/installed/bin /home/installed/lib/ddp-doctor/python
        cp /home/bin/ddp-doctor /home/installed/bin
        cp -r "$SOURCE/agent/python/ddp_doctor" /home/installed/lib/ddp-doctor/python
        chmod -R go-w /home/installed
        find /home/installed -name __pycache__ -prune -exec rm -r {} +
        cd /home/home
        package=/home/installed/lib/ddp-doctor/python/ddp_doctor
        run() {
            for mode in 755 777; do
                chmod $mode $1
                victim /home/installed/bin/ddp-doctor run -- sh -c "echo $2 $mode: \$PYTHONPATH"
            done
        }
        mkdir $package/__pycache__
        run $package/__pycache__ own
        # Packages of link farms consist of links, to folders as well.
        chmod 755 $package/__pycache__
        mkdir -m 755 /home/farm
        mv $package/_process /home/farm
        ln -s /home/farm/_process $package/_process
        ln -s .. /home/farm/_process/above
        mkdir /home/farm/_process/__pycache__
        run /home/farm/_process/__pycache__ linked
    "#;
    let Some(output) = with_two_users(script) else { return };
    let said = text(&output);
    for case in ["own", "linked"] {
        assert!(said.contains(&format!("{case} 755: /home/installed")), "{said}");
        assert!(!said.contains(&format!("{case} 777: /home")), "{said}");
    }
    assert!(said.contains("ddp_doctor/__pycache__ is writable by other users"), "{said}");
    assert!(said.contains("farm/_process/__pycache__ is writable by other users"), "{said}");
}

/// Python reads `pyvenv.cfg` above the folder of its program, and takes its library from where that leads.
#[test]
fn check_executes_no_library_of_another_user() {
    let script = r#"
        python=/usr/bin/python3
        [ -x $python ] || { echo "no Python"; exit 0; }
        version=$($python -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
        mkdir -m 1777 /home/sticky
        cd /home/sticky
        victim mkdir bin
        victim ln -s $python bin/python3
        attacker mkdir -p fake/bin fake/lib/$version/encodings
        attacker touch fake/lib/$version/os.py
        attacker tee fake/lib/$version/encodings/__init__.py > /dev/null <<'END'
import posix
posix.close(posix.open("/home/home/executed", posix.O_CREAT))
END
        echo "home = $PWD/fake/bin" | attacker tee pyvenv.cfg > /dev/null
        victim ddp-doctor check -- srun $PWD/bin/python3 train.py || true
        echo "left: $(ls /home/home)"
    "#;
    let Some(output) = with_two_users(script) else { return };
    let said = text(&output);
    if said.contains("no Python") {
        eprintln!("skipped: {said}");
        return;
    }
    assert!(said.contains("left: \n"), "{said}");
    let words: Vec<&str> = said.split_whitespace().collect();
    assert!(words.join(" ").contains("/home/sticky is writable by other users"), "{said}");
}

#[test]
fn check_asks_nothing_of_a_file_system_of_another_user() {
    let script = r#"
        silent /home/mount
        doctor check -- srun /home/mount/bin/python train.py
        doctor check -- /home/mount/bin/torchrun train.py
        doctor check -- python3 train.py --data /home/mount/data
        echo end
    "#;
    let Some(said) = beside_silent_mount(script) else { return };
    assert!(said.contains("end") && !said.contains("status 137"), "{said}");
}

/// The default run directory is looked up wherever the command is.
#[test]
fn check_does_not_look_up_what_another_user_put_in_place_of_the_run_directory() {
    let script = r#"
        silent /home/mount
        mkdir -m 1777 /home/shared
        attacker ln -s /home/mount/x /home/shared/ddp-doctor-runs
        cd /home/shared
        doctor check
        DDP_DOCTOR_RUN_DIR=/home/shared/ddp-doctor-runs/x doctor check
        echo end
    "#;
    let Some(said) = beside_silent_mount(script) else { return };
    assert!(said.contains("end") && !said.contains("status 137"), "{said}");
    assert!(said.contains("ddp-doctor-runs is a link that another user can change"), "{said}");
}

/// The job starts even if the program lies alone in a folder below one in which others can create entries.
#[test]
fn what_another_user_put_above_the_program_is_not_looked_up() {
    let script = r#"
        silent /home/mount
        mkdir -m 1777 /home/shared
        mkdir /home/shared/program /home/shared/library
        cp /home/bin/ddp-doctor /home/shared/program
        cp /home/bin/libddp_doctor.so /home/shared/library
        attacker ln -s /home/mount/x /home/shared/libddp_doctor.so
        attacker ln -s /home/mount/x /home/shared/ddp-doctor
        victim timeout -s KILL 30 /home/shared/program/ddp-doctor run -- echo started 3>&- || echo "status $?"
        export RANK=0 WORLD_SIZE=1 DDP_DOCTOR_COORDINATOR=127.0.0.1:7999 LD_LIBRARY_PATH=/home/shared/library
        victim timeout -s KILL 30 /home/bin/training 3>&- || echo "status $?"
        echo end
    "#;
    let Some(said) = beside_silent_mount(script) else { return };
    assert!(said.contains("started") && said.contains("end"), "{said}");
    assert!(!said.contains("status 137"), "{said}");
}
