//! DD301 rendezvous-incomplete: ranks wait in `init_process_group` for others that do not join.

use std::collections::BTreeSet;
use std::time::Duration;

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::{Confidence, Exit, RankCall, Severity, Timestamp, Where};

use crate::findings::draft::{Draft, KeyPlace};
use crate::findings::stalls::idle;
use crate::findings::startup::joining::{describe_joiners, who};
use crate::findings::startup::skew;
use crate::findings::view::no_call;
use crate::input::backends;
use crate::input::event::StartedRank;
use crate::model::{Process, libc_signal};
use crate::situation::Situation;
use crate::situation::startup::{Forming, Joiner, by_launch, by_place};
use crate::source::cause::Mistake;
use crate::stacks::{self, Activity, Occupation};
use crate::timing::Timing;
use crate::words::{self, Ranks, number};

/// Time in which a launcher starts the next process of a rank: a restart, or the program after a
/// check.
const STARTED_AGAIN: Duration = Duration::from_secs(5);
/// Maximum number of ranks of a world that are examined.
const MAX_RANKS: u32 = 1 << 16;
/// Maximum number of missing ranks that get a sentence of their own.
const MAX_SHOWN: usize = 4;

/// Identifies the finding about the world that a process is joining.
pub(crate) fn joined_by(situation: &Situation<'_>, process: &Process) -> Option<KeyPlace> {
    let forming = by_place(situation.model);
    let is_it = |joiner: &Joiner<'_>| joiner.process.id == process.id;
    let forming = forming.iter().find(|it| it.joiners.iter().any(is_it))?;
    process.is_joining().then(|| place(forming))
}

/// Identifies the finding about a world.
fn place(forming: &Forming<'_>) -> KeyPlace {
    KeyPlace::Ranks(vec![forming.joiners[0].rank])
}

