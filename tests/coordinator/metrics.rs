//! Metrics of a coordinator: what Prometheus reads, and that hostile readers disturb neither it nor a job.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use ddp_doctor::monitoring::metrics;
use ddp_doctor_proto::report::Verdict;
use serde_json::Value;
use tempfile::TempDir;

use super::job_names::Nodes;
use crate::support::compiled_programs::{flood, sum};
use crate::support::coordinator::Coordinator;
use crate::support::healthy_job::HealthyJob;
use crate::support::process::{eventually, free_port, program, run_to_end};

/// Time limit for the answer to a request.
pub(super) const ANSWER: Duration = Duration::from_secs(30);

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Address of the metrics in a text on standard error; `None`: not printed yet.
fn metrics_address(stderr: &str) -> Option<String> {
    let line = stderr.lines().find_map(|it| it.split_once("ddp-doctor: metrics at "))?;
    Some(line.1.strip_suffix("/metrics (HTTP)")?.to_owned())
}

pub(super) fn coordinator(options: &[&str]) -> (Coordinator, String) {
    let coordinator = Coordinator::start_with(&[&["--metrics", "127.0.0.1:0"], options].concat());
    let address = metrics_address(&coordinator.stderr()).unwrap();
    (coordinator, address)
}

/// Sends bytes and returns the answer, if there is one.
fn exchange(address: &str, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(ANSWER)).unwrap();
    let mut answer = Vec::new();
    // The server may close the connection before it has read everything.
    stream.write_all(request).ok();
    stream.read_to_end(&mut answer).ok();
    String::from_utf8_lossy(&answer).into_owned()
}

fn get(address: &str, path: &str) -> String {
    get_with(address, path, "")
}

/// Gets a page with another line in the head of the request.
fn get_with(address: &str, path: &str, line: &str) -> String {
    exchange(address, format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n{line}\r\n").as_bytes())
}

/// The page of metrics.
#[track_caller]
pub(super) fn page(address: &str) -> String {
    let answer = get(address, "/metrics");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.contains("content-type: text/plain; version=0.0.4; charset=utf-8"), "{head}");
    body.to_owned()
}

/// Processes that are killed when the test ends.
pub(super) struct Killed(pub(super) Vec<Child>);

impl Drop for Killed {
    fn drop(&mut self) {
        for child in &mut self.0 {
            child.kill().ok();
            child.wait().ok();
        }
    }
}

/// Starts two linked ranks that report to a coordinator. With a fault, they hang at step 20.
pub(super) fn ranks(coordinator: &Coordinator, job: &str, hangs: bool) -> Killed {
    let port = free_port().to_string();
    let arguments: &[&str] = if hangs { &["100", "20"] } else { &["4000"] };
    let rank = |rank: &str| {
        let mut command = Command::new(sum());
        command
            .args(arguments)
            .envs([("RANK", rank), ("WORLD_SIZE", "2"), ("DDP_DOCTOR_JOB", job)])
            .envs([("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", port.as_str())])
            .env("DDP_DOCTOR_COORDINATOR", coordinator.address())
            .stdout(Stdio::null());
        command.spawn().unwrap()
    };
    Killed(vec![rank("0"), rank("1")])
}

/// Whether a tool is installed; prints that the test is skipped if not.
fn has(tool: &str) -> bool {
    let found = Command::new(tool).arg("--version").output().is_ok();
    if !found {
        println!("skipped: {tool} is not installed (Debian: prometheus)");
    }
    found
}

fn promtool(arguments: &[&str], input: &str) {
    let mut child = Command::new("promtool")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = [output.stdout, output.stderr].map(|it| String::from_utf8_lossy(&it).into_owned());
    assert!(output.status.success(), "{text:?}");
}

/// A Prometheus that scrapes an address every second, with the rules of the repository.
struct Prometheus {
    address: String,
    _process: Killed,
    _dir: TempDir,
}

