//! Resolves TARGET of a command line to a coordinator and a job, or to evidence.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use ddp_doctor_proto::report::Timestamp;

use crate::attach::find::jobs_of;
use crate::cli::output::{say, word};
use crate::diagnosis::words::{Ranks, begin, number};
use crate::host::boxes::BoxDir;
use crate::host::files::{self, Dir};
use crate::host::input_files;
use crate::host::names;
use crate::host::private;
use crate::host::run_description::Description;
use crate::host::sys;
use crate::node::follow::orphans::{self, Orphan};
use crate::node::sample::environment;
use crate::transport::{Address, Credentials, split};

/// Maximum number of jobs without ddp-doctor that a message names.
const MAX_JOBS: usize = 3;
/// Time limit for the file system of a run directory.
const MAX_READ: Duration = Duration::from_secs(1);

/// What a viewer shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// An active job, and its run directory if known.
    Live(Live, Option<PathBuf>),
    /// Evidence of a job.
    Evidence(PathBuf),
}

impl Target {
    /// Resolves an argument: `HOST:PORT` is a coordinator, a path is a run directory or other
    /// evidence. Without an argument, selects the newest run of this user on this machine, active
    /// or not.
    pub(super) fn find(target: Option<&str>, credentials: &Credentials) -> anyhow::Result<Self> {
        let Some(target) = target else {
            let dirs = default_run_dirs();
            if let Ok(coordinator) = std::env::var(environment::COORDINATOR)
                && newest(&dirs).is_none()
            {
                let live = Live::at(&coordinator, credentials)?;
                return Ok(Self::Live(live, None));
            }
            return Self::newest(&dirs, credentials);
        };
        let path = Path::new(target);
        if !is_path(path) {
            return Ok(Self::Live(Live::find(Some(target), credentials)?, None));
        }
        input_files::confine(path);
        Ok(match Description::read(path) {
            Ok(Some(run)) if !run.is_over() && run.coordinator.is_some() => {
                Self::Live(of_run_dir(path, credentials)?, Some(path.to_owned()))
            }
            _ => Self::Evidence(path.to_owned()),
        })
    }

    /// Resolves an argument, with the job selected by `job` if given.
    pub(super) fn of_job(
        target: Option<&str>,
        job: Option<&str>,
        credentials: &Credentials,
    ) -> anyhow::Result<Self> {
        let mut target = Self::find(target, credentials)?;
        target.select(job);
        if let Self::Live(live, _) = &target {
            live.state_other_owner();
        }
        Ok(target)
    }

    /// Selects a job of the coordinator by its id. Neither history nor sources of another job are in the run directory.
    fn select(&mut self, job: Option<&str>) {
        if let (Self::Live(live, dir), Some(job)) = (self, job)
            && live.job != job
        {
            job.clone_into(&mut live.job);
            *dir = None;
        }
    }

    /// The newest active run among these; if none is active, the newest run.
    fn newest(dirs: &[PathBuf], credentials: &Credentials) -> anyhow::Result<Self> {
        let runs = dirs.iter().filter_map(|dir| Some((dir, own_run(dir)?)));
        let newest = runs.max_by_key(|(_, run)| {
            let is_running = run.is_running_here() && run.coordinator.is_some();
            (is_running, run.started_at.unwrap_or_default())
        });
        let (dir, run) = newest.with_context(|| no_run("found"))?;
        if run.is_running_here() {
            Ok(match live(run, files::user_id(), credentials)? {
                Some(live) => Self::Live(live, Some(dir.clone())),
                None => Self::Evidence(dir.clone()),
            })
        } else {
            Ok(Self::Evidence(dir.clone()))
        }
    }
}

/// Whether a target names a file or directory. In a folder where others can create entries, one of them may look like an
/// address.
pub(super) fn is_path(target: &Path) -> bool {
    let is_address = target.to_str().is_some_and(|it| split(it).is_some() || Address::is_path(it));
    let is_missing = |error: io::Error| error.kind() == io::ErrorKind::NotFound;
    !is_address && !input_files::reach(target).is_err_and(is_missing)
}

