//! DD201 and DD202 about a process whose rank the evidence does not state, such as a worker of an engine.

use ddp_doctor_proto::catalogue::{self, Code};
use ddp_doctor_proto::report::Confidence;

use crate::findings::draft::{Draft, KeyPlace};
use crate::findings::process_end::{death, exception};
use crate::input::allocation;
use crate::input::event::UnplacedFailure;
use crate::model::libc_signal;
use crate::situation::Situation;
use crate::words;

/// DD202: exceptions that ended such processes.
pub(crate) fn exceptions(situation: &Situation<'_>) -> Vec<Draft> {
    drafts(situation, &catalogue::DD202, |failure| {
        let (text, place) = failure.raised.as_ref()?;
        let place = place.as_deref();
        let advice = match allocation::failed(text) {
            Some(_) => "Reduce the memory use of the process, or give it more memory.".to_owned(),
            None => exception::advice(text, place, false),
        };
        Some((format!("raised {}{}", words::short(text), words::at(place)), advice))
    })
}

/// DD201: other ends of such processes.
pub(crate) fn ends(situation: &Situation<'_>) -> Vec<Draft> {
    drafts(situation, &catalogue::DD201, |failure| {
        let advice = match failure.exit.signal {
            Some(libc_signal::KILL) => words::AFTER_SIGKILL,
            Some(_) => words::AFTER_A_CRASH,
            None => {
                "Find out how it ended: its own output, the kernel's log (dmesg), the state of its host."
            }
        };
        failure.raised.is_none().then(|| (death::ended(failure.exit), advice.to_owned()))
    })
}

/// What several failures have in common, and these with their numbers.
struct SharedEvent<'a> {
    event: String,
    advice: String,
    failures: Vec<(u32, &'a UnplacedFailure)>,
}

/// A draft for each event that `describe` gives failures, with an advice.
fn drafts(
    situation: &Situation<'_>,
    code: &'static Code,
    describe: impl Fn(&UnplacedFailure) -> Option<(String, String)>,
) -> Vec<Draft> {
    let mut events: Vec<SharedEvent<'_>> = Vec::new();
    for (index, failure) in (1..).zip(&situation.model.unplaced) {
        let Some((event, advice)) = describe(failure) else { continue };
        match events.iter_mut().find(|it| it.event == event) {
            Some(known) => known.failures.push((index, failure)),
            None => events.push(SharedEvent { event, advice, failures: vec![(index, failure)] }),
        }
    }
    let drafts = events.into_iter().filter_map(|SharedEvent { event, advice, failures }| {
        let &(index, first) = failures.first()?;
        let names: Vec<&str> = failures.iter().map(|(_, it)| &*it.name).collect();
        let mut draft = Draft::new(code, KeyPlace::Process(u32::MAX, index), first.at);
        draft.summary = format!("{} {event}", names.join(", "));
        draft.say(match names.len() {
            1 => "The log does not state the rank of this process.",
            _ => "The log does not state the ranks of these processes.",
        });
        draft.advise(advice);
        // That it failed is stated; which rank it is remains open.
        (draft.confidence, draft.root_confidence) = (Confidence::Supported, Confidence::Suspected);
        Some(draft)
    });
    drafts.collect()
}
