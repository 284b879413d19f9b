//! Examples that stand in the source of a finding and are what the program prints.

use std::fs;
use std::panic::Location;
use std::path::Path;

const START: &str = "        example: \"\\\n";
const END: &str = "\n\",\n";

/// Panics where the example in the calling file is not what is shown; or writes it there.
#[track_caller]
pub(crate) fn compare(example: &str, shown: &str) {
    if example == shown {
        return;
    }
    let file = Location::caller().file();
    let update = std::env::var_os("UPDATE_DOCS").is_some();
    assert!(
        update,
        "{file}: run the test with UPDATE_DOCS=1, and look at the difference. It shows:\n{shown}"
    );
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    let source = fs::read_to_string(&path).unwrap();
    let start = source.find(START).unwrap() + START.len();
    // An example that is still empty ends where it starts.
    let end = source[start - 1..].find(END).unwrap() + start;
    let literal = shown.replace('\\', "\\\\").replace('"', "\\\"");
    fs::write(
        &path,
        format!("{}{literal}{}", &source[..start], &source[end..]),
    )
    .unwrap();
}
