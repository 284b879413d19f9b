//! What a rank does according to its stacks: the call that it is inside, or the place outside of calls.

use std::sync::Arc;
use std::time::Duration;

use ddp_doctor_diagnosis::event::{Stacks, ThreadStack};
use ddp_doctor_diagnosis::input::place;
use ddp_doctor_diagnosis::stacks;
use ddp_doctor_proto::report::Where;
use ddp_doctor_proto::{Op, v1};

/// Files of PyTorch whose functions issue collectives.
const CALLS: [&str; 3] = [
    "torch/distributed/distributed_c10d.py",
    "torch/distributed/_functional_collectives.py",
    "torch/distributed/nn/functional.py",
];
/// Native functions inside a call, and its operation, the most specific first. They name calls that no Python frame
/// shows: those of DDP, and waits for asynchronous calls.
const NATIVE: [(&str, Op); 30] = [
    // The first forward after the first backward.
    ("c10d::Reducer::sync_bucket_indices", Op::Broadcast),
    ("c10d::Reducer::", Op::AllReduce),
    ("c10d::verify_params_across_processes", Op::AllGather),
    ("c10d::broadcast_coalesced", Op::Broadcast),
    ("c10d::sync_module_states", Op::Broadcast),
    ("c10d::ProcessGroupGloo::SendWork::", Op::Send),
    ("c10d::ProcessGroupGloo::RecvWork::", Op::Recv),
    ("c10d::ProcessGroupNCCL::allreduce", Op::AllReduce),
    ("c10d::ProcessGroupNCCL::allgather", Op::AllGather),
    ("c10d::ProcessGroupNCCL::_allgather", Op::AllGather),
    ("c10d::ProcessGroupNCCL::reduce_scatter", Op::ReduceScatter),
    ("c10d::ProcessGroupNCCL::_reduce_scatter", Op::ReduceScatter),
    ("c10d::ProcessGroupNCCL::broadcast", Op::Broadcast),
    ("c10d::ProcessGroupNCCL::barrier", Op::Barrier),
    ("c10d::ProcessGroupNCCL::alltoall", Op::AllToAll),
    ("gloo::allreduce", Op::AllReduce),
    ("gloo::allgather", Op::AllGather),
    ("gloo::barrier", Op::Barrier),
    ("gloo::broadcast", Op::Broadcast),
    ("gloo::reduce(", Op::Reduce),
    ("gloo::gather", Op::Gather),
    ("gloo::scatter", Op::Scatter),
    ("gloo::alltoall", Op::AllToAll),
    ("ncclAllReduce", Op::AllReduce),
    ("ncclAllGather", Op::AllGather),
    ("ncclReduceScatter", Op::ReduceScatter),
    ("ncclBroadcast", Op::Broadcast),
    ("ncclSend", Op::Send),
    ("ncclRecv", Op::Recv),
    ("c10d::Work::wait", Op::Unspecified),
];
/// Those of them in which DDP makes calls that the program did not make.
const OF_DDP: [&str; 4] = [
    "c10d::Reducer",
    "c10d::verify_params",
    "c10d::broadcast_coalesced",
    "c10d::sync_module_states",
];
/// Least share of the time between two captures that a thread which waits inside a call may have run, as its
/// inverse: NCCL's threads poll.
const IDLE: u32 = 20;

/// What a rank does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Position {
    /// It is inside a call.
    Inside(StackCall),
    /// It is at one line in both captures and seems to wait for its device there, by polling or inside the driver. A
    /// loop with such a line looks the same.
    Device(StackCall),
    /// It is outside of calls and does not move.
    Outside,
    /// It moves.
    Moves,
    /// Its stacks cannot be read.
    Unknown,
}

/// A call that a stack shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackCall {
    /// Operation; `Unspecified`: unknown.
    pub op: Op,
    /// The user's line.
    pub place: Option<Where>,
    /// The framework issued it, not the program.
    pub hidden: bool,
    /// Thread id in the operating system.
    pub tid: u32,
    /// Time that the thread has been asleep in it; `None`: unknown.
    pub asleep: Option<Duration>,
    /// Its group; `None`: unknown.
    pub group: Option<v1::CallGroup>,
}

