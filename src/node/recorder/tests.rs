use std::io::{Read, Write};
use std::os::unix::net::UnixListener;

use super::*;
use crate::node::outbox::Outbox;
use tokio::sync::mpsc;

const BODY: &[u8] = include_bytes!("../../../tests/recorder/gloo-2.10.json");

/// A server that answers each question with the next of these, and then no more.
fn server(answers: Vec<Vec<u8>>) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("1.fr");
    let listener = UnixListener::bind(&socket).unwrap();
    thread::spawn(move || {
        let mut silent = Vec::new();
        for answer in answers {
            let (mut stream, _) = listener.accept().unwrap();
            let mut question = [0; 4096];
            let n = stream.read(&mut question).unwrap();
            let question = str::from_utf8(&question[..n]).unwrap();
            let handlers = ["fr_trace_json", "dump_nccl_trace_json"];
            let mut handlers = handlers
                .map(|it| format!("POST /handler/{it} HTTP/1.1\r\n"))
                .into_iter();
            assert!(handlers.any(|it| question.starts_with(&it)), "{question}");
            // Whoever asked may have had enough.
            drop(stream.write_all(&answer));
            if answer.is_empty() {
                silent.push(stream);
            }
        }
        thread::sleep(Duration::from_secs(60));
    });
    (dir, socket)
}

/// As of a recorder that this PyTorch does not have.
const MISSING: &[u8] = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";

fn ok(body: &[u8]) -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

fn outbox() -> (Outbox, mpsc::Receiver<v1::Report>) {
    let mut out = Outbox::new(None);
    let (live, reports) = mpsc::channel(1024);
    out.connect(live);
    (out, reports)
}

fn heard(out: &mut Outbox, reports: &mut mpsc::Receiver<v1::Report>) -> Vec<Kind> {
    out.flush();
    let mut kinds = Vec::new();
    while let Ok(report) = reports.try_recv() {
        kinds.extend(report.events.into_iter().filter_map(|event| event.kind));
    }
    kinds
}

/// Polls until something was said, which it returns.
fn poll(
    recorder: &mut Recorder,
    out: &mut Outbox,
    reports: &mut mpsc::Receiver<v1::Report>,
) -> Vec<Kind> {
    let begin = Instant::now();
    loop {
        recorder.poll(false, out);
        let kinds = heard(out, reports);
        if !kinds.is_empty() || begin.elapsed() > Duration::from_secs(30) {
            return kinds;
        }
        thread::sleep(Duration::from_millis(5));
    }
}

fn note(text: &str) -> Kind {
    Kind::Note(v1::Note {
        text: text.into(),
        ..Default::default()
    })
}

