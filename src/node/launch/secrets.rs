//! Secrets in the environment of `run`. The processes of the job do not inherit them: experiment loggers
//! record environments. What still needs the token, such as a reporter that a rank starts on another host,
//! reads it from a file.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::Command;

use ddp_doctor_host::files::Dir;
use ddp_doctor_monitoring::METRICS_TOKEN;
use ddp_doctor_transport::Credentials;
use ddp_doctor_transport::token::{self, TOKEN_FILE};

/// Variables with secrets.
const SECRETS: [&str; 3] = [token::VARIABLE, METRICS_TOKEN, "DDP_DOCTOR_WEBHOOK"];
/// File name of the token.
const NAME: &str = "ddp-doctor.token";

/// Removes all secrets from the environment of a command.
pub fn remove_from(command: &mut Command) {
    for name in SECRETS {
        command.env_remove(name);
    }
}

/// Where processes of the job find the token: a file that only this user can read.
#[derive(Debug)]
pub(super) struct TokenFile {
    path: PathBuf,
    /// The directory in which the file was created, and from which it is removed at the end.
    created_in: Option<Dir>,
}

impl TokenFile {
    /// The file that `run` was given, or a new one in `dir`, a private directory, with the token of the
    /// environment; `None`: there is no token.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub(super) fn write(credentials: &Credentials, dir: Option<&Dir>) -> io::Result<Option<Self>> {
        if let Some(file) = &credentials.file {
            return Ok(Some(Self { path: std::path::absolute(file)?, created_in: None }));
        }
        let token = std::env::var(token::VARIABLE).unwrap_or_default();
        let (token, Some(dir)) = (token.trim(), dir) else {
            return Ok(None);
        };
        if token.is_empty() {
            return Ok(None);
        }
        // A run that was killed left its file.
        let mut file = dir.new_file_instead(NAME.as_ref())?;
        let created = Self { path: dir.path().join(NAME), created_in: Some(dir.clone()) };
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
        if let Some(dir) = &self.created_in {
            drop(dir.remove_file(NAME.as_ref()));
        }
    }
}
