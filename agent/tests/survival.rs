//! Black boxes of processes that are killed, abort, fork, or have no room for a box.
//!
//! Each test runs this executable again as the process under test; see [`Child`].
#![expect(unsafe_code, reason = "forks, aborts and mounts")]
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says why it was skipped"
)]

use std::ffi::CString;
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use ddp_doctor_agent::blackbox::{BoxName, Item, NoBox, ReadRecord, Reader};
use ddp_doctor_agent::{Agent, Op, current};
use ddp_doctor_proto::RecordKind;
use ddp_doctor_proto::blackbox::Capacities;

/// Names the scenario for the child process; unset in the test process.
const PART: &str = "DDP_DOCTOR_TEST_PART";

/// Runs this executable again, with its boxes in `directory`.
struct Child {
    command: Command,
}

impl Child {
    fn new(part: &str, directory: &Path) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "child_process_runs_its_scenario", "--nocapture", "--test-threads=1"])
            .env(PART, part)
            .env("DDP_DOCTOR_BOX_DIR", directory)
            .env_remove("DDP_DOCTOR_RUN_DIR")
            .env_remove("DDP_DOCTOR")
            .stdout(Stdio::piped());
        Self { command }
    }

    fn env(mut self, name: &str, value: &Path) -> Self {
        self.command.env(name, value);
        self
    }

    fn without(mut self, name: &str) -> Self {
        self.command.env_remove(name);
        self
    }

    fn status(mut self) -> ExitStatus {
        self.command.output().unwrap().status
    }

    /// Runs the child. Returns false, with a message, if mounting is not permitted on this system.
    fn could(self) -> bool {
        let status = self.status();
        if status.code() == Some(NOT_PERMITTED) {
            println!("skipped: mounting is not permitted here");
            return false;
        }
        assert!(status.success(), "{status}");
        true
    }
}

/// Capacities of a box of 12 KiB.
const TINY: Capacities = Capacities {
    records: 16,
    max_records: 16,
    strings: 64,
    heap_words: 512,
    sites: 16,
    groups: 4,
    threads: 4,
};

/// Exit status of a child that is not permitted to mount.
const NOT_PERMITTED: i32 = 99;

#[test]
fn child_process_runs_its_scenario() {
    let Ok(part) = std::env::var(PART) else {
        return;
    };
    match part.as_str() {
        "write" => write_until_killed(),
        "abort" => {
            let _agent = began_a_call();
            std::process::abort();
        }
        "exit" => {
            let agent = began_a_call();
            agent.exit(3, "_exit");
            // SAFETY: exits the process; no code runs afterwards.
            unsafe { libc::_exit(3) };
        }
        "fork" => fork_in_a_call(),
        "crowded" => no_room_but_the_run_directory(),
        "full" => no_room_at_all(),
        "no shm" => no_shared_memory(),
        "shm" => shared_memory(),
        "limit" => limited_files(),
        "disabled" => disabled(),
        other => panic!("no such part: {other}"),
    }
}

fn agent() -> Agent {
    Agent::builder().rank(1).world_size(2).start().unwrap()
}

fn began_a_call() -> Agent {
    let agent = agent();
    let world = agent.group("world", "", "gloo", &[0, 1]);
    std::mem::forget(agent.call(&world, Op::Barrier).issue());
    agent
}

fn boxes(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = directory.read_dir() else {
        return Vec::new();
    };
    let mut paths: Vec<_> = entries
        .map(|it| it.unwrap().path())
        .filter(|path| BoxName::parse(path.file_name().unwrap().to_str().unwrap()).is_some())
        .collect();
    paths.sort();
    paths
}

fn only_box(directory: &Path) -> PathBuf {
    let boxes = boxes(directory);
    assert_eq!(boxes.len(), 1, "{boxes:?}");
    boxes[0].clone()
}

fn finish(reader: &mut Reader) -> (Vec<ReadRecord>, u64, Vec<Item>) {
    let (mut records, mut lost, mut rest) = (Vec::new(), 0, Vec::new());
    reader.finish(&mut |item| match item {
        Item::Record(record) => records.push(record),
        Item::Lost(count) => lost += count,
        other => rest.push(other),
    });
    (records, lost, rest)
}

fn write_until_killed() {
    let agent = agent();
    let world = agent.group("world", "", "gloo", &[0, 1]);
    println!("ready");
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                loop {
                    let call = agent.call(&world, Op::AllReduce).shape(&[7, 7]).issue();
                    drop(call);
                }
            });
        }
    });
}

