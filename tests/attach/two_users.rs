//! `attach --all` of root beside the jobs of two users and of root, and of one of these users.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use ddp_doctor_proto::report::Report;

use crate::security::other_users::{OtherUser, text};
use crate::support::coordinator::Coordinator;

const USERS: [u32; 2] = [65533, 65534];

/// Stands in for PyTorch, whose environment other users may not enter: a call that waits in a group, and a library
/// with a thread of Gloo's name.
const TORCH: &str = r#"
import _thread

_world = object()
_pg_names = {_world: "0"}
_pg_group_ranks = {_world: {0: 0, 1: 1}}


def all_reduce(tensor, group=None):
    lock = _thread.allocate_lock()
    lock.acquire()
    lock.acquire()
"#;
const LIBRARY: &str = r#"
#define _GNU_SOURCE
#include <pthread.h>
#include <unistd.h>
static void *wait_for_work(void *nothing)
{
    pthread_setname_np(pthread_self(), "pt_gloo_runloop");
    pause();
    return nothing;
}
__attribute__((constructor)) static void start(void)
{
    pthread_t thread;
    pthread_create(&thread, NULL, wait_for_work, NULL);
}
"#;
/// Rank 1 sleeps in line 7 while rank 0 waits for it in line 8, or in line 2 of the file that `FRAME` names.
const PROGRAM: &str = r#"import ctypes, os, pathlib, time
import torch.distributed.distributed_c10d as dist

ctypes.CDLL("./libtorch_cpu.so")
pathlib.Path(f"ready-{os.getuid()}-{os.environ['RANK']}").touch()
if os.environ["RANK"] == "1":
    time.sleep(3600)
exec(compile("\ndist.all_reduce(None)", os.environ.get("FRAME", "train.py"), "exec"))
"#;
/// Runs `attach` beside a job of each user, in a process namespace of their own, so that it finds no other jobs. Both
/// jobs have one id. A wait is reported after 2 s.
const COMMANDS: &str = r#"
export WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=3775 PYTHONDONTWRITEBYTECODE=1
as() { user=$1; shift; setpriv --reuid=$user --regid=$user --clear-groups "$@"; }
for user in 65533 65534; do
    for rank in 0 1; do RANK=$rank LOCAL_RANK=$rank as $user /usr/bin/python3 train.py & done
done
for i in $(seq 600); do [ "$(ls ready-* 2> /dev/null | wc -l)" = 4 ] && break; sleep 0.1; done
sleep 3
for user in 65533 65534 0; do
    kept=; [ $user != 0 ] || kept="--run-dir kept"
    for i in $(seq 20); do
        status=0; as $user "$0" attach --all --time-scale 0.1 $kept > said-$user 2>&1 || status=$?
        [ $status != 1 ] || break
        sleep 1
    done
    echo "== $user, status $status"; cat said-$user
done
kill -KILL $(jobs -p)
"#;

/// Runs `attach` of root beside a job of root's, and one of another user's, which has a frame in a private file of root's.
const PRIVATE_SOURCE: &str = r#"
export WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=3776 PYTHONDONTWRITEBYTECODE=1
mkdir -m 700 own
cp -r torch libtorch_cpu.so train.py own
printf 'import os\nKEY = "text of root"\n' > own/config.py
for rank in 0 1; do
    (cd own; RANK=$rank LOCAL_RANK=$rank exec /usr/bin/python3 train.py) &
    FRAME=$PWD/own/config.py RANK=$rank LOCAL_RANK=$rank setpriv --reuid=65534 --regid=65534 --clear-groups \
        /usr/bin/python3 train.py &
done
for i in $(seq 600); do [ "$(ls ready-* own/ready-* 2> /dev/null | wc -l)" = 4 ] && break; sleep 0.1; done
sleep 3
for format in text markdown html; do
    for i in $(seq 20); do
        status=0; "$0" attach --all --time-scale 0.1 --format $format > $format || status=$?
        [ $status != 1 ] || break
        sleep 1
    done
    cat $format
done
kill -KILL $(jobs -p)
"#;
/// Runs `attach` of root beside two ranks of each user, which state that they are the halves of one job: with a directory,
/// and with a coordinator.
const HALVES: &str = r#"
export WORLD_SIZE=4 LOCAL_WORLD_SIZE=2 MASTER_ADDR=10.1.2.3 MASTER_PORT=3777 PYTHONDONTWRITEBYTECODE=1
for rank in 0 1 2 3; do
    user=$((65533 + rank / 2))
    RANK=$rank LOCAL_RANK=$((rank % 2)) setpriv --reuid=$user --regid=$user --clear-groups /usr/bin/python3 train.py &
