//! DD112 p2p-deadlock: a cycle of waits that includes a send or a receive.

use ddp_doctor_proto::catalogue;

use super::{About, Detector, Draft, cycle, order};
use crate::diagnosis::model::Side;
use crate::diagnosis::situation::Situation;
use crate::diagnosis::waits::Blocked;
use crate::diagnosis::words::{self, Ranks};

static ABOUT: About = About {
    code: &catalogue::DD112,
    order: order::CYCLE,
};

/// DD112: cycles of waits with a point-to-point call.
pub(super) struct P2pDeadlock;

impl Detector for P2pDeadlock {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn detect(&self, situation: &Situation<'_>) -> Vec<Draft> {
        cycle::led_to(situation)
            .into_iter()
            .filter(|(_, cycle)| cycle.iter().any(|wait| wait.message.is_some()))
            .filter(|(i, cycle)| is_believed(situation, *i, cycle))
            .filter_map(|(i, cycle)| draft(situation, i, cycle))
            .collect()
    }
}

/// Whether no wait of the cycle can end by itself. A send may, unless the backend's sends wait for
/// their receive: then the cycle counts once it is overdue.
fn is_believed(situation: &Situation<'_>, index: usize, cycle: &[Blocked]) -> bool {
    let sends_wait = |wait: &Blocked| {
        situation
            .model
            .group(wait.group)
            .traffic
            .transport
            .sends_wait
    };
    let lasts = cycle
        .iter()
        .all(|wait| sends_wait(wait) || !is(wait, Side::Send));
    lasts && cycle::are_in_their_calls(cycle) || cycle::is_overdue(situation, index)
}

fn draft(situation: &Situation<'_>, index: usize, waits: &[Blocked]) -> Option<Draft> {
    let mut draft = cycle::draft(situation, index, waits, &ABOUT)?;
    let calls: Vec<String> = waits
        .iter()
        .map(|wait| {
            let call = words::call(&wait.call);
            format!("rank {} in {call}", wait.rank)
        })
        .collect();
    draft.summary = format!(
        "{} wait for each other: {}",
        Ranks(&draft.root),
        calls.join(", ")
    );
    draft.why = vec![format!("{}.", cycle::steps(situation, waits).join("; "))];
    let sends = waits.iter().any(|wait| is(wait, Side::Send));
    let receives = waits.iter().any(|wait| is(wait, Side::Receive));
    if receives {
        draft.why.push(
            "A receive cannot end before its message was sent, and none of these ranks can send it \
             before its own wait ends."
                .into(),
        );
    }
    if sends {
        draft.why.push(if is_rendezvous(situation, waits) {
            "On Gloo a send ends when its receive was made, however small the message is.".into()
        } else {
            "A send ends when its message has left, which a large one does only once its receive was \
             made. It has not ended yet."
                .into()
        });
    }
    draft.why.extend(cycle::further_on(situation, waits));
    let collectives = waits.iter().any(|wait| wait.message.is_none());
    let met = waits.iter().find(|wait| has_partner(situation, wait));
    if let Some(met) = met {
        draft.why.push(format!(
            "Rank {} has made the call that {} needs, in a group (ncclGroupStart) with further calls \
             that need rank {}. NCCL connects two ranks for all calls of a group at once: both have to \
             group the same calls.",
            met.call.peer.unwrap_or_default(),
            words::call(&met.call),
            met.rank,
        ));
    }
    draft.next = vec![if met.is_some() {
        "Put the same sends and receives between ncclGroupStart and ncclGroupEnd on both sides."
            .into()
    } else if collectives {
        "Make the calls of the message on both sides before the collective, or on both after it: a \
         rank that waits in one cannot make the other."
            .into()
    } else {
        "Let one side go first: even ranks send and then receive, odd ranks receive and then send. \
         Or issue isend and irecv for both (batch_isend_irecv) and wait after all are issued."
            .into()
    }];
    Some(draft)
}

/// Whether the partner of the message that it waits for has been issued.
fn has_partner(situation: &Situation<'_>, wait: &Blocked) -> bool {
    let Some(waiting) = &wait.message else {
        return false;
    };
    let mut alone = situation.model.group(wait.group).traffic.open();
    waiting.peer.is_some()
        && !alone.any(|lone| lone.rank == wait.rank && lone.joined.call.id == wait.call.id)
}

fn is(wait: &Blocked, side: Side) -> bool {
    wait.message.as_ref().is_some_and(|lone| lone.side == side)
}

