//! Playback of a recording.

use std::time::Duration;

use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_proto::viewer::Update;

use crate::state::State;

/// Range of playback speeds, as powers of two.
const SPEED_RANGE: std::ops::RangeInclusive<i32> = -3..=7;
/// Minimum time between two frames during playback.
const FRAME: Duration = Duration::from_millis(50);

/// A recording and the position of its playback.
#[derive(Debug, Default)]
pub struct Replay {
    updates: Vec<Update>,
    /// Number of updates that have been applied.
    applied: usize,
    /// Indexes of updates at which a finding appeared or disappeared.
    changes: Vec<usize>,
    /// Playback speed, as a power of two.
    speed: i32,
    /// Time at which playback began, and the recorded time of its start; `None`: paused.
    playing: Option<(Timestamp, Timestamp)>,
}

impl Replay {
    /// Appends an update and applies it: a recording is first shown at its end.
    pub fn push(&mut self, update: Update, state: &mut State) {
        let is_first = self.updates.is_empty();
        if update.findings.as_ref().is_some_and(|it| !(is_first && it.is_empty())) {
            let codes = |update: &Update| -> Vec<String> {
                let findings = update.findings.iter().flatten();
                findings.map(|it| it.code.clone()).collect()
            };
            // A change of texts alone does not count.
            let before = self.changes.last().map(|&at| codes(&self.updates[at]));
            if before != Some(codes(&update)) {
                self.changes.push(self.updates.len());
            }
        }
        state.apply(update.clone());
        self.updates.push(update);
        self.applied = self.updates.len();
    }