impl Prometheus {
    fn start(target: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let rules = root().join("docs/operations/prometheus/rules.yml");
        let config = format!(
            "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: [{}]\n\
             scrape_configs: [{{job_name: ddp-doctor, static_configs: [{{targets: ['{target}']}}]}}]\n",
            rules.display()
        );
        fs::write(dir.path().join("prometheus.yml"), config).unwrap();
        let address = format!("127.0.0.1:{}", free_port());
        let child = Command::new("prometheus")
            .arg("--config.file=prometheus.yml")
            .arg("--storage.tsdb.path=data")
            .arg(format!("--web.listen-address={address}"))
            .current_dir(dir.path())
            .stderr(fs::File::create(dir.path().join("log")).unwrap())
            .spawn()
            .unwrap();
        Self { address, _process: Killed(vec![child]), _dir: dir }
    }

    /// The data of an answer of its API; `None`: it does not answer yet.
    fn api(&self, path: &str) -> Option<Value> {
        TcpStream::connect(&self.address).ok()?;
        let request = format!("GET /api/v1/{path} HTTP/1.0\r\n\r\n");
        let response = exchange(&self.address, request.as_bytes());
        let answer: Value = serde_json::from_str(response.split_once("\r\n\r\n")?.1).ok()?;
        Some(answer["data"].clone())
    }

    /// The values of a metric with their labels.
    fn values(&self, query: &str) -> Vec<(Value, String)> {
        let data = self.api(&format!("query?query={query}")).unwrap_or_default();
        let samples = data["result"].as_array().cloned().unwrap_or_default();
        let value = |it: &Value| it["value"][1].as_str().unwrap().to_owned();
        samples.iter().map(|it| (it["metric"].clone(), value(it))).collect()
    }

    /// Names and jobs of the alerts that fire.
    fn alerts(&self) -> Vec<(String, String)> {
        let data = self.api("alerts").unwrap_or_default();
        let alerts = data["alerts"].as_array().cloned().unwrap_or_default();
        let text = |it: &Value| it.as_str().unwrap_or_default().to_owned();
        let mut alerts: Vec<_> = alerts
            .iter()
            .filter(|it| it["state"] == "firing")
            .map(|it| (text(&it["labels"]["alertname"]), text(&it["labels"]["training_job"])))
            .collect();
        alerts.sort();
        alerts
    }
}

#[test]
fn prometheus_alerts_about_the_hanging_job_only() {
    if !has("prometheus") {
        return;
    }
    let (coordinator, address) = coordinator(&[]);
    let prometheus = Prometheus::start(&address);
    let healthy = ranks(&coordinator, "healthy", false);
    let hanging = ranks(&coordinator, "hangs", true);
    let hang = ("DdpDoctorJobHangs".to_owned(), "hangs".to_owned());
    eventually("the alert fires", || prometheus.alerts() == [hang.clone()]);
    let values = prometheus.values("ddp_doctor_job_verdict==1");
    let mut verdicts: Vec<_> = values
        .iter()
        .map(|(labels, _)| (labels["training_job"].as_str(), labels["verdict"].as_str()))
        .collect();
    verdicts.sort_unstable();
    assert_eq!(verdicts, [(Some("hangs"), Some("hang")), (Some("healthy"), Some("healthy"))]);
    let findings = prometheus.values("ddp_doctor_job_findings");
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert_eq!(findings[0].0["code"], "DD103");

    // A job that has ended does not hang any more.
    drop(hanging);
    eventually("the alert ends", || {
        prometheus.alerts().iter().all(|(name, _)| name != "DdpDoctorJobHangs")
    });
    drop(healthy);
}