/// State of a rank that has not joined.
enum Whereabouts<'a> {
    /// Its process is alive.
    AtWork(&'a StartedRank),
    /// Its process ended before it joined, at this time.
    Ended(&'a StartedRank, Timestamp, Exit),
    /// It has joined another world or is joining it.
    JoinedElsewhere(&'a Process),
    /// No process of the rank was seen.
    NeverSeen,
}

struct Missing<'a> {
    rank: u32,
    is: Whereabouts<'a>,
}

/// DD301: waits for ranks that do not join the world.
pub(crate) fn draft(situation: &Situation<'_>, forming: &Forming<'_>) -> Option<Draft> {
    if !is_one_world(situation, forming) {
        return None;
    }
    let size = forming.joiners[0].init.world_size?.min(MAX_RANKS);
    let arrived: BTreeSet<u32> = forming.joiners.iter().map(|joiner| joiner.rank).collect();
    let absent: Vec<u32> = (0..size).filter(|rank| !arrived.contains(rank)).collect();
    let first = forming.joiners[0].process;
    let attempt = situation.attempts.of_process(first);
    // A rank that raised an exception has a finding of its own.
    let has_reason = |rank: &u32| {
        let process = situation
            .model
            .process_of(*rank)
            .filter(|it| situation.attempts.of_process(it) == attempt);
        let raised = process.and_then(Process::uncaught);
        raised.is_some_and(|it| it.at.plus(situation.config.stall_after) >= forming.begun())
    };
    if absent.iter().any(has_reason) {
        return None;
    }
    let missing: Vec<Missing<'_>> = absent
        .iter()
        .map(|&rank| Missing { rank, is: whereabouts(situation, forming, rank) })
        .collect();
    let due = due(situation, forming, &missing)?;
    if due > situation.now {
        return None;
    }
    let mut draft = Draft::new(&catalogue::DD301, place(forming), due);
    if absent.is_empty() {
        describe_incomplete_start(situation, forming, &mut draft);
    } else {
        draft.blame(absent, Confidence::Supported);
        describe_joiners(situation, forming, &mut draft);
        draft.per_rank.extend(missing.iter().filter_map(Missing::call));
        describe_missing(situation, forming, &missing, &mut draft);
        let gave_up = forming.joiners.iter().any(|it| it.process.init_failed().is_some());
        let may_join = |it: &Missing<'_>| !gave_up && it.may_join(&situation.model.timing);
        if missing.iter().any(may_join) {
            draft.confidence = Confidence::Suspected;
        }
        // Nothing shows that such ranks do not arrive later.
        if missing.iter().all(may_join) {
            draft.severity = Severity::Warning;
        }
    }
    if attempt.index > 0 {
        draft.summary += &format!(" after restart {}", attempt.index);
    }
    if situation.until < situation.now && due == situation.until {
        draft.confidence = Confidence::Suspected;
    }
    Some(draft)
}

/// Whether the joiners at this address agree on size and ranks of the world, and no other finding
/// explains why they do not meet.
fn is_one_world(situation: &Situation<'_>, forming: &Forming<'_>) -> bool {
    let joiners = &forming.joiners;
    let ranks: BTreeSet<u32> = joiners.iter().map(|joiner| joiner.rank).collect();
    let place = joiners[0].place;
    let elsewhere = by_launch(situation.model).into_iter().any(|other| {
        let mut places = other.joiners.iter().map(|joiner| joiner.place);
        places.any(|other| other == place)
    });
    forming.classes(|joiner| joiner.init.world_size).len() == 1
        && ranks.len() == joiners.len()
        && !elsewhere
}

fn whereabouts<'a>(situation: &Situation<'a>, forming: &Forming<'_>, rank: u32) -> Whereabouts<'a> {
    let started = situation.model.not_joined(rank);
    if let Some(living) = started.iter().find(|it| it.end.is_none()) {
        return Whereabouts::AtWork(living);
    }
    // A process that ended long before the others began belongs to an earlier launch.
    let is_recent = |at: Timestamp| at.plus(situation.config.stall_after) >= forming.begun();
    let ended = started.iter().find_map(|it| {
        let (at, exit) = it.end.filter(|(at, _)| is_recent(*at))?;
        Some(Whereabouts::Ended(it, at, exit))
    });
    let elsewhere = || {
        let process = situation.model.process_of(rank)?;
        (!process.has_ended()).then_some(Whereabouts::JoinedElsewhere(process))
    };
    ended.or_else(elsewhere).unwrap_or(Whereabouts::NeverSeen)
}

/// Time from which the wait is a finding; `None`: never.
fn due(
    situation: &Situation<'_>,
    forming: &Forming<'_>,
    missing: &[Missing<'_>],
) -> Option<Timestamp> {
    // A joiner timed out.
    let timeout_of = |joiner: &Joiner<'_>| {
        let failed = joiner.process.init_failed()?;
        let text = failed.text.to_ascii_lowercase();
        let timed_out = text.contains("timed out") || text.contains("timeout");
        timed_out.then_some(failed.at)
    };
    let gave_up = forming.joiners.iter().filter_map(timeout_of).min();
    // Ended ranks cannot join, unless they are restarted.
    let grace = match situation.model.over() {
        Some(_) => Duration::ZERO,
        None => STARTED_AGAIN,
    };
    let ends: Option<Vec<Timestamp>> = missing
        .iter()
        .map(|missing| match missing.is {
            Whereabouts::Ended(_, at, _) => Some(at.plus(grace).max(forming.begun())),
            _ => None,
        })
        .collect();
    let gone = ends.and_then(|ends| ends.into_iter().max());
    // After a failure the launcher ends all ranks, so the end of the waiting ones does not matter.
    let failed = missing.iter().any(Missing::has_failed);
    let gone = gone.filter(|&at| failed || !ended_before(forming, at));
    let overdue = forming.all_begun().plus(situation.config.stall_after);
    let known = forming.joiners.iter().filter_map(|it| it.process.known_until);
    let until = known.fold(situation.until, Timestamp::min);
    let overdue = (overdue <= until && !ended_before(forming, overdue)).then_some(overdue);
    let noticeable = situation.model.timing.interrupted_wait;
    let is_cut_short = situation.until < situation.now
        && forming.all_begun().plus(noticeable) <= situation.until
        && !ended_before(forming, situation.until);
    let cut_short = is_cut_short.then_some(situation.until);
    gave_up.into_iter().chain(gone).chain(overdue).chain(cut_short).min()
}

/// Whether all waiting joiners had ended before this time.
fn ended_before(forming: &Forming<'_>, at: Timestamp) -> bool {
    let mut waiting = forming.joiners.iter().filter(|it| it.process.is_joining());
    waiting.all(|joiner| joiner.process.end.is_some_and(|end| end.at < at))
}

/// Fills in the draft if all ranks have begun to join and some do not return.
fn describe_incomplete_start(situation: &Situation<'_>, forming: &Forming<'_>, draft: &mut Draft) {
    draft.confidence = Confidence::Suspected;
    draft.blame(forming.waiting(), Confidence::Suspected);
    describe_joiners(situation, forming, draft);
    draft.summary = format!(
        "all ranks of the world have reached {}, and {} not returned from joining it",
        words::place(forming.joiners[0].place),
        Ranks(&draft.root).with("has", "have"),
    );
    draft.say("They agree on the size of the world and on its address: no rank is missing.");
    if let Some(store) = store_elsewhere(forming) {
        draft.confidence = Confidence::Supported;
        draft.say(format!(
            "The launcher hosts their store at {store}, so no rank creates one: there is no store \
             at the address that they use."
        ));
        draft.advise(
            "Do not set MASTER_ADDR or MASTER_PORT in the program: the launcher has set them. To \
             choose the port, pass it to the launcher (--master-port, --rdzv-endpoint), or use \
             init_method=\"tcp://…\".",
        );
        return;
    }
    let waits = forming.joiners.iter().find(|it| it.process.is_joining());
    draft.follows =
        waits.and_then(|joiner| skew::keeps_from_joining(situation, &draft.root, joiner.process));
    if draft.follows.is_some() {
        draft.say("They wait there for ranks with other settings, which continue without them.");
        draft.advise("Give all ranks the same settings.");
        return;
    }
    let is_restart = |joiner: &Joiner<'_>| {
        situation.attempts.of_process(joiner.process).index > 0
            && joiner.init.launchers_store.is_some()
    };
    if forming.joiners.iter().all(is_restart) {
        draft.say(
            "The launcher has restarted them with the store of the previous start, which may still \
             contain addresses of processes that have ended.",
        );
        draft.advise(
            "Start torchrun with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, so that each start of the \
             ranks has its own store.",
        );
    }
    draft.advise(format!(
        "Check that the ranks can reach each other: the network interface in use ({}), firewalls between the hosts, host \
         names that resolve to 127.0.0.1.",
        backends::interface_variables(),
    ));
}

