//! Programs that are run to their end.

use std::fmt;
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

/// A test that hangs is ended after this long, with all that it started.
const PATIENCE: Duration = Duration::from_secs(180);

/// A program that has ended.
pub(crate) struct Finished {
    /// Its status; `None`: a signal ended it.
    pub(crate) status: Option<i32>,
    pub(crate) signal: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Runs a program, in a process group of its own.
pub(crate) fn run_to_end(mut command: Command) -> Finished {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
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
        let in_time = ended.recv_timeout(PATIENCE).is_ok();
        if !in_time {
            // The program hands a polite request on to what it started.
            for signal in ["-TERM", "-KILL"] {
                let group = format!("-{group}");
                Command::new("kill")
                    .args([signal, "--", &group])
                    .status()
                    .unwrap();
                thread::sleep(Duration::from_secs(10));
            }
        }
        in_time
    });
    let status = child.wait().unwrap();
    done.send(()).ok();
    let in_time = watchdog.join().unwrap();
    let (stdout, stderr) = (stdout.join().unwrap(), stderr.join().unwrap());
    let finished = Finished {
        status: status.code(),
        signal: status.signal(),
        stdout,
        stderr,
    };
    assert!(in_time, "did not end within {PATIENCE:?}\n{finished}");
    finished
}

impl fmt::Display for Finished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "status {:?}, signal {:?}", self.status, self.signal)?;
        writeln!(
            f,
            "--- stdout\n{}\n--- stderr\n{}",
            self.stdout, self.stderr
        )
    }
}