#[test]
fn hang_ended_by_kill_alerts_after_its_end() {
    let (coordinator, address) = coordinator(&[]);
    let statuses = Nodes::start(&coordinator, &["100", "20"]).end();
    assert!(statuses.contains(&Some(75)), "{statuses:?}");
    let mut text = String::new();
    eventually("the job has ended", || {
        text = page(&address);
        text.contains("ddp_doctor_job_running{training_job=\"same\"} 0\n")
    });
    assert!(text.contains("ddp_doctor_job_end_time_seconds{training_job=\"same\"} "), "{text}");
    let verdict = "ddp_doctor_job_verdict{training_job=\"same\",verdict=\"hang\"} 1\n";
    assert!(text.contains(verdict), "{text}");
    if has("prometheus") {
        // It has never seen the job hang.
        let prometheus = Prometheus::start(&address);
        let ended = ("DdpDoctorJobEndedInHang".to_owned(), "same".to_owned());
        eventually("the alert fires", || prometheus.alerts() == [ended.clone()]);
    }
}

#[test]
fn metrics_of_a_hang_contain_no_text_of_ranks() {
    let (coordinator, address) = coordinator(&[]);
    let _ranks = ranks(&coordinator, "a job\"\\", true);
    let mut text = String::new();
    eventually("the hang is in the metrics", || {
        text = page(&address);
        text.contains("verdict=\"hang\"} 1")
    });
    for line in [
        "ddp_doctor_jobs{state=\"running\"} 1",
        "ddp_doctor_jobs_started_total 1",
        "ddp_doctor_job_running{training_job=\"a_job__\"} 1",
        "ddp_doctor_job_current{training_job=\"a_job__\"} 1",
        "ddp_doctor_job_verdict{training_job=\"a_job__\",verdict=\"healthy\"} 0",
        "ddp_doctor_job_findings{training_job=\"a_job__\",code=\"DD103\",severity=\"error\"} 1",
        "ddp_doctor_job_ranks_expected{training_job=\"a_job__\"} 2",
        "ddp_doctor_job_step{training_job=\"a_job__\"} 21",
    ] {
        assert!(text.lines().any(|it| it == line), "{line}: {text}");
    }
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    for secret in ["sum.c", "barrier", "all_reduce", host.trim()] {
        assert!(!text.contains(secret) || secret.len() < 4, "{secret}: {text}");
    }
    if has("promtool") {
        promtool(&["check", "metrics"], &text);
    }
}

#[test]
fn rules_pass_their_tests() {
    if !has("promtool") {
        return;
    }
    let file = |name: &str| {
        let path = root().join("docs/operations/prometheus").join(name);
        path.to_str().unwrap().to_owned()
    };
    promtool(&["check", "rules", &file("rules.yml")], "");
    promtool(&["test", "rules", &file("rules_test.yml")], "");
}

/// The words of a text that look like names of metrics.
fn names_in(text: &str) -> Vec<&str> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = text.split(|c| !is_name(c));
    words.filter(|it| it.starts_with("ddp_doctor_")).collect()
}

