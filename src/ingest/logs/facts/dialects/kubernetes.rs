//! Tables of pods, as `kubectl get pods` prints them: pods that failed, and those that did not start.

use std::sync::Arc;

use ddp_doctor_proto::report::Timestamp;

use crate::logs::facts::{ExitStatus, Facts, Statement, Subject};
use crate::logs::lines::{Label, Line, Worker};
use crate::logs::scan::{cut, rank};

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
    "Find out why its node evicted or lost it (kubectl describe pod, kubectl describe node).";
const NOT_STARTED: &str =
    "The others wait for it at the start: find out why it does not start (kubectl describe pod).";

/// Maximum number of pods that are listed.
const MAX_LIST: usize = 256;
const FIRST: &str =
    "Find out which of them failed first: kubectl logs, and kubectl describe pod for its state.";

/// A table or a description that is being read.
#[derive(Debug, Default)]
pub(super) struct Pods {
    is_open: bool,
    /// Pods that were killed for lack of memory, and that failed otherwise.
    killed: Vec<String>,
    failed: Vec<String>,
    /// All pods of the table so far have completed.
    have_completed: Option<bool>,
    /// The description states that the container was killed for lack of memory.
    is_killed: bool,
    /// The container has one device, so that the rank of its environment is not that of a node.
    has_one_device: bool,
}

impl Pods {
    /// Reads one line of a process.
    pub(super) fn read(&mut self, line: &Line<'_>, at: Timestamp, facts: &mut Facts) {
        self.description(line.text, at, facts);
        let mut words = line.text.split_whitespace();
        if line.text.contains(" READY ") && words.clone().any(|it| it == "STATUS") {
            self.finish(facts, at);
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
        match at_ready.and_then(|it| Some((first[it - 1], *first.get(it + 1)?))) {
            Some((pod, state)) => self.pod(cut(pod, 128), state, at, facts),
            None => self.finish(facts, at),
        }
    }

    /// Reads a line of "kubectl describe pod": the state of the container, and its rank.
    fn description(&mut self, text: &str, at: Timestamp, facts: &mut Facts) {
        let Some((key, value)) = text.trim().split_once(':') else { return };
        let value = value.trim();
        match key {
            "Name" | "Containers" => (self.is_killed, self.has_one_device) = (false, false),
            "State" => self.is_killed = false,
            "nvidia.com/gpu" => self.has_one_device = value == "1",
            "Reason" => self.is_killed |= value == "OOMKilled",
            "RANK" if self.is_killed && self.has_one_device => {
                let Some(rank) = rank(value) else { return };
                let end = ExitStatus { for_memory: true, ..ExitStatus::of_status(-9) };
                let who = Subject { rank: Some(rank), ..Subject::default() };
                facts.add(who, at, Statement::Ended(end));
            }
            _ => {}
        }
    }

    fn pod(&mut self, pod: &str, state: &str, at: Timestamp, facts: &mut Facts) {
        let has_completed = matches!(state, "Completed" | "Succeeded");
        self.have_completed = Some(self.have_completed.unwrap_or(true) && has_completed);
        let failed = match state {
            "OOMKilled" => &mut self.killed,
            "Error" | "CrashLoopBackOff" | "StartError" => &mut self.failed,
            _ => {
                if let Some((_, next)) = STATES.iter().find(|(it, _)| *it == state) {
                    report(&format!("pod {pod} is {state}"), next, at, facts);
                }
                return;
            }
        };
        if failed.len() < MAX_LIST {
            failed.push(pod.to_owned());
        }
    }

    /// Adds what the end of a table completes: others fail because of a pod that was killed, and which of several
    /// failed first is not stated.
    pub(super) fn finish(&mut self, facts: &mut Facts, at: Timestamp) {
        let Self { killed, failed, have_completed, .. } = std::mem::take(self);
        if have_completed == Some(true) {
            facts.ends_well = Some(facts.line.number);
        }
        let end = |pod: &str, end: ExitStatus, facts: &mut Facts| {
            let label = Label { worker: Worker::of_pod(pod), ..Label::default() };
            facts.add(label.into(), at, Statement::Ended(end));
        };
        for pod in &killed {
            let how = ExitStatus { for_memory: true, ..ExitStatus::of_status(-9) };
            end(pod, how, facts);
        }
        match &failed[..] {
            [] => {}
            _ if !killed.is_empty() => {}
            [pod] => end(pod, ExitStatus::default(), facts),
            pods => report(&format!("pods {} failed", pods.join(", ")), FIRST, at, facts),
        }
    }
}

fn report(text: &str, next: &'static str, at: Timestamp, facts: &mut Facts) {
    let (on, text) = (Arc::default(), cut(text, 400).into());
    let what = Statement::Reported { by: "Kubernetes", on, text, next };
    facts.add(Subject::default(), at, what);
}
