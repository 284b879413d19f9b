//! Programs that wait for a device whose current call other ranks have not made.
//!
//! Calls on NCCL, and waits for them, return at once: a stream waits, and the program blocks at the
//! first line that needs a result. If two captures of stacks show it at such a line
//! ([`device::is_waited_for`]) or in PyTorch's functions for collectives, or if it does not return
//! from NCCL itself, it is assumed to wait for its first call that cannot be complete. This proves
//! nothing: the device may be busy with something else.

use ddp_doctor_proto::report::Timestamp;

use super::super::activity;
use super::super::device;
use super::super::event::CallId;
use super::super::model::{Model, Process, Side};
use super::{Blocked, for_message, for_others, launches};

/// The wait of a process that is inside no recorded call or wait.
pub(super) fn blocked(
    model: &Model,
    process: &Process,
    rank: u32,
    now: Timestamp,
) -> Option<Blocked> {
    let under_way = |it: &super::Thread| it.is_under_way();
    if process.threads.values().any(under_way) {
        return None;
    }
    let timing = &model.timing;
    let within = process
        .threads
        .values()
        .find_map(|it| it.within_since(now, timing.uncertain_wait));
    let inside = within.or_else(|| activity::unseen_call(process, timing).map(|_| process.last_at));
    if inside.is_none() && !device::is_waited_for(process, timing) {
        return None;
    }
    let first = open(model, process, rank, now, inside);
    // All its messages met their partners, one of which may be in a launch with an open message.
    let behind = || launches::behind(model, process, process.last_call.as_ref()?, rank, now);
    let blocked = first.or_else(behind)?;
    Some(Blocked {
        certain: false,
        only_thread: false,
        recorded: false,
        came_back: within.is_none(),
        ..blocked
    })
}

/// The first call that cannot be complete. Messages without a recorded wait count if they were
/// issued before the process entered what it is `inside`.
fn open(
    model: &Model,
    process: &Process,
    rank: u32,
    now: Timestamp,
    inside: Option<Timestamp>,
) -> Option<Blocked> {
    let mut found: Vec<(CallId, Blocked)> = Vec::new();
    for group in process.groups().map(|id| model.group(id)) {
        let from = group.first_open().unwrap_or(u64::MAX);
        let mut joins = group.joins.range(from..);
        let collective = joins.find_map(|(&seq, join)| {
            let joined = join.calls.get(&rank)?;
            let on_device = !group.holds_threads(joined.call.op) && joined.is_awaited();
            on_device.then(|| for_others(model, group.id, seq, rank))?
        });
        found.extend(collective.map(|it| (it.call.id, it)));
        let lones = group.traffic.open().filter(|lone| lone.rank == rank);
        let lones = lones.filter(|lone| {
            let call = &lone.joined.call;
            let is_complete = call.on_stream.is_some() && lone.joined.is_done();
            !group.holds_threads(call.op)
                && !is_complete
                && (lone.is_awaited() || inside.is_some_and(|inside| call.at <= inside))
        });
        let messages = lones.filter_map(|lone| {
            let at = lone.joined.call.at;
            for_message(model, group.id, lone, at, now)
        });
        found.extend(messages.map(|it| (it.call.id, it)));
    }
    // A small send may be complete: calls that surely block the device come first.
    let sends = |it: &Blocked| {
        it.message
            .as_ref()
            .is_some_and(|lone| lone.side == Side::Send)
    };
    let first = found.into_iter().min_by_key(|(id, it)| (sends(it), *id));
    first.map(|(_, blocked)| blocked)
}

#[cfg(test)]
mod tests {
    use crate::diagnosis::testing::holds;

    /// The program waits for its device: blocked in the driver, or polling.
    const BLOCKED: &str =
        "S cpu=1 libc.so.6!futex libcuda.so.1!cuStreamSynchronize @train.py:30:step";
    const SPINS: [&str; 2] = ["R cpu=3 @train.py:30:step", "R cpu=8 @train.py:30:step"];
    const LOADS: &str = "S cpu=1 @/v/lib/python3.11/site-packages/torch/utils/data/dataloader.py:9:_next_data @train.py:20:step";