/// The run directory of a target, of whose jobs one may be selected; `None`: that of another coordinator.
pub(super) fn run_dir(target: Option<&str>, job: Option<&str>) -> Option<PathBuf> {
    let mut found = Target::find(target, &Credentials::default()).ok()?;
    found.select(job);
    match found {
        Target::Live(_, dir) => dir,
        Target::Evidence(path) => Some(path),
    }
}

/// Whether a path is the directory of a run.
pub(super) fn is_run(path: &Path) -> bool {
    matches!(Description::read(path), Ok(Some(_)))
}

/// Whether the run in a directory has certainly ended.
pub(super) fn is_over(dir: &Path) -> bool {
    matches!(Description::read(dir), Ok(Some(run)) if run.is_over())
}

/// The ranks that outlive a `run` that was killed.
#[derive(Debug)]
pub(super) struct Orphans {
    run_dir: PathBuf,
    /// By rank; not empty.
    pub(super) ranks: Vec<Orphan>,
}

impl Orphans {
    /// The ranks of the run that the target names, or of the newest run.
    pub(super) fn find(target: Option<&str>) -> Option<Self> {
        let without = Credentials::default();
        let Ok(Target::Evidence(run_dir)) = Target::find(target, &without) else {
            return None;
        };
        let ranks = orphans::find(Path::new(private::SHARED_MEMORY), &run_dir);
        (is_over(&run_dir) && !ranks.is_empty()).then_some(Self { run_dir, ranks })
    }
}

impl fmt::Display for Orphans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranks: Vec<u32> = self.ranks.iter().map(|it| it.rank).collect();
        write!(
            f,
            "{} {} alive, but the run in {dir} was killed; ddp-doctor coordinator --attach {dir} \
             diagnoses {}",
            begin(Ranks(&ranks)),
            number(&ranks, "is", "are"),
            number(&ranks, "it", "them"),
            dir = word(&self.run_dir),
        )
    }
}

/// Address of an active job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Live {
    /// Address of its coordinator.
    pub(super) address: Address,
    /// Job id; empty: the newest job of the coordinator.
    pub(super) job: String,
}

impl Live {
    /// Message about a coordinator that did not answer in time.
    pub(super) fn no_answer(&self, limit: Duration) -> String {
        let limit = limit.as_secs();
        format!("no answer from the coordinator at {} within {limit} s", self.address)
    }

    /// Resolves an argument: `HOST:PORT` is a coordinator, a directory is a run. Without an
    /// argument, selects the newest active run of this user on this machine, or the coordinator in
    /// the environment.
    pub(super) fn find(target: Option<&str>, credentials: &Credentials) -> anyhow::Result<Self> {
        let Some(target) = target else {
            let found = newest(&default_run_dirs());
            // Jobs that `run` did not start report to a standing coordinator.
            return match (found, std::env::var(environment::COORDINATOR)) {
                (None, Ok(address)) => Self::at(&address, credentials),
                (found, _) => newest_live(found, credentials),
            };
        };
        let path = Path::new(target);
        if is_path(path) {
            let found = input_files::reach(path).and_then(|it| it.metadata());
            if found.with_context(|| format!("cannot read {}", word(path)))?.is_dir() {
                return of_run_dir(path, credentials);
            }
            bail!("{target} is neither a run directory nor HOST:PORT");
        }
        if !target.contains(':') {
            bail!("{target}: there is no such file or directory, and it is not HOST:PORT");
        }
        Self::at(target, credentials)
    }

    /// The newest job of the coordinator at an address.
    fn at(address: &str, credentials: &Credentials) -> anyhow::Result<Self> {
        Ok(Self { address: Address::parse(address, credentials)?, job: String::new() })
    }

    /// States to root whose coordinator it uses.
    pub(super) fn state_other_owner(&self) {
        let address = &self.address;
        if let Some(owner) = address.other_owner() {
            say(format_args!("{address} belongs to user {owner}"));
        }
    }
}

fn of_run_dir(path: &Path, credentials: &Credentials) -> anyhow::Result<Live> {
    let dir = Dir::open(path).with_context(|| format!("cannot read {}", word(path)))?;
    of_open_run_dir(&dir, credentials)
}

