//! Names of directories of this user in places that all users share.

use std::fs;

use crate::sys;

/// The user id in the names of this user's directories in shared places: the one outside of the user namespace of this
/// process, if that is known. In rootless containers every user has the id 0, and they may share `/dev/shm` and `/tmp`
/// with the host.
#[must_use]
pub fn own_number() -> u32 {
    number_of_user().unwrap_or_else(sys::effective_uid)
}

/// Whether this user and this group have the same number outside of the user namespace of this process.
pub(super) fn is_of_own_number(group: u32) -> bool {
    let map = fs::read_to_string("/proc/self/gid_map").unwrap_or_default();
    let user = number_of_user();
    user.is_some() && number_outside(&map, group) == user
}

/// The name of this user's directory in a place that all users share.
#[must_use]
pub fn own_directory_name() -> String {
    directory_name_of(own_number())
}

/// The same of the user with this number.
#[must_use]
pub fn directory_name_of(user: u32) -> String {
    format!("ddp-doctor-{user}")
}

fn number_of_user() -> Option<u32> {
    // A kernel without user namespaces has no such file, and an id is the same everywhere.
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    number_outside(&map, sys::effective_uid())
}

/// The id outside of a user namespace with this map. `None`: root has that of root, so that the namespace is in another
/// one, and the id on the host is unknown.
fn number_outside(map: &str, id: u32) -> Option<u32> {
    let outside = map.lines().find_map(|line| {
        let mut numbers = line.split_whitespace().map(str::parse::<u32>);
        let (inside, outside) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
        let place = id.checked_sub(inside)?;
        (place < numbers.next()?.ok()?).then(|| outside.checked_add(place))?
    });
    let is_hosts = || map.split_whitespace().eq(["0", "0", "4294967295"]);
    match outside {
        // Of root in there, every user may have this one.
        Some(0) if id == 0 && !is_hosts() => None,
        // Programs that choose another id there choose the one on the host.
        Some(0) | None => Some(id),
        Some(outside) => Some(outside),
    }
}

#[cfg(test)]
mod tests {
    use super::number_outside;

    #[test]
    fn number_is_that_of_the_user_of_the_host() {
        let on_the_host = "         0          0 4294967295\n";
        assert_eq!([0, 1000].map(|user| number_outside(on_the_host, user)), [Some(0), Some(1000)]);
        let rootless = "         0       1000          1\n         1     100000      65536\n";
        let expected = [1000, 100_000, 100_006].map(Some);
        assert_eq!([0, 1, 7].map(|user| number_outside(rootless, user)), expected);
        let of_the_same_number = "0 1 1000\n1000 0 1\n1001 1001 64536\n";
        assert_eq!(number_outside(of_the_same_number, 1000), Some(1000));
        for damaged in ["", "0", "0 x 1", "0 4294967295 4294967295"] {
            assert_eq!(number_outside(damaged, 7), Some(7), "{damaged}");
        }
        for nested in ["0 0 1", "0 0 65536"] {
            assert_eq!(number_outside(nested, 0), None, "{nested}");
        }
    }
}
