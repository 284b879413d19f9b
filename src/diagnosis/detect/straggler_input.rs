//! DD602 straggler-input: one rank arrives late because its data loader is slow.

use ddp_doctor_proto::catalogue;

use super::straggler;
use super::{About, Detector, Draft, Explanation, order};
use crate::diagnosis::lateness::Why;
use crate::diagnosis::situation::Situation;
use crate::diagnosis::words::{self, Capital, Ranks, number};

static ABOUT: About = About {
    code: &catalogue::DD602,
    order: order::HINT,
    explanation: Explanation {
        means: "One rank comes last to nearly every collective, and it is its data loader that takes \
         the time: the rank waits for its next batch while the others wait for the rank. The job \
         runs at the pace of the slowest loader.",
        example: "\
warning[DD602] straggler-input: rank 1 keeps the others waiting: they lose about 50 % of their time, 100 ms at a time, because its data loader is slow
    group default_pg, 2 ranks · supported

      rank 0   waiting 100 ms   train.py:9      all_reduce
    ▸ rank 1   elsewhere        train.py:6      last call all_reduce

    why    Rank 1 comes last again and again, since 08:00:02 UTC at least: nearly all that the
           others lose by waiting, they lose by waiting for it.
           Rank 1 waits for batches at train.py:6 about 60 % of the time, the others 10 %.
    fix    Give the DataLoader of rank 1 more workers (num_workers, prefetch_factor), or look at
           where its data comes from.
    more   ddp-doctor explain DD602
",
        causes: &[
            "Its part of the data is elsewhere or on a slower disk, larger, or compressed otherwise; \
             the cache of one node is cold.",
            "Too few workers on this rank (`num_workers=0` loads in the training loop itself), or \
             workers that share processors with others.",
            "A transformation whose cost depends on the sample, and a sampler that gives the heavy \
             ones to one rank.",
        ],
        fix: &[
            "Give its DataLoader more workers and a longer `prefetch_factor`, and \
             `persistent_workers=True`.",
            "Compare storage and cache of its node with another one's; spread heavy samples over all \
             ranks.",
        ],
        not: &[
            "A loader that is as slow on all ranks slows the job and keeps nobody waiting for a peer: \
             not told.",
            "A DataLoader of `torch.utils.data` is seen. What else the program reads its data with \
             counts as its own work (DD601).",
            "Where the host keeps the rank from running, its loader is slow as well, and that is \
             DD603.",
        ],
    },
};

/// DD602: a rank is late, and its loader explains it.
pub(super) struct StragglerInput;

impl Detector for StragglerInput {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn detect(&self, situation: &Situation<'_>) -> Vec<Draft> {
        let straggler = situation.straggler.iter();
        straggler
            .filter_map(|straggler| {
                let Why::Input { own, others } = straggler.why else {
                    return None;
                };
                let ranks = &straggler.ranks;
                let process = situation.model.process_of(*ranks.first()?);
                let place = process.and_then(|process| process.pace.draws_at.as_deref());
                let because = number(
                    ranks,
                    "because its data loader is slow",
                    "because their data loaders are slow",
                );
                let mut draft = straggler::draft(&ABOUT, situation, straggler, because, place);
                draft.why.push(format!(
                    "{} for batches{} about {} of the time, the others {}.",
                    Capital(Ranks(ranks)).to_string() + number(ranks, " waits", " wait"),
                    words::at(place),
                    straggler::percent(own),
                    straggler::percent(others),
                ));
                draft.next = vec![format!(
                    "Give the DataLoader of {} more workers (num_workers, prefetch_factor), or look at \
                     where its data comes from.",
                    Ranks(ranks),
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

    const SLOW: &str = r#"
        world = 2
        events = """
        loop 1-40 from 1.0 every 0.2
        0.01 0   input 0.01 @train.py:6
        0.01 0   forward $
        0.05 0   all_reduce hidden f32[1024] sum @train.py:9
        0.11 1   input 0.11 @train.py:6
        0.11 1   forward $
        0.15 1   all_reduce hidden f32[1024] sum @train.py:9
        end
        """
        look-on = 1
    "#;

    #[test]
    fn the_example_is_what_it_prints() {
        shows(&ABOUT, SLOW);
    }

    #[test]
    fn a_rank_whose_loader_is_slow_is_named_with_its_line() {
        holds(&format!(
            r#"{SLOW}
            verdict = "slow"
            [[expect]]
            code = "DD602"
            severity = "warning"
            root = [1]
            victims = [0]
            lines = {{ 1 = "train.py:6" }}
            "#
        ));
    }

    #[test]
    fn a_loader_that_is_as_slow_everywhere_explains_nothing() {
        holds(
            r#"
            world = 2
            events = """
            loop 1-40 from 1.0 every 0.4
            0.10 *   input 0.10 @train.py:6
            0.10 *   forward $
            0.15 0   all_reduce hidden f32[1024] sum @train.py:9
            0.35 1   all_reduce hidden f32[1024] sum @train.py:9
            end
            """
            look-on = 1
            [[expect]]
            code = "DD601"
            root = [1]
            "#,
        );
    }
}
