//! Reports a process that `ddp-doctor run` did not start to the coordinator that
//! `DDP_DOCTOR_COORDINATOR` names.
//!
//! It starts the program `ddp-doctor`, which follows the black boxes of this process and of the
//! other ranks of its launch on this node from outside, as `run` does. So the process is not
//! burdened, and its end is recorded even if it is killed.

use std::env;
use std::ffi::{CString, OsString};
use std::fs;
use std::io::{self, Write};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::blackbox::{CreateError, FollowedBy, Following, Place, RUN_DIR, Writer};
use crate::files::KnownDirectories;
use crate::trust::{self, Origin};
use crate::{admission, detach, sys};

/// Address of the coordinator: `HOST:PORT`.
const COORDINATOR: &str = "DDP_DOCTOR_COORDINATOR";
/// Path of the program; overrides the search.
const PROGRAM: &str = "DDP_DOCTOR_PROGRAM";
/// File name of the program.
const NAME: &str = "ddp-doctor";
/// Where the program may be, relative to the folder of the file that contains this code: beside a
/// library in a package or a build folder, above the examples, in an installation.
const PLACES: [&str; 4] = ["", "bin", "..", "../../bin"];
/// Environment variables that the program inherits, besides `DDP_DOCTOR_…`.
const INHERITED: [&str; 13] = [
    "PATH",
    "HOME",
    "TMPDIR",
    "RUST_BACKTRACE",
    "SLURM_RESTART_COUNT",
    // What distinguishes launches of one name.
    "MASTER_ADDR",
    "MASTER_PORT",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_MAX_RESTARTS",
];
/// Maximum number of folders on PATH that are searched.
const MAX_PATHS: usize = 256;

/// Whether this process has printed that it has no box.
static PRINTED: AtomicBool = AtomicBool::new(false);

/// Starts the reporter for a new box, if a coordinator is set and `ddp-doctor run` does not follow
/// the box.
///
/// An error is printed once per node, by the first local rank.
///
/// The other ranks of the launch may have boxes in any directory of `place`. The reporter of one of them follows all
/// boxes.
pub(crate) fn start(writer: &Writer, place: &Place, local_rank: Option<u32>) {
    let Some(coordinator) = env::var_os(COORDINATOR).filter(|it| !it.is_empty()) else {
        return;
    };
    if is_under_run(place) {
        return;
    }
    match start_program(writer.path(), place) {
        Ok(reporter) => admission::admit_follower(writer, reporter),
        Err(error) if local_rank.unwrap_or(0) == 0 => {
            // A failed write to standard error is ignored.
            drop(writeln!(
                io::stderr(),
                "ddp-doctor: nothing is reported to {}: {error}",
                coordinator.display()
            ));
        }
        Err(_) => {}
    }
}

/// Prints why there is no box, once per launch and node, if a coordinator is set. Under `ddp-doctor run`
/// the marker file that the rank leaves is reported instead.
pub(crate) fn no_box(error: &CreateError, place: &Place, local_rank: Option<u32>) {
    let is_set = env::var_os(COORDINATOR).is_some_and(|it| !it.is_empty());
    let is_first = local_rank.unwrap_or(0) == 0 && !PRINTED.swap(true, Ordering::Relaxed);
    if is_set && is_first && !is_under_run(place) {
        // A failed write to standard error is ignored.
        drop(writeln!(io::stderr(), "ddp-doctor: nothing is captured: {error}"));
    }
}

/// Whether `ddp-doctor run` follows the boxes of this launch.
fn is_under_run(place: &Place) -> bool {
    place.usable().any(|(it, _)| Following::found(it) == Some(FollowedBy::Run))
}

/// Starts the reporter; returns its process id.
fn start_program(path: &Path, place: &Place) -> io::Result<u32> {
    let program = find()?;
    let text = |value: OsString| CString::new(value.into_vec());
    // The program runs in another directory, so paths must be absolute. It finds the directories by their paths, and
    // recognizes them by what they are now.
    let (mut directories, mut identities, mut black_box) = (Vec::new(), Vec::new(), None);
    for (directory, opened) in place.usable() {
        let Ok(opened) = opened else {
            directories.push(std::path::absolute(directory)?.into_os_string());
            continue;
        };
        let canonical = opened.canonical_path()?;
        identities.push(opened.identity()?);
        if path.parent() == Some(directory) {
            black_box = path.file_name().map(|name| canonical.join(name));
        }
        directories.push(canonical.into_os_string());
    }
    let black_box = black_box.ok_or(io::ErrorKind::NotFound)?.into_os_string();
    let arguments: Vec<CString> = [NAME.into(), "reporter".into(), black_box]
        .into_iter()
        .chain(directories)
        .map(text)
        .collect::<Result<_, _>>()?;
    let value = KnownDirectories::new(identities).to_string();
    let known = (OsString::from(KnownDirectories::VARIABLE), OsString::from(value));
    let environment = env::vars_os()
        .filter(|(name, _)| {
            let name = name.to_string_lossy();
            let is_inherited = name.starts_with("DDP_DOCTOR_") || INHERITED.contains(&&*name);
            is_inherited && name != KnownDirectories::VARIABLE
        })
        .chain([known])
        .map(|(mut entry, mut value)| {
            if entry == RUN_DIR {
                value = std::path::absolute(&value)?.into();
            }
            entry.push("=");
            entry.push(value);
            Ok(text(entry)?)
        })
        .collect::<io::Result<Vec<_>>>()?;
    detach::start(&text(program.clone().into_os_string())?, &arguments, &environment)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", program.display())))
}

fn find() -> io::Result<PathBuf> {
    if let Some(program) = env::var_os(PROGRAM).filter(|it| !it.is_empty()) {
        return fs::canonicalize(&program).map_err(|error| {
            let shown = program.display();
            io::Error::new(error.kind(), format!("{PROGRAM}={shown}: {error}"))
        });
    }
    // For a program, the loader reports the name it was started with, which may be relative.
    let own = sys::own_file()
        .filter(|it| it.is_absolute() && it.is_file())
        .or_else(|| env::current_exe().ok());
    let near = own
        .as_deref()
        .and_then(Path::parent)
        .into_iter()
        .flat_map(|folder| PLACES.map(|place| folder.join(place)));
    let search_path = env::var_os("PATH").unwrap_or_default();
    // Relative folders are not trusted: another user may control the working directory.
    let path = env::split_paths(&search_path).take(MAX_PATHS).filter(|it| it.is_absolute());
    let mut refused = None;
    // What a link of another user leads to is not looked up: it may never answer.
    let found = near.map(|folder| folder.join(NAME)).find_map(|it| {
        let resolved = trust::resolve_existing(&it, Origin::Installation, own.as_deref()?);
        let why = |why| format!("{} is ignored, because {why} (set {PROGRAM})", it.display());
        let resolved = resolved.map_err(|error| refused.get_or_insert(why(error))).ok()?;
        resolved.filter(|it| is_program(it))
    });
    let mut path = path.map(|folder| folder.join(NAME));
    found.or_else(|| path.find(|it| is_program(it))).ok_or_else(|| {
        let missing = || {
            format!("the program {NAME} is neither beside the library nor on PATH (set {PROGRAM})")
        };
        io::Error::new(io::ErrorKind::NotFound, refused.unwrap_or_else(missing))
    })
}

fn is_program(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o111 != 0)
}
