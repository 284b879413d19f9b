//! The training step of a rank, by a variable of its program.

use std::fmt;

use ddp_doctor_diagnosis::input::place;
use ddp_doctor_diagnosis::words;
use ddp_doctor_node::stack_reader::{Integers, python_threads};
use ddp_doctor_proto::report::Where;
use serde::{Deserialize, Serialize};

/// Names of variables that number training steps; the first that a frame has counts. No other variable is read for
/// this.
const NAMES: [&str; 5] = ["global_step", "step", "iteration", "iter_num", "batch_idx"];

/// A step, as the program numbers it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// Value of the variable.
    pub number: u32,
    /// Name of the variable.
    pub name: String,
    /// The line at which its frame is.
    pub line: Where,
}

impl Step {
    /// The step of the main thread of a process: that of its innermost frame outside of PyTorch and the standard library
    /// with such a variable.
    #[must_use]
    pub fn read(pid: u32) -> Option<Self> {
        of_frames(python_threads::integers(pid, &NAMES))
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {}{}", self.name, self.number, words::at(Some(&self.line)))
    }
}

/// The step of the first of these frames that has one, innermost first.
fn of_frames(frames: Vec<(Where, Integers)>) -> Option<Step> {
    frames.into_iter().filter(|(line, _)| place::is_users(&line.file)).find_map(|(line, values)| {
        let (name, &value) = NAMES.iter().find_map(|it| values.get_key_value(*it))?;
        Some(Step { number: value.try_into().ok()?, name: name.clone(), line })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(file: &str, line: u32, values: &[(&str, i64)]) -> (Where, Integers) {
        let values = values.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        let function = "train".into();
        (Where { file: file.into(), line, function, ..Where::default() }, values)
    }

    #[test]
    fn step_is_that_of_the_innermost_training_loop() {
        let trainer = "/venv/lib/python3.11/site-packages/transformers/trainer.py";
        let frames = vec![
            frame("/venv/lib/python3.11/site-packages/torch/optim/adam.py", 7, &[("step", 3)]),
            frame("train.py", 31, &[]),
            frame(trainer, 99, &[("step", 12), ("global_step", 412)]),
            frame("train.py", 50, &[("step", 1)]),
        ];
        assert_eq!(of_frames(frames).unwrap().to_string(), "global_step = 412 at trainer.py:99");
    }

    #[test]
    fn numbers_that_count_no_steps_are_left_out() {
        let frames = vec![frame("train.py", 3, &[("step", -1)]), frame("train.py", 9, &[("i", 5)])];
        assert_eq!(of_frames(frames), None);
    }
}