#[test]
fn documents_name_existing_metrics_and_describe_all() {
    let operations = root().join("docs/operations");
    let read = |name: &str| fs::read_to_string(operations.join(name)).unwrap();
    let exists = |name: &str| metrics::ALL.iter().any(|it| it.name == name);
    let manual = read("metrics.md");
    let rules = read("prometheus/rules.yml");
    let dashboard: Value = serde_json::from_str(&read("prometheus/grafana.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().flat_map(|it| it["targets"].as_array().unwrap());
    let expressions: Vec<&str> = targets.map(|it| it["expr"].as_str().unwrap()).collect();
    assert!(expressions.len() >= 8);
    for text in [manual.as_str(), &rules].into_iter().chain(expressions) {
        let names = names_in(text);
        assert!(!names.is_empty(), "{text}");
        for name in names {
            assert!(exists(name), "{name}");
        }
    }
    for metric in metrics::ALL {
        assert!(manual.contains(&format!("| `{}", metric.name)), "{}", metric.name);
    }
}

#[test]
fn hostile_readers_of_metrics_do_not_disturb_others() {
    let (mut coordinator, address) = coordinator(&[]);
    // Connections without a request up to the limit, and beyond.
    let idle: Vec<TcpStream> = (0..200).map(|_| TcpStream::connect(&address).unwrap()).collect();
    let job = ranks(&coordinator, "beside", true);
    let report = coordinator.until("beside", |it| it.verdict == Verdict::Hang);
    assert_eq!(report.findings[0].code, "DD103");
    eventually("the page shows the hang", || {
        get(&address, "/metrics").contains("verdict=\"hang\"} 1")
    });
    drop((job, idle));

    for (request, status) in [
        ("POST /metrics HTTP/1.1\r\nHost: a\r\n\r\n", "405"),
        ("GET /other HTTP/1.1\r\nHost: a\r\n\r\n", "404"),
        ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", "404"),
        ("nonsense\r\n\r\n", "400"),
    ] {
        let answer = exchange(&address, request.as_bytes());
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request}: {answer}");
    }
    let endless = format!("GET /metrics HTTP/1.1\r\nA: {}\r\n\r\n", "a".repeat(1 << 20));
    let answer = exchange(&address, endless.as_bytes());
    assert!(!answer.contains("ddp_doctor_build_info"), "{answer}");
    page(&address);
    assert_eq!(coordinator.end(), Some(0));
}

#[test]
fn address_in_use_ends_a_coordinator_and_not_a_run() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let scratch = tempfile::tempdir().unwrap();
    let mut command = program(scratch.path());
    command.args(["coordinator", "--listen", "127.0.0.1:0", "--metrics", &address]);
    let finished = run_to_end(command);
    assert_eq!(finished.status, Some(3), "{finished}");
    let message = format!("ddp-doctor: no metrics at {address}: ");
    assert!(finished.stderr.contains(&message), "{finished}");

    let mut command = program(scratch.path());
    command.args(["run", "--metrics", &address, "--", "echo", "done"]);
    let finished = run_to_end(command);
    assert_eq!(finished.status, Some(0), "{finished}");
    assert_eq!(finished.stdout, "done\n");
    assert!(finished.stderr.contains(&message), "{finished}");
}

const SECRET: &str = "the-secret-of-the-metrics";

#[test]
fn metrics_beyond_loopback_need_their_own_secret() {
    let run = |options: &[&str], variables: &[(&str, &str)]| {
        let scratch = tempfile::tempdir().unwrap();
        let mut command = program(scratch.path());
        command.envs(variables.iter().copied()).args(options);
        run_to_end(command)
    };
    let options = ["coordinator", "--listen", "127.0.0.1:0", "--metrics", "0.0.0.0:0"];
    let token = ("DDP_DOCTOR_TOKEN", SECRET);
    let metrics_token = |it| ("DDP_DOCTOR_METRICS_TOKEN", it);
    for (variables, message) in [
        (&[token][..], "set DDP_DOCTOR_METRICS_TOKEN"),
        (&[metrics_token("short")], "must have 16 to 1024"),
        (&[token, metrics_token(SECRET)], "has to differ from DDP_DOCTOR_TOKEN"),
    ] {
        let finished = run(&options, variables);
        assert_eq!(finished.status, Some(3), "{finished}");
        assert!(finished.stderr.contains(message), "{message}: {finished}");
        assert!(!finished.stderr.contains(SECRET), "{finished}");
    }
    // The job runs on without metrics.
    let job = ["run", "--metrics", "0.0.0.0:0", "--", "echo", "done"];
    let finished = run(&job, &[]);
    assert_eq!(finished.status, Some(0), "{finished}");
    assert_eq!(finished.stdout, "done\n");
    assert!(finished.stderr.contains("no metrics at 0.0.0.0:0"), "{finished}");
}