    /// Three ranks on NCCL, the first two with a group of their own, and two captures of each
    /// rank's stacks after its last call.
    fn job(calls: &str, stands: [[&str; 2]; 3], expect: &str) {
        let mut events: Vec<String> = calls.trim().lines().map(|it| it.trim().into()).collect();
        for (rank, [first, last]) in stands.into_iter().enumerate() {
            events.push(format!("5.0 {rank} stack {first}"));
            events.push(format!("9.0 {rank} stack {last}"));
        }
        // Events are written by rank and played by time.
        let second = |event: &String| event.split('.').next()?.parse::<u32>().ok();
        events.sort_by_key(second);
        let events = events.join("\n");
        holds(&format!(
            r#"
            world = 3
            backend = "nccl"
            stall-after = 30
            look-on = 60
            events = """
            0.5 0,1 group model 0,1
            {events}
            """
            {expect}
            "#
        ));
    }

    /// Rank 1 leaves out the call of its group.
    const LEFT_OUT: &str = "
        1.0 0 all_reduce/model f32[8] sum @train.py:9
        1.0 0 done
        1.0 1,2 all_reduce f32[8] sum @train.py:12
        1.0 1,2 done";

    const CIRCLE: &str = r#"
        silent-until = 31
        [[expect]]
        code = "DD111"
        confidence = "supported"
        root = [0, 1]
        victims = [2]
        cause = "unknown"
        states = { 0 = "waiting", 1 = "waiting" }
        why-has = "their completion is awaited by rank 0 at train.py:30 and by rank 1 at train.py:30"
        "#;

    #[test]
    fn programs_waiting_for_devices_form_a_cycle() {
        job(LEFT_OUT, [[BLOCKED; 2]; 3], CIRCLE);
    }

    #[test]
    fn polling_programs_form_a_cycle_as_well() {
        job(LEFT_OUT, [SPINS, SPINS, [BLOCKED; 2]], CIRCLE);
    }

    #[test]
    fn rank_waiting_for_its_device_is_not_the_root() {
        let calls = "
            1.0 0 all_reduce/model f32[8] sum @train.py:9
            1.0 0 done
            1.0 2 all_reduce f32[8] sum @train.py:12
            1.0 2 done
            1.1 1 continues";
        job(
            calls,
            [SPINS, [LOADS; 2], SPINS],
            r#"
            [[expect]]
            code = "DD204"
            root = [1]
            victims = [0, 2]
            states = { 1 = "not-issued", 2 = "waiting" }
            "#,
        );
    }

    #[test]
    fn rank_waiting_for_its_input_is_the_root() {
        job(
            LEFT_OUT,
            [[LOADS; 2], SPINS, SPINS],
            r#"
            [[expect]]
            code = "DD204"
            root = [0]
            victims = [1, 2]
            "#,
        );
    }

    #[test]
    fn missing_message_blocks_a_device() {
        let calls = "
            1.0 2 recv f32[8] peer=1 @train.py:9
            1.0 2 done
            1.0 0,1 all_reduce f32[8] sum @train.py:12
            1.0 0,1 done";
        job(
            calls,
            [SPINS; 3],
            r#"
            [[expect]]
            code = "DD112"
            confidence = "supported"
            root = [1, 2]
            victims = [0]
            why-has = "rank 2 waits in recv #1 from rank 1"
            "#,
        );
        let calls = "
            1.0 2 recv f32[8] peer=1 @train.py:9
            1.0 2 done
            1.0 0 all_reduce f32[8] sum @train.py:12
            1.0 0 done
            1.1 1 continues";
        job(
            calls,
            [SPINS, [LOADS; 2], SPINS],
            r#"
            [[expect]]
            code = "DD113"
            root = [1]
            "#,
        );
    }

    #[test]
    fn devices_that_progress_are_no_finding() {
        let calls = format!(
            "{LEFT_OUT}
            20.0 1 all_reduce/model f32[8] sum @train.py:9
            20.0 1 done
            20.1 0 all_reduce f32[8] sum @train.py:12
            20.1 0 done"
        );
        job(&calls, [SPINS, SPINS, SPINS], "");
    }
}
