//! Examples in the source of a finding, which must equal the program's output.

use std::fs;
use std::panic::Location;
use std::path::Path;

const START: &str = "        example: \"\\\n";
const END: &str = "\n\",\n";

/// Panics if the example in the calling file differs from `shown`. With `UPDATE_DOCS` set it
/// replaces the example instead.
#[track_caller]
pub(crate) fn compare(example: &str, shown: &str) {
    if example == shown {
        return;
    }
    let file = Location::caller().file();
    let update = std::env::var_os("UPDATE_DOCS").is_some();
    assert!(
        update,
        "{file}: run the test with UPDATE_DOCS=1 and review the difference. Output:\n{shown}"
    );
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    let source = fs::read_to_string(&path).unwrap();
    let start = source.find(START).unwrap() + START.len();
    // The search starts one byte early: the end of an empty example includes the newline of START.
    let end = source[start - 1..].find(END).unwrap() + start;
    let literal = shown.replace('\\', "\\\\").replace('"', "\\\"");
    fs::write(
        &path,
        format!("{}{literal}{}", &source[..start], &source[end..]),
    )
    .unwrap();
}