#[test]
fn metrics_are_shown_to_readers_with_the_secret_only() {
    let scratch = tempfile::tempdir().unwrap();
    let file = scratch.path().join("secret");
    fs::write(&file, format!("{SECRET}\n")).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let file = file.to_str().unwrap();
    let coordinator =
        Coordinator::start_with(&["--metrics", "0.0.0.0:0", "--metrics-token-file", file]);
    let address = metrics_address(&coordinator.stderr()).unwrap();
    let _ranks = ranks(&coordinator, "secret-job", false);
    let page = |line: &str| get_with(&address, "/metrics", line);
    let right = format!("Authorization: bearer {SECRET}\r\n");
    eventually("the job is in the metrics", || {
        page(&right).contains("training_job=\"secret-job\"")
    });
    for line in [
        String::new(),
        "Authorization: Bearer \r\n".into(),
        "Authorization: Bearer another-secret-of-them\r\n".into(),
        format!("Authorization: Bearer {SECRET}x\r\n"),
        format!("Authorization: Basic {SECRET}\r\n"),
    ] {
        let answer = page(&line);
        assert!(answer.starts_with("HTTP/1.1 401 "), "{line}: {answer}");
        assert!(answer.contains("www-authenticate: Bearer"), "{answer}");
        assert!(!answer.contains("ddp_doctor_"), "{answer}");
    }
}

/// Value of a metric without further labels of the only job on a page.
fn value_of(page: &str, name: &str) -> Option<u64> {
    let line = page.lines().find(|line| line.starts_with(&format!("{name}{{")))?;
    line.rsplit_once(' ')?.1.parse().ok()
}

#[test]
fn metrics_of_a_busy_session_add_up() {
    let (coordinator, address) = coordinator(&[]);
    let options = ["--coordinator", coordinator.address(), "--job", "busy"];
    let mut job = HealthyJob::start_program(&options, &[flood(), "40000"]);
    job.create("go");
    job.create("flood1");
    let (mut seen, mut pages) = (0, 0);
    while !job.file("flooded1").exists() || pages < 2 {
        let text = page(&address);
        let records = value_of(&text, "ddp_doctor_job_records_total").unwrap_or(0);
        assert!(records >= seen, "{seen} and then {text}");
        (seen, pages) = (records, pages + 1);
        // A page is at most a second old.
        std::thread::sleep(Duration::from_millis(300));
    }
    let report = job.assert_same_result();
    eventually("the end of the job is in the metrics", || {
        value_of(&page(&address), "ddp_doctor_job_running") == Some(0)
    });
    let text = page(&address);
    let evidence = &report.evidence;
    for (name, expected) in [
        ("ddp_doctor_job_current", 1),
        ("ddp_doctor_job_records_total", evidence.records),
        ("ddp_doctor_job_records_lost_total", evidence.records_lost),
        ("ddp_doctor_job_ranks_expected", 1),
        ("ddp_doctor_job_nodes_connected", 0),
    ] {
        assert_eq!(value_of(&text, name), Some(expected), "{name}: {text}");
    }
    // Each call is a record of its begin and one of its end.
    let all = evidence.records + evidence.records_lost;
    assert!((80_000..80_100).contains(&all), "{evidence:#?}");
}

/// Prints the metrics at an address once they are about a job.
const READER: &str = "
import sys, time, urllib.request
while True:
    try:
        page = urllib.request.urlopen('http://' + sys.argv[1] + '/metrics').read().decode()
        if 'ddp_doctor_job_running' in page:
            break
    except OSError:
        pass
    time.sleep(0.05)
print(page)
";

#[test]
fn run_serves_the_metrics_of_its_job() {
    let address = format!("127.0.0.1:{}", free_port());
    let scratch = tempfile::tempdir().unwrap();
    let mut command = program(scratch.path());
    command
        .args(["run", "--job", "own", "--metrics", &address, "--"])
        .args(["python3", "-c", READER, &address]);
    let finished = run_to_end(command);
    assert_eq!(finished.status, Some(0), "{finished}");
    let line = "ddp_doctor_job_running{training_job=\"own\"} 1\n";
    assert!(finished.stdout.contains(line), "{finished}");
    let notice = format!("metrics at {address}/metrics (HTTP)");
    assert!(finished.stderr.contains(&notice), "{finished}");
}
