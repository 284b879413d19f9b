//! What a rank did wrong, as the start of a headline: the ranks, and a clause with the lines of the
//! program.

use std::sync::Arc;

use ddp_doctor_proto::GuardForm;
use ddp_doctor_proto::report::Where;

use crate::guards::{self, RankGuard};
use crate::input::event::{Call, Guard};
use crate::model::{Exception, GroupId};
use crate::situation::Situation;
use crate::words::{self, Ranks, number};

/// Maximum length of a test in a headline, in characters.
const MAX_TEST_CHARS: usize = 40;
/// Maximum length of an exception's text in a headline, in characters.
const MAX_EXCEPTION_CHARS: usize = 60;

/// What ranks did wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// The ranks that did it; empty: it is unknown which.
    pub ranks: Vec<u32>,
    /// "rank 0 alone calls evaluate() at train.py:28 (`if rank == 0`, line 27)"
    pub clause: String,
}

/// A statement of the program that may be the mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suspect {
    /// "`if self.preempted`", whole and cut.
    pub texts: [String; 2],
    /// Its line.
    pub line: Where,
}

impl Suspect {
    /// The statement on which `line` depends.
    pub(super) fn new(line: &Where, guard: &Guard) -> Self {
        use GuardForm::{Catches, Handles};
        use GuardForm::{Completes, Iterates, Repeats};
        use GuardForm::{Ends, Fails, Holds, Leaves, Returns, Skips};
        let text = |test: &str| match guard.form {
            Holds | Skips | Leaves | Returns | Ends => format!("`{} {test}`", guard.keyword()),
            Fails => format!("`else` of `if {test}`"),
            Iterates | Repeats | Completes => format!("the loop over `{test}`"),
            Handles | Catches => "the handled exception".to_owned(),
            _ => format!("`{test}`"),
        };
        let texts = [text(&guard.test), text(&cut(&guard.test, MAX_TEST_CHARS))];
        Self { texts, line: Where { line: guard.line, ..line.clone() } }
    }
}

impl Mistake {
    /// A mistake of these ranks in a clause that begins with them.
    pub(crate) fn new(ranks: &[u32], clause: String) -> Self {
        Self { ranks: ranks.to_vec(), clause }
    }

    /// Input ended on some ranks, with these numbers of batches where they are known.
    pub(super) fn ran_out(
        short: &[u32],
        drawn: Option<u64>,
        long: &[u32],
        more: Option<u64>,
    ) -> Self {
        let clause = match (drawn, more) {
            (Some(drawn), Some(more)) => {
                let have = Ranks(long).with("has", "have");
                let of = Ranks(short);
                format!("{of} ran out of batches after {drawn}, while {have} drawn {more}")
            }
            _ => {
                let after = drawn.map_or_else(String::new, |drawn| format!(" after {drawn}"));
                format!("{} ran out of batches{after}, while {} did not", Ranks(short), Ranks(long))
            }
        };
        Self::new(short, clause)
    }

    /// Each rank makes the calls at these lines in the order in which results of this are complete.
    pub(super) fn as_completed(lines: [&Where; 2], of: &Guard) -> Self {
        let [first, second] =
            if lines[0].line <= lines[1].line { lines } else { [lines[1], lines[0]] };
        let shown = words::source_line(first);
        let and_second = match () {
            () if first.is_same_line(second) => String::new(),
            () if first.file == second.file => format!(" and line {}", second.line),
            () => format!(" and {}", words::source_line(second)),
        };
        let clause = format!(
            "calls at {shown}{and_second} are made as the results of `{}` (line {}) become ready on each rank",
            cut(&of.test, MAX_TEST_CHARS),
            of.line,
        );
        Self::new(&[], clause)
    }

    /// Ranks left a loop in which others go on, since what they loop over is shorter.
    pub(super) fn left_loop(short: &[u32], long: &[u32], line: &Where, over: &Guard) -> Self {
        let clause = format!(
            "{} left the loop over `{}` at {}, {} still in it",
            Ranks(short),
            cut(&over.test, MAX_TEST_CHARS),
            file(line, over),
            Ranks(long).with("is", "are"),
        );
        Self::new(short, clause)
    }

