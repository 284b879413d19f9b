//! A terminal: a tmux window on its own server.

use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Time limit for an expected screen.
const TIMEOUT: Duration = Duration::from_secs(90);

/// A terminal that runs a shell; the server is killed when the test ends.
pub(crate) struct Terminal(String);

impl Terminal {
    /// Starts a terminal of this size. Returns `None` if tmux is not installed and
    /// `DDP_DOCTOR_REQUIRE_TMUX` is not set.
    pub(crate) fn start(width: u16, height: u16) -> Option<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        if Command::new("tmux").arg("-V").output().is_err() {
            let needed = std::env::var_os("DDP_DOCTOR_REQUIRE_TMUX").is_some();
            assert!(!needed, "there is no tmux");
            eprintln!("skipped: there is no tmux");
            return None;
        }
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let terminal = Self(format!("ddp-doctor-{}-{number}", std::process::id()));
        let (width, height) = (width.to_string(), height.to_string());
        terminal.tmux(&[
            "-f",
            "/dev/null",
            "new-session",
            "-d",
            "-x",
            &width,
            "-y",
            &height,
            "bash --norc --noprofile",
        ]);
        terminal.until("a prompt", |screen| screen.contains("bash"));
        Some(terminal)
    }

    /// Types a line and presses Enter.
    pub(crate) fn line(&self, text: &str) {
        self.tmux(&["send-keys", "-l", text]);
        self.key("Enter");
    }

    /// Presses a key, given by its name in tmux.
    pub(crate) fn key(&self, key: &str) {
        self.tmux(&["send-keys", key]);
    }

    pub(crate) fn resize(&self, width: u16, height: u16) {
        let (width, height) = (width.to_string(), height.to_string());
        self.tmux(&["resize-window", "-x", &width, "-y", &height]);
    }

    /// Current contents of the screen.
    pub(crate) fn screen(&self) -> String {
        let output = self.tmux(&["capture-pane", "-p"]);
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Expands a tmux format such as `#{alternate_on}`.
    pub(crate) fn format(&self, format: &str) -> String {
        let output = self.tmux(&["display-message", "-p", format]);
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Waits until the screen meets a condition; returns that screen.
    #[track_caller]
    pub(crate) fn until(&self, what: &str, is_so: impl Fn(&str) -> bool) -> String {
        let started = Instant::now();
        loop {
            let screen = self.screen();
            if is_so(&screen) {
                return screen;
            }
            assert!(started.elapsed() < TIMEOUT, "never {what}:\n{screen}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn tmux(&self, arguments: &[&str]) -> Output {
        let mut tmux = Command::new("tmux");
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy().into_owned();
            if name.starts_with("DDP_DOCTOR") || name == "TMUX" || name == "NO_COLOR" {
                tmux.env_remove(name);
            }
        }
        tmux.env("LC_ALL", "C.UTF-8");
        tmux.args(["-L", &self.0]).args(arguments).output().unwrap()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.tmux(&["kill-server"]);
    }
}
