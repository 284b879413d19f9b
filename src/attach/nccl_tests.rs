//! What `attach` would have read of hangs over NCCL that were recorded on a GPU.
//!
//! Frames, states, shares of CPU time and counts of calls are those of recorded runs on an H100 (PyTorch 2.11,
//! NCCL 2.28.9), and the durations of sleeps are assumed. `attach` itself has not been run beside a GPU.

use ddp_doctor_diagnosis::timing::TimeScale;
use ddp_doctor_postmortem as postmortem;
use ddp_doctor_proto::report::{Confidence, Effect, Report};
use ddp_doctor_proto::{Op, v1};

use super::find::{RankProcess, RankedJob};
use super::messages::Evidence;
use super::ras::{Answer, Communicator, Member};
use super::sample::StackRound;
use std::time::Duration;

/// Time of the first capture, and time until the second, in nanoseconds.
const BEGIN: u64 = 1_790_000_000_000_000_000;
const APART: u64 = 1_600_000_000;
const TORCH: &str = "/v/lib/python3.12/site-packages/torch/";
/// Frames of PyTorch.
const BARRIER: &str = "distributed/distributed_c10d.py:5030:barrier";
const DESTROY: &str = "distributed/distributed_c10d.py:2319:destroy_process_group";
const ALL_REDUCE: &str = "distributed/distributed_c10d.py:3068:all_reduce";
const ON_DEVICE: &str = "utils/_device.py:116:DeviceContext.__torch_function__";
const VERIFY: &str = "distributed/utils.py:286:_verify_param_shape_across_processes";

