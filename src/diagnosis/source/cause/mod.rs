//! Hypotheses why ranks diverged, at most `supported`.
//!
//! In order of preference: recorded events (an iterator that ended, a caught exception, a step
//! without calls); conditions in the source around the lines, which are only suspected unless a
//! condition on the rank matches the ranks that made the call; and the values that differ at one
//! line. Lines of installed packages and of the standard library show no cause: their conditions are
//! not the user's. Without evidence there is no cause.

use std::collections::BTreeSet;
use std::sync::Arc;

use ddp_doctor_proto::report::{Cause, CauseKind, Confidence, RankCall, Timestamp, Where};
use ddp_doctor_proto::{GuardForm, GuardSubject};

use crate::guards;
use crate::input::event::Guard;
use crate::input::transport;
use crate::model::{Exception, GroupId, Process};
use crate::situation::Situation;
use crate::stacks::is_users;
use crate::words::{self, Ranks};

mod completion;
mod loops;
mod mistake;
mod passed_over;
mod values;

pub(crate) use loops::{of_loop_left, order_of_loop};
pub use mistake::{Mistake, Suspect};
pub(crate) use passed_over::of_test_on_rank;
pub use values::of_values;
use values::{choice, decided_by};
pub(crate) use values::{of_length, of_size};

/// A cause with its evidence.
#[derive(Clone, Debug)]
pub struct CauseHypothesis {
    /// The hypothesis.
    pub cause: Cause,
    /// The evidence as a sentence; `None` if the cause needs none.
    pub because: Option<String>,
    /// What a rank did wrong, if the cause is supported.
    pub mistake: Option<Mistake>,
    /// The statement that may be the mistake, if that is only suspected.
    pub suspect: Option<Suspect>,
    /// All ranks took the same path: advice against different paths does not apply.
    pub same_path: bool,
    /// The part of what the cause covers, if the advice depends on it.
    pub detail: Detail,
}

/// A part of what a kind of cause covers, with advice of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Detail {
    /// No part in particular.
    #[default]
    Any,
    /// The input is a collection of the program that a loop runs over, or the number of its iterations differs.
    Loop,
    /// The decision follows the clock of each rank.
    Clock,
    /// Both sides make a call, each in a branch of its own.
    Branches,
    /// The call is made in an exception handler.
    Handler,
    /// A function returns before the call.
    Return,
    /// A rank has cached the result of a function that makes the call.
    Cache,
    /// A rank used a group that does not include it.
    Membership,
    /// A rank ends its process at a line that the others do not reach.
    Exit,
    /// The other ranks wait in a collective for the rank that decides.
    Awaited,
    /// The calls follow the completion of tasks, futures or threads.
    Completion,
    /// All ranks of a cycle send first, or all receive first.
    Exchange,
}

/// The most likely reason why the ranks `odd` diverged from `others`, from evidence up to `at`.
pub fn most_likely(situation: &Situation<'_>, odd: &[u32], others: &[u32], at: Timestamp) -> Cause {
    read(situation, None, odd, others, at).cause
}

/// The same, with its evidence. `place` is the group and sequence number at which they diverged.
pub fn read(
    situation: &Situation<'_>,
    place: Option<(GroupId, u64)>,
    odd: &[u32],
    others: &[u32],
    at: Timestamp,
) -> CauseHypothesis {
    Sides { place, ..Sides::new(situation, odd, others, at) }.read()
}

/// The same for ranks whose `requests` differ: if nothing else explains it, a test may have decided
/// on a value that they used at one line.
pub fn of_requests(
    situation: &Situation<'_>,
    requests: &[RankCall],
    odd: &[u32],
    others: &[u32],
    at: Timestamp,
) -> CauseHypothesis {
    let hypothesis = Sides { requests, ..Sides::new(situation, odd, others, at) }.read();
    let chosen = of_values(situation, requests);
    chosen.filter(|_| hypothesis.cause.kind == CauseKind::Unknown).unwrap_or(hypothesis)
}

impl CauseHypothesis {
    /// The same with what a rank did wrong.
    #[must_use]
    pub(crate) fn with_mistake(self, mistake: Mistake) -> Self {
        Self { mistake: Some(mistake), ..self }
    }

