//! The timeline in the JSON trace event format, which <https://ui.perfetto.dev> opens.
//!
//! Format: "Trace Event Format", Chrome project. One process holds all ranks of a job, one thread
//! each; the first thread of a rank's process is the track of the rank, further threads follow it.
//! Times are microseconds since the beginning of the timeline.

use std::collections::BTreeMap;
use std::io::{self, Write};

use ddp_doctor_proto::report::{Finding, Report, Timestamp};
use ddp_doctor_proto::words::call_text;
use serde_json::{Value, json};

use super::html::write_inert;
use super::timeline::{Event, TimedCall, Timeline, Track};

/// Maximum number of arrows from a finding to calls.
const MAX_ARROWS: usize = 64;
/// Distance of the process numbers of two jobs, and of the processes of one job.
const PROCESSES: u64 = 10;
/// Distance of the track numbers of two ranks: a rank has fewer processes and threads.
const THREADS: u64 = 1000;

/// Writes the trace of all jobs.
///
/// # Errors
///
/// Fails if `out` cannot be written.
pub fn trace(out: &mut dyn Write, jobs: &[(&Report, &Timeline)]) -> io::Result<()> {
    let ids: Vec<&str> = jobs.iter().map(|(report, _)| report.job.id.as_str()).collect();
    let begins = jobs.iter().map(|(_, timeline)| timeline.begins());
    let about = json!({
        "tool": "ddp-doctor",
        "version": ddp_doctor_proto::VERSION,
        "jobs": ids,
        "begins": begins.collect::<Vec<Timestamp>>(),
    });
    write!(out, "{{\"displayTimeUnit\":\"ms\",\"otherData\":")?;
    write_inert(out, &about)?;
    write!(out, ",\"traceEvents\":[")?;
    let mut is_first = true;
    for (number, &(report, timeline)) in (1..).zip(jobs) {
        let mut job =
            TracedJob { process: number * PROCESSES, begins: timeline.begins(), out, is_first };
        job.findings(report, timeline)?;
        job.ranks(report, timeline)?;
        job.memory(report, timeline)?;
        is_first = job.is_first;
    }
    writeln!(out, "\n]}}")
}

struct TracedJob<'a> {
    /// Number of the process that holds the ranks; memory and findings have the next ones.
    process: u64,
    begins: Timestamp,
    out: &'a mut dyn Write,
    is_first: bool,
}

