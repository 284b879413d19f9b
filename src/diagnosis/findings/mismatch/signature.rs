//! What findings about calls that meet as one collective and differ where they must agree share.

use ddp_doctor_proto::catalogue::Code;
use ddp_doctor_proto::report::CauseKind;
use ddp_doctor_proto::vocabulary::Direction;

use crate::findings::advice;
use crate::findings::draft::Draft;
use crate::findings::mismatch::divergence::{
    DivergedJoin, OTHER_LINES, are_at_one_line, hypothesis, meeting_lines, parted, sides,
};
use crate::findings::view::{at_line, called_at};
use crate::input::align::{self, Mismatch, OddOnes};
use crate::input::event::Call;
use crate::model::Join;
use crate::situation::Situation;
use crate::source::cause::Mistake;
use crate::words::{self, Ranks};

/// The sentences about one kind of mismatch.
#[derive(Debug)]
pub struct Sentences {
    /// What ranks disagree on, before the number of the call: "the tensor sizes of ".
    pub what: &'static str,
    /// Why such calls cannot match.
    pub why: fn(&Join) -> &'static str,
    /// What to look at, for calls at one line.
    pub next: &'static str,
    /// The value in which calls of one operation differ: "size 740".
    pub value: fn(&Call) -> Option<String>,
}

/// A draft about calls whose first difference is the mismatch of the code.
pub(crate) fn draft(
    situation: &Situation<'_>,
    code: &'static Code,
    diverged: DivergedJoin<'_>,
    about: &Sentences,
) -> Draft {
    let DivergedJoin { divergence, join } = diverged;
    let hypothesis = hypothesis(situation, diverged, &join.classes());
    let OddOnes { ranks: odd, is_minority } = join.odd_ones();
    let is_role = is_minority
        && divergence.mismatch == Mismatch::Op
        && hypothesis.cause.kind == CauseKind::Unknown
        && have_roles(join, &odd);
    let role = is_role.then(|| {
        format!(
            "{} from the others, but as the root of its call: the mistake may be on either side.",
            words::begin(Ranks(&odd).with("differs", "differ")),
        )
    });
    let odd_ones = OddOnes { ranks: odd, is_minority: is_minority && !is_role };
    let (mut draft, classes) = parted(situation, diverged, code, odd_ones);
    let info = &situation.model.group(divergence.group).info;
    let of_group = words::of_group(info);
    let sides = sides(&classes, ("calls", "call"), |rank| {
        let call = &join.calls.get(&rank)?.call;
        let process = situation.model.member(divergence.group, rank);
        Some(format!("{}{}", words::signature(call), at_line(process, call)))
    });
    let numbered = join.calls.values().next().and_then(|it| it.call.stated_seq());
    let call = numbered.map_or_else(|| "a call".to_owned(), |seq| format!("call #{seq}"));
    draft.summary = format!("Ranks disagree on {}{call}{of_group}: {sides}", about.what);
    let mut why = vec![format!(
        "{}: {call} of a {} is one collective for all its ranks. {}",
        words::pairing(info),
        words::kind_of_group(info),
        (about.why)(join)
    )];
    let differences = all_differences(join);
    if differences.len() > 1 {
        why.push(format!("The calls differ in {}.", words::listed(&differences)));
    }
    draft.why.splice(0..0, why);
    draft.why.extend(role);
    let is_one_line = are_at_one_line(join);
    let next = if is_one_line { about.next } else { OTHER_LINES };
    // The advice for a mismatch may contradict that for its cause.
    if advice::against(code, &hypothesis).is_none() {
        draft.advise(next);
    }
    draft.mistake = if is_one_line {
        differing_values(situation, diverged, &classes, about.value)
    } else {
        meeting_lines(situation, diverged, &classes)
    };
    draft.explain(hypothesis);
    draft
}

/// Whether each of these ranks is the root of its own call: others have another part in it, so that it is no evidence
/// that they agree on theirs.
fn have_roles(join: &Join, ranks: &[u32]) -> bool {
    let mut calls = ranks.iter().filter_map(|rank| Some((rank, &join.calls.get(rank)?.call)));
    calls
        .all(|(rank, call)| call.op.direction() != Direction::Symmetric && call.root == Some(*rank))
}

/// In what the calls at one line differ, in few words: "broadcast at train.py:9 has root 0 on rank 0 and root 1 on
/// rank 1". `None`: they are of too many kinds.
fn differing_values(
    situation: &Situation<'_>,
    diverged: DivergedJoin<'_>,
    classes: &[Vec<u32>],
    value: fn(&Call) -> Option<String>,
) -> Option<Mistake> {
    let [first, second] = classes else { return None };
    let call_of = |ranks: &[u32]| Some(&diverged.join.calls.get(ranks.first()?)?.call);
    let (one, other) = (call_of(first)?, call_of(second)?);
    if one.op != other.op {
        return meeting_lines(situation, diverged, classes);
    }
    let called = |ranks: &[u32], call: &Call| {
        let process =
            ranks.first().and_then(|&it| situation.model.member(diverged.divergence.group, it));
        called_at(process, call)
    };
    one.place.as_ref()?;
    let clause = format!(
        "{}{} has {} on {}{} and {} on {}{}",
        one.op,
        words::at(one.place.as_deref()),
        value(one)?,
        Ranks(first),
        called(first, one),
        value(other)?,
        Ranks(second),
        called(second, other),
    );
    Some(Mistake::new(&[], clause))
}

fn all_differences(join: &Join) -> Vec<&'static str> {
    let name = |mismatch: &Mismatch| match mismatch {
        Mismatch::Op => "operation",
        Mismatch::Size => "size",
        Mismatch::Splits => "splits",
        Mismatch::DType => "dtype",
        Mismatch::ReduceOp => "reduce op",
        Mismatch::Root => "root",
    };
    align::all_differences(join.signatures()).iter().map(name).collect()
}