    /// The same about a part of what its cause covers.
    #[must_use]
    pub(crate) fn with_detail(self, detail: Detail) -> Self {
        Self { detail, ..self }
    }

    /// The same about a test around a line.
    fn of_test(self, shown: &(Arc<Where>, &Guard)) -> Self {
        let guard = shown.1;
        self.with_suspect(shown).with_detail(match (guard.subject, guard.form) {
            (GuardSubject::Clock, _) => Detail::Clock,
            (GuardSubject::Input, _) => Detail::Loop,
            (_, GuardForm::Caches) => Detail::Cache,
            (_, GuardForm::Returns) => Detail::Return,
            (_, GuardForm::Handles) => Detail::Handler,
            _ => Detail::Any,
        })
    }

    /// The same with a statement around a line that may be the mistake.
    fn with_suspect(self, (line, guard): &(Arc<Where>, &Guard)) -> Self {
        Self { suspect: Some(Suspect::new(line, guard)), ..self }
    }

    /// Nothing on record explains it.
    pub(crate) const fn unknown() -> Self {
        suspected(CauseKind::Unknown, None)
    }
}

struct Sides<'a> {
    situation: &'a Situation<'a>,
    place: Option<(GroupId, u64)>,
    /// Calls that differ, if they are not those at the place.
    requests: &'a [RankCall],
    odd: Vec<&'a Process>,
    others: Vec<&'a Process>,
    at: Timestamp,
}

impl<'a> Sides<'a> {
    fn new(situation: &'a Situation<'a>, odd: &[u32], others: &[u32], at: Timestamp) -> Self {
        let processes = |ranks: &[u32]| {
            ranks.iter().filter_map(|&rank| situation.model.process_of(rank)).collect()
        };
        let (odd, others) = (processes(odd), processes(others));
        Self { situation, place: None, requests: &[], odd, others, at }
    }

    fn read(&self) -> CauseHypothesis {
        self.uneven_inputs()
            .or_else(|| self.swallowed_exception())
            .or_else(|| self.skipped_iteration())
            .or_else(|| self.rank_conditional())
            .or_else(|| self.exit_for_rank())
            .or_else(|| self.order_of_completion())
            .or_else(|| self.ignored_call())
            .or_else(|| self.drew_all())
            .or_else(|| self.shorter_loop())
            .or_else(|| self.passed_over())
            .or_else(|| self.tests())
            .or_else(|| self.left())
            .or_else(|| self.other_tests())
            .or_else(|| self.left_loop())
            .or_else(|| self.left_try())
            .or_else(|| self.values())
            .unwrap_or_else(CauseHypothesis::unknown)
    }

