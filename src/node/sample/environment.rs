//! The environment of a job's command: the variables by which its processes find the agent.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::{env, io};

use ddp_doctor_agent::blackbox::{FollowedBy, Following};
use ddp_doctor_agent::trust::{self, Origin};
use ddp_doctor_host::files::{Dir, KnownDirectories};

/// File name of the agent's library.
const LIBRARY: &str = "libddp_doctor.so";
/// File name of the library that traces NCCL calls.
const NCCL_LIBRARY: &str = "libddp_doctor_nccl.so";
/// File name of the library that traces NCCL calls under NCCL's soname.
const NCCL_NAMED_LIBRARY: &str = "libddp_doctor_nccl_soname.so";
/// The names under which programs load NCCL.
const NCCL_NAMES: [&str; 2] = ["libnccl.so", "libnccl.so.2"];
/// Libraries that the loader loads before those of the program.
const PRELOAD: &str = "LD_PRELOAD";
/// Directories that the loader searches first.
const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";
/// The profiler plugin that NCCL loads.
const PROFILER: &str = "NCCL_PROFILER_PLUGIN";
/// Name of this tool's profiler. NCCL 2.27.3 accepts no path, and puts the name into that of a library.
const OUR_PROFILER: &str = "ddp_doctor";
/// The library that NCCL loads for this name.
const OUR_PROFILER_LIBRARY: &str = "libnccl-profiler-ddp_doctor.so";
/// The profiler plugin to which this tool's profiler forwards every call.
const NEXT_PROFILER: &str = "DDP_DOCTOR_NEXT_PROFILER";
/// Directory of the Python package that must be first in `PYTHONPATH`.
const ACTIVATION: &str = "ddp_doctor/activate";
const PACKAGE: &str = "ddp_doctor";

/// Switches capture off if set to `0`.
pub const SWITCH: &str = "DDP_DOCTOR";
/// Id of the job.
pub const JOB: &str = "DDP_DOCTOR_JOB";
/// Directory of the black boxes.
pub const BOX_DIR: &str = "DDP_DOCTOR_BOX_DIR";
/// Run directory.
pub const RUN_DIR: &str = "DDP_DOCTOR_RUN_DIR";
/// The agent's library.
pub const LIBRARY_VARIABLE: &str = "DDP_DOCTOR_LIBRARY";
/// The library that traces NCCL calls.
pub const NCCL_LIBRARY_VARIABLE: &str = "DDP_DOCTOR_NCCL_LIBRARY";
/// The directory that contains the Python package.
pub const PYTHON_VARIABLE: &str = "DDP_DOCTOR_PYTHON";
/// Folder for the FIFOs and dumps of PyTorch's Flight Recorders: "DEVICE:INODE:PATH".
pub const RECORDERS: &str = "DDP_DOCTOR_RECORDERS";
/// Address of the coordinator.
pub const COORDINATOR: &str = "DDP_DOCTOR_COORDINATOR";

/// Whether capture is switched off by the environment.
#[must_use]
pub fn is_switched_off() -> bool {
    env::var_os(SWITCH).is_some_and(|value| value == "0")
}

/// Whether an outer `run` already monitors this process. The variable alone does not imply that,
/// since users set it to choose the directory of black boxes.
#[must_use]
pub fn is_monitored_already() -> bool {
    let dir = env::var_os(BOX_DIR);
    dir.is_some_and(|dir| Following::found(Path::new(&dir)) == Some(FollowedBy::Run))
}

/// How the library that traces NCCL calls is loaded into the job's processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NcclLoading {
    /// The loader loads it before all other libraries.
    Preloaded(PathBuf),
    /// The loader also loads it for programs that load NCCL by its name.
    Soname {
        /// The library.
        library: PathBuf,
        /// Directory with the library under NCCL's names, which the loader searches first.
        folder: PathBuf,
    },
    /// NCCL loads it as its profiler plugin, from this directory, which the loader searches first.
    Profiler(PathBuf),
}

