//! DD402 unused-parameters-differ: parameters have no gradient on some ranks only.

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::{Cause, CauseKind, Confidence};

use super::breach::{self, Consequence};
use super::{About, Detector, Draft, order};
use crate::diagnosis::branches::{self, Use};
use crate::diagnosis::cause;
use crate::diagnosis::contract::{self, Breach, Kind};
use crate::diagnosis::situation::Situation;
use crate::diagnosis::words::{self, Capital, Ranks, number};

static ABOUT: About = About {
    code: &catalogue::DD402,
    order: order::WIRE,
};

/// DD402: gradients missing on some ranks, or different ones on each.
pub(super) struct UnusedParametersDiffer;

impl Detector for UnusedParametersDiffer {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn detect(&self, situation: &Situation<'_>) -> Vec<Draft> {
        let found = breach::of(situation, &ABOUT, |kind| matches!(kind, Kind::UnusedDiffer));
        let found = found.into_iter();
        found.map(|it| draft(situation, it)).collect()
    }
}

fn draft(situation: &Situation<'_>, it: Consequence<'_>) -> Draft {
    let Consequence { breach, mut draft } = it;
    let group = &situation.model.group(breach.group).info;
    let said: Vec<(u32, u64)> = breach
        .root
        .iter()
        .filter_map(|&rank| Some((rank, contract::said_of(situation, breach, rank)?.total)))
        .collect();
    let mut sides: Vec<(Vec<u32>, String)> = Vec::new();
    for (rank, total) in said {
        let names = breach::names(&draft, Some(rank), total);
        match sides.iter_mut().find(|(_, known)| *known == names) {
            Some((ranks, _)) => ranks.push(rank),
            None => sides.push((vec![rank], names)),
        }
    }
    let lacks: Vec<String> = sides
        .iter()
        .map(|(ranks, names)| {
            let has = number(ranks, "has", "have");
            format!("{} {has} no gradient for {names}", Ranks(ranks))
        })
        .collect();
    let seq = draft.place.map_or(0, |(_, seq)| seq);
    let waits = match (draft.victims.is_empty(), draft.op) {
        (false, Some(op)) => format!(
            "; {} {} for them in {op} #{seq} of {}",
            Ranks(&draft.victims),
            number(&draft.victims, "waits", "wait"),
            words::group(group)
        ),
        _ => String::new(),
    };
    draft.summary = format!("{}{waits}", lacks.join(", "));
    draft.why = vec![
        "DDP sends a bucket of gradients once all of them are there, and a backward is over for it \
         once all buckets are."
            .to_owned(),
    ];
    if !draft.victims.is_empty() {
        draft.why.push(format!(
            "{} had them all. On {} the backward was over without these: their bucket was never \
             sent.",
            Capital(Ranks(&draft.victims)),
            Ranks(&breach.root)
        ));
    }
    draft.why.extend(changes(situation, breach));
    let left_out = branches::left_out(situation, breach);
    draft.why.extend(left_out.iter().map(Use::sentence));
    draft.next = vec![
        "DistributedDataParallel(…, find_unused_parameters=True), if which parts are used depends \
         on the batch."
            .into(),
    ];
    let tests = left_out.iter().filter_map(|it| it.guard);
    let mut kinds = tests.filter_map(|guard| cause::meaning(guard, false));
    let kind = kinds.find(|kind| {
        matches!(
            kind,
            CauseKind::RankConditional | CauseKind::LocalDecision | CauseKind::DataDependentPath
        )
    });
    draft.explain(cause::Reading {
        cause: Cause {
            kind: kind.unwrap_or(CauseKind::DataDependentPath),
            confidence: Confidence::Suspected,
        },
        because: None,
    });
    draft
}

