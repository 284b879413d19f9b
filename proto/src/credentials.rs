//! Removes the credentials of addresses in texts of a job.
//!
//! Libraries state the address of a request that failed in the exception that they raise, with its user and password,
//! or the values of its query. A report of that exception is sent to chats and posted in issues.

use std::borrow::Cow;

/// Stands for what is left out.
const LEFT_OUT: char = '…';
/// Maximum length of a user and password, in bytes.
const MAX_USER: usize = 1 << 12;

/// A text without the user information of its URLs, and without the values of queries and fragments:
/// "https://…@host/a?token=…".
///
/// A query counts also without its URL, since urllib3 states the path alone. What has this form by chance is left out,
/// too. Text without credentials, and text that is already so, does not change.
#[must_use]
pub fn without_credentials(text: &str) -> Cow<'_, str> {
    if !text.contains(['?', '@', ';', '#']) {
        return text.into();
    }
    let mut out = String::with_capacity(text.len());
    let mut left = text;
    let mut is_address = false;
    while let Some(at) = left.find(|c: char| ":?&;#".contains(c) || is_end(c)) {
        let Some(found) = left[at..].chars().next() else { break };
        let (before, behind) = left.split_at(at + found.len_utf8());
        out.push_str(before);
        left = behind;
        if found == ':' {
            let slashes = slashes(left);
            if slashes > 0 {
                out.push_str(&left[..slashes]);
                left = skip_user(&left[slashes..], &mut out);
                is_address = true;
            }
        } else if "?&;#".contains(found) {
            if is_address || found == '?' {
                is_address = true;
                left = skip_value(left, &mut out);
            }
        } else {
            is_address = false;
        }
    }
    (out + left).into()
}

/// Length of the two slashes with which an authority begins, which JSON may escape; 0: there are none.
fn slashes(text: &str) -> usize {
    let behind_slash = |it: &str| Some(it.trim_start_matches('\\').strip_prefix('/')?.len());
    let behind = |it: &str| behind_slash(&it[it.len() - behind_slash(it)?..]);
    behind(text).map_or(0, |rest| text.len() - rest)
}

/// Leaves out what precedes the last `@` of an authority. Returns the text from there.
fn skip_user<'a>(authority: &'a str, out: &mut String) -> &'a str {
    let end = authority.char_indices().find(|(at, c)| is_end(*c) || *at >= MAX_USER);
    let possible = &authority[..end.map_or(authority.len(), |(at, _)| at)];
    let plain = possible.split(|c: char| "/?#'()".contains(c)).next().unwrap_or_default();
    let by_password = || possible.rfind('@').filter(|_| has_password(plain, possible));
    let Some(at) = plain.rfind('@').or_else(by_password) else { return authority };
    out.push(LEFT_OUT);
    &authority[at..]
}

/// Whether an authority, of which this part is certain, begins with a user and a password, rather than a host and a port.
/// Libraries accept passwords with characters that end an authority.
fn has_password(plain: &str, possible: &str) -> bool {
    let Some((user, _)) = plain.split_once(':') else { return false };
    let behind = &possible[user.len() + 1..];
    let rest = behind.trim_start_matches(|c: char| c.is_ascii_digit());
    let is_port = rest.len() < behind.len() && !rest.starts_with(char::is_alphanumeric);
    !is_port && !user.starts_with('[')
}

/// Leaves out the value of a parameter, which precedes the text. Returns the text behind it.
fn skip_value<'a>(parameter: &'a str, out: &mut String) -> &'a str {
    let name = parameter.find(|c: char| "=?&;#".contains(c) || is_end(c)).unwrap_or_default();
    if name == 0 || !parameter[name..].starts_with('=') {
        return parameter;
    }
    let (name, value) = parameter.split_at(name + 1);
    out.push_str(name);
    let end = value.find(|c: char| "&;#".contains(c) || is_end(c)).unwrap_or(value.len());
    // What follows an address in a text.
    let length = value[..end].trim_end_matches(|c: char| "'()[]{}\\,.:".contains(c)).len();
    if length > 0 {
        out.push(LEFT_OUT);
    }
    &value[length..]
}

/// Whether a character ends an address in a text.
fn is_end(c: char) -> bool {
    c.is_whitespace() || "\"`<>".contains(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_and_values_of_addresses_are_left_out() {
        for (text, expected) in [
            (
                "HTTPError: 401 for url: https://bob:PASS@hub.example/api?token=TOKEN&page=2#top (Unauthorized)",
                "HTTPError: 401 for url: https://…@hub.example/api?token=…&page=…#top (Unauthorized)",
            ),
            (
                "Max retries exceeded with url: /api?sig=S%2B1=&a (Caused by x)",
                "Max retries exceeded with url: /api?sig=…&a (Caused by x)",
            ),
            ("'postgresql://u:p@ss@db/x'", "'postgresql://…@db/x'"),
            ("s3://bucket/a@b?x", "s3://bucket/a@b?x"),
            ("redis://:p@h:6379", "redis://…@h:6379"),
            ("étcd://ü:ß@h?ö=ä", "étcd://…@h?ö=…"),
            ("https://b/key?uploads&X-Amz-Signature=S", "https://b/key?uploads&X-Amz-Signature=…"),
            ("with url: /key?acl&sig=S (Caused", "with url: /key?acl&sig=… (Caused"),
            ("https://h?$top=1&token=S", "https://h?$top=…&token=…"),
            ("https://h?filter[a,b]=1&&x:y=S", "https://h?filter[a,b]=…&&x:y=…"),
            ("('https://h?sig=ab(cd)S'), x", "('https://h?sig=…'), x"),
            ("https://bob:pa(ss)WORD@hub", "https://…@hub"),
            ("https://bob:it'sS@hub/api", "https://…@hub/api"),
            ("postgresql://bob:pa/S@db/x", "postgresql://…@db/x"),
            ("redis://:pa#S@h:6379", "redis://…@h:6379"),
            (r#"{"url":"https:\/\/b:P@hub\/x?t=T"}"#, r#"{"url":"https:\/\/…@hub\/x?t=…"}"#),
            ("https://h/a#access_token=S&x=1", "https://h/a#access_token=…&x=…"),
            ("https://h/api;jsessionid=S", "https://h/api;jsessionid=…"),
            ("https://web/https://b:P@h?x", "https://web/https://…@h?x"),
        ] {
            assert_eq!(without_credentials(text), expected);
            assert_eq!(without_credentials(expected), expected);
        }
    }

    #[test]
    fn other_texts_do_not_change() {
        for text in [
            "RuntimeError: 1 == 2? x=3 at train.py:9",
            "re.error: (?P<n>a)(?=b)|(?:c)@x",
            "c10d::Work::wait() @ model.py:3, what?",
            "is it a?=b or ?? a@b://",
            "cannot pull https://registry:5000/image@sha256:1 (tcp://[::1]:29500/a@b)",
            "https://h/a@b; x=1 & y=2 # z=3",
            "?",
            "",
        ] {
            assert_eq!(without_credentials(text), text);
        }
    }
}
