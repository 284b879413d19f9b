//! The metrics of a coordinator. `docs/operations/metrics.md` describes them.

use std::collections::BTreeSet;

use ddp_doctor_coordinator::summary::{JobState, State};
use ddp_doctor_host::names;
use ddp_doctor_proto::VERSION;
use ddp_doctor_proto::report::{RankState, Timestamp, Verdict};

use super::exposition::{Kind, Metric, Page};
use super::webhook::Counts;

/// No labels.
const NONE: [(&str, &str); 0] = [];
/// Label of the job. Prometheus itself uses the label `job`, for the name of a scrape configuration.
const JOB: &str = "training_job";

macro_rules! metrics {
    ($($constant:ident $name:literal $kind:ident $help:literal;)*) => {
        $(const $constant: Metric = Metric { name: $name, kind: Kind::$kind, help: $help };)*
        /// All metrics. Their names are stable.
        pub const ALL: &[Metric] = &[$($constant),*];
    };
}

metrics! {
    BUILD "ddp_doctor_build_info" Gauge
        "Version of the coordinator, in a label; always 1.";
    STARTED "ddp_doctor_start_time_seconds" Gauge
        "Time the coordinator was started, Unix time.";
    JOBS "ddp_doctor_jobs" Gauge
        "Jobs that the coordinator keeps, by state. Ended jobs are kept for an hour.";
    JOBS_SEEN "ddp_doctor_jobs_started_total" Counter
        "Jobs that began since the start of the coordinator.";
    RUNNING "ddp_doctor_job_running" Gauge
        "Whether the job is running (1) or has ended (0).";
    CURRENT "ddp_doctor_job_current" Gauge
        "Whether the other metrics of the job are of this moment (1), or older because its diagnosis did not answer in time (0).";
    BEGAN "ddp_doctor_job_start_time_seconds" Gauge
        "Time the job began, Unix time.";
    ENDED "ddp_doctor_job_end_time_seconds" Gauge
        "Time the job ended, Unix time; only for ended jobs.";
    VERDICT "ddp_doctor_job_verdict" Gauge
        "Verdict of the diagnosis: 1 for the current verdict, 0 for the others.";
    FINDINGS "ddp_doctor_job_findings" Gauge
        "Initiating findings that currently hold, by code and severity.";
    RANKS "ddp_doctor_job_ranks" Gauge
        "Ranks that were seen, by state.";
    EXPECTED "ddp_doctor_job_ranks_expected" Gauge
        "World size of the job, once known.";
    NODES "ddp_doctor_job_nodes_connected" Gauge
        "Nodes of the job that are connected to the coordinator.";
    STEP "ddp_doctor_job_step" Gauge
        "Lowest training step of the ranks that have not ended, if the job marks steps.";
    RECORDS "ddp_doctor_job_records_total" Counter
        "Records read from the ranks of the job.";
    LOST "ddp_doctor_job_records_lost_total" Counter
        "Records of the job that were overwritten before they were read.";
    MESSAGES "ddp_doctor_webhook_messages_total" Counter
        "Messages to the webhook, by result; only with --webhook.";
    QUEUED "ddp_doctor_webhook_queued" Gauge
        "Messages that wait for the webhook; only with --webhook.";
}

/// The page of metrics.
#[must_use]
pub fn page(state: &State, started: Timestamp, webhook: Option<Counts>) -> String {
    let mut page = Page::default();
    page.metric(&BUILD, [([("version", VERSION)], 1)]);
    page.metric(&STARTED, [(NONE, seconds(started))]);
    let running = state.jobs.iter().filter(|job| job.is_running).count();
    let ended = state.jobs.len() - running;
    page.metric(&JOBS, [([("state", "running")], running), ([("state", "ended")], ended)]);
    page.metric(&JOBS_SEEN, [(NONE, state.jobs_started)]);
    jobs(&mut page, &state.jobs);
    if let Some(counts) = webhook {
        let results =
            [([("result", "sent")], counts.sent), ([("result", "dropped")], counts.dropped)];
        page.metric(&MESSAGES, results);
        page.metric(&QUEUED, [(NONE, counts.queued)]);
    }
    page.into_text()
}