impl TracedJob<'_> {
    fn push(&mut self, event: &Value) -> io::Result<()> {
        let separator = if self.is_first { "\n" } else { ",\n" };
        self.is_first = false;
        write!(self.out, "{separator}")?;
        write_inert(self.out, event)
    }

    /// Microseconds since the beginning of the timeline.
    fn time(&self, at: Timestamp) -> f64 {
        at.since(self.begins).as_nanos() as f64 / 1e3
    }

    /// Names a process or, with a track, a thread.
    fn name(&mut self, process: u64, track: Option<u64>, name: &str, order: u64) -> io::Result<()> {
        let (kind, sort) = match track {
            None => ("process_name", "process_sort_index"),
            Some(_) => ("thread_name", "thread_sort_index"),
        };
        for (kind, args) in
            [(kind, json!({ "name": name })), (sort, json!({ "sort_index": order }))]
        {
            let mut event = json!({ "ph": "M", "name": kind, "pid": process, "args": args });
            if let Some(track) = track {
                event["tid"] = json!(track);
            }
            self.push(&event)?;
        }
        Ok(())
    }

    fn ranks(&mut self, report: &Report, timeline: &Timeline) -> io::Result<()> {
        let title = format!("{}: job {}", report.verdict, report.job.id);
        self.name(self.process, None, &title, self.process)?;
        for (track, threads) in numbered(timeline) {
            for (&thread, &number) in &threads {
                let first = threads.values().min() == Some(&number);
                let mut name = format!("rank {}", track.rank);
                if !first {
                    name.push_str(&format!(", thread {thread}"));
                }
                self.name(self.process, Some(number), &name, number)?;
                let calls: Vec<&TimedCall> =
                    track.calls.iter().filter(|it| it.call.thread.0 == thread).collect();
                self.calls(track, timeline, number, &calls)?;
            }
            let first = threads.values().min().copied().unwrap_or_default();
            self.marks(track, first)?;
        }
        Ok(())
    }

    /// The slices of one thread: calls and waits, in the order in which they began. Slices of a thread
    /// have to be nested: one that ends inside a later one is cut where that begins.
    fn calls(
        &mut self,
        track: &Track,
        timeline: &Timeline,
        number: u64,
        calls: &[&TimedCall],
    ) -> io::Result<()> {
        let until = track.until(timeline);
        let mut slices: Vec<(Timestamp, Option<Timestamp>, bool, &TimedCall)> = Vec::new();
        for &call in calls {
            let complete = call.is_complete.then_some(call.call.at);
            let ended = call.returned.or(call.completed).or(complete);
            slices.push((call.call.at, ended, false, call));
            if let Some((began, ended)) = call.wait {
                let began = began.max(call.returned.unwrap_or(began));
                slices.push((began, ended, true, call));
            }
        }
        slices.sort_by_key(|&(began, _, is_wait, _)| (began, is_wait));
        // DDP waits for all buckets of a backward pass at once.
        slices.dedup_by(|a, b| a.2 && b.2 && a.1.is_some() && (a.0, a.1) == (b.0, b.1));
        let end_of = |at: usize| {
            let (began, ended, ..) = slices[at];
            ended.unwrap_or(until).max(began)
        };
        for (index, &(began, ended, is_wait, call)) in slices.iter().enumerate() {
            let own = end_of(index);
            let mut inside = (index + 1..slices.len()).take_while(|&at| slices[at].0 < own);
            let crossing = inside.find(|&at| end_of(at) > own);
            let end = crossing.map_or(own, |at| slices[at].0);
            let entry = call.describe(track.rank);
            let text = call_text(&entry);
            let name = if is_wait { format!("wait: {text}") } else { text };
            let group = call.call.group.as_deref();
            let place = call.call.place.as_deref();
            let args = json!({
                "op": entry.op,
                "group": group.map(|it| &it.key.name),
                "seq": entry.seq,
                "step": entry.step,
                "line": place.map(|it| format!("{}:{}", it.file, it.line)),
                "function": place.map(|it| &it.function),
                "state": call.state(),
                "ended": ended.is_some(),
                "inferred": is_wait && call.inferred,
                "issued_by": if call.call.hidden { "framework" } else { "program" },
            });
            self.push(&json!({
                "ph": "X",
                "cat": if is_wait { "wait" } else { "call" },
                "name": name,
                "pid": self.process,
                "tid": number,
                "ts": self.time(began),
                "dur": end.since(began).as_nanos() as f64 / 1e3,
                "args": args,
            }))?;
        }
        Ok(())
    }

    /// Steps, phases, exceptions and the end of a process, as instants.
    fn marks(&mut self, track: &Track, number: u64) -> io::Result<()> {
        let mut instants: Vec<(Timestamp, String)> = Vec::new();
        for mark in &track.marks {
            let text = match &mark.what {
                Event::Step(step) => format!("step {step}"),
                Event::PhaseBegan(name) => format!("{name} begins"),
                Event::PhaseEnded(name) => format!("{name} ends"),
                Event::Exception(text, _) => format!("exception: {text}"),
                Event::InputEnded => "input exhausted".to_owned(),
                Event::Exit(how) => format!("exit: {how}"),
            };
            instants.push((mark.at, text));
        }
        if let Some((at, exit)) = track.ended {
            instants.push((at, super::text::ended(exit)));
        }
        for (at, text) in instants {
            let instant = self.instant(self.process, number, "mark", &text, at);
            self.push(&instant)?;
        }
        Ok(())
    }

    fn instant(&self, process: u64, track: u64, cat: &str, name: &str, at: Timestamp) -> Value {
        json!({
            "ph": "i", "s": "t", "cat": cat, "name": name,
            "pid": process, "tid": track, "ts": self.time(at),
        })
    }

    fn memory(&mut self, report: &Report, timeline: &Timeline) -> io::Result<()> {
        let process = self.process + 1;
        if timeline.tracks.iter().all(|it| it.memory.is_empty()) {
            return Ok(());
        }
        let title = format!("memory: job {}", report.job.id);
        self.name(process, None, &title, process)?;
        for track in &timeline.tracks {
            for curve in &track.memory {
                let name = format!("rank {} {}", track.rank, curve.name);
                for &(at, bytes) in &curve.points {
                    self.push(&json!({
                        "ph": "C", "name": name, "pid": process, "ts": self.time(at),
                        "args": { "bytes": bytes },
                    }))?;
                }
            }
        }
        Ok(())
    }

    /// Findings as slices on a track of their own, with arrows to the calls in which ranks wait,
    /// and as instants on the tracks of the root cause ranks.
    fn findings(&mut self, report: &Report, timeline: &Timeline) -> io::Result<()> {
        let process = self.process + 2;
        if report.findings.is_empty() {
            return Ok(());
        }
        let title = format!("findings: job {}", report.job.id);
        // Above the ranks.
        self.name(process, None, &title, self.process - 1)?;
        let tracks: BTreeMap<u32, u64> = numbered(timeline)
            .into_iter()
            .filter_map(|(track, threads)| Some((track.rank, *threads.values().min()?)))
            .collect();
        for (index, finding) in (1..).zip(&report.findings) {
            let name = format!("{} {}", finding.code, finding.name);
            self.name(process, Some(index), &name, index)?;
            let began = finding.blocked_at.unwrap_or(finding.detected_at);
            let until = timeline.until.max(began);
            self.push(&json!({
                "ph": "X", "cat": "finding", "name": name,
                "pid": process, "tid": index,
                "ts": self.time(began),
                "dur": until.since(began).as_nanos() as f64 / 1e3,
                "args": {
                    "headline": finding.title(),
                    "summary": finding.summary,
                    "severity": finding.severity,
                    "confidence": finding.confidence,
                    "root": finding.ranks.root,
                    "why": finding.why,
                    "fix": finding.next,
                    "detected_at": finding.detected_at,
                },
            }))?;
            for rank in &finding.ranks.root {
                if let Some(&track) = tracks.get(rank) {
                    let instant = self.instant(self.process, track, "finding", &name, began);
                    self.push(&instant)?;
                }
            }
            self.arrows(index, finding, timeline, began)?;
        }
        Ok(())
    }

    fn arrows(
        &mut self,
        index: u64,
        finding: &Finding,
        timeline: &Timeline,
        began: Timestamp,
    ) -> io::Result<()> {
        let group = finding.group.as_ref().map(|it| it.name.as_str());
        let calls = finding.per_rank.iter().filter_map(|entry| {
            let track = timeline.track(entry.rank)?;
            let call = track.calls.iter().rev().find(|call| call.is(entry, group))?;
            Some((entry.rank, track, call))
        });
        let numbers = numbered(timeline);
        // A process may have ended before the finding.
        let lasts = |track: &Track| track.until(timeline) >= began;
        let calls = calls.filter(|(_, track, call)| call.is_open() && lasts(track));
        for (nth, (rank, track, call)) in calls.take(MAX_ARROWS).enumerate() {
            let known = numbers.iter().find(|(it, _)| std::ptr::eq(*it, track));
            let Some(number) = known.and_then(|(_, it)| it.get(&call.call.thread.0)) else {
                continue;
            };
            let since = call.wait.map_or(call.call.at, |(since, _)| since);
            let id = format!("{}-{index}-{nth}", self.process);
            let name = format!("{} rank {rank}", finding.code);
            let arrow = |ph: &str, process: u64, track: u64, at: f64| {
                json!({
                    "ph": ph, "bp": "e", "id": id, "cat": "finding", "name": name,
                    "pid": process, "tid": track, "ts": at,
                })
            };
            // An arrow must not point back in time.
            let at = since.max(began);
            let (from, to) = (
                arrow("s", self.process + 2, index, self.time(began)),
                arrow("f", self.process, *number, self.time(at)),
            );
            self.push(&from)?;
            self.push(&to)?;
        }
        Ok(())
    }
}

