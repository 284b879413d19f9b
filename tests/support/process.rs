//! Running programs under test.

use std::fmt;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv6Addr, TcpListener};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

/// Time limit for a program, which is then killed with its process group, and for an expected
/// event.
const TIMEOUT: Duration = Duration::from_secs(180);

/// Path of the `ddp-doctor` under test.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_ddp-doctor");

/// A command for `ddp-doctor` in this directory, without inherited `DDP_DOCTOR*` variables.
pub(crate) fn program(dir: &Path) -> Command {
    let mut command = Command::new(PROGRAM);
    without_own_variables(&mut command);
    command.current_dir(dir);
    command
}

/// Copies the program to `path`. A file that a process has open for writing cannot be executed, and a
/// child that another test forks meanwhile inherits what this process has open: so another process
/// writes it.
pub(crate) fn copy_program(path: &Path) {
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_ddp-doctor")).arg(path).status();
    assert!(copied.unwrap().success());
}

/// Writes an executable script, for the same reason in another process.
pub(crate) fn write_script(path: &Path, text: &str) {
    let write = "printf %s \"$1\" > \"$0\" && chmod 755 \"$0\"";
    let written = Command::new("sh").args(["-c", write]).arg(path).arg(text).status();
    assert!(written.unwrap().success());
}

/// Removes every `DDP_DOCTOR*` variable from the command's environment.
pub(crate) fn without_own_variables(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("DDP_DOCTOR") {
            command.env_remove(name);
        }
    }
}

/// A port on which nobody listens; each call returns another one. The kernel assigns higher ports to
/// connections, so none of them takes it later.
pub(crate) fn free_port() -> u16 {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    loop {
        let call = CALLS.fetch_add(1, Ordering::Relaxed);
        let port =
            20_000 + (std::process::id().wrapping_mul(101).wrapping_add(call) % 12_000) as u16;
        if TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).is_ok() {
            return port;
        }
    }
}

/// A process with connections that wait in their handshakes; killed when this is dropped.
pub(crate) struct IdleConnections(Child);

impl IdleConnections {
    /// Opens this number of connections to ports of a host by a command for Perl.
    pub(crate) fn open(mut perl: Command, host: &str, number: u32, ports: &[u16]) -> Self {
        perl.args(["-e", include_str!("programs/idle_connections.pl"), host]);
        perl.arg(number.to_string()).args(ports.iter().map(u16::to_string));
        let mut child = perl.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "open\n");
        Self(child)
    }
}

impl Drop for IdleConnections {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Waits until a condition holds; panics with `what` after the time limit.
#[track_caller]
pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < TIMEOUT, "never: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// State of a process in `/proc`, such as `T` for stopped.
pub(crate) fn state_of(pid: u32) -> char {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat[stat.rfind(')').unwrap() + 2..].chars().next().unwrap()
}

/// Result of a program that has exited.
pub(crate) struct Finished {
    /// Exit status; `None` if a signal ended it.
    pub(crate) status: Option<i32>,
    pub(crate) signal: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Runs a program in its own process group and waits for its exit.
pub(crate) fn run_to_end(command: Command) -> Finished {
    run_to_end_within(command, TIMEOUT)
}

/// The same for a program that may take longer than others.
pub(crate) fn run_to_end_within(mut command: Command, limit: Duration) -> Finished {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn().unwrap();
    let group = child.id();
    let read = |mut pipe: Box<dyn Read + Send>| {
        thread::spawn(move || {
            let mut bytes = Vec::new();
            pipe.read_to_end(&mut bytes).unwrap();
            String::from_utf8_lossy(&bytes).into_owned()
        })
    };
    let stdout = read(Box::new(child.stdout.take().unwrap()));
    let stderr = read(Box::new(child.stderr.take().unwrap()));
    let (done, ended) = channel::<()>();
    let watchdog = thread::spawn(move || {
        let in_time = ended.recv_timeout(limit).is_ok();
        if !in_time {
            // On SIGTERM the program ends its children; SIGKILL does not allow that.
            for signal in ["-TERM", "-KILL"] {
                let group = format!("-{group}");
                Command::new("kill").args([signal, "--", &group]).status().unwrap();
                thread::sleep(Duration::from_secs(10));
            }
        }
        in_time
    });
    let status = child.wait().unwrap();
    done.send(()).ok();
    let in_time = watchdog.join().unwrap();
    let (stdout, stderr) = (stdout.join().unwrap(), stderr.join().unwrap());
    let finished = Finished { status: status.code(), signal: status.signal(), stdout, stderr };
    assert!(in_time, "did not end within {limit:?}\n{finished}");
    finished
}

impl fmt::Display for Finished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "status {:?}, signal {:?}", self.status, self.signal)?;
        writeln!(f, "--- stdout\n{}\n--- stderr\n{}", self.stdout, self.stderr)
    }
}

/// A field of `/proc/PID/status` that is an amount of memory, in MiB.
pub(crate) fn memory_mib(pid: u32, field: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|it| it.strip_prefix(field));
    let kib = line.and_then(|it| it.trim().strip_suffix(" kB"));
    kib.unwrap().parse::<u64>().unwrap() / 1024
}

/// Runs a script under a new mount namespace in a folder.
pub(crate) fn in_namespace(folder: &Path, script: &str) -> Output {
    let mut command = Command::new("unshare");
    for (name, _) in program(folder).get_envs() {
        command.env_remove(name);
    }
    command
        .args(["--map-current-user", "--keep-caps", "--mount", "sh", "-c"])
        .arg(script)
        .current_dir(folder)
        .output()
        .unwrap()
}
