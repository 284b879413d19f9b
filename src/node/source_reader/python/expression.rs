//! Expressions and statements in a line, without a parser of the language.

use ddp_doctor_diagnosis::source::python::{
    at_depth_zero, end_of_argument, is_of_word, split_word,
};

/// The test of `if test: suite`, and the suite if it is on the same line.
pub(super) fn header_test(text: &str) -> Option<(&str, &str)> {
    let rest = text.trim_start_matches(is_of_word);
    let colon = at_depth_zero(rest, |rest| rest.starts_with(':') && !rest.starts_with(":="))?;
    Some((rest[..colon].trim(), rest[colon + 1..].trim()))
}

/// The right side of an assignment, or the operand of `return`, `await` or `yield`.
pub(super) fn value_of(text: &str) -> &str {
    let mut value = text;
    for word in ["return ", "await ", "yield "] {
        value = value.strip_prefix(word).unwrap_or(value);
    }
    let assigned = at_depth_zero(value, |rest| rest.starts_with('=') && !rest.starts_with("=="));
    match assigned {
        Some(at) if !value[..at].ends_with(['!', '<', '>', '=']) => value[at + 1..].trim(),
        _ => value,
    }
}

/// Whether a statement assigns to a variable, to a part of it, or calls a method of it.
pub(super) fn changes(text: &str, name: &str) -> bool {
    let Some(rest) = text.strip_prefix(name) else {
        return false;
    };
    let rest = rest.trim_start();
    rest.starts_with(['[', '.', '=', '+']) && !rest.starts_with("==")
}

/// Whether a statement assigns a value to a variable as a whole: `x = …`, `x: T = …`.
pub(super) fn assigns(text: &str, name: &str) -> bool {
    let Some(rest) = text.strip_prefix(name) else {
        return false;
    };
    let rest = rest.trim_start();
    let is_plain = rest.starts_with('=') && !rest.starts_with("==");
    is_plain || rest.starts_with(':') && value_of(text).len() < text.len()
}

/// The tests of the conditional expressions `x if test else y` in a line, also within brackets.
pub(super) fn conditional_tests(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for part in parts(text) {
        if let Some((_, rest)) = split_word(part, "if")
            && let Some((test, _)) = split_word(rest, "else")
            && !found.contains(&test)
        {
            found.push(test);
        }
    }
    found
}

/// Whether an expression is the result of a comparison or of a negation.
pub(super) fn is_comparison(text: &str) -> bool {
    let compares = |rest: &str| {
        let mut operators = ["==", "!=", "<=", ">=", "< ", "> ", " is ", " in "].iter();
        operators.any(|it| rest.starts_with(it))
    };
    let mut words = ["for", "lambda", "if"].iter();
    let is_other = words.any(|word| split_word(text, word).is_some());
    // `test and call()` makes a call, or none.
    let makes_call = split_word(text, "and").is_some_and(|(_, rest)| rest.contains('('));
    !is_other
        && !makes_call
        && (text.starts_with("not ") || at_depth_zero(text, compares).is_some())
}

/// A text, and the parts of it that follow an opening bracket, a comma or an equals sign.
pub(super) fn parts(text: &str) -> impl Iterator<Item = &str> {
    let openings = text.char_indices().filter(|&(_, c)| "([{,=".contains(c));
    let starts = std::iter::once(0).chain(openings.map(|(at, _)| at + 1));
    starts.map(|start| {
        let inner = text[start..].trim_start();
        &inner[..end_of_argument(inner)]
    })
}

/// The functions for the other side of a message: "dist.recv" and "dist.irecv" of "dist.send".
pub(super) fn counterparts(function: &str) -> Vec<String> {
    let (module, name) = function.rsplit_once('.').map_or(("", function), |(a, b)| (a, b));
    let names: &[&str] = match name {
        "send" | "isend" => &["recv", "irecv"],
        "recv" | "irecv" => &["send", "isend"],
        "send_object_list" => &["recv_object_list"],
        "recv_object_list" => &["send_object_list"],
        _ => &[],
    };
    let of_module = |name: &&str| {
        if module.is_empty() { (*name).to_owned() } else { format!("{module}.{name}") }
    };
    names.iter().map(of_module).collect()
}
