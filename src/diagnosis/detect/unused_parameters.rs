//! DD401 unused-parameters: the same parameters have no gradient on any rank.

use ddp_doctor_proto::catalogue;

use super::{About, Detector, Draft, breach, order};
use crate::diagnosis::branches::{self, Use};
use crate::diagnosis::contract::{self, Kind};
use crate::diagnosis::situation::Situation;
use crate::diagnosis::words;

static ABOUT: About = About {
    code: &catalogue::DD401,
    order: order::WIRE,
};

/// DD401: gradients missing on all ranks.
pub(super) struct UnusedParameters;

impl Detector for UnusedParameters {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn detect(&self, situation: &Situation<'_>) -> Vec<Draft> {
        let found = breach::of(situation, &ABOUT, |kind| matches!(kind, Kind::Unused));
        found
            .into_iter()
            .map(|it| {
                let mut draft = it.draft;
                let said = it
                    .breach
                    .root
                    .first()
                    .and_then(|&rank| contract::said_of(situation, it.breach, rank));
                let total = said.map_or(0, |said| said.total);
                let names = breach::names(&draft, None, total);
                let at = words::at(said.and_then(|said| said.place.as_deref()));
                draft.summary =
                    format!("no rank has a gradient for {names} after the backward{at}");
                let parameters = match total {
                    1 => "1 parameter".to_owned(),
                    total => format!("{total} parameters"),
                };
                draft.why = vec![format!(
                    "DDP averages gradients once it has all of them. {parameters} of the model had \
                     none when the backward was over, the same on every rank: averaging did not \
                     complete, and DDP raises at the next forward."
                )];
                let left_out = branches::left_out(situation, it.breach);
                draft.why.extend(left_out.iter().map(Use::sentence));
                draft.next = vec![
                    "Delete these parameters, or freeze them before the model is wrapped; or let \
                     what they compute be part of the loss."
                        .into(),
                    "If that depends on the batch: DistributedDataParallel(…, \
                     find_unused_parameters=True)."
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

    const UNUSED: &str = r#"
        0.5 * layout "float32 16,32 body.weight" "float32 4,16 aux.weight" "float32 4 aux.bias" @train.py:12
        1.0 * forward 1 @train.py:17
        1.1 * without-gradient "float32 4,16 aux.weight" "float32 4 aux.bias" @train.py:19
    "#;

    #[test]
    fn example_matches_output() {
        shows(
            &ABOUT,
            &format!(
                "world = 2\nevents = \"\"\"\n{UNUSED}\n\
                 1.2 0 raises uncaught \"RuntimeError: Expected to have finished reduction in the prior iteration before\" @train.py:17\n\
                 1.3 1 raises uncaught \"RuntimeError: Expected to have finished reduction in the prior iteration before\" @train.py:17\n\
                 1.4 * exits 1\n\"\"\"\n"
            ),
        );
    }

    #[test]
    fn parameters_unused_on_all_ranks_explain_the_crash() {
        holds(&format!(
            r#"
            world = 3
            events = """{UNUSED}
            1.2 * raises uncaught "RuntimeError: Expected to have finished reduction in the prior iteration before" @train.py:17
            1.4 * exits 1
            """
            verdict = "crash"
            [[expect]]
            code = "DD401"
            role = "initiating"
            confidence = "proved"
            root = [0, 1, 2]
            root-confidence = "supported"
            effect = "crashes"
            detected = 1.2
            lines = {{ 0 = "train.py:19", 2 = "train.py:19" }}
            summary-has = "aux.weight, aux.bias"
            [[expect]]
            code = "DD202"
            role = "cascade"
            caused-by = "DD401"
            "#
        ));
    }

    #[test]
    fn rank_ended_before_it_raised_is_included() {
        holds(&format!(
            r#"
            world = 2
            events = """{UNUSED}
            1.2 0 raises uncaught "RuntimeError: Expected to have finished reduction in the prior iteration before" @train.py:17
            1.3 0 exits 1
            1.5 1 killed 15
            """
            [[expect]]
            code = "DD401"
            root = [0, 1]
            "#
        ));
    }

    #[test]
    fn missing_gradients_without_an_error_are_ignored() {
        holds(&format!(
            r#"
            world = 2
            events = """{UNUSED}
            1.2 * complete
            1.3 * all_reduce hidden f32[580] @train.py:20
            1.4 * done
            """
            look-on = 100
            "#
        ));
    }
}
