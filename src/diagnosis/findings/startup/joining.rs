//! Shared by the findings about worlds that are being formed.

use std::sync::Arc;

use ddp_doctor_proto::Op;
use ddp_doctor_proto::report::{CallState, Certificate, CertificateKind, RankCall, Timestamp};

use crate::findings::draft::Draft;
use crate::findings::view::{describe, waiting_until};
use crate::input::align::odd_ones;
use crate::input::event::Call;
use crate::situation::Situation;
use crate::situation::startup::{Forming, Joiner, ranks};
use crate::words::{self, Ranks};

/// Fills in the calls of the joiners, the start of the wait, and the victims.
pub(crate) fn describe_joiners(
    situation: &Situation<'_>,
    forming: &Forming<'_>,
    draft: &mut Draft,
) {
    draft.op = Some(Op::InitProcessGroup);
    draft.of_process = Some(forming.joiners[0].process.id);
    draft.blocked_at = Some(forming.begun());
    draft.per_rank = forming.joiners.iter().map(|joiner| joining_call(situation, joiner)).collect();
    let mut held_up = forming.joiners.clone();
    held_up.retain(|it| it.process.is_joining() || held_up_in(situation, it).is_some());
    draft.set_victims(ranks(&held_up));
}

/// The row of a joiner: its call of `init_process_group`, or the call that it waits in since.
pub(crate) fn joining_call(situation: &Situation<'_>, joiner: &Joiner<'_>) -> RankCall {
    let until = joiner.process.end.map_or(situation.now, |end| end.at);
    match (joiner.init.over, held_up_in(situation, joiner)) {
        (None, _) => waiting_until(joiner.rank, until, &joiner.init.call),
        (Some(_), Some(call)) => waiting_until(joiner.rank, until, call),
        (Some(_), None) => describe(joiner.rank, CallState::Returned, None, &joiner.init.call),
    }
}

/// The call in which a rank that has returned from joining waits, or waited at its end, for ranks
/// that have not: backends that connect on demand let ranks go on before all have joined.
fn held_up_in<'a>(situation: &Situation<'_>, joiner: &Joiner<'a>) -> Option<&'a Arc<Call>> {
    joiner.init.over?;
    let threads = joiner.process.threads.values();
    let mut open = threads.filter(|it| it.is_under_way() || it.failed.is_some());
    open.find_map(|thread| {
        let call = thread.last_call.as_ref()?;
        let group = joiner.process.target(call.id)?.group();
        let is_complete = situation.model.group(group).is_fully_seen();
        (!is_complete).then_some(call)
    })
}

/// Makes the classes outnumbered by another one the root cause, or all of them.
pub(crate) fn blame(draft: &mut Draft, classes: &[Vec<u32>]) {
    draft.blame_odd(odd_ones(classes));
    draft.root.dedup();
}

/// "ranks 0 and 1 at train.py:12".
pub(crate) fn who(joiners: &[Joiner<'_>]) -> String {
    let places: Vec<_> = joiners.iter().map(|it| it.init.call.place.as_deref()).collect();
    let one = places.iter().all(|place| *place == places[0]);
    let place = places[0].filter(|_| one);
    format!("{}{}", Ranks(&ranks(joiners)), words::at(place))
}

/// What each class of joiners does: "ranks 0 and 1 at train.py:12 expect 2 ranks, rank 2 expects 3
/// ranks". The verb is given for one rank and for several.
pub(crate) fn each<K>(
    classes: &[(K, Vec<Joiner<'_>>)],
    (one, several): (&str, &str),
    object: impl Fn(&K) -> String,
) -> String {
    let clause = |(key, joiners): &(K, Vec<Joiner<'_>>)| {
        let verb = words::number(&ranks(joiners), one, several);
        format!("{} {verb} {}", who(joiners), object(key))
    };
    words::joined(classes.iter().map(clause), ", ")
}

/// The proof that two joiners contradict each other; `None` if they may be one process.
pub(crate) fn contradiction([one, other]: &[Joiner<'_>; 2]) -> Option<Certificate> {
    let facts = vec![one.fact()?, other.fact()?];
    Some(Certificate { kind: CertificateKind::Contradiction, facts })
}

/// The earliest two joiners of different classes that were joining at the same time.
pub(crate) fn pair<'a, K>(classes: &[(K, Vec<Joiner<'a>>)]) -> Option<[Joiner<'a>; 2]> {
    let pairs = classes.iter().enumerate().flat_map(|(i, (_, joiners))| {
        classes[i + 1..].iter().flat_map(move |(_, others)| {
            let partner = |one: &Joiner<'a>| others.iter().find(|other| one.meets(other));
            joiners.iter().filter_map(move |one| Some([*one, *partner(one)?]))
        })
    });
    pairs.min_by_key(both_begun)
}

/// When the later one of two joiners began.
pub(crate) fn both_begun([one, other]: &[Joiner<'_>; 2]) -> Timestamp {
    one.init.call.at.max(other.init.call.at)
}
