//! The secret that the nodes and viewers of a job share.

use std::fmt;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ddp_doctor_agent::files::is_served_by_other;
use ddp_doctor_host::input_files;
use ddp_doctor_host::sys;
use ring::digest::{SHA256, digest};

/// Variable of the environment with the token.
pub const VARIABLE: &str = "DDP_DOCTOR_TOKEN";
/// Variable of the environment with the path of a file with the token.
pub const TOKEN_FILE: &str = "DDP_DOCTOR_TOKEN_FILE";
/// A command that prints a new token.
pub const GENERATE: &str = "openssl rand -hex 16";
/// Minimum length, in bytes: the keys of a shorter token could be guessed from recorded connections.
const MIN: usize = 16;
/// Maximum length, in bytes.
const MAX: usize = 1024;

/// The secret that the nodes and viewers of a job share.
#[derive(Clone)]
pub struct Token(String);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

/// Why there is no token.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// None was given.
    #[error(
        "set {VARIABLE} to the same secret on every node, for example to the output of `{GENERATE}`"
    )]
    Missing,
    /// It has the wrong length.
    #[error(
        "the token has {0} characters; it must have {MIN} to {MAX}, as the output of `{GENERATE}` has"
    )]
    Length(usize),
    /// Its file cannot be read.
    #[error("cannot read the token in {path}: {error}")]
    Unreadable {
        /// Path of the file.
        path: String,
        /// The reason.
        error: io::Error,
    },
    /// Other users can read its file.
    #[error("the token in {0} is not used: the file must belong to its user alone (chmod 600)")]
    NotPrivate(String),
}

impl Token {
    /// A token with this text. White space around it is ignored.
    ///
    /// # Errors
    ///
    /// If it is too short or too long.
    pub fn new(text: &str) -> Result<Self, TokenError> {
        let text = text.trim();
        if (MIN..=MAX).contains(&text.len()) {
            Ok(Self(text.to_owned()))
        } else {
            Err(TokenError::Length(text.chars().count()))
        }
    }

    /// Reads a token from a file that only its user can read.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, is accessible to other users, or contains no token.
    pub fn read(path: &Path) -> Result<Self, TokenError> {
        let shown = path.display().to_string();
        let unreadable = |error| TokenError::Unreadable { path: shown.clone(), error };
        let found = input_files::reach_secret(path).map_err(unreadable)?;
        let metadata = found.metadata().map_err(unreadable)?;
        // A FIFO without a writer would block.
        if !metadata.is_file() {
            return Err(unreadable(io::Error::other("not a file")));
        }
        let is_owner = (metadata.uid() == sys::user_id() || metadata.uid() == 0)
            && !is_served_by_other(&found);
        if !is_owner || metadata.mode() & 0o077 != 0 {
            return Err(TokenError::NotPrivate(shown));
        }
        let file = input_files::reopen(&found).map_err(unreadable)?;
        let mut text = String::new();
        let limited = file.take(MAX as u64 * 2).read_to_string(&mut text);
        limited.map_err(unreadable)?;
        Self::new(&text)
    }

    /// Whether a text is this token, in a time that does not depend on where they differ.
    #[must_use]
    pub fn is(&self, text: &[u8]) -> bool {
        let own = digest(&SHA256, self.as_bytes());
        let other = digest(&SHA256, text);
        let pairs = own.as_ref().iter().zip(other.as_ref());
        pairs.fold(0, |it, (a, b)| it | (a ^ b)) == 0
    }

    /// Whether both are the same, in a time that does not depend on where they differ.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        self.is(other.as_bytes())
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

/// Where a process finds its token.
#[derive(Clone, Debug, Default)]
pub struct Credentials {
    /// A file; `None`: the environment.
    pub file: Option<PathBuf>,
    /// Whether the user may be asked on the terminal.
    pub can_ask: bool,
}

impl Credentials {
    /// The token of this process.
    ///
    /// # Errors
    ///
    /// If there is none, or it is invalid.
    pub fn token(&self) -> Result<Token, TokenError> {
        if let Some(file) = &self.file {
            return Token::read(file);
        }
        match std::env::var(VARIABLE) {
            Ok(text) if !text.trim().is_empty() => Token::new(&text),
            _ if self.can_ask => {
                let answer = sys::ask_secret("token of the coordinator: ");
                Token::new(&answer.ok().flatten().ok_or(TokenError::Missing)?)
            }
            _ => Err(TokenError::Missing),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, lchown, symlink};

    use super::*;

    const TEXT: &str = "0123456789abcdef";

    #[test]
    fn token_needs_a_minimum_length() {
        assert!(Token::new(&format!(" {TEXT}\n")).is_ok());
        for text in ["", "short", &"x".repeat(MAX + 1)] {
            assert!(matches!(Token::new(text), Err(TokenError::Length(_))), "{text}");
        }
        let token = Token::new(TEXT).unwrap();
        assert_eq!(format!("{token:?}"), "Token");
        assert!(token.is(TEXT.as_bytes()));
        for other in ["", "0123456789abcdeF", "0123456789abcdef "] {
            assert!(!token.is(other.as_bytes()), "{other}");
        }
    }

    #[test]
    fn token_file_behind_a_link_of_another_user_is_not_read() {
        if sys::user_id() != 0 {
            return; // only root can change the owner of a link
        }
        let dir = tempfile::tempdir().unwrap();
        let (path, link) = (dir.path().join("secret"), dir.path().join("token"));
        fs::write(&path, TEXT).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        symlink(&path, &link).unwrap();
        assert!(Token::read(&link).is_ok());
        lchown(&link, Some(65534), None).unwrap();
        let error = Token::read(&link).unwrap_err().to_string();
        assert!(error.contains("65534"), "{error}");
    }

    #[test]
    fn token_file_must_be_private() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        fs::write(&path, format!("{TEXT}\n")).unwrap();
        for (mode, is_private) in [(0o644, false), (0o640, false), (0o600, true), (0o400, true)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let read = Token::read(&path);
            assert_eq!(read.is_ok(), is_private, "{mode:o}");
            if let Err(error) = read {
                assert!(error.to_string().contains("chmod 600"), "{error}");
            }
        }
        let error = Token::read(dir.path()).unwrap_err().to_string();
        assert!(error.contains("not a file"), "{error}");
        let error = Token::read(&dir.path().join("none")).unwrap_err();
        assert!(error.to_string().contains("cannot read the token in"));
    }
}
