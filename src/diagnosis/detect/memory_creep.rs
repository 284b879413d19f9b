//! DD503 memory-creep: the memory of a rank grows steadily with every step.

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::Confidence;

use super::oom_forecast::{look_for, of, shared, went};
use super::view::last_call;
use super::{About, Detector, Draft, KeyPlace, order};
use crate::diagnosis::growth::{self, Grower};
use crate::diagnosis::situation::Situation;
use crate::diagnosis::words::{self, Ranks, number};

/// Minimum step that the growth must reach if the end of the input is not recorded.
const LONG: u64 = 200;
/// Minimum slope of further ranks that are named, relative to the steepest.
const SHARE: f64 = 0.25;

static ABOUT: About = About {
    code: &catalogue::DD503,
    order: order::HINT,
};

/// DD503: steady growth, far from the limit of memory.
pub(super) struct MemoryCreep;

impl Detector for MemoryCreep {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn detect(&self, situation: &Situation<'_>) -> Vec<Draft> {
        let growers = situation.growers.iter();
        let growers: Vec<&Grower<'_>> = growers.filter(|it| it.is_its_own()).collect();
        let forecast = growers.iter().any(|it| it.ends_in_sight().is_some());
        let lasting = growers.into_iter().filter(|grower| lasts(grower));
        let lasting: Vec<&Grower<'_>> = lasting.filter(|_| !forecast).collect();
        draft(&lasting).into_iter().collect()
    }
}

/// Whether the growth continues after the first pass over the data, in which caches fill.
fn lasts(grower: &Grower<'_>) -> bool {
    let process = grower.process;
    let (_, to) = grower.growth.steps;
    match process.input_ended_in_step {
        // As many steps after the first pass as are needed to detect growth.
        Some(ended) => to.saturating_sub(ended) >= growth::LEAST_STEPS,
        None => to >= LONG,
    }
}

fn draft(lasting: &[&Grower<'_>]) -> Option<Draft> {
    let slope = |grower: &&&Grower<'_>| grower.growth.trend.slope;
    let most = lasting
        .iter()
        .max_by(|a, b| slope(a).total_cmp(&slope(b)))?;
    let mut growers: Vec<&Grower<'_>> = lasting
        .iter()
        .filter(|it| slope(it) >= SHARE * slope(&most))
        .copied()
        .collect();
    growers.sort_by_key(|grower| (grower.rank, grower.device));
    growers.dedup_by_key(|grower| grower.rank);
    let mut draft = Draft::new(&ABOUT, KeyPlace::Job, most.growth.at);
    draft.confidence = Confidence::Supported;
    draft.root = growers.iter().map(|grower| grower.rank).collect();
    draft.root_confidence = Confidence::Supported;
    draft.per_rank = growers
        .iter()
        .map(|grower| last_call(grower.rank, grower.process))
        .collect();
    draft.summary = format!(
        "the {} of {} {} by {}{} with every step",
        of(most),
        Ranks(&draft.root),
        number(&draft.root, "grows", "grow"),
        number(&draft.root, "", "up to "),
        words::bytes(most.growth.trend.slope as u64),
    );
    draft.why = vec![went(most)];
    draft.why.extend(shared(most));
    draft.next = vec![look_for(&draft.root)];
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
            loop 1-240 from 1.0 every 0.5
            0.0 * step $
            0.2 0 memory rss=500M
            0.2 1 memory rss=500M+2M*$
            end
            """
            "#,
        );
    }

    #[test]
    fn growth_is_reported_after_the_first_pass() {
        holds(
            r#"
            world = 2
            events = """
            loop 1-60 from 1.0 every 1.0
            0.0 * step $
            0.5 0 memory rss=500M host=20G/640G
            0.5 1 memory rss=500M+20M*$ host=20G/640G
            end
            61.0 * input-ended
            loop 61-90 from 62.0 every 1.0
            0.0 * step $
            0.5 0 memory rss=500M host=20G/640G
            0.5 1 memory rss=500M+20M*$ host=20G/640G
            end
            """
            silent-until = 80
            [[expect]]
            code = "DD503"
            severity = "warning"
            effect = "none"
            root = [1]
            summary-has = "20.0 MiB with every step"
            "#,
        );
    }

    #[test]
    fn cache_that_fills_in_the_first_pass_is_ignored() {
        holds(
            r#"
            world = 2
            events = """
            loop 1-100 from 1.0 every 1.0
            0.0 * step $
            0.5 * memory rss=500M+20M*$ host=20G/640G
            end
            101.0 * input-ended
            loop 101-160 from 102.0 every 1.0
            0.0 * step $
            0.5 * memory rss=2500M host=20G/640G
            end
            """
            "#,
        );
    }

    #[test]
    fn all_leaking_ranks_are_named() {
        holds(
            r#"
            world = 4
            events = """
            loop 1-240 from 1.0 every 0.5
            0.0 * step $
            0.2 * memory rss=500M+2M*$
            end
            """
            [[expect]]
            code = "DD503"
            root = [0, 1, 2, 3]
            "#,
        );
    }
}
