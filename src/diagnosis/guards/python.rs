//! The words, texts and brackets of Python source, for the node, which reads files, and for the engine, which
//! evaluates tests.

const SIGNS: [&str; 19] = [
    "==", "!=", "<=", ">=", "//", "<", ">", "(", ")", "[", "]", "{", "}", ",", ".", "%", "+", "-",
    "*",
];

/// The words, numbers, texts with their quotes, and signs of an expression; `None`: it has others.
#[must_use]
pub fn tokens(text: &str) -> Option<Vec<&str>> {
    let mut found = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let length = if is_of_word(first) {
            rest.find(|c| !is_of_word(c)).unwrap_or(rest.len())
        } else if first == '"' || first == '\'' {
            rest[1..].find(first)? + 2
        } else {
            SIGNS.iter().find(|sign| rest.starts_with(**sign))?.len()
        };
        let (token, after) = rest.split_at(length);
        found.push(token);
        rest = after.trim_start();
    }
    Some(found)
}

/// Whether names and numbers may contain the character.
#[must_use]
pub fn is_of_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Whether a token is a name or a keyword.
#[must_use]
pub fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| is_of_word(c) && !c.is_ascii_digit())
}

/// Length of the text up to a comma or a bracket that closes what surrounds it.
#[must_use]
pub fn end_of_argument(text: &str) -> usize {
    let mut depth = 0_usize;
    let mut quote: Option<char> = None;
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (Some(open), _) if c == open => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(c),
            (None, '(' | '[' | '{') => depth += 1,
            (None, ')' | ']' | '}') => match depth.checked_sub(1) {
                Some(less) => depth = less,
                None => return at,
            },
            (None, ',') if depth == 0 => return at,
            (None, _) => {}
        }
    }
    text.len()
}

/// Splits a text at a word outside brackets and strings.
#[must_use]
pub fn split_word<'a>(text: &'a str, word: &str) -> Option<(&'a str, &'a str)> {
    let mut before = ' ';
    let at = at_depth_zero(text, |rest| {
        let starts = !is_of_word(before)
            && rest.starts_with(word)
            && !rest[word.len()..].starts_with(is_of_word);
        before = rest.chars().next().unwrap_or(' ');
        starts
    })?;
    Some((text[..at].trim(), text[at + word.len()..].trim()))
}

/// The first position outside brackets and strings at which `wanted` holds for the rest of the
/// text.
pub fn at_depth_zero(text: &str, mut wanted: impl FnMut(&str) -> bool) -> Option<usize> {
    let mut depth = 0_usize;
    let mut quote: Option<char> = None;
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match quote {
            Some(_) if escaped => escaped = false,
            Some(_) if c == '\\' => escaped = true,
            Some(open) if c == open => quote = None,
            Some(_) => {}
            None => {
                if depth == 0 && wanted(&text[at..]) {
                    return Some(at);
                }
                match c {
                    '"' | '\'' => quote = Some(c),
                    '(' | '[' | '{' => depth += 1,
                    ')' | ']' | '}' => depth = depth.saturating_sub(1),
                    _ => {}
                }
            }
        }
    }
    None
}
