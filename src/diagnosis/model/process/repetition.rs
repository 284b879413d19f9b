//! Steps of a program that marks none: repetitions of its calls.
//!
//! A program repeats if its latest calls are the same sequence several times. From then on, complete
//! repetitions are counted. If other calls interrupt them soon, the sequence is a part of a longer one,
//! such as the layers of a forward pass, and only longer ones are searched. After many repetitions,
//! other calls in between count for none, such as those of an evaluation.
//!
//! A rule has to require that the repetitions last, and that all ranks repeat equally many calls
//! ([`crate::trends::growth`]).

use std::hash::{DefaultHasher, Hash, Hasher};

use ddp_doctor_proto::Op;
use ddp_doctor_proto::report::Timestamp;

use crate::input::event::Call;
use crate::model::ids::GroupId;

/// Number of calls in which a repetition is searched.
const WINDOW: usize = 2048;
/// Number of times that a sequence must have been called in a row.
const TIMES: usize = 4;
/// Number of calls without an interruption after which a sequence is that of the loop.
const SETTLED: usize = WINDOW / 2;
/// Divisor of the number of known calls: that many are added between two searches.
const SEARCHES: usize = 8;

/// What a call has in common with the same call of another repetition; different calls rarely
/// have the same one.
type Signature = u16;

/// The repetitions in the calls of a process.
#[derive(Debug, Default)]
pub struct Repetition {
    /// The latest calls.
    calls: Vec<Signature>,
    /// Number of those calls at the latest search.
    searched: usize,
    /// Minimum length of a sequence, less 1: that of one which was interrupted.
    longer_than: usize,
    found: Option<Box<Repeated>>,
}

/// A sequence of calls that repeats.
#[derive(Debug)]
struct Repeated {
    calls: Box<[Signature]>,
    /// For each prefix of the sequence: length of the longest shorter prefix that ends it.
    borders: Box<[usize]>,
    /// Number of its calls that the latest calls match.
    matched: usize,
    /// Number of calls since an interruption.
    run: usize,
    /// That number has been large.
    is_settled: bool,
    /// Number of calls since the latest complete repetition.
    since: usize,
    /// Number of complete repetitions.
    count: u64,
    /// Time of the call that completed the latest one.
    at: Timestamp,
}

impl Repetition {
    /// Adds a call. Returns whether earlier repetitions do not count any longer.
    pub(in crate::model) fn take(&mut self, call: &Call, group: Option<GroupId>) -> bool {
        let signature = signature(call, group);
        if self.calls.len() == WINDOW {
            self.calls.drain(..WINDOW / 2);
            self.searched = self.searched.saturating_sub(WINDOW / 2);
            self.longer_than = 0;
        }
        self.calls.push(signature);
        let Some(found) = &mut self.found else {
            self.search(call.at);
            return false;
        };
        found.take(signature, call.at);
        let is_over = if found.is_settled { found.since > WINDOW } else { found.run == 0 };
        if is_over {
            self.longer_than = if found.is_settled { 0 } else { found.calls.len() };
            self.searched = self.calls.len();
            self.found = None;
        }
        is_over
    }

    fn search(&mut self, at: Timestamp) {
        if (self.calls.len() - self.searched) * SEARCHES < self.calls.len() {
            return;
        }
        self.searched = self.calls.len();
        if let Some(length) = repeated(&self.calls, self.longer_than) {
            let calls = &self.calls[self.calls.len() - length..];
            self.found = Some(Box::new(Repeated::new(calls.into(), at)));
        }
    }

    /// Number of calls that repeat; `None`: none is known to.
    pub fn length(&self) -> Option<usize> {
        self.found.as_ref().map(|found| found.calls.len())
    }

    /// Number of the repetition in progress, from 1; 0: the calls do not repeat.
    pub fn number(&self) -> u64 {
        self.found.as_ref().map_or(0, |found| found.count + 1)
    }

    /// Number of the repetition at a recent time.
    pub(super) fn number_at(&self, at: Timestamp) -> u64 {
        let before = self.found.as_ref().is_some_and(|found| at < found.at);
        self.number() - u64::from(before)
    }
}

impl Repeated {
    fn new(calls: Box<[Signature]>, at: Timestamp) -> Self {
        let mut borders = vec![0; calls.len()];
        for i in 1..calls.len() {
            let mut border = borders[i - 1];
            while border > 0 && calls[border] != calls[i] {
                border = borders[border - 1];
            }
            borders[i] = border + usize::from(calls[border] == calls[i]);
        }
        Self {
            run: calls.len() * TIMES,
            calls,
            borders: borders.into(),
            matched: 0,
            is_settled: false,
            since: 0,
            count: TIMES as u64,
            at,
        }
    }

