//! Identities of directories, which a process hands to the processes that it starts.

use std::ffi::OsStr;
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
pub struct KnownDirectories {
    /// `None`: the process stated none.
    stated: Option<Vec<Identity>>,
}

impl KnownDirectories {
    /// Identities of the directories (`DEVICE:INODE`), separated by commas.
    pub const VARIABLE: &str = "DDP_DOCTOR_BOX_DIR_IDS";

    /// The directories with these identities.
    #[must_use]
    pub fn new(identities: impl IntoIterator<Item = Identity>) -> Self {
        Self { stated: Some(identities.into_iter().collect()) }
    }

    /// Reads the environment of this process.
    #[must_use]
    pub fn from_env() -> Self {
        Self::parse(std::env::var_os(Self::VARIABLE).as_deref())
    }

    /// Identities that cannot be parsed are those of no directory.
    fn parse(value: Option<&OsStr>) -> Self {
        let Some(value) = value.filter(|it| !it.is_empty()) else {
            return Self::default();
        };
        let value = value.to_string_lossy();
        Self::new(value.split(',').filter_map(|it| it.parse().ok()))
    }

    /// Whether a directory may be used for black boxes. `changeable`: another user can have put it where it is.
    #[must_use]
    pub fn admit(&self, directory: Identity, changeable: bool) -> bool {
        !changeable || self.stated.as_ref().is_none_or(|stated| stated.contains(&directory))
    }
}

impl fmt::Display for KnownDirectories {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, identity) in self.stated.iter().flatten().enumerate() {
            let separator = if i == 0 { "" } else { "," };
            write!(f, "{separator}{identity}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn identities_are_parsed_back() {
        let (one, two) = (Identity { device: 1, inode: 2 }, Identity { device: 3, inode: 4 });
        let known = KnownDirectories::new([one, two]);
        assert_eq!(known.to_string(), "1:2,3:4");
        assert_eq!(KnownDirectories::parse(Some("1:2,3:4".as_ref())), known);
        assert!(known.admit(two, true));
        let other = Identity { device: 1, inode: 4 };
        assert!(!known.admit(other, true) && known.admit(other, false));
    }

    #[test]
    fn invalid_identities_admit_no_directory_that_others_can_exchange() {
        let directory = Identity { device: 1, inode: 2 };
        for unset in [None, Some("".as_ref())] {
            assert!(KnownDirectories::parse(unset).admit(directory, true));
        }
        let not_utf8 = OsStr::from_bytes(b"\xff");
        let invalid = ["1", "1:", "1:2:3", "1:2 3:4", "1;2", ",", "x", "-1:2"].map(OsStr::new);
        for value in invalid.into_iter().chain([not_utf8]) {
            let known = KnownDirectories::parse(Some(value));
            assert!(!known.admit(directory, true) && known.admit(directory, false), "{value:?}");
        }
        assert!(KnownDirectories::parse(Some("x,1:2".as_ref())).admit(directory, true));
    }
}
