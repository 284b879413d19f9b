//! The current environment of a process.
//!
//! `/proc/PID/environ` shows the environment with which a program was started. Ranks that were forked, or that
//! set their own variables, differ from it: their current variables are in their memory, where the C library's
//! `environ` points.

use std::collections::BTreeMap;

use ddp_doctor_diagnosis::input::settings;
use ddp_doctor_host::proc;
use ddp_doctor_node::flight_recorder;
use ddp_doctor_node::stack_reader::elf::Image;
use ddp_doctor_node::stack_reader::maps::{self, Loaded};
use ddp_doctor_node::stack_reader::memory::{Fault, Memory, Pages, ProcessMemory, at};
use serde::{Deserialize, Serialize};

/// Maximum number of variables that are looked at.
const MAX_VARIABLES: u64 = 4096;
/// Maximum length of a name, and of a variable, in bytes.
const MAX_NAME: usize = 64;
const MAX_LENGTH: usize = 1024;
/// Maximum length of all variables that are kept of a process, in bytes.
const MAX_KEPT: usize = 32 << 10;

/// Variables that identify ranks, jobs, where they meet, and their Flight Recorders.
const USED: [&str; 32] = [
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "OMPI_MCA_ess_base_jobid",
    "PMI_RANK",
    "PMI_SIZE",
    "PMIX_NAMESPACE",
    "MPI_LOCALRANKID",
    "MPI_LOCALNRANKS",
    "SLURM_PROCID",
    "SLURM_NTASKS",
    "SLURM_LOCALID",
    "SLURM_NTASKS_PER_NODE",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_STEP_NODELIST",
    "SLURM_JOB_NODELIST",
    "SLURM_NODELIST",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "DDP_DOCTOR_JOB",
    "NCCL_RAS_ADDR",
    flight_recorder::PIPE,
    flight_recorder::FILES[0],
    flight_recorder::FILES[1],
];

/// The variables of a process that say something about its job.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Environment(BTreeMap<String, String>);

/// Whether the diagnosis of a job uses a variable. The others are not read.
fn is_used(name: &str) -> bool {
    USED.contains(&name) || settings::must_agree(name)
}

impl Environment {
    /// The current variables of a process, or those of its start if its memory may not be read.
    ///
    /// For a process of another user they are those of its start, which the kernel reads: that user decides what
    /// reading its memory costs, and when it ends (a page of a FUSE file).
    #[must_use]
    pub fn read(pid: u32) -> Self {
        let memory = || current(pid).filter(|it| !it.0.is_empty());
        let current = if proc::is_own(pid) { memory() } else { None };
        current.unwrap_or_else(|| proc::environment(pid).iter().map(String::as_str).collect())
    }

    /// Adds a variable, "NAME=value", if it is used and there is room.
    fn add(&mut self, variable: &str) {
        let Some((name, value)) = variable.split_once('=').filter(|(name, _)| is_used(name)) else {
            return;
        };
        let kept: usize = self.0.iter().map(|(name, value)| name.len() + value.len()).sum();
        if variable.len() <= MAX_LENGTH && kept + variable.len() <= MAX_KEPT {
            self.0.insert(name.to_owned(), value.to_owned());
        }
    }

    /// Takes over where the ranks of another process meet.
    pub(super) fn meet_at(&mut self, other: &Self) {
        for name in ["MASTER_ADDR", "MASTER_PORT"] {
            if let Some(value) = other.0.get(name) {
                self.0.insert(name.to_owned(), value.clone());
            }
        }
    }

    /// A variable that is not empty.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|it| !it.is_empty())
    }

    /// A variable that is a number.
    #[must_use]
    pub fn number(&self, name: &str) -> Option<u32> {
        self.get(name)?.trim().parse().ok()
    }

    /// All variables, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

impl<'a> FromIterator<&'a str> for Environment {
    fn from_iter<T: IntoIterator<Item = &'a str>>(variables: T) -> Self {
        let mut environment = Self::default();
        variables.into_iter().for_each(|it| environment.add(it));
        environment
    }
}

