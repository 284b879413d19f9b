//! The timeline as JSON lines: one document per line, in order of time.
//!
//! The kinds of lines are documented in `docs/operations/formats.md`.

use std::io::{self, Write};

use ddp_doctor_proto::report::{Exit, Finding, Report, Timestamp};
use serde_json::{Value, json};

use super::html::write_inert;
use super::timeline::{Curve, Event, TimedCall, Timeline, Track};

/// Name and version of the format, in the first line of each job.
const SCHEMA: (&str, &str) = ("ddp-doctor/timeline", "1.0");

/// What one line is about.
enum Item<'a> {
    Call(&'a Track, &'a TimedCall),
    Mark(&'a Track, &'a Event),
    End(&'a Track, Exit),
    Memory(&'a Track, &'a Curve, u64),
    Finding(&'a Finding),
}

/// Writes the timelines of all jobs, one after the other.
///
/// # Errors
///
/// Fails if `out` cannot be written.
pub fn lines(out: &mut dyn Write, jobs: &[(&Report, &Timeline)]) -> io::Result<()> {
    for &(report, timeline) in jobs {
        let begins = json!({
            "kind": "job",
            "schema": SCHEMA.0,
            "schema_version": SCHEMA.1,
            "job": report.job.id,
            "attempt": report.job.attempt,
            "world_size": report.job.world_size,
            "verdict": report.verdict,
            "calls_omitted": timeline.tracks.iter().map(|it| it.omitted).sum::<u64>(),
        });
        line(out, &begins)?;
        for (at, item) in items(report, timeline) {
            line(out, &document(&report.job.id, at, &item))?;
        }
    }
    Ok(())
}

/// Everything with a time, in order.
fn items<'a>(report: &'a Report, timeline: &'a Timeline) -> Vec<(Timestamp, Item<'a>)> {
    let mut items = Vec::new();
    for track in &timeline.tracks {
        let calls = track.calls.iter();
        items.extend(calls.map(|call| (call.call.at, Item::Call(track, call))));
        let marks = track.marks.iter();
        items.extend(marks.map(|mark| (mark.at, Item::Mark(track, &mark.what))));
        for curve in &track.memory {
            let points = curve.points.iter();
            items.extend(points.map(|&(at, bytes)| (at, Item::Memory(track, curve, bytes))));
        }
        let ended = track.ended.into_iter();
        items.extend(ended.map(|(at, exit)| (at, Item::End(track, exit))));
    }
    let findings = report.findings.iter();
    items.extend(findings.map(|finding| (finding.detected_at, Item::Finding(finding))));
    items.sort_by_key(|(at, _)| *at);
    items
}

fn document(job: &str, at: Timestamp, item: &Item<'_>) -> Value {
    match *item {
        Item::Call(track, call) => {
            let own = json!({
                "thread": call.call.thread.0,
                "group": call.call.group.as_ref().map(|it| &it.key.name),
                "issued_by": if call.call.hidden { "framework" } else { "program" },
                "returned_at": call.returned,
                "wait_began_at": call.wait.map(|it| it.0),
                "wait_ended_at": call.wait.and_then(|it| it.1),
                "wait_inferred": call.inferred,
                "completed_at": call.completed,
            });
            let mut described = json!(call.describe(track.rank));
            if let Some(fields) = described.as_object_mut() {
                // How long it waited follows from the times.
                fields.remove("waited_ms");
            }
            join([of_track("call", job, track, at), described, own])
        }
        Item::Mark(track, what) => {
            let what = match what {
                Event::Step(step) => json!({ "what": "step", "step": step }),
                Event::PhaseBegan(name) => json!({ "what": "phase-began", "name": &**name }),
                Event::PhaseEnded(name) => json!({ "what": "phase-ended", "name": &**name }),
                Event::Exception(text, place) => {
                    json!({ "what": "exception", "text": &**text, "where": place.as_deref() })
                }
                Event::InputEnded => json!({ "what": "input-ended" }),
                Event::Exit(reason) => json!({ "what": "exit", "reason": &**reason }),
            };
            join([of_track("mark", job, track, at), what])
        }
        Item::End(track, exit) => {
            join([of_track("mark", job, track, at), json!({ "what": "ended", "exit": exit })])
        }
        Item::Memory(track, curve, bytes) => join([
            of_track("memory", job, track, at),
            json!({ "name": curve.name, "bytes": bytes }),
        ]),
        Item::Finding(finding) => json!({
            "kind": "finding", "job": job, "at": at, "finding": finding,
        }),
    }
}

fn of_track(kind: &str, job: &str, track: &Track, at: Timestamp) -> Value {
    json!({
        "kind": kind,
        "job": job,
        "at": at,
        "rank": track.rank,
        "host": Some(&*track.host).filter(|it| !it.is_empty()),
        "pid": Some(track.pid).filter(|&pid| pid > 0),
        "layer": &*track.layer,
    })
}

/// One object with the fields of all.
fn join<const N: usize>(objects: [Value; N]) -> Value {
    let fields = objects.into_iter().filter_map(|it| match it {
        Value::Object(fields) => Some(fields),
        _ => None,
    });
    fields.flatten().collect()
}

fn line(out: &mut dyn Write, document: &Value) -> io::Result<()> {
    write_inert(out, document)?;
    writeln!(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    fn written(report: &Report, timeline: &Timeline) -> Vec<Value> {
        let mut out = Vec::new();
        lines(&mut out, &[(report, timeline)]).unwrap();
        let text = String::from_utf8(out).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn calls_marks_and_findings_follow_each_other_in_time() {
        let (report, timeline) = (testing::report(), testing::timeline());
        let lines = written(&report, &timeline);
        assert_eq!(lines[0]["schema"], SCHEMA.0);
        let times: Vec<&str> = lines[1..].iter().map(|it| it["at"].as_str().unwrap()).collect();
        assert!(times.is_sorted(), "{times:?}");
        let count = |kind: &str| lines.iter().filter(|it| it["kind"] == kind).count();
        let calls = timeline.tracks.iter().map(|it| it.calls.len());
        assert_eq!(count("call"), calls.sum::<usize>());
        assert_eq!(count("finding"), report.findings.len());
        let call = lines.iter().find(|it| it["seq"] == 23).unwrap();
        assert_eq!(call["op"], "all_reduce");
        assert_eq!(call["state"], "waiting");
        assert_eq!(call["where"]["line"], 9);
        assert_eq!(call["wait_ended_at"], Value::Null);
        assert_eq!(call["wait_began_at"], "1970-01-01T00:00:08.801Z");
    }

    #[test]
    fn text_of_ranks_stays_in_its_line() {
        let mut report = testing::report();
        report.findings[0].summary = "a\nb\u{2028}c".into();
        let lines = written(&report, &Timeline::default());
        assert_eq!(lines.len(), 1 + report.findings.len());
    }
}