/// The job of a run directory. Another user may exchange what the path leads to: description, owner and identity are those
/// of the open directory.
fn of_open_run_dir(dir: &Dir, credentials: &Credentials) -> anyhow::Result<Live> {
    let shown = word(dir.path());
    let cannot_read = || format!("cannot read {shown}");
    let owner = dir.status().with_context(cannot_read)?.owner();
    let is_ours = owner == files::user_id();
    let original = if is_ours { Description::of_original(dir) } else { None };
    let is_original = original.is_some();
    let found = match original {
        None => Description::of_any(dir).with_context(cannot_read)?,
        original => original,
    };
    let Some(run) = found else {
        bail!("{shown} is not a run directory: it contains no valid {}", names::DESCRIPTION);
    };
    if run.is_over() {
        bail!("the run in {shown} has ended; ddp-doctor analyze {shown} shows its diagnosis");
    }
    // Whoever wrote a copy chooses neither a host, nor a service of this user that gets a request, nor which of this
    // user's coordinators is shown as that of the copy. Of a directory of another user, only root can use the sockets:
    // those where that user's runs put them. No other path is looked up, which could mount the directory of another host.
    let describes = is_ours && run.describes(dir);
    let is_safe = |address: &str| {
        let is_theirs = || files::user_id() == 0 && Address::is_socket_of(address, owner);
        describes && Address::is_loopback(address) || !is_ours && is_theirs()
    };
    if let Some(address) = run.coordinator.as_deref().filter(|it| !is_original && !is_safe(it)) {
        let why = "but it was moved or copied, or another user may have written that";
        match split(address) {
            Some(_) => bail!(
                "the run in {shown} names the coordinator {address}, {why}: name the address to connect to it \
                 (ddp-doctor status {address})"
            ),
            None => bail!(
                "the run in {shown} names a coordinator, {why}; ddp-doctor analyze {shown} shows its diagnosis"
            ),
        }
    }
    let live = live(run, owner, credentials)?;
    live.with_context(|| {
        format!(
            "the run in {shown} has no coordinator; ddp-doctor analyze {shown} shows its diagnosis"
        )
    })
}

/// The job of a run whose directory belongs to `owner`.
fn live(run: Description, owner: u32, credentials: &Credentials) -> anyhow::Result<Option<Live>> {
    let Some(address) = run.coordinator else {
        return Ok(None);
    };
    let address = Address::parse(&address, credentials)?.owned_by(owner);
    Ok(Some(Live { address, job: run.job }))
}

/// The run in a directory, if this user made both, and the directory is not a copy: the description in a downloaded one
/// is somebody else's.
fn own_run(dir: &Path) -> Option<Description> {
    let dir = dir.to_owned();
    let read = move || {
        let dir = Dir::open_own(&dir).ok()?;
        Description::of_own(&dir).ok()?.filter(|run| run.describes(&dir))
    };
    sys::within(MAX_READ, read)?
}

/// The newest active run among these, if it has a coordinator.
fn newest(run_dirs: &[PathBuf]) -> Option<Description> {
    let runs = run_dirs.iter().filter_map(|dir| own_run(dir));
    let active = runs.filter(Description::is_running_here);
    let newest = active.max_by_key(|run| run.started_at.unwrap_or(Timestamp(0)));
    newest.filter(|run| run.coordinator.is_some())
}

fn newest_live(newest: Option<Description>, credentials: &Credentials) -> anyhow::Result<Live> {
    let live = newest.map(|run| live(run, files::user_id(), credentials)).transpose()?;
    live.flatten().with_context(|| no_run("active on this machine"))
}

/// Message about a missing run. Jobs that were started without ddp-doctor are named.
fn no_run(is: &str) -> String {
    let others: Vec<String> = jobs_of(sys::user_id())
        .iter()
        .take(MAX_JOBS)
        .filter_map(|job| {
            let pid = job.ranks.first()?.pid;
            let ranks = job.ranks.iter().map(|it| it.rank).collect::<Vec<_>>();
            Some(format!("{} (pid {pid})", Ranks(&ranks)))
        })
        .collect();
    let other = match &others[..] {
        [] => String::new(),
        others => format!(
            ", but a job without ddp-doctor is running, {}: `ddp-doctor attach` diagnoses it",
            others.join("; ")
        ),
    };
    format!(
        "no run of this user is {is}{other}; name its run directory, or the coordinator address that \
         `ddp-doctor run` printed"
    )
}

