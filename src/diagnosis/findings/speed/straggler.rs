//! Shared by the findings about stragglers.

use std::time::Duration;

use ddp_doctor_proto::catalogue::Code;
use ddp_doctor_proto::report::{CallState, Confidence, RankCall, Where};

use crate::findings::draft::{Draft, KeyPlace};
use crate::findings::view::{no_call, with_place};
use crate::situation::Situation;
use crate::speed::lateness::Straggler;
use crate::words::{self, Capital, Ranks, number};

/// A draft about ranks that keep the others waiting. `because` ends the summary; `place` is the
/// line at which the late ranks lose time, if known.
pub(crate) fn draft(
    code: &'static Code,
    situation: &Situation<'_>,
    straggler: &Straggler,
    because: &str,
    place: Option<&Where>,
) -> Draft {
    let Straggler { ranks, waiting, .. } = straggler;
    let group = situation.model.group(straggler.group);
    let key = KeyPlace::Ranks(ranks.clone());
    let mut draft = Draft::new(code, key, straggler.known_at);
    draft.root = ranks.clone();
    draft.victims = waiting.clone();
    let confidence =
        if straggler.is_guessed { Confidence::Suspected } else { Confidence::Supported };
    (draft.confidence, draft.root_confidence) = (confidence, confidence);
    draft.place = Some((straggler.group, 0));
    draft.op = Some(straggler.call.op);
    draft.blocked_at = Some(straggler.since);
    let typical = about_so_long(straggler.typical);
    // Without fields that differ from call to call.
    let call = |rank, state, waited_ms| RankCall {
        state,
        waited_ms,
        op: straggler.call.op.name().map(str::to_owned),
        place: straggler.call.place.as_deref().cloned(),
        ..no_call(rank)
    };
    let waited_ms = Some(typical.as_millis() as u64);
    let members = &group.info.key.members;
    let mut calls: Vec<RankCall> = waiting
        .iter()
        .filter(|rank| members.contains(rank))
        .map(|&rank| call(rank, CallState::Waiting, waited_ms))
        .collect();
    calls.extend(
        ranks.iter().map(|&rank| with_place(call(rank, CallState::NotIssued, None), place)),
    );
    calls.sort_by_key(|call| call.rank);
    draft.per_rank = calls;
    draft.summary = format!(
        "{} the others waiting{}: they lose about {} of their time, {} at a time, {because}",
        Ranks(ranks).to_string() + number(ranks, " keeps", " keep"),
        if straggler.in_turn { " in turn" } else { "" },
        percent(straggler.share),
        words::short_time(typical),
    );
    draft.why.push(format!(
        "{} repeatedly the last, since {} at least: nearly all that the others lose by waiting, they \
         lose by waiting for {}.",
        Capital(Ranks(ranks)).to_string() + number(ranks, " is", " are"),
        words::clock(straggler.since),
        number(ranks, "it", "them"),
    ));
    if straggler.is_guessed {
        draft.why.push(
            "Waits on a device are not recorded: they are inferred from what ranks do next.".into(),
        );
    }
    if straggler.in_turn {
        draft.why.push("They are late in turn, each for some rounds: the culprit changes.".into());
    }
    if let Some(rank) = straggler.before {
        draft.why.push(format!("Before that it was rank {rank}: the culprit changes."));
    }
    draft
}

/// "60 %": rounded to tens, so that a report does not change with every evaluation.
pub(crate) fn percent(share: f64) -> String {
    if share < 0.05 {
        return "less than 5 %".into();
    }
    format!("{:.0} %", (share * 10.0).round() * 10.0)
}

/// A duration rounded to one digit, so that a report does not change with every evaluation.
pub(crate) fn about_so_long(time: Duration) -> Duration {
    const DIGITS: [f64; 8] = [1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0, 10.0];
    let micros = time.as_secs_f64() * 1e6;
    if micros < 1.0 {
        return Duration::ZERO;
    }
    let scale = 10_f64.powf(micros.log10().floor());
    let digit = micros / scale;
    let nearest = DIGITS.into_iter().min_by(|a, b| (a - digit).abs().total_cmp(&(b - digit).abs()));
    Duration::from_secs_f64(nearest.unwrap_or(1.0) * scale / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_shares_are_coarse() {
        for (millis, expected) in [(95, 100), (132, 150), (170, 150), (620, 700), (0, 0)] {
            let time = about_so_long(Duration::from_millis(millis));
            assert_eq!(time.as_millis(), expected, "{millis}");
        }
        assert_eq!(percent(0.634), "60 %");
        assert_eq!(percent(0.03), "less than 5 %");
    }
}
