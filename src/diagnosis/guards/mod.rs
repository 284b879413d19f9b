//! How the source explains that a rank reached a line: the tests around the line, and around the
//! calls that led there.

use std::cmp::Ordering;
use std::sync::Arc;

use ddp_doctor_proto::report::Where;
use ddp_doctor_proto::{GuardForm, GuardSubject};

use crate::input::event::Guard;
use crate::model::history::Meeting;
use crate::model::{GroupId, Model, Process};
use crate::stacks::{self, is_users};
use crate::words;

pub mod python;
mod test;

/// Maximum number of callers of a line that are followed.
const MAX_CALLERS: usize = 16;

/// A test on the rank that separates ranks.
#[derive(Clone, Debug)]
pub struct RankGuard {
    /// Line of the call.
    pub place: Arc<Where>,
    /// The line that depends on the test: that of the call, or of a caller.
    pub line: Arc<Where>,
    /// The test.
    pub guard: Guard,
    /// Sequence number of the call there.
    pub seq: u64,
    /// Ranks that reached the line.
    pub inside: Vec<u32>,
    /// Ranks that did not.
    pub outside: Vec<u32>,
}

impl RankGuard {
    /// The ranks on the branch that fewer ranks take: of two equal ones, that which fewer ranks of a
    /// large world would take. `None`: neither is known to be the smaller one.
    pub fn few(&self) -> Option<&[u32]> {
        /// Number of ranks of the large world.
        const MANY: u32 = 64;
        let in_large_world = || {
            let mut guard = self.guard.clone();
            if reaches(&guard, 0, Some(MANY)).is_none() {
                guard.test = test::of_rank(&guard.test).map_or(guard.test, Into::into);
            }
            let of = |is_inside: bool| {
                let is_reached = |rank: &u32| reaches(&guard, *rank, Some(MANY)) == Some(is_inside);
                (0..MANY).filter(is_reached).count()
            };
            of(true).cmp(&of(false))
        };
        let sizes = self.inside.len().cmp(&self.outside.len());
        match sizes.then_with(in_large_world) {
            Ordering::Less => Some(&self.inside),
            Ordering::Greater => Some(&self.outside),
            Ordering::Equal => None,
        }
    }
}

/// A line, its caller, the caller of that, and so on: as the stack shows them if the process is in its call there, or
/// else those of the first call.
pub(crate) fn way_to<'a>(
    process: &'a Process,
    place: &Arc<Where>,
) -> impl Iterator<Item = Arc<Where>> + use<'a> {
    let on_stack = way_on_stack(process, place);
    let recorded = on_stack.is_none().then(|| way_of_first_call(process, place));
    on_stack.into_iter().flatten().chain(recorded.into_iter().flatten())
}

fn way_of_first_call<'a>(
    process: &'a Process,
    place: &Arc<Where>,
) -> impl Iterator<Item = Arc<Where>> + use<'a> {
    let caller_of = |line: &Arc<Where>| process.sites.get(line)?.caller.clone();
    std::iter::successors(Some(Arc::clone(place)), caller_of).take(1 + MAX_CALLERS)
}

/// The same if the process is in its latest call, at this line, and a stack was captured since.
fn way_on_stack(process: &Process, place: &Arc<Where>) -> Option<Vec<Arc<Where>>> {
    let latest = process.last_call.as_ref()?.place.as_ref()?;
    if !latest.is_same_line(place) {
        return None;
    }
    let look = process.stacks.last().filter(|it| it.at >= process.progressed_at())?;
    let mut frames = stacks::users_frames(look, process.training_tid()).peekable();
    if !frames.peek()?.is_same_line(place) {
        return None;
    }
    // The source around a call by way of a library is known of the line itself.
    let callers = frames.skip(usize::from(place.via.is_empty()));
    let site_of = |frame: &Where| {
        let known = process.sites.keys().find(|it| it.via.is_empty() && it.is_same_line(frame));
        known.map_or_else(|| Arc::new(frame.clone()), Arc::clone)
    };
    let callers = callers.take(MAX_CALLERS).map(site_of);
    Some(std::iter::once(Arc::clone(place)).chain(callers).collect())
}