/// Address of the launcher's store, if all joiners expect one and use a different address.
fn store_elsewhere<'a>(forming: &Forming<'a>) -> Option<&'a str> {
    let first = &forming.joiners[0];
    let store = first.init.launchers_store.as_deref()?;
    let all_obey =
        forming.joiners.iter().all(|joiner| joiner.init.launchers_store.as_deref() == Some(store));
    (all_obey && store != words::place(first.place)).then_some(store)
}

/// Fills in the draft if ranks have not begun to join.
fn describe_missing(
    situation: &Situation<'_>,
    forming: &Forming<'_>,
    missing: &[Missing<'_>],
    draft: &mut Draft,
) {
    let states = States::new(missing);
    let waiting: Vec<Joiner<'_>> =
        forming.joiners.iter().filter(|joiner| joiner.process.is_joining()).copied().collect();
    draft.summary = format!(
        "{}; {} {} for {} in {}",
        states.clauses(missing).join("; "),
        who(&waiting),
        number(&draft.victims, "waits", "wait"),
        number(&draft.root, "it", "them"),
        forming.joiners[0].init.function(),
    );
    draft.why = why(situation, forming, missing);
    draft.why.extend(states.where_not(situation));
    let Some(launched) = other_size(forming) else { return states.advise(draft) };
    let first = &forming.joiners[0];
    let clause = format!(
        "{} {} a world of {} ranks, but the launcher started {launched}",
        who(&forming.joiners),
        if forming.joiners.len() == 1 { "joins" } else { "join" },
        first.init.world_size.unwrap_or(0),
    );
    draft.mistake = Some(Mistake::new(&[], clause));
    draft.advise(
        "Do not pass world_size to init_process_group, so that it uses the launcher's, or start as many processes as the \
         program expects.",
    );
}

/// The number of ranks that were launched, if the program uses another one.
fn other_size(forming: &Forming<'_>) -> Option<u32> {
    let launched = forming.joiners.iter().find_map(|it| it.init.launched_world_size)?;
    (Some(launched) != forming.joiners[0].init.world_size).then_some(launched)
}

/// The size of the world, what is known of the missing ranks, and whether the sizes disagree.
fn why(situation: &Situation<'_>, forming: &Forming<'_>, missing: &[Missing<'_>]) -> Vec<String> {
    let first = &forming.joiners[0];
    let size = first.init.world_size.unwrap_or(0);
    let mut why = vec![format!(
        "The world has {size} ranks and its rendezvous is {}; {} of them {} arrived.",
        words::place(first.place),
        forming.joiners.len(),
        if forming.joiners.len() == 1 { "has" } else { "have" },
    )];
    let shown = missing.iter().take(MAX_SHOWN);
    why.extend(shown.filter_map(|it| it.sentence(&situation.model.timing)));
    if let Some(launched) = other_size(forming) {
        why.push(format!(
            "WORLD_SIZE is {launched} in the environment of these ranks, but the program uses {size}."
        ));
    }
    why
}

/// The missing ranks in each state.
struct States {
    at_work: Vec<u32>,
    ended: Vec<u32>,
    elsewhere: Vec<u32>,
    never_seen: Vec<u32>,
}

impl States {
    fn new(missing: &[Missing<'_>]) -> Self {
        let those = |is: fn(&Whereabouts<'_>) -> bool| {
            let those = missing.iter().filter(|it| is(&it.is));
            those.map(|it| it.rank).collect()
        };
        Self {
            at_work: those(|it| matches!(it, Whereabouts::AtWork(_))),
            ended: those(|it| matches!(it, Whereabouts::Ended(..))),
            elsewhere: those(|it| matches!(it, Whereabouts::JoinedElsewhere(_))),
            never_seen: those(|it| matches!(it, Whereabouts::NeverSeen)),
        }
    }

    /// One clause for the ranks in each state: "rank 1 is alive at train.py:9 and has not joined the
    /// world".
    fn clauses(&self, missing: &[Missing<'_>]) -> Vec<String> {
        let mut clauses = Vec::new();
        if !self.ended.is_empty() {
            let how = missing
                .iter()
                .find_map(Missing::how_it_ended)
                .filter(|_| self.ended.len() == 1)
                .unwrap_or_default();
            clauses.push(format!("{} ended before joining the world{how}", Ranks(&self.ended)));
        }
        if !self.at_work.is_empty() {
            let line = missing.iter().find_map(Missing::line).filter(|_| self.at_work.len() == 1);
            clauses.push(format!(
                "{} alive{} and {} not joined the world",
                Ranks(&self.at_work).with("is", "are"),
                words::at(line),
                number(&self.at_work, "has", "have"),
            ));
        }
        if !self.elsewhere.is_empty() {
            clauses.push(format!("{} in another world", Ranks(&self.elsewhere).with("is", "are")));
        }
        if !self.never_seen.is_empty() {
            let ranks = Ranks(&self.never_seen);
            clauses.push(format!("no process of {ranks} was seen"));
        }
        clauses
    }

    /// The hosts on which the ranks that were never seen do not run.
    fn where_not(&self, situation: &Situation<'_>) -> Option<String> {
        let hosts: Vec<&str> = situation
            .model
            .hosts
            .iter()
            .map(|host| &**host)
            // Logs do not always name hosts.
            .filter(|host| !host.is_empty())
            .collect();
        if self.never_seen.is_empty() || hosts.is_empty() {
            return None;
        }
        Some(format!(
            "{} not on the {} watched ({}); other hosts are not watched.",
            words::begin(Ranks(&self.never_seen).with("is", "are")),
            if hosts.len() == 1 { "host that is" } else { "hosts that are" },
            hosts.join(", ")
        ))
    }

    fn advise(&self, draft: &mut Draft) {
        if !self.never_seen.is_empty() {
            draft.advise(
                "Compare what was launched (nodes × processes per node) with the size of the world, and \
                 check for nodes that did not start.",
            );
        }
        if !self.at_work.is_empty() {
            draft.advise(
                "Find out what keeps the rank at that line, or join the world on all ranks before that line runs.",
            );
        }
        if !self.ended.is_empty() {
            let they = number(&self.ended, "it", "they");
            draft.advise(format!(
                "Check the output of {}: {they} ended before {they} joined.",
                Ranks(&self.ended),
            ));
        }
    }
}

impl Missing<'_> {
    /// The user's line of its last stack.
    fn line(&self) -> Option<&Where> {
        let Whereabouts::AtWork(started) = self.is else { return None };
        stacks::line_of(started.looks.last()?, None)
    }

    /// Its row in the list of ranks; `None` if no process was seen.
    fn call(&self) -> Option<RankCall> {
        if matches!(self.is, Whereabouts::NeverSeen) {
            return None;
        }
        Some(RankCall { place: self.line().cloned(), ..no_call(self.rank) })
    }

    /// Whether its process computes or waits for a time, so that it may join afterwards. How long the others wait is
    /// unknown.
    fn may_join(&self, timing: &Timing) -> bool {
        let Whereabouts::AtWork(started) = self.is else { return false };
        stacks::of_looks(&started.looks, Timestamp(0), None, timing)
            .is_some_and(|it| it.occupation == Occupation::Computing || it.waits_until.is_some())
    }

    /// Whether it ended with an error status, an abort, or a signal that is not a request to end.
    fn has_failed(&self) -> bool {
        let Whereabouts::Ended(_, _, exit) = self.is else { return false };
        match exit.signal {
            Some(signal) => !libc_signal::is_asked(signal) || signal == libc_signal::ABRT,
            None => exit.code.is_some_and(|code| code != 0),
        }
    }

    fn how_it_ended(&self) -> Option<String> {
        let Whereabouts::Ended(_, _, exit) = self.is else { return None };
        Some(match (exit.code, exit.signal) {
            (_, Some(signal)) => format!(", killed by {}", libc_signal::name(signal)),
            (Some(code), None) => format!(", with status {code}"),
            (None, None) => String::new(),
        })
    }

    fn sentence(&self, timing: &Timing) -> Option<String> {
        let rank = self.rank;
        let of = |started: &StartedRank| {
            format!("Process {} of rank {rank} on {}", started.pid, started.host)
        };
        Some(match self.is {
            Whereabouts::Ended(started, ..) => format!(
                "{} ended before it joined{}.",
                of(started),
                self.how_it_ended().unwrap_or_default()
            ),
            Whereabouts::AtWork(started) => {
                match stacks::of_looks(&started.looks, Timestamp(0), None, timing) {
                    Some(outside) => format!("{} {}.", of(started), what_it_does(&outside)),
                    None => format!("{} is alive{}.", of(started), words::at(self.line())),
                }
            }
            Whereabouts::JoinedElsewhere(process) => {
                let place =
                    process.init.as_ref().and_then(|init| init.place.as_ref()).map(words::place);
                format!(
                    "Process {} of rank {rank} on {} has joined a different world{}.",
                    process.pid,
                    process.host,
                    place.map(|place| format!(", or tries to, at {place}")).unwrap_or_default()
                )
            }
            Whereabouts::NeverSeen => return None,
        })
    }
}

/// "is stuck in main() at train.py:14, there in sleep() (…)".
fn what_it_does(outside: &Activity<'_>) -> String {
    let moves = if outside.moves { "is running" } else { "is stuck" };
    format!("{moves} {}", idle::in_source(outside))
}