#[test]
fn killed_process_leaves_all_completed_records() {
    let directory = tempfile::tempdir().unwrap();
    let mut child = Child::new("write", directory.path()).command.spawn().unwrap();
    let mut output = child.stdout.take().unwrap();
    let mut seen = Vec::new();
    while !seen.ends_with(b"ready\n") {
        let mut byte = [0];
        output.read_exact(&mut byte).unwrap();
        seen.push(byte[0]);
    }
    let mut reader = Reader::open(&only_box(directory.path())).unwrap();
    let mut before = 0;
    while before < 50_000 {
        before += reader.poll(1000, &mut |_| {});
    }
    // At an arbitrary moment of its threads.
    child.kill().unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));

    // A reader that was following, and one opened after the kill.
    let lost_before = reader.lost();
    let (records, lost, _) = finish(&mut reader);
    assert_eq!(reader.lost(), lost_before + lost);
    let last = records.last().map_or(0, |it| it.ticket + 1);
    let mut late = Reader::open(&only_box(directory.path())).unwrap();
    let (records, lost, rest) = finish(&mut late);
    assert!(records.last().unwrap().ticket + 1 >= last);
    // Three writers can leave at most three incomplete records.
    assert!(records.len() >= 8192 - 3, "{}", records.len());
    assert!(lost >= before as u64 - 8192);
    for ReadRecord { record, .. } in &records {
        match record.kind {
            RecordKind::Issued => assert_eq!(record.shape(), Some(&[7, 7][..])),
            RecordKind::Returned => assert_ne!(record.call, 0),
            other => panic!("{other}"),
        }
    }
    let highest = records.iter().map(|it| it.record.seq).max();
    let frontier = rest.iter().find_map(|item| match item {
        Item::Frontier(frontier) => Some(frontier.issued),
        _ => None,
    });
    assert!(frontier >= highest);
    assert!(!late.identity().closed);
}

#[test]
fn abort_and_exit_keep_earlier_records() {
    for (part, kinds) in
        [("abort", &[RecordKind::Issued][..]), ("exit", &[RecordKind::Issued, RecordKind::Exit])]
    {
        let directory = tempfile::tempdir().unwrap();
        let status = Child::new(part, directory.path()).status();
        assert!(status.signal() == Some(libc::SIGABRT) || status.code() == Some(3), "{status}");
        let mut reader = Reader::open(&only_box(directory.path())).unwrap();
        let (records, lost, _) = finish(&mut reader);
        let found: Vec<_> = records.iter().map(|it| it.record.kind).collect();
        assert_eq!((found.as_slice(), lost), (kinds, 0));
        assert!(!reader.identity().closed);
        let inside = reader.threads()[0].inside.unwrap();
        assert_eq!((inside.op, inside.call), (Op::Barrier, 1));
    }
}

fn fork_in_a_call() {
    let agent = agent();
    let world = agent.group("world", "", "gloo", &[0, 1]);
    let call = agent.call(&world, Op::Barrier).issue();
    let phase = agent.phase("parent");
    // SAFETY: no other thread is active.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        assert!(current().is_none() && !agent.is_open());
        drop(agent.call(&world, Op::AllReduce).issue());
        agent.step();
        let own = Agent::builder().layer("child").start().unwrap();
        own.step();
        // These guards belong to the parent's box, and record nothing in the child's.
        drop((call, phase));
        drop(own);
        // SAFETY: exits the child; no code runs afterwards.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: `status` is valid for the write.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0);
    drop((call, phase));
}

#[test]
fn forked_child_records_only_in_its_own_box() {
    let directory = tempfile::tempdir().unwrap();
    assert!(Child::new("fork", directory.path()).status().success());
    let boxes = boxes(directory.path());
    assert_eq!(boxes.len(), 2);
    for path in boxes {
        let mut reader = Reader::open(&path).unwrap();
        let (records, lost, _) = finish(&mut reader);
        let kinds: Vec<_> = records.iter().map(|it| it.record.kind).collect();
        let identity = reader.identity();
        assert!(identity.closed && lost == 0);
        if identity.layer == "child" {
            assert_eq!(kinds, [RecordKind::Step]);
        } else {
            use RecordKind::{Issued, PhaseBegin, PhaseEnd, Returned};
            assert_eq!(kinds, [Issued, PhaseBegin, Returned, PhaseEnd]);
        }
    }
}

/// Gives this process its own mount namespace, with a new file system at a path.
fn mount(at: &Path, options: &str) {
    let none = c"none".as_ptr();
    let path = CString::new(at.to_str().unwrap()).unwrap();
    let options = CString::new(options).unwrap();
    // SAFETY: every pointer is to NUL-terminated text, or null where permitted.
    let mounted = unsafe {
        libc::unshare(libc::CLONE_NEWNS) == 0
            && libc::mount(
                none,
                c"/".as_ptr(),
                none,
                libc::MS_REC | libc::MS_PRIVATE,
                std::ptr::null(),
            ) == 0
            && libc::mount(none, path.as_ptr(), c"tmpfs".as_ptr(), 0, options.as_ptr().cast()) == 0
    };
    if !mounted {
        let error = io::Error::last_os_error();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
        std::process::exit(NOT_PERMITTED);
    }
}

fn directory_of(variable: &str) -> PathBuf {
    std::env::var_os(variable).unwrap().into()
}