    fn everybody(&self) -> impl Iterator<Item = &'a Process> {
        self.odd.iter().chain(&self.others).copied()
    }

    /// PyTorch ignored a call of one side at the line where the other side waits. A program may make such
    /// calls in every iteration, so others must precede it, or there must be none.
    fn ignored_call(&self) -> Option<CauseHypothesis> {
        const OTHERS: u64 = 3;
        let ignored = |from: &[&Process], by: &[&'a Process]| {
            let line = self.line_of(by.first()?)?;
            let before = |it: &Process| it.places.before_ignored(&line);
            if by.iter().any(|it| before(it).is_some()) {
                return None;
            }
            let hypothesis = |process: &Process| {
                let sentence = format!(
                    "Rank {} passed a group that it does not belong to, at {}: PyTorch ignores \
                     such a call.",
                    process.rank?,
                    words::line(&line)
                );
                let because = Some(sentence);
                match before(process)? {
                    OTHERS.. => {
                        let mistake = Mistake::ignored(process.rank?, &line);
                        Some(supported(CauseKind::LocalDecision, because).with_mistake(mistake))
                    }
                    _ if process.places.calls(&line) > 0 => None,
                    _ => Some(suspected(CauseKind::LocalDecision, because)),
                }
            };
            let found = from.iter().find_map(|process| hypothesis(process));
            found.map(|it| it.with_detail(Detail::Membership))
        };
        ignored(&self.odd, &self.others).or_else(|| ignored(&self.others, &self.odd))
    }

    /// An iterator ended on some ranks and not on others, and these ranks began no step since then.
    fn uneven_inputs(&self) -> Option<CauseHypothesis> {
        // Where steps do not tell the batches, the one announced as the last may be that of any of them.
        let tells = |process: &Process| {
            let announced = process.input_ended.as_ref().is_some_and(|it| it.is_announced);
            !announced || process.turns.batches().is_some()
        };
        let ended = |process: &&Process| input_ended_before(process, self.at) && tells(process);
        let (short, long): (Vec<&Process>, Vec<&Process>) = self.everybody().partition(ended);
        if short.is_empty() || long.is_empty() {
            return None;
        }
        // Another epoch follows inputs of one length: their ends are not what differs.
        let length = |it: &&Process| it.input_ended.as_ref()?.batches;
        let lengths: Vec<u64> = short.iter().filter_map(length).collect();
        if long.iter().filter_map(length).any(|it| lengths.contains(&it)) {
            return None;
        }
        // With equal numbers of batches a rank has omitted a call instead.
        let most = |them: &[&Process]| them.iter().filter_map(|it| it.turns.batches()).max();
        let because = match (most(&short), most(&long)) {
            (Some(short), Some(long)) if long <= short => return None,
            (Some(drawn), Some(more)) => Some(format!(
                "The input of {} ended after {drawn} batches; {} drew {more}.",
                ranks(&short),
                ranks(&long)
            )),
            _ => None,
        };
        let mistake =
            Mistake::ran_out(&numbers(&short), most(&short), &numbers(&long), most(&long));
        Some(supported(CauseKind::UnevenInputs, because).with_mistake(mistake))
    }

    /// An exception left a collective, a forward or a backward, and its rank continued.
    fn swallowed_exception(&self) -> Option<CauseHypothesis> {
        let type_of = |it: &Exception| it.text.split(':').next().map(str::to_owned);
        let raised = |it: &Process, as_this: &Exception| {
            let other = swallowed(it, self.at);
            other.is_some_and(|it| it.place == as_this.place && type_of(it) == type_of(as_this))
        };
        self.everybody().find_map(|process| {
            let exception = swallowed(process, self.at)?;
            // What all of them raised at one line is not what differs.
            if self.everybody().all(|it| raised(it, exception)) {
                return None;
            }
            let because = format!(
                "Rank {} raised {}{} and continued.",
                process.rank?,
                words::short(&exception.text),
                words::at(exception.place.as_deref())
            );
            let mistake = Mistake::went_on(process.rank?, exception);
            Some(supported(CauseKind::SwallowedException, Some(because)).with_mistake(mistake))
        })
    }

    /// A step in which a rank made no call of the group, while others did.
    fn skipped_iteration(&self) -> Option<CauseHypothesis> {
        let (group, _) = self.place?;
        let history = &self.situation.model.group(group).history;
        let (process, skip) = self
            .everybody()
            .find_map(|process| Some((process, history.skip_of(process.rank?)?)))?;
        let rank = process.rank?;
        let peers: Vec<&Process> = self.everybody().filter(|it| it.rank != Some(rank)).collect();
        let because = format!(
            "Rank {rank} passed step {} without the calls that {} made in theirs.",
            skip.turn,
            ranks(&peers)
        );
        let mut lines = self.everybody().flat_map(|it| self.guards(it));
        let skips = lines.find(|(_, guard)| guard.form == GuardForm::Skips);
        let mistake = Mistake::skipped(rank, skip.turn, skips.as_ref());
        let because = Some(with_line(because, skips));
        Some(supported(CauseKind::SkippedIteration, because).with_mistake(mistake))
    }

    /// The reading of a test with the detail that both sides make a call in branches of its statement, or that a process
    /// ends in it.
    fn in_branches(
        &self,
        hypothesis: CauseHypothesis,
        (line, guard): &(Arc<Where>, &Guard),
    ) -> CauseHypothesis {
        let is_branch = |it: &(Arc<Where>, &Guard)| {
            it.0.file == line.file && it.1.line == guard.line && it.1.form != guard.form
        };
        let ends = |it: &Process| {
            let exit = it.announced.as_ref().and_then(|it| it.place.as_ref());
            exit.is_some_and(|it| it.is_same_line(line))
        };
        if self.everybody().any(ends) {
            return hypothesis.with_detail(Detail::Exit);
        }
        if self.everybody().any(|it| self.guards(it).any(|it| is_branch(&it))) {
            return hypothesis.with_detail(Detail::Branches);
        }
        hypothesis
    }

    /// A condition on the rank that explains which ranks made the call.
    fn rank_conditional(&self) -> Option<CauseHypothesis> {
        let (group, seq) = self.place?;
        let join = self.situation.join(group, seq)?;
        let parted = |here: &[&Process], elsewhere: &[&Process]| {
            let place = join.calls.get(&here.first()?.rank?)?.call.place.clone()?;
            let (here, elsewhere) = (numbers(here), numbers(elsewhere));
            guards::parted_now(self.situation.model, (group, seq), &place, &here, &elsewhere)
        };
        let rank_guard = parted(&self.odd, &self.others)
            .or_else(|| parted(&self.others, &self.odd))
            .or_else(|| {
                let group = self.situation.model.group(group);
                self.situation.rank_guard(group, seq, join)
            })?;
        let mistake = Mistake::parted(self.situation, group, &rank_guard);
        let shown = (rank_guard.line, &rank_guard.guard);
        let because = line_is_guarded(&shown);
        let hypothesis = supported(CauseKind::RankConditional, Some(because)).with_mistake(mistake);
        Some(self.in_branches(hypothesis, &shown))
    }

    /// A condition on the rank leads only the odd ranks to the line that ends their processes.
    fn exit_for_rank(&self) -> Option<CauseHypothesis> {
        let process = *self.odd.first()?;
        let exit = process.announced.as_ref()?;
        let place = exit.place.as_ref()?;
        let (here, elsewhere) = (numbers(&self.odd), numbers(&self.others));
        let is_there = |it: &&Process| {
            let line = it.announced.as_ref().and_then(|it| it.place.as_ref());
            line.is_some_and(|it| it.is_same_line(place))
        };
        let model = self.situation.model;
        let (line, guard) = guards::parted_at(model, process, place, &here, &elsewhere)?;
        if !self.odd.iter().all(is_there) {
            return None;
        }
        let mistake = Mistake::exited(&here, &exit.how, place, guard);
        let because = Some(line_is_guarded(&(line, guard)));
        let hypothesis = supported(CauseKind::RankConditional, because);
        Some(hypothesis.with_mistake(mistake).with_detail(Detail::Exit))
    }

    /// Conditions in the source around lines that only one side reached.
    fn tests(&self) -> Option<CauseHypothesis> {
        let all_left = self.all_left();
        self.missed().into_iter().find_map(|(line, guard)| {
            let kind = meaning(guard, all_left)?;
            let shown = (line, guard);
            let hypothesis = suspected(kind, Some(line_is_guarded(&shown))).of_test(&shown);
            Some(self.in_branches(hypothesis, &shown))
        })
    }

    /// Conditions around lines that only one side reached whose subject is unknown: each rank
    /// decided by itself.
    fn other_tests(&self) -> Option<CauseHypothesis> {
        let decides = |guard: &Guard| {
            use GuardForm::{Fails, Holds, Leaves, Returns};
            matches!(guard.form, Holds | Fails | Leaves | Returns)
        };
        if self.odd.is_empty() || self.others.is_empty() {
            return None;
        }
        let mut missed = self.missed().into_iter();
        let shown = missed.find(|(_, guard)| decides(guard))?;
        let because = line_is_guarded(&shown);
        Some(suspected(CauseKind::LocalDecision, Some(because)).of_test(&shown))
    }

    /// Conditions around the last line of one side that are not around that of the other. Those
    /// that end a loop come first: one side has left the loop, in which it was before, the other has
    /// not.
    fn missed(&self) -> Vec<(Arc<Where>, &'a Guard)> {
        let missed = |from: &[&'a Process], by: &[&'a Process]| -> Vec<(Arc<Where>, &'a Guard)> {
            // A caller explains nothing if another one leads the other side there.
            let leads_there = |place: &Where, caller: &Where| {
                let mut others = by.iter();
                !others.any(|it| it.places.contains(place) && !guards::has_passed(it, caller))
            };
            let places = from.iter().filter_map(|process| Some((process, self.line_of(process)?)));
            let lines = places.flat_map(|(process, place)| {
                let lines = guards::around(process, &place);
                lines.filter(move |(line, _)| leads_there(&place, line))
            });
            let left = |line: &Where| by.iter().any(|other| guards::has_passed(other, line));
            lines
                .filter(|(line, guard)| {
                    let was_in_loop = || by.iter().any(|it| guards::was_under(it, line, guard));
                    guard.form != GuardForm::Ends || left(line) || was_in_loop()
                })
                // A result is cached only if the line was reached before.
                .filter(|(line, guard)| guard.form != GuardForm::Caches || left(line))
                .filter(|(line, guard)| {
                    // A condition around lines of both sides does not separate them, nor does one on
                    // the rank if the other side has made a counterpart of the call, and gone on.
                    let is_past = |it: &Process| {
                        let is_outside = |now: Arc<Where>| {
                            (&now.file, &now.function) != (&line.file, &line.function)
                        };
                        self.line_of(it).is_some_and(is_outside)
                            && guards::has_counterpart(it, line, &numbers(from))
                    };
                    // One on the rank that has let the other side pass before keeps it away only if something else
                    // in it has changed.
                    let has_let_pass = |it: &Process| {
                        let (here, elsewhere) = (numbers(from), numbers(by));
                        guards::has_passed(it, line)
                            && !guards::fits(self.situation.model, guard, &here, &elsewhere)
                    };
                    // The other branch makes the call as well.
                    let is_made_there = guard.other.is_some_and(|it| it.makes_call);
                    let (here, elsewhere) = (numbers(from), numbers(by));
                    let is_open = || guards::lets_pass(self.situation.model, guard, &elsewhere);
                    let is_no_reason =
                        || is_made_there || is_open() || self.have_met_there(&here, &elsewhere);
                    if guard.subject == GuardSubject::Rank && is_no_reason() {
                        return false;
                    }
                    !by.iter().any(|other| {
                        self.guards(other).any(|(_, it)| it == *guard)
                            || guard.subject == GuardSubject::Rank
                                && (is_past(other) || has_let_pass(other))
                    })
                })
                .collect()
        };
        let mut tests = missed(&self.odd, &self.others);
        tests.extend(missed(&self.others, &self.odd));
        let leaves = |guard: &Guard| {
            matches!(guard.form, GuardForm::Ends | GuardForm::Leaves | GuardForm::Returns)
        };
        tests.sort_by_key(|(_, guard)| !leaves(guard));
        tests
    }

    /// Conditions around the line of a process's call that differs, or of its last call.
    fn guards(&self, process: &'a Process) -> impl Iterator<Item = (Arc<Where>, &'a Guard)> {
        self.line_of(process).into_iter().flat_map(|place| guards::around(process, &place))
    }

    fn line_of(&self, process: &Process) -> Option<Arc<Where>> {
        let rank = process.rank;
        let mut requests = self.requests.iter();
        let request = requests.find(|it| Some(it.rank) == rank);
        let requested = request.and_then(|it| it.place.clone()).map(Arc::new);
        let join = self.place.and_then(|(group, seq)| self.situation.join(group, seq));
        let call = rank.zip(join).and_then(|(rank, join)| join.calls.get(&rank));
        let exit = || process.announced.as_ref()?.place.clone();
        requested
            .or_else(|| call?.call.place.clone())
            .or_else(exit)
            .or_else(|| last_line(process).cloned())
    }
}

