//! Messages to a webhook: what a receiver gets, and that a job does not wait for it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use serde_json::Value;
use tempfile::TempDir;

use super::metrics::{ANSWER, Killed, coordinator, page, ranks};
use crate::support::compiled_programs::sum;
use crate::support::process::{Finished, eventually, free_port, program, run_to_end};

/// A receiver of messages: answers each with the next of these statuses, and the last one for ever.
struct Hook {
    url: String,
    messages: Receiver<Value>,
}

impl Hook {
    fn start(statuses: &'static [u16]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/path?key=secret", listener.local_addr().unwrap());
        let (sender, messages) = channel();
        std::thread::spawn(move || {
            let last = statuses.last().copied().unwrap();
            let mut statuses = statuses.iter().copied();
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let status = statuses.next().unwrap_or(last);
                let message = message(&mut stream);
                write!(stream, "HTTP/1.1 {status} Status\r\nContent-Length: 0\r\n\r\n").ok();
                if status == 200 && sender.send(message).is_err() {
                    return;
                }
            }
        });
        Self { url, messages }
    }

    #[track_caller]
    fn next(&self) -> Value {
        self.messages.recv_timeout(ANSWER).unwrap()
    }
}

/// Reads a POST request of JSON.
fn message(stream: &mut TcpStream) -> Value {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    assert_eq!(line, "POST /path?key=secret HTTP/1.1\r\n");
    let mut length = 0;
    loop {
        line.clear();
        reader.read_line(&mut line).unwrap();
        let header = line.trim_end().to_ascii_lowercase();
        match header.split_once(": ") {
            Some(("content-length", value)) => length = value.parse().unwrap(),
            Some(("content-type", value)) => assert_eq!(value, "application/json"),
            Some(_) => {}
            None => break,
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    serde_json::from_slice(&body).unwrap()
}

/// Runs two ranks under `run`, which kills them if they hang.
fn run(options: &[&str], arguments: &str) -> Finished {
    let scratch = tempfile::tempdir().unwrap();
    let mut command = program(scratch.path());
    let script = format!("RANK=0 {0} {arguments} & RANK=1 {0} {arguments}; wait", sum());
    command
        .env("WORLD_SIZE", "2")
        .env("MASTER_ADDR", "127.0.0.1")
        .env("MASTER_PORT", free_port().to_string())
        .args(["run", "--job", "posted", "--on-hang", "kill", "--kill-after", "1"])
        .args(options)
        .args(["--", "sh", "-c", &script]);
    run_to_end(command)
}

#[test]
fn webhook_gets_the_finding_and_the_end_of_the_hang() {
    let receiver = Hook::start(&[500, 200]);
    let finished = run(&["--webhook", &receiver.url], "100 20");
    assert_eq!(finished.status, Some(75), "{finished}");
    let first = receiver.next();
    assert_eq!(first["schema"], "ddp-doctor/webhook");
    assert_eq!(first["event"], "finding");
    assert_eq!((&first["job"], &first["verdict"]), (&"posted".into(), &"hang".into()));
    let finding = &first["finding"];
    assert_eq!(finding["code"], "DD103");
    assert!(finding["where"]["file"].as_str().unwrap().ends_with("sum.c"));
    let text = first["text"].as_str().unwrap();
    assert!(text.starts_with("posted: DD103 op-mismatch: "), "{text}");
    let last = receiver.next();
    assert_eq!(last["event"], "hang-ended", "{last}");
    assert_eq!((&last["job"], &last["job_ended"]), (&"posted".into(), &true.into()));
    assert!(receiver.messages.try_recv().is_err());
    // The line about the failed first attempt does not contain the secret.
    assert!(finished.stderr.contains("does not accept messages"), "{finished}");
    assert!(!finished.stderr.contains("secret"), "{finished}");
}

#[test]
fn healthy_job_posts_nothing() {
    let receiver = Hook::start(&[200]);
    let finished = run(&["--webhook", &receiver.url], "100");
    assert_eq!(finished.status, Some(0), "{finished}");
    assert!(receiver.messages.try_recv().is_err());
}

#[test]
fn webhook_that_never_answers_does_not_delay_the_diagnosis() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", silent.local_addr().unwrap());
    let finished = run(&["--webhook", &url], "100 20");
    assert_eq!(finished.status, Some(75), "{finished}");
    assert!(finished.stderr.contains("error[DD103]"), "{finished}");
}

#[test]
fn heartbeat_counts_the_jobs() {
    let receiver = Hook::start(&[200]);
    let (coordinator, address) =
        coordinator(&["--webhook", &receiver.url, "--webhook-heartbeat", "1"]);
    let first = receiver.next();
    assert_eq!((&first["event"], &first["running"]), (&"heartbeat".into(), &0.into()));
    let _ranks = ranks(&coordinator, "beats", true);
    eventually("a heartbeat counts the hang", || {
        let message = receiver.next();
        message["event"] == "heartbeat" && message["hanging"] == 1 && message["running"] == 1
    });
    let text = page(&address);
    assert!(!text.contains("ddp_doctor_webhook_messages_total{result=\"sent\"} 0"), "{text}");
    assert!(text.contains("ddp_doctor_webhook_messages_total{result=\"dropped\"} 0"), "{text}");
}

/// Answers one request over TLS with the certificate in the directory, and prints it.
const TLS_SERVER: &str = "
import http.server, ssl, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        print(self.rfile.read(int(self.headers['Content-Length'])).decode(), flush=True)
        self.send_response(204)
        self.end_headers()
server = http.server.HTTPServer(('127.0.0.1', 0), Handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain('certificate', 'key')
server.socket = context.wrap_socket(server.socket, server_side=True)
print(server.server_port, flush=True)
server.serve_forever()
";

/// A directory with a certificate for `localhost`.
fn certificate() -> Option<TempDir> {
    let dir = tempfile::tempdir().unwrap();
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"])
        .args(["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .args(["-keyout", "key", "-out", "certificate"])
        .current_dir(dir.path())
        .stderr(Stdio::null())
        .status();
    if made.is_ok_and(|it| it.success()) {
        return Some(dir);
    }
    println!("skipped: openssl is not installed");
    None
}

#[test]
fn webhook_is_reached_by_tls_if_its_certificate_is_trusted() {
    let (Some(served), Some(other)) = (certificate(), certificate()) else {
        return;
    };
    let mut server = Command::new("python3")
        .args(["-c", TLS_SERVER])
        .current_dir(served.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
    let _server = Killed(vec![server]);
    let url = format!("https://localhost:{}/", lines.next().unwrap().unwrap());
    let start = |trusted: PathBuf| {
        let scratch = tempfile::tempdir().unwrap();
        let mut command = program(scratch.path());
        command
            .env("SSL_CERT_FILE", trusted.join("certificate"))
            .args(["run", "--webhook", &url, "--webhook-heartbeat", "1"])
            .args(["--", "sleep", "3"]);
        run_to_end(command)
    };
    let refused = start(other.path().to_owned());
    assert!(refused.stderr.contains("does not accept messages"), "{refused}");
    let accepted = start(served.path().to_owned());
    assert!(!accepted.stderr.contains("does not accept"), "{accepted}");
    let first: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    assert_eq!(first["event"], "heartbeat");
    let untrusted = start("/nowhere".into());
    assert_eq!(untrusted.status, Some(0), "{untrusted}");
    assert!(untrusted.stderr.contains("no messages to the webhook: "), "{untrusted}");
}
