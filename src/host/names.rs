//! Names of jobs and run directories.

use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_proto::v1;
use rustix::fs::{fstatfs, fstatvfs};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::files::Dir;
use crate::{input_files, proc, seal};

/// The type of XFS, as `statfs` states it (`XFS_SUPER_MAGIC`).
const XFS: rustix::fs::FsWord = 0x5846_5342;

/// Default parent of run directories.
pub const RUNS: &str = "ddp-doctor-runs";
/// File of a run directory that describes the run.
pub const DESCRIPTION: &str = "run.json";
/// Field of that file that shows that a run of this user wrote it.
pub(crate) const SEAL: &str = "seal";
/// Beginning of the names of files in a run directory with what PyTorch's Flight Recorder recorded; the rank follows.
pub const DUMP: &str = "flight_recorder_rank_";
/// Maximum length of a job id: the room in a black box, less the suffixes of file names.
const MAX_JOB: usize = 96;

/// Generates a job id that is short and unique in practice.
#[must_use]
pub fn new_job() -> String {
    let seconds = Timestamp::now().0 / 1_000_000_000;
    // The random keys of a hash map are sufficient here.
    let random = RandomState::new().build_hasher().finish() ^ u64::from(std::process::id());
    format!("{}-{}", base_36(seconds % 36_u64.pow(5), 5), base_36(random % 36_u64.pow(4), 4))
}

/// Generates the id of a job that begins with the name of its script: "train-p75f9-cb1a".
#[must_use]
pub fn job_of(command: &[OsString]) -> String {
    /// Maximum length of the name of the script in it.
    const MAX_NAME: usize = 24;
    let words = proc::without_secrets(
        command.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
    );
    // A shell gets a whole command as one argument. What is assigned in it, and an address, may be a secret.
    let separate = words.iter().flat_map(|it| it.split_whitespace());
    let words: Vec<&str> = separate.filter(|it| !it.contains('=') && !it.contains("://")).collect();
    let script = words.iter().find(|word| word.ends_with(".py"));
    let module = words.windows(2).find(|two| two[0] == "-m").map(|two| &two[1]);
    let word = script.or(module).or(words.first()).map_or("", |word| *word);
    let path = Path::new(word);
    let os_name = if script.is_some() { path.file_stem() } else { path.file_name() };
    let stem = os_name.unwrap_or_default().to_string_lossy();
    // Of a module, the last part of its name.
    let name: String = stem.rsplit('.').next().unwrap_or_default().chars().take(MAX_NAME).collect();
    match name.trim_matches(|c: char| !c.is_ascii_alphanumeric()) {
        "" => new_job(),
        name => file_name(&format!("{name}-{}", new_job())),
    }
}

/// Converts a name to a file name, without separators and leading dots, and of limited length.
#[must_use]
pub fn file_name(name: &str) -> String {
    let keep = |c: char| {
        if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' }
    };
    let name: String = name.chars().map(keep).take(MAX_JOB).collect();
    match name.trim_start_matches('.') {
        "" => new_job(),
        name => name.to_owned(),
    }
}

/// Name of the run directory of a job.
#[must_use]
pub fn run_dir(job: &str, started: Timestamp) -> String {
    // 2026-01-31T12:00:00.000Z → 20260131T120000
    let time: String =
        started.to_string().chars().filter(|c| !"-:".contains(*c)).take(15).collect();
    format!("{job}-{time}")
}

/// 0-based number of this start of the job, from the launcher or the batch system.
#[must_use]
pub fn attempt() -> u32 {
    let variables = ["DDP_DOCTOR_ATTEMPT", "SLURM_RESTART_COUNT"];
    let values = variables.iter().filter_map(|name| std::env::var(name).ok());
    values.filter_map(|value| value.parse().ok()).next().unwrap_or(0)
}

/// Writes `run.json`, by which viewers find this run while it is active.
///
/// # Errors
///
/// If it cannot be written.
pub fn describe(
    dir: &Dir,
    hello: &v1::Hello,
    coordinator: Option<&str>,
    source_folders: &[PathBuf],
) -> io::Result<()> {
    let pid = std::process::id();
    let description = serde_json::json!({
        "job": hello.job,
        "attempt": hello.attempt,
        "host": hello.host,
        "boot_id": hello.boot_id,
        "pid": pid,
        "start_ticks": proc::Stat::read(pid)?.start_ticks,
        "coordinator": coordinator,
        "started_at": Timestamp(hello.started_unix_ns),
        "command": hello.command,
        "tool_version": hello.tool_version,
        "source_folders": source_folders.iter().filter_map(|it| it.to_str()).collect::<Vec<_>>(),
    });
    write_description(dir, description)
}

