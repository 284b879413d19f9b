//! Times of Megatron-LM: its timers of all ranks, and its detector of stragglers. A rank whose computation takes
//! much longer than that of all others is reported; that ranks wait longer shows nothing about them.

use std::sync::Arc;

use ddp_doctor_proto::report::Timestamp;

use crate::logs::facts::{Facts, Statement, Subject};
use crate::logs::lines::Line;
use crate::logs::scan::{after, cut, rank};

/// Head of the times of all ranks.
const ALL_RANKS: &str = "times across ranks (ms):";
/// Timers of what a rank does without others.
const COMPUTATION: [&str; 5] = [
    "forward-compute",
    "backward-compute",
    "batch-generator",
    "optimizer-inner-step",
    "forward-backward-compute",
];
/// What precedes the shortest and the longest time of the detector.
const MIN_COLUMN: &str = "MnRtt/Rnk: ";
const MAX_COLUMN: &str = "MxRtt/Rnk: ";
/// Time of the slowest rank, relative to that of the next one, from which on it is reported.
const MIN_RATIO: f64 = 1.5;
/// Maximum number of ranks of a timer.
const MAX_RANKS: usize = 1 << 16;
const NEXT: &str = "Compare the host and the device of that rank with the others (nvidia-smi -q -d PERFORMANCE,CLOCK), \
                    and what it loads.";

/// Times of all ranks that are being read.
#[derive(Debug, Default)]
pub(super) struct Timers {
    is_open: bool,
    timer: Option<&'static str>,
    ranks: usize,
    /// The longest time with its rank, and the longest one of the other ranks.
    slowest: Option<(f64, u32)>,
    next: f64,
}

impl Timers {
    /// Reads one line of a process.
    pub(super) fn read(&mut self, line: &Line<'_>, at: Timestamp, facts: &mut Facts) {
        let text = line.text;
        if text.contains(MAX_COLUMN) {
            detected(text, at, facts);
        }
        if text.ends_with(ALL_RANKS) && !text.contains('(') || text == ALL_RANKS {
            self.finish(facts, at);
            self.is_open = true;
            return;
        }
        if !self.is_open {
            return;
        }
        let text = text.trim();
        if let Some((own, time)) = text.strip_prefix("rank ").and_then(|it| it.split_once(':')) {
            self.time(own.trim(), time.trim());
        } else if let Some(timer) = text.strip_suffix(':') {
            self.add(facts, at);
            self.timer = COMPUTATION.iter().find(|it| **it == timer).copied();
        } else {
            self.finish(facts, at);
        }
    }

    fn time(&mut self, own: &str, time: &str) {
        let (Some(rank), Ok(time)) = (rank(own), time.parse::<f64>()) else { return };
        if self.timer.is_none() || !time.is_finite() || self.ranks >= MAX_RANKS {
            return;
        }
        self.ranks += 1;
        match self.slowest {
            Some((slowest, _)) if time <= slowest => self.next = self.next.max(time),
            known => {
                self.next = known.map_or(0.0, |(slowest, _)| slowest);
                self.slowest = Some((time, rank));
            }
        }
    }

    /// Adds what the times of one timer show.
    fn add(&mut self, facts: &mut Facts, at: Timestamp) {
        let Self { timer, ranks, slowest, next, .. } = std::mem::take(self);
        self.is_open = true;
        let (Some(timer), Some((time, rank))) = (timer, slowest) else { return };
        if ranks > 2 && next > 0.0 && time >= next * MIN_RATIO {
            let text = format!(
                "rank {rank} took {time} ms for {timer}, and the other {} ranks at most {next} ms",
                ranks - 1
            );
            report(&text, at, facts);
        }
    }

    /// Adds what the end of the times completes.
    pub(super) fn finish(&mut self, facts: &mut Facts, at: Timestamp) {
        if self.is_open {
            self.add(facts, at);
            *self = Self::default();
        }
    }
}

/// "… | MnRtt/Rnk: 3453.08ms/8 | MxRtt/Rnk: 9468.20ms/0 | …".
fn detected(text: &str, at: Timestamp, facts: &mut Facts) {
    let time = |key: &str| {
        let (time, own) = after(text, key)?.split_once("ms/")?;
        Some((time.parse::<f64>().ok().filter(|it| it.is_finite())?, rank(own)?))
    };
    let (Some((shortest, fast)), Some((longest, slow))) = (time(MIN_COLUMN), time(MAX_COLUMN))
    else {
        return;
    };
    if shortest > 0.0 && longest >= shortest * MIN_RATIO {
        let text = format!(
            "rank {slow} took {longest} ms for an iteration, and rank {fast} {shortest} ms"
        );
        report(&text, at, facts);
    }
}

fn report(text: &str, at: Timestamp, facts: &mut Facts) {
    let (on, text) = (Arc::default(), cut(text, 256).into());
    let what = Statement::Reported { by: "Megatron-LM", on, text, next: NEXT };
    facts.add(Subject::default(), at, what);
}