/// The caller that tells which of the calls at a line a process is in: the innermost one that did not lead to the first
/// call there. `None`: the line has no other callers, as far as is known.
pub(crate) fn telling_caller(process: &Process, place: &Arc<Where>) -> Option<Arc<Where>> {
    let now = way_on_stack(process, place)?;
    let first = way_of_first_call(process, place);
    let mut pairs = now.into_iter().zip(first);
    pairs.find(|(now, first)| !now.is_same_line(first)).map(|(now, _)| now)
}

/// The innermost caller that one process has and the other has not, if they are in their calls at one line of the program.
pub(crate) fn caller_apart(
    (process, place): (&Process, &Arc<Where>),
    (other, there): (&Process, &Arc<Where>),
) -> Option<Arc<Where>> {
    let (own, theirs) = (way_on_stack(process, place)?, way_on_stack(other, there)?);
    let mut pairs = own.into_iter().zip(theirs);
    let is_one_line = place.is_same_line(there);
    pairs.find(|(own, theirs)| is_one_line && !own.is_same_line(theirs)).map(|(own, _)| own)
}

/// Whether processes have come to their lines by the same callers: as their stacks show, or else those of the first call if
/// it is the only one. Lines outside of functions have none.
pub(crate) fn have_one_way(all: &[(&Process, &Arc<Where>)]) -> bool {
    let mut ways = all.iter().map(|(process, place)| {
        if place.function == "<module>" {
            return Some(Vec::new());
        }
        let is_first = process.places.calls(place) == 1;
        let of_first = || is_first.then(|| way_of_first_call(process, place).collect());
        let way: Vec<Arc<Where>> = way_on_stack(process, place).or_else(of_first)?;
        let callers = way.iter().skip(1).map(|it| (it.file.clone(), it.line));
        (way.len() > 1).then(|| callers.collect())
    });
    let first = ways.next().flatten();
    first.is_some() && ways.all(|it| it == first)
}

/// Whether a process has made a call at a line, or by way of it.
pub fn has_passed(process: &Process, line: &Where) -> bool {
    let mut places = process.places.iter();
    places.any(|place| way_to(process, place).any(|it| it.is_same_line(line)))
}

/// Whether the source around a line, or around one of its callers, is still being read.
pub fn are_being_read(process: &Process, place: &Arc<Where>) -> bool {
    way_to(process, place).any(|line| process.sites.get(&line).is_some_and(|site| site.reading))
}

/// The tests in the user's source that a line depends on, each with the line that it guards: first
/// those around the line, nearest first, then those around its caller, and so on.
pub fn around<'a>(
    process: &'a Process,
    place: &Arc<Where>,
) -> impl Iterator<Item = (Arc<Where>, &'a Guard)> + use<'a> {
    use GuardForm::{Bounds, Chooses, Completes, Computes, Keeps, Repeats, Roots};
    let decides = |guard: &Guard| {
        !matches!(guard.form, Chooses | Bounds | Repeats | Computes | Completes | Keeps | Roots)
    };
    all_around(process, place).filter(move |(_, guard)| decides(guard))
}

/// All that the user's source says around a line, in the same order.
pub(crate) fn all_around<'a>(
    process: &'a Process,
    place: &Arc<Where>,
) -> impl Iterator<Item = (Arc<Where>, &'a Guard)> + use<'a> {
    way_to(process, place).flat_map(|line| {
        let site = process.sites.get(&line).filter(|_| is_users(&line.file));
        let guards = site.and_then(|it| it.guards.as_deref());
        guards.unwrap_or_default().iter().map(move |guard| (Arc::clone(&line), guard))
    })
}

/// The assignments to variables that a line itself uses: what its values were computed from.
pub(crate) fn computed<'a>(
    process: &'a Process,
    line: &Where,
) -> impl Iterator<Item = &'a Guard> + use<'a> {
    let guards = said_of(process, line);
    // Those of the loops around it follow after the loops.
    guards.take_while(|guard| guard.form == GuardForm::Computes)
}

/// The statement that computes from the rank the size of a tensor which a line uses, or a caller of it; with that line.
pub(crate) fn size_of_rank<'a>(
    process: &'a Process,
    place: &Arc<Where>,
) -> Option<(Arc<Where>, &'a Guard)> {
    let mut said = all_around(process, place);
    said.find(|(_, it)| it.form == GuardForm::Computes && it.subject == GuardSubject::Rank)
}