    /// Whether the recording is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.updates.is_empty()
    }

    /// Number of applied updates, and number of all updates.
    #[must_use]
    pub fn position(&self) -> (usize, usize) {
        (self.applied, self.updates.len())
    }

    /// Whether playback is running.
    #[must_use]
    pub const fn is_playing(&self) -> bool {
        self.playing.is_some()
    }

    /// Playback speed as text: "×2", "×1/4".
    #[must_use]
    pub fn speed(&self) -> String {
        match self.speed {
            0.. => format!("×{}", 1 << self.speed),
            slow => format!("×1/{}", 1 << -slow),
        }
    }

    /// Recorded times of the start, the current position and the end.
    #[must_use]
    pub fn times(&self) -> [Timestamp; 3] {
        let at = |index: usize| self.updates.get(index).map(|it| it.at);
        let here = self.applied.saturating_sub(1);
        let last = self.updates.len().saturating_sub(1);
        [0, here, last].map(|index| at(index).unwrap_or_default())
    }

    /// Positions at which findings appeared or disappeared, as fractions of the whole time.
    pub fn changes(&self) -> impl Iterator<Item = f64> {
        let [first, _, last] = self.times();
        let whole = last.since(first).as_secs_f64().max(1e-9);
        let at = |&index: &usize| self.updates[index].at;
        self.changes.iter().map(move |index| at(index).since(first).as_secs_f64() / whole)
    }

    /// Starts or pauses playback. At the end of the recording it starts again from the beginning.
    pub fn toggle(&mut self, now: Timestamp, state: &mut State) {
        if self.playing.take().is_some() || self.updates.is_empty() {
            return;
        }
        if self.applied == self.updates.len() {
            self.go(1, state);
        }
        self.playing = Some((now, self.times()[1]));
    }

    /// Changes the playback speed by a power of two.
    pub fn change_speed(&mut self, by: i32, now: Timestamp) {
        self.speed = (self.speed + by).clamp(*SPEED_RANGE.start(), *SPEED_RANGE.end());
        if self.playing.is_some() {
            self.playing = Some((now, self.times()[1]));
        }
    }

    /// Moves by a number of updates, and pauses.
    pub fn step(&mut self, by: isize, state: &mut State) {
        self.playing = None;
        let to = self.applied.saturating_add_signed(by);
        self.go(to, state);
    }

    /// Moves to the next or previous moment at which a finding appeared or disappeared, and pauses.
    pub fn jump(&mut self, forwards: bool, state: &mut State) {
        self.playing = None;
        let here = self.applied;
        let mut changes = self.changes.iter().map(|&at| at + 1);
        let to = if forwards {
            changes.find(|&at| at > here).unwrap_or(self.updates.len())
        } else {
            changes.rfind(|&at| at < here).unwrap_or(1)
        };
        self.go(to, state);
    }

    /// Applies the updates recorded by the current position. Returns when to call it again.
    pub fn tick(&mut self, now: Timestamp, state: &mut State) -> Option<Duration> {
        let (since, from) = self.playing?;
        let elapsed = now.since(since);
        let passed = match self.speed {
            0.. => elapsed * (1 << self.speed),
            slow => elapsed / (1 << -slow),
        };
        let there = from.plus(passed);
        while let Some(next) = self.updates.get(self.applied)
            && next.at <= there
        {
            state.apply(next.clone());
            self.applied += 1;
        }
        let next = self.updates.get(self.applied).map(|it| it.at);
        let Some(next) = next else {
            self.playing = None;
            return None;
        };
        let gap = next.since(there);
        let wait = match self.speed {
            0.. => gap / (1 << self.speed),
            slow => gap * (1 << -slow),
        };
        Some(wait.max(FRAME))
    }

    /// Applies exactly the first `to` updates.
    fn go(&mut self, to: usize, state: &mut State) {
        let to = to.clamp(1, self.updates.len().max(1));
        if to < self.applied {
            state.clear();
            self.applied = 0;
        }
        for update in self.updates.iter().take(to).skip(self.applied) {
            state.apply(update.clone());
        }
        self.applied = to.min(self.updates.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::testing::{finding, rank, update};

    const SECOND: u64 = 1_000_000_000;

    /// Ten seconds, one step each; a finding appears in the 4th and disappears in the 7th.
    fn recording() -> (Replay, State) {
        let (mut replay, mut state) = (Replay::default(), State::default());
        for second in 1..=10 {
            let mut new = update(second * SECOND, vec![rank(0, "running", second)]);
            new.findings = match second {
                1 | 7 => Some(Vec::new()),
                4 => Some(vec![finding("DD101", "missing-rank", &[0])]),
                _ => None,
            };
            replay.push(new, &mut state);
        }
        (replay, state)
    }

    fn step(state: &State) -> u64 {
        state.ranks.get(0).unwrap().status.step
    }

    #[test]
    fn recording_starts_at_its_end_and_jumps_to_findings() {
        let (mut replay, mut state) = recording();
        assert_eq!(step(&state), 10);
        let mut jump = |forwards| {
            replay.jump(forwards, &mut state);
            (step(&state), state.findings.len())
        };
        assert_eq!(jump(false), (7, 0));
        assert_eq!(jump(false), (4, 1));
        assert_eq!(jump(false), (1, 0));
        assert_eq!(jump(true), (4, 1));
        assert_eq!(jump(true), (7, 0));
        assert_eq!(jump(true), (10, 0));
    }

    #[test]
    fn playback_keeps_time_speeds_up_and_ends() {
        let (mut replay, mut state) = recording();
        let at = |ms: u64| Timestamp(ms * 1_000_000);
        replay.toggle(at(0), &mut state);
        assert_eq!(step(&state), 1, "from the beginning");
        let again = replay.tick(at(2500), &mut state).unwrap();
        assert_eq!((step(&state), again), (3, Duration::from_millis(500)));
        replay.change_speed(1, at(2500));
        assert_eq!(replay.speed(), "×2");
        replay.tick(at(4000), &mut state);
        assert_eq!(step(&state), 6);
        assert_eq!(replay.tick(at(99_000), &mut state), None);
        assert!(!replay.is_playing() && step(&state) == 10);
    }

    #[test]
    fn steps_stay_within_the_recording() {
        let (mut replay, mut state) = recording();
        replay.step(5, &mut state);
        assert_eq!(step(&state), 10);
        replay.step(-3, &mut state);
        assert_eq!(step(&state), 7);
        replay.step(isize::MIN, &mut state);
        assert_eq!((step(&state), replay.position()), (1, (1, 10)));
        let mut empty = Replay::default();
        empty.step(1, &mut state);
        empty.toggle(Timestamp(0), &mut state);
        assert!(!empty.is_playing());
    }
}
