//! Causes of which the number of calls at a line is the evidence: one side left a loop in which the
//! other goes on, or repeats a line.

use std::collections::BTreeSet;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;

use ddp_doctor_proto::GuardForm;
use ddp_doctor_proto::report::{CauseKind, Where};

use crate::guards;
use crate::input::event::{Call, Guard};
use crate::model::{Ending, Join, Process};
use crate::situation::Situation;
use crate::words::{self, Ranks};

use super::passed_over::WentOn;
use super::{
    CauseHypothesis, Detail, Mistake, Sides, Suspect, choice, decided_by, input_ended_before,
    is_read, last_line, line_is_guarded, meaning, numbers, ranks, supported, suspected, with_line,
};

/// A cause, with what the source shows for it: the line, and the test around it.
type Reason<'a> = (CauseKind, Option<(Arc<Where>, &'a Guard)>);

impl Sides<'_> {
    /// One side has left a loop over a collection in which the other goes on, after fewer calls at a line in it.
    /// The source shows no test in the loop that decides on that line, so the collection is shorter there.
    pub(super) fn shorter_loop(&self) -> Option<CauseHypothesis> {
        let left = |short: &[&Process], long: &[&Process]| {
            let WentOn { first, other, after, within, calls } =
                self.went_on_to_another_line(short, long)?;
            let ([fewer, more], after, within) = (calls, &after, &within);
            if fewer == 0 {
                return None;
            }
            if self.caught(first, other, after, within).is_some()
                || choice(other, within, GuardForm::Bounds).is_some()
            {
                return None;
            }
            let (line, over, is_only) = loop_left(first, other, after, within)?;
            // Another caller leads it to that line: the loop is not its own. In a forward pass it runs over the layers.
            let is_over_layers = line.function.ends_with("forward") && !is_computed(&over.test);
            if is_over_layers || !guards::has_passed(first, &line) {
                return None;
            }
            // Without a call in the loop just before, it has not entered the loop this time.
            let is_in_loop = |it: &Arc<Where>| {
                let around = guards::all_around(first, it).chain(guards::all_around(other, it));
                let mut loops = around.filter(|(_, guard)| is_same_test(guard, over));
                loops.any(|(at, _)| at.file == line.file)
            };
            if !self.preceding_line(first).is_some_and(is_in_loop) {
                return None;
            }
            // A test may have led the other side past the line to which this one has gone on, and on to the next pass.
            let may_have_skipped = self.calls_at(first, after) > 1
                && guards::around(first, after).any(|(_, it)| {
                    decides(it) && guards::around(other, within).all(|(_, of)| of != it)
                });
            if may_have_skipped && self.are_passes_alike(first, within) != Some(false) {
                return None;
            }
            // A loop around it may have been left instead, before a new pass of this one.
            let ends = |process, at| {
                let all = guards::all_around(process, at);
                all.filter(|(_, it)| matches!(it.form, GuardForm::Ends | GuardForm::Leaves))
            };
            let is_shared = |at: &Where, end: &Guard| {
                ends(first, after).any(|(line, it)| line.file == at.file && is_same_test(it, end))
            };
            if ends(other, within).any(|(at, end)| !is_shared(&at, end)) {
                return None;
            }
            let sentence = format!(
                "{} made {fewer} call{} at {} before going on, {} made {more}. {}",
                words::begin(ranks(short)),
                if fewer == 1 { "" } else { "s" },
                words::line(within),
                ranks(long),
                line_is_guarded(&(Arc::clone(&line), over)),
            );
            let because = Some(with_assignment(sentence, other, &line, over));
            let mistake = Mistake::left_loop(&numbers(short), &numbers(long), &line, over);
            let hypothesis = if is_only {
                supported(CauseKind::UnevenInputs, because).with_mistake(mistake)
            } else {
                suspected(CauseKind::UnevenInputs, because).with_suspect(&(line, over))
            };
            Some(hypothesis.with_detail(Detail::Loop))
        };
        left(&self.odd, &self.others).or_else(|| left(&self.others, &self.odd))
    }

    /// The odd ranks have ended, or destroyed the group, for an unrecorded reason.
    pub(super) fn left(&self) -> Option<CauseHypothesis> {
        if !self.all_left() {
            return None;
        }
        let fewest = |steps: &dyn Fn(&Process) -> Option<u64>| {
            self.others.iter().filter_map(|it| steps(it)).min().unwrap_or(0)
        };
        let fewest_steps = fewest(&|it| Some(it.step));
        let fewer = |it: &&Process| it.step > 0 && it.step < fewest_steps;
        if !self.odd.iter().all(fewer) {
            return self.left_loop().or_else(|| self.shut_down(fewest_steps));
        }
        // Fewer steps: either fewer batches, or omitted steps.
        let fewest_batches = fewest(&|it| it.turns.batches());
        let drew_fewer = |it: &&Process| it.turns.batches().is_some_and(|it| it < fewest_batches);
        if self.odd.iter().any(drew_fewer) {
            // The end of an input is recorded, so a loop that left some of it decided to end.
            let has_input_left = |it: &&Process| it.input_ended.is_none();
            return Some(if self.odd.iter().all(has_input_left) {
                let because = format!(
                    "{} left the loop before the input was exhausted.",
                    words::begin(ranks(&self.odd))
                );
                suspected(CauseKind::LocalDecision, Some(because))
            } else {
                let most = self.odd.iter().filter_map(|it| it.turns.batches()).max();
                self.made_fewer("batches", most, fewest_batches)
            });
        }
        let left_out = |form| {
            let mut lines = self.others.iter().flat_map(|process| self.guards(process));
            lines.find(|(_, guard)| guard.form == form)
        };
        let kinds = [
            (GuardForm::Skips, CauseKind::SkippedIteration),
            (GuardForm::Catches, CauseKind::SwallowedException),
        ];
        let found = kinds.into_iter().find_map(|(form, kind)| {
            let shown = left_out(form)?;
            Some(suspected(kind, Some(line_is_guarded(&shown))).with_suspect(&shown))
        });
        let most = self.odd.iter().map(|it| it.step).max();
        found.or_else(|| Some(self.made_fewer("steps", most, fewest_steps)))
    }

    /// The odd ranks, which have left, had begun at least this many steps, those of the others.
    fn shut_down(&self, steps: u64) -> Option<CauseHypothesis> {
        let odd = numbers(&self.odd);
        let because = format!(
            "{} {steps} steps or more before the end, {} {steps}.",
            words::begin(Ranks(&odd).with("has begun", "have begun")),
            ranks(&self.others),
        );
        (steps > 0).then(|| suspected(CauseKind::Teardown, Some(because)))
    }

    /// The odd ranks, which have left, made fewer of these than the others, who made this many at least.
    fn made_fewer(&self, what: &str, most: Option<u64>, others: u64) -> CauseHypothesis {
        let because = most.map(|most| {
            format!(
                "{} made {most} {what} and left, {} made {others} or more.",
                words::begin(ranks(&self.odd)),
                ranks(&self.others),
            )
        });
        suspected(CauseKind::UnevenInputs, because)
    }

    /// Whether the odd ranks had ended, or destroyed the group, before the ranks diverged. An end
    /// after that is a consequence.
    pub(super) fn all_left(&self) -> bool {
        let model = self.situation.model;
        let group = self.place.map(|(group, _)| model.group(group));
        let call = |process: &Process| self.diverged()?.calls.get(&process.rank?);
        !self.odd.is_empty()
            && self.odd.iter().all(|process| {
                // Where calls return at once, ranks that disagree may leave before their peers arrive.
                if call(process).is_some() {
                    return false;
                }
                let has_ended = model.ending_of(process) != Ending::None;
                let ended = process.end.map(|end| end.at).filter(|_| has_ended);
                let left = process.rank.zip(group).is_some_and(|(rank, group)| {
                    self.situation.has_left_before(group, rank, self.at)
                });
                left || ended.is_some_and(|at| at <= self.at)
            })
    }

    /// One side has drawn its last batch and gone on; the other has drawn as many, of which none was the last, and goes
    /// on in the loop.
    pub(super) fn drew_all(&self) -> Option<CauseHypothesis> {
        let has_drawn_all = |it: &&Process| input_ended_before(it, self.at);
        let left = |short: &[&Process], long: &[&Process]| {
            let went_on = self.went_on(short, long).filter(|it| it.calls[0] > 0)?;
            let drawn = went_on.first.turns.batches()?;
            let drew_as_many = |it: &&Process| it.turns.batches() == Some(drawn);
            if !short.iter().all(has_drawn_all)
                || long.iter().any(has_drawn_all)
                || !short.iter().chain(long).all(drew_as_many)
            {
                return None;
            }
            let because = format!(
                "Batch {drawn} was the last one of {}; {} more.",
                ranks(short),
                Ranks(&numbers(long)).with("has", "have")
            );
            let mistake = Mistake::ran_out(&numbers(short), Some(drawn), &numbers(long), None);
            Some(supported(CauseKind::UnevenInputs, Some(because)).with_mistake(mistake))
        };
        left(&self.odd, &self.others).or_else(|| left(&self.others, &self.odd))
    }

    /// One side has left a loop in which the other goes on, or the other repeats a line, and no test in
    /// the source shows why.
    pub(super) fn left_loop(&self) -> Option<CauseHypothesis> {
        let ended = |short: &[&Process], long: &[&Process]| {
            let (short, long) = (*short.first()?, *long.first()?);
            let (after, within) = (&self.line_at(short)?, &self.line_at(long)?);
            let times = |process: &Process| self.calls_at(process, within);
            let (fewer, more) = (times(short), times(long));
            let is_seen = is_read(short, after) && is_read(long, within);
            // Calls of one line that differ are no matter of their number.
            let meet_there = self.line_of(short).is_some_and(|it| self.line_of(long) == Some(it));
            if meet_there || after == within || !(1..more).contains(&fewer) || !is_seen {
                return None;
            }
            let (kind, shown) = match self.caught(short, long, after, within) {
                Some(shown) => (CauseKind::SwallowedException, Some(shown)),
                None if self.calls_at(long, after) > 0 => return None,
                // It has been there before, and the other one never: that is its role, and no way out of
                // the loop.
                None if self.calls_at(short, after) > 1 => return None,
                None => match self.loop_around(long, within)? {
                    // They have run as many steps, and made calls in some of them.
                    (CauseKind::UnevenInputs, None) if long.step > 0 && long.step == short.step => {
                        (CauseKind::LocalDecision, None)
                    }
                    found => found,
                },
            };
            let plural = if fewer == 1 { "" } else { "s" };
            let because = format!(
                "Rank {} made {fewer} call{plural} at {}, rank {} made {more}.",
                short.rank.unwrap_or_default(),
                words::line(within),
                long.rank.unwrap_or_default(),
            );
            let suspect = shown.as_ref().map(|(line, guard)| Suspect::new(line, guard));
            let is_length = match &shown {
                Some((_, guard)) => {
                    matches!(guard.form, GuardForm::Bounds | GuardForm::Iterates)
                }
                None => kind == CauseKind::UnevenInputs && long.turns.batches().is_none(),
            };
            let hypothesis =
                CauseHypothesis { suspect, ..suspected(kind, Some(with_line(because, shown))) };
            Some(if is_length { hypothesis.with_detail(Detail::Loop) } else { hypothesis })
        };
        ended(&self.odd, &self.others).or_else(|| ended(&self.others, &self.odd))
    }

    /// Whether ranks `elsewhere` have a call of their own for that at which ranks `here` wait, in a cycle of groups: a test
    /// on the rank that keeps them from its line is no reason.
    pub(super) fn have_met_there(&self, here: &[u32], elsewhere: &[u32]) -> bool {
        let model = self.situation.model;
        let mut lines =
            here.iter().filter_map(|rank| Some((rank, self.line_of(model.process_of(*rank)?)?)));
        self.place.is_none()
            && lines.any(|(rank, line)| {
                let mut groups = model.groups().map(|group| (group.id, u64::MAX));
                groups
                    .any(|it| guards::have_call_of_their_own(model, it, &line, &[*rank], elsewhere))
            })
    }

    /// Why loops around a line may run less often on some ranks, with the reason in the source, if there is
    /// one. Without it, a rank that draws batches or has left may have had fewer of them: one that goes on elsewhere
    /// may have come there in any other way, such as by a signal handler.
    fn loop_around<'a>(&self, process: &'a Process, line: &Arc<Where>) -> Option<Reason<'a>> {
        let mut around = guards::around(process, line);
        let collection = around
            .find(|(_, guard)| guard.form == GuardForm::Iterates)
            .and_then(|it| Some((decided_by(it.1)?, it)));
        let bounds = || {
            let (kind, guard) = choice(process, line, GuardForm::Bounds)?;
            Some((kind, (Arc::clone(line), guard)))
        };
        match collection.or_else(bounds) {
            Some((kind, shown)) => Some((kind, Some(shown))),
            None if process.turns.batches().is_some() || self.all_left() => {
                Some((CauseKind::UnevenInputs, None))
            }
            None => None,
        }
    }

    /// The calls that met where the ranks diverged.
    pub(super) fn diverged(&self) -> Option<&Join> {
        let (group, seq) = self.place?;
        self.situation.join(group, seq)
    }

    /// The line that a process had reached when the ranks diverged. Where calls return at once, it may have
    /// made more calls since.
    pub(super) fn line_at(&self, process: &Process) -> Option<Arc<Where>> {
        let call = self.diverged().and_then(|join| join.calls.get(&process.rank?));
        call.and_then(|it| it.call.place.clone()).or_else(|| last_line(process).cloned())
    }

    /// How often a process had made the call at a line when the ranks diverged, counted as [`Places::calls`] does.
    ///
    /// [`Places::calls`]: crate::model::Places::calls
    pub(super) fn calls_at(&self, process: &Process, line: &Where) -> u64 {
        let all = process.places.calls(line);
        let (Some((group, seq)), Some(rank)) = (self.place, process.rank) else { return all };
        let diverging = self.diverged().and_then(|join| join.calls.get(&rank));
        let first = process.places.first_call(line);
        if first.zip(diverging).is_some_and(|(first, joined)| first > joined.call.id) {
            return 0;
        }
        let joins = &self.situation.model.group(group).joins;
        let is_there = |call: &Call| call.place.as_deref() == Some(line);
        let calls = joins.range((Excluded(seq), Unbounded)).filter_map(|(_, join)| {
            let call = &*join.calls.get(&rank)?.call;
            is_there(call).then_some(call)
        });
        let later = if process.places.is_of_framework(line) {
            let of_visit = diverging.map(|it| &*it.call).filter(|it| is_there(it));
            let steps =
                calls.map(|it| it.step).filter(|&it| of_visit.is_none_or(|of| of.step != it));
            steps.collect::<BTreeSet<u64>>().len()
        } else {
            calls.filter(|it| !it.hidden).count()
        };
        all.saturating_sub(later as u64)
    }

    /// The `try` around the line `within` that goes on after an exception, if it explains that `short` has
    /// gone on to the line `after`: that line is outside of it, or `long` has been there before and now
    /// repeats `within`.
    fn caught<'a>(
        &self,
        short: &Process,
        long: &'a Process,
        after: &Arc<Where>,
        within: &Arc<Where>,
    ) -> Option<(Arc<Where>, &'a Guard)> {
        let mut around = guards::around(long, within);
        let found = around.find(|(_, guard)| guard.form == GuardForm::Catches)?;
        let is_outside = guards::around(short, after).all(|(_, guard)| guard != found.1);
        let repeats = self.calls_at(long, after) > 0 && self.repeats(long, within);
        (is_outside || repeats).then_some(found)
    }

    /// Whether the latest two calls of a process were made at this line, when the ranks diverged.
    fn repeats(&self, process: &Process, line: &Arc<Where>) -> bool {
        self.latest_lines(process).take(2).all(|it| it == line)
    }

    /// Whether a process made as many calls at a line in its latest pass of the loop around it as in the one before; `None`:
    /// these are too long ago.
    fn are_passes_alike(&self, process: &Process, within: &Arc<Where>) -> Option<bool> {
        let mut lines = self.latest_lines(process).map(|it| it == within).skip(1).peekable();
        let mut pass = || {
            while !*lines.peek()? {
                lines.next();
            }
            let mut calls = 0;
            while *lines.peek()? {
                lines.next();
                calls += 1;
            }
            Some(calls)
        };
        Some(pass()? == pass()?)
    }

    /// The line of the call of a process before the one at which the ranks diverged.
    fn preceding_line<'a>(&self, process: &'a Process) -> Option<&'a Arc<Where>> {
        self.latest_lines(process).nth(1)
    }

    /// The lines of the calls of a process when the ranks diverged, the latest first.
    fn latest_lines<'a>(&self, process: &'a Process) -> impl Iterator<Item = &'a Arc<Where>> {
        let lines = process.recent_lines.iter().rev().map(|(_, it)| it);
        let later = self.place.zip(process.rank).map_or(0, |((group, seq), rank)| {
            let joins = self.situation.model.group(group).joins.range(seq + 1..);
            joins.filter(|(_, join)| join.calls.contains_key(&rank)).count()
        });
        lines.skip(later)
    }
}