/// Writes `run.json` with the identity of the directory and the seal of this user for this directory.
///
/// # Errors
///
/// If it cannot be written.
pub fn write_description(dir: &Dir, mut description: Value) -> io::Result<()> {
    let directory = dir.readable()?;
    let identity = DirectoryIdentity::new(&directory.metadata()?);
    description["directory"] = serde_json::to_value(identity)?;
    let sealed = sealed_text(&description.to_string(), &directory);
    if let Some(seal) = sealed.ok().and_then(|it| seal::seal(&it)) {
        description[SEAL] = seal.into();
    }
    dir.replace(DESCRIPTION.as_ref(), format!("{description:#}\n").as_bytes())
}

/// The text that a seal is of: a description, with the path and the file system of its directory, which the description
/// does not state. Whoever has a copy can make a disk with a directory of that number and time of creation.
pub(crate) fn sealed_text(description: &str, directory: &File) -> io::Result<String> {
    // On XFS, the id of a file system is the number of its device, which can differ after a restart.
    let is_xfs = fstatfs(directory)?.f_type == XFS;
    let system = if is_xfs { 0 } else { fstatvfs(directory)?.f_fsid };
    let path = input_files::path_of(directory)?;
    Ok(format!("{description}\n{system}\n{path:?}"))
}

/// What distinguishes a directory from its copies, and from directories that others made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectoryIdentity {
    inode: u64,
    /// Time of its creation, in nanoseconds since the Unix epoch; `None`: the file system does not record it.
    created_unix_ns: Option<u64>,
}

impl DirectoryIdentity {
    /// The identity of the directory with these metadata.
    #[must_use]
    pub fn new(directory: &Metadata) -> Self {
        let created = directory.created().ok();
        let since = created.and_then(|it| it.duration_since(UNIX_EPOCH).ok());
        let created_unix_ns = since.map(|it| it.as_nanos() as u64);
        Self { inode: directory.ino(), created_unix_ns }
    }
}

fn base_36(mut number: u64, digits: usize) -> String {
    let mut text = vec![b'0'; digits];
    for digit in text.iter_mut().rev() {
        *digit = b"0123456789abcdefghijklmnopqrstuvwxyz"[(number % 36) as usize];
        number /= 36;
    }
    String::from_utf8_lossy(&text).into_owned()
}

/// A path as one word of a command, for a shell.
#[must_use]
pub fn word(path: &Path) -> String {
    let text = path.to_string_lossy();
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+:@%=,".contains(c);
    if !text.is_empty() && !text.starts_with('-') && text.chars().all(is_plain) {
        return text.into_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shell_does_not_act_on_the_name_of_a_folder() {
        assert_eq!(word(Path::new("/runs/job-1_a")), "/runs/job-1_a");
        assert_eq!(word(Path::new("a b; $(x)")), "'a b; $(x)'");
        assert_eq!(word(Path::new("it's")), r"'it'\''s'");
        assert_eq!(word(Path::new("-rf")), "'-rf'");
    }

    #[test]
    fn names_are_safe_as_file_names() {
        assert_eq!(file_name("exp 1/../x"), "exp_1_.._x");
        assert_eq!(file_name("../../etc"), "_.._etc");
        assert!(file_name(&"x".repeat(500)).len() <= MAX_JOB);
        assert!(!file_name("...").is_empty());
        assert_eq!(base_36(35, 3), "00z");
        for (command, begin) in [
            (&["torchrun", "--nproc-per-node", "2", "src/train.py", "--lr", "1"][..], "train-"),
            (&["python", "-m", "project.training"], "training-"),
            (&["/usr/bin/mpirun", "./a.out"], "mpirun-"),
            (&["python", "été_1.py"], "t__1-"),
            (&["bash", "-c", "sleep 0 sk-SECRET123 train.py"], "train-"),
            (&["bash", "-c", "sleep 0 # https://u:pw@h/SECRET.py"], "bash-"),
            (&["bash", "-c", "X_WEBHOOK=https://h/T0/SECRET python3 train.py"], "train-"),
            (&["bash", "-c", "export HF_TOKEN=hf_SECRET; python3 src/train.py"], "train-"),
            (&["HF_TOKEN=hf_SECRET", "torchrun", "train.py"], "train-"),
        ] {
            let command: Vec<OsString> = command.iter().map(OsString::from).collect();
            let job = job_of(&command);
            assert!(job.starts_with(begin) && job.len() == begin.len() + 10, "{job}");
        }
        assert_ne!(new_job(), new_job());
        assert_eq!(run_dir("j", Timestamp(0)), "j-19700101T000000");
    }
}