/// Tracks with the numbers of their threads. Numbers of a rank are consecutive, beginning with the
/// thread that made the first call of its first process.
fn numbered(timeline: &Timeline) -> Vec<(&Track, BTreeMap<u32, u64>)> {
    let mut used: BTreeMap<u32, u64> = BTreeMap::new();
    let mut numbered = Vec::new();
    for track in &timeline.tracks {
        let next = used.entry(track.rank).or_insert(0);
        let mut threads = BTreeMap::new();
        let first = track.calls.is_empty().then_some(0);
        for thread in track.calls.iter().map(|it| it.call.thread.0).chain(first) {
            threads.entry(thread).or_insert_with(|| {
                let number = (u64::from(track.rank) + 1) * THREADS + *next;
                *next = (*next + 1).min(THREADS - 1);
                number
            });
        }
        numbered.push((track, threads));
    }
    numbered
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{self, MARKUP};

    fn events(report: &Report, timeline: &Timeline) -> Vec<Value> {
        let mut out = Vec::new();
        trace(&mut out, &[(report, timeline)]).unwrap();
        let trace: Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(trace["displayTimeUnit"], "ms");
        trace["traceEvents"].as_array().unwrap().clone()
    }

    #[test]
    fn open_wait_of_a_rank_ends_with_the_evidence() {
        let events = events(&testing::report(), &testing::timeline());
        let slices: Vec<&Value> =
            events.iter().filter(|it| it["cat"] == "wait" && it["tid"] == 1000).collect();
        let times: Vec<_> = slices.iter().map(|it| (&it["ts"], &it["dur"])).collect();
        // In microseconds since 1 s; the evidence ends at 10 s.
        let (first, last) = ((7_001_000.0, 199_000.0), (7_801_000.0, 1_199_000.0));
        assert_eq!(times, [(&json!(first.0), &json!(first.1)), (&json!(last.0), &json!(last.1))]);
        assert_eq!(slices[1]["name"], "wait: all_reduce #23 float32[4680]");
        assert_eq!(slices[1]["args"]["ended"], false);
        let names: Vec<&Value> = events
            .iter()
            .filter(|it| it["name"] == "thread_name" && it["pid"] == 10)
            .map(|it| &it["args"]["name"])
            .collect();
        assert_eq!(names, ["rank 0", "rank 1", "rank 2"]);
    }

    #[test]
    fn finding_points_at_waiting_ranks_and_marks_its_root() {
        let events = events(&testing::report(), &testing::timeline());
        let ends = |phase: &str| -> Vec<u64> {
            let flows = events.iter().filter(|it| it["ph"] == phase);
            flows.map(|it| it["tid"].as_u64().unwrap()).collect()
        };
        assert_eq!((ends("s"), ends("f")), (vec![1, 1], vec![1000, 3000]));
        let root = events.iter().find(|it| it["ph"] == "i" && it["cat"] == "finding").unwrap();
        assert_eq!((&root["name"], &root["tid"]), (&json!("DD102 early-exit"), &json!(2000)));
        let counters = events.iter().filter(|it| it["ph"] == "C").count();
        assert_eq!(counters, 6);
    }

    /// Beginnings and durations of the slices of rank 0, which must be nested.
    fn nested(timeline: &Timeline) -> Vec<(f64, f64)> {
        let events = events(&testing::report(), timeline);
        let slices = events.iter().filter(|it| it["ph"] == "X" && it["tid"] == 1000);
        let mut around: Vec<f64> = Vec::new();
        let mut found = Vec::new();
        for slice in slices {
            let (began, dur) = (slice["ts"].as_f64(), slice["dur"].as_f64());
            let (began, dur) = (began.unwrap(), dur.unwrap());
            around.retain(|&until| until > began);
            let fits = around.iter().all(|&until| began + dur <= until + 0.001);
            assert!(fits, "{slice}");
            around.push(began + dur);
            found.push((began, dur));
        }
        found
    }

    #[test]
    fn slices_of_a_thread_are_nested() {
        let mut timeline = testing::timeline();
        // The first call returns only after the second was issued, and before the wait for that ends.
        timeline.tracks[0].calls[0].returned = Some(Timestamp(8_900_000_000));
        let slices = nested(&timeline);
        assert_eq!(slices[0], (7_000_000.0, 801_000.0));
    }

    #[test]
    fn call_without_a_time_of_its_return_lasts_until_it_is_complete() {
        let mut timeline = testing::timeline();
        let first = timeline.tracks[0].calls[0].clone();
        let timed = |ms: u64, completed: Option<u64>, is_complete| {
            let at = Timestamp(ms * 1_000_000);
            let mut call = first.clone();
            call.call = std::sync::Arc::new(testing::call(ms, at));
            (call.returned, call.wait, call.is_complete) = (None, None, is_complete);
            call.completed = completed.map(|ms| Timestamp(ms * 1_000_000));
            call
        };
        timeline.tracks[0].calls = vec![
            timed(8000, Some(8100), true),
            timed(8200, None, true),
            timed(8300, None, false),
            timed(8400, None, false),
        ];
        let expected = [
            (7_000_000.0, 100_000.0),
            (7_200_000.0, 0.0),
            (7_300_000.0, 1_700_000.0),
            (7_400_000.0, 1_600_000.0),
        ];
        assert_eq!(nested(&timeline), expected);
        let states: Vec<String> = timeline.tracks[0]
            .calls
            .iter()
            .map(TimedCall::state)
            .map(|it| it.to_string())
            .collect();
        assert_eq!(states, ["completed", "completed", "issued", "issued"]);
    }

    #[test]
    fn text_of_ranks_is_plain() {
        let mut report = testing::report();
        report.job.id = format!("{MARKUP}\x1b[2J");
        let mut out = Vec::new();
        trace(&mut out, &[(&report, &testing::timeline())]).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(!text.contains(['<', '\x1b']));
        assert!(serde_json::from_str::<Value>(&text).is_ok());
    }
}