/// Why the rank `left` has left a loop in which the rank `inside` goes on: by a test in the loop.
pub(crate) fn of_loop_left(
    situation: &Situation<'_>,
    left: u32,
    inside: u32,
) -> Option<CauseHypothesis> {
    let sides = Sides::new(situation, &[left], &[inside], situation.now);
    let process = *sides.others.first()?;
    let ends = |(line, guard): &(Arc<Where>, &Guard)| {
        matches!(guard.form, GuardForm::Ends | GuardForm::Leaves)
            && sides.guards(process).any(|(at, it)| at == *line && it == *guard)
    };
    let shown = sides.missed().into_iter().find(ends)?;
    let kind = meaning(shown.1, false)?;
    Some(suspected(kind, Some(line_is_guarded(&shown))).of_test(&shown))
}

/// Whether a test decides on a line after it.
const fn decides(guard: &Guard) -> bool {
    use GuardForm::{Fails, Holds, Leaves, Returns, Skips};
    matches!(guard.form, Fails | Holds | Leaves | Returns | Skips)
}

/// Whether what a loop runs over is the result of a call that may choose: `self.kept()`, not `enumerate(self.layers)`.
fn is_computed(over: &str) -> bool {
    const AS_LONG: [&str; 5] = ["enumerate", "zip", "reversed", "list", "range"];
    over.match_indices('(').any(|(at, _)| {
        let name = over[..at].rsplit(|c: char| !c.is_alphanumeric() && c != '_').next();
        name.is_some_and(|it| !it.is_empty() && !AS_LONG.contains(&it))
    })
}

