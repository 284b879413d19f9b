//! Sockets of other users of the machine.

use super::other_users::text;
use super::victim::with_two_users;

/// Starts a coordinator as a user; its address is then in a file.
const COORDINATOR: &str = r#"
mkdir /home/theirs
chown 65534 /home/theirs
coordinator_of() {
    touch /home/address-$1 && chmod 666 /home/address-$1
    "$@" > /home/address-$1 &
    while [ ! -s /home/address-$1 ]; do sleep 0.05; done
}
"#;

#[test]
fn planted_socket_does_not_hide_the_own_coordinator() {
    let script = r#"
        cd /home/home
        attacker mkdir /dev/shm/ddp-doctor-64126
        coordinator_of victim ddp-doctor coordinator --listen 127.0.0.1:0
        address=$(cat /home/address-victim)
        attacker perl -MIO::Socket::UNIX -e \
            'IO::Socket::UNIX->new(Local => $ARGV[0], Listen => 1) or die' \
            "/dev/shm/ddp-doctor-64126/$address.sock"
        echo "running: $(victim ddp-doctor status $address 2>&1)" || true
        kill $(pidof ddp-doctor)
        wait $! || true
        echo "ended: $(victim ddp-doctor status $address 2>&1)" || true
    "#;
    let Some(output) = with_two_users(&format!("{COORDINATOR}{script}")) else { return };
    let said = text(&output);
    let (running, ended) = said.split_once("ended: ").unwrap_or_else(|| panic!("{said}"));
    assert!(running.contains("running: ") && !running.contains("is not used"), "{said}");
    assert!(ended.contains("is not used: its directory belongs to"), "{said}");
}

#[test]
fn evidence_of_root_goes_to_no_coordinator_of_another_user() {
    let script = r#"
        mkdir /home/root
        cd /home/root
        coordinator_of attacker ddp-doctor coordinator --listen 127.0.0.1:0 --report-dir /home/theirs
        export address="unix:/dev/shm/ddp-doctor-65534/$(cat /home/address-attacker).sock"
        export LD_LIBRARY_PATH=/home/bin
        ddp-doctor run --job below-run --coordinator "$address" -- /home/bin/training 2
        DDP_DOCTOR_PROGRAM=/home/bin/ddp-doctor DDP_DOCTOR_JOB=alone DDP_DOCTOR_COORDINATOR="$address" \
            /home/bin/training 2
        sleep 1
        echo "they have: $(ls -A /home/theirs)"
        ddp-doctor status "$address" || true
        victim ddp-doctor status "$address" || true
    "#;
    let Some(output) = with_two_users(&format!("{COORDINATOR}{script}")) else { return };
    let said = text(&output);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("they have: \n"), "{said}");
    let refused = "is not used: its directory belongs to or is accessible to another user";
    assert!(said.contains(&format!("{refused}; this process diagnoses the job")), "{said}");
    // `run`, a reporter, and the other user who is not root.
    assert_eq!(said.matches(refused).count(), 3, "{said}");
    // Root may look, and learns whose it is.
    assert!(said.contains("user 65534"), "{said}");
}

/// A directory that somebody else made, and a copy of an own one.
#[test]
fn run_directory_of_others_chooses_no_host_to_connect_to() {
    let script = r#"
        description() {
            echo '{"job": "j", "host": "elsewhere", "boot_id": "x", "pid": 1, "start_ticks": 1, "coordinator": "192.0.2.1:9"}'
        }
        mkdir /home/theirs/run
        description > /home/theirs/run/run.json
        chown -R 65534 /home/theirs
        victim mkdir /home/home/copy
        description > /home/home/copy/run.json
        chown 64126:64126 /home/home/copy/run.json
        export DDP_DOCTOR_TOKEN=0123456789abcdef01
        for command in "status" "watch --once" "dump"; do
            for run in /home/theirs/run /home/home/copy; do
                victim timeout 4 ddp-doctor $command $run || echo "status $?"
            done
        done
    "#;
    let Some(output) = with_two_users(&format!("{COORDINATOR}{script}")) else { return };
    let said = text(&output);
    assert_eq!(said.matches("names the coordinator 192.0.2.1:9, but").count(), 6, "{said}");
    assert_eq!(said.matches("status 3").count(), 6, "{said}");
}