/// The position of a rank, from two captures, the older one first. `is_on_device`: its calls return before they are
/// complete.
#[must_use]
pub fn locate(first: &Arc<Stacks>, last: &Arc<Stacks>, is_on_device: bool) -> Position {
    let (Some(before), Some(now)) = (first.threads.first(), last.threads.first()) else {
        return Position::Unknown;
    };
    let apart = last.at.since(first.at);
    let inside = (call_of(first), call_of(last));
    if let (Some(earlier), Some(call)) = inside {
        // It may have returned and called again in between.
        let ran = now.cpu_time.zip(before.cpu_time).map(|(now, before)| now.saturating_sub(before));
        // A thread that slept before and runs now has woken up: on a busy host, the end of a healthy wait looks so.
        let has_woken = before.asleep.is_some() && now.state == Some('R');
        let slept = !has_woken && call.asleep.is_none_or(|it| it >= apart / 2);
        let runs = before.asleep.is_none() && now.state == Some('R');
        let polls = runs || ran.is_some_and(|it| it * IDLE >= apart);
        let is_same = earlier.op == call.op && earlier.place == call.place;
        if is_same && call.op == Op::InitProcessGroup && !slept {
            // No program calls it again and again: the rank with the store wakes up to count the others.
            return Position::Inside(StackCall { asleep: None, ..call });
        }
        return if is_same && (slept || polls) { Position::Inside(call) } else { Position::Moves };
    }
    if inside != (None, None) {
        return Position::Moves;
    }
    if now.python.is_empty() {
        return Position::Unknown;
    }
    if is_on_device && waits_for_device(before, now, apart) {
        let place = stacks::line_of(last, None).cloned();
        return Position::Device(StackCall {
            op: Op::Unspecified,
            place,
            hidden: true,
            tid: now.tid,
            asleep: None,
            group: None,
        });
    }
    if stacks::move_between(first, last) { Position::Moves } else { Position::Outside }
}

/// Whether a main thread is at one place in two captures, and polls or sleeps inside the driver there.
fn waits_for_device(before: &ThreadStack, now: &ThreadStack, apart: Duration) -> bool {
    let ran = now.cpu_time.zip(before.cpu_time).map(|(now, before)| now.saturating_sub(before));
    // Other processes may use the processor, too.
    let runs = before.state == Some('R') && now.state == Some('R');
    let polls = runs || ran.is_some_and(|it| it * 4 >= apart);
    let is_in_driver = stacks::is_in_driver(before) && stacks::is_in_driver(now);
    let may_synchronize = now
        .python
        .first()
        .is_some_and(|it| it.file.contains("/torch/") || place::is_users(&it.file));
    before.tid == now.tid
        && before.python == now.python
        && (is_in_driver || polls && may_synchronize)
}

/// Whether the main thread creates a process group or a communicator.
#[must_use]
pub fn is_initializing(stacks: &Stacks) -> bool {
    const FUNCTIONS: [&str; 2] = ["ncclCommInit", "ncclCommSplit"];
    stacks.threads.first().is_some_and(|thread| {
        let python = thread.python.iter().filter_map(|it| op_of(&it.function));
        let mut creates = python.filter(|op| matches!(op, Op::InitProcessGroup | Op::NewGroup));
        let mut native = thread.native.iter();
        creates.next().is_some()
            || native.any(|it| FUNCTIONS.iter().any(|name| it.function.contains(name)))
    })
}

/// The call that the main thread is inside.
#[must_use]
pub fn call_of(stacks: &Arc<Stacks>) -> Option<StackCall> {
    let thread = stacks.threads.first()?;
    let place = stacks::line_of(stacks, None).cloned();
    let (op, hidden) = operation(thread, place.as_ref())?;
    Some(StackCall { op, place, hidden, tid: thread.tid, asleep: thread.asleep, group: None })
}

/// The operation of a thread, and whether the framework issued it.
fn operation(thread: &ThreadStack, line: Option<&Where>) -> Option<(Op, bool)> {
    let users = thread.python.iter().position(|it| Some(it) == line);
    let below = &thread.python[..users.unwrap_or(thread.python.len())];
    let python = below.iter().find_map(|frame| {
        let is_call = CALLS.iter().any(|file| frame.file.ends_with(file));
        is_call.then(|| op_of(&frame.function))?
    });
    let native = || {
        let is_on_stack =
            |name: &str| thread.native.iter().any(|frame| frame.function.contains(name));
        let (name, op) = NATIVE.iter().find(|(name, _)| is_on_stack(name))?;
        Some((*op, OF_DDP.iter().any(|function| name.starts_with(function))))
    };
    python.map(|op| (op, false)).or_else(native)
}

