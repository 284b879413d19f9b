//! DD403 ready-twice: a gradient was ready twice in one backward, or a static graph changed.

use ddp_doctor_proto::catalogue;

use super::{About, Detector, Draft, breach, order};
use crate::diagnosis::branches::{self, Use};
use crate::diagnosis::contract::{self, Kind};
use crate::diagnosis::situation::Situation;
use crate::diagnosis::words::{self, Ranks};

static ABOUT: About = About {
    code: &catalogue::DD403,
    order: order::WIRE,
};

/// DD403: errors that DDP's reducer raises in the backward.
pub(super) struct ReadyTwice;

impl Detector for ReadyTwice {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn detect(&self, situation: &Situation<'_>) -> Vec<Draft> {
        let is = |kind: &Kind| matches!(kind, Kind::ReadyTwice | Kind::GraphChanged);
        let found = breach::of(situation, &ABOUT, is);
        found
            .into_iter()
            .map(|it| {
                let mut draft = it.draft;
                let said = it.breach.root.first().and_then(|&rank| {
                    contract::said_of(situation, it.breach, rank)
                });
                let at = words::at(said.and_then(|said| said.place.as_deref()));
                let named = draft.parameters.first().map(|it| it.name.clone());
                let who = Ranks(&draft.root);
                if matches!(it.breach.kind, Kind::ReadyTwice) {
                    let named = named.unwrap_or_else(|| "a parameter".into());
                    draft.summary =
                        format!("{named} was ready twice in one backward{at}, on {who}");
                    draft.why = vec![
                        "DDP counts each gradient once in a backward: the second time, its bucket \
                         may have been sent already."
                            .into(),
                    ];
                    draft.next = vec![
                        "With checkpointing: use_reentrant=False. If each step uses the same \
                         parameters in the same way: static_graph=True, without \
                         find_unused_parameters."
                            .into(),
                        "Without it: one forward through DDP for each backward, and no use of its \
                         parameters outside."
                            .into(),
                    ];
                } else {
                    let total = said.map_or(0, |said| said.total);
                    let named = match total {
                        0 => String::new(),
                        total => format!(" ({})", breach::names(&draft, None, total)),
                    };
                    draft.summary = format!(
                        "the graph of {who} changed in the backward{at}, although static_graph=True \
                         promised that it would not{named}"
                    );
                    draft.why = vec![
                        "With static_graph=True DDP records in the first step which gradients are \
                         computed, and how often, and relies on it."
                            .into(),
                    ];
                    let left_out = branches::left_out(situation, it.breach);
                    draft.why.extend(left_out.iter().map(Use::sentence));
                    draft.next = vec![
                        "Wrap the model without static_graph=True, with find_unused_parameters=True \
                         if it depends on the batch which parts are used."
                            .into(),
                    ];
                }
                draft
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnosis::testing::{holds, shows};

    const TWICE: &str = r#"
        0.5 * layout "float32 16,32 body.weight" "float32 4,16 head.weight" @train.py:12
        1.0 * forward 1 @train.py:17
        1.1 * raises left-backward "RuntimeError: Expected to mark a variable ready only once. This error is" @train.py:19
        1.1 * ready-twice "float32 4,16 head.weight" @train.py:19
        1.2 * raises uncaught "RuntimeError: Expected to mark a variable ready only once. This error is" @train.py:19
        1.3 * exits 1
    "#;

    #[test]
    fn example_matches_output() {
        shows(
            &ABOUT,
            &format!("world = 2\nevents = \"\"\"\n{TWICE}\"\"\"\n"),
        );
    }

    #[test]
    fn gradient_ready_twice_is_named() {
        holds(&format!(
            r#"
            world = 2
            events = """{TWICE}"""
            verdict = "crash"
            [[expect]]
            code = "DD403"
            role = "initiating"
            effect = "crashes"
            root = [0, 1]
            lines = {{ 0 = "train.py:19" }}
            summary-has = "head.weight was ready twice"
            [[expect]]
            code = "DD202"
            role = "cascade"
            caused-by = "DD403"
            "#
        ));
    }

    #[test]
    fn caught_error_without_a_stall_is_ignored() {
        holds(
            r#"
            world = 2
            events = """
            0.5 * layout "float32 4,16 head.weight" @train.py:12
            1.1 * raises left-backward "RuntimeError: Expected to mark a variable ready only once. This error is" @train.py:19
            1.1 * ready-twice "float32 4,16 head.weight" @train.py:19
            1.2 * barrier @train.py:22
            1.3 * done
            """
            look-on = 100
            "#,
        );
    }

    #[test]
    fn changed_graph_on_one_rank_blocks_the_others() {
        holds(
            r#"
            world = 2
            events = """
            0.5 * layout "float32 4,16 head.weight" @train.py:12
            1.0 0 all_reduce hidden f32[64] @train.py:19
            1.1 1 graph-changed @train.py:19
            1.2 1 raises uncaught "RuntimeError: Your training graph has changed in this iteration, e.g." @train.py:19
            1.3 1 exits 1
            """
            [[expect]]
            code = "DD403"
            root = [1]
            victims = [0]
            "#,
        );
    }
}
