use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::*;

#[test]
fn space_of_shared_memory_is_known() {
    let exists = Path::new("/dev/shm").is_dir();
    assert_eq!(shared_memory(std::process::id()).is_some_and(|it| it.total > 0), exists);
    assert!(shared_memory(u32::MAX).is_none());
}

#[test]
fn resident_shared_memory_is_parsed() {
    let status = "Name:\tpython\nVmRSS:\t  812340 kB\nRssAnon:\t  512000 kB\nRssFile:\t  200340 kB\n\
        RssShmem:\t  100000 kB\nThreads:\t4\n";
    assert_eq!(shared_of(status), Some(102_400_000));
    assert_eq!(shared_of("Name:\tpython\nVmRSS:\t 1 kB\n"), None);
    assert!(resident_shared(std::process::id()).is_some());
    assert_eq!(resident_shared(u32::MAX), None);
}

fn shell(script: &str) -> Child {
    Command::new("sh").args(["-c", script]).spawn().unwrap()
}

fn watch(child: &Child) -> Watched {
    let stat = Stat::read(child.id()).unwrap();
    Watched::new(child.id(), stat.start_ticks).unwrap().unwrap()
}

fn eventually(what: impl Fn() -> bool) {
    let started = Instant::now();
    while !what() {
        assert!(started.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn process_name_may_contain_separators() {
    let line = format!("7 (a) R) (b) S 3 {} 99 {} 1280", "0 ".repeat(17), "0 ".repeat(29));
    let stat = parse(line.as_bytes()).unwrap();
    assert_eq!((stat.letter, stat.parent, stat.start_ticks), (b'S', 3, 99));
    assert_eq!(stat.exit_code, 1280);
    assert_eq!(parse(b"7 (cut"), None);
    assert_eq!(parse(b""), None);
}

#[test]
fn zombie_yields_its_exit_status() {
    let mut child = shell("exec sleep 0.2; exit 0");
    let watched = watch(&child);
    assert!(!watched.has_ended());
    assert_eq!(watched.exit(), Exit::default());
    eventually(|| watched.has_ended());
    assert_eq!(watched.exit(), Exit { code: Some(0), signal: None });
    child.wait().unwrap();

    let mut child = shell("sleep 0.1; exit 7");
    let watched = watch(&child);
    eventually(|| watched.has_ended());
    assert_eq!(watched.exit(), Exit { code: Some(7), signal: None });
    child.wait().unwrap();
}

#[test]
fn killing_signal_is_reported() {
    let mut child = shell("kill -9 $$");
    let watched = watch(&child);
    eventually(|| watched.has_ended());
    assert_eq!(watched.exit(), Exit { code: None, signal: Some(9) });
    child.wait().unwrap();
    assert_eq!(watched.stat(), None);
    // After reaping, only newer kernels provide the status.
    let late = watched.exit();
    assert!(late == Exit::default() || late == Exit { code: None, signal: Some(9) }, "{late:?}");
}

#[test]
fn stop_and_continue_are_detected() {
    let mut child = shell("exec sleep 30");
    let watched = watch(&child);
    let fd = PidFd::open(child.id()).unwrap();
    fd.signal(libc::SIGSTOP).unwrap();
    eventually(|| watched.stat().unwrap().state() == ProcessState::Stopped);
    fd.signal(libc::SIGCONT).unwrap();
    eventually(|| watched.stat().unwrap().state() == ProcessState::Sleeping);
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn reused_pid_is_another_process() {
    let pid = std::process::id();
    let ticks = Stat::read(pid).unwrap().start_ticks;
    assert!(is_alive(pid, ticks));
    assert!(!is_alive(pid, ticks + 1));
    assert!(Watched::new(pid, ticks + 1).unwrap().is_none());
}

/// Processes of two tests in pid namespaces can have one number and one start time.
static NAMESPACES: Mutex<()> = Mutex::new(());

/// A process in a pid namespace of its own, where its pid is 1; killed when this is dropped.
struct Inner {
    above: Child,
    pid: u32,
}

impl Inner {
    /// Starts a command, and waits until the process has this name.
    fn start(command: &[&str], name: &str) -> Self {
        let mut unshare = Command::new("unshare");
        unshare.args(["--fork", "--pid"]).args(command);
        let above = unshare.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let find = || children(above.id()).into_iter().find(|pid| is_named(*pid, name));
        eventually(|| find().is_some());
        let pid = find().unwrap();
        Self { above, pid }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        PidFd::open(self.pid).unwrap().signal(libc::SIGKILL).unwrap();
        self.above.wait().unwrap();
    }
}

fn is_named(pid: u32, expected: &str) -> bool {
    name(pid).is_some_and(|it| it == expected)
}

#[test]
fn process_of_another_user_in_a_namespace_is_not_that_of_this_user() {
    if sys::user_id() != 0 {
        return;
    }
    let _alone = NAMESPACES.lock();
    let found = |command: &[&str]| {
        let inner = Inner::start(command, "sleep");
        let ticks = Stat::read(inner.pid).unwrap().start_ticks;
        (Watched::new(1, ticks).unwrap().map(|it| it.pid()), inner.pid)
    };
    let (own, expected) = found(&["sleep", "60"]);
    assert_eq!(own, Some(expected));
    let others = ["setpriv", "--reuid=65534", "--clear-groups", "sleep", "60"];
    assert_eq!(found(&others).0, None);
}

/// Another user can start a process with the number that a rank has in its container, at the same tick.
#[test]
fn own_process_in_a_namespace_comes_before_one_of_another_user_with_its_number() {
    if sys::user_id() != 0 {
        return;
    }
    let _alone = NAMESPACES.lock();
    let script = "read pid && echo $((pid - 1)) > /proc/sys/kernel/ns_last_pid && { sleep 60 & } && echo $! && wait";
    for _ in 0..200 {
        let mut inner = Inner::start(&["sh", "-c", script], "sh");
        let mut other = Command::new("sleep").arg("60").uid(65534).spawn().unwrap();
        writeln!(inner.above.stdin.as_mut().unwrap(), "{}", other.id()).unwrap();
        let mut number = String::new();
        BufReader::new(inner.above.stdout.as_mut().unwrap()).read_line(&mut number).unwrap();
        assert_eq!(number.trim(), other.id().to_string());
        let [own] = children(inner.pid)[..] else { panic!("the process was not started") };
        let ticks = [own, other.id()].map(|pid| Stat::read(pid).unwrap().start_ticks);
        let found = Watched::new(other.id(), ticks[1]).unwrap().unwrap().pid();
        other.kill().unwrap();
        other.wait().unwrap();
        if ticks[0] == ticks[1] {
            assert_eq!(found, own);
            return;
        }
        assert_eq!(found, other.id());
    }
    panic!("no two processes were started at one tick");
}

/// The place can be a FIFO, whose opening blocks, or lead to a device, whose opening has an effect.
#[test]
fn space_of_what_is_no_directory_is_unknown() {
    if sys::user_id() != 0 {
        return;
    }
    for make in ["mkfifo /dev/shm", "ln -s /proc/self/fd /dev/shm"] {
        let script = format!("mount -t tmpfs none /dev && {make} && echo made && exec sleep 60");
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", &script]).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut made = [0; 5];
        child.stdout.as_mut().unwrap().read_exact(&mut made).unwrap();
        let pid = child.id();
        let known = sys::within(Duration::from_secs(20), move || shared_memory(pid).is_some());
        assert_eq!(known, Some(false), "{make}");
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

#[test]
fn libraries_are_found_among_mappings_one_line_at_a_time() {
    let maps = "7f00-7f01 r-xp 00000000 00:1 5 /opt/lib/libtorch_cpu.so\n";
    assert!(names_library(maps.as_bytes(), &["libother.", "libtorch_cpu."]));
    assert!(!names_library(maps.as_bytes(), &["torch_cpu."]));
    // What follows the limit is not read.
    let line = format!("7f00-7f01 r--p 00000000 00:1 5 /{}\n", "x".repeat(4000));
    let count = MAX_MAPS as usize / line.len() + 1;
    let long = line.repeat(count) + maps;
    assert!(!names_library(long.as_bytes(), &["libtorch_cpu."]));
}

#[test]
fn own_process_is_described_correctly() {
    let pid = std::process::id();
    assert!(pids().unwrap().contains(&pid));
    assert_eq!(arguments(pid), std::env::args().collect::<Vec<_>>());
    assert!(maps_library(pid, &["libc"]) && !maps_library(pid, &["libtorch"]));
    assert!(!boot_id().is_empty());
}

/// Whoever reads a command, be it `attach` or a reporter.
#[test]
fn arguments_have_no_credentials() {
    let address = "https://bob:PASSWORD@host/x?token=TOKEN";
    let mut child = Command::new("sh")
        .args(["-c", "read -r end", address])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    // Until it executes the shell, the arguments are those of this process.
    let shown = std::iter::repeat_with(|| arguments(child.id())).find(|it| it.len() == 4);
    drop(child.stdin.take());
    child.wait().unwrap();
    assert_eq!(shown.unwrap(), ["sh", "-c", "read -r end", "https://…@host/x?token=…"]);
}

/// Any process can give itself such a name.
#[test]
fn owner_is_known_whatever_the_bytes_of_the_name_are() {
    let mut named = Command::new("sh")
        .args(["-c", r"printf 'x\377' > /proc/$$/comm && echo ready; read -r end"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut ready = [0; 6];
    named.stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
    let name = fs::read(format!("/proc/{}/comm", named.id())).unwrap();
    let (owner, is_own) = (owner(named.id()), is_own(named.id()));
    drop(named.stdin.take());
    named.wait().unwrap();
    assert_eq!(name, b"x\xff\n");
    assert_eq!((owner, is_own), (Some(sys::user_id()), true));
}
