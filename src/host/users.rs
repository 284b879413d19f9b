//! Names of users.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};

/// Where the names of local users are.
const FILE: &str = "/etc/passwd";
/// Maximum length of that file, in bytes.
const MAX_LENGTH: u64 = 4 << 20;

/// The name of a user of this host; `None`: unknown, as for users of a directory service.
#[must_use]
pub fn name(user: u32) -> Option<String> {
    named(BufReader::new(File::open(FILE).ok()?.take(MAX_LENGTH)), user)
}

fn named(lines: impl BufRead, user: u32) -> Option<String> {
    let user = user.to_string();
    lines.lines().map_while(Result::ok).find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?.to_owned();
        // The password precedes the number.
        (fields.nth(1)? == user).then_some(name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_is_that_of_the_number() {
        let file =
            "root:x:0:0:root:/root:/bin/sh\n# 7\nalice:x:1000:7::/home/alice:\nbob:x:7:1000::/:\n";
        let of = |user| named(file.as_bytes(), user);
        assert_eq!(of(1000).as_deref(), Some("alice"));
        assert_eq!(of(7).as_deref(), Some("bob"));
        assert_eq!(of(8), None);
    }
}