impl NcclLoading {
    /// Names and values of the variables to set. `inherited` returns the current value of a
    /// variable.
    fn variables(
        &self,
        inherited: impl Fn(&str) -> Option<OsString>,
    ) -> Vec<(&'static str, OsString)> {
        match self {
            Self::Preloaded(library) => {
                let before = inherited(PRELOAD);
                vec![(PRELOAD, prepend(library, before.as_deref()))]
            }
            Self::Soname { library, folder } => {
                let (before, path) = (inherited(PRELOAD), inherited(LIBRARY_PATH));
                vec![
                    (PRELOAD, prepend(library, before.as_deref())),
                    (LIBRARY_PATH, prepend(folder, path.as_deref())),
                ]
            }
            Self::Profiler(folder) => {
                let path = inherited(LIBRARY_PATH);
                let mut variables = vec![
                    (PROFILER, OUR_PROFILER.into()),
                    (LIBRARY_PATH, prepend(folder, path.as_deref())),
                ];
                // The user's plugin becomes the next one, unless a next one is already set.
                let other = inherited(PROFILER).filter(|it| !it.is_empty() && it != OUR_PROFILER);
                if let Some(other) = other.filter(|_| inherited(NEXT_PROFILER).is_none()) {
                    variables.push((NEXT_PROFILER, other));
                }
                variables
            }
        }
    }
}

/// The values that the variables of a job's command are made from.
#[derive(Debug)]
pub struct Environment {
    /// Id of the job.
    pub job: String,
    /// Directory of the black boxes.
    pub box_dir: PathBuf,
    /// The directories in which ranks may create black boxes.
    pub known: KnownDirectories,
    /// Run directory, if there is one.
    pub run_dir: Option<PathBuf>,
    /// Address of the coordinator, if there is one.
    pub coordinator: Option<String>,
    /// The agent's library.
    pub library: Found,
    /// The directory of the Python package.
    pub python: Found,
    /// How NCCL calls are traced; `None` if they are not.
    pub nccl: Option<NcclLoading>,
    /// Folder for the FIFOs and dumps of PyTorch's Flight Recorders, if these may be asked, with its numbers.
    pub recorders: Option<OsString>,
}

impl Environment {
    /// Names and values to add to the inherited environment.
    #[must_use]
    pub fn variables(&self) -> Vec<(&'static str, OsString)> {
        let mut variables =
            vec![(JOB, self.job.clone().into()), (BOX_DIR, self.box_dir.clone().into())];
        variables.push((KnownDirectories::VARIABLE, self.known.to_string().into()));
        let optional = [
            (RUN_DIR, self.run_dir.clone().map(OsString::from)),
            (COORDINATOR, self.coordinator.clone().map(OsString::from)),
            (RECORDERS, self.recorders.clone()),
            (LIBRARY_VARIABLE, self.library.path().map(OsString::from)),
        ];
        variables.extend(optional.into_iter().filter_map(|(name, value)| Some((name, value?))));
        if let Some(python) = self.python.path() {
            let inherited = env::var_os("PYTHONPATH");
            variables.push(("PYTHONPATH", python_path(python, inherited.as_deref())));
        }
        if let Some(nccl) = &self.nccl {
            variables.extend(nccl.variables(|name| env::var_os(name)));
        }
        variables
    }

    /// Message about a missing part without which Python programs cannot be captured; `None` if
    /// nothing is missing.
    #[must_use]
    pub fn missing(&self) -> Option<String> {
        let (what, variable, found) = match (&self.python, &self.library) {
            (Found::At(_), Found::At(_)) => return None,
            (Found::At(_), library) => (LIBRARY, LIBRARY_VARIABLE, library),
            (python, _) => ("the Python package ddp_doctor", PYTHON_VARIABLE, python),
        };
        let why = match found {
            Found::Refused(why) => format!("{why}; set {variable} to use it"),
            _ => format!(
                "{what} was not found beside this program. Run the ddp-doctor that `pip install agent/python` \
                 installs, or set {variable}"
            ),
        };
        Some(format!("collectives of Python programs will not be captured: {why}"))
    }

    /// The directory whose presence in `PYTHONPATH` switches capture on in Python.
    #[must_use]
    pub fn activation(&self) -> Option<PathBuf> {
        self.python.path().map(|python| python.join(ACTIVATION))
    }
}

