//! DD605 sync-bound: many small collectives take a large part of each step.

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::{CallState, Confidence, RankCall, Where};

use crate::delays::communication::Small;
use crate::findings::draft::{Draft, KeyPlace};
use crate::findings::speed::coarse::{about, percent};
use crate::findings::view::no_call;
use crate::situation::Situation;
use crate::words;

/// DD605: small calls that could be combined.
pub(crate) fn detect(situation: &Situation<'_>) -> Vec<Draft> {
    let small = situation.losses.communication.small.iter();
    small.map(|small| draft(situation, small)).collect()
}

fn draft(situation: &Situation<'_>, small: &Small) -> Draft {
    let key = KeyPlace::Join(small.group, 0);
    let mut draft = Draft::new(&catalogue::DD605, key, small.known_at);
    // All ranks make these calls.
    draft.blame(&small.ranks[..], Confidence::Supported);
    draft.place = Some((small.group, 0));
    draft.op = Some(small.op);
    let first = small.lines.first().map(|place| &**place);
    // The lines are those of one rank.
    let was_at = |rank: u32, place: &Where| {
        let process = situation.model.process_of(rank);
        process.is_some_and(|process| process.places.contains(place))
    };
    draft.per_rank = small
        .ranks
        .iter()
        .map(|&rank| RankCall {
            state: CallState::Returned,
            op: small.op.name().map(str::to_owned),
            place: first.filter(|it| was_at(rank, it)).cloned(),
            ..no_call(rank)
        })
        .collect();
    let lines: Vec<String> = small.lines.iter().map(|place| words::line(place)).collect();
    let at = match &lines[..] {
        [] => String::new(),
        lines => format!(", made at {}", lines.join(", ")),
    };
    let round = if small.are_steps { "step" } else { "round" };
    let share = percent(small.share);
    draft.summary = format!(
        "about {share} of the time is spent in small {} calls: {} per {round}, of {}{at}",
        small.op,
        small.in_a_round,
        sizes(small),
    );
    draft.say(format!(
        "Each takes about {} after all ranks have entered it: for so little data, that is the fixed cost of a call. There \
         is little computation between them.",
        about(small.each),
    ));
    if !small.are_steps {
        draft.say("The program marks no steps: a round is a sequence of calls that repeats.");
    }
    draft.say(promise(small, round, &share));
    draft.advise(
        "Leave gradients to DistributedDataParallel, or concatenate these tensors (torch.cat of the flattened \
         tensors) and reduce them in one call.",
    );
    draft
}

/// The size of the calls: "288 B each", or the mean and the median if they are far apart.
fn sizes(small: &Small) -> String {
    let mean = small.together / (small.in_a_round as u64).max(1);
    let median = words::bytes(small.bytes);
    if mean > small.bytes.saturating_mul(2) {
        format!("{} on average, half of them at most {median}", words::bytes(mean))
    } else {
        format!("{median} each")
    }
}

/// A sentence on the time that combined calls would save.
fn promise(small: &Small, round: &str, share: &str) -> String {
    let together = words::bytes(small.together);
    match small.bucketed {
        Some(bucketed) => {
            let take = bucketed.take.as_secs_f64();
            let now = small.each.as_secs_f64() * small.in_a_round as f64;
            let saved = small.share * (1.0 - take / now).max(0.0);
            let seen = words::bytes(bucketed.seen);
            let basis = if bucketed.seen < small.together / bucketed.calls {
                format!("the largest calls seen in this group, which move {seen} each")
            } else {
                format!("the calls of this group that move {seen}")
            };
            format!(
                "Together, those of a {round} move {together}. In {}, that would take about {}, judging by {basis}: a {round} \
                 would be about {} shorter.",
                match bucketed.calls {
                    1 => "one call".into(),
                    calls => format!("{calls} calls"),
                },
                about(bucketed.take),
                percent(saved),
            )
        }
        None => format!(
            "Those of a {round} move {together} together. In one call a {round} could be up to {share} \
             shorter; the cost of moving the data is unknown."
        ),
    }
}
