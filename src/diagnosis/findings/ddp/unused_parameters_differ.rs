//! DD402 unused-parameters-differ: parameters have no gradient on some ranks only.

use ddp_doctor_proto::report::CauseKind;

use crate::findings::ddp::breach;
use crate::findings::draft::Draft;
use crate::input::align::by_key;
use crate::situation::{Breach, Situation, contract};
use crate::source::branches::{self, Use};
use crate::source::cause;
use crate::words::{self, Ranks};

/// DD402: gradients missing on some ranks, or different ones on each.
pub(crate) fn complete_draft(
    situation: &Situation<'_>,
    breach: &Breach,
    mut draft: Draft,
) -> Option<Draft> {
    let group = &situation.model.group(breach.group).info;
    let lacking = breach.root.iter().filter_map(|&rank| {
        let report = contract::report_of(situation, breach, rank)?;
        Some((rank, breach::names(&draft, Some(rank), report.count())))
    });
    let texts = by_key(lacking, String::clone).into_iter().map(|(names, ranks)| {
        format!("{} no gradient for {names}", Ranks(&ranks).with("has", "have"))
    });
    let lacks = words::joined(texts, ", ");
    let seq = draft.place.map_or(0, |(_, seq)| seq);
    let waits = match (draft.victims.is_empty(), draft.op) {
        (false, Some(op)) => format!(
            "; {} for them in {op} #{seq}{}",
            Ranks(&draft.victims).with("waits", "wait"),
            words::of_group(group)
        ),
        _ => String::new(),
    };
    draft.summary = lacks + &waits;
    draft.say(
        "DDP sends a bucket once all its gradients are ready, and considers a backward pass finished once every \
         bucket is sent.",
    );
    if !draft.victims.is_empty() {
        draft.say(format!(
            "{} had them all. On {}, the backward finished without them: their bucket was never \
             sent.",
            words::begin(Ranks(&draft.victims)),
            Ranks(&breach.root)
        ));
    }
    draft.why.extend(changes(situation, breach));
    let left_out = branches::left_out(situation, breach);
    draft.why.extend(left_out.iter().map(Use::sentence));
    draft.advise(
        "DistributedDataParallel(…, find_unused_parameters=True), if which parts are used depends \
         on the batch.",
    );
    let tests = left_out.iter().filter_map(|it| it.guard);
    let mut kinds = tests.filter_map(|guard| cause::meaning(guard, false));
    let kind = kinds.find(|kind| {
        matches!(
            kind,
            CauseKind::RankConditional | CauseKind::LocalDecision | CauseKind::DataDependentPath
        )
    });
    let calls = draft.per_rank.iter();
    let lacking = calls.filter(|it| breach.root.contains(&it.rank));
    let chosen = cause::of_values(situation, lacking).filter(|_| kind.is_none());
    let kind = kind.unwrap_or(CauseKind::DataDependentPath);
    draft.explain(chosen.unwrap_or(cause::suspected(kind, None)));
    Some(draft)
}

/// A sentence on ranks that had all gradients in earlier steps: their used parameters change.
fn changes(situation: &Situation<'_>, breach: &Breach) -> Option<String> {
    let before = |rank: &u32| {
        let report = contract::report_of(situation, breach, *rank)?;
        Some((*rank, report.number)).filter(|(_, before)| *before > 0)
    };
    let had: Vec<(u32, u32)> = breach.root.iter().filter_map(before).collect();
    let most = had.iter().map(|(_, before)| *before).max()?;
    let up_to = if had.iter().all(|(_, before)| *before == most) { "" } else { "up to " };
    let ranks: Vec<u32> = had.into_iter().map(|(rank, _)| rank).collect();
    Some(format!(
        "{} had all of them in {} before: what the forward uses there changes from step to step.",
        words::begin(Ranks(&ranks)),
        match most {
            1 => "the backward".to_owned(),
            most => format!("{up_to}{most} backwards"),
        },
    ))
}