/// Prepends an entry to the inherited ones, which may contain an NCCL whose calls must pass through
/// is not added.
fn prepend(ours: &Path, inherited: Option<&OsStr>) -> OsString {
    let mut all = ours.as_os_str().to_owned();
    if let Some(inherited) = inherited.filter(|inherited| !inherited.is_empty()) {
        all.push(":");
        all.push(inherited);
    }
    all
}

/// `PYTHONPATH` with the activation first, so that its `sitecustomize` is the one that is imported.
/// An empty entry, which would mean the working directory, is not added.
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

/// Whether the directory contains other packages of an environment, which must not come before the
/// standard library of the job's interpreter. The activation then finds its package without
/// `PYTHONPATH`.
fn is_shared(python: &Path) -> bool {
    let name = python.file_name().unwrap_or_default();
    name == "site-packages" || name == "dist-packages"
}

/// Result of a search for code that processes of the job load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// Its path.
    At(PathBuf),
    /// It is not used, because another user can have made or changed it: which file, and why.
    Refused(String),
    /// It was not found.
    Nowhere,
}

impl Found {
    /// Its path, if it is used.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::At(path) => Some(path),
            Self::Refused(_) | Self::Nowhere => None,
        }
    }

    fn given(path: Option<PathBuf>) -> Self {
        path.map_or(Self::Nowhere, Self::At)
    }

    /// The first that is used, otherwise the first that is refused.
    fn first(found: impl Iterator<Item = Self>) -> Self {
        let mut refused = Self::Nowhere;
        for it in found {
            match it {
                Self::At(_) => return it,
                Self::Refused(_) if refused == Self::Nowhere => refused = it,
                Self::Refused(_) | Self::Nowhere => {}
            }
        }
        refused
    }
}

/// Finds the agent's library: at the path in the environment, beside this program, or in the
/// directory of an installation.
#[must_use]
pub fn find_library() -> Found {
    find_file(LIBRARY_VARIABLE, LIBRARY)
}

/// Finds the library that traces NCCL calls in the same way. A path that the loader would split or expand is not used.
#[must_use]
pub fn find_nccl() -> Found {
    let has_space = |path: &Path| path.as_os_str().as_bytes().iter().any(u8::is_ascii_whitespace);
    match find_file(NCCL_LIBRARY_VARIABLE, NCCL_LIBRARY) {
        Found::At(path) if has_space(&path) || !is_one_folder(&path) => Found::Nowhere,
        found => found,
    }
}

/// Whether the loader takes a path as it is. It splits `LD_LIBRARY_PATH` at colons and semicolons, of which the parts
/// would be relative to the working directory of each process of the job, and expands `$`.
#[must_use]
pub fn is_one_folder(path: &Path) -> bool {
    !path.as_os_str().as_bytes().iter().any(|byte| b":;$".contains(byte))
}

/// Finds the library that traces NCCL calls under NCCL's soname, beside the other one. It exists
/// only for x86-64 and AArch64.
#[must_use]
pub fn find_nccl_by_name() -> Found {
    let named = match find_nccl() {
        Found::At(path) => path.with_file_name(NCCL_NAMED_LIBRARY),
        found => return found,
    };
    if !cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) {
        return Found::Nowhere;
    }
    if env::var_os(NCCL_LIBRARY_VARIABLE).is_some() {
        return Found::given(Some(named).filter(|it| it.is_file()));
    }
    trusted_file(&named, Origin::Installation)
}

/// Creates links by which the loader finds that library in this folder under NCCL's names.
///
/// # Errors
///
/// If they cannot be created.
pub fn name_nccl(folder: &Dir, library: &Path) -> io::Result<()> {
    name(folder, library, &NCCL_NAMES)
}

/// Creates a link by which NCCL finds the library that traces its calls in this folder under the name of a profiler.
///
/// # Errors
///
/// If it cannot be created.
pub fn name_profiler(folder: &Dir, library: &Path) -> io::Result<()> {
    name(folder, library, &[OUR_PROFILER_LIBRARY])
}