    /// A test decides on a line that `past` have passed over and `inside` have reached. `before`: all have been there
    /// before.
    pub(super) fn passed_over(
        [past, inside]: [&[u32]; 2],
        line: &Where,
        guard: &Guard,
        before: bool,
    ) -> Self {
        let at = words::source_line(line);
        let test = cut(&guard.test, MAX_TEST_CHARS);
        let number = guard.line;
        let is_inside = inside.len() <= past.len();
        match guard.form {
            GuardForm::Holds if guard.is_while && before => {
                let file = file(line, guard);
                if is_inside {
                    let repeat = Ranks(inside).with("repeats", "repeat");
                    Self::new(inside, format!("only {repeat} `while {test}` at {file}"))
                } else {
                    let clause = format!("{} left `while {test}` at {file} early", Ranks(past));
                    Self::new(past, clause)
                }
            }
            GuardForm::Holds | GuardForm::Fails if is_inside => {
                let reach = Ranks(inside).with("reaches", "reach");
                let now = if before { " this time" } else { "" };
                let branch = if guard.form == GuardForm::Holds { "" } else { "`else` of " };
                let shown = format!("{branch}`{} {test}`", guard.keyword());
                Self::new(inside, format!("only {reach} {at}{now} ({shown}, line {number})"))
            }
            _ => Self::new(
                past,
                format!("{} skipped {at} (`if {test}`, line {number})", Ranks(past)),
            ),
        }
    }

    /// A test leads only these ranks to the line that ends their processes.
    pub(super) fn exited(ranks: &[u32], how: &str, line: &Where, guard: &Guard) -> Self {
        let ends = if let [rank] = ranks {
            format!("rank {rank} alone calls")
        } else {
            format!("only {} call", Ranks(ranks))
        };
        let (line, test) = (words::source_line(line), text(guard, "others"));
        Self::new(ranks, format!("{ends} {how}() at {line} ({test}, line {})", guard.line))
    }

    /// A rank raised an exception.
    pub(crate) fn raised(rank: u32, exception: &Exception) -> Self {
        Self::new(&[rank], format!("rank {rank} raised {}", shown(exception)))
    }

    /// An exception ended a thread of a rank, of which another thread waits at this line.
    pub(crate) fn failed_thread(rank: u32, exception: &Exception, waits: Option<&Where>) -> Self {
        let exception = shown(exception);
        let waits = words::at(waits);
        let clause =
            format!("a thread of rank {rank} ended with {exception}; another one waits{waits}");
        Self::new(&[rank], clause)
    }

    /// A rank raised an exception, and continued.
    pub(crate) fn went_on(rank: u32, exception: &Exception) -> Self {
        let Self { ranks, clause } = Self::raised(rank, exception);
        Self { ranks, clause: clause + " and continued" }
    }

    /// A rank passed a step without calls, because of this test if it is known.
    pub(crate) fn skipped(rank: u32, step: u64, test: Option<&(Arc<Where>, &Guard)>) -> Self {
        let test = test.map(|(line, guard)| {
            format!(" at {} (`if {}`)", file(line, guard), cut(&guard.test, MAX_TEST_CHARS))
        });
        let clause = format!("rank {rank} skipped step {step}{}", test.unwrap_or_default());
        Self::new(&[rank], clause)
    }

    /// A rank made calls with a group that it does not belong to.
    pub(super) fn ignored(rank: u32, line: &Where) -> Self {
        let line = words::source_line(line);
        let clause =
            format!("rank {rank} makes its call at {line} on a group that it does not belong to");
        Self::new(&[rank], clause)
    }