/// The operation of a function of `torch.distributed`.
fn op_of(function: &str) -> Option<Op> {
    let name = match function.rsplit('.').next().unwrap_or_default() {
        "all_gather_into_tensor"
        | "_all_gather_base"
        | "all_gather_tensor"
        | "all_gather_single" => "all_gather",
        "reduce_scatter_tensor" | "_reduce_scatter_base" | "reduce_scatter_single" => {
            "reduce_scatter"
        }
        "all_to_all_single" => "all_to_all",
        "gather_into_tensor" | "gather_single" => "gather",
        "_new_group_with_tag" => "new_group",
        "wait_tensor" => return Some(Op::Unspecified),
        name => name,
    };
    Op::from_name(name).filter(|op| *op != Op::Other)
}

#[cfg(test)]
mod tests {
    use ddp_doctor_proto::report::Timestamp;

    use super::*;

    const C10D: &str = "/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py";

    fn frame(file: &str, line: u32, function: &str) -> Where {
        Where { file: file.into(), line, function: function.into(), ..Where::default() }
    }

    /// A capture at this second of a main thread with these frames that has run for `cpu` seconds.
    fn capture(second: u64, cpu: f64, asleep: Option<f64>, python: Vec<Where>) -> Arc<Stacks> {
        let thread = ThreadStack {
            tid: 7,
            state: Some('S'),
            cpu_time: Some(Duration::from_secs_f64(cpu)),
            asleep: asleep.map(Duration::from_secs_f64),
            python,
            ..ThreadStack::default()
        };
        let at = Timestamp(second * 1_000_000_000);
        Arc::new(Stacks { at, threads: vec![thread], ..Stacks::default() })
    }

    fn all_reduce(line: u32) -> Vec<Where> {
        vec![
            frame(C10D, 3100, "all_reduce"),
            frame(
                "/v/lib/python3.11/site-packages/torch/distributed/c10d_logger.py",
                81,
                "wrapper",
            ),
            frame("train.py", line, "main"),
        ]
    }

    #[test]
    fn sleeping_rank_is_inside_the_call_of_its_frames() {
        let position = locate(
            &capture(1, 5.0, Some(60.0), all_reduce(9)),
            &capture(3, 5.0, Some(62.0), all_reduce(9)),
            false,
        );
        let Position::Inside(call) = position else { panic!("{position:?}") };
        assert_eq!((call.op, call.place.unwrap().line, call.hidden), (Op::AllReduce, 9, false));
        assert_eq!(call.asleep, Some(Duration::from_secs(62)));
    }

    #[test]
    fn rank_that_called_again_between_the_captures_moves() {
        let of = |asleep, line| {
            locate(
                &capture(1, 5.0, Some(0.1), all_reduce(9)),
                &capture(3, 5.0, asleep, all_reduce(line)),
                false,
            )
        };
        assert_eq!(
            of(Some(0.2), 9),
            Position::Moves,
            "it has slept for less than the time between them"
        );
        assert_eq!(of(Some(9.0), 10), Position::Moves, "another line");
        assert!(matches!(of(None, 9), Position::Inside(_)), "its sleep is unknown");
    }

    #[test]
    fn rank_that_has_woken_up_moves_unless_it_polls() {
        let of = |asleep, used| {
            let first = capture(1, 5.0, asleep, all_reduce(9));
            let mut last = Stacks::clone(&capture(3, 5.0 + used, None, all_reduce(9)));
            last.threads[0].state = Some('R');
            locate(&first, &Arc::new(last), false)
        };
        assert_eq!(of(Some(0.5), 0.01), Position::Moves);
        assert!(matches!(of(Some(0.001), 0.5), Position::Inside(_)), "it polls");
        assert!(matches!(of(None, 0.01), Position::Inside(_)), "its sleep is not known");
    }

    #[test]
    fn rank_that_wakes_up_to_count_the_others_is_joining() {
        let joining =
            || vec![frame(C10D, 1800, "init_process_group"), frame("train.py", 9, "setup")];
        let of = |second, asleep| capture(second, 5.0, Some(asleep), joining());
        let position = locate(&of(1, 0.01), &of(3, 0.01), false);
        let Position::Inside(call) = position else { panic!("{position:?}") };
        assert_eq!((call.op, call.asleep), (Op::InitProcessGroup, None));
        let asleep = locate(&of(1, 30.0), &of(3, 32.0), false);
        assert!(matches!(asleep, Position::Inside(call) if call.asleep.is_some()));
    }

