use std::io::Write;

use super::*;
use crate::diagnosis::event::Event;

/// A log with this text.
fn log(name: &str, text: &str) -> Log {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    fs::File::create(&path)
        .unwrap()
        .write_all(text.as_bytes())
        .unwrap();
    read(&path).unwrap()
}

fn ranks(log: Log) -> Vec<Option<u32>> {
    let events = evidence(&[log]).events.into_iter();
    let ranks = events.filter_map(|event| match event {
        Event::ProcessJoined { rank, .. } => Some(rank),
        _ => None,
    });
    ranks.collect()
}

/// The texts of all exceptions that ended a rank, and of all notes.
fn texts(log: Log) -> (Vec<String>, Vec<String>) {
    let (mut raised, mut notes) = (Vec::new(), Vec::new());
    for event in evidence(&[log]).events {
        match event {
            Event::Exception { text, place, .. } => {
                let line = place.map(|it| format!(" @{}", it.line)).unwrap_or_default();
                raised.push(format!("{text}{line}"));
            }
            Event::Note { text, .. } => notes.push(text.to_string()),
            _ => {}
        }
    }
    (raised, notes)
}

const RAISES: &str =
    "Traceback (most recent call last):\n  File \"a.py\", line 7, in f\n    g()\nKeyError: 'x'\n";

#[test]
fn local_rank_of_several_nodes_is_no_rank() {
    let labelled = |label: &str| RAISES.replace('\n', &format!("\n{label}"));
    let text = format!(
        "[default1]:{}\n[default1]:[rank1]: a\n[default1]:[rank9]: b\n",
        labelled("[default1]:")
    );
    let (raised, notes) = texts(log("a.log", &text));
    assert_eq!(raised, Vec::<String>::new());
    assert!(
        notes[0].contains("does not identify raised KeyError: 'x'"),
        "{notes:?}"
    );
}

#[test]
fn interleaved_tracebacks_of_labelled_ranks_are_told_apart() {
    let text = "[rank1]: Traceback (most recent call last):\n\
                [rank0]: Traceback (most recent call last):\n\
                [rank1]:   File \"a.py\", line 7, in f\n\
                [rank0]:   File \"a.py\", line 9, in f\n\
                [rank0]: ValueError: zero\n\
                step 3\n\
                [rank1]: KeyError: 'x'\n";
    let (mut raised, _) = texts(log("a.log", text));
    raised.sort();
    assert_eq!(raised, ["KeyError: 'x' @7", "ValueError: zero @9"]);
}

#[test]
fn direct_cause_of_an_exception_is_reported() {
    let text = RAISES.to_owned()
        + "\nThe above exception was the direct cause of the following exception:\n\n"
        + "Traceback (most recent call last):\n  File \"b.py\", line 2, in h\nRuntimeError: worker failed\n";
    let text = text.lines().map(|line| format!("[rank2]: {line}\n"));
    let (raised, _) = texts(log("a.log", &text.collect::<String>()));
    assert_eq!(raised, ["KeyError: 'x' @7"]);
}

#[test]
fn file_name_names_the_rank_of_unlabelled_lines() {
    let text = "Fatal Python error: Segmentation fault\n\nThread 0x00007f (most recent call first):\n  File \"a.py\", line 3 in f\n";
    assert_eq!(ranks(log("stderr_rank_5.txt", text)), [Some(5)]);
    assert_eq!(ranks(log("stderr.txt", text)), [None]);
}

#[test]
fn text_without_a_failure_states_nothing() {
    assert!(log("a.log", "step 1 loss 2.0\n[rank0]: step 2\nINFO done\n").is_empty());
}

#[test]
fn last_attempt_of_torchrun_is_read() {
    let dir = tempfile::tempdir().unwrap();
    for attempt in 0..2 {
        for local in 0..2 {
            let folder = dir.path().join(format!("run/attempt_{attempt}/{local}"));
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("stderr.log"), "x").unwrap();
        }
    }
    let found = find(dir.path());
    let is_last = |path: &PathBuf| path.to_string_lossy().contains("attempt_1");
    assert!(found.len() == 2 && found.iter().all(is_last), "{found:?}");
    assert_eq!(in_path(&found[1]).local, Some(1));
}
