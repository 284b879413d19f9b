//! DD205 stuck-in-teardown: an exit path that itself waits for peers.
//!
//! Told here where an exception is in flight: the clean-up call (`finally`, `__exit__`) meets another
//! call of the peers, which know nothing of the exception, and waits for ever.

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::{CertificateKind, Confidence};

use super::{
    About, Detector, Draft, Explanation, KeyPlace, divergence, order, rank_calls, rank_exception,
};
use crate::diagnosis::align::Mismatch;
use crate::diagnosis::situation::{Divergence, Origin, Situation};
use crate::diagnosis::words::{self, Ranks, number};

static ABOUT: About = About {
    code: &catalogue::DD205,
    order: order::WIRE,
    explanation: Explanation {
        means: "On its way out, a rank makes a collective call that its peers do not make at that \
         place, and waits for ever. Where an exception is in flight (`finally`, `except`, \
         `__exit__`), the process does not end, so no launcher notices: the job hangs instead of \
         failing. The exception itself is DD202; this is what it led to.",
        example: "\
error[DD205] stuck-in-teardown: rank 1 is stuck in its clean-up: barrier #1 at train.py:44 meets another call of rank 0
    group default_pg, 2 ranks · proved 0 ms after the deciding event · follows from the finding above

      rank 0   waiting 300 ms   train.py:19      all_reduce #1 float32[2762] sum
    ▸ rank 1   waiting 0 ms     train.py:44      barrier #1

    why    The other ranks know nothing of the exception and go on with the next call of the loop;
           the two calls can never match.
    fix    Make no collective call on the way out of an exception. Let it end the process: the
           launcher then ends the others.
    more   ddp-doctor explain DD205
",
        causes: &[
            "`finally: dist.barrier()`, or `dist.destroy_process_group()` in a way that waits.",
            "An emergency checkpoint or a last metric in `except:` that gathers from all ranks.",
            "A framework's context manager or callback that synchronizes when it is left.",
        ],
        fix: &[
            "Make no collective call on the way out of an exception. Let it end the process: the \
             launcher then ends the others.",
            "What has to be cleaned up without peers can be: close files, remove locks, write what \
             this rank has.",
        ],
        not: &[
            "Clean-up that all ranks reach in the ordinary way is none.",
            "A rank that ends, and whose peers wait, is DD102.",
        ],
    },
};

/// DD205: a clean-up call that nobody else makes.
pub(super) struct StuckInTeardown;

impl Detector for StuckInTeardown {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn detect(&self, situation: &Situation<'_>) -> Vec<Draft> {
        situation
            .divergences
            .iter()
            .filter_map(|divergence| match &divergence.origin {
                Origin::Raised(ranks) => draft(situation, divergence, ranks),
                _ => None,
            })
            .collect()
    }
}

fn draft(situation: &Situation<'_>, divergence: &Divergence, ranks: &[u32]) -> Option<Draft> {
    let (group, seq) = (divergence.group, divergence.seq);
    let join = situation.join(group, seq)?;
    let first = *ranks.first()?;
    let call = &join.calls.get(&first)?.call;
    let process = situation.model.member(group, first)?;
    let met = join.mismatched_at?;

    let mut draft = Draft::new(&ABOUT, KeyPlace::Join(group, seq), met);
    draft.follows = Some(rank_exception::key(first, process.pid));
    draft.place = Some((group, seq));
    draft.op = Some(call.op);
    draft.root = ranks.to_vec();
    draft.root_confidence = Confidence::Supported;
    draft.victims = join
        .calls
        .keys()
        .copied()
        .filter(|rank| !ranks.contains(rank))
        .collect();
    draft.per_rank = rank_calls(situation, group, seq);
    draft.blocked_at = join.calls.values().map(|joined| joined.call.at).min();
    draft.summary = format!(
        "{} {} stuck in {} clean-up: {}{} meets another call of {}",
        Ranks(ranks),
        number(ranks, "is", "are"),
        number(ranks, "its", "their"),
        words::call(call),
        words::at(call.place.as_deref()),
        Ranks(&draft.victims),
    );
    draft.why = vec![
        "The other ranks know nothing of the exception and go on with the next call of the loop; \
         the two calls can never match."
            .into(),
    ];
    draft.next = vec![
        "Make no collective call on the way out of an exception. Let it end the process: the \
         launcher then ends the others."
            .into(),
    ];
    let provable = matches!(
        join.mismatch,
        Some(Mismatch::Op | Mismatch::Size | Mismatch::Root)
    ) && join.calls.keys().all(|&rank| {
        situation
            .model
            .member(group, rank)
            .is_some_and(|process| process.lost == 0)
    });
    let proof = || divergence::certificate(join, &ABOUT, CertificateKind::UnsatisfiableJoin);
    Some(draft.proved_by(provable.then(proof).flatten()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnosis::testing::{holds, shows};

    #[test]
    fn the_example_is_what_it_prints() {
        shows(
            &ABOUT,
            r#"
            world = 2
            events = """
            1.0 0 all_reduce f32[2762] sum @train.py:19
            1.2 1 raises in-flight "ValueError: empty batch" @data.py:33
            1.3 1 barrier @train.py:44
            """
            "#,
        );
    }

    #[test]
    fn a_clean_up_call_follows_from_its_exception() {
        holds(
            r#"
            world = 2
            events = """
            1.0 0 all_reduce f32[8] sum @train.py:5
            2.0 1 raises in-flight "ValueError: no" @train.py:4
            2.1 1 barrier @train.py:12
            """
            verdict = "crash"
            [[expect]]
            code = "DD202"
            role = "initiating"
            root = [1]
            [[expect]]
            code = "DD205"
            role = "cascade"
            caused-by = "DD202"
            effect = "blocks"
            confidence = "proved"
            root = [1]
            victims = [0]
            lines = { 1 = "train.py:12" }
            "#,
        );
    }

    #[test]
    fn a_clean_up_call_that_all_ranks_make_is_none() {
        holds(
            r#"
            world = 2
            events = """
            2.0 * raises in-flight "StopTraining: enough" @train.py:4
            2.1 * barrier @train.py:12
            2.2 * done
            """
            look-on = 100
            "#,
        );
    }
}