/// The kind of cause that a condition indicates which only one side passed.
pub(crate) fn meaning(guard: &Guard, all_left: bool) -> Option<CauseKind> {
    use GuardForm::{Bounds, Caches, Catches, Chooses, Completes, Computes, Iterates, Repeats};
    use GuardForm::{
        Ends, Fails, Handles, Holds, Keeps, Leaves, Returns, Roots, Skips, Unspecified,
    };
    use GuardSubject::{Clock, Data, Finite, Input, Rank, State};
    Some(match (guard.form, guard.subject) {
        (Handles, _) => CauseKind::SwallowedException,
        (Catches | Chooses | Bounds | Iterates | Repeats, _) => return None,
        (Completes | Computes | Keeps | Roots | Unspecified, _) => return None,
        (_, Rank) => CauseKind::RankConditional,
        (Caches, _) => CauseKind::LocalDecision,
        (Ends | Leaves | Returns, Input) => CauseKind::UnevenInputs,
        // Each rank decides by itself when to leave the loop.
        (Ends, _) => CauseKind::LocalDecision,
        // What follows in the step is skipped, whatever the other steps hold.
        (Leaves | Returns | Skips, Finite) => CauseKind::SkippedIteration,
        (Leaves | Returns, _) if all_left => CauseKind::LocalDecision,
        (Holds | Fails | Leaves | Returns | Skips, State | Clock) => CauseKind::LocalDecision,
        (Holds | Fails | Leaves | Returns, Data | Finite) => CauseKind::DataDependentPath,
        (Skips, _) => CauseKind::SkippedIteration,
        (Holds | Fails | Leaves | Returns, _) => return None,
    })
}

