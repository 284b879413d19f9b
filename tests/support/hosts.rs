//! Several hosts on this machine: network namespaces that are joined by a bridge.

use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use tempfile::TempDir;

use super::process::{eventually, memory_mib, program, without_own_variables};

/// Enters a host: its name, its shared memory, and the names of the others.
const ENTER: &str = r#"hostname "$0" && mount -t tmpfs tmpfs /dev/shm && mount --bind "$1" /etc/hosts && shift && exec "$@""#;

/// Hosts `host-0` to `host-(N-1)` with the addresses 10.77.0.1 to 10.77.0.N and fd77::1 to fd77::N.
/// Their processes are killed when this is dropped.
pub(crate) struct Hosts {
    name: String,
    count: u32,
    dir: TempDir,
}

impl Hosts {
    /// Creates them; `None` if that is not permitted here, which is printed.
    pub(crate) fn new(count: u32) -> Option<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let hosts = Self {
            name: format!("dd{}-{number}", std::process::id()),
            count,
            dir: tempfile::tempdir().unwrap(),
        };
        if let Err(error) = hosts.create() {
            println!("skipped: no network namespaces here: {error}");
            return None;
        }
        Some(hosts)
    }

    fn create(&self) -> Result<(), String> {
        let switch = format!("{}-switch", self.name);
        let mut names = String::from("127.0.0.1 localhost\n::1 localhost\n");
        ip(&format!("netns add {switch}"))?;
        ip(&format!("-n {switch} link add bridge type bridge"))?;
        ip(&format!("-n {switch} link set bridge up"))?;
        for host in 0..self.count {
            let (namespace, last) = (self.namespace(host), host + 1);
            ip(&format!("netns add {namespace}"))?;
            ip(&format!(
                "-n {switch} link add port{host} type veth peer name eth0 netns {namespace}"
            ))?;
            ip(&format!("-n {switch} link set port{host} master bridge up"))?;
            ip(&format!("-n {namespace} addr add 10.77.0.{last}/24 dev eth0"))?;
            ip(&format!("-n {namespace} addr add fd77::{last}/64 dev eth0 nodad"))?;
            ip(&format!("-n {namespace} link set eth0 up"))?;
            ip(&format!("-n {namespace} link set lo up"))?;
            names.push_str(&format!("10.77.0.{last} host-{host}\nfd77::{last} host6-{host}\n"));
        }
        fs::write(self.dir.path().join("names"), names).unwrap();
        let hostname = self.command(0, "hostname").output().unwrap();
        match hostname.stdout.as_slice() {
            b"host-0\n" => Ok(()),
            _ => Err(String::from_utf8_lossy(&hostname.stderr).into_owned()),
        }
    }

    fn namespace(&self, host: u32) -> String {
        format!("{}-{host}", self.name)
    }

    /// A directory of a host, which other hosts do not use.
    pub(crate) fn dir(&self, host: u32) -> PathBuf {
        let dir = self.dir.path().join(host.to_string());
        fs::create_dir_all(&dir).unwrap();
        dir
    }

    /// A command that runs on a host, in its directory.
    pub(crate) fn command(&self, host: u32, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("ip");
        without_own_variables(&mut command);
        command
            .args(["netns", "exec", &self.namespace(host)])
            .args(["unshare", "--uts", "--mount", "--ipc", "sh", "-c", ENTER])
            .arg(format!("host-{host}"))
            .arg(self.dir.path().join("names"))
            .arg(program)
            .current_dir(self.dir(host));
        command
    }

    /// A command for the `ddp-doctor` under test.
    pub(crate) fn program(&self, host: u32) -> Command {
        self.command(host, program(self.dir.path()).get_program())
    }

    /// Starts a process of a host; its output goes to the files `NAME.out` and `NAME.err` in the
    /// host's directory.
    pub(crate) fn start(&self, host: u32, name: &str, mut command: Command) -> Process {
        let file = |end: &str| self.dir(host).join(format!("{name}.{end}"));
        let child = command
            .stdin(Stdio::null())
            .stdout(fs::File::create(file("out")).unwrap())
            .stderr(fs::File::create(file("err")).unwrap())
            .spawn()
            .unwrap();
        Process { child, out: file("out"), err: file("err") }
    }

    /// The network of a host, which can be taken away.
    pub(crate) fn connect(&self, host: u32, is_connected: bool) {
        let state = if is_connected { "up" } else { "down" };
        ip(&format!("-n {}-switch link set port{host} {state}", self.name)).unwrap();
    }

    /// Adds an interface to a host, which is down.
    pub(crate) fn add_interface(&self, host: u32, name: &str) {
        let namespace = self.namespace(host);
        ip(&format!("-n {namespace} link add {name} type veth peer name {name}-peer")).unwrap();
    }

    /// Replaces the rules of a host's firewall (nftables); false if that does not work here, which is printed.
    pub(crate) fn filters(&self, host: u32, rules: &str) -> bool {
        let rules = format!("flush ruleset; {rules}");
        let output = self.command(host, "nft").arg(rules).output().unwrap();
        if !output.status.success() {
            let error = String::from_utf8_lossy(&output.stderr);
            println!("skipped: no nftables here: {error}");
        }
        output.status.success()
    }

    /// Kills all processes of a host.
    pub(crate) fn kill_all(&self, host: u32) {
        kill_all(&self.namespace(host));
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        let hosts = (0..self.count).map(|host| self.namespace(host));
        for namespace in hosts.chain([format!("{}-switch", self.name)]) {
            kill_all(&namespace);
            ip(&format!("netns del {namespace}")).ok();
        }
    }
}

fn kill_all(namespace: &str) {
    let printed = Command::new("ip")
        .args(["netns", "pids", namespace])
        .output()
        .map(|it| it.stdout)
        .unwrap_or_default();
    let pids = String::from_utf8_lossy(&printed).into_owned();
    if !pids.trim().is_empty() {
        let mut kill = Command::new("kill");
        kill.arg("-KILL").args(pids.split_whitespace());
        kill.stderr(Stdio::null()).status().ok();
    }
}

fn ip(arguments: &str) -> Result<(), String> {
    let output = Command::new("ip")
        .args(arguments.split(' '))
        .output()
        .map_err(|error| format!("ip: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let error = String::from_utf8_lossy(&output.stderr);
    Err(format!("ip {arguments}: {}", error.trim()))
}

/// A process of a host.
pub(crate) struct Process {
    child: Child,
    out: PathBuf,
    err: PathBuf,
}

impl Process {
    /// Waits for the exit; returns the exit status.
    #[track_caller]
    pub(crate) fn end(&mut self) -> Option<i32> {
        eventually("the process ends", || self.child.try_wait().unwrap().is_some());
        self.child.wait().unwrap().code()
    }

    pub(crate) fn still_runs(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    pub(crate) fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }

    /// Memory that it uses, in MiB.
    pub(crate) fn resident_mib(&self) -> u64 {
        memory_mib(self.child.id(), "VmRSS:")
    }

    pub(crate) fn stdout(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.out).unwrap()).into_owned()
    }

    pub(crate) fn stderr(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.err).unwrap()).into_owned()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // Its directory may be gone.
            let text = fs::read(&self.err).unwrap_or_default();
            eprintln!("{}:\n{}", self.err.display(), String::from_utf8_lossy(&text));
        }
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
