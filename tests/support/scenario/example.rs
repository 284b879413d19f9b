//! Compares the examples on the pages of findings with what the program prints.

use std::fs;
use std::path::Path;

const START: &str = "\n## Example\n\n```text\n";
const END: &str = "```\n";

/// Fails if the example on the page of a finding differs from this text. With `UPDATE_DOCS=1` in the
/// environment, updates the page instead.
pub(crate) fn compare(code: &str, shown: &str) -> Result<(), String> {
    let pages = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/findings");
    let path = pages.join(code).with_extension("md");
    let fail = |error: &str| format!("{}: {error}", path.display());
    let page = fs::read_to_string(&path).map_err(|error| fail(&error.to_string()))?;
    let (head, rest) = page.split_once(START).ok_or(fail("no example"))?;
    let (example, tail) = rest.split_once(END).ok_or(fail("no end of the example"))?;
    if example == shown {
        return Ok(());
    }
    if std::env::var_os("UPDATE_DOCS").is_none() {
        let advice = "run the test with UPDATE_DOCS=1, and check the difference";
        return Err(fail(&format!("{advice}; the program prints:\n{shown}")));
    }
    let page = format!("{head}{START}{shown}{END}{tail}");
    fs::write(&path, page).map_err(|error| fail(&error.to_string()))
}