#[test]
fn what_the_box_says_is_told_in_the_order_in_which_it_happened() {
    let (_dir, socket) = server(vec![ok(BODY)]);
    let (mut out, mut reports) = outbox();
    let mut recorder = Recorder::new(7, &socket);
    let calls = recorder::decode(BODY, 1).unwrap().calls;
    let third = Timestamp(calls[2].unix_ns);
    recorder.hold(Some(third), note("before the third"), false);
    recorder.hold(None, note("with it"), false);
    recorder.hold(Some(Timestamp(u64::MAX)), note("later"), false);
    let kinds = poll(&mut recorder, &mut out, &mut reports);
    let said: Vec<String> = kinds
        .iter()
        .map(|kind| match kind {
            Kind::RecorderCall(call) => format!("{} {} {}", call.process, call.group, call.seq),
            Kind::Note(note) => note.text.clone(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(
        said[..5],
        ["7 0 1", "7 0 2", "before the third", "with it", "7 0 3"]
    );
    assert_eq!(said.len(), calls.len() + 2);
    // When the process ends, nothing is held back.
    recorder.finish(&mut out);
    assert_eq!(heard(&mut out, &mut reports), [note("later")]);
}

#[test]
fn only_what_is_new_is_told_again() {
    let (_dir, socket) = server(vec![ok(BODY), ok(BODY), ok(&over())]);
    let (mut out, mut reports) = outbox();
    let mut recorder = Recorder::new(1, &socket);
    let first = poll(&mut recorder, &mut out, &mut reports);
    assert_eq!(first.len(), 11);
    // In the first body one call is not over; in the last it is.
    let then = poll(&mut recorder, &mut out, &mut reports);
    let [Kind::RecorderCall(call)] = &then[..] else {
        panic!("{then:?}")
    };
    assert!(call.seq == 4 && call.over_unix_ns.is_some(), "{call:?}");
    // Who comes later hears all of it, in its latest form.
    recorder.repeat(&mut out);
    let again = heard(&mut out, &mut reports);
    let is_over = |kind: &Kind| matches!(kind, Kind::RecorderCall(it) if it.over_unix_ns.is_some());
    assert!(again.len() == 11 && again.iter().all(is_over), "{again:?}");
}

fn over() -> Vec<u8> {
    let body = String::from_utf8(BODY.to_vec()).unwrap();
    body.replace("\"retired\":false", "\"retired\":true").into()
}

#[test]
fn a_silent_process_holds_back_nothing_for_long() {
    let (_dir, socket) = server(vec![Vec::new()]);
    let (mut out, mut reports) = outbox();
    let mut recorder = Recorder::new(1, &socket);
    recorder.hold(Some(Timestamp(1)), note("held"), false);
    assert_eq!(poll(&mut recorder, &mut out, &mut reports), [note("held")]);
}

#[test]
fn what_is_no_answer_is_none() {
    let huge = b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n".to_vec();
    let endless = [b"HTTP/1.1 200 OK\r\nX: ".to_vec(), vec![b'x'; 100_000]].concat();
    for answer in [
        b"garbage\r\n\r\n".to_vec(),
        huge,
        endless,
        ok(b"{}"),
        ok(&BODY[..1000]),
        MISSING.to_vec(),
        b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n".to_vec(),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec(),
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n".to_vec(),
    ] {
        let shown = String::from_utf8_lossy(&answer[..answer.len().min(60)]).into_owned();
        let (_dir, socket) = server(vec![answer]);
        assert!(read_all(&socket, &["fr_trace_json"]).is_err(), "{shown}");
    }
    let dir = tempfile::tempdir().unwrap();
    assert!(read_all(&dir.path().join("nobody"), &["fr_trace_json"]).is_err());
}

#[test]
fn a_recorder_that_there_is_is_read_without_the_other() {
    let both = ["fr_trace_json", "dump_nccl_trace_json"];
    let (_dir, socket) = server(vec![MISSING.to_vec(), ok(BODY)]);
    assert_eq!(read_all(&socket, &both).unwrap().len(), 1);
    let (_dir, socket) = server(vec![ok(BODY), ok(b"{}")]);
    assert!(
        read_all(&socket, &both).is_err(),
        "one that speaks strangely is no missing one"
    );
}

#[test]
fn the_last_words_are_heard_and_cleared_away() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("ddp-doctor-x");
    fs::create_dir(&folder).unwrap();
    let socket = folder.join("1.fr");
    fs::write(folder.join("1.fr.json"), BODY).unwrap();
    let (mut out, mut reports) = outbox();
    let mut recorder = Recorder::new(1, &socket);
    recorder.hold(Some(Timestamp(u64::MAX)), note("exit"), false);
    recorder.finish(&mut out);
    let kinds = heard(&mut out, &mut reports);
    assert_eq!((kinds.len(), kinds.last()), (12, Some(&note("exit"))));
    assert!(!folder.exists());
}

#[test]
fn only_one_setting_names_a_socket() {
    assert_eq!(
        named_by("flight recorder=/a/b=c"),
        Some(Path::new("/a/b=c"))
    );
    for other in ["flight recorder", "flight recorder=a", "nccl=/a", ""] {
        assert_eq!(named_by(other), None);
    }
}
