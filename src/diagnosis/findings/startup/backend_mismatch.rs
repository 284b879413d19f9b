//! DD304 backend-mismatch: ranks initialized with different backends.

use ddp_doctor_proto::catalogue;

use crate::findings::draft::{Draft, KeyPlace};
use crate::findings::startup::joining::{
    blame, both_begun, contradiction, describe_joiners, each, pair,
};
use crate::proof::never_meet;
use crate::situation::Situation;
use crate::situation::startup::{Forming, Joiner, ranks};
use crate::words;

/// DD304: backends that cannot communicate with each other.
pub(crate) fn draft(situation: &Situation<'_>, forming: &Forming<'_>) -> Option<Draft> {
    // Ranks whose backend can meet the most frequent one, and the others.
    let backends = forming.backends();
    let (main, _) = backends.first()?;
    let meets = |joiner: &Joiner<'_>| !never_meet(main, &joiner.init.backend);
    let named: Vec<Joiner<'_>> = backends.iter().flat_map(|(_, it)| it).copied().collect();
    let (with, without): (Vec<_>, Vec<_>) = named.into_iter().partition(meets);
    let sides = [((), with), ((), without)];
    let apart = pair(&sides)?;
    let place = KeyPlace::Ranks(vec![forming.joiners[0].rank]);
    let mut draft = Draft::new(&catalogue::DD304, place, both_begun(&apart));
    let sides: Vec<Vec<u32>> = sides.iter().map(|(_, joiners)| ranks(joiners)).collect();
    blame(&mut draft, &sides);
    describe_joiners(situation, forming, &mut draft);
    let uses = each(&backends, ("uses", "use"), |backend| backend.to_string());
    draft.summary = format!("ranks use different backends: {uses}");
    let [one, other] = &apart;
    draft.say(format!(
        "All of them join the world at {}, but ranks on {} cannot communicate with ranks on {}.",
        words::place(one.place),
        one.init.backend,
        other.init.backend
    ));
    draft.advise(
        "Use one backend on all ranks. Find out why these ranks chose a different one: they may not \
         see a GPU.",
    );
    Some(draft.proved_by(contradiction(&apart)))
}
