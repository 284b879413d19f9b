//! Names of directories of this user in places that all users share.

use std::fs;

use crate::sys;

/// The user id in the names of this user's directories in shared places: the one outside of the user namespace of this
/// process. In rootless containers every user has the id 0, and they may share `/dev/shm` and `/tmp` with the host.
#[must_use]
pub fn own_number() -> u32 {
    // A kernel without user namespaces has no such file, and an id is the same everywhere.
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    number_outside(&map, sys::effective_uid())
}

/// Whether this user and this group have the same number outside of the user namespace of this process.
pub(super) fn is_of_own_number(group: u32) -> bool {
    let map = fs::read_to_string("/proc/self/gid_map").unwrap_or_default();
    number_outside(&map, group) == own_number()
}

/// The name of this user's directory in a place that all users share.
#[must_use]
pub fn own_directory_name() -> String {
    format!("ddp-doctor-{}", own_number())
}

/// The id outside of a user namespace with this map. Where that would be root's, the namespace is in another one, and the
/// id of the user is more likely the one inside.
fn number_outside(map: &str, user: u32) -> u32 {
    let outside = map.lines().find_map(|line| {
        let mut numbers = line.split_whitespace().map(str::parse::<u32>);
        let (inside, outside) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
        let place = user.checked_sub(inside)?;
        (place < numbers.next()?.ok()?).then(|| outside.checked_add(place))?
    });
    outside.filter(|it| *it != 0).unwrap_or(user)
}

#[cfg(test)]
mod tests {
    use super::number_outside;

    #[test]
    fn number_is_that_of_the_user_of_the_host() {
        let on_the_host = "         0          0 4294967295\n";
        assert_eq!([0, 1000].map(|user| number_outside(on_the_host, user)), [0, 1000]);
        let rootless = "         0       1000          1\n         1     100000      65536\n";
        assert_eq!([0, 1, 7].map(|user| number_outside(rootless, user)), [1000, 100_000, 100_006]);
        let of_the_same_number = "0 1 1000\n1000 0 1\n1001 1001 64536\n";
        assert_eq!(number_outside(of_the_same_number, 1000), 1000);
        for damaged in ["", "0", "0 x 1", "0 4294967295 4294967295"] {
            assert_eq!(number_outside(damaged, 7), 7, "{damaged}");
        }
    }
}
