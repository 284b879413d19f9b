//! Mutated evidence: no file panics, hangs, or takes memory without bound.
//!
//! Seeds are the evidence in `tests/fixtures` and `tests/recordings`, and the inputs in
//! `tests/fuzz`, which once revealed a fault. Mutations are deterministic.
//!
//! ```text
//! FUZZ_SECONDS=1200 cargo test --workspace --all-features --test tests fuzz::mutated_logs -- --nocapture
//! ```
//!
//! `FUZZ_SECONDS` is the processor time for each kind of evidence, and `FUZZ_FROM` the number of the
//! first input. Without it, a fixed number of inputs is run. An input that fails is kept, and its
//! number printed.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use ddp_doctor::postmortem;
use flate2::read::GzDecoder;

use crate::oracle::program::Random;
use crate::support::dumps::{Entry, dump};

/// Number of inputs of each kind without `FUZZ_SECONDS`.
const INPUTS: u64 = 150;
/// Maximum size of a seed: larger ones are cut.
const MAX_SEED: usize = 64 << 10;
/// Time after which an input counts as a hang, if `FUZZ_SECONDS` is set.
const HANG: Duration = Duration::from_secs(60);
/// Processor time between two lines about the progress.
const REPORT_EVERY: Duration = Duration::from_secs(300);
/// Maximum resident memory if `FUZZ_SECONDS` is set, in KiB: 1 GiB.
const MAX_MEMORY: u64 = 1 << 20;

/// Files below a folder of the repository whose names have one of these ends, decompressed.
fn seeds(folder: &str, ends: &[&str]) -> Vec<Vec<u8>> {
    let mut paths = Vec::new();
    files(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder), &mut paths);
    paths.sort();
    let is_one = |path: &&PathBuf| {
        let name = path.to_string_lossy();
        ends.iter().any(|end| name.ends_with(end))
    };
    paths.iter().filter(is_one).map(|path| contents(path)).collect()
}

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            files(&path, found);
        } else {
            found.push(path);
        }
    }
}

fn contents(path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    let file = File::open(path).unwrap();
    if path.extension().is_some_and(|it| it == "gz") {
        let mut inner = GzDecoder::new(file).take(MAX_SEED as u64);
        inner.read_to_end(&mut bytes).unwrap();
    } else {
        file.take(1 << 26).read_to_end(&mut bytes).unwrap();
    }
    bytes
}

/// Pieces of evidence that mutations insert.
const WORDS: [&[u8]; 22] = [
    b"\x80\x02",
    b"(",
    b"]",
    b"}",
    b"u",
    b"e",
    b"q\xff",
    b"h\x00",
    b"j\xff\xff\xff\x7f",
    b"X\xff\xff\xff\xff",
    b"\x8a\xff",
    b"{\"entries\":[",
    b"[[[[[[[[",
    b"\\u0000",
    b"-1",
    b"99999999999999999999",
    b"4294967295",
    b"[rank4294967295]:",
    b"SeqNum=18446744073709551615",
    b"Traceback (most recent call last):\n",
    b"\x1f\x8b\x08\x00",
    b"\x28\xb5\x2f\xfd\x00\xa8",
];

/// The input with this number.
fn input(seeds: &[Vec<u8>], number: u64) -> Vec<u8> {
    let mut random = Random::new(number);
    let mut bytes = seeds[random.below(seeds.len())].clone();
    for _ in 0..=random.below(8) {
        mutate(&mut bytes, seeds, &mut random);
    }
    bytes
}

fn mutate(bytes: &mut Vec<u8>, seeds: &[Vec<u8>], random: &mut Random) {
    let at = random.below(bytes.len() + 1);
    let limit = 1 << random.below(12);
    let len = random.below(limit).min(bytes.len() - at);
    match random.below(10) {
        0 => bytes.truncate(at),
        1 => drop(bytes.drain(at..at + len)),
        2 => {
            let piece = bytes[at..at + len].to_vec();
            let to = random.below(bytes.len() + 1);
            bytes.splice(to..to, piece);
        }
        3 => {
            let word = WORDS[random.below(WORDS.len())].iter().copied();
            bytes.splice(at..at, word);
        }
        4 => {
            let other = &seeds[random.below(seeds.len())];
            let from = random.below(other.len() + 1);
            let end = (from + random.below(4096)).min(other.len());
            bytes.splice(at..at + len, other[from..end].iter().copied());
        }
        5 => {
            let number = random.pick(&[0, 1, 0x7f, 0xff, 0xffff, 0x7fff_ffff, u64::MAX]);
            let size = random.pick(&[1, 2, 4, 8]);
            for (to, from) in bytes[at..].iter_mut().zip(&number.to_le_bytes()[..size]) {
                *to = *from;
            }
        }
        6 => {
            let limit = 1 << random.below(14);
            let count = 1 + random.below(limit);
            let piece = bytes[at..at + len.min(64)].repeat(count.min(2048));
            bytes.splice(at..at, piece);
        }
        _ => {
            for _ in 0..=random.below(4) {
                let at = random.below(bytes.len().max(1));
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << random.below(8);
                }
            }
        }
    }
}

/// The highest resident memory of this process, in KiB.
fn peak_memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut lines = status.lines();
    let value = lines.find_map(|line| line.strip_prefix("VmHWM:"));
    let number = value.and_then(|it| it.trim().strip_suffix(" kB"));
    number.and_then(|it| it.parse().ok()).unwrap_or(0)
}

