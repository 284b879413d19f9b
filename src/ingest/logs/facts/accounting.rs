//! Tables of Slurm's accounting, as `sacct` prints them: the states of a job and of its steps.

use std::sync::Arc;

use ddp_doctor_proto::report::Timestamp;

use super::{Facts, Statement, Subject};
use crate::logs::scan::{cut, until};

/// Columns that the header of such a table has.
const COLUMNS: [&str; 2] = ["JobID", "State"];
/// What separates columns: spaces, or bars with `--parsable`.
const BORDERS: [char; 2] = [' ', '|'];
const COMPLETED: &str = "COMPLETED";
/// Other states that say why a job ended, as far as a column of ten letters shows them, and what to do.
const STATES: [(&str, &str, &str); 6] = [
    (
        "OUT_OF_ME",
        "OUT_OF_MEMORY",
        "Request more memory (--mem), or run fewer processes on a node.",
    ),
    (
        "NODE_FAIL",
        "NODE_FAIL",
        "Find out which node failed (sacct -o NodeList,State, sinfo -R), and exclude it.",
    ),
    ("BOOT_FAIL", "BOOT_FAIL", "Find out which node did not start (sinfo -R), and exclude it."),
    ("TIMEOUT", "TIMEOUT", "Request more time, or save checkpoints and resume from them."),
    ("DEADLINE", "DEADLINE", "Request a later deadline, or save checkpoints and resume from them."),
    ("PREEMPTED", "PREEMPTED", "Submit it with --requeue, and resume from checkpoints."),
];

/// A table that is being read.
#[derive(Debug, Default)]
pub(super) struct Accounting {
    is_open: bool,
    /// The rows so far are all of a job that ended well; `None`: there is none.
    has_completed: Option<bool>,
}

impl Accounting {
    /// Reads one line.
    pub(super) fn read(&mut self, text: &str, at: Timestamp, facts: &mut Facts) {
        let text = text.trim();
        let mut words = text.split(BORDERS).filter(|it| !it.is_empty());
        if text.starts_with(COLUMNS[0]) && COLUMNS.iter().all(|it| words.clone().any(|w| w == *it))
        {
            *self = Self { is_open: true, has_completed: None };
            return;
        }
        let is_border = text.starts_with('-');
        // Without its header, a row is one if it states an exit code: "0:0".
        let is_row = || is_job(text) && text.split(BORDERS).any(is_exit_code);
        self.is_open |= is_row() && text.split(BORDERS).any(is_state);
        if !self.is_open || is_border {
            return;
        }
        let Some(job) = words.next().filter(|it| is_job(it)) else {
            self.is_open = false;
            return;
        };
        let state = words.clone().find_map(|word| STATES.iter().find(|it| word.starts_with(it.0)));
        let is_completed = words.any(|it| it == COMPLETED);
        self.has_completed = Some(self.has_completed.unwrap_or(true) && is_completed);
        facts.ends_well = Some(facts.line.number).filter(|_| self.has_completed == Some(true));
        if let Some((_, state, next)) = state {
            let text = format!("job {} ended in state {state}", cut(until(job, &['.']), 64)).into();
            let (by, on) = ("Slurm", Arc::default());
            facts.add(Subject::default(), at, Statement::Reported { by, on, text, next });
        }
    }
}

/// Whether a text begins as the number of a job or a step: "88120", "88120.batch", "88120_4".
fn is_job(text: &str) -> bool {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    digits > 0 && (digits == text.len() || text[digits..].starts_with([' ', '.', '_', '|']))
}

/// Whether a word is the status and the signal of a job: "0:0".
fn is_exit_code(word: &str) -> bool {
    let is_number = |it: &str| !it.is_empty() && it.bytes().all(|it| it.is_ascii_digit());
    word.len() <= 7
        && word.split_once(':').is_some_and(|(code, signal)| is_number(code) && is_number(signal))
}

fn is_state(word: &str) -> bool {
    word == COMPLETED || word == "FAILED" || STATES.iter().any(|it| word.starts_with(it.0))
}