    #[test]
    fn rank_outside_moves_or_not() {
        let at =
            |second, cpu, line| capture(second, cpu, None, vec![frame("train.py", line, "main")]);
        let of = |first, last| locate(&first, &last, false);
        assert_eq!(of(at(1, 5.0, 9), at(3, 5.0, 9)), Position::Outside);
        assert_eq!(of(at(1, 5.0, 9), at(3, 7.0, 9)), Position::Moves);
        assert_eq!(of(at(1, 5.0, 9), at(3, 5.0, 10)), Position::Moves);
        assert_eq!(of(at(1, 5.0, 9), capture(3, 5.0, None, all_reduce(9))), Position::Moves);
        assert_eq!(of(at(1, 5.0, 9), capture(3, 5.0, None, Vec::new())), Position::Unknown);
    }

    #[test]
    fn rank_that_polls_at_one_line_waits_for_its_device() {
        let at =
            |second, cpu, line| capture(second, cpu, None, vec![frame("train.py", line, "main")]);
        let is_waiting = |first, last| matches!(locate(&first, &last, true), Position::Device(_));
        assert!(is_waiting(at(1, 5.0, 9), at(3, 7.0, 9)));
        assert!(!is_waiting(at(1, 5.0, 9), at(3, 7.0, 10)), "another line");
        assert!(!is_waiting(at(1, 5.0, 9), at(3, 5.0, 9)), "it sleeps");
        let below = || {
            vec![
                frame("/v/lib/python3.11/json/decoder.py", 3, "decode"),
                frame("train.py", 9, "main"),
            ]
        };
        assert!(!is_waiting(capture(1, 5.0, None, below()), capture(3, 7.0, None, below())));
    }

    #[test]
    fn functions_of_pytorch_are_operations() {
        for (function, op) in [
            ("all_reduce", Op::AllReduce),
            ("all_gather_into_tensor", Op::AllGather),
            ("barrier", Op::Barrier),
            ("init_process_group", Op::InitProcessGroup),
            ("monitored_barrier", Op::MonitoredBarrier),
            ("recv", Op::Recv),
        ] {
            assert_eq!(op_of(function), Some(op), "{function}");
        }
        assert_eq!(op_of("_exception_logger"), None);
        assert_eq!(op_of("_get_default_store"), None);
    }

    #[test]
    fn native_frames_show_calls_of_the_reducer() {
        let native = |function: &str| ThreadStack {
            native: vec![frame("libtorch_cpu.so", 0, function)],
            python: vec![
                frame(
                    "/v/lib/python3.11/site-packages/torch/autograd/graph.py",
                    1,
                    "_engine_run_backward",
                ),
                frame("train.py", 9, "main"),
            ],
            ..ThreadStack::default()
        };
        let line = frame("train.py", 9, "main");
        let of = |function| operation(&native(function), Some(&line));
        assert_eq!(of("c10d::Reducer::finalize_backward()"), Some((Op::AllReduce, true)));
        assert_eq!(of("ncclAllGather"), Some((Op::AllGather, false)));
        assert_eq!(of("c10d::ProcessGroupGloo::RecvWork::wait"), Some((Op::Recv, false)));
        assert_eq!(of("torch::autograd::Engine::thread_main"), None);
    }

    #[test]
    fn most_specific_native_function_names_the_call() {
        let inside = |functions: &[&str]| {
            let native = functions.iter().map(|it| frame("libtorch_cpu.so", 0, it)).collect();
            let forward = frame("/v/torch/nn/parallel/distributed.py", 1, "_pre_forward");
            let python = vec![forward, frame("train.py", 9, "main")];
            operation(&ThreadStack { native, python, ..ThreadStack::default() }, None)
        };
        let waits = "c10d::Work::wait(std::chrono::duration)";
        for (function, op) in [
            ("c10d::Reducer::sync_bucket_indices", Op::Broadcast),
            ("c10d::verify_params_across_processes", Op::AllGather),
            ("c10d::broadcast_coalesced", Op::Broadcast),
        ] {
            assert_eq!(inside(&[waits, function]), Some((op, true)), "{function}");
        }
        assert_eq!(inside(&[waits]), Some((Op::Unspecified, false)));
    }
}
