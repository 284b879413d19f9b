//! Steps of the optimizer: several recorded steps, such as training forwards, may belong to one.

use std::collections::VecDeque;

use crate::input::event::Forward;

/// Number of optimizer steps whose beginning is kept.
const MAX_STEPS: usize = 64;
/// Number of forwards without an update of the parameters after which forwards count as steps: the program
/// updates parameters in a way that is not seen.
const MAX_FORWARDS: u64 = 64;

/// Optimizer steps of a process, as far as its forwards show when parameters were updated.
#[derive(Debug, Default)]
pub struct OptimizerSteps {
    /// Number of updates seen.
    updates: u64,
    /// Whether updates would be seen.
    is_seen: bool,
    /// Recorded steps that began an optimizer step, and the number of that; oldest first.
    began: VecDeque<(u64, u64)>,
}

impl OptimizerSteps {
    /// A recorded step begins.
    pub(in crate::model) fn begin(&mut self, recorded: u64, forward: Option<&Forward>) {
        let updated = forward.and_then(|forward| forward.updated);
        self.is_seen |= updated.is_some();
        if updated != Some(true) {
            return;
        }
        self.updates += 1;
        // Records may have been lost before.
        let next = self.at(recorded).max(self.updates + 1);
        let number = self.began.back().map_or(next, |(_, last)| next.max(last + 1));
        if self.began.len() == MAX_STEPS {
            self.began.pop_front();
        }
        self.began.push_back((recorded, number));
    }

    /// The optimizer step to which a recorded step belongs. Without updates, the recorded step.
    pub fn at(&self, recorded: u64) -> u64 {
        let (Some(&(first, first_number)), Some(&(last, last_number))) =
            (self.began.front(), self.began.back())
        else {
            let is_first = self.is_seen && (1..=MAX_FORWARDS).contains(&recorded);
            return if is_first { 1 } else { recorded };
        };
        // The first step was number 1.
        let rate = last_number.saturating_sub(1) as f64 / last.saturating_sub(1).max(1) as f64;
        let scaled = |steps: u64| (steps as f64 * rate) as u64;
        if recorded < first {
            let number = 1 + scaled(recorded.saturating_sub(1));
            return number.min(first_number.saturating_sub(1).max(1)).min(recorded);
        }
        let next = self.began.partition_point(|(begin, _)| *begin <= recorded);
        match self.began.get(next.saturating_sub(1)) {
            // Later steps are known as long as no record was lost.
            Some(&(begin, number)) if next == self.began.len() => {
                let ahead = (recorded - begin).saturating_sub(self.forwards_of_one());
                number + scaled(ahead)
            }
            Some(&(_, number)) => number,
            None => recorded,
        }
    }

    /// The largest number of recorded steps that belonged to one optimizer step lately.
    fn forwards_of_one(&self) -> u64 {
        let began = self.began.iter();
        let lengths = began.clone().zip(began.skip(1)).map(|((a, _), (b, _))| b.saturating_sub(*a));
        lengths.max().unwrap_or(MAX_FORWARDS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn played(forwards: u64, each: u64, updated: impl Fn(bool) -> Option<bool>) -> OptimizerSteps {
        let mut steps = OptimizerSteps::default();
        for recorded in 1..=forwards {
            let is_first = recorded > 1 && (recorded - 1) % each == 0;
            let forward = Forward { updated: updated(is_first), ..Forward::default() };
            steps.begin(recorded, Some(&forward));
        }
        steps
    }

    #[test]
    fn forwards_between_updates_belong_to_one_step() {
        for each in [1, 2, 8] {
            let steps = played(30 * each, each, Some);
            for recorded in 1..=30 * each {
                assert_eq!(steps.at(recorded), (recorded - 1) / each + 1, "{each}: {recorded}");
            }
        }
        let long = played(2000, 2, Some);
        assert_eq!((long.at(1), long.at(400), long.at(1999), long.at(2000)), (1, 200, 1000, 1000));
    }

    #[test]
    fn unseen_updates_leave_recorded_steps() {
        assert_eq!(played(10, 2, |_| None).at(10), 10);
        let never = played(200, 2, |_| Some(false));
        assert_eq!((never.at(1), never.at(2), never.at(200)), (1, 1, 200));
    }

    #[test]
    fn steps_advance_while_records_are_lost() {
        let steps = played(100, 2, Some);
        assert_eq!(steps.at(102), 50, "it may still belong to the last one");
        assert_eq!(steps.at(1102), 550);
    }
}
