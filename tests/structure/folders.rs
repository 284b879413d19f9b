//! A folder is one subject and a file one part of it: few source files stand side by side, and none is long.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use super::root;

/// Maximum number of source files side by side, `mod.rs` and tests included.
const MAX_SOURCE_FILES: usize = 15;
/// Maximum number of lines of a source file.
const MAX_LINES: usize = 600;
const EXTENSIONS: [&str; 4] = ["c", "h", "py", "rs"];

/// Folders of the repository with source files.
const FOLDERS: [&str; 8] =
    ["agent", "benches", "dashboard", "docs", "proto", "scripts", "src", "tests"];

/// Folders whose source files are data of tests, or are not part of the repository.
const DATA: [(&str, &str); 4] = [
    ("proto/src/generated", "code that prost and tonic write"),
    ("tests/jobs", "programs with a planted fault, by family: a folder has as many as its family"),
    ("tests/attach/jobs", "programs with a planted fault"),
    ("agent/python/build", "output of pip"),
];

/// Adds the folders below a folder, itself included, with the number of their source files, and the files that
/// are too long.
fn count(folder: &Path, found: &mut Vec<(String, usize)>, long: &mut Vec<PathBuf>) {
    let name = folder.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
    if DATA.iter().any(|(data, _)| *data == name) {
        return;
    }
    let mut files = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            count(&path, found, long);
        } else if path
            .extension()
            .and_then(OsStr::to_str)
            .is_some_and(|it| EXTENSIONS.contains(&it))
        {
            files += 1;
            if fs::read_to_string(&path).unwrap().lines().count() > MAX_LINES {
                long.push(path);
            }
        }
    }
    found.push((name, files));
}

#[test]
fn folders_have_few_source_files_and_none_is_long() {
    let (mut counts, mut long) = (Vec::new(), Vec::new());
    for folder in FOLDERS {
        count(&root().join(folder), &mut counts, &mut long);
    }
    assert!(counts.iter().filter(|(_, files)| *files > 1).count() > 20, "{counts:?}");
    counts.retain(|(_, files)| *files > MAX_SOURCE_FILES);
    assert_eq!(counts, [], "group the files by subject");
    assert!(long.is_empty(), "divide these files by subject: {long:?}");
}

/// Adds the folders of source files below a folder by their names.
fn name_folders(folder: &Path, found: &mut BTreeMap<String, Vec<String>>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        // git knows no empty folder.
        if path.is_dir() && fs::read_dir(&path).unwrap().next().is_some() {
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            let place = path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
            found.entry(name).or_default().push(place);
            name_folders(&path, found);
        }
    }
}

#[test]
fn no_two_folders_of_the_program_have_one_name() {
    let mut folders = BTreeMap::new();
    name_folders(&root().join("src"), &mut folders);
    assert!(folders.len() > 60, "{folders:?}");
    folders.retain(|name, places| name != "tests" && places.len() > 1);
    assert!(folders.is_empty(), "the name of a folder tells it from all others: {folders:?}");
}