fn name(folder: &Dir, library: &Path, names: &[&str]) -> io::Result<()> {
    names.iter().try_for_each(|name| folder.link_to(library, name.as_ref()))
}

/// Whether this node has a driver for GPUs that NCCL runs on.
#[must_use]
pub fn has_nvidia_driver() -> bool {
    let tells = ["/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg"];
    tells.iter().any(|path| Path::new(path).exists())
}

fn find_file(variable: &str, name: &str) -> Found {
    if let Some(path) = env::var_os(variable) {
        return Found::given(absolute(Path::new(&path)).filter(|path| path.is_file()));
    }
    let Some(ours) = program_dir() else { return Found::Nowhere };
    let places = [ours.clone(), ours.join("../lib/ddp-doctor"), ours.join("..")];
    Found::first(places.iter().map(|it| trusted_file(&it.join(name), Origin::Installation)))
}

/// Finds the directory of the Python package in the same way; in a source tree it is
/// `agent/python`.
#[must_use]
pub fn find_python() -> Found {
    match find_package() {
        Found::At(path) if path.as_os_str().as_bytes().contains(&b':') => Found::Refused(format!(
            "the path {} has a colon, at which Python divides PYTHONPATH: a copy elsewhere is needed",
            path.display()
        )),
        found => found,
    }
}

fn find_package() -> Found {
    if let Some(path) = env::var_os(PYTHON_VARIABLE) {
        return Found::given(absolute(Path::new(&path)).filter(|path| has_package(path)));
    }
    let Some(ours) = program_dir() else { return Found::Nowhere };
    let mut places = vec![("../lib/ddp-doctor/python", Origin::Installation)];
    places.extend(source_tree(&ours).map(|place| (place, Origin::SourceTree)));
    // In an installation by pip this program is inside the package.
    if ours.ends_with("ddp_doctor/bin") {
        places.push(("../..", Origin::Installation));
    }
    Found::first(places.into_iter().map(|(place, origin)| {
        let path = ours.join(place);
        match trusted_file(&path.join(ACTIVATION).join("sitecustomize.py"), origin) {
            Found::At(_) => trusted_package(&path, origin),
            other => other,
        }
    }))
}

/// Where a source tree has the Python package, from the folder of the program, if it is where Cargo puts programs:
/// `target/PROFILE`, or `target/TARGET/PROFILE`. From `~/.local/bin`, the same way leads to the home of another user.
fn source_tree(folder: &Path) -> Option<&'static str> {
    let mut above = folder.ancestors().skip(1);
    let mut is_target = || above.next().is_some_and(|it| it.ends_with("target"));
    if is_target() {
        return Some("../../agent/python");
    }
    is_target().then_some("../../../agent/python")
}

/// Like [`trusted`], also for everything in the package below this path: ranks import its modules, or what Python
/// compiled from them, whose folder is created with the umask of the first program that imported it.
fn trusted_package(path: &Path, origin: Origin) -> Found {
    let found = trusted(path, origin);
    let Found::At(place) = &found else { return found };
    let own = Path::new("/proc/self/exe");
    match trust::check_contents(&place.join(PACKAGE), origin, own) {
        Ok(()) => found,
        Err(why) => Found::Refused(format!("{} is ignored, because {why}", path.display())),
    }
}

/// Like [`trusted`], for a file. The path is resolved before what it leads to is looked up: that of another user may never
/// answer.
fn trusted_file(path: &Path, origin: Origin) -> Found {
    match trusted(path, origin) {
        Found::At(path) if !path.is_file() => Found::Nowhere,
        found => found,
    }
}

