//! Seals, by which this user knows a text again that a process of this user wrote: codes that need a key in a file that
//! no other user can read.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use ring::hmac::{HMAC_SHA256, Key, sign};
use ring::rand::{SecureRandom, SystemRandom};

use crate::files::{Dir, refused};
use crate::private;

/// Name of the file with the key.
const FILE: &str = "key";
/// Length of the key in bytes; it has two characters for each in the file.
const KEY_BYTES: usize = 32;

/// The seal of a text; `None`: this user has no place for a key. Makes the key if there is none.
#[must_use]
pub(crate) fn seal(text: &str) -> Option<String> {
    let key = places().find_map(|place| key(&place).or_else(|_| make_key(&place)).ok())?;
    Some(hexadecimal(sign(&key, text.as_bytes()).as_ref()))
}

/// Whether this is the seal of a text.
#[must_use]
pub(crate) fn is_sealed(text: &str, seal: &str) -> bool {
    let mut keys = places().filter_map(|place| key(&place).ok());
    keys.any(|key| hexadecimal(sign(&key, text.as_bytes()).as_ref()) == seal)
}

/// Directories for the key, the preferred one first. Shared memory serves users without a home, as in containers, until
/// the machine restarts.
fn places() -> impl Iterator<Item = PathBuf> {
    let shared_memory = private::user_dir(Path::new(private::SHARED_MEMORY));
    private::cache().into_iter().chain([shared_memory])
}

/// The directory of the key: no other user can put another one in its place.
fn directory(place: &Path) -> io::Result<Dir> {
    let dir = Dir::open_own(place)?;
    match dir.changeable_by_others()? {
        Some(shared) => Err(refused(&shared.path, "can be changed by other users")),
        None => Ok(dir),
    }
}

fn key(place: &Path) -> io::Result<Key> {
    let directory = directory(place)?;
    if !directory.status_of(FILE.as_ref())?.is_private() {
        return Err(refused(&place.join(FILE), "is accessible to other users"));
    }
    let text = directory.read_text(FILE.as_ref(), 2 * KEY_BYTES as u64)?;
    // Another process may be writing it.
    if text.len() != 2 * KEY_BYTES {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(Key::new(HMAC_SHA256, text.as_bytes()))
}

fn make_key(place: &Path) -> io::Result<Key> {
    Dir::ensure_own(place)?;
    let mut random = [0; KEY_BYTES];
    SystemRandom::new().fill(&mut random).map_err(|error| io::Error::other(error.to_string()))?;
    let mut file = directory(place)?.new_file(FILE.as_ref())?;
    file.write_all(hexadecimal(&random).as_bytes())?;
    key(place)
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // A string takes every text.
        write!(text, "{byte:02x}").ok();
        text
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn key_is_private_and_stays_the_same() {
        let home = tempfile::tempdir().unwrap();
        let place = home.path().join(".cache/ddp-doctor");
        assert!(key(&place).is_err());
        let sealed = |key: &Key| hexadecimal(sign(key, b"text").as_ref());
        let made = sealed(&make_key(&place).unwrap());
        assert_eq!(sealed(&key(&place).unwrap()), made);
        assert!(make_key(&place).is_err(), "it is not replaced");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!([mode(&place), mode(&place.join(FILE))], [0o700, 0o600]);
        let set_mode = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        set_mode(&place.join(FILE), 0o644);
        assert!(key(&place).is_err(), "others can read it");
        set_mode(&place.join(FILE), 0o600);
        assert!(key(&place).is_ok());
        set_mode(home.path(), 0o777);
        assert!(key(&place).is_err(), "others can replace the directory");
    }
}
