//! `analyze` on dumps of simulated NCCL jobs: no rank but the faulty one is ever named.

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::Report;
use serde_json::{Value, json};

use crate::oracle::program::Random;
use crate::support::dumps::analyze_ranks;
use job::{Call, Fault, Job, Rank, Shape, What};

mod job;

/// Number of jobs of one run.
const JOBS: u64 = 300;
/// Nanoseconds between two ticks of the simulation.
const TICK: u64 = 1_000_000;
const START: u64 = 1_700_000_000_000_000_000;

/// What the recorder was set to write.
#[derive(Clone, Copy, Debug)]
struct Recorder {
    /// Entries of its ring.
    room: usize,
    /// Complete calls are left out.
    only_active: bool,
    /// Progress by group is written.
    status: bool,
    /// Stacks are written.
    frames: bool,
    version: &'static str,
}

/// One job and what is left of it.
#[derive(Debug)]
struct Case {
    shape: Shape,
    fault: Fault,
    recorder: Recorder,
    /// The rank whose dump is missing.
    missing: Option<u32>,
}

fn case(seed: u64) -> Case {
    let mut random = Random::new(seed);
    let shape = Shape {
        tensor: random.pick(&[1, 2, 4]),
        data: random.pick(&[1, 2, 4]),
        pipeline: random.pick(&[1, 2, 3, 4]),
        steps: 1 + random.below(3) as u32,
        micro_batches: 1 + random.below(3) as u32,
        batched: random.chance(50),
        overlaps: random.chance(50),
        sends_delay: random.chance(50),
        waits: random.chance(50),
    };
    let world = (shape.tensor * shape.data * shape.pipeline) as usize;
    let (rank, after) = (random.below(world) as u32, random.below(40));
    let fault = if random.chance(70) {
        Fault::Host { rank, after }
    } else {
        let more = random.below(8);
        Fault::Device { rank, after, more }
    };
    let recorder = Recorder {
        room: random.pick(&[8, 20, 2000]),
        only_active: random.chance(40),
        status: random.chance(80),
        frames: random.chance(50),
        version: random.pick(&["2.1", "2.4", "2.7", "2.9", "2.10"]),
    };
    let missing = match random.below(4) {
        0 => Some(rank),
        1 => Some(random.below(world) as u32),
        _ => None,
    };
    Case { shape, fault, recorder, missing }
}

/// The entry of a call, without its number in the ring.
fn entry(job: &Job, rank: u32, call: &Call, recorder: Recorder) -> Value {
    let group = &job.groups[call.group];
    let local = |rank: u32| group.members.iter().position(|it| *it == rank).unwrap();
    let (own, is_p2p) = (local(rank), !matches!(call.what, What::Collective(_)));
    let (name, inputs) = match call.what {
        What::Collective(op) => (op.to_owned(), vec![64, 8]),
        What::Send(to, _) => (format!("send {own}->{}", local(to)), vec![16, 8]),
        What::Recv(from, _) => (format!("recv {own}<-{}", local(from)), vec![16, 8]),
    };
    let members = group.members.len();
    let outputs = match &name[..] {
        "_all_gather_base" => vec![64 * members, 8],
        _ => inputs.clone(),
    };
    let inputs = match &name[..] {
        "_reduce_scatter_base" => vec![64 * members, 8],
        _ => inputs,
    };
    let (collective, message) = if is_p2p { (1, call.seq) } else { (call.seq, 0) };
    // The members of a batch have no event: only the entry of the batch is ever complete.
    let done = call.is_complete && !call.is_batched;
    let mut entry = json!({
        "profiling_name": format!("nccl:{name}"),
        "process_group": [group.name, group.description],
        "pg_id": call.group + 3,
        "collective_seq_id": collective,
        "p2p_seq_id": message,
        "op_id": 1,
        "is_p2p": is_p2p,
        "state": if done { "completed" } else { "scheduled" },
        "retired": done,
        "timeout_ms": 600_000,
        "time_created_ns": START + call.issued.unwrap_or(0) * TICK + u64::from(rank),
        "input_sizes": [inputs], "input_dtypes": ["BFloat16"],
        "output_sizes": [outputs], "output_dtypes": ["BFloat16"],
    });
    if recorder.frames {
        let library = "/opt/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py";
        let mut frames = vec![json!({ "name": "isend", "filename": library, "line": 2500 })];
        if call.is_batched {
            frames.push(json!({ "name": "batch_isend_irecv", "filename": library, "line": 2700 }));
        }
        frames.push(json!({ "name": "step", "filename": "/job/train.py", "line": 7 }));
        entry["frames"] = frames.into();
    }
    entry
}