/// What the main thread of a rank does.
#[derive(Clone, Copy)]
enum Main {
    /// It runs, for this share of the time, at one place.
    Polls(f64),
    /// It has been asleep for this many seconds, in this function of the kernel.
    Sleeps(f64, &'static str),
    /// It runs, and was at this line before.
    Runs(u32),
}

/// A rank: what it does, the frame of PyTorch, its line, and its counts of all_reduce and all_gather.
struct Recorded(Main, Option<&'static str>, u32, (u64, u64));

fn frame(text: &str) -> v1::Frame {
    let parts: Vec<&str> = text.splitn(3, ':').collect();
    let file = format!("{TORCH}{}", parts[0]);
    v1::Frame { file, line: parts[1].parse().unwrap(), function: parts[2].into() }
}

/// One capture of a rank.
fn capture(rank: &Recorded, size: u32, is_last: bool) -> v1::Stacks {
    let Recorded(main, torch, line, _) = rank;
    let elapsed = if is_last { APART as f64 } else { 0.0 };
    let (state, channel, cpu, asleep, line) = match *main {
        Main::Polls(share) => ("R", "", elapsed * share, None, *line),
        Main::Sleeps(seconds, channel) => ("S", channel, 0.0, Some(seconds), *line),
        Main::Runs(before) => ("R", "", elapsed, None, if is_last { *line } else { before }),
    };
    let program = v1::Frame { file: "/job/train.py".into(), line, function: "<module>".into() };
    let mut python: Vec<v1::Frame> = torch.iter().map(|it| frame(it)).collect();
    python.push(program);
    // The group is read from the frames of c10d.
    let is_call = torch.is_some_and(|it| it.contains("distributed_c10d"));
    let members = (0..size).collect();
    let thread = v1::ThreadStack {
        tid: 1,
        state: state.into(),
        wait_channel: channel.into(),
        cpu_ns: Some(5_000_000_000 + cpu as u64),
        asleep_ns: asleep.map(|it| (it * 1e9) as u64),
        python,
        group: is_call.then(|| v1::CallGroup { name: "0".into(), members, partner: None }),
        ..v1::ThreadStack::default()
    };
    let watchdog = v1::ThreadStack {
        tid: 2,
        name: "pt_nccl_watchdg".into(),
        state: "S".into(),
        cpu_ns: Some(1),
        ..v1::ThreadStack::default()
    };
    let unix_ns = BEGIN + if is_last { APART } else { 0 };
    v1::Stacks { unix_ns, threads: vec![thread, watchdog], ..v1::Stacks::default() }
}

/// A process id that no process has.
const fn pid(rank: u32) -> u32 {
    4_200_000 + rank
}

fn answer(ranks: &[Recorded]) -> Answer {
    let members = (0..).zip(ranks).map(|(rank, Recorded(.., (reduced, gathered)))| Member {
        rank,
        pid: pid(rank),
        counts: vec![(Op::AllReduce, *reduced), (Op::AllGather, *gathered)],
    });
    let size = ranks.len() as u32;
    Answer {
        communicators: vec![Communicator { hash: "0x7".into(), size, ranks: members.collect() }],
    }
}

/// The report, and one line for each rank.
fn diagnosed(ranks: &[Recorded], answer: Option<&Answer>) -> (Report, Vec<String>) {
    let size = ranks.len() as u32;
    let process = |rank| RankProcess {
        pid: pid(rank),
        start_ticks: 1,
        rank,
        world_size: Some(size),
        local_rank: Some(rank),
        local_world_size: Some(size),
        ..RankProcess::default()
    };
    let job = RankedJob {
        id: "recorded".into(),
        ranks: (0..size).map(process).collect(),
        ..RankedJob::default()
    };
    let looks: [StackRound; 2] =
        [false, true].map(|is_last| ranks.iter().map(|it| capture(it, size, is_last)).collect());
    let evidence = Evidence {
        job: &job,
        ended: &[],
        answer,
        gpus: &[],
        facts: &[],
        min_wait: Duration::from_secs(20),
        looks: &looks,
        stall_after_s: 1,
        time_scale: TimeScale::default(),
    };
    let lines = evidence.whereabouts().iter().map(ToString::to_string).collect();
    let reports = evidence.reports();
    (postmortem::engine_of_rounds(&[&reports]).report(), lines)
}

/// Code and root cause ranks of the leading finding, which is at most supported; empty: nothing is blocked.
fn found(ranks: &[Recorded], answer: Option<&Answer>) -> (String, Vec<u32>) {
    let (report, _) = diagnosed(ranks, answer);
    assert!(report.findings.iter().all(|it| it.confidence <= Confidence::Supported));
    let leading = report.findings.into_iter().find(|it| it.effect != Effect::None);
    leading.map(|it| (it.code, it.ranks.root)).unwrap_or_default()
}

fn stuck_outside(rank: u32) -> (String, Vec<u32>) {
    ("DD204".into(), vec![rank])
}

fn nothing() -> (String, Vec<u32>) {
    <(String, Vec<u32>)>::default()
}

/// `fork_holds_lock`: rank 1 waits for a child, and rank 0 for its device while it destroys the group.
fn fork_holds_lock() -> [Recorded; 2] {
    [
        Recorded(Main::Polls(0.92), Some(DESTROY), 55, (8, 0)),
        Recorded(Main::Sleeps(60.0, "do_wait"), None, 53, (4, 0)),
    ]
}

#[test]
fn rank_that_sleeps_while_its_peers_launched_more_is_named() {
    let wrapped_by_one_rank = [
        Recorded(Main::Polls(0.92), Some(VERIFY), 32, (0, 1)),
        Recorded(Main::Sleeps(60.0, "hrtimer_nanosleep"), None, 28, (0, 0)),
    ];
    let no_answer_from_a_server = [
        Recorded(Main::Polls(0.91), Some(DESTROY), 52, (8, 0)),
        Recorded(Main::Sleeps(60.0, "wait_woken"), None, 39, (4, 0)),
    ];
    for ranks in [&fork_holds_lock()[..], &wrapped_by_one_rank, &no_answer_from_a_server] {
        assert_eq!(found(ranks, Some(&answer(ranks))), stuck_outside(1));
    }
}

#[test]
fn call_that_frames_name_needs_no_counts() {
    let long_checkpoint = [
        Recorded(Main::Sleeps(60.0, "hrtimer_nanosleep"), None, 39, (1, 0)),
        Recorded(Main::Polls(0.84), Some(BARRIER), 43, (2, 0)),
    ];
    assert_eq!(found(&long_checkpoint, None), stuck_outside(0));
    assert_eq!(found(&long_checkpoint, Some(&answer(&long_checkpoint))), stuck_outside(0));
}

#[test]
fn sleeping_rank_is_named_without_counts_if_the_others_wait_at_one_line() {
    let waits = |line| Recorded(Main::Polls(0.9), Some(ON_DEVICE), line, (0, 0));
    let asleep = || Recorded(Main::Sleeps(60.0, "hrtimer_nanosleep"), None, 28, (0, 0));
    assert_eq!(found(&[waits(38), asleep(), waits(38)], None), stuck_outside(1));
    assert_eq!(found(&[waits(38), asleep(), waits(40)], None), nothing());
}

#[test]
fn ranks_that_all_poll_are_not_accused() {
    let polls =
        |share, frame, line, count| Recorded(Main::Polls(share), Some(frame), line, (count, 0));
    let backward_left_out = [
        polls(0.65, ON_DEVICE, 38, 12),
        polls(0.52, ON_DEVICE, 38, 11),
        polls(0.54, ON_DEVICE, 38, 12),
        polls(0.78, ON_DEVICE, 38, 12),
    ];
    let call_on_a_group_of_others = [
        polls(0.62, BARRIER, 36, 7),
        polls(0.51, BARRIER, 36, 6),
        polls(0.76, BARRIER, 36, 7),
        polls(0.49, BARRIER, 36, 7),
    ];
    for ranks in [&backward_left_out, &call_on_a_group_of_others] {
        assert_eq!(found(ranks, Some(&answer(ranks))), nothing());
        assert_eq!(found(ranks, None), nothing());
    }
    // The counts are stated.
    let (_, lines) = diagnosed(&backward_left_out, Some(&answer(&backward_left_out)));
    assert!(lines[0].ends_with("it has launched 1 more all_reduce call than rank 1"), "{lines:?}");
    assert!(lines[0].starts_with("waiting for a device at train.py:38"), "{lines:?}");
}

#[test]
fn rank_that_moves_or_naps_is_not_accused() {
    let computes_forever = [
        Recorded(Main::Polls(0.93), Some(DESTROY), 44, (8, 0)),
        Recorded(Main::Runs(35), None, 36, (4, 0)),
    ];
    // It looks for a file every 0.1 s: for how long it has done so is unknown.
    let stale_build_lock = [
        Recorded(Main::Polls(0.97), Some(ALL_REDUCE), 48, (1, 0)),
        Recorded(Main::Sleeps(0.1, "hrtimer_nanosleep"), None, 43, (0, 0)),
    ];
    for ranks in [computes_forever, stale_build_lock] {
        assert_eq!(found(&ranks, Some(&answer(&ranks))), nothing());
    }
}

#[test]
fn counts_of_another_job_change_nothing() {
    let mut other = answer(&fork_holds_lock());
    other.communicators[0].ranks.iter_mut().for_each(|it| it.pid += 100);
    assert_eq!(found(&fork_holds_lock(), Some(&other)), found(&fork_holds_lock(), None));
}

/// The limit is one second here.
#[test]
fn ranks_that_sleep_are_stated_when_all_of_them_have_slept_for_the_limit() {
    let stated = |first, second| {
        let sleeps =
            |seconds, line| Recorded(Main::Sleeps(seconds, "futex_wait"), None, line, (0, 0));
        let (report, _) = diagnosed(&[sleeps(first, 28), sleeps(second, 38)], None);
        report.findings.into_iter().map(|it| (it.code, it.ranks.root)).collect::<Vec<_>>()
    };
    assert_eq!(stated(1.1, 0.9), []);
    assert_eq!(stated(1.3, 1.1), [("DD901".into(), vec![0, 1])]);
    // A loop that looks for something falls asleep again and again.
    assert_eq!(stated(1.3, 0.1), [("DD901".into(), vec![0])]);
}
