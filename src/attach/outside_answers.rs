//! The child process that reads processes of other users ([`super::outside`]).

use std::io::{self, BufRead, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use prost::Message;

use super::outside::{Question, Request};
use super::{find, ras, sample};
use crate::host::proc;
use crate::node::stack_reader::native::FunctionCache;

/// Answers questions until the input ends.
///
/// # Errors
///
/// If the input cannot be read.
pub fn serve(input: impl BufRead, output: impl Write + Send + 'static) -> io::Result<()> {
    let cache = Arc::new(FunctionCache::default());
    let output = Arc::new(Mutex::new(output));
    for line in input.lines() {
        let request: Request = serde_json::from_str(&line?)?;
        let (cache, output) = (Arc::clone(&cache), Arc::clone(&output));
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

impl Request {
    fn answer(&self, cache: &FunctionCache) -> Vec<u8> {
        let pid = self.pid;
        let json = match self.question {
            Question::Rank => serde_json::to_vec(&find::environment_of_rank(pid)),
            Question::Stacks { start_ticks } => {
                return sample::stacks_of(pid, start_ticks, cache).encode_to_vec();
            }
            Question::NcclVersion => serde_json::to_vec(&ras::version_in(pid)),
            Question::Arguments => serde_json::to_vec(&proc::arguments(pid)),
        };
        json.unwrap_or_default()
    }
}