fn is_rendezvous(situation: &Situation<'_>, waits: &[Blocked]) -> bool {
    let mut sends = waits.iter().filter(|wait| is(wait, Side::Send));
    sends.all(|wait| {
        situation
            .model
            .group(wait.group)
            .traffic
            .transport
            .sends_wait
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnosis::testing::{holds, shows};

    #[test]
    fn nccl_group_on_one_side_is_reported_at_the_stall_limit() {
        holds(
            r#"
            world = 2
            layer = "nccl"
            backend = "nccl"
            stall-after = 10
            events = """
            1.0 * all_reduce f32[8] sum
            2.0 0 send f32[8] peer=1 launch=1 unreturned
            2.0 0 recv f32[8] peer=1 launch=1 unreturned
            2.1 1 send f32[8] peer=0 unreturned
            """
            look-on = 20
            silent-until = 12
            [[expect]]
            code = "DD112"
            confidence = "supported"
            root = [0, 1]
            detected = 12.0
            "#,
        );
    }

    #[test]
    fn slow_matched_messages_are_not_a_deadlock() {
        holds(
            r#"
            world = 2
            layer = "nccl"
            backend = "nccl"
            stall-after = 10
            events = """
            2.0 0 send f32[8] peer=1 launch=1 unreturned
            2.0 0 recv f32[8] peer=1 launch=1 unreturned
            2.1 1 send f32[8] peer=0 launch=1 unreturned
            2.1 1 recv f32[8] peer=0 launch=1 unreturned
            """
            look-on = 30
            "#,
        );
    }

    #[test]
    fn send_without_a_receive_is_not_a_cycle() {
        holds(
            r#"
            world = 2
            layer = "nccl"
            backend = "nccl"
            stall-after = 10
            events = """
            2.0 0 send f32[8] peer=1 unreturned
            """
            look-on = 30
            silent-until = 12
            [[expect]]
            code = "DD113"
            root = [1]
            "#,
        );
    }

    #[test]
    fn example_matches_output() {
        shows(
            &ABOUT,
            r#"
            world = 2
            events = """
            1.0 0 recv f32[256] peer=1 @train.py:30
            1.4 1 recv f32[256] peer=0 @train.py:30
            """
            "#,
        );
    }

    #[test]
    fn two_receives_are_proved_when_the_second_waits() {
        holds(
            r#"
            world = 2
            events = """
            1.0 0 recv f32[8] peer=1 @train.py:5
            2.0 1 recv f32[8] peer=0 @train.py:5
            """
            [[expect]]
            code = "DD112"
            confidence = "proved"
            certificate = "cycle"
            root = [0, 1]
            root-confidence = "proved"
            detected = 2.0
            op = "recv"
            lines = { 0 = "train.py:5", 1 = "train.py:5" }
            states = { 0 = "waiting", 1 = "waiting" }
            "#,
        );
    }

    #[test]
    fn asynchronous_receives_with_sends_are_not_a_deadlock() {
        holds(
            r#"
            world = 2
            events = """
            1.0 0 recv f32[8] peer=1 async as r @train.py:5
            1.0 0 send f32[8] peer=1 async as s @train.py:6
            1.1 0 wait r
            2.0 1 recv f32[8] peer=0 async as r @train.py:5
            2.0 1 send f32[8] peer=0 async as s @train.py:6
            2.1 1 wait r
            2.2 0 done r
            2.3 1 done r
            2.4 * wait s
            2.5 * done s
            """
            look-on = 100
            "#,
        );
    }

    #[test]
    fn receive_and_collective_form_a_cycle() {
        holds(
            r#"
            world = 2
            events = """
            1.0 0 all_reduce f32[8] sum @train.py:5
            2.0 1 recv f32[8] peer=0 @train.py:9
            """
            [[expect]]
            code = "DD112"
            confidence = "proved"
            root = [0, 1]
            detected = 2.0
            "#,
        );
    }

    #[test]
    fn cycle_of_sends_is_immediate_only_on_gloo() {
        let sends = r#"
            world = 2
            events = """
            1.0 0 send f32[8] peer=1 @train.py:5
            2.0 1 send f32[8] peer=0 @train.py:5
            """
            [[expect]]
            code = "DD112"
            confidence = "supported"
            root = [0, 1]
            "#;
        holds(&format!("look-on = 0\n{sends}\ndetected = 2.0"));
        holds(&format!(
            "backend = \"nccl\"\nlook-on = 70\nsilent-until = 61\n{sends}"
        ));
    }

    #[test]
    fn other_thread_may_still_send() {
        holds(
            r#"
            world = 2
            stall-after = 60
            events = """
            0.5 0 all_reduce f32[8] sum @train.py:2
            0.5 1 all_reduce f32[8] sum t2 @train.py:2
            0.6 * done
            1.0 0 recv f32[8] peer=1 @train.py:5
            2.0 1 recv f32[8] peer=0 @train.py:5
            """
            look-on = 20
            "#,
        );
    }

    #[test]
    fn cycle_with_lost_records_is_not_proved() {
        holds(
            r#"
            world = 2
            events = """
            0.5 1 lost 3
            1.0 0 recv f32[8] peer=1 @train.py:5
            2.0 1 recv f32[8] peer=0 @train.py:5
            """
            look-on = 10
            silent-until = 4
            [[expect]]
            code = "DD112"
            confidence = "supported"
            [[expect]]
            code = "DD902"
            "#,
        );
        holds(
            r#"
            world = 2
            events = """
            0.5 1 frontier 0 0 p2p=2
            1.0 0 recv f32[8] peer=1 @train.py:5
            2.0 1 recv f32[8] peer=0 @train.py:5
            """
            look-on = 10
            silent-until = 4
            [[expect]]
            code = "DD112"
            confidence = "supported"
            "#,
        );
    }

    #[test]
    fn receive_from_any_rank_needs_all_senders_blocked() {
        let scenario = |third: &str| {
            format!(
                r#"
                world = 3
                events = """
                1.0 0 recv f32[8] @train.py:5
                2.0 1 recv f32[8] peer=0 @train.py:7
                {third}
                """
                look-on = 30
                "#
            )
        };
        holds(&scenario(""));
        let stuck = scenario("2.5 2 recv f32[8] peer=0 @train.py:7");
        holds(&format!(
            "{stuck}\n[[expect]]\ncode = \"DD112\"\nconfidence = \"supported\"\nroot = [0, 1]\nvictims = [2]"
        ));
    }
}