fn numbers(processes: &[&Process]) -> Vec<u32> {
    let numbers: BTreeSet<u32> = processes.iter().filter_map(|it| it.rank).collect();
    numbers.into_iter().collect()
}

fn ranks(processes: &[&Process]) -> String {
    Ranks(&numbers(processes)).to_string()
}

/// "The line train.py:9 is reached only if …".
fn line_is_guarded((line, guard): &(Arc<Where>, &Guard)) -> String {
    format!("{}.", guards::about(line, guard))
}

/// The sentence, and the one on the line that shows the cause, if there is one.
fn with_line(because: String, shown: Option<(Arc<Where>, &Guard)>) -> String {
    match shown {
        Some(shown) => format!("{because} {}", line_is_guarded(&shown)),
        None => because,
    }
}

/// Whether the user's source around a line is known.
fn is_read(process: &Process, line: &Arc<Where>) -> bool {
    let site = process.sites.get(line);
    is_users(&line.file) && site.is_some_and(|site| site.guards.is_some())
}

/// Line of a process's last call.
fn last_line(process: &Process) -> Option<&Arc<Where>> {
    process.last_call.as_ref()?.place.as_ref()
}

/// Whether the program's input had ended by `at`, and no step has begun since.
fn input_ended_before(process: &Process, at: Timestamp) -> bool {
    let ended = process.input_ended.as_ref();
    ended.is_some_and(|it| it.is_latest && it.at <= at && it.at >= process.step_at)
}

