//! DD304 backend-mismatch: ranks initialised with different backends.

use ddp_doctor_proto::catalogue;

use crate::findings::draft::{Draft, KeyPlace};
use crate::findings::startup::joining::{blame, contradiction, describe_joiners, pair, who};
use crate::proof::never_meet;
use crate::situation::Situation;
use crate::situation::startup::{Forming, Joiner, by_place, ranks};
use crate::words;

/// DD304: backends that cannot communicate with each other.
pub(crate) fn detect(situation: &Situation<'_>) -> Vec<Draft> {
    let forming = by_place(situation.model);
    let drafts = forming.iter().filter_map(|it| draft(situation, it));
    drafts.collect()
}

fn draft(situation: &Situation<'_>, forming: &Forming<'_>) -> Option<Draft> {
    // Ranks whose backend can meet the most frequent one, and the others.
    let backends = forming.backends();
    let (main, _) = backends.first()?;
    let meets = |joiner: &Joiner<'_>| !never_meet(main, &joiner.init.backend);
    let named: Vec<Joiner<'_>> = backends.iter().flat_map(|(_, it)| it).copied().collect();
    let (with, without): (Vec<_>, Vec<_>) = named.into_iter().partition(meets);
    let sides = [((), with), ((), without)];
    let [one, other] = pair(&sides)?;
    let decided = one.init.call.at.max(other.init.call.at);
    let place = KeyPlace::Ranks(vec![forming.joiners[0].rank]);
    let mut draft = Draft::new(&catalogue::DD304, place, decided);
    let sides: Vec<Vec<u32>> = sides.iter().map(|(_, joiners)| ranks(joiners)).collect();
    blame(&mut draft, &sides);
    describe_joiners(situation, forming, &mut draft);
    let parts: Vec<String> = backends
        .iter()
        .map(|(backend, joiners)| {
            let verb = words::number(&ranks(joiners), "uses", "use");
            format!("{} {verb} {backend}", who(joiners))
        })
        .collect();
    draft.summary = format!("ranks use different backends: {}", parts.join(", "));
    draft.why = vec![format!(
        "All of them join the world at {}, but ranks on {} cannot communicate with ranks on {}.",
        words::place(one.place),
        one.init.backend,
        other.init.backend
    )];
    draft.next = vec![
        "Name one backend for all ranks. Find out why these ranks chose another one: they may not \
         see a GPU."
            .into(),
    ];
    Some(draft.proved_by(Some(contradiction(&one, &other))))
}
