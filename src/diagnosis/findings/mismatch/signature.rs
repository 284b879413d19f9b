//! DD103 op-mismatch, DD104 shape-mismatch, DD105 dtype-mismatch, DD106 reduce-op-mismatch and DD107
//! root-mismatch: calls that meet as one collective and differ where they must agree.

use std::collections::BTreeSet;

use ddp_doctor_proto::ReduceOp;
use ddp_doctor_proto::catalogue::Code;

use crate::evidence::align::{self, Mismatch};
use crate::evidence::event::Call;
use crate::findings::advice;
use crate::findings::draft::Draft;
use crate::findings::mismatch::divergence::{
    DivergedJoin, OTHER_LINES, has_misfit_totals, parted, reading, sides,
};
use crate::model::{Join, JoinedCall};
use crate::situation::Situation;
use crate::source::cause::Mistake;
use crate::words::{self, Ranks};

/// The sentences about one kind of mismatch.
struct Sentences {
    /// What ranks disagree on, before the number of the call: "the tensor sizes of ".
    what: &'static str,
    /// Why such calls cannot match.
    why: fn(&Join) -> &'static str,
    /// What to look at, for calls at one line.
    next: &'static str,
}

/// The sentences about a mismatch that is the first difference of calls; `None`: another file has them.
fn sentences(mismatch: Mismatch) -> Option<Sentences> {
    Some(match mismatch {
        // DD103.
        Mismatch::Op => Sentences {
            what: "",
            why: |_| "Different operations exchange different messages: neither side can complete.",
            next: "Check which operation the line calls on each rank, and what decides on it.",
        },
        // DD104.
        Mismatch::Size => Sentences {
            what: "the tensor sizes of ",
            why: |_| "Peers expect as many bytes as they send themselves: the transport aborts, or waits for the rest and never returns.",
            next: "Check what decides on the number of elements of this tensor: it must be equal on all ranks of the group.",
        },
        // DD105.
        Mismatch::DType => Sentences {
            what: "the dtype of ",
            why: on_bytes,
            next: "Check where the tensor gets its dtype: from a literal, an empty list, a mixed-precision switch, or a default that differs between ranks.",
        },
        // DD106.
        Mismatch::ReduceOp => Sentences {
            what: "the reduce op of ",
            why: |_| "Each rank reduces with its own operator: the call completes, and ranks hold different results.",
            next: "Check what decides on the reduce op: it must be equal on all ranks of the group.",
        },
        // DD107.
        Mismatch::Root => Sentences {
            what: "the root of ",
            why: |_| "Each side waits for, or sends to, a rank that the other side does not expect.",
            next: "Check how src or dst is computed: all ranks of the group must pass the same global rank, not one that follows from their own.",
        },
        // DD108.
        Mismatch::Splits => return None,
    })
}