/// Its look-up alone could mount the directory of another host.
#[test]
fn run_directory_of_others_chooses_no_path_to_look_up() {
    let script = r#"
        mkdir -m 700 /home/theirs/sockets
        mkdir /home/theirs/run
        chown 65534 /home/theirs/sockets
        for path in /home/theirs/sockets/x.sock /dev/shm/ddp-doctor-65534/../x.sock /dev/shm/ddp-doctor-0/x.sock; do
            echo '{"job": "j", "host": "elsewhere", "boot_id": "x", "pid": 1, "start_ticks": 1,
                "coordinator": "unix:'$path'"}' > /home/theirs/run/run.json
            chown -R 65534 /home/theirs/run
            for user in env victim; do
                for command in "status" "watch --once" "dump"; do
                    $user timeout 4 ddp-doctor $command /home/theirs/run || echo "status $?"
                done
            done
        done
    "#;
    let Some(output) = with_two_users(&format!("{COORDINATOR}{script}")) else { return };
    let said = text(&output);
    let why =
        "names a coordinator, but it was moved or copied, or another user may have written that";
    assert_eq!(said.matches(why).count(), 18, "{said}");
}

/// In a folder where others can create entries, one may have the name of an address.
#[test]
fn entry_with_the_name_of_an_address_is_not_a_run_directory() {
    let script = r#"
        mkdir -m 1777 /home/shared
        cd /home/shared
        attacker mkdir 192.0.2.1:9
        echo '{"job": "forged", "host": "x", "boot_id": "x", "pid": 1, "start_ticks": 1}' > 192.0.2.1:9/run.json
        for command in "status" "watch --once" "dump"; do
            victim timeout 10 ddp-doctor $command 192.0.2.1:9 || true
            DDP_DOCTOR_COORDINATOR=192.0.2.1:9 victim timeout 10 ddp-doctor $command || true
        done
    "#;
    let Some(output) = with_two_users(script) else { return };
    let said = text(&output);
    assert!(!said.contains("run directory") && !said.contains("forged"), "{said}");
    assert_eq!(said.matches("DDP_DOCTOR_TOKEN").count(), 6, "{said}");
}

/// The same without TARGET: a copy that claims to be running now, and to be the newest run, is not a run of this user.
#[test]
fn copied_run_directory_is_not_the_newest_run() {
    let script = r#"
        cd /home/home
        victim ddp-doctor run -- training 2 > /dev/null
        victim mkdir ddp-doctor-runs/copy
        echo '{"job": "forged", "host": "'$(uname -n)'", "boot_id": "'$(cat /proc/sys/kernel/random/boot_id)'",
            "pid": '$$', "start_ticks": '$(cut -d " " -f 22 /proc/$$/stat)', "coordinator": "192.0.2.1:9",
            "started_at": "2200-01-01T00:00:00.000Z", "directory": {"inode": 1, "created_unix_ns": 1}}' \
            > ddp-doctor-runs/copy/run.json
        chown 64126:64126 ddp-doctor-runs/copy/run.json
        export DDP_DOCTOR_TOKEN=0123456789abcdef01
        for command in "status" "watch --once" "dump" "analyze"; do
            echo "$command: $(victim timeout 10 ddp-doctor $command 2>&1)" || true
        done
    "#;
    let Some(output) = with_two_users(script) else { return };
    let said = text(&output);
    assert!(!said.contains("192.0.2.1") && !said.contains("forged"), "{said}");
    assert!(said.contains("status: job training-"), "{said}");
}

#[test]
fn owner_of_a_run_is_stated_once() {
    let script = r#"
        cd /home/theirs
        attacker env HOME=/home/theirs ddp-doctor run --run-dir run -- sleep 60 &
        until_exists /home/theirs/run/run.json
        echo "said: $(ddp-doctor status run 2>&1)" || true
    "#;
    let Some(output) = with_two_users(&format!("{COORDINATOR}{script}")) else { return };
    let said = text(&output);
    let (_, status) = said.split_once("said: ").unwrap_or_else(|| panic!("{said}"));
    assert_eq!(status.matches("belongs to user 65534").count(), 1, "{said}");
}

#[test]
fn attach_needs_no_directory_that_another_user_has_made() {
    let script = r#"
        for directory in /dev/shm /tmp; do attacker mkdir $directory/ddp-doctor-64126; done
        cd /home/home
        echo library > libtorch_cpu.so
        chmod 755 libtorch_cpu.so
        cat > rank.py <<'END'
import mmap, time
library = open("libtorch_cpu.so", "rb")
mapped = mmap.mmap(library.fileno(), 0, prot=mmap.PROT_READ)
open("started", "w").close()
time.sleep(60)
END
        victim env RANK=0 WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 python3 rank.py &
        until_exists started
        victim ddp-doctor attach --time-scale 0.05 || echo "status $?"
        echo "left: $(ls -A .cache 2>/dev/null)"
    "#;
    let Some(output) = with_two_users(&format!("{COORDINATOR}{script}")) else { return };
    let said = text(&output);
    assert!(said.contains("1 rank"), "{said}");
    assert!(!said.contains("belongs to user"), "{said}");
    assert!(said.contains("left: ddp-doctor\n"), "{said}");
}