/// The directory of the newest run of this user on this machine.
pub(in super::super) fn newest_run() -> anyhow::Result<PathBuf> {
    let runs =
        default_run_dirs().into_iter().filter_map(|dir| Some((own_run(&dir)?.started_at, dir)));
    let newest = runs.max_by_key(|(started, _)| started.unwrap_or_default());
    newest.map(|(_, dir)| dir).with_context(|| no_run("found"))
}

/// Directories in which runs of this user may be, for commands without TARGET. Of what is read from them afterwards, only
/// files of this user count: in a folder of another user, that user can exchange a run directory at any time.
fn default_run_dirs() -> Vec<PathBuf> {
    input_files::accept_only_own();
    run_dirs(Path::new(private::SHARED_MEMORY), Path::new(names::RUNS))
}

/// Directories in which runs of this user may be active. Those of other users are left out when they are opened.
fn run_dirs(shared_memory: &Path, runs: &Path) -> Vec<PathBuf> {
    let mut dirs = BoxDir::run_dirs(shared_memory);
    let runs = runs.to_owned();
    dirs.extend(sys::within(MAX_READ, move || own_entries(&runs)).unwrap_or_default());
    dirs
}

/// Directories of this user in a folder, in which others may be able to create any number of entries.
fn own_entries(folder: &Path) -> Vec<PathBuf> {
    let Ok(folder) = Dir::open(folder) else { return Vec::new() };
    let is_own = |name: &OsString| {
        folder.status_of(name).is_ok_and(|it| it.is_dir() && it.owner() == files::user_id())
    };
    let names = folder.names().unwrap_or_default();
    names.into_iter().filter(is_own).map(|name| folder.path().join(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::proc;
    use crate::host::sys;

    fn run(dir: &Path, name: &str, pid: u32, started: u64) -> PathBuf {
        let dir = dir.join(name);
        std::fs::create_dir_all(&dir).unwrap();
        let start_ticks = proc::Stat::read(pid).map_or(1, |stat| stat.start_ticks);
        let it = serde_json::json!({
            "job": name, "host": sys::host_name(), "boot_id": proc::boot_id(), "pid": pid,
            "start_ticks": start_ticks, "coordinator": format!("127.0.0.1:{started}"),
            "started_at": Timestamp(started * 1_000_000_000),
        });
        names::write_description(&Dir::open(&dir).unwrap(), it).unwrap();
        dir
    }

    #[test]
    fn copy_of_a_run_directory_is_not_a_run_of_this_user() {
        let place = tempfile::tempdir().unwrap();
        let original = run(place.path(), "original", std::process::id(), 1);
        let copy = place.path().join("copy");
        std::fs::create_dir(&copy).unwrap();
        std::fs::copy(original.join(names::DESCRIPTION), copy.join(names::DESCRIPTION)).unwrap();
        assert_eq!(own_run(&original).unwrap().job, "original");
        assert!(own_run(&copy).is_none());
    }

    #[test]
    fn copy_selects_no_coordinator() {
        let place = tempfile::tempdir().unwrap();
        for address in ["unix:/run/user/0/agent", "far:7077", "127.0.0.1:7077"] {
            let dir = run(place.path(), "copied", std::process::id(), 1);
            let file = dir.join(names::DESCRIPTION);
            let text = std::fs::read_to_string(&file).unwrap();
            let mut described: serde_json::Value = serde_json::from_str(&text).unwrap();
            described["coordinator"] = address.into();
            described["directory"] = serde_json::Value::Null;
            std::fs::write(&file, described.to_string()).unwrap();
            let found = of_run_dir(&dir, &Credentials::default());
            let error = found.err().unwrap().to_string();
            assert!(error.contains("but it was moved or copied"), "{address}: {error}");
        }
    }

    #[test]
    fn description_is_that_of_the_directory_whose_owner_counts() {
        let place = tempfile::tempdir().unwrap();
        let opened = run(place.path(), "opened", std::process::id(), 1);
        let other = run(place.path(), "other", std::process::id(), 2);
        let dir = Dir::open(&opened).unwrap();
        std::fs::rename(&opened, place.path().join("away")).unwrap();
        std::fs::rename(other, &opened).unwrap();
        // It has another path than the one that its seal is for.
        let error = of_open_run_dir(&dir, &Credentials::default()).err().unwrap().to_string();
        assert!(error.contains("the coordinator 127.0.0.1:1, but it was moved"), "{error}");
    }

    #[test]
    fn folder_named_like_an_address_is_not_a_target() {
        let place = tempfile::tempdir().unwrap();
        for name in ["unix:", "127.0.0.1:7077"] {
            let folder = place.path().join(name);
            std::fs::create_dir(&folder).unwrap();
            assert!(is_path(&folder));
        }
        // The working directory of tests is that of the package.
        let folder = tempfile::Builder::new().prefix("unix:").tempdir_in(".").unwrap();
        let name = Path::new(folder.path().file_name().unwrap());
        assert!(name.exists() && !is_path(name) && is_path(&Path::new(".").join(name)));
    }

    #[test]
    fn entries_of_other_users_are_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let (own, foreign) = (dir.path().join("own"), dir.path().join("foreign"));
        std::fs::create_dir(&own).unwrap();
        std::fs::create_dir(&foreign).unwrap();
        std::os::unix::fs::symlink(&own, dir.path().join("link")).unwrap();
        if files::user_id() == 0 {
            std::os::unix::fs::chown(&foreign, Some(4001), None).unwrap();
        } else {
            std::fs::remove_dir(&foreign).unwrap();
        }
        assert_eq!(own_entries(dir.path()), [own]);
    }

    #[test]
    fn newest_active_run_is_selected() {
        let dir = tempfile::tempdir().unwrap();
        let (us, nobody) = (std::process::id(), u32::MAX);
        let old = run(dir.path(), "old", us, 1);
        let new = run(dir.path(), "new", us, 2);
        let over = run(dir.path(), "over", nobody, 3);
        std::fs::create_dir(dir.path().join("empty")).unwrap();
        let none = Credentials::default();
        let newest = |dirs: &[PathBuf]| newest_live(newest(dirs), &none);
        let found = newest(&run_dirs(&dir.path().join("no"), dir.path())).unwrap();
        assert_eq!(
            (found.job.as_str(), found.address.to_string().as_str()),
            ("new", "127.0.0.1:2")
        );
        assert_eq!(newest(&[old, over.clone()]).unwrap().job, "old");
        let error = newest(std::slice::from_ref(&over)).unwrap_err().to_string();
        assert!(error.contains("name its run directory"), "{error}");
        let error = Live::find(over.to_str(), &none).unwrap_err().to_string();
        assert!(error.contains("has ended"), "{error}");
        assert_eq!(Live::find(new.to_str(), &none).unwrap().job, "new");
    }

    #[test]
    fn ended_run_can_be_viewed() {
        let dir = tempfile::tempdir().unwrap();
        let (us, nobody) = (std::process::id(), u32::MAX);
        let over = run(dir.path(), "over", nobody, 3);
        assert!(is_over(&over));
        let left = Target::Evidence(over.clone());
        let none = Credentials::default();
        let newest = |dirs: &[PathBuf]| Target::newest(dirs, &none);
        assert_eq!(newest(std::slice::from_ref(&over)).unwrap(), left);
        assert_eq!(Target::find(over.to_str(), &none).unwrap(), left);
        let on = run(dir.path(), "on", us, 1);
        let Target::Live(live, at) = newest(&[over, on.clone()]).unwrap() else {
            panic!("the active run is first");
        };
        assert_eq!((live.job.as_str(), at), ("on", Some(on)));
        assert!(newest(&[]).is_err());
    }

    #[test]
    fn invalid_target_is_rejected_with_a_reason() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().to_str().unwrap();
        let nowhere = Credentials { file: Some(dir.path().join("token")), can_ask: false };
        for (target, reason) in [
            (path, "is not a run directory"),
            ("nonsense", "no such file or directory, and it is not HOST:PORT"),
            ("/dev/null", "neither a run directory nor HOST:PORT"),
            ("192.0.2.1:7077", "needs a token"),
            ("127.0.0.1:notaport", "is not an address"),
        ] {
            let error = format!("{:#}", Live::find(Some(target), &nowhere).unwrap_err());
            assert!(error.contains(reason), "{error}");
        }
        let local = Live::find(Some("127.0.0.1:7077"), &nowhere).unwrap();
        assert_eq!(
            (local.address.to_string().as_str(), local.job.as_str()),
            ("127.0.0.1:7077", "")
        );
    }
}