/// The expression with the rank that has the value on each of these ranks that it used as a root at a line, or at a caller
/// of it; with that line.
pub(crate) fn root_of_rank<'a>(
    model: &Model,
    process: &'a Process,
    place: &Arc<Where>,
    roots: &[(u32, u32)],
) -> Option<(Arc<Where>, &'a Guard)> {
    let value = |it: &Guard, rank| test::number(&it.test, rank, model.world_size());
    let is_value =
        |it: &Guard| roots.iter().all(|&(rank, root)| value(it, rank) == Some(root.into()));
    let mut said = all_around(process, place);
    said.find(|(_, it)| it.form == GuardForm::Roots && is_value(it))
}

/// The innermost loop over a collection around a line, or around a caller of it.
pub fn loop_around<'a>(process: &'a Process, place: &Arc<Where>) -> Option<&'a Guard> {
    let mut said = all_around(process, place).map(|(_, guard)| guard);
    said.find(|it| matches!(it.form, GuardForm::Repeats | GuardForm::Iterates))
}

/// Whether the innermost loop around the line of one process is not around that of another one, whose source has been read.
pub(crate) fn is_outside_of_loop(
    (inside, place): (&Process, &Arc<Where>),
    (other, there): (&Process, &Arc<Where>),
) -> bool {
    use GuardForm::{Iterates, Repeats};
    let loops = |process, place| {
        let all = all_around(process, place);
        all.filter(|(_, it)| matches!(it.form, Iterates | Repeats) || it.is_while)
    };
    let is_read = way_to(other, there)
        .filter(|it| is_users(&it.file))
        .all(|it| other.sites.get(&it).is_some_and(|site| site.guards.is_some()));
    is_read
        && loops(inside, place).next().is_some_and(|(at, over)| {
            loops(other, there).all(|(line, it)| (&line.file, it.line) != (&at.file, over.line))
        })
}

/// What the user's source says around a line alone, without its callers.
pub(crate) fn said_of<'a>(
    process: &'a Process,
    line: &Where,
) -> impl Iterator<Item = &'a Guard> + use<'a> {
    let site = process.sites.get(line).filter(|_| is_users(&line.file));
    site.and_then(|it| it.guards.as_deref()).unwrap_or_default().iter()
}

/// The tests in the user's source that decide on values which a line uses, or how often a loop around
/// it runs (`form`).
pub fn choices<'a>(
    process: &'a Process,
    place: &Arc<Where>,
    form: GuardForm,
) -> impl Iterator<Item = &'a Guard> {
    // The source of a line that calls a library is read for the call itself, its caller.
    let is_relevant = move |it: &Where| form == GuardForm::Bounds || it.is_same_line(place);
    let lines = way_to(process, place).filter(move |it| is_users(&it.file) && is_relevant(it));
    let sites = lines.filter_map(|it| process.sites.get(&it));
    let guards = sites.flat_map(|it| it.guards.as_deref().unwrap_or_default());
    guards.filter(move |guard| guard.form == form)
}

/// The test on the rank because of which `here` made the call at this line, while `elsewhere` did
/// not and never has. Ranks with another role than these make such calls at lines of their own: the
/// test does not keep them away.
pub fn parted(
    model: &Model,
    (group, seq): (GroupId, u64),
    place: &Arc<Where>,
    here: &[u32],
    elsewhere: &[u32],
) -> Option<RankGuard> {
    let mut strangers = elsewhere.iter().filter_map(|&rank| model.member(group, rank));
    let is_new_to_them = !strangers.any(|it| it.places.contains(place));
    let have_met = have_call_of_their_own(model, (group, seq), place, here, elsewhere);
    (is_new_to_them && !have_met)
        .then(|| parted_now(model, (group, seq), place, here, elsewhere))?
}

/// Whether calls of ranks `elsewhere`, at a line of their own, have matched those of the ranks `here` at this line before:
/// the program has one call for each role.
pub fn have_call_of_their_own(
    model: &Model,
    (group, before): (GroupId, u64),
    place: &Arc<Where>,
    here: &[u32],
    elsewhere: &[u32],
) -> bool {
    let is_their_own = |line: &Where| {
        let mut processes = here.iter().filter_map(|&rank| model.member(group, rank));
        processes.all(|it| !it.places.contains(line))
    };
    let were_paired = |it: &Meeting| {
        let mut others = elsewhere.iter().filter_map(|&rank| it.place_of(rank));
        here.iter().all(|&rank| it.place_of(rank) == Some(place))
            && others.any(|it| is_their_own(it))
    };
    model.group(group).history.recent().any(|it| it.seq < before && were_paired(it))
}

