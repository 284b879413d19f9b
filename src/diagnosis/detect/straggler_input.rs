//! DD602 straggler-input: a rank keeps the others waiting because its data loader is slow.

use ddp_doctor_proto::catalogue;

use super::straggler;
use super::{About, Detector, Draft, order};
use crate::diagnosis::lateness::Why;
use crate::diagnosis::situation::Situation;
use crate::diagnosis::words::{self, Capital, Ranks, number};

static ABOUT: About = About {
    code: &catalogue::DD602,
    order: order::HINT,
};

/// DD602: stragglers with a slow data loader.
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
                    "Give the DataLoader of {} more workers (num_workers, prefetch_factor), or check \
                     the storage that its data comes from.",
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
    fn example_matches_output() {
        shows(&ABOUT, SLOW);
    }

    #[test]
    fn straggler_with_a_slow_loader_is_shown_at_its_line() {
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
    fn equally_slow_loaders_do_not_explain_a_straggler() {
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
