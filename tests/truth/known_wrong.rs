//! Recordings whose diagnosis is known to be wrong.
//!
//! `known_wrong.txt` has a line `CASE: WHAT IS WRONG` for each, empty lines and comments (`#`). Its test fails once the
//! diagnosis agrees with the truth, so that the list only shrinks. A recording that is not listed must be right.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use libtest_mimic::{Failed, Trial};

use crate::program::Case;

/// What is wrong, by case.
fn list() -> &'static BTreeMap<String, String> {
    static LIST: OnceLock<BTreeMap<String, String>> = OnceLock::new();
    LIST.get_or_init(|| {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/truth/known_wrong.txt");
        let text = fs::read_to_string(file).unwrap();
        let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let entries = lines.map(|line| {
            let (case, what) =
                line.split_once(": ").unwrap_or_else(|| panic!("not `CASE: WHAT`: {line}"));
            (case.to_owned(), what.to_owned())
        });
        entries.collect()
    })
}

/// The result of a test of a recording: a listed one must fail.
pub(crate) fn judge(case: &Case, result: Result<(), Failed>) -> Result<(), Failed> {
    match (list().get(&case.to_string()), result) {
        (None, result) => result,
        (Some(_), Err(_)) => Ok(()),
        (Some(what), Ok(())) => {
            let message = format!("{case} is right now: remove it from known_wrong.txt ({what})");
            Err(message.into())
        }
    }
}

/// A test that fails if a line of the list belongs to none of the cases.
pub(crate) fn trial(cases: &[Arc<Case>]) -> Trial {
    let names: Vec<String> = cases.iter().map(|case| case.to_string()).collect();
    Trial::test("known_wrong_recordings_are_cases", move || {
        let unknown: Vec<&String> = list().keys().filter(|it| !names.contains(it)).collect();
        if unknown.is_empty() { Ok(()) } else { Err(format!("{unknown:#?}").into()) }
    })
}
