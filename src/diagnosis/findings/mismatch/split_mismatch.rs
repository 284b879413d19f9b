//! DD108 split-mismatch: the splits of an `all_to_all` do not match.

use ddp_doctor_proto::catalogue::Code;

use crate::findings::draft::Draft;
use crate::findings::mismatch::divergence::{
    DivergedJoin, OTHER_LINES, are_at_one_line, hypothesis, meeting_lines, parted,
};
use crate::input::splits::Misfit;
use crate::model::{Join, MAX_MISFITS};
use crate::situation::Situation;
use crate::source::cause::Mistake;
use crate::words::{self, begin};

/// Maximum number of pairs that sentences name.
const NAMED: usize = 4;

/// What to look at if all ranks are at one line.
const NEXT: &str = "Both sides need the same numbers. If they are exchanged (an all_to_all_single of one integer for each \
     peer), pass them on as they are: check what changes them between that exchange and this line, such as a capacity \
     limit, padding or a filter. If each rank computes them, check that all do so from the same data, or exchange them.";

/// DD108: the first `all_to_all` of a group in which splits disagree.
pub(crate) fn draft(
    situation: &Situation<'_>,
    code: &'static Code,
    diverged: DivergedJoin<'_>,
) -> Option<Draft> {
    let DivergedJoin { divergence, join } = diverged;
    let misfits = join.misfits();
    let first = misfits.first()?;
    let (mut draft, classes) = parted(situation, diverged, code, join.odd_ones());
    let more = match misfits.len() - 1 {
        0 => String::new(),
        1 => ", and one more pair disagrees".to_owned(),
        more if misfits.len() == MAX_MISFITS => {
            format!(", and at least {more} more pairs disagree")
        }
        more => format!(", and {more} more pairs disagree"),
    };
    draft.summary = format!(
        "The splits of all_to_all #{}{} do not match: {}{more}",
        divergence.seq,
        words::of_group(&situation.model.group(divergence.group).info),
        sentence(join, first)
    );
    let backend = situation.model.group(divergence.group).backend;
    let aborts = if backend.aborts_on_excess {
        format!("{} aborts a rank that receives more than it expects; otherwise a", backend.label)
    } else {
        "Otherwise a".to_owned()
    };
    let mut why: Vec<String> = misfits
        .iter()
        .skip(1)
        .take(NAMED)
        .map(|misfit| begin(format!("{}.", sentence(join, misfit))))
        .collect();
    why.push(format!(
        "In an all_to_all, a rank sends to each peer exactly what this peer expects from it. {aborts} rank waits for the \
         rest, or its output has undefined contents."
    ));
    draft.why.splice(0..0, why);
    draft.advise(if are_at_one_line(join) { NEXT } else { OTHER_LINES });
    draft.mistake = if are_at_one_line(join) {
        let clause = format!("{}, in all_to_all #{}", sentence(join, first), divergence.seq);
        Some(Mistake::new(&[], clause))
    } else {
        meeting_lines(situation, diverged, &classes)
    };
    draft.explain(hypothesis(situation, diverged, &classes));
    Some(draft)
}

/// "rank 1 sends 3 elements to rank 0 at moe.py:9, which expects 2 at moe.py:9"
fn sentence(join: &Join, misfit: &Misfit) -> String {
    let at = |rank: u32| {
        let joined = join.calls.get(&rank);
        words::at(joined.and_then(|it| it.call.place.as_deref()))
    };
    let Misfit { sender, receiver, sends, expects } = *misfit;
    let elements = if sends == 1 { "element" } else { "elements" };
    if sender == receiver {
        let at = at(sender);
        return format!(
            "rank {sender} sends {sends} {elements} to itself{at}, but expects {expects}"
        );
    }
    format!(
        "rank {sender} sends {sends} {elements} to rank {receiver}{}, which expects {expects}{}",
        at(sender),
        at(receiver)
    )
}
