//! Identities of directories, which a process hands to the processes that it starts.

use std::fmt;
use std::io;
use std::str::FromStr;

/// Identifies a file or directory on this machine, whatever its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Device number of the file system.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.device, self.inode)
    }
}

impl FromStr for Identity {
    type Err = io::Error;

    fn from_str(text: &str) -> io::Result<Self> {
        let numbers = text.split_once(':').ok_or(io::ErrorKind::InvalidInput)?;
        let parse = |number: &str| number.parse().map_err(io::Error::other);
        Ok(Self { device: parse(numbers.0)?, inode: parse(numbers.1)? })
    }
}

/// The directories for black boxes that the process which started this one had opened.
///
/// They are found by their paths, where another user may be able to put another directory meanwhile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownDirectories(Vec<Identity>);

impl KnownDirectories {
    /// Identities of the directories (`DEVICE:INODE`), separated by commas.
    pub const VARIABLE: &str = "DDP_DOCTOR_BOX_DIR_IDS";

    /// The directories with these identities.
    #[must_use]
    pub fn new(identities: impl IntoIterator<Item = Identity>) -> Self {
        Self(identities.into_iter().collect())
    }

    /// Reads the environment of this process.
    #[must_use]
    pub fn from_env() -> Self {
        let value = std::env::var(Self::VARIABLE).unwrap_or_default();
        Self::new(value.split(',').filter_map(|it| it.parse().ok()))
    }

    /// Whether a directory may be used for black boxes. `changeable`: another user can have put it where it is.
    #[must_use]
    pub fn admit(&self, directory: Identity, changeable: bool) -> bool {
        self.0.is_empty() || !changeable || self.0.contains(&directory)
    }
}

impl fmt::Display for KnownDirectories {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, identity) in self.0.iter().enumerate() {
            let separator = if i == 0 { "" } else { "," };
            write!(f, "{separator}{identity}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_are_parsed_back() {
        let (one, two) = (Identity { device: 1, inode: 2 }, Identity { device: 3, inode: 4 });
        let known = KnownDirectories::new([one, two]);
        assert_eq!(known.to_string(), "1:2,3:4");
        let parsed = known.to_string().split(',').map(|it| it.parse().unwrap()).collect();
        assert_eq!(known, KnownDirectories(parsed));
        assert!(known.admit(two, true));
        let other = Identity { device: 1, inode: 4 };
        assert!(!known.admit(other, true) && known.admit(other, false));
        assert!(KnownDirectories::default().admit(other, true));
    }
}
