//! DD601 straggler-compute: a rank keeps the others waiting because its own work takes longer.

use ddp_doctor_proto::catalogue;

use super::straggler;
use super::{About, Detector, Draft, order};
use crate::diagnosis::lateness::Why;
use crate::diagnosis::situation::Situation;
use crate::diagnosis::words::{Capital, Ranks, number};

static ABOUT: About = About {
    code: &catalogue::DD601,
    order: order::HINT,
};

/// DD601: stragglers whose own work takes longer.
pub(super) struct StragglerCompute;

impl Detector for StragglerCompute {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn detect(&self, situation: &Situation<'_>) -> Vec<Draft> {
        let straggler = situation.straggler.iter();
        straggler
            .filter_map(|straggler| {
                let Why::Work { ran } = straggler.why else {
                    return None;
                };
                let ranks = &straggler.ranks;
                let because = number(
                    ranks,
                    "because its own work takes longer",
                    "because their own work takes longer",
                );
                let mut draft = straggler::draft(&ABOUT, situation, straggler, because, None);
                if let Some((own, others)) = ran {
                    draft.why.push(format!(
                        "{} neither for input nor for a processor: the main thread runs {} of the \
                         time there, {} on the others.",
                        Capital(Ranks(ranks)).to_string() + number(ranks, " waits", " wait"),
                        straggler::percent(own),
                        straggler::percent(others),
                    ));
                }
                draft.next = vec![format!(
                    "Compare what {} between two collectives with another rank: ddp-doctor dump, or a \
                     profiler on both. Give all ranks equal work.",
                    Ranks(ranks).to_string() + number(ranks, " does", " do"),
                )];
                Some(draft)
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::ABOUT;
    use crate::diagnosis::testing::{holds, shows};

    /// Rank 1 takes three times as long as the others.
    const SLOW: &str = r#"
        world = 3
        events = """
        loop 1-40 from 1.0 every 0.2
        0.00 *   forward $
        0.05 0,2 all_reduce hidden f32[1024] sum @train.py:9
        0.15 1   all_reduce hidden f32[1024] sum @train.py:9
        end
        """
        look-on = 1
    "#;

    #[test]
    fn example_matches_output() {
        shows(&ABOUT, SLOW);
    }

    /// Rank 1 sends its buckets later than rank 0, and both compute afterwards.
    fn apart(waits: &str) -> String {
        format!(
            r#"
            world = 2
            events = """
            loop 1-60 from 1.0 every 0.3
            0.00 0   forward $
            0.02 0   all_reduce hidden f32[1024] sum @train.py:9
            0.03 0   all_reduce hidden f32[1024] sum @train.py:9
            0.08 1   forward $
            0.10 1   all_reduce hidden f32[1024] sum @train.py:9
            0.11 1   all_reduce hidden f32[1024] sum @train.py:9
            {waits}
            end
            """
            look-on = 1
            "#
        )
    }

    #[test]
    fn ranks_that_compute_after_their_buckets_do_not_wait() {
        holds(&apart("0.20 0 buckets 0.001\n0.29 1 buckets 0.001"));
    }

    #[test]
    fn rank_whose_buckets_are_awaited_is_a_straggler() {
        let told = "[[expect]]\ncode = \"DD601\"\nroot = [1]";
        let waits = "0.12 0 buckets 0.085\n0.12 1 buckets 0.005";
        holds(&format!("{}{told}", apart(waits)));
        // Without recorded waits, ranks are assumed to wait until their next record.
        holds(&format!("{}{told}", apart("")));
    }

    /// Three ranks, of which the `late` ones are late in turn, for `rounds` rounds each.
    fn in_turn(late: &[u32], rounds: usize) -> String {
        let mut events = String::new();
        for round in 0..60 {
            let at = 1.0 + 0.2 * f64::from(round);
            let late = late[round as usize / rounds % late.len()];
            let others: Vec<String> = (0..3)
                .filter(|it| *it != late)
                .map(|it| it.to_string())
                .collect();
            events += &format!(
                "{at:.2} * forward {round}\n{:.2} {} all_reduce hidden f32[1024] sum @train.py:9\n\
                 {:.2} {late} all_reduce hidden f32[1024] sum @train.py:9\n",
                at + 0.05,
                others.join(","),
                at + 0.15,
            );
        }
        format!("world = 3\nevents = \"\"\"\n{events}\"\"\"\nlook-on = 1\n")
    }

    #[test]
    fn two_stragglers_in_turn_are_both_named() {
        holds(&format!(
            r#"{}
            silent-until = 8.0
            [[expect]]
            code = "DD601"
            root = [1, 2]
            root-confidence = "supported"
            victims = [0]
            summary-has = "ranks 1 and 2 keep the others waiting in turn"
            why-has = "the culprit changes"
            "#,
            in_turn(&[1, 2], 4)
        ));
    }

    #[test]
    fn ranks_late_in_turn_are_not_stragglers() {
        holds(&in_turn(&[0, 1, 2], 4));
    }

    #[test]
    fn ranks_late_in_every_other_round_are_not_stragglers() {
        holds(&in_turn(&[1, 2], 1));
    }

    #[test]
    fn rank_that_is_always_last_is_a_straggler() {
        holds(&format!(
            r#"{SLOW}
            verdict = "slow"
            silent-until = 5.0
            [[expect]]
            code = "DD601"
            severity = "warning"
            effect = "slows"
            confidence = "supported"
            root = [1]
            root-confidence = "supported"
            victims = [0, 2]
            op = "all_reduce"
            lines = {{ 0 = "train.py:9" }}
            summary-has = "about 50 %"
            "#
        ));
    }

    #[test]
    fn new_straggler_is_reported_within_five_seconds() {
        holds(
            r#"
            world = 3
            events = """
            loop 1-150 from 1.0 every 0.1
            0.00 *   forward $
            0.09 *   all_reduce hidden f32[1024] sum @train.py:9
            end
            loop 151-175 from 16.0 every 0.2
            0.00 *   forward $
            0.05 0,2 all_reduce hidden f32[1024] sum @train.py:9
            0.15 1   all_reduce hidden f32[1024] sum @train.py:9
            end
            """
            look-on = 1
            silent-until = 18.0
            [[expect]]
            code = "DD601"
            root = [1]
            "#,
        );
    }

    #[test]
    fn straggler_is_withdrawn_when_it_keeps_up() {
        holds(
            r#"
            world = 3
            events = """
            loop 1-60 from 1.0 every 0.2
            0.00 *   forward $
            0.05 0,2 all_reduce hidden f32[1024] sum @train.py:9
            0.15 1   all_reduce hidden f32[1024] sum @train.py:9
            end
            loop 61-90 from 13.0 every 0.1
            0.00 *   forward $
            0.09 *   all_reduce hidden f32[1024] sum @train.py:9
            end
            """
            look-on = 1
            verdict = "healthy"
            "#,
        );
    }

    #[test]
    fn new_straggler_with_long_steps_needs_three_steps() {
        holds(
            r#"
            world = 2
            events = """
            loop 1-20 from 1.0 every 4.0
            0.0 *   forward $
            3.9 *   all_reduce hidden f32[1024] sum @train.py:9
            end
            loop 21-24 from 81.0 every 8.0
            0.0 *   forward $
            3.9 0   all_reduce hidden f32[1024] sum @train.py:9
            7.9 1   all_reduce hidden f32[1024] sum @train.py:9
            end
            """
            look-on = 1
            silent-until = 100.0
            [[expect]]
            code = "DD601"
            root = [1]
            "#,
        );
    }

    #[test]
    fn slightly_uneven_work_is_ignored() {
        holds(
            r#"
            world = 3
            events = """
            loop 1-100 from 1.0 every 0.11
            0.000 *   forward $
            0.090 0,2 all_reduce hidden f32[1024] sum @train.py:9
            0.100 1   all_reduce hidden f32[1024] sum @train.py:9
            end
            """
            look-on = 1
            "#,
        );
    }

    #[test]
    fn occasionally_late_rank_is_ignored() {
        // One second in four, as for a checkpoint.
        holds(
            r#"
            world = 2
            events = """
            loop 1-8 from 1.0 every 4.0
            0.00 *   forward $
            0.50 0   all_reduce hidden f32[1024] sum @train.py:9
            0.50 1   all_reduce hidden f32[1024] sum @train.py:9
            1.00 *   forward $
            1.50 *   all_reduce hidden f32[1024] sum @train.py:9
            2.00 *   forward $
            2.50 1   all_reduce hidden f32[1024] sum @train.py:9
            3.50 0   all_reduce hidden f32[1024] sum @train.py:9
            end
            """
            look-on = 1
            "#,
        );
    }

    #[test]
    fn alternating_late_ranks_are_not_stragglers() {
        holds(
            r#"
            world = 2
            events = """
            loop 1-60 from 1.0 every 0.4
            0.00 *   forward $
            0.05 0   all_reduce hidden f32[1024] sum @train.py:9
            0.15 1   all_reduce hidden f32[1024] sum @train.py:9
            0.20 *   forward $
            0.25 1   all_reduce hidden f32[1024] sum @train.py:9
            0.35 0   all_reduce hidden f32[1024] sum @train.py:9
            end
            """
            look-on = 1
            "#,
        );
    }

    #[test]
    fn rank_late_because_of_another_group_is_a_victim() {
        // Rank 1 is the last one in the world because it waits for rank 2 in another group.
        holds(
            r#"
            world = 3
            events = """
            0.5 1,2 group pair 1,2
            loop 1-40 from 1.0 every 0.2
            0.00 *   forward $
            0.02 1   all_reduce/pair f32[8] sum @train.py:7
            0.05 0   all_reduce f32[8] sum @train.py:9
            0.15 2   all_reduce/pair f32[8] sum @train.py:7
            0.15 1,2 done
            0.16 2   all_reduce f32[8] sum @train.py:9
            0.161 1  all_reduce f32[8] sum @train.py:9
            0.17 *   done
            end
            """
            look-on = 1
            [[expect]]
            code = "DD601"
            root = [2]
            victims = [0, 1]
            "#,
        );
    }

    #[test]
    fn slow_pipeline_stage_is_a_straggler() {
        holds(
            r#"
            world = 3
            events = """
            loop 1-50 from 1.0 every 0.33
            0.000 1   recv peer=0 f32[8] @train.py:5
            0.000 2   recv peer=1 f32[8] @train.py:5
            0.030 0   send peer=1 f32[8] @train.py:6
            0.031 0,1 done
            0.032 0   recv peer=2 f32[8] @train.py:7
            0.270 1   send peer=2 f32[8] @train.py:6
            0.271 1,2 done
            0.300 2   send peer=0 f32[8] @train.py:8
            0.301 0,2 done
            end
            """
            look-on = 1
            [[expect]]
            code = "DD601"
            root = [1]
            "#,
        );
    }

    #[test]
    fn time_in_a_marked_phase_does_not_count() {
        holds(
            r#"
            world = 2
            events = """
            loop 1-40 from 1.0 every 0.2
            0.00 *   forward $
            0.04 1   phase checkpoint
            0.05 0   all_reduce hidden f32[1024] sum @train.py:9
            0.14 1   endphase checkpoint
            0.15 1   all_reduce hidden f32[1024] sum @train.py:9
            end
            """
            look-on = 1
            "#,
        );
    }

    #[test]
    fn ranks_of_one_slow_host_are_named_together() {
        holds(
            r#"
            world = 4
            hosts = { a = [0, 1], b = [2, 3] }
            events = """
            loop 1-40 from 1.0 every 0.4
            0.00 *   forward $
            0.05 0,1 all_reduce hidden f32[1024] sum @train.py:9
            0.14 2   all_reduce hidden f32[1024] sum @train.py:9
            0.15 3   all_reduce hidden f32[1024] sum @train.py:9
            0.20 *   forward $
            0.25 0,1 all_reduce hidden f32[1024] sum @train.py:9
            0.34 3   all_reduce hidden f32[1024] sum @train.py:9
            0.35 2   all_reduce hidden f32[1024] sum @train.py:9
            end
            """
            look-on = 1
            [[expect]]
            code = "DD601"
            root = [2, 3]
            victims = [0, 1]
            "#,
        );
    }

    #[test]
    fn straggler_on_a_device_is_suspected() {
        holds(
            r#"
            world = 2
            backend = "nccl"
            events = """
            loop 1-40 from 1.0 every 0.2
            0.00 *   forward $
            0.05 0   all_reduce hidden f32[1024] sum @train.py:9
            0.15 1   all_reduce hidden f32[1024] sum @train.py:9
            end
            """
            look-on = 1
            [[expect]]
            code = "DD601"
            confidence = "suspected"
            root = [1]
            "#,
        );
    }

    #[test]
    fn new_straggler_replaces_the_earlier_one() {
        holds(
            r#"
            world = 3
            events = """
            loop 1-40 from 1.0 every 0.2
            0.00 *   forward $
            0.05 0,2 all_reduce hidden f32[1024] sum @train.py:9
            0.15 1   all_reduce hidden f32[1024] sum @train.py:9
            end
            loop 41-80 from 9.0 every 0.2
            0.00 *   forward $
            0.05 0,1 all_reduce hidden f32[1024] sum @train.py:9
            0.15 2   all_reduce hidden f32[1024] sum @train.py:9
            end
            """
            look-on = 1
            [[expect]]
            code = "DD601"
            root = [2]
            victims = [0, 1]
            "#,
        );
    }
}