/// The entry that ends a batch.
fn end_of_batch(mut entry: Value, call: &Call) -> Value {
    let state = if call.is_complete { "completed" } else { "scheduled" };
    entry["profiling_name"] = "nccl:coalesced".into();
    entry["state"] = state.into();
    entry["retired"] = call.is_complete.into();
    for key in ["input_sizes", "output_sizes", "input_dtypes", "output_dtypes"] {
        entry[key] = json!([]);
    }
    entry
}

fn dump(job: &Job, rank: u32, program: &Rank, recorder: Recorder) -> Value {
    let mut entries: Vec<Value> = Vec::new();
    let mut status = json!({});
    for call in program.calls.iter().filter(|it| it.issued.is_some()) {
        let mut new = vec![entry(job, rank, call, recorder)];
        if call.is_batched {
            new.push(end_of_batch(new[0].clone(), call));
        }
        for mut entry in new {
            entry["record_id"] = entries.len().into();
            entries.push(entry);
        }
        let of_group = &mut status[(call.group + 3).to_string()];
        of_group["last_enqueued_collective"] = call.seq.into();
        of_group["last_started_collective"] = (-1).into();
        if call.is_complete {
            of_group["last_completed_collective"] = call.seq.into();
        } else if of_group["last_completed_collective"].is_null() {
            of_group["last_completed_collective"] = (-1).into();
        }
    }
    let first = entries.len().saturating_sub(recorder.room);
    let mut kept = entries.split_off(first);
    if recorder.only_active {
        kept.retain(|it| it["state"] != "completed");
    }
    let mut groups = json!({});
    for group in job.groups.iter().filter(|it| it.members.contains(&rank)) {
        let members: Vec<String> = group.members.iter().map(u32::to_string).collect();
        groups[&group.name] = json!({
            "name": group.name,
            "desc": group.description,
            "ranks": format!("[{}]", members.join(", ")),
        });
    }
    let mut dump = json!({ "version": recorder.version, "pg_config": groups, "entries": kept });
    if recorder.status {
        dump["pg_status"] = status;
    }
    dump
}

/// Whether the report states that all ranks are in a call, which is not so if a host stopped.
fn is_about_the_device(report: &Report) -> bool {
    let mut findings = report.findings.iter();
    findings.any(|it| it.code == catalogue::DD116.code)
}

/// Ranks that the report blames, apart from notes on missing evidence.
fn blamed(report: &Report) -> Vec<u32> {
    let findings = report.findings.iter().filter(|it| !catalogue::is_gap(&it.code));
    let mut ranks: Vec<u32> = findings.flat_map(|it| it.ranks.root.clone()).collect();
    ranks.sort_unstable();
    ranks.dedup();
    ranks
}

#[test]
fn only_the_faulty_rank_of_a_simulated_job_is_named() {
    let (mut hangs, mut named) = (0, 0);
    let mut wrong = Vec::new();
    for seed in 0..JOBS {
        let case = case(seed);
        let (Fault::Host { rank, .. } | Fault::Device { rank, .. }) = case.fault;
        let mut job = Job::new(case.shape);
        job.run(case.fault);
        if !job.hangs_beside(rank) {
            continue;
        }
        let ranks = job.ranks.iter().zip(0..);
        let dumps: Vec<(u32, Value)> = ranks
            .filter(|(_, rank)| Some(*rank) != case.missing)
            .map(|(program, rank)| (rank, dump(&job, rank, program, case.recorder)))
            .collect();
        let analysis = analyze_ranks(&dumps);
        let blamed: Vec<u32> = analysis.reports.iter().flat_map(blamed).collect();
        let is_of_host = matches!(case.fault, Fault::Host { .. });
        // A dump of incomplete calls does not show which messages of batches are complete.
        let is_certain = is_of_host
            && case.missing.is_none()
            && !(case.recorder.only_active && case.shape.batched);
        if is_certain {
            hangs += 1;
            named += u32::from(blamed == [rank]);
        }
        // Without complete calls, a dump does not show that earlier incomplete ones have left the ring.
        let is_shown = !case.recorder.only_active || case.recorder.room > 20;
        let is_about_the_device = || analysis.reports.iter().any(is_about_the_device);
        let is_false = is_of_host && is_shown && is_about_the_device();
        if is_false || blamed.iter().any(|it| *it != rank) {
            let codes: Vec<String> = analysis
                .reports
                .iter()
                .flat_map(|it| &it.findings)
                .map(|it| {
                    format!("{} {:?} {:?} {}", it.code, it.confidence, it.ranks.root, it.summary)
                })
                .collect();
            wrong.push(format!("{seed}: {case:?}\n  {}", codes.join("\n  ")));
        }
    }
    assert!(wrong.is_empty(), "{} of {hangs}\n{}", wrong.len(), wrong.join("\n"));
    println!("{named} of {hangs} ranks named");
    assert!(named * 10 >= hangs * 9, "{named} of {hangs} ranks are named");
}