done
for i in $(seq 600); do [ "$(ls ready-* 2> /dev/null | wc -l)" = 4 ] && break; sleep 0.1; done
sleep 3
"$0" attach --all --time-scale 0.1 --run-dir kept > said
"$0" analyze --format json kept/* > kept.json
"$0" attach --all --time-scale 0.1 --coordinator "$1" --format json > gathered.json
"$0" attach --time-scale 0.1 --job job-3777-of-user-65534 --format json > selected.json
kill -KILL $(jobs -p)
"#;

fn write_program(folder: &Path) {
    let package = folder.join("torch/distributed");
    fs::create_dir_all(&package).unwrap();
    for empty in ["torch/__init__.py", "torch/distributed/__init__.py"] {
        fs::write(folder.join(empty), "").unwrap();
    }
    fs::write(package.join("distributed_c10d.py"), TORCH).unwrap();
    fs::write(folder.join("train.py"), PROGRAM).unwrap();
    fs::write(folder.join("thread.c"), LIBRARY).unwrap();
    let compiled = Command::new("gcc")
        .args(["-shared", "-fPIC", "-o", "libtorch_cpu.so", "thread.c", "-lpthread"])
        .current_dir(folder)
        .status();
    assert!(compiled.unwrap().success());
}

/// Runs such a script; returns what it prints.
fn run_script(script: &str, folder: &Path, argument: &str) -> String {
    write_program(folder);
    let output = Command::new("unshare")
        .args(["--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-c", script])
        .arg(folder.join("ddp-doctor"))
        .arg(argument)
        .current_dir(folder)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output));
    text(&output)
}

/// Each job has the folders of its own sources.
#[test]
fn source_of_a_job_is_not_shown_in_the_report_of_another_one() {
    let Some(other) = OtherUser::new() else { return };
    let said = run_script(PRIVATE_SOURCE, other.path(), "");
    for format in ["text", "markdown", "html"] {
        let said = fs::read_to_string(other.path().join(format)).unwrap();
        assert!(said.contains("own/config.py"), "{format}: {said}");
        assert!(said.contains("time.sleep(3600)"), "{format}: {said}");
    }
    assert!(!said.contains("text of root"), "{said}");
}

/// Whichever name and ranks they state.
#[test]
fn jobs_of_two_users_are_never_joined() {
    let Some(other) = OtherUser::new() else { return };
    let coordinator = Coordinator::start();
    let folder = other.path();
    let said = run_script(HALVES, folder, coordinator.address());
    let ranks = |name: &str| -> BTreeMap<String, Vec<u32>> {
        let json = fs::read_to_string(folder.join(name)).unwrap();
        let reports = serde_json::Deserializer::from_str(&json).into_iter::<Report>();
        let of_report = |it: Report| (it.job.id, it.ranks.iter().map(|rank| rank.rank).collect());
        reports.map(|it| of_report(it.unwrap_or_else(|error| panic!("{error}: {said}")))).collect()
    };
    // On a busy host, a rank that does not answer in time is left out.
    let halves = BTreeMap::from([
        (format!("job-3777-of-user-{}", USERS[0]), [0, 1]),
        (format!("job-3777-of-user-{}", USERS[1]), [2, 3]),
    ]);
    for name in ["kept.json", "gathered.json", "selected.json"] {
        let found = ranks(name);
        assert!(!found.is_empty(), "{name}: {said}");
        for (id, of_job) in found {
            assert!(of_job.iter().all(|rank| halves[&id].contains(rank)), "{name}: {said}");
        }
    }
    assert!(!ranks("selected.json").contains_key(&format!("job-3777-of-user-{}", USERS[0])));
}

#[test]
fn root_attaches_to_the_jobs_of_all_users() {
    let Some(other) = OtherUser::new() else { return };
    let folder = other.path();
    let said = run_script(COMMANDS, folder, "");
    let finding = "rank 1 is stuck outside any collective: it sleeps at train.py:7; rank 0 waits for it in all_reduce";
    let of = |user: u32| {
        let (_, rest) = said.split_once(&format!("== {user}, ")).unwrap();
        rest.split("== ").next().unwrap()
    };
    let counts = |user: u32| {
        let said = of(user);
        (said.starts_with("status 1\n"), said.matches(finding).count())
    };
    assert_eq!(counts(0), (true, 2), "{said}");
    for user in USERS {
        assert!(of(0).contains(&format!("job job-3775 of user {user}")), "{said}");
        let kept = folder.join(format!("kept/job-3775-of-user-{user}/report.json"));
        assert!(kept.exists(), "{}: {said}", kept.display());
    }
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    for (user, other) in [(USERS[0], USERS[1]), (USERS[1], USERS[0])] {
        assert!(!of(user).contains(&other.to_string()), "{said}");
        // Otherwise only root may read them.
        if ["", "0"].contains(&scope.trim()) {
            assert_eq!(counts(user), (true, 1), "{said}");
        }
    }
}
