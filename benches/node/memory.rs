//! Measures how long sampling the memory of a rank from outside takes, and analyzing the samples.
//!
//! ```text
//! cargo bench --bench memory
//! ```
#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark prints its results and needs no error handling"
)]

use std::hint::black_box;
use std::time::Instant;

use ddp_doctor::diagnosis::model::Series;
use ddp_doctor::diagnosis::trends::growth;
use ddp_doctor::host::cgroup::{self, MemoryGroup};
use ddp_doctor::host::proc;
use ddp_doctor_proto::report::Timestamp;
use sysinfo::{Pid, ProcessRefreshKind, ProcessesToUpdate, System};

const ROUNDS: usize = 101;
const CALLS: usize = 50;

fn main() {
    let pid = std::process::id();
    println!("twice a second, of each rank:");
    let mut system = System::new();
    let which = [Pid::from_u32(pid)];
    let what = ProcessRefreshKind::nothing().with_memory().with_cpu().without_tasks();
    report("resident set, address space, processor time", || {
        system.refresh_processes_specifics(ProcessesToUpdate::Some(&which), true, what);
    });
    report("its shared memory", || {
        black_box(proc::resident_shared(pid));
    });
    report("its control group", || {
        black_box(proc::cgroups(pid));
    });
    report("limit of its address space", || {
        black_box(proc::address_space_limit(pid));
    });
    report("/dev/shm", || {
        black_box(proc::shared_memory(pid));
    });
    println!("twice a second, of each control group, and of the host:");
    let group = MemoryGroup::parse(&proc::cgroups(pid));
    match &group {
        Some(group) => report("usage, limit, kills and reclaims of a control group", || {
            black_box((group.tightest(), group.oom_kills()));
        }),
        None => println!("  no control group counts this process's memory"),
    }
    report("the host's memory", || {
        system.refresh_memory();
    });
    report("the host's kills", || {
        black_box(cgroup::kills_on_host());
    });
    println!("at each evaluation of the engine, of each rank:");
    let series = |value: fn(u64) -> u64| {
        let mut series: Series = Series::default();
        for step in 1..=100 {
            series.take(Some(value(step) << 20), step, Timestamp(step));
        }
        series
    };
    let flat = series(|_| 500);
    report("growth check: constant memory", || {
        black_box(growth::growth(&flat, 100));
    });
    let grows = series(|step| 500 + 20 * step);
    report("growth check: growing memory", || {
        growth::growth(black_box(&grows), 100).unwrap();
    });
}

/// Prints the median duration of a call over several batches.
fn report(name: &str, mut call: impl FnMut()) {
    let mut took: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let begin = Instant::now();
            for _ in 0..CALLS {
                call();
            }
            begin.elapsed().as_secs_f64() / CALLS as f64 * 1e6
        })
        .collect();
    took.sort_unstable_by(f64::total_cmp);
    println!("  {name}: {:.2} us", took[ROUNDS / 2]);
}