/// The last caught exception that left a collective, a forward or a backward by `at`.
pub fn swallowed(process: &Process, at: Timestamp) -> Option<&Exception> {
    let uncaught = process.uncaught();
    process.exceptions.iter().rev().find(|exception| {
        // A text does not say what follows, and the loss of a peer is due to that peer.
        !process.is_from_text()
            && !transport::is_loss_of_peer(&exception.text)
            && exception.at <= at
            // Without a call in between it may be what was raised anew and not caught.
            && uncaught.is_none_or(|it| it.after_calls > exception.after_calls)
            && exception.has_left_a_call()
    })
}

/// A supported cause with its evidence, if it needs any.
pub(crate) const fn supported(kind: CauseKind, because: Option<String>) -> CauseHypothesis {
    hypothesis(kind, Confidence::Supported, because)
}

/// A cause that is only suspected.
pub(crate) const fn suspected(kind: CauseKind, because: Option<String>) -> CauseHypothesis {
    hypothesis(kind, Confidence::Suspected, because)
}

const fn hypothesis(
    kind: CauseKind,
    confidence: Confidence,
    because: Option<String>,
) -> CauseHypothesis {
    CauseHypothesis {
        cause: Cause { kind, confidence },
        because,
        mistake: None,
        suspect: None,
        same_path: false,
        detail: Detail::Any,
    }
}

pub use ddp_doctor_proto::words::cause as sentence;
