//! Removes the credentials of addresses in texts of a job.
//!
//! Libraries state the address of a request that failed in the exception that they raise, with its user and password,
//! or the values of its query. A report of that exception is sent to chats and posted in issues.

use std::borrow::Cow;

/// Stands for what is left out.
const LEFT_OUT: char = '…';
/// Maximum length of the name of a value in a query, in bytes.
const MAX_NAME: usize = 64;

/// A text without the user information of its URLs, and without the values of queries: "https://…@host/a?token=…".
///
/// A query counts also without its URL, since urllib3 states the path alone. What has this form by chance is left out,
/// too. Text without credentials, and text that is already so, does not change.
#[must_use]
pub fn without_credentials(text: &str) -> Cow<'_, str> {
    if !text.contains(['?', '@']) {
        return text.into();
    }
    let mut out = String::with_capacity(text.len());
    let mut left = text;
    while let Some(at) = left.find(['?', ':']) {
        let (before, rest) = left.split_at(at);
        out.push_str(before);
        left = match rest.strip_prefix("://") {
            Some(authority) => {
                out.push_str("://");
                skip_user(authority, &mut out)
            }
            None if rest.starts_with('?') => skip_values(rest, &mut out),
            None => {
                out.push(':');
                &rest[1..]
            }
        };
    }
    (out + left).into()
}

/// Leaves out what precedes the last `@` of an authority. Returns the text from there.
fn skip_user<'a>(authority: &'a str, out: &mut String) -> &'a str {
    let end = authority.find(|c: char| is_end(c) || "/?#".contains(c)).unwrap_or(authority.len());
    let Some(at) = authority[..end].rfind('@') else {
        return authority;
    };
    out.push(LEFT_OUT);
    &authority[at..]
}

/// Leaves out the values of a query, which begins with `?`. Returns the text behind it.
fn skip_values<'a>(query: &'a str, out: &mut String) -> &'a str {
    let mut left = query;
    // One parameter in each turn, with the separator before it.
    while left.starts_with(['?', '&', ';']) {
        let (separator, parameter) = left.split_at(1);
        out.push_str(separator);
        left = parameter;
        let end = parameter.find(|c: char| is_end(c) || "&;#".contains(c));
        let (parameter, behind) = parameter.split_at(end.unwrap_or(parameter.len()));
        let Some((name, value)) = parameter.split_once('=') else { break };
        let is_name = !name.is_empty()
            && name.len() <= MAX_NAME
            && name.chars().all(|c| c.is_alphanumeric() || "_-.%[]".contains(c));
        if !is_name {
            break;
        }
        out.push_str(name);
        out.push('=');
        if !value.is_empty() {
            out.push(LEFT_OUT);
        }
        left = behind;
    }
    left
}

/// Whether a character ends an address in a text.
fn is_end(c: char) -> bool {
    c.is_whitespace() || "\"'`<>()".contains(c)
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
            "?",
            "",
        ] {
            assert_eq!(without_credentials(text), text);
        }
    }
}