/// The same even if `elsewhere` have been at the line, by way of another caller.
pub fn parted_now(
    model: &Model,
    (group, seq): (GroupId, u64),
    place: &Arc<Where>,
    here: &[u32],
    elsewhere: &[u32],
) -> Option<RankGuard> {
    let member = |&rank: &u32| model.member(group, rank);
    let process = here.first().and_then(member)?;
    let strangers = elsewhere.iter().filter_map(member);
    // They may have been there by way of another caller, which the test then has to keep away for certain.
    let have_been_there = strangers.clone().any(|it| it.places.contains(place));
    if elsewhere.is_empty() {
        return None;
    }
    let before = made_by_both(model, (group, seq), here, elsewhere);
    around(process, place)
        .filter(|(line, guard)| {
            guard.subject == GuardSubject::Rank && !(have_been_there && line.is_same_line(place))
        })
        .filter(|(line, guard)| !strangers.clone().any(|it| has_own_role(it, line, guard, here)))
        .filter(|(line, guard)| {
            let before = before.as_ref();
            !before.is_some_and(|before| is_behind(process, before, (line, guard)))
        })
        .find(|(_, guard)| {
            let reaches = |rank: u32| reaches(guard, rank, model.world_size());
            let stays_away = |rank: u32| match reaches(rank) {
                Some(reaches) => !reaches,
                None => !have_been_there,
            };
            here.iter().all(|&rank| reaches(rank) != Some(false))
                && elsewhere.iter().all(|&rank| stays_away(rank))
        })
        .map(|(line, guard)| RankGuard {
            place: Arc::clone(place),
            line,
            guard: guard.clone(),
            seq,
            inside: here.to_vec(),
            outside: elsewhere.to_vec(),
        })
}

/// The line of the previous call of the group, if ranks of both sides made it at one line.
fn made_by_both(
    model: &Model,
    (group, seq): (GroupId, u64),
    here: &[u32],
    elsewhere: &[u32],
) -> Option<Arc<Where>> {
    let mut recent = model.group(group).history.recent();
    let meeting = recent.find(|it| it.seq + 1 == seq)?;
    let line = meeting.place_of(*here.first()?)?;
    let mut others = elsewhere.iter();
    others.any(|&rank| meeting.place_of(rank) == Some(line)).then(|| Arc::clone(line))
}

/// Whether a call at the line `before`, or a call that leads there, lies between a test and the line that depends on it:
/// who made it has passed the test as well.
fn is_behind(process: &Process, before: &Arc<Where>, (line, guard): (&Where, &Guard)) -> bool {
    way_to(process, before).any(|it| {
        let is_between = (guard.line + 1..line.line).contains(&it.line)
            && (&it.file, &it.function) == (&line.file, &line.function);
        is_between && said_of(process, &it).any(|other| other == guard)
    })
}

/// The test on the rank because of which the ranks `here`, of which `process` is one, reached a line, and the ranks
/// `elsewhere` cannot; with the line that depends on the test.
pub fn parted_at<'a>(
    model: &Model,
    process: &'a Process,
    place: &Arc<Where>,
    here: &[u32],
    elsewhere: &[u32],
) -> Option<(Arc<Where>, &'a Guard)> {
    around(process, place).find(|(_, guard)| separates(model, guard, here, elsewhere))
}

/// Whether a test on the rank keeps all of the ranks `elsewhere` away from a line, and none of the ranks `here`.
fn separates(model: &Model, guard: &Guard, here: &[u32], elsewhere: &[u32]) -> bool {
    let reaches = |rank: &u32| reaches(guard, *rank, model.world_size());
    guard.subject == GuardSubject::Rank
        && !elsewhere.is_empty()
        && here.iter().all(|rank| reaches(rank) != Some(false))
        && elsewhere.iter().all(|rank| reaches(rank) == Some(false))
}

/// The test on the rank around a line that [`fits`] these ranks, of which `process` is one that was there; with the line
/// that depends on it.
pub fn fitting<'a>(
    model: &Model,
    process: &'a Process,
    place: &Arc<Where>,
    here: &[u32],
    elsewhere: &[u32],
) -> Option<(Arc<Where>, &'a Guard)> {
    let mut tests = around(process, place);
    tests.find(|(_, it)| it.subject == GuardSubject::Rank && fits(model, it, here, elsewhere))
}