/// The box fits into the file system, but would take more than a quarter of the free space.
fn no_room_but_the_run_directory() {
    let small = directory_of("DDP_DOCTOR_BOX_DIR");
    mount(&small, "size=4m");
    drop(began_a_call());
    assert_eq!(boxes(&small), [] as [PathBuf; 0]);
    only_box(&directory_of("DDP_DOCTOR_RUN_DIR").join("boxes"));
}

#[test]
fn box_takes_at_most_a_quarter_of_the_free_space() {
    let (small, run) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let child = Child::new("crowded", small.path()).env("DDP_DOCTOR_RUN_DIR", run.path());
    if child.could() {
        let path = only_box(&run.path().join("boxes"));
        assert_eq!(Reader::open(&path).unwrap().identity().rank, Some(1));
        assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600);
    }
}

fn no_room_at_all() {
    let full = directory_of("DDP_DOCTOR_BOX_DIR");
    mount(&full, "size=64k");
    // Fills the file system completely.
    let filler = fs::write(full.join("filler"), vec![1; 1 << 20]);
    assert_eq!(filler.unwrap_err().kind(), io::ErrorKind::StorageFull);
    let error = Agent::builder().rank(1).start().unwrap_err().to_string();
    assert!(error.contains("DDP_DOCTOR_BOX_DIR"), "{error}");
    // Without a box, all functions do nothing.
    let agent = Agent::without_box();
    assert!(!agent.is_open());
    let world = agent.group("world", "", "gloo", &[0, 1]);
    drop(agent.call(&world, Op::Barrier).issue());
    assert_eq!(agent.step(), 0);

    let left: Vec<String> = full
        .read_dir()
        .unwrap()
        .map(|it| it.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != "filler")
        .collect();
    let marker = NoBox { pid: std::process::id(), rank: Some(1) };
    assert_eq!(left, [marker.to_string()]);

    // With room again, a box is created and the marker is removed.
    let crowded = Agent::builder().rank(1).capacities(TINY);
    fs::remove_file(full.join("filler")).unwrap();
    drop(crowded.start().unwrap());
    only_box(&full);
    assert_eq!(full.read_dir().unwrap().count(), 1);
}

#[test]
fn full_file_system_leaves_a_marker() {
    let directory = tempfile::tempdir().unwrap();
    Child::new("full", directory.path()).could();
}

fn no_shared_memory() {
    mount(Path::new("/dev"), "size=64m");
    drop(began_a_call());
    assert!(!Path::new("/dev/shm").exists());
    only_box(&directory_of("DDP_DOCTOR_RUN_DIR").join("boxes"));
}

#[test]
fn run_directory_replaces_missing_shared_memory() {
    let run = tempfile::tempdir().unwrap();
    Child::new("no shm", run.path())
        .without("DDP_DOCTOR_BOX_DIR")
        .env("DDP_DOCTOR_RUN_DIR", run.path())
        .could();
}

fn shared_memory() {
    mount(Path::new("/dev/shm"), "size=64m");
    // SAFETY: takes no arguments and cannot fail.
    let user = PathBuf::from(format!("/dev/shm/ddp-doctor-{}", unsafe { libc::geteuid() }));
    // As left by another user.
    fs::create_dir(&user).unwrap();
    fs::set_permissions(&user, fs::Permissions::from_mode(0o777)).unwrap();
    assert!(Agent::builder().job("j").start().is_err());
    fs::remove_dir(&user).unwrap();
    std::os::unix::fs::symlink("/tmp", &user).unwrap();
    assert!(Agent::builder().job("j").start().is_err());
    fs::remove_file(&user).unwrap();

    drop(Agent::builder().job("a/job").start().unwrap());
    let job = user.join("a_job");
    let path = only_box(&job);
    for (path, mode) in [(&user, 0o700), (&job, 0o700), (&path, 0o600)] {
        assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, mode);
    }
}

#[test]
fn boxes_in_shared_memory_are_private() {
    let directory = tempfile::tempdir().unwrap();
    Child::new("shm", directory.path()).without("DDP_DOCTOR_BOX_DIR").could();
}

fn limited_files() {
    let limit = libc::rlimit { rlim_cur: 4096, rlim_max: 4096 };
    // SAFETY: `limit` is valid for the read.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &limit) }, 0);
    assert!(Agent::builder().start().is_err());
}

#[test]
fn file_size_limit_does_not_kill_the_process() {
    let directory = tempfile::tempdir().unwrap();
    let status = Child::new("limit", directory.path()).status();
    assert!(status.success(), "{status}");
    assert_eq!(boxes(directory.path()), [] as [PathBuf; 0]);
}

fn disabled() {
    let agent = began_a_call();
    assert!(!agent.is_open());
    assert_eq!(agent.step(), 0);
}

#[test]
fn disabled_capture_is_no_error() {
    let directory = tempfile::tempdir().unwrap();
    let child = Child::new("disabled", directory.path()).env("DDP_DOCTOR", Path::new("0"));
    let status = child.status();
    assert!(status.success(), "{status}");
    assert_eq!(directory.path().read_dir().unwrap().count(), 0);
}
