//! Shared by the findings about calls that cannot match.

use ddp_doctor_proto::GuardSubject;
use ddp_doctor_proto::catalogue::Code;
use ddp_doctor_proto::report::{Certificate, CertificateKind, Effect, Severity, Timestamp};

use crate::findings::draft::{Draft, KeyPlace};
use crate::findings::facts::{issued, split_facts};
use crate::findings::view::{at_line, rank_calls};
use crate::guards;
use crate::input::align::{Mismatch, OddOnes, compare};
use crate::input::event::Call;
use crate::input::transport;
use crate::model::history::Meeting;
use crate::model::{GroupId, Join, Wait};
use crate::situation::{Divergence, Nature, OriginKind, Situation, Stall, StallOrigin};
use crate::source::cause::{self, CauseHypothesis, Mistake};
use crate::words::{self, Ranks, begin, joined};

/// Minimum wait after which calls that disagree count as blocked instead of slow.
const BLOCKED_AFTER: std::time::Duration = std::time::Duration::from_secs(2);

/// Maximum number of calls before a divergence among which ranks can have got out of step.
const MAX_CALLS_APART: usize = 8;

/// Advice if two threads of a rank race on one group.
pub(crate) const OWN_GROUPS: &str = "Give each thread its own group (new_group on all ranks), or make \
     all calls in one thread.";

/// What to look at if calls at different lines meet for an unknown reason.
pub(crate) const OTHER_LINES: &str = "Check the conditions and loops around the two lines to find out why these \
 ranks are at different lines.";

/// Calls that met and cannot match.
#[derive(Clone, Copy, Debug)]
pub struct DivergedJoin<'a> {
    /// What is known of them.
    pub divergence: &'a Divergence,
    /// The calls.
    pub join: &'a Join,
}

/// The divergences that are an origin themselves, with the calls that met.
pub(crate) fn origins<'a>(situation: &'a Situation<'_>) -> impl Iterator<Item = DivergedJoin<'a>> {
    let divergences = situation.divergences.iter();
    let origins = divergences.filter(|it| matches!(it.origin.why, OriginKind::Diverged(..)));
    origins.filter_map(|it| {
        Some(DivergedJoin { divergence: it, join: situation.join(it.group, it.seq)? })
    })
}

/// Those that have this as the first difference of their calls.
pub(crate) fn first_differ<'a>(
    situation: &'a Situation<'_>,
    first: Mismatch,
) -> impl Iterator<Item = DivergedJoin<'a>> {
    origins(situation).filter(move |DivergedJoin { divergence: it, .. }| {
        matches!(it.nature, Nature::Mismatch) && it.mismatch == first
    })
}

/// Whether the sizes of these calls do not match, which precedes their dtypes.
pub(crate) fn has_misfit_totals(situation: &Situation<'_>, divergence: &Divergence) -> bool {
    let key = &situation.model.group(divergence.group).info.key;
    let dumps = situation.config.provenance.dumps();
    let known = dumps.and_then(|dumps| dumps.collective(key, divergence.seq));
    known.is_some_and(|it| it.totals.is_some())
}

/// The classes of ranks as clauses, each with the call of one of them: "rank 0 calls …, rank 1 calls …".
pub(crate) fn sides(
    classes: &[Vec<u32>],
    (one, several): (&str, &str),
    call_of: impl Fn(u32) -> Option<String>,
) -> String {
    let sides = classes.iter().filter_map(|ranks| {
        let call = call_of(*ranks.first()?)?;
        Some(format!("{} {call}", Ranks(ranks).with(one, several)))
    });
    joined(sides, ", ")
}

/// Whether all calls that met are of one line, as far as lines are known.
pub(crate) fn are_at_one_line(join: &Join) -> bool {
    let mut places = join.calls.values().filter_map(|it| it.call.place.as_ref());
    let first = places.next();
    places.all(|it| first.is_some_and(|first| it.is_same_line(first)))
}

