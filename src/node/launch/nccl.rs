//! How processes of the job load the library that traces NCCL calls.
//!
//! With `--nccl soname` and `--nccl profiler`, the loader and NCCL search a folder for the library by a name that is not
//! its own. They do so whenever a process of the job starts, so the folder must be in a place where no other user can
//! put anything at any time: not in shared memory, which a logout empties, and not in a directory for temporary files.

use std::io;
use std::path::Path;

use ddp_doctor_host::files::{self, Dir};
use ddp_doctor_host::private;

use crate::launch::rendezvous::Variable;
use crate::launch::rundir;
use crate::sample::environment::{self, Found, NcclLoading};

/// Name of the folder in a run directory.
const NAME: &str = "nccl";

/// How NCCL calls are traced, in addition to PyTorch's hooks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nccl {
    /// `LD_PRELOAD` if this node has an NVIDIA driver.
    Auto,
    /// `LD_PRELOAD`.
    Always,
    /// A library with NCCL's soname, which also covers processes that load NCCL with `dlopen`.
    Soname,
    /// NCCL's profiler plugin interface.
    Profiler,
    /// No process.
    Never,
}

/// What the environment of the job needs, and the folder that it names.
#[derive(Debug, Default)]
pub struct Loaded {
    /// `None`: NCCL calls are not traced.
    pub how: Option<NcclLoading>,
    /// Removed after the job.
    _folder: Option<Folder>,
}

impl Loaded {
    /// Finds the library, and creates a folder for its names in the run directory, or in that of the user's cached files.
    /// The job may have ranks on other hosts (`has_others`), where another user could create the path of a run directory:
    /// the user's home comes first then. `log` is called with the reason why NCCL calls are not traced although they should be.
    pub fn new(
        when: Nccl,
        run_dir: Option<&Dir>,
        run_name: &str,
        has_others: bool,
        log: &mut dyn FnMut(&str),
    ) -> Self {
        let search = match when {
            Nccl::Never => return Self::default(),
            Nccl::Auto if !environment::has_nvidia_driver() => return Self::default(),
            Nccl::Auto | Nccl::Always | Nccl::Profiler => environment::find_nccl(),
            Nccl::Soname => environment::find_nccl_by_name(),
        };
        let library = match search {
            Found::At(library) => library,
            Found::Nowhere if when == Nccl::Auto => return Self::default(),
            Found::Nowhere => {
                log(&not_found(when));
                return Self::default();
            }
            Found::Refused(why) => {
                log(&format!(
                    "NCCL calls are not traced: {why}; set DDP_DOCTOR_NCCL_LIBRARY to use it"
                ));
                return Self::default();
            }
        };
        let mut make = |name: fn(&Dir, &Path) -> io::Result<()>| {
            let fill = |folder: &Dir| name(folder, &library);
            let made = Folder::make(run_dir, run_name, has_others, fill);
            made.map_err(|why| log(&format!("NCCL calls are not traced: {why}"))).ok()
        };
        let folder = match when {
            Nccl::Soname => make(environment::name_nccl),
            Nccl::Profiler => make(environment::name_profiler),
            _ => return Self { how: Some(NcclLoading::Preloaded(library)), _folder: None },
        };
        let path = folder.as_ref().map(|it| it.dir.path().to_owned());
        let how = path.map(|folder| match when {
            Nccl::Soname => NcclLoading::Soname { library, folder },
            _ => NcclLoading::Profiler(folder),
        });
        Self { how, _folder: folder }
    }
}

/// Whether the batch system gave the job several nodes.
#[must_use]
pub fn has_several_nodes(variable: Variable<'_>) -> bool {
    let numbers = ["SLURM_NNODES", "SLURM_JOB_NUM_NODES"].map(variable);
    numbers.into_iter().flatten().any(|it| it.parse::<u32>().is_ok_and(|it| it > 1))
}

fn not_found(when: Nccl) -> String {
    let library = match when {
        Nccl::Soname => "libddp_doctor_nccl_soname.so",
        _ => "libddp_doctor_nccl.so",
    };
    format!(
        "NCCL calls are not traced: {library} is not beside ddp-doctor, or its path has a space, a \
         colon, a semicolon or a dollar sign (DDP_DOCTOR_NCCL_LIBRARY names libddp_doctor_nccl.so)",
    )
}

/// A folder in which only this user and root can ever put anything. Removed with its contents when this is dropped.
#[derive(Debug)]
struct Folder {
    parent: Dir,
    dir: Dir,
}

impl Folder {
    fn make(
        run_dir: Option<&Dir>,
        run_name: &str,
        has_others: bool,
        fill: impl Fn(&Dir) -> io::Result<()>,
    ) -> Result<Self, String> {
        let run_dir = run_dir.map(|it| (it.path().to_owned(), NAME)).ok_or(None);
        let cache = private::cache().map(|it| (it, run_name)).ok_or(Some("HOME is not set"));
        let places = if has_others { [cache, run_dir] } else { [run_dir, cache] };
        let mut failed: Vec<String> = Vec::new();
        for place in places {
            match place.map(|(parent, name)| Self::make_in(&parent, name, &fill)) {
                Ok(Ok(made)) => return Ok(made),
                Ok(Err(error)) => failed.push(error.to_string()),
                Err(why) => failed.extend(why.map(str::to_owned)),
            }
        }
        let failed = failed.join("; ");
        Err(format!("its library needs a directory that only you can write to ({failed})"))
    }

    fn make_in(
        parent: &Path,
        name: &str,
        fill: impl Fn(&Dir) -> io::Result<()>,
    ) -> io::Result<Self> {
        // Processes of the job find the folder by its path.
        let parent = Dir::ensure_own(&std::path::absolute(parent)?)?.canonical();
        if let Some(shared) = parent.writable_by_others()? {
            let why = files::others_at(&shared);
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        if !environment::is_one_folder(parent.path()) {
            let shown = parent.path().display();
            let why = format!("{shown} has a colon, a semicolon or a dollar sign");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let dir = rundir::create_new(&parent, name)?;
        let it = Self { parent, dir };
        fill(&it.dir)?;
        Ok(it)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // If they cannot be removed, they stay, and harm nothing.
        drop(self.parent.remove_all(&self.dir));
        if self.parent.path().file_name() == Some(private::CACHE.as_ref()) {
            let parent = files::parent(self.parent.path());
            drop(parent.and_then(|(parent, name)| parent.remove_empty(name)));
        }
    }
}
