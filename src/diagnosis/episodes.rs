//! When findings over time held.
//!
//! A rank that is slow in most of a job may keep its peers waiting in one minute and not in the next: the
//! finding ends with the episode, which does not make it wrong. This remembers the episodes, and adds the
//! finding to the final diagnosis if it held for most of the job, or repeatedly.

use std::collections::BTreeMap;
use std::time::Duration;

use ddp_doctor_proto::catalogue::{self, DD502, DD503, DD506, DD601, DD602, DD603};
use ddp_doctor_proto::report::{Period, Timestamp};
use ddp_doctor_proto::words::duration;

use crate::findings::{Draft, Precedence};
use crate::situation::Situation;
use crate::words;

/// Maximum number of findings that are remembered.
const MAX_FINDINGS: usize = 64;
/// Maximum number of periods that are kept of each; later ones extend the last.
const MAX_PERIODS: usize = 64;
/// Maximum number of periods that are listed in a sentence.
const MAX_LISTED: usize = 4;
/// Minimum share of the job in which a finding must have held to be in its final diagnosis …
const MIN_SHARE: f64 = 0.5;
/// … and the same if it held at least …
const MUCH: f64 = 0.25;
/// … this often.
const OFTEN: usize = 3;

/// The findings over time so far.
#[derive(Debug, Default)]
pub(crate) struct Episodes {
    by_subject: BTreeMap<Subject, Episode>,
}

/// What a finding is about: a family of codes of which one holds at a time, and the root cause ranks.
type Subject = (&'static str, Vec<u32>);

#[derive(Debug, Default)]
struct Episode {
    /// Periods in which a finding of this subject held, without overlaps, oldest first.
    periods: Vec<Period>,
    /// Whether it held at the previous evaluation.
    is_open: bool,
    /// The latest draft of each code, with the time for which it held.
    drafts: BTreeMap<&'static str, (Duration, Draft)>,
}

impl Episodes {
    /// Remembers the drafts of an evaluation. Once the job has ended, adds those that held for most of it,
    /// and states in each when it held.
    pub(crate) fn update(&mut self, situation: &Situation<'_>, drafts: &mut Vec<Draft>) {
        let now = situation.now;
        let is_over_time = |it: &&Draft| {
            it.precedence == Precedence::Hint && catalogue::is_over_time(it.code.code)
        };
        let mut open: Vec<Subject> = Vec::new();
        for draft in drafts.iter().filter(is_over_time) {
            let subject = subject(draft);
            if self.by_subject.len() < MAX_FINDINGS || self.by_subject.contains_key(&subject) {
                self.by_subject.entry(subject.clone()).or_default().hold(draft, now);
                open.push(subject);
            }
        }
        for (subject, episode) in &mut self.by_subject {
            episode.is_open = open.contains(subject);
        }
        if situation.model.ended.is_some() {
            self.conclude(situation, drafts);
        }
    }

    fn conclude(&self, situation: &Situation<'_>, drafts: &mut Vec<Draft>) {
        let arrivals = &situation.model.arrivals;
        let Some(began) = arrivals.began.or(situation.model.started) else { return };
        let length = situation.now.since(began);
        for (subject, episode) in &self.by_subject {
            let said = |draft: &Draft| episode.sentence(draft, began, length);
            if episode.is_open {
                let same = |it: &&mut Draft| self::subject(it) == *subject;
                for draft in drafts.iter_mut().filter(same) {
                    if episode.periods.len() > 1 {
                        draft.say(said(draft));
                        draft.held.clone_from(&episode.periods);
                    }
                }
                continue;
            }
            let share = episode.total(began).as_secs_f64() / length.as_secs_f64().max(1e-9);
            let is_often = episode.periods.len() >= OFTEN && share >= MUCH;
            let longest = episode.drafts.values().max_by_key(|(held, _)| *held);
            if let Some((_, draft)) = longest.filter(|_| share >= MIN_SHARE || is_often) {
                let mut draft = draft.clone();
                draft.say(said(&draft));
                draft.held.clone_from(&episode.periods);
                drafts.push(draft);
            }
        }
    }
}

impl Episode {
    fn hold(&mut self, draft: &Draft, now: Timestamp) {
        let since = draft.blocked_at.unwrap_or(now).min(now);
        let before = self.periods.last().map(|period| period.to);
        let is_full = self.periods.len() >= MAX_PERIODS;
        match self.periods.last_mut() {
            Some(last) if self.is_open || since <= last.to || is_full => last.to = now,
            _ => self.periods.push(Period { from: since, to: now }),
        }
        let from = before.map_or(since, |before| if self.is_open { before } else { since });
        let held = self.drafts.get(draft.code.code).map_or(Duration::ZERO, |(held, _)| *held);
        self.drafts.insert(draft.code.code, (held + now.since(from), draft.clone()));
    }

    /// Time for which it held after the job `began`. A GPU can be slow before that.
    fn total(&self, began: Timestamp) -> Duration {
        self.periods.iter().map(|period| period.to.since(period.from.max(began))).sum()
    }

    /// "It held for 43.0 s of 60.0 s: from 5.0 s to 20.0 s, from 25.0 s to 53.0 s after the first collective."
    fn sentence(&self, draft: &Draft, began: Timestamp, length: Duration) -> String {
        let shown = |time: Duration| duration(time.as_millis() as u64);
        let after = |at: Timestamp| shown(at.since(began));
        let listed: Vec<String> = self
            .periods
            .iter()
            .take(MAX_LISTED)
            .map(|period| format!("from {} to {}", after(period.from), after(period.to)))
            .collect();
        let unlisted = self.periods.len() - listed.len();
        let more =
            if unlisted > 0 { format!(", and in {unlisted} later periods") } else { String::new() };
        format!(
            "{} held for {} of {}: {}{more} after the first collective.",
            draft.code.name,
            shown(self.total(began)),
            shown(length),
            words::joined(listed, ", "),
        )
    }
}

/// The subject of a draft. Lateness may have different causes at different times, and growth may or may
/// not reach a limit.
fn subject(draft: &Draft) -> Subject {
    let code = draft.code.code;
    let is_one_of = |codes: &[&catalogue::Code]| codes.iter().any(|it| it.code == code);
    let family = if is_one_of(&[&DD601, &DD602, &DD603]) {
        DD601.code
    } else if is_one_of(&[&DD502, &DD503, &DD506]) {
        DD502.code
    } else {
        code
    };
    (family, draft.root.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_before_the_first_collective_does_not_count() {
        let period = |from, to| Period { from: Timestamp(from), to: Timestamp(to) };
        let periods = vec![period(1, 4), period(5, 9), period(12, 14)];
        let episode = Episode { periods, ..Episode::default() };
        let total = |began| episode.total(Timestamp(began)).as_nanos();
        assert_eq!((total(0), total(7), total(13)), (9, 4, 1));
    }
}