/// The calls that were paired, in few words: "all_reduce of rank 0 at train.py:11 is paired with broadcast of rank 1 at
/// train.py:26".
/// `None`: of too many kinds.
pub(crate) fn meeting_lines(
    situation: &Situation<'_>,
    diverged: DivergedJoin<'_>,
    classes: &[Vec<u32>],
) -> Option<Mistake> {
    let [first, second] = classes else { return None };
    let call_of = |ranks: &[u32]| {
        let rank = *ranks.first()?;
        let call = &diverged.join.calls.get(&rank)?.call;
        let process = situation.model.member(diverged.divergence.group, rank);
        Some(format!("{} of {}{}", call.op, Ranks(ranks), at_line(process, call)))
    };
    let clause = format!("{} is paired with {}", call_of(first)?, call_of(second)?);
    Some(Mistake::new(&[], clause))
}

/// A draft with root cause, victims, effect and proof of calls that disagree, without sentences.
/// Also returns the classes of ranks that agree, the largest first.
pub(crate) fn parted(
    situation: &Situation<'_>,
    diverged: DivergedJoin<'_>,
    code: &'static Code,
    odd_ones: OddOnes,
) -> (Draft, Vec<Vec<u32>>) {
    let DivergedJoin { divergence, join } = diverged;
    let (group, seq) = (divergence.group, divergence.seq);
    let everybody: Vec<u32> = join.calls.keys().copied().collect();
    let mut draft = Draft::new(code, KeyPlace::Join(group, seq), divergence.at);
    draft.place = Some((group, seq));
    draft.op = join.calls.values().next().map(|joined| joined.call.op);
    draft.per_rank = rank_calls(situation, group, seq);
    draft.blocked_at = join.calls.values().map(|joined| joined.call.at).min();
    (draft.effect, draft.severity) = effect(situation, diverged, code, &everybody);
    if odd_ones.is_minority {
        draft.say(format!(
            "{} from the other {}, which agree.",
            begin(Ranks(&odd_ones.ranks).with("differs", "differ")),
            everybody.len() - odd_ones.ranks.len(),
        ));
    }
    draft.blame_odd(odd_ones);
    draft.why.extend(apart_since(situation, diverged));
    let waiting = Stall::victims(
        &situation.stalls_from(&StallOrigin::without_ranks(OriginKind::Diverged(group, seq))),
    );
    draft.set_victims(waiting.into_iter().chain(everybody));

    let kind = kind_of_proof(divergence.mismatch);
    (draft.proved_by(certificate(situation, group, join, kind)), join.classes())
}

/// A sentence on the first call before that came from different lines, although ranks had called from one line until then:
/// it was alike by chance. Roles of ranks have lines of their own.
fn apart_since(situation: &Situation<'_>, diverged: DivergedJoin<'_>) -> Option<String> {
    let DivergedJoin { divergence, join } = diverged;
    let classes = join.classes();
    let [first, second, ..] = &classes[..] else { return None };
    let (a, b) = (*first.first()?, *second.first()?);
    let group = situation.model.group(divergence.group);
    let lines = |it: &Meeting| Some((it.place_of(a)?.clone(), it.place_of(b)?.clone()));
    let are_apart = |it: &&Meeting| lines(it).is_some_and(|(a, b)| !a.is_same_line(&b));
    let before: Vec<&Meeting> =
        group.history.recent().skip_while(|it| it.seq >= divergence.seq).collect();
    let latest = before.iter().take(MAX_CALLS_APART);
    let (at, since) = latest.enumerate().rfind(|(_, it)| are_apart(it))?;
    let (here, there) = lines(since)?;
    let has_met = |it: &&Meeting| lines(it).is_some_and(|it| it == (here.clone(), there.clone()));
    let earlier = &before[at + 1..];
    let is_usual = earlier.first().is_some_and(|it| !are_apart(it) && lines(it).is_some());
    let has_role = |rank, line| {
        let process = situation.model.member(divergence.group, rank);
        let mut around = process.into_iter().flat_map(|it| guards::around(it, line));
        around.any(|(_, guard)| guard.subject == GuardSubject::Rank)
    };
    if !is_usual || earlier.iter().any(has_met) || has_role(a, &here) || has_role(b, &there) {
        return None;
    }
    Some(format!(
        "They have been out of step since call #{}, which rank {a} made at {} and rank {b} at {}: the calls since then \
         happened to match.",
        since.seq,
        words::source_line(&here),
        words::source_line(&there),
    ))
}

