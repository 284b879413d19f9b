//! DD605 sync-bound: many small collectives take a large part of each step.

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::{CallState, Confidence, RankCall, Where};

use super::straggler::{about_so_long, percent};
use super::view::no_call;
use super::{About, Detector, Draft, KeyPlace, order};
use crate::diagnosis::communication::Small;
use crate::diagnosis::situation::Situation;
use crate::diagnosis::words;

static ABOUT: About = About {
    code: &catalogue::DD605,
    order: order::HINT,
};

/// DD605: small calls that could be combined.
pub(super) struct SyncBound;

impl Detector for SyncBound {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn detect(&self, situation: &Situation<'_>) -> Vec<Draft> {
        let small = situation.communication.small.iter();
        small.map(|small| draft(situation, small)).collect()
    }
}

fn draft(situation: &Situation<'_>, small: &Small) -> Draft {
    let key = KeyPlace::Join(small.group, 0);
    let mut draft = Draft::new(&ABOUT, key, small.known_at);
    // All ranks make these calls.
    draft.root.clone_from(&small.ranks);
    (draft.confidence, draft.root_confidence) = (Confidence::Supported, Confidence::Supported);
    draft.place = Some((small.group, 0));
    draft.op = Some(small.op);
    let first = small.lines.first().map(|place| &**place);
    draft.per_rank = small
        .ranks
        .iter()
        .map(|&rank| RankCall {
            state: CallState::Returned,
            op: small.op.name().map(str::to_owned),
            place: first.filter(|it| was_at(situation, rank, it)).cloned(),
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
    let each = about_so_long(small.each);
    draft.summary = format!(
        "about {share} of the time goes into small {} calls, {} a {round} of {} each{at}",
        small.op,
        small.in_a_round,
        words::bytes(small.bytes),
    );
    draft.why.push(format!(
        "Each takes about {} after all ranks have entered it: for {} that is the cost of a call, not of \
         its data. Little is computed between them.",
        words::short_time(each),
        words::bytes(small.bytes),
    ));
    if !small.are_steps {
        draft.why.push(
            "The program marks no steps: a round is a sequence of calls that repeats.".into(),
        );
    }
    draft.why.push(promise(small, round, &share));
    draft.next = vec![
        "Leave gradients to DistributedDataParallel, or put what is reduced together into one tensor \
         (torch.cat of the flattened ones) and make one call of it."
            .into(),
    ];
    draft
}

/// A sentence on the time that combined calls would save.
fn promise(small: &Small, round: &str, share: &str) -> String {
    let together = words::bytes(small.together);
    match small.bucketed {
        Some(bucketed) => {
            let take = bucketed.take.as_secs_f64();
            let now = small.each.as_secs_f64() * small.in_a_round as f64;
            let saved = small.share * (1.0 - take / now).max(0.0);
            format!(
                "Those of a {round} move {together} together. In {} that would take about {}, going by \
                 the larger calls of this group: a {round} would be about {} shorter.",
                match bucketed.calls {
                    1 => "one call".into(),
                    calls => format!("{calls} calls"),
                },
                words::short_time(about_so_long(bucketed.take)),
                percent(saved),
            )
        }
        None => format!(
            "Those of a {round} move {together} together. In one call a {round} could be up to {share} \
             shorter; the cost of moving the data is unknown."
        ),
    }
}

/// Whether a rank has made a call at this line. The lines are those of one rank.
fn was_at(situation: &Situation<'_>, rank: u32, place: &Where) -> bool {
    let process = situation.model.process_of(rank);
    process.is_some_and(|process| process.places.contains_key(place))
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::ABOUT;
    use crate::diagnosis::testing::{holds, shows};

    /// Rounds of 0.4 s with `number` calls, one every `of` ms; each takes `took` ms.
    fn rounds(
        number: usize,
        call: &str,
        (took, of): (u32, u32),
        before: &str,
        after: &str,
    ) -> String {
        let mut events =
            format!("world = 2\nevents = \"\"\"\nloop 1-30 from 1.0 every 0.4\n{before}\n");
        for i in 0..number {
            let at = 0.001 * f64::from(of) * i as f64;
            let done = at + 0.001 * f64::from(took);
            let _infallible = writeln!(events, "{at:.4} * {call}\n{done:.4} * done");
        }
        events + after + "\nend\n\"\"\"\nlook-on = 2\n"
    }

    const SMALL: &str = "all_reduce f32[1024] sum @train.py:9";
    const STEP: &str = "0.0 * step $";
    const BUCKET: &str = "0.380 * all_reduce f32[1000000] sum @train.py:12\n0.390 * done";

    #[test]
    fn example_matches_output() {
        shows(&ABOUT, &rounds(18, SMALL, (9, 15), STEP, BUCKET));
    }

    #[test]
    fn many_small_calls_are_reported_with_their_line() {
        holds(&format!(
            r#"{}
            silent-until = 9.0
            verdict = "slow"
            [[expect]]
            code = "DD605"
            severity = "warning"
            effect = "slows"
            confidence = "supported"
            root = [0, 1]
            root-confidence = "supported"
            victims = []
            op = "all_reduce"
            lines = {{ 0 = "train.py:9", 1 = "train.py:9" }}
            summary-has = "about 40 % of the time goes into small all_reduce calls, 18 a step of 4.0 KiB each"
            why-has = "up to 40 % shorter"
            "#,
            rounds(18, SMALL, (9, 15), STEP, "")
        ));
    }

    #[test]
    fn rounds_without_steps_are_separated_by_pauses() {
        holds(&format!(
            r#"{}
            [[expect]]
            code = "DD605"
            root = [0, 1]
            summary-has = "18 a round of"
            "#,
            rounds(18, SMALL, (9, 10), "", "")
        ));
    }

    #[test]
    fn larger_calls_give_the_cost_of_a_bucket() {
        holds(&format!(
            r#"{}
            [[expect]]
            code = "DD605"
            root = [0, 1]
            why-has = "In one call that would take about 10 ms"
            "#,
            rounds(18, SMALL, (9, 15), STEP, BUCKET)
        ));
    }

    #[test]
    fn few_small_calls_are_ignored() {
        holds(&rounds(12, SMALL, (14, 15), STEP, ""));
    }

    #[test]
    fn many_large_calls_are_ignored() {
        let shard = "all_reduce f32[262144] sum @train.py:9";
        holds(&rounds(18, shard, (9, 15), STEP, ""));
    }

    #[test]
    fn small_share_of_the_step_is_ignored() {
        holds(&rounds(18, SMALL, (5, 8), STEP, ""));
    }

    #[test]
    fn buckets_of_ddp_are_ignored() {
        let hidden = "all_reduce hidden f32[1024] sum @train.py:9";
        holds(&rounds(18, hidden, (9, 15), STEP, ""));
    }

    #[test]
    fn calls_with_work_between_them_are_ignored() {
        holds(&rounds(18, SMALL, (9, 21), STEP, ""));
    }

    #[test]
    fn evaluation_between_steps_is_ignored() {
        holds(
            r#"
            world = 2
            events = """
            loop 1-10 from 1.0 every 0.2
            0.0 * step $
            end
            loop 1-500 from 3.0 every 0.02
            0.000 * all_reduce f32[1] sum @train.py:30
            0.018 * done
            end
            """
            look-on = 2
            "#,
        );
    }
}
