//! Measures how long the engine takes to analyze the durations of collectives and late ranks, by
//! the number of collectives.
//!
//! ```text
//! cargo bench --bench communication
//! ```
#![expect(
    clippy::print_stdout,
    reason = "a benchmark prints its results and needs no error handling"
)]

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use ddp_doctor::diagnosis::delays::{communication, lateness};
use ddp_doctor::diagnosis::event::{Call, CallId, Event, GroupInfo, ProcessId, ThreadId};
use ddp_doctor::diagnosis::model::Model;
use ddp_doctor_proto::report::{Timestamp, Where};
use ddp_doctor_proto::{DType, Op, ReduceOp};

const ROUNDS: usize = 21;
/// Calls per step: one after the other, 1 ms each, followed by a pause.
const CALLS: u64 = 20;
const MILLISECOND: u64 = 1_000_000;

fn main() {
    for number in [1_000, 10_000, 100_000] {
        let model = model(number);
        println!("two ranks, {number} collectives of 20 a step:");
        report("durations of collectives: slow ones and many small ones", || {
            black_box(communication::findings(&model));
        });
        report("late ranks", || {
            black_box(lateness::straggler(&model));
        });
    }
}

/// A model of two ranks that issued this number of collectives.
fn model(number: u64) -> Model {
    let mut model = Model::default();
    let group = Arc::new(GroupInfo::c10d("0", "default_pg", "gloo", vec![0, 1]));
    let place = Arc::new(Where {
        file: "train.py".into(),
        line: 9,
        function: "train".into(),
        ..Where::default()
    });
    let processes = [0, 1].map(|rank| ProcessId::new(0, rank + 1));
    for (process, rank) in processes.into_iter().zip(0..) {
        model.apply(Event::ProcessJoined {
            process,
            rank: Some(rank),
            world_size: Some(2),
            host: "node".into(),
            pid: 1000 + rank,
            layer: "c10d".into(),
            world: "".into(),
            restarts: 0,
            at: Timestamp(0),
        });
        model.apply(Event::GroupJoined { process, group: Arc::clone(&group) });
    }
    for seq in 1..=number {
        let at = Timestamp((seq + seq / CALLS * CALLS) * MILLISECOND);
        let thread = ThreadId(1);
        for process in processes {
            let call = Call {
                group: Some(Arc::clone(&group)),
                seq,
                dtype: DType::Float32,
                reduce_op: ReduceOp::Sum,
                numel: Some(1024),
                place: Some(Arc::clone(&place)),
                ..Call::new(CallId(seq), at, thread, Op::AllReduce)
            };
            model.apply(Event::Issued { process, call: Arc::new(call) });
        }
        for process in processes {
            model.apply(Event::Returned {
                process,
                thread,
                call: CallId(seq),
                followed: false,
                at: Timestamp(at.0 + MILLISECOND * 9 / 10),
            });
        }
    }
    model
}

/// Prints the median duration of several calls.
fn report(name: &str, mut call: impl FnMut()) {
    let mut took: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let begin = Instant::now();
            call();
            begin.elapsed().as_secs_f64() * 1e3
        })
        .collect();
    took.sort_unstable_by(f64::total_cmp);
    println!("  {name} {:.2} ms", took[ROUNDS / 2]);
}
