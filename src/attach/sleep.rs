//! How long threads have been asleep.
//!
//! `/proc/PID/task/TID/sched` states when a thread last ran, on a clock of the processor that it ran on. These
//! clocks leave out the time that a hypervisor took from a processor, so that they differ: the current time is
//! that of a thread of this process on the same processor. Kernels without this file (`CONFIG_SCHED_DEBUG`), and
//! processors that this process may not use, give no duration.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use ddp_doctor_host::sys;

/// The clocks of the processors that were read so far, in nanoseconds.
#[derive(Debug, Default)]
pub struct ProcessorClocks(BTreeMap<u32, Option<Duration>>);

impl ProcessorClocks {
    /// Time since a thread last ran; `None` if it is unknown.
    pub fn asleep(&mut self, pid: u32, tid: u32) -> Option<Duration> {
        let directory = format!("/proc/{pid}/task/{tid}");
        let ran = last_run(&format!("{directory}/sched"))?;
        let processor = processor_of(&fs::read_to_string(format!("{directory}/stat")).ok()?)?;
        let now = *self.0.entry(processor).or_insert_with(|| now_on(processor));
        Some(now?.saturating_sub(ran))
    }
}

/// The current time of a processor's clock.
fn now_on(processor: u32) -> Option<Duration> {
    let read = move || {
        sys::use_processor(processor).ok()?;
        // The kernel updates the time of a running thread when it is scheduled again.
        std::thread::sleep(Duration::from_millis(1));
        last_run("/proc/thread-self/sched")
    };
    std::thread::Builder::new().spawn(read).ok()?.join().ok()?
}

/// Time at which the thread of a `sched` file last ran.
fn last_run(file: &str) -> Option<Duration> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("se.exec_start"))?;
    let milliseconds: f64 = line.trim().strip_prefix(':')?.trim().parse().ok()?;
    Duration::try_from_secs_f64(milliseconds / 1e3).ok()
}

/// The processor that a thread last ran on, from `/proc/PID/task/TID/stat`.
fn processor_of(stat: &str) -> Option<u32> {
    let fields: Vec<&str> = stat[stat.rfind(')')? + 1..].split_ascii_whitespace().collect();
    // `fields[0]` is field 3 of proc(5).
    fields.get(39 - 3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Instant;

    use super::*;

    #[test]
    fn sleeping_thread_has_slept_since_it_last_ran() {
        if last_run("/proc/thread-self/sched").is_none() {
            return;
        }
        let (done, wait) = channel::<()>();
        let started = Instant::now();
        let thread =
            std::thread::Builder::new().name("asleep".into()).spawn(move || wait.recv()).unwrap();
        let pid = std::process::id();
        let asleep = || {
            let tasks = ddp_doctor_node::stack_reader::tasks::list(pid).unwrap().0;
            let task = tasks.iter().find(|it| it.name == "asleep")?;
            ProcessorClocks::default().asleep(pid, task.tid)
        };
        // On a busy processor, it begins late.
        while asleep().is_none_or(|it| it < Duration::from_millis(250)) {
            assert!(started.elapsed() < Duration::from_secs(60), "{:?}", asleep());
            std::thread::sleep(Duration::from_millis(20));
        }
        let (slept, at_most) = (asleep().unwrap(), started.elapsed() + Duration::from_secs(1));
        assert!(slept < at_most, "{slept:?}, and it began {at_most:?} ago");
        drop(done);
        thread.join().unwrap().unwrap_err();
    }

    #[test]
    fn processor_is_field_39() {
        let stat = format!("7 (a) b) S {}5 0", "0 ".repeat(35));
        assert_eq!(processor_of(&stat), Some(5));
        assert_eq!(processor_of("7 (a"), None);
    }
}