    /// A test on the rank decides which ranks make a call.
    pub(crate) fn parted(
        situation: &Situation<'_>,
        group: GroupId,
        rank_guard: &RankGuard,
    ) -> Self {
        let join = situation.join(group, rank_guard.seq);
        let rank = rank_guard.inside.first();
        let process = rank.and_then(|&rank| situation.model.member(group, rank));
        let joined = join.and_then(|join| Some(&*join.calls.get(rank?)?.call));
        let latest = || process.and_then(|it| it.last_call.as_deref());
        let is_there = |it: &&Call| it.place.as_deref() == Some(&*rank_guard.place);
        let call = joined.or_else(latest).filter(is_there);
        let mut ways = process.into_iter().flat_map(|it| guards::way_to(it, &rank_guard.place));
        let mut inner = None;
        let reached = ways.find(|it| {
            let is_line = it.is_same_line(&rank_guard.line);
            if !is_line {
                inner = Some(Arc::clone(it));
            }
            is_line
        });
        let inner = inner.filter(|_| reached.is_some());
        let line = words::source_line(&rank_guard.line);
        let guard = &rank_guard.guard;
        let of_few = rank_guard.few() == Some(&rank_guard.outside[..]);
        let others = if of_few { number(&rank_guard.outside, "it", "they") } else { "others" };
        let at = format!("at {line} ({}, line {})", text(guard, others), guard.line);
        let members = situation.model.group(group).members.len();
        let is_part = situation.model.world_size().is_some_and(|it| members < it as usize);
        let of_group = if is_part { " in its group" } else { "" };
        let does = |plural: bool| called(inner.as_deref(), &rank_guard.place, call, plural);
        let inside = &rank_guard.inside;
        match rank_guard.few() {
            Some(few) if few == rank_guard.outside => {
                let not = Ranks(few).with("does not", "do not");
                Self::new(few, format!("{not} {} {at}", does(true)))
            }
            few => {
                let clause = match (few, &inside[..]) {
                    (Some(_), [rank]) => {
                        format!("rank {rank} alone{of_group} {} {at}", does(false))
                    }
                    (Some(_), _) => format!("only {} {} {at}", Ranks(inside), does(true)),
                    (None, _) => {
                        let others = Ranks(&rank_guard.outside).with("does not", "do not");
                        let is_plural = inside.len() > 1;
                        format!("{} {} {at}, {others}", Ranks(inside), does(is_plural))
                    }
                };
                Self::new(inside, clause)
            }
        }
    }
}

/// What a line of a program calls: "calls evaluate()", "runs backward". `inner`: the line that it
/// calls, unless the call is made there.
fn called(inner: Option<&Where>, place: &Where, call: Option<&Call>, plural: bool) -> String {
    let verb = |one: &str, several: &str| if plural { several } else { one }.to_owned();
    let called = inner.map(words::function);
    let feature = || place.features().first().map(|frame| format!("{}()", frame.function));
    if let Some(function) = called.or_else(feature) {
        return verb("calls ", "call ") + &function;
    }
    match call {
        Some(call) if call.is_bucket() => verb("runs", "run") + " backward",
        Some(call) if call.hidden => format!("{} an implicit {}", verb("makes", "make"), call.op),
        Some(call) => format!("{} {}()", verb("calls", "call"), call.op),
        None => verb("makes", "make") + " the call",
    }
}

/// How a test decides on a line, and what ranks that do not reach the line do: "`if rank == 0`",
/// "others leave where `rank != 0`".
fn text(guard: &Guard, others: &str) -> String {
    let test = cut(&guard.test, MAX_TEST_CHARS);
    let s = if others == "it" { "s" } else { "" };
    match guard.form {
        GuardForm::Holds => format!("`{} {test}`", guard.keyword()),
        GuardForm::Fails => format!("`else` of `if {test}`"),
        GuardForm::Skips => format!("{others} skip{s} it where `{test}`"),
        GuardForm::Leaves | GuardForm::Ends | GuardForm::Returns => {
            format!("{others} leave{s} where `{test}`")
        }
        _ => format!("`{test}`"),
    }
}

/// The line of a test in the file of the line that depends on it.
fn file(line: &Where, guard: &Guard) -> String {
    words::source_line(&Where { line: guard.line, ..line.clone() })
}

/// An exception and its line.
fn shown(exception: &Exception) -> String {
    let text = words::short(&exception.text);
    format!("{}{}", cut(&text, MAX_EXCEPTION_CHARS), words::at(exception.place.as_deref()))
}

/// The start of a text that is longer than this.
fn cut(text: &str, max: usize) -> String {
    match text.char_indices().nth(max) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}
