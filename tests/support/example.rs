//! Examples on the pages of findings are what the program prints.

use std::fs;
use std::path::Path;

const START: &str = "\n## Example\n\n```text\n";
const END: &str = "```\n";

/// Panics where the example on the page of a finding differs from what is shown; or updates it.
#[track_caller]
pub(crate) fn compare(code: &str, shown: &str) {
    let pages = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/findings");
    let path = pages.join(code).with_extension("md");
    let page = fs::read_to_string(&path).unwrap();
    let start = page.find(START).unwrap() + START.len();
    let end = start + page[start..].find(END).unwrap();
    if &page[start..end] == shown {
        return;
    }
    let update = std::env::var_os("UPDATE_DOCS").is_some();
    assert!(
        update,
        "{}: run the test with UPDATE_DOCS=1, and check the difference. It shows:\n{shown}",
        path.display()
    );
    let page = format!("{}{shown}{}", &page[..start], &page[end..]);
    fs::write(&path, page).unwrap();
}