    /// Adds a call: the algorithm of Knuth, Morris and Pratt.
    fn take(&mut self, signature: Signature, at: Timestamp) {
        self.since += 1;
        self.run = if self.calls[self.matched] == signature { self.run + 1 } else { 0 };
        self.is_settled |= self.run >= SETTLED;
        while self.matched > 0 && self.calls[self.matched] != signature {
            self.matched = self.borders[self.matched - 1];
        }
        self.matched += usize::from(self.calls[self.matched] == signature);
        if self.matched == self.calls.len() {
            (self.matched, self.since, self.at) = (0, 0, at);
            self.count += 1;
        }
    }
}

/// Length of the shortest sequence above this length that the latest calls repeat [`TIMES`] times.
fn repeated(calls: &[Signature], longer_than: usize) -> Option<usize> {
    (longer_than + 1..=calls.len() / TIMES).find(|&length| {
        let latest = &calls[calls.len() - length * TIMES..];
        let (later, earlier) = (&latest[length..], &latest[..length * (TIMES - 1)]);
        later.iter().rev().eq(earlier.iter().rev())
    })
}

fn signature(call: &Call, group: Option<GroupId>) -> Signature {
    let mut hasher = DefaultHasher::new();
    // The sizes of an all_to_all depend on the data.
    let numel = call.numel.filter(|_| call.op != Op::AllToAll);
    let place = call.place.as_ref().map(|place| (&place.file, place.line));
    let parts = (call.op as u8, call.dtype as u8, call.reduce_op as u8, call.root, call.peer);
    (parts, call.tag, call.tensors, numel, group.map(|it| it.0), place).hash(&mut hasher);
    let [low, high, ..] = hasher.finish().to_le_bytes();
    Signature::from_le_bytes([low, high])
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ddp_doctor_proto::report::Where;

    use super::*;

    /// Adds calls, each at the line of its letter. Returns whether repetitions were given up.
    fn play(repetition: &mut Repetition, lines: &str) -> bool {
        let mut is_over = false;
        for line in lines.bytes() {
            let place = Where { file: "t.py".into(), line: line.into(), ..Where::default() };
            let call = Call { place: Some(Arc::new(place)), ..Call::default() };
            is_over |= repetition.take(&call, None);
        }
        is_over
    }

    fn played(lines: &str) -> (Option<usize>, u64) {
        let mut repetition = Repetition::default();
        play(&mut repetition, lines);
        (repetition.length(), repetition.number())
    }

    #[test]
    fn sequence_called_four_times_is_a_repetition() {
        assert_eq!(played(&"abac".repeat(3)), (None, 0));
        assert_eq!(played(&format!("xyz{}", "abac".repeat(10))), (Some(4), 11));
        assert_eq!(played("abcdefghijklmnopqrstuvwxyz"), (None, 0));
    }

    #[test]
    fn sequence_that_is_part_of_a_longer_one_gives_way_to_it() {
        // Four layers in each forward and backward pass, and gradients.
        let step = "abababab".to_owned() + "cdcdcdcd" + "g";
        assert_eq!(played(&step[..8]), (Some(2), 5), "nothing else is known yet");
        assert_eq!(played(&step.repeat(10)).0, Some(step.len()));
    }

    #[test]
    fn other_calls_between_many_repetitions_do_not_count() {
        let mut repetition = Repetition::default();
        play(&mut repetition, &"abc".repeat(400));
        assert_eq!(repetition.number(), 401);
        play(&mut repetition, "eeeee");
        play(&mut repetition, &"abc".repeat(2));
        assert_eq!((repetition.length(), repetition.number()), (Some(3), 403));
    }

    #[test]
    fn sequence_that_never_returns_is_given_up() {
        let mut repetition = Repetition::default();
        play(&mut repetition, &"abc".repeat(400));
        let others = "defghijklmnop".repeat(WINDOW / 13 - 1);
        assert!(!play(&mut repetition, &others));
        assert!(play(&mut repetition, &"qr".repeat(200)));
        assert_eq!(repetition.length(), Some(2));
    }

    #[test]
    fn memory_is_bounded() {
        let mut repetition = Repetition::default();
        for i in 0..3 * WINDOW as u64 {
            repetition.take(&Call { numel: Some(i), ..Call::default() }, None);
        }
        assert_eq!(repetition.length(), None);
        assert!(repetition.calls.capacity() <= WINDOW);
    }
}