/// Of several jobs with one label, only the newest is shown: samples must be unique.
fn jobs(page: &mut Page, jobs: &[JobState]) {
    let mut seen = BTreeSet::new();
    let labeled = jobs.iter().map(|job| (names::file_name(&job.id), job));
    let jobs: Vec<(String, &JobState)> =
        labeled.filter(|(label, _)| seen.insert(label.clone())).collect();
    let each = |value: fn(&JobState) -> Option<f64>| {
        jobs.iter().filter_map(move |(label, job)| Some(([(JOB, label.as_str())], value(job)?)))
    };
    page.metric(&RUNNING, each(|job| Some(f64::from(u8::from(job.is_running)))));
    page.metric(&CURRENT, each(|job| Some(f64::from(u8::from(job.is_current)))));
    page.metric(&BEGAN, each(|job| job.summary.as_ref()?.started_at.map(seconds)));
    page.metric(&ENDED, each(|job| job.summary.as_ref()?.ended_at.map(seconds)));
    let summaries =
        || jobs.iter().filter_map(|(label, job)| Some((label.as_str(), job.summary.as_ref()?)));
    let verdicts = summaries().flat_map(|(label, summary)| {
        VERDICTS.iter().map(move |&verdict| {
            let labels = [(JOB, label), ("verdict", verdict.as_str())];
            (labels, u8::from(summary.verdict == verdict))
        })
    });
    page.metric(&VERDICT, verdicts);
    let findings = summaries().flat_map(|(label, summary)| {
        summary.findings.iter().map(move |((code, severity), count)| {
            let labels = [(JOB, label), ("code", code.as_str()), ("severity", severity.as_str())];
            (labels, count)
        })
    });
    page.metric(&FINDINGS, findings);
    let ranks = summaries().flat_map(|(label, summary)| {
        STATES.iter().map(move |&state| {
            let labels = [(JOB, label), ("state", state.as_str())];
            (labels, summary.ranks.get(&state).copied().unwrap_or(0))
        })
    });
    page.metric(&RANKS, ranks);
    page.metric(&EXPECTED, each(|job| job.summary.as_ref()?.ranks_expected.map(f64::from)));
    page.metric(&NODES, each(|job| Some(job.nodes as f64)));
    page.metric(&STEP, each(|job| Some(job.summary.as_ref()?.step? as f64)));
    page.metric(&RECORDS, each(|job| Some(job.summary.as_ref()?.records as f64)));
    page.metric(&LOST, each(|job| Some(job.summary.as_ref()?.records_lost as f64)));
}

const VERDICTS: [Verdict; 6] = [
    Verdict::Healthy,
    Verdict::Hang,
    Verdict::Crash,
    Verdict::Wrong,
    Verdict::Slow,
    Verdict::Insufficient,
];

const STATES: [RankState; 6] = [
    RankState::Running,
    RankState::Waiting,
    RankState::Stopped,
    RankState::Exited,
    RankState::Dead,
    RankState::Unknown,
];

/// Unix time in seconds.
fn seconds(at: Timestamp) -> f64 {
    (at.0 / 1_000_000) as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use ddp_doctor_coordinator::summary::Summary;
    use ddp_doctor_report::testing::report;

    fn job(id: &str, is_current: bool) -> JobState {
        JobState {
            id: id.into(),
            summary: Some(Summary::new(&report())),
            nodes: 2,
            is_running: true,
            is_current,
        }
    }

    fn page_of(jobs: Vec<JobState>) -> String {
        let state = State { jobs, jobs_started: 3 };
        page(&state, Timestamp(1_500_000_000), None)
    }

    #[test]
    fn of_jobs_with_one_label_the_newest_is_shown() {
        let text = page_of(vec![job("a/b", false), job("a:b", true), job("c", true)]);
        let current: Vec<&str> =
            text.lines().filter(|it| it.starts_with("ddp_doctor_job_current{")).collect();
        let expected = [
            "ddp_doctor_job_current{training_job=\"a_b\"} 0",
            "ddp_doctor_job_current{training_job=\"c\"} 1",
        ];
        assert_eq!(current, expected);
        assert!(text.contains("ddp_doctor_start_time_seconds 1.5\n"), "{text}");
        let mut samples: Vec<&str> = text.lines().filter(|it| !it.starts_with('#')).collect();
        let count = samples.len();
        samples.sort_unstable();
        samples.dedup_by_key(|it| it.split(' ').next());
        assert_eq!(samples.len(), count, "{text}");
    }

    #[test]
    fn series_of_a_job_are_bounded() {
        let series = |jobs| page_of(jobs).lines().filter(|it| !it.starts_with('#')).count();
        let (one, two) =
            (series(vec![job("a", true)]), series(vec![job("a", true), job("b", true)]));
        assert!(two - one < 40, "{}", two - one);
        let silent = JobState { summary: None, ..job("a", false) };
        assert_eq!(series(vec![silent]) - series(Vec::new()), 3);
    }
}