/// Whether a test leads all of the ranks `here` to a line whatever else it depends on, and may keep each of the ranks
/// `elsewhere` away.
pub fn fits(model: &Model, guard: &Guard, here: &[u32], elsewhere: &[u32]) -> bool {
    let reaches = |rank: &u32| reaches(guard, *rank, model.world_size());
    here.iter().all(|rank| reaches(rank) == Some(true))
        && elsewhere.iter().all(|rank| reaches(rank) != Some(true))
}

/// Whether a process has made calls at another line of the same function under the same statement: in another branch within
/// the loop that it ends.
pub fn was_under(process: &Process, line: &Where, guard: &Guard) -> bool {
    let mut lines = process.places.iter().flat_map(|it| way_to(process, it));
    lines.any(|it| {
        (&it.file, &it.function) == (&line.file, &line.function)
            && said_of(process, &it).any(|other| other == guard)
    })
}

/// Whether a test on the rank has the same result on all of these ranks, whatever else it depends on.
pub(crate) fn is_equal_on(model: &Model, guard: &Guard, ranks: &[u32]) -> bool {
    let mut results = ranks.iter().map(|&it| test::holds(&guard.test, it, model.world_size()));
    let first = results.next().flatten();
    guard.subject == GuardSubject::Rank && first.is_some() && results.all(|it| it == first)
}

/// Whether a test leads each of these ranks to its line whatever else it depends on.
pub fn lets_pass(model: &Model, guard: &Guard, ranks: &[u32]) -> bool {
    !ranks.is_empty()
        && ranks.iter().all(|&rank| reaches(guard, rank, model.world_size()) == Some(true))
}

/// The test on the rank in the user's source because of which the main thread of `process`, one of the ranks `here`, is
/// where its latest stack shows it, and the ranks `elsewhere` are not; with the line that depends on the test.
pub fn led_to<'a>(
    model: &Model,
    process: &'a Process,
    here: &[u32],
    elsewhere: &[u32],
) -> Option<(Arc<Where>, &'a Guard)> {
    let mut tests = on_stack(process)
        .flat_map(|(line, guards)| guards.iter().map(move |guard| (Arc::new(line.clone()), guard)));
    tests.find(|(_, guard)| separates(model, guard, here, elsewhere))
}

/// The user's lines on the latest stack of a process, innermost first, each with what its source says around it.
fn on_stack(process: &Process) -> impl Iterator<Item = (&Where, &[Guard])> {
    let stacks = process.stacks.last().into_iter();
    let frames = stacks.flat_map(|it| stacks::users_frames(it, process.training_tid()));
    frames.map(|frame| {
        let mut known = process.sites.iter();
        let site = known.find(|(it, _)| it.via.is_empty() && it.is_same_line(frame));
        let guards = site.and_then(|(_, site)| site.guards.as_deref());
        (frame, guards.unwrap_or_default())
    })
}

/// An object that a thread waits to enter by a `with` statement, in which it already is.
#[derive(Debug)]
pub struct HeldTwice<'a> {
    /// The object as the source names it.
    pub name: &'a str,
    /// The line that waits.
    pub taken: &'a Where,
    /// The line at which the thread entered it before.
    pub held: Where,
}

/// The lock that the thread of the program waits for at its innermost line and holds by an outer one, under one name.
pub fn held_twice(process: &Process) -> Option<HeldTwice<'_>> {
    let mut frames = on_stack(process).peekable();
    let &(taken, guards) = frames.peek()?;
    let is_held = |it: &&Guard| it.form == GuardForm::Keeps;
    let own = guards.iter().filter(is_held).find(|it| it.line == taken.line)?;
    let class = |line: &Where| line.function.rsplit_once('.').map(|(class, _)| class.to_owned());
    let is_same_object = |line: &Where| {
        line.file == taken.file && (!own.test.starts_with("self.") || class(line) == class(taken))
    };
    let outer = frames.filter(|(line, _)| is_same_object(line)).find_map(|(line, guards)| {
        let mut held = guards.iter().filter(is_held);
        let outer = held.find(|it| it.test == own.test && it.line != taken.line)?;
        Some(Where { line: outer.line, ..line.clone() })
    });
    Some(HeldTwice { name: &own.test, taken, held: outer? })
}

