//! What the command of a job is given: the variables by which its processes find the agent.

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// File name of the agent's library.
const LIBRARY: &str = "libddp_doctor.so";
/// The folder of the Python package that `PYTHONPATH` has to begin with.
const ACTIVATION: &str = "ddp_doctor/activate";

/// Switches capture off where it is `0`.
pub const SWITCH: &str = "DDP_DOCTOR";
/// Id of the job.
pub const JOB: &str = "DDP_DOCTOR_JOB";
/// Directory of the black boxes.
pub const BOX_DIR: &str = "DDP_DOCTOR_BOX_DIR";
/// Run directory.
pub const RUN_DIR: &str = "DDP_DOCTOR_RUN_DIR";
/// The agent's library.
pub const LIBRARY_VARIABLE: &str = "DDP_DOCTOR_LIBRARY";
/// The folder that holds the Python package.
pub const PYTHON_VARIABLE: &str = "DDP_DOCTOR_PYTHON";
/// Address of the coordinator.
pub const COORDINATOR: &str = "DDP_DOCTOR_COORDINATOR";

/// Whether capture is switched off by the environment.
#[must_use]
pub fn is_switched_off() -> bool {
    env::var_os(SWITCH).is_some_and(|value| value == "0")
}

/// Whether an outer `run` watches this process already.
#[must_use]
pub fn is_watched_already() -> bool {
    env::var_os(BOX_DIR).is_some_and(|dir| Path::new(&dir).is_dir())
}

/// What a job is given.
#[derive(Debug)]
pub struct Environment {
    /// Id of the job.
    pub job: String,
    /// Directory of the black boxes.
    pub box_dir: PathBuf,
    /// Run directory, if there is one.
    pub run_dir: Option<PathBuf>,
    /// Address of the coordinator, if there is one.
    pub coordinator: Option<String>,
    /// The agent's library, if it was found.
    pub library: Option<PathBuf>,
    /// The folder of the Python package, if it was found.
    pub python: Option<PathBuf>,
}

impl Environment {
    /// Names and values, to be added to what the command inherits.
    #[must_use]
    pub fn variables(&self) -> Vec<(&'static str, OsString)> {
        let mut variables = vec![
            (JOB, self.job.clone().into()),
            (BOX_DIR, self.box_dir.clone().into()),
        ];
        let optional = [
            (RUN_DIR, self.run_dir.clone().map(OsString::from)),
            (COORDINATOR, self.coordinator.clone().map(OsString::from)),
            (LIBRARY_VARIABLE, self.library.clone().map(OsString::from)),
        ];
        variables.extend(
            optional
                .into_iter()
                .filter_map(|(name, value)| Some((name, value?))),
        );
        if let Some(python) = &self.python {
            let inherited = env::var_os("PYTHONPATH");
            variables.push(("PYTHONPATH", python_path(python, inherited.as_deref())));
        }
        variables
    }

    /// The folder whose presence in `PYTHONPATH` switches capture on in Python.
    #[must_use]
    pub fn activation(&self) -> Option<PathBuf> {
        self.python.as_ref().map(|python| python.join(ACTIVATION))
    }
}

/// The activation first, so that its `sitecustomize` is the one that is imported. An empty entry
/// would mean the working directory: where nothing was inherited, none is added.
fn python_path(python: &Path, inherited: Option<&OsStr>) -> OsString {
    let mut path = python.join(ACTIVATION).into_os_string();
    if !is_shared(python) {
        path.push(":");
        path.push(python);
    }
    if let Some(inherited) = inherited.filter(|inherited| !inherited.is_empty()) {
        path.push(":");
        path.push(inherited);
    }
    path
}

/// Whether other packages are in that folder as well: those of one environment, which must not come
/// before the standard library of whatever interpreter the job uses. The activation knows where its
/// package is.
fn is_shared(python: &Path) -> bool {
    let name = python.file_name().unwrap_or_default();
    name == "site-packages" || name == "dist-packages"
}

/// Finds the agent's library: where the environment says, beside this program, or where an
/// installation puts it.
#[must_use]
pub fn find_library() -> Option<PathBuf> {
    if let Some(path) = env::var_os(LIBRARY_VARIABLE) {
        return absolute(Path::new(&path)).filter(|path| path.is_file());
    }
    let ours = program_dir()?;
    let places = [
        ours.clone(),
        ours.join("../lib/ddp-doctor"),
        ours.join(".."),
    ];
    places
        .iter()
        .find_map(|place| absolute(&place.join(LIBRARY)).filter(|path| path.is_file()))
}

/// Finds the folder of the Python package likewise; in a source tree it is `agent/python`.
#[must_use]
pub fn find_python() -> Option<PathBuf> {
    if let Some(path) = env::var_os(PYTHON_VARIABLE) {
        return absolute(Path::new(&path)).filter(|path| has_package(path));
    }
    let ours = program_dir()?;
    let places = [
        "../lib/ddp-doctor/python",
        "../../agent/python",
        "../../../agent/python",
        // Installed by pip: this program is in the package.
        "../..",
    ];
    places
        .iter()
        .find_map(|place| absolute(&ours.join(place)).filter(|path| has_package(path)))
}

fn has_package(path: &Path) -> bool {
    path.join(ACTIVATION).join("sitecustomize.py").is_file()
}

fn program_dir() -> Option<PathBuf> {
    Some(env::current_exe().ok()?.parent()?.to_owned())
}

fn absolute(path: &Path) -> Option<PathBuf> {
    path.canonicalize().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_activation_comes_first_and_nothing_is_empty() {
        let python = Path::new("/p");
        let path = |old: Option<&str>| python_path(python, old.map(OsStr::new));
        assert_eq!(path(None), "/p/ddp_doctor/activate:/p");
        assert_eq!(path(Some("")), "/p/ddp_doctor/activate:/p");
        assert_eq!(path(Some("/a:/b")), "/p/ddp_doctor/activate:/p:/a:/b");
        let installed = Path::new("/v/lib/python3.12/site-packages");
        let activation = installed.join(ACTIVATION);
        assert_eq!(python_path(installed, None), activation.as_os_str());
    }
}
