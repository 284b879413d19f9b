//! The current environment of a process.
//!
//! `/proc/PID/environ` shows the environment with which a program was started. Ranks that were forked, or that
//! set their own variables, differ from it: their current variables are in their memory, where the C library's
//! `environ` points.

use std::collections::BTreeMap;

use crate::node::sample::proc;
use crate::node::stacks::elf::Image;
use crate::node::stacks::maps::{self, Loaded};
use crate::node::stacks::memory::{Fault, Memory, Pages, ProcessMemory, at};

/// Maximum number of variables that are read.
const MAX_VARIABLES: u64 = 4096;
/// Maximum length of a variable, in bytes.
const MAX_LENGTH: usize = 8192;

/// The variables of a process.
#[derive(Clone, Debug, Default)]
pub struct Environment(BTreeMap<String, String>);

impl Environment {
    /// The current variables of a process, or those of its start if its memory cannot be read.
    #[must_use]
    pub fn of(pid: u32) -> Self {
        let started = proc::environment(pid);
        Self::parse(current(pid).filter(|it| !it.is_empty()).unwrap_or(started))
    }

    fn parse(variables: Vec<String>) -> Self {
        let pairs = variables.into_iter().filter_map(|it| {
            let (name, value) = it.split_once('=')?;
            Some((name.to_owned(), value.to_owned()))
        });
        Self(pairs.collect())
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

#[cfg(test)]
impl FromIterator<(&'static str, &'static str)> for Environment {
    fn from_iter<T: IntoIterator<Item = (&'static str, &'static str)>>(pairs: T) -> Self {
        Self(pairs.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

/// The variables in the memory of a process; `None` if they cannot be read.
fn current(pid: u32) -> Option<Vec<String>> {
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
    let mut places = candidates.filter_map(|image| {
        let image = Image::at(&mut pages, image.start).ok()?;
        image.symbol(&mut pages, "environ").ok()?
    });
    let places: Vec<u64> = places.by_ref().collect();
    places.into_iter().find_map(|place| {
        let variables = read(&mut pages, place).ok()?;
        (!variables.is_empty()).then_some(variables)
    })
}

fn read<M: Memory>(pages: &mut Pages<'_, M>, place: u64) -> Result<Vec<String>, Fault> {
    let list = pages.u64(place)?;
    let mut variables = Vec::new();
    if list == 0 {
        return Ok(variables);
    }
    for index in 0..MAX_VARIABLES {
        let text = pages.u64(at(list, 8 * index)?)?;
        if text == 0 {
            break;
        }
        variables.push(string(pages, text)?);
    }
    Ok(variables)
}

/// Reads a string that ends with a zero byte.
pub(super) fn string<M: Memory>(pages: &mut Pages<'_, M>, start: u64) -> Result<String, Fault> {
    let mut bytes = Vec::new();
    while bytes.len() < MAX_LENGTH {
        let mut byte = [0];
        pages.bytes(at(start, bytes.len() as u64)?, &mut byte)?;
        if byte == [0] {
            break;
        }
        bytes.extend(byte);
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn environment_of_this_process_is_read() {
        let environment = Environment::of(std::process::id());
        assert_eq!(environment.get("PATH"), std::env::var("PATH").ok().as_deref());
        assert!(current(std::process::id()).is_some_and(|it| !it.is_empty()));
        assert!(Environment::of(u32::MAX).get("PATH").is_none());
    }

    #[test]
    fn empty_variables_are_unset() {
        let environment: Environment = [("RANK", "3"), ("WORLD_SIZE", "")].into_iter().collect();
        assert_eq!((environment.number("RANK"), environment.number("WORLD_SIZE")), (Some(3), None));
    }
}