/// Resolves the links of a path, if no other user can have made or changed anything on it.
fn trusted(path: &Path, origin: Origin) -> Found {
    match trust::resolve_existing(path, origin, Path::new("/proc/self/exe")) {
        Ok(path) => Found::given(path),
        Err(why) => Found::Refused(format!("{} is ignored, because {why}", path.display())),
    }
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
    fn inherited_preload_follows_the_own_entry() {
        let nccl = Path::new("/l/libddp_doctor_nccl.so");
        let with = |old: Option<&str>| prepend(nccl, old.map(OsStr::new));
        assert_eq!(with(None), "/l/libddp_doctor_nccl.so");
        assert_eq!(with(Some("")), "/l/libddp_doctor_nccl.so");
        assert_eq!(with(Some("libnccl.so.2 a.so")), "/l/libddp_doctor_nccl.so:libnccl.so.2 a.so");
    }

    #[test]
    fn nccl_replacement_is_preloaded_and_found_first() {
        let named = NcclLoading::Soname { library: "/l/named.so".into(), folder: "/b/nccl".into() };
        let with = |path: Option<&str>| {
            let value = |name: &str| path.filter(|_| name == LIBRARY_PATH).map(OsString::from);
            named.variables(value)
        };
        let preloaded = (PRELOAD, OsString::from("/l/named.so"));
        let path = |value: &str| (LIBRARY_PATH, OsString::from(value));
        assert_eq!(with(None), [preloaded.clone(), path("/b/nccl")]);
        assert_eq!(with(Some("")), [preloaded.clone(), path("/b/nccl")]);
        assert_eq!(with(Some("/a:/c")), [preloaded, path("/b/nccl:/a:/c")]);
    }

    #[test]
    fn inherited_profiler_becomes_the_next_one() {
        let profiler = NcclLoading::Profiler("/b/nccl".into());
        let with = |plugin: Option<&'static str>, next: Option<&'static str>| {
            let values = [(PROFILER, plugin), (NEXT_PROFILER, next)];
            let value = |name: &str| values.iter().find(|it| it.0 == name)?.1.map(OsString::from);
            profiler.variables(value)
        };
        let path = (LIBRARY_PATH, OsString::from("/b/nccl"));
        let ours = [(PROFILER, OsString::from("ddp_doctor")), path];
        assert_eq!(with(None, None), ours);
        assert_eq!(with(Some(""), None), ours);
        assert_eq!(with(Some("ddp_doctor"), None), ours);
        let next = (NEXT_PROFILER, OsString::from("inspector"));
        let [first, second] = ours.clone();
        assert_eq!(with(Some("inspector"), None), [first, second, next]);
        assert_eq!(with(Some("inspector"), Some("other")), ours);
    }

    #[test]
    fn missing_package_or_library_is_named() {
        let with = |python: Option<&str>, library: Option<&str>| Environment {
            job: String::new(),
            box_dir: PathBuf::new(),
            known: KnownDirectories::default(),
            run_dir: None,
            coordinator: None,
            library: Found::given(library.map(PathBuf::from)),
            python: Found::given(python.map(PathBuf::from)),
            nccl: None,
            recorders: None,
        };
        assert_eq!(with(Some("/p"), Some("/l")).missing(), None);
        let message = with(None, None).missing().unwrap();
        assert!(message.contains("package ddp_doctor"), "{message}");
        assert!(message.contains(PYTHON_VARIABLE), "{message}");
        let refused = Found::Refused("/p is ignored, because /p belongs to user 7".into());
        let message = Environment { python: refused, ..with(None, Some("/l")) }.missing().unwrap();
        assert!(!message.contains("not found"), "{message}");
        assert!(
            message.ends_with("belongs to user 7; set DDP_DOCTOR_PYTHON to use it"),
            "{message}"
        );
        let message = with(Some("/p"), None).missing().unwrap();
        assert!(message.contains(LIBRARY_VARIABLE), "{message}");
    }

    #[test]
    fn source_tree_is_around_the_output_of_cargo_alone() {
        let of = |folder: &str| source_tree(Path::new(folder));
        assert_eq!(of("/src/target/debug"), Some("../../agent/python"));
        assert_eq!(of("/src/target/debug/deps"), Some("../../../agent/python"));
        assert_eq!(
            of("/src/target/x86_64-unknown-linux-musl/release"),
            Some("../../../agent/python")
        );
        for other in ["/home/alice/.local/bin", "/home/alice/bin", "/target", "/", "/a/target"] {
            assert_eq!(of(other), None, "{other}");
        }
    }

    #[test]
    fn activation_is_first_and_no_entry_is_empty() {
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
