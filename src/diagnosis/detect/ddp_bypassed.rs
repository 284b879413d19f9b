//! DD405 ddp-bypassed: gradients are computed without DDP's forward and are not averaged.

use ddp_doctor_proto::catalogue;

use super::{About, Detector, Draft, breach, order};
use crate::diagnosis::contract::{self, Kind};
use crate::diagnosis::situation::Situation;
use crate::diagnosis::words::{self, Ranks, number};

static ABOUT: About = About {
    code: &catalogue::DD405,
    order: order::WIRE,
};

/// DD405: gradients that DDP does not average.
pub(super) struct DdpBypassed;

impl Detector for DdpBypassed {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn detect(&self, situation: &Situation<'_>) -> Vec<Draft> {
        let found = breach::of(situation, &ABOUT, |kind| matches!(kind, Kind::Bypassed));
        found
            .into_iter()
            .map(|it| {
                let mut draft = it.draft;
                let first = it.breach.root.first();
                let said = first.and_then(|&rank| contract::said_of(situation, it.breach, rank));
                let at = words::at(said.and_then(|said| said.place.as_deref()));
                let root = &draft.root;
                draft.summary = format!(
                    "the gradients of {} come from a backward without DDP's forward{at}: they are \
                     not averaged",
                    Ranks(root),
                );
                draft.why = vec![format!(
                    "In three consecutive steps {} {} no forward of the wrapped model before the \
                     backward, but the backward left gradients. DDP averages only gradients of its \
                     own forward.",
                    Ranks(root),
                    number(root, "made", "made"),
                )];
                draft.next = vec![
                    "Call the wrapped model itself, not its .module or a method of that.".into(),
                    "Continue from an earlier checkpoint: the parameters of the ranks have diverged."
                        .into(),
                ];
                draft
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnosis::testing::{holds, shows};

    const OUTSIDE: &str = r#"
        0.5 * layout "float32 16,32 body.weight" "float32 4,16 head.weight" @train.py:12
        0.6 * all_gather hidden i64[1] @train.py:12
        0.7 * done
        3.0 * outside @train.py:19
    "#;

    #[test]
    fn example_matches_output() {
        shows(
            &ABOUT,
            &format!("world = 2\nevents = \"\"\"\n{OUTSIDE}\"\"\"\n"),
        );
    }

    #[test]
    fn gradients_without_any_averaging_are_found() {
        holds(&format!(
            r#"
            world = 2
            events = """{OUTSIDE}
            4.0 * all_reduce f32[1] sum @train.py:25
            4.1 * done
            """
            verdict = "wrong"
            look-on = 100
            [[expect]]
            code = "DD405"
            confidence = "supported"
            effect = "corrupts"
            root = [0, 1]
            detected = 3.0
            lines = {{ 0 = "train.py:19", 1 = "train.py:19" }}
            "#
        ));
    }

    #[test]
    fn gradients_that_the_program_averages_are_ignored() {
        holds(&format!(
            r#"
            world = 2
            events = """
            0.2 * all_reduce f32[512] sum @train.py:20
            0.3 * done
            {OUTSIDE}"""
            look-on = 100
            "#
        ));
    }

    #[test]
    fn single_rank_does_not_need_averaging() {
        holds(&format!(
            r#"
            world = 1
            events = """{OUTSIDE}"""
            look-on = 100
            "#
        ));
    }
}
