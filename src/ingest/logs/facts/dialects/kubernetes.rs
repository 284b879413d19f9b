//! Tables of pods, as `kubectl get pods` prints them: pods that failed, and those that did not start.

use std::sync::Arc;

use ddp_doctor_proto::report::Timestamp;

use crate::ingest::logs::facts::{ExitStatus, Facts, Statement, Subject};
use crate::ingest::logs::lines::{Label, Line, Worker};
use crate::ingest::logs::scan::cut;

/// States of a pod that did not start, or whose node was lost, with what to do.
const STATES: [(&str, &str); 8] = [
    ("Evicted", LOST),
    ("NodeLost", LOST),
    ("Unknown", LOST),
    ("ContainerStatusUnknown", LOST),
    ("Pending", NOT_STARTED),
    ("ContainerCreating", NOT_STARTED),
    ("ImagePullBackOff", NOT_STARTED),
    ("ErrImagePull", NOT_STARTED),
];
const LOST: &str =
    "Find out why its node gave it up (kubectl describe pod, kubectl describe node).";
const NOT_STARTED: &str =
    "The others wait for it at the start: find out why it does not start (kubectl describe pod).";

/// A table that is being read.
#[derive(Debug, Default)]
pub(super) struct Pods {
    is_open: bool,
}

impl Pods {
    /// Reads one line of a process.
    pub(super) fn read(&mut self, line: &Line<'_>, at: Timestamp, facts: &mut Facts) {
        let mut words = line.text.split_whitespace();
        if line.text.contains(" READY ") && words.clone().any(|it| it == "STATUS") {
            self.is_open = true;
            return;
        }
        if !self.is_open {
            return;
        }
        let is_ready = |it: &str| {
            let is_number = |it: &str| !it.is_empty() && it.bytes().all(|it| it.is_ascii_digit());
            it.split_once('/').is_some_and(|(some, all)| is_number(some) && is_number(all))
        };
        // The namespace may precede the name.
        let first: Vec<&str> = words.by_ref().take(4).collect();
        let at_ready = first.iter().position(|it| is_ready(it)).filter(|&it| it > 0);
        let Some((pod, state)) = at_ready.and_then(|it| Some((first[it - 1], *first.get(it + 1)?)))
        else {
            self.is_open = false;
            return;
        };
        self.pod(pod, state, at, facts);
    }

    fn pod(&self, pod: &str, state: &str, at: Timestamp, facts: &mut Facts) {
        let end = match state {
            "OOMKilled" => ExitStatus { for_memory: true, ..ExitStatus::of_status(-9) },
            "Error" | "CrashLoopBackOff" | "StartError" => ExitStatus::default(),
            _ => {
                if let Some((_, next)) = STATES.iter().find(|(it, _)| *it == state) {
                    let text = Arc::from(format!("pod {} is {state}", cut(pod, 128)));
                    let on = Arc::default();
                    let what = Statement::Reported { by: "Kubernetes", on, text, next };
                    facts.add(Subject::default(), at, what);
                }
                return;
            }
        };
        let label = Label { worker: Worker::of_pod(pod), ..Label::default() };
        facts.add(label.into(), at, Statement::Ended(end));
    }
}