/// DD103 to DD107: calls whose first difference is the mismatch of the code.
pub(crate) fn draft(
    situation: &Situation<'_>,
    code: &'static Code,
    met: DivergedJoin<'_>,
) -> Option<Draft> {
    let DivergedJoin { divergence, join } = met;
    let about = sentences(divergence.mismatch)?;
    if divergence.mismatch == Mismatch::DType && has_misfit_totals(situation, divergence) {
        return None;
    }
    let (mut draft, classes) = parted(situation, met, code);
    let info = &situation.model.group(divergence.group).info;
    let of_group = words::of_group(info);
    let sides = sides(&classes, ("calls", "call"), |rank| {
        let call = &join.calls.get(&rank)?.call;
        Some(format!("{}{}", words::signature(call), words::at(call.place.as_deref())))
    });
    let numbered = join.calls.values().next().and_then(|it| it.call.stated_seq());
    let call = numbered.map_or_else(|| "a call".to_owned(), |seq| format!("call #{seq}"));
    draft.summary = format!("Ranks disagree on {}{call}{of_group}: {sides}", about.what);
    let mut why = vec![format!(
        "{}: {call} of a group is one collective for all its ranks. {}",
        words::pairing(info),
        (about.why)(join)
    )];
    let differences = all_differences(join);
    if differences.len() > 1 {
        why.push(format!("The calls differ in {}.", differences.join(", ")));
    }
    draft.why.splice(0..0, why);
    let calls = classes.iter().filter_map(|it| join.calls.get(it.first()?));
    let mut places = calls.filter_map(|it| it.call.place.as_ref());
    let first = places.next();
    let is_one_line = places.all(|it| first.is_some_and(|first| it.is_same_line(first)));
    let next = if is_one_line { about.next } else { OTHER_LINES };
    let reading = reading(situation, met, &classes);
    // The advice for a mismatch may contradict that for its cause.
    if advice::against(code, &reading).is_none() {
        draft.advise(next);
    }
    draft.mistake = fact(join, &classes, divergence.mismatch, is_one_line);
    draft.explain(reading);
    if divergence.mismatch == Mismatch::ReduceOp && join.calls.values().any(is_of_nccl) {
        draft.say(
            "If the call of c10d does not record its reduce op, the one that it passed to NCCL \
             is shown.",
        );
    }
    Some(draft)
}

/// The calls that met, in few words: "broadcast at train.py:9 has root 0 on rank 0 and root 1 on rank 1",
/// "all_reduce of rank 0 at train.py:11 meets broadcast of rank 1 at train.py:26". `None`: of too many kinds.
fn fact(
    join: &Join,
    classes: &[Vec<u32>],
    mismatch: Mismatch,
    is_one_line: bool,
) -> Option<Mistake> {
    let [first, second] = classes else { return None };
    let call_of = |ranks: &[u32]| Some(&join.calls.get(ranks.first()?)?.call);
    let (one, other) = (call_of(first)?, call_of(second)?);
    let of = |call: &Call, ranks| {
        format!("{} of {}{}", call.op, Ranks(ranks), words::at(call.place.as_deref()))
    };
    if one.op == other.op && one.place.is_none() {
        return None;
    }
    if !is_one_line || one.op != other.op {
        let clause = format!("{} meets {}", of(one, first), of(other, second));
        return Some(Mistake::new(&[], clause));
    }
    let value = |call: &Call| match mismatch {
        Mismatch::Size => Some(format!("size {}", words::size(call)?)),
        Mismatch::DType => Some(format!("dtype {}", call.dtype.name()?)),
        Mismatch::ReduceOp => Some(format!("reduce op {}", call.known_reduce_op().name()?)),
        Mismatch::Root => Some(format!("root {}", call.root?)),
        Mismatch::Op | Mismatch::Splits => None,
    };
    let clause = format!(
        "{}{} has {} on {} and {} on {}",
        one.op,
        words::at(one.place.as_deref()),
        value(one)?,
        Ranks(first),
        value(other)?,
        Ranks(second),
    );
    Some(Mistake::new(&[], clause))
}

/// Whether the reduce op of a call is known from NCCL alone.
fn is_of_nccl(joined: &JoinedCall) -> bool {
    let call = &joined.call;
    call.reduce_op == ReduceOp::Unspecified && call.known_reduce_op() != ReduceOp::Unspecified
}

/// What becomes of tensors of different dtypes, by their byte counts.
fn on_bytes(join: &Join) -> &'static str {
    let calls = join.calls.values();
    let bytes = calls.map(|it| it.call.numel?.checked_mul(it.call.dtype.size()?));
    match bytes.collect::<Option<BTreeSet<u64>>>() {
        Some(bytes) if bytes.len() > 1 => {
            "The byte counts differ: ranks wait for bytes that never arrive, or continue with a wrong result."
        }
        Some(_) => {
            "The byte counts agree: the bytes of one dtype are interpreted as the other, and the job continues with a wrong result."
        }
        None => {
            "The bytes of one dtype are interpreted as the other: if the byte counts agree, the job continues with a wrong result."
        }
    }
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
