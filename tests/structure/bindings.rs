//! Bindings that a reader can follow.

use std::fs;

use super::{CODE, files_below};

#[test]
fn no_binding_is_split_into_two_of_one_name() {
    let mut found = Vec::new();
    for file in CODE.iter().flat_map(|folder| files_below(folder, "rs")) {
        let source = fs::read_to_string(&file).unwrap();
        found.extend(split(&source).iter().map(|line| format!("{}:{line}", file.display())));
    }
    assert!(
        found.is_empty(),
        "these lines bind a name again, from the value that the `let` above gave it: chain both, or give one of the \
         values a name of its own: {found:#?}"
    );
}

#[test]
fn split_binding_is_found() {
    for source in [
        "let size = read();\nlet size = size + 1;",
        "let size = read();\n// Why.\n\nlet mut size: u64 = convert(&size);",
        "let size = Size {\n    of: 1,\n};\nlet size = Size { to: 2, ..size };",
        "let size =\n    read().map(|it| {\n        let it = 1;\n    });\nlet size = format!(\"{size}\");",
        "let size = read(|it| {\n    it();\n    1\n});\nlet size = match size {\n    it => it,\n};",
    ] {
        assert_eq!(split(source).len(), 1, "{source}");
    }
    for source in [
        "let size = read();\nlet more = size + 1;",
        "let size = read();\nlet size = other.size + size_of(\"size {sizes}\");",
        "let size = read();\nuse_it(size);\nlet size = size + 1;",
        "let size = read(|it| {\n    let size = 1;\n    size\n});",
    ] {
        assert!(split(source).is_empty(), "{source}");
    }
}

/// Numbers of the lines with a `let` that uses the value of the `let` directly before it, of the same name.
fn split(source: &str) -> Vec<usize> {
    let (numbers, lines): (Vec<usize>, Vec<&str>) = source
        .lines()
        .map(|line| line.split("// ").next().unwrap_or_default().trim_end())
        .enumerate()
        .filter(|(_, line)| !line.is_empty())
        .unzip();
    let mut found = Vec::new();
    for at in 0..lines.len() {
        let Some((name, _, length)) = binding(&lines[at..]) else { continue };
        let next = at + length;
        let Some((again, value, _)) = binding(&lines[next..]) else { continue };
        if again == name && uses(&value, name) {
            found.push(numbers[next] + 1);
        }
    }
    found
}

/// The name that a `let` on the first line binds, what it is bound to, and the number of lines, as rustfmt breaks them.
fn binding<'a>(lines: &[&'a str]) -> Option<(&'a str, String, usize)> {
    let first = lines.first()?;
    let indent = |line: &str| line.len() - line.trim_start().len();
    let (bound, _) = first.trim_start().strip_prefix("let ")?.split_once(" =")?;
    let name = bound.trim_start_matches("mut ").split(':').next()?;
    if !name.chars().all(is_of_name) {
        return None;
    }
    // Behind a bracket, what is deeper is within it.
    let deepest = indent(first) + if first.ends_with(['{', '(', '[']) { 0 } else { 4 };
    let length =
        1 + lines.iter().position(|line| line.ends_with(';') && indent(line) <= deepest)?;
    let statement = lines[..length].join("\n");
    let (_, value) = statement.split_once(" =")?;
    Some((name, value.to_owned(), length))
}

/// Whether a value uses a variable, in its code or in a text that it formats.
fn uses(value: &str, variable: &str) -> bool {
    let is_in_code = |code: &str| {
        code.match_indices(variable).any(|(at, _)| {
            let (before, after) = (&code[..at], &code[at + variable.len()..]);
            let is_field = before.ends_with('.') && !before.ends_with("..");
            !is_field && !before.ends_with(is_of_name) && !after.starts_with(is_of_name)
        })
    };
    let is_in_text = |text: &str| {
        text.split('{').skip(1).any(|it| it.split(|c| !is_of_name(c)).next() == Some(variable))
    };
    let mut parts = value.split('"').enumerate();
    parts.any(|(i, part)| if i % 2 == 0 { is_in_code(part) } else { is_in_text(part) })
}

fn is_of_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}
