//! The child process that reads processes of other users ([`super`]).

use std::collections::HashMap;
use std::io::{self, BufRead, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use ddp_doctor_host::proc;
use ddp_doctor_node::stack_reader::native::FunctionCache;
use prost::Message;

use super::{Question, Request};
use crate::environment::Environment;
use crate::find::spawned::Stated;
use crate::rank_facts::Contents;
use crate::{find, sample};

/// Answers questions until the input ends.
///
/// # Errors
///
/// If the input cannot be read.
pub fn serve(input: impl BufRead, output: impl Write + Send + 'static) -> io::Result<()> {
    let caches = CachesByUser::default();
    let output = Arc::new(Mutex::new(output));
    for line in input.lines() {
        let request: Request = serde_json::from_str(&line?)?;
        let (cache, output) = (caches.cache_of(request.pid), Arc::clone(&output));
        let answer = move || {
            let answer = request.answer(&cache);
            let Ok(length) = u32::try_from(answer.len()) else { return };
            let head = [request.id.to_le_bytes(), length.to_le_bytes()];
            let message = [head.as_flattened(), &answer].concat();
            let mut output = output.lock().unwrap_or_else(PoisonError::into_inner);
            // Without a reader, nobody waits for the answer.
            drop(output.write_all(&message).and_then(|()| output.flush()));
        };
        // Without a thread there is no answer.
        drop(thread::Builder::new().spawn(answer));
    }
    Ok(())
}

/// A cache for each user, since names are read from memory, which its user can change.
#[derive(Debug, Default)]
struct CachesByUser(Mutex<HashMap<u32, Arc<FunctionCache>>>);

impl CachesByUser {
    /// Maximum number of users with a cache.
    const MAX: usize = 64;

    /// The cache of the user of a process.
    fn cache_of(&self, pid: u32) -> Arc<FunctionCache> {
        let mut caches = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let has_room = caches.len() < Self::MAX;
        match proc::owner(pid) {
            Some(user) if has_room || caches.contains_key(&user) => {
                Arc::clone(caches.entry(user).or_default())
            }
            _ => Arc::default(),
        }
    }
}

impl Request {
    fn answer(&self, cache: &FunctionCache) -> Vec<u8> {
        let pid = self.pid;
        let json = match self.question {
            Question::Rank => serde_json::to_vec(&find::candidate_facts(pid)),
            Question::Environment => serde_json::to_vec(&Environment::read(pid)),
            Question::Frames => serde_json::to_vec(&Stated::read(pid)),
            Question::Stacks { start_ticks } => {
                return sample::stacks_of(pid, start_ticks, cache).encode_to_vec();
            }
            Question::Contents => serde_json::to_vec(&Contents::read(pid)),
            Question::Arguments => serde_json::to_vec(&proc::arguments(pid)),
        };
        json.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    use super::*;
    use ddp_doctor_host::sys;

    #[test]
    fn users_share_no_cache() {
        if sys::user_id() != 0 {
            return; // only root starts processes of other users
        }
        let sleep = |user| Command::new("sleep").arg("30").uid(user).spawn().unwrap();
        let mut processes = [sleep(65533), sleep(65534), sleep(65534)];
        let caches = CachesByUser::default();
        let [one, other, same] = [0, 1, 2].map(|it: usize| caches.cache_of(processes[it].id()));
        processes.iter_mut().for_each(|it| {
            it.kill().unwrap();
            it.wait().unwrap();
        });
        assert!(!Arc::ptr_eq(&one, &other) && Arc::ptr_eq(&other, &same));
    }
}
