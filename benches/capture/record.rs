//! Measures what a record costs the thread that writes it, through the Rust and the C API.
//!
//! ```text
//! cargo build --release --workspace
//! cargo bench --bench record
//! ```
#![expect(unsafe_code, reason = "calls the C API as a C program would")]
#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark prints its results and needs no error handling"
)]

use std::ffi::{CString, c_char, c_void};
use std::path::{Path, PathBuf};
use std::time::Instant;

use ddp_doctor_agent::blackbox::Call;
use ddp_doctor_agent::{Agent, DType, Op, ReduceOp};

const BATCHES: usize = 201;
const PAIRS: usize = 5_000;

fn main() {
    println!("{}", machine());
    let directory = tempfile::tempdir().unwrap();
    // SAFETY: no other thread runs yet.
    unsafe { std::env::set_var("DDP_DOCTOR_BOX_DIR", directory.path()) };

    report("clock_gettime, two of them", || {
        std::hint::black_box((monotonic(), monotonic()));
    });
    through_rust();
    match library() {
        Some(path) => through_c(&path),
        None => println!("C API: no libddp_doctor.so beside this benchmark; build it first"),
    }
}

fn through_rust() {
    let agent = Agent::builder().rank(0).world_size(8).start().unwrap();
    let world = agent.group("world", "", "nccl", &[0, 1, 2, 3, 4, 5, 6, 7]);
    report("Rust, issued and returned", || {
        let call = agent
            .call(&world, Op::AllReduce)
            .dtype(DType::BFloat16)
            .shape(&[4096, 4096])
            .reduce_op(ReduceOp::Sum)
            .issue();
        drop(call);
    });
    report("Rust, send issued and returned", || {
        let call = agent.call(&world, Op::Send).peer(3).tag(1).issue();
        drop(call);
    });
}

fn through_c(path: &Path) {
    let path = CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: the path ends in a zero; the library runs no code when it is loaded.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    assert!(!library.is_null());
    let symbol = |name: &str| {
        let name = CString::new(name).unwrap();
        // SAFETY: the library is loaded and never closed.
        let symbol = unsafe { libc::dlsym(library, name.as_ptr()) };
        assert!(!symbol.is_null());
        symbol
    };
    type Open = unsafe extern "C" fn(Text, *const [i32; 3]) -> i32;
    type Group = unsafe extern "C" fn(Text, Text, Text, u32, *const u32, usize) -> u32;
    type Site = unsafe extern "C" fn(Text, Text, u32) -> u32;
    type Issued = unsafe extern "C" fn(*const Call, u32, u32) -> u64;
    type Returned = unsafe extern "C" fn(u64);
    // SAFETY: these are the functions' types in ddp_doctor.h.
    let (open, group, site, issued, returned) = unsafe {
        (
            std::mem::transmute::<*mut c_void, Open>(symbol("ddp_doctor_open")),
            std::mem::transmute::<*mut c_void, Group>(symbol("ddp_doctor_group")),
            std::mem::transmute::<*mut c_void, Site>(symbol("ddp_doctor_site")),
            std::mem::transmute::<*mut c_void, Issued>(symbol("ddp_doctor_issued_at")),
            std::mem::transmute::<*mut c_void, Returned>(symbol("ddp_doctor_returned")),
        )
    };
    let call = Call {
        op: Op::AllReduce.number(),
        dtype: DType::BFloat16.number(),
        reduce_op: ReduceOp::Sum.number(),
        ndim: 2,
        flags: 8 | 16,
        tensors: 1,
        numel: 4096 * 4096,
        dims: [4096, 4096, 0, 0, 0, 0, 0, 0, 0, 0],
        ..Call::default()
    };
    let members: Vec<u32> = (0..8).collect();
    // SAFETY: every pointer meets the requirements of the header.
    let (group, site) = unsafe {
        assert_eq!(open(Text::new("c"), &[0, 8, 0]), 0);
        let empty = Text::new("");
        (
            group(Text::new("world"), empty, empty, 0, members.as_ptr(), 8),
            site(Text::new("train.c"), Text::new("main"), 1),
        )
    };
    assert!(group != 0 && site != 0);
    report("C API, issued and returned", || {
        // SAFETY: `call` is a `ddp_doctor_call`.
        unsafe { returned(issued(&raw const call, group, site)) };
    });
}

/// Prints the duration of one `work`: the median over batches, and the 10 % and 90 % quantiles.
fn report(name: &str, mut work: impl FnMut()) {
    let mut batches: Vec<f64> = (0..BATCHES)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..PAIRS {
                work();
            }
            start.elapsed().as_secs_f64() * 1e9 / PAIRS as f64
        })
        .collect();
    batches.sort_by(f64::total_cmp);
    let (median, low, high) =
        (batches[BATCHES / 2], batches[BATCHES / 10], batches[BATCHES * 9 / 10]);
    println!(
        "{name:32} {median:7.1} ns a pair, {:6.1} ns each (10 to 90 %: {low:.1} to {high:.1} a pair)",
        median / 2.0
    );
}

fn monotonic() -> i64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is valid for the write.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_nsec
}

fn machine() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let processors = info.lines().filter(|line| line.starts_with("processor")).count();
    let (_, model) = model.unwrap_or(("", "unknown processor"));
    format!("{model}, {processors} processors")
}

/// Path of the C library beside this benchmark; `None` if it was not built.
fn library() -> Option<PathBuf> {
    let path = std::env::current_exe().ok()?.parent()?.parent()?.join("libddp_doctor.so");
    path.exists().then_some(path)
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Text {
    data: *const c_char,
    length: usize,
}

impl Text {
    fn new(text: &'static str) -> Self {
        Self { data: text.as_ptr().cast(), length: text.len() }
    }
}