/// The hypothesis why the classes of a divergence differ: the first one against all others.
pub(crate) fn hypothesis(
    situation: &Situation<'_>,
    diverged: DivergedJoin<'_>,
    classes: &[Vec<u32>],
) -> CauseHypothesis {
    let divergence = diverged.divergence;
    let (first, rest) = classes.split_first().map_or((&[][..], &[][..]), |(a, b)| (&a[..], b));
    let place = Some((divergence.group, divergence.seq));
    cause::read(situation, place, &rest.concat(), first, divergence.at)
}

/// What is proved of calls that differ so: that they can never complete, or that one of them is wrong.
pub(crate) const fn kind_of_proof(mismatch: Mismatch) -> CertificateKind {
    match mismatch {
        Mismatch::Op | Mismatch::Size | Mismatch::Splits | Mismatch::Root => {
            CertificateKind::UnsatisfiableJoin
        }
        Mismatch::DType | Mismatch::ReduceOp => CertificateKind::Contradiction,
    }
}

/// The proof: the first two calls that disagree. `None` if records of a rank are lost.
pub(crate) fn certificate(
    situation: &Situation<'_>,
    group: GroupId,
    join: &Join,
    kind: CertificateKind,
) -> Option<Certificate> {
    if !situation.model.has_all_records(group, join.calls.keys().copied()) {
        return None;
    }
    let (mismatch, _) = join.mismatch?;
    if mismatch == Mismatch::Splits {
        let facts = split_facts(join, join.misfits().first()?)?;
        return Some(Certificate { kind, facts });
    }
    let mut calls = join.calls.iter();
    while let Some((&a, first)) = calls.next() {
        for (&b, second) in calls.clone() {
            if compare(&first.call, &second.call) == Some(mismatch) {
                let issued = |rank, call: &Call| issued(rank, call, call.seq);
                let facts = vec![issued(a, &first.call)?, issued(b, &second.call)?];
                return Some(Certificate { kind, facts });
            }
        }
    }
    // Evidence of another program can be like that.
    None
}

/// Whether a rank has waited in one of the calls for at least [`BLOCKED_AFTER`].
pub(crate) fn is_blocked(situation: &Situation<'_>, join: &Join) -> bool {
    join.calls.values().any(|joined| {
        let until = |since: Timestamp| situation.now.since(since) >= BLOCKED_AFTER;
        match joined.wait {
            Wait::Since(since) => until(since),
            Wait::NotSeen => joined.call.hidden && until(joined.call.at),
            Wait::Over(_) => false,
        }
    })
}

/// Effect of the mismatch on the job so far, and its severity.
fn effect(
    situation: &Situation<'_>,
    DivergedJoin { divergence, join }: DivergedJoin<'_>,
    code: &Code,
    everybody: &[u32],
) -> (Effect, Severity) {
    if situation.have_ended_in_order(divergence.group, everybody) {
        return (Effect::Corrupts, Severity::Critical);
    }
    match code.effect {
        // Such calls usually complete, with wrong results.
        Effect::Corrupts if is_blocked(situation, join) => (Effect::Blocks, Severity::Error),
        Effect::Crashes => {
            let crashed = situation.has_one_crashed(divergence.group, everybody);
            (if crashed { Effect::Crashes } else { Effect::Blocks }, code.severity)
        }
        _ if were_compared(situation, divergence.group, everybody) => {
            (Effect::Crashes, code.severity)
        }
        effect => (effect, code.severity),
    }
}

/// Whether PyTorch compared these calls before it made them, so that the ranks raised, and none waits.
fn were_compared(situation: &Situation<'_>, group: GroupId, ranks: &[u32]) -> bool {
    let mut processes = situation.model.members(group, ranks);
    processes.all(|(_, it)| it.exceptions.iter().any(|it| transport::is_of_comparison(&it.text)))
}