#[cfg(test)]
impl FromIterator<(&'static str, &'static str)> for Environment {
    fn from_iter<T: IntoIterator<Item = (&'static str, &'static str)>>(pairs: T) -> Self {
        Self(pairs.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

/// The variables in the memory of a process; `None` if they cannot be read.
fn current(pid: u32) -> Option<Environment> {
    let memory = ProcessMemory::open(pid).ok()?;
    let images = maps::images(pid).ok()?;
    let program = maps::program(pid);
    let mut pages = Pages::new(&memory);
    // A program that refers to `environ` has the variable itself; the C library then uses that one.
    let is_program = |image: &&Loaded| Some(&image.path) == program.as_ref();
    let is_libc = |image: &&Loaded| {
        let name = image.file_name();
        name.starts_with("libc.so") || name.starts_with("libc-") || name.starts_with("ld-musl")
    };
    let candidates = images.iter().filter(is_program).chain(images.iter().filter(is_libc));
    let mut symbols = candidates.filter_map(|image| {
        let image = Image::at(&mut pages, image.start).ok()?;
        image.symbol(&mut pages, "environ").ok()?
    });
    let places: Vec<u64> = symbols.by_ref().collect();
    places.into_iter().find_map(|place| {
        let variables = read(&mut pages, place).ok()?;
        (!variables.0.is_empty()).then_some(variables)
    })
}

fn read<M: Memory>(pages: &mut Pages<'_, M>, place: u64) -> Result<Environment, Fault> {
    let list = pages.u64(place)?;
    let mut variables = Environment::default();
    if list == 0 {
        return Ok(variables);
    }
    for index in 0..MAX_VARIABLES {
        let text = pages.u64(at(list, 8 * index)?)?;
        if text == 0 {
            break;
        }
        let name = until(pages, text, b"=\0", MAX_NAME)?;
        if is_used(&name) {
            variables.add(&until(pages, text, b"\0", MAX_LENGTH + 1)?);
        }
    }
    Ok(variables)
}

/// Reads a text up to one of these bytes, or up to a length.
fn until<M: Memory>(
    pages: &mut Pages<'_, M>,
    start: u64,
    ends: &[u8],
    limit: usize,
) -> Result<String, Fault> {
    let mut bytes = Vec::new();
    while bytes.len() < limit {
        let mut byte = [0];
        pages.bytes(at(start, bytes.len() as u64)?, &mut byte)?;
        if ends.contains(&byte[0]) {
            break;
        }
        bytes.extend(byte);
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
pub(super) mod tests {
    use std::io::Read;
    use std::process::{Command, Stdio};

    use super::*;

    /// What `read` returns for the pid of a program that was started with these variables.
    pub(crate) fn with_program<T>(variables: &[(&str, &str)], read: impl FnOnce(u32) -> T) -> T {
        let mut command = Command::new("sh");
        command.args(["-c", "echo; read line"]).envs(variables.iter().copied());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        // Only once it prints are its variables in /proc and known to its C library.
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let read = read(child.id());
        child.kill().unwrap();
        child.wait().unwrap();
        read
    }

    fn of_program(variables: &[(&str, &str)]) -> (Environment, Option<Environment>) {
        with_program(variables, |pid| (Environment::read(pid), current(pid)))
    }

    #[test]
    fn variables_of_the_job_are_read() {
        let (environment, in_memory) =
            of_program(&[("MASTER_ADDR", "a=b"), ("NCCL_ALGO", "Ring"), ("SECRET", "x")]);
        for environment in [environment, in_memory.unwrap()] {
            assert_eq!(environment.get("MASTER_ADDR"), Some("a=b"));
            assert_eq!(environment.get("NCCL_ALGO"), Some("Ring"));
            // Variables that no diagnosis uses are not kept.
            assert_eq!((environment.get("SECRET"), environment.get("PATH")), (None, None));
        }
        assert!(Environment::read(u32::MAX).0.is_empty());
    }

    #[test]
    fn size_is_bounded() {
        let long = "x".repeat(MAX_LENGTH);
        let owned: Vec<(String, &str)> =
            (0..1000).map(|number| (format!("NCCL_{number}"), &long[..MAX_LENGTH - 64])).collect();
        let mut variables: Vec<(&str, &str)> =
            owned.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        variables.push(("RANK", &long));
        let (environment, in_memory) = of_program(&variables);
        for environment in [environment, in_memory.unwrap()] {
            let size: usize =
                environment.iter().map(|(name, value)| name.len() + value.len()).sum();
            assert!(size <= MAX_KEPT && size > MAX_KEPT - MAX_LENGTH, "{size}");
            assert_eq!(environment.get("RANK"), None);
        }
    }

    #[test]
    fn empty_variables_are_unset() {
        let environment: Environment = [("RANK", "3"), ("WORLD_SIZE", "")].into_iter().collect();
        assert_eq!((environment.number("RANK"), environment.number("WORLD_SIZE")), (Some(3), None));
    }
}