/// Whether both are about one statement of a file.
pub(super) fn is_same_test(a: &Guard, b: &Guard) -> bool {
    (a.line, a.form) == (b.line, b.form)
}

/// The cause of calls in different groups at one line of a loop, which ranks make in different orders.
pub(crate) fn order_of_loop(process: &Process, line: &Arc<Where>) -> Option<CauseHypothesis> {
    use GuardForm::{Iterates, Repeats};
    let mut around = guards::all_around(process, line);
    let (at, over) = around.find(|(_, it)| matches!(it.form, Iterates | Repeats))?;
    // Its numbers have one order.
    if over.test.contains("range(") {
        return None;
    }
    let sentence = format!(
        "All these calls are made at {}, in a loop over `{}` ({}): the ranks take its elements in different orders.",
        words::line(line),
        over.test,
        words::source_line(&Where { line: over.line, ..(*at).clone() }),
    );
    let because = with_assignment(sentence, process, &at, over);
    Some(suspected(CauseKind::SwappedCalls, Some(because)).with_suspect(&(at, over)))
}

/// The loop around the line `within` of one process that is not around the line `after` of another one: its header, and
/// whether it is the only one. If tests in the loop decide on the line, there is none.
fn loop_left<'a>(
    short: &Process,
    long: &'a Process,
    after: &Arc<Where>,
    within: &Arc<Where>,
) -> Option<(Arc<Where>, &'a Guard, bool)> {
    let is_same = |a: &(Arc<Where>, &Guard), b: &(Arc<Where>, &Guard)| {
        a.0.file == b.0.file && is_same_test(a.1, b.1)
    };
    let around: Vec<(Arc<Where>, &Guard)> = guards::all_around(short, after).collect();
    let mut found: Vec<(Arc<Where>, &'a Guard)> = Vec::new();
    for it in guards::all_around(long, within) {
        use GuardForm::{Bounds, Chooses, Completes, Computes, Keeps, Repeats, Roots};
        match it.1.form {
            Chooses | Bounds | Computes | Completes | Keeps | Roots => {}
            _ if around.iter().any(|other| is_same(other, &it)) => {}
            Repeats => found.push(it),
            // A test in the loop.
            _ if found.is_empty() => return None,
            // One around the loop, such as that of a `while`, explains as much.
            _ => return None,
        }
    }
    let is_only = found.len() == 1;
    found.pop().map(|(line, guard)| (line, guard, is_only))
}

/// The sentence, and one on the assignment from which the collection of a loop was computed, if the source shows it.
fn with_assignment(because: String, process: &Process, line: &Where, over: &Guard) -> String {
    let mut said = guards::said_of(process, line);
    let is_of_loop =
        |it: &&Guard| it.line < over.line && it.assigned().is_some_and(|name| over.uses(name));
    match said.find(is_of_loop) {
        Some(it) => {
            format!("{because} The collection is computed at line {}: `{}`.", it.line, it.test)
        }
        None => because,
    }
}

#[cfg(test)]
mod tests {
    use super::is_computed;

    #[test]
    fn layers_are_not_computed() {
        for over in ["self.layers", "enumerate(self.layers)", "zip(self.a, (1, 2))", "list(self.a)"]
        {
            assert!(!is_computed(over), "{over}");
        }
        for over in ["self.kept()", "enumerate(chosen(self.layers))", "self.layers.active()"] {
            assert!(is_computed(over), "{over}");
        }
    }
}