/// A sentence on ranks that had all gradients in earlier steps: their used parameters change.
fn changes(situation: &Situation<'_>, breach: &Breach) -> Option<String> {
    let before = |rank: &u32| {
        let said = contract::said_of(situation, breach, *rank)?;
        Some((*rank, said.number)).filter(|(_, before)| *before > 0)
    };
    let had: Vec<(u32, u32)> = breach.root.iter().filter_map(before).collect();
    let most = had.iter().map(|(_, before)| *before).max()?;
    let up_to = match had.iter().all(|(_, before)| *before == most) {
        true => "",
        false => "up to ",
    };
    let ranks: Vec<u32> = had.into_iter().map(|(rank, _)| rank).collect();
    Some(format!(
        "{} had all of them in {} before: what the forward uses there changes from step to step.",
        Capital(Ranks(&ranks)),
        match most {
            1 => "the backward".to_owned(),
            most => format!("{up_to}{most} backwards"),
        },
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnosis::testing::{holds, shows};

    const SKIPS: &str = r#"
        0.5 * layout "float32 16,32 body.weight" "float32 4,16 head.weight" "float32 4 head.bias" @train.py:12
        1.0 * forward 1 @train.py:17
        1.1 0 all_reduce hidden f32[580] @train.py:19
        1.1 1 without-gradient "float32 4,16 head.weight" "float32 4 head.bias" @train.py:19
    "#;
    const RAISES: &str = r#"1.2 1 raises uncaught "RuntimeError: Expected to have finished reduction in the prior iteration before" @train.py:17"#;

    #[test]
    fn example_matches_output() {
        shows(
            &ABOUT,
            &format!(
                "world = 2\nevents = \"\"\"\n{SKIPS}\n\
                 1.1 1 used-at \"float32 4,16 head.weight\" \"float32 4 head.bias\" @train.py:9\n\
                 1.15 1 guard holds data \"has_labels.any()\" @train.py:8 @train.py:9\n\
                 {RAISES}\n1.3 1 exits 1\n\"\"\"\n"
            ),
        );
    }

    #[test]
    fn rank_without_gradients_explains_its_exception() {
        holds(&format!(
            r#"
            world = 2
            events = """{SKIPS}
            {RAISES}
            1.3 1 exits 1
            1.5 0 raises uncaught "RuntimeError: [gloo/transport] Connection closed by peer" @train.py:19
            1.6 0 exits 1
            """
            verdict = "hang"
            [[expect]]
            code = "DD402"
            role = "initiating"
            confidence = "proved"
            root = [1]
            root-confidence = "supported"
            victims = [0]
            cause = "data-dependent-path"
            seq = 1
            op = "all_reduce"
            detected = 1.2
            lines = {{ 0 = "train.py:19", 1 = "train.py:19" }}
            summary-has = "rank 1 has no gradient for head.weight, head.bias"
            [[expect]]
            code = "DD202"
            role = "cascade"
            caused-by = "DD402"
            "#
        ));
    }

    #[test]
    fn skipped_branch_is_named() {
        holds(&format!(
            r#"
            world = 2
            events = """{SKIPS}
            1.1 1 used-at "float32 4,16 head.weight" "float32 4 head.bias" @model.py:24
            1.15 1 guard holds rank "self.rank == 0" @model.py:23 @model.py:24
            {RAISES}
            1.3 1 exits 1
            """
            [[expect]]
            code = "DD402"
            root = [1]
            cause = "rank-conditional"
            why-has = "head.weight and head.bias are used at model.py:24, which is reached only where `self.rank == 0` holds (line 23)."
            [[expect]]
            code = "DD202"
            "#
        ));
    }

    #[test]
    fn change_of_used_parameters_is_reported() {
        let later = SKIPS.replace("without-gradient", "without-gradient after=5");
        holds(&format!(
            r#"
            world = 2
            events = """{later}
            {RAISES}
            1.3 1 exits 1
            """
            [[expect]]
            code = "DD402"
            why-has = "Rank 1 had all of them in 5 backwards before"
            [[expect]]
            code = "DD202"
            "#
        ));
    }

    #[test]
    fn missing_gradients_are_proved_by_another_call() {
        holds(&format!(
            r#"
            world = 2
            events = """{SKIPS}
            1.2 1 barrier @train.py:30
            """
            [[expect]]
            code = "DD402"
            confidence = "proved"
            certificate = "unsatisfiable-join"
            root = [1]
            victims = [0]
            detected = 1.2
            "#
        ));
    }

    #[test]
    fn missing_gradients_explain_an_early_exit() {
        holds(&format!(
            r#"
            world = 2
            events = """{SKIPS}
            1.2 1 exits 0
            """
            [[expect]]
            code = "DD402"
            confidence = "supported"
            root = [1]
            victims = [0]
            detected = 1.2
            "#
        ));
    }

    #[test]
    fn missing_gradients_are_reported_at_the_stall_limit() {
        holds(&format!(
            r#"
            world = 2
            events = """{SKIPS}
            """
            look-on = 100
            silent-until = 61.0
            [[expect]]
            code = "DD402"
            confidence = "supported"
            root = [1]
            victims = [0]
            "#
        ));
    }

    #[test]
    fn different_missing_gradients_are_listed_by_rank() {
        holds(
            r#"
            world = 2
            events = """
            0.5 * layout "float32 4,16 a.weight" "float32 4,16 b.weight" @train.py:12
            1.0 * forward 1 @train.py:17
            1.1 0 without-gradient "float32 4,16 a.weight" @train.py:19
            1.1 1 without-gradient "float32 4,16 b.weight" @train.py:19
            1.2 * raises uncaught "RuntimeError: Expected to have finished reduction in the prior iteration before" @train.py:17
            1.3 * exits 1
            """
            [[expect]]
            code = "DD402"
            root = [0, 1]
            summary-has = "rank 0 has no gradient for a.weight, rank 1 has no gradient for b.weight"
            "#,
        );
    }
}