/// Whether a process takes the other branch of a test, with calls of its own: it has made one there, or
/// is running it, or the branch calls the same function. Or it has made a counterpart of the call.
fn has_own_role(process: &Process, line: &Where, guard: &Guard, here: &[u32]) -> bool {
    let is_there = |it: &Where| {
        let other = guard.other.filter(|_| it.file == line.file);
        other.is_some_and(|other| (other.first..=other.last).contains(&it.line))
    };
    let runs_there = || {
        let threads = process.stacks.last().into_iter().flat_map(|it| &it.threads);
        threads.flat_map(|it| &it.python).any(is_there)
    };
    let calls_there =
        || process.places.iter().any(|it| way_to(process, it).any(|it| is_there(&it)));
    guard.other.is_some_and(|other| other.makes_call)
        || runs_there()
        || calls_there()
        || has_counterpart(process, line, here)
}

/// Whether a process has made a call in the same function under a test on the rank that `here` do not
/// pass: the function then has a call for each role.
pub fn has_counterpart(process: &Process, line: &Where, here: &[u32]) -> bool {
    let keeps_away = |guard: &Guard| {
        guard.subject == GuardSubject::Rank
            && here.iter().all(|&rank| reaches(guard, rank, None) == Some(false))
    };
    let mut calls = process.places.iter().flat_map(|it| way_to(process, it));
    calls.any(|it| {
        (&it.file, &it.function) == (&line.file, &line.function)
            && around(process, &it).any(|(at, guard)| at == it && keeps_away(guard))
    })
}

/// Whether a rank of this world reaches the line according to the test; `None`: unknown.
fn reaches(guard: &Guard, rank: u32, world: Option<u32>) -> Option<bool> {
    let holds = test::holds(&guard.test, rank, world)?;
    match guard.form {
        GuardForm::Holds => Some(holds),
        GuardForm::Fails | GuardForm::Skips | GuardForm::Leaves | GuardForm::Returns => {
            Some(!holds)
        }
        _ => None,
    }
}

/// A sentence without its full stop: "The line train.py:9 is reached only if `x` holds (line 8)".
pub fn about(line: &Where, guard: &Guard) -> String {
    let (shown, test) = (words::source_line(line), &guard.test);
    let is_inside = guard.line == line.line;
    match guard.form {
        GuardForm::Holds if is_inside => {
            format!("The call at {shown} is made only if `{test}` is true")
        }
        GuardForm::Fails if is_inside => {
            format!("The call at {shown} is made only if `{test}` is false")
        }
        _ => format!("The line {shown} {}", sentence(guard)),
    }
}

/// The end of a sentence that names the test and how a line depends on it.
pub fn sentence(guard: &Guard) -> String {
    let (test, line) = (&guard.test, guard.line);
    match guard.form {
        GuardForm::Holds => format!("runs only if `{test}` is true (line {line})"),
        GuardForm::Fails => format!("runs only if `{test}` is false (line {line})"),
        GuardForm::Skips => format!("is skipped if `{test}` is true (line {line})"),
        GuardForm::Leaves => format!("is not reached if `{test}` is true (line {line})"),
        GuardForm::Returns => {
            format!("is not reached if `{test}` is true (line {line}): the function returns")
        }
        GuardForm::Repeats => format!("is in a loop over `{test}` (line {line})"),
        GuardForm::Computes => format!("uses a value computed in `{test}` (line {line})"),
        GuardForm::Roots => format!("uses `{test}` (line {line}) as its root"),
        GuardForm::Keeps => format!("holds `{test}` (line {line})"),
        GuardForm::Completes => {
            format!(
                "is reached in the order in which results of `{test}` (line {line}) complete, which depends on the \
                 timing of each rank"
            )
        }
        GuardForm::Ends => {
            format!("is no longer reached once `{test}` has been true (line {line})")
        }
        GuardForm::Handles => format!("is inside an exception handler (line {line})"),
        GuardForm::Catches => {
            format!("depends on whether an exception is caught (line {line})")
        }
        GuardForm::Chooses => format!("uses a value that depends on `{test}` (line {line})"),
        GuardForm::Iterates => {
            format!(
                "is in a loop over `{test}` (line {line}), whose order and content may differ between \
                 ranks"
            )
        }
        GuardForm::Caches => {
            format!("is not reached if a result of its function is cached (`{test}`, line {line})")
        }
        GuardForm::Bounds => {
            format!("is in a loop whose length depends on `{test}` (line {line})")
        }
        GuardForm::Unspecified => format!("depends on `{test}` (line {line})"),
    }
}
