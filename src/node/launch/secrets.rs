//! Secrets in the environment of `run`. The processes of the job do not inherit them: experiment loggers
//! record environments. What still needs the token, such as a reporter that a rank starts on another host,
//! reads it from a file.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::monitoring::METRICS_TOKEN;
use crate::transport::Credentials;
use crate::transport::token::{self, TOKEN_FILE};

/// Variables with secrets.
const SECRETS: [&str; 3] = [token::VARIABLE, METRICS_TOKEN, "DDP_DOCTOR_WEBHOOK"];
/// File name of the token.
const NAME: &str = "token";

/// Removes all secrets from the environment of a command.
pub(super) fn remove_from(command: &mut Command) {
    for name in SECRETS {
        command.env_remove(name);
    }
}

/// Where processes of the job find the token: a file that only this user can read.
#[derive(Debug)]
pub(super) struct TokenFile {
    path: PathBuf,
    /// Whether the file was created here, and is removed at the end.
    is_own: bool,
}

impl TokenFile {
    /// The file that `run` was given, or a new one in `dir`, a private directory, with the token of the
    /// environment; `None`: there is no token.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub(super) fn of(credentials: &Credentials, dir: Option<&Path>) -> io::Result<Option<Self>> {
        if let Some(file) = &credentials.file {
            return Ok(Some(Self { path: std::path::absolute(file)?, is_own: false }));
        }
        let token = std::env::var(token::VARIABLE).unwrap_or_default();
        let (token, Some(dir)) = (token.trim(), dir) else {
            return Ok(None);
        };
        if token.is_empty() {
            return Ok(None);
        }
        let path = dir.join(NAME);
        // A run that was killed left its file.
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        let created = Self { path, is_own: true };
        writeln!(file, "{token}")?;
        Ok(Some(created))
    }

    /// Names the file in the environment of a command.
    pub(super) fn add_to(&self, command: &mut Command) {
        command.env(TOKEN_FILE, &self.path);
    }
}

impl Drop for TokenFile {
    fn drop(&mut self) {
        if self.is_own {
            drop(fs::remove_file(&self.path));
        }
    }
}