/// Ends the process if one input takes too long.
fn watch(current: Arc<Mutex<(u64, Instant)>>) {
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(Duration::from_secs(1));
            let (number, since) = *current.lock().unwrap();
            if since.elapsed() > HANG {
                eprintln!("input {number} takes more than {} s", HANG.as_secs());
                std::process::abort();
            }
        }
    });
}

/// Processor time of this process.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.try_into().unwrap()
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Analyzes mutations of the seeds.
fn fuzz(kind: &str, mut seeds: Vec<Vec<u8>>) {
    assert!(!seeds.is_empty(), "no seeds for {kind}");
    for seed in &mut seeds {
        seed.truncate(MAX_SEED);
    }
    let (seconds, from) = (variable("FUZZ_SECONDS"), variable("FUZZ_FROM").unwrap_or(0));
    let began = processor_time();
    let current = Arc::new(Mutex::new((from, Instant::now())));
    if seconds.is_some() {
        watch(Arc::clone(&current));
    }
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let dir = tempfile::tempdir().unwrap();
    let name = format!("trace_rank_{}", NEXT.fetch_add(1, Ordering::Relaxed));
    let path = dir.path().join(name);
    let mut slowest = (Duration::ZERO, from);
    let mut number = from;
    let (started, mut next_report) = (Instant::now(), REPORT_EVERY);
    let report = |number: u64, slowest: (Duration, u64)| {
        println!(
            "{kind}: {} inputs in {} s ({} s of processor time); the slowest ({}) took {} ms, peak memory {} MiB",
            number - from,
            started.elapsed().as_secs(),
            (processor_time() - began).as_secs(),
            slowest.1,
            slowest.0.as_millis(),
            peak_memory() >> 10
        );
    };
    loop {
        let is_over = match seconds {
            Some(seconds) => (processor_time() - began).as_secs() >= seconds,
            None => number >= from + INPUTS,
        };
        if is_over {
            break;
        }
        let bytes = input(&seeds, number);
        fs::write(&path, &bytes).unwrap();
        *current.lock().unwrap() = (number, Instant::now());
        let start = Instant::now();
        let paths = [path.clone()];
        if catch_unwind(AssertUnwindSafe(|| postmortem::analyze(&paths))).is_err() {
            let kept = std::env::temp_dir().join(format!("fuzz-{kind}-{number}"));
            fs::write(&kept, &bytes).unwrap();
            panic!("input {number} of {kind} panics; it is in {}", kept.display());
        }
        slowest = slowest.max((start.elapsed(), number));
        number += 1;
        if processor_time() - began >= next_report {
            report(number, slowest);
            next_report += REPORT_EVERY;
        }
    }
    report(number, slowest);
    assert!(seconds.is_none() || peak_memory() <= MAX_MEMORY, "{} KiB", peak_memory());
}

#[test]
fn mutated_pickles_never_panic() {
    let mut all = seeds("tests/fixtures/nccl-flight-recorder", &[".gz"]);
    all.extend(seeds("tests/fixtures/gloo-flight-recorder", &["0.gz", "1.gz"]));
    all.extend(seeds("tests/fuzz", &[".pickle"]));
    fuzz("pickle", all);
}

#[test]
fn mutated_json_dumps_never_panic() {
    let mut all = seeds("tests/fixtures/gloo-flight-recorder/json", &[".gz"]);
    all.extend(seeds("tests/fuzz", &[".json"]));
    fuzz("json", all);
}

#[test]
fn mutated_logs_never_panic() {
    let mut all = seeds("tests/fixtures/logs", &[".log"]);
    all.extend(seeds("tests/fuzz", &[".log"]));
    fuzz("log", all);
}

#[test]
fn mutated_black_boxes_never_panic() {
    let mut all = seeds("proto/tests/golden", &[".box"]);
    all.extend(seeds("tests/fuzz", &[".box"]));
    fuzz("black-box", all);
}

#[test]
fn mutated_journals_never_panic() {
    let mut all = seeds("tests/recordings/missing", &[".gz"]);
    for recording in &mut all {
        // A line about the recording precedes the journal.
        let line = recording.iter().position(|&byte| byte == b'\n').unwrap();
        recording.drain(..=line);
    }
    all.extend(seeds("tests/fuzz", &[".ddpj"]));
    fuzz("journal", all);
}

/// What once revealed a fault, as it was then.
#[test]
fn earlier_inputs_neither_panic_nor_hang() {
    let mut paths = Vec::new();
    files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz"), &mut paths);
    assert!(!paths.is_empty());
    for path in paths {
        let (sender, done) = mpsc::channel();
        let input = path.clone();
        std::thread::spawn(move || {
            drop(postmortem::analyze(&[input]));
            sender.send(()).ok();
        });
        let end = done.recv_timeout(2 * HANG);
        assert!(end.is_ok(), "{}: {end:?}", path.display());
    }
}

#[test]
fn mutated_file_names_never_panic() {
    let seeds = ["é_rank_1", "训练rank1.log", "x·rank_1.gz", "训练12é.json", "host1_local_rank_2"]
        .map(|it| it.as_bytes().to_vec());
    let text = dump(&[], &[Entry::new("nccl:all_reduce", "0", 1)]).to_string();
    let dir = tempfile::tempdir().unwrap();
    for number in 0..INPUTS {
        let mut name = input(&seeds, number);
        name.retain(|byte| !matches!(byte, 0 | b'/'));
        name.truncate(200);
        // The name is neither empty nor that of a folder.
        name.push(b'_');
        let path = dir.path().join(OsStr::from_bytes(&name));
        fs::write(&path, &text).unwrap();
        let analysis = postmortem::analyze(&[path]);
        let answers = analysis.reports.len() + analysis.remarks.len();
        assert!(answers > 0, "{name:?}");
    }
}
