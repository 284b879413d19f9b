//! DD111 group-order-deadlock: a cycle of waits across process groups.

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::Confidence;

use super::{About, Detector, Draft, cycle, order};
use crate::diagnosis::creations;
use crate::diagnosis::situation::Situation;
use crate::diagnosis::streams;
use crate::diagnosis::waits::Blocked;
use crate::diagnosis::words::Ranks;

static ABOUT: About = About {
    code: &catalogue::DD111,
    order: order::CYCLE,
};

/// DD111: cycles of waits that lead through several groups.
pub(super) struct GroupOrderDeadlock;

impl Detector for GroupOrderDeadlock {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn detect(&self, situation: &Situation<'_>) -> Vec<Draft> {
        cycle::led_to(situation)
            .into_iter()
            .filter(|(_, cycle)| {
                cycle.iter().all(|wait| wait.message.is_none())
                    && !creations::is_making_cycle(situation.model, cycle)
            })
            .filter(|(i, cycle)| {
                cycle::are_in_their_calls(cycle) || cycle::is_overdue(situation, *i)
            })
            .filter_map(|(i, cycle)| draft(situation, i, cycle))
            .chain(on_streams(situation))
            .collect()
    }
}

/// Cycles among the streams of devices. Their ranks need not have a blocked thread.
fn on_streams(situation: &Situation<'_>) -> Vec<Draft> {
    /// Index of no cycle in `Waits::cycles`.
    const OF_STREAMS: usize = usize::MAX;
    let cycles = streams::cycles(situation.model);
    let told = cycles.iter().filter_map(|cycle| {
        let mut draft = cycle::draft(situation, OF_STREAMS, cycle, &ABOUT)?;
        draft.confidence = Confidence::Supported;
        draft.root_confidence = Confidence::Supported;
        draft.summary = format!(
            "The streams of {} wait for each other in {} communicators, which they use in different \
             orders",
            Ranks(&draft.root),
            cycle::groups(cycle).len(),
        );
        draft.why = vec![
            format!("{}.", cycle::steps(situation, cycle).join("; ")),
            "Every rank has made all of these calls. But a call on a stream begins only once those \
             before it are complete, and these cannot complete before the others have begun."
                .into(),
        ];
        draft.next = vec![
            "Use the communicators in the same order on every rank, or put their calls on separate \
             streams."
                .into(),
        ];
        Some(draft)
    });
    told.collect()
}

fn draft(situation: &Situation<'_>, index: usize, waits: &[Blocked]) -> Option<Draft> {
    let groups = cycle::groups(waits).len();
    if groups < 2 {
        return None;
    }
    let mut draft = cycle::draft(situation, index, waits, &ABOUT)?;
    let in_their_calls = cycle::are_in_their_calls(waits);
    draft.summary = format!(
        "{} wait for each other in {groups} process groups{}",
        Ranks(&draft.root),
        if in_their_calls {
            ", which they use in different orders"
        } else {
            ": each is in a call that the other one has not made"
        },
    );
    draft.why = vec![
        format!("{}.", cycle::steps(situation, waits).join("; ")),
        if in_their_calls {
            "None of these calls can complete before the other rank makes its own, and no rank can make \
             it before its present call completes."
        } else {
            "None of these calls can complete before the other rank makes its own."
        }
        .into(),
    ];
    draft.why.extend(cycle::further_on(situation, waits));
    draft.next = vec![match in_their_calls {
        true => {
            "Use the groups in the same order on every rank, or issue the calls with async_op=True and \
             wait for them after all are issued."
        }
        false => {
            "Use the groups in the same order on every rank, and let none leave out a call that the \
             others make."
        }
    }
    .into()];
    Some(draft)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnosis::testing::{holds, shows};

    #[test]
    fn example_matches_output() {
        shows(
            &ABOUT,
            r#"
            world = 2
            events = """
            0.5 * group tp 0,1
            0.5 * group dp 0,1
            1.0 0 all_reduce/tp f32[256] sum @train.py:30
            1.4 1 all_reduce/dp f32[256] sum @train.py:33
            """
            "#,
        );
    }

    #[test]
    fn cycle_across_groups_is_proved_when_it_closes() {
        holds(
            r#"
            world = 2
            events = """
            0.5 * group a 0,1
            0.5 * group b 0,1
            1.0 0 barrier/a @train.py:5
            2.0 1 barrier/b @train.py:6
            """
            [[expect]]
            code = "DD111"
            confidence = "proved"
            certificate = "cycle"
            root = [0, 1]
            detected = 2.0
            "#,
        );
    }

    #[test]
    fn same_order_is_not_reported() {
        holds(
            r#"
            world = 2
            events = """
            0.5 * group a 0,1
            0.5 * group b 0,1
            1.0 * barrier/a @train.py:5
            1.1 * done
            2.0 * barrier/b @train.py:6
            2.1 * done
            """
            look-on = 100
            "#,
        );
    }

    #[test]
    fn silent_backward_thread_does_not_release_a_cycle() {
        holds(
            r#"
            world = 2
            events = """
            0.5 * group a 0,1
            0.5 * group b 0,1
            1.0 * all_reduce/a hidden t7 f32[8] @train.py:5
            1.1 * done
            5.0 0 barrier/a @train.py:6
            5.1 1 barrier/b @train.py:7
            """
            look-on = 30
            [[expect]]
            code = "DD111"
            confidence = "supported"
            root = [0, 1]
            detected = 5.1
            "#,
        );
    }

    #[test]
    fn active_backward_thread_delays_the_finding() {
        holds(
            r#"
            world = 2
            events = """
            0.5 * group a 0,1
            0.5 * group b 0,1
            1.0 * all_reduce/a hidden t7 f32[8] @train.py:5
            1.1 * done
            2.0 0 barrier/a @train.py:6
            2.1 1 barrier/b @train.py:7
            """
            look-on = 30
            silent-until = 4
            [[expect]]
            code = "DD111"
            confidence = "supported"
            root = [0, 1]
            "#,
        );
    }

    #[test]
    fn inferred_wait_of_ddp_is_reported_late_and_not_proved() {
        holds(
            r#"
            world = 2
            events = """
            0.5 * group a 0,1
            0.5 * group b 0,1
            1.0 0 all_reduce/a hidden f32[8] @train.py:5
            2.0 1 barrier/b @train.py:6
            """
            look-on = 30
            silent-until = 4
            [[expect]]
            code = "DD111"
            confidence = "supported"
            root = [0, 1]
            "#,
        );
    }
}
