//! What findings about ranks that keep the others waiting share.

use ddp_doctor_proto::catalogue::Code;
use ddp_doctor_proto::report::{CallState, Confidence, RankCall, Where};

use crate::delays::lateness::Straggler;
use crate::findings::draft::{Draft, KeyPlace};
use crate::findings::speed::coarse::{about, about_so_long, percent};
use crate::findings::view::{no_call, with_place};
use crate::situation::Situation;
use crate::words::{self, Ranks};

/// A draft about ranks that are late for this reason. `place`: where they lose time, if known.
pub(crate) fn draft(
    situation: &Situation<'_>,
    code: &'static Code,
    straggler: &Straggler,
    place: Option<&Where>,
    reason: Reason,
) -> Draft {
    let Straggler { ranks, waiting, .. } = straggler;
    let mut draft = Draft::new(code, KeyPlace::Ranks(ranks.clone()), straggler.known_at);
    draft.root = ranks.clone();
    draft.victims = waiting.clone();
    let confidence =
        if straggler.is_guessed { Confidence::Suspected } else { Confidence::Supported };
    (draft.confidence, draft.root_confidence) = (confidence, confidence);
    draft.place = Some((straggler.group, 0));
    draft.op = Some(straggler.call.op);
    draft.blocked_at = Some(straggler.since);
    draft.per_rank = per_rank(situation, straggler, place);
    draft.summary = format!(
        "{} the other ranks waiting{} {}: they lose about {} of their time, {} at a time",
        Ranks(ranks).with("keeps", "keep"),
        if straggler.in_turn { " in turn" } else { "" },
        reason.because,
        percent(straggler.share),
        about(straggler.typical),
    );
    draft.say(format!(
        "{} repeatedly been the last to arrive since at least {}: almost all waiting is for {}.",
        words::begin(Ranks(ranks).with("has", "have")),
        words::clock(straggler.since),
        Ranks(ranks),
    ));
    if straggler.is_guessed {
        draft.say("Waits on a device are not recorded: they are inferred from what ranks do next.");
    }
    if straggler.in_turn {
        draft.say("They are late in turn, each for some rounds: the culprit changes.");
    }
    if let Some(rank) = straggler.before {
        draft.say(format!("Before that, it was rank {rank}: the culprit changes."));
    }
    draft.why.extend(reason.measured);
    draft.advise(reason.advice);
    draft
}

/// The calls at which most time is lost, without fields that differ from call to call.
fn per_rank(
    situation: &Situation<'_>,
    straggler: &Straggler,
    place: Option<&Where>,
) -> Vec<RankCall> {
    let call = |rank, state, waited_ms| RankCall {
        state,
        waited_ms,
        op: straggler.call.op.name().map(str::to_owned),
        place: straggler.call.place.as_deref().cloned(),
        ..no_call(rank)
    };
    let typical = about_so_long(straggler.typical).as_millis() as u64;
    let members = &situation.model.group(straggler.group).info.key.members;
    let waiting = straggler
        .waiting
        .iter()
        .filter(|rank| members.contains(rank))
        .map(|&rank| call(rank, CallState::Waiting, Some(typical)));
    let late = straggler
        .ranks
        .iter()
        .map(|&rank| with_place(call(rank, CallState::NotIssued, None), place));
    waiting.chain(late).collect()
}

/// What is said about the reason for which ranks are late.
pub(crate) struct Reason {
    /// The end of the summary.
    pub(crate) because: &'static str,
    /// The measurement that shows it, if there is one.
    pub(crate) measured: Option<String>,
    pub(crate) advice: String,
}
