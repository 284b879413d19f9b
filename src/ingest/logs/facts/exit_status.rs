//! Statements that the command of a job ended well: the status that a shell, a script of a batch system or an editor
//! prints below its output, and what batch systems and platforms report at its end.

use super::{Facts, Statement, Subject};
use crate::logs::lines::{Label, Line};
use crate::logs::scan;

/// What precedes the status, in lower case.
const KEYS: [&str; 13] = [
    "exit",
    "exit_status",
    "rc",
    "exit code",
    "exit_code",
    "exitcode",
    "exit status",
    "return code",
    "returncode",
    "with status",
    "with code",
    "finished with",
    "exited with",
];
/// Maximum length of such a line, in bytes.
const MAX_LINE: usize = 256;
/// What a shell prints below the status: its trace, and the times that a command took.
const SHELL: [&str; 5] = ["+ ", "++ ", "real\t", "user\t", "sys\t"];
/// How platforms report the end of a job: the coordination service of JAX, SkyPilot, SageMaker, HTCondor, and
/// Slurm's `scontrol show job`, and a server of HTTP that was stopped.
const ENDS: [&str; 6] = [
    "Coordination agent has successfully shut down",
    "Job finished (status: SUCCEEDED)",
    "Reporting training SUCCESS",
    "Normal termination (return value 0)",
    "JobState=COMPLETED ",
    "Finished server process [",
];
/// The line by which LSF reports it.
const LSF: &str = "Successfully completed.";
/// Maximum number of lines below such a report: those below may be of another job.
const MAX_BELOW: u64 = 64;

/// What a text states about the end of its command. Of a pipeline, it may state the end of `tee`: it counts only if
/// nothing else states a failure.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct End {
    /// The last status is zero, and only lines of a shell follow it.
    is_zero: bool,
}

impl End {
    /// Reads one line.
    pub(super) fn read(&mut self, line: &Line<'_>, facts: &mut Facts) {
        if ENDS.iter().any(|it| scan::has(line.text, it)) || line.text.trim() == LSF {
            facts.ends_well = Some(facts.line.number);
        }
        let is_of_shell = SHELL.iter().any(|it| line.text.starts_with(it));
        let is_other = !line.text.trim_end().is_empty() && !is_of_shell;
        if line.label != Label::default() {
            self.is_zero = false;
        } else if let Some(status) = status(line.text) {
            self.is_zero = status == 0;
        } else if is_other {
            self.is_zero = false;
        }
    }

    /// Adds the end of the job, if it ended well.
    pub(super) fn finish(self, facts: &mut Facts) {
        let last = facts.line.number;
        let is_reported = facts.ends_well.is_some_and(|it| last - it <= MAX_BELOW);
        if (self.is_zero || is_reported) && facts.states_no_failure() {
            // Of a shell, it may be the status of the ranks of one host.
            let of_job = is_reported || facts.requeued > 0;
            facts.add(Subject::default(), facts.last, Statement::Finished { of_job });
        }
    }
}

/// The status of a command that a line states at its end: "exit=0", "[ci] done, rc=0", "Process finished with exit
/// code 0".
fn status(line: &str) -> Option<u32> {
    let line = line.trim_end().trim_end_matches(['.', ')', ']', '"']);
    let before = line.trim_end_matches(|it: char| it.is_ascii_digit());
    let number = line[before.len()..].parse().ok().filter(|_| line.len() <= MAX_LINE)?;
    let stated = before.trim_end_matches([' ', '=', ':']);
    if stated.len() == before.len() {
        return None;
    }
    let stated = stated.to_ascii_lowercase();
    let is_stated = |key: &&&str| {
        let before = stated.strip_suffix(**key);
        before.is_some_and(|it| !it.ends_with(|it: char| it.is_alphanumeric() || it == '_'))
    };
    KEYS.iter().find(is_stated).map(|_| number)
}

#[cfg(test)]
mod tests {
    use super::status;

    #[test]
    fn status_zero_is_that_of_a_command() {
        for line in [
            "exit=0",
            "[ci] stage finished, rc=0",
            "Process finished with exit code 0",
            "EXIT_CODE: 0",
            "+ exit 0",
            "Exit status: 0",
            "finished (exit code 0).",
            "job 918273 finished with 0",
            "train.py exited with status 0",
        ] {
            assert_eq!(status(line), Some(0), "{line}");
        }
        for line in [
            "exit=10",
            "exit=1",
            "src=0",
            "loss 0",
            "exit",
            "0",
            "exit0",
            "step rc_ 0",
            "job finished with 3",
            "finished without 0",
            "no exits 0",
        ] {
            assert_ne!(status(line), Some(0), "{line}");
        }
    }
}
