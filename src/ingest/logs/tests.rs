use std::fs;
use std::io::Write;

use ddp_doctor_diagnosis::event::Event;
use ddp_doctor_proto::report::Where;

use super::*;

/// A log with this text.
fn log(name: &str, text: &str) -> Log {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    fs::File::create(&path).unwrap().write_all(text.as_bytes()).unwrap();
    read(&path, u64::MAX).unwrap()
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
            Event::Note { text, .. } => notes.push(text.what.to_string()),
            _ => {}
        }
    }
    (raised, notes)
}

const RAISES: &str =
    "Traceback (most recent call last):\n  File \"a.py\", line 7, in f\n    g()\nKeyError: 'x'\n";

#[test]
fn credentials_in_the_text_of_an_exception_are_left_out() {
    let raised = "requests.HTTPError: 401 for url: https://bob:PASS@hub.example/a?token=TOKEN";
    let text = RAISES.replace("KeyError: 'x'", raised).replace('\n', "\n[rank0]: ");
    let (raised, _) = texts(log("a.log", &format!("[rank0]: {text}\n")));
    assert_eq!(raised, ["HTTPError: 401 for url: https://…@hub.example/a?token=… @7"]);
}

#[test]
fn local_rank_of_several_nodes_is_no_rank() {
    let labeled = |label: &str| RAISES.replace('\n', &format!("\n{label}"));
    let text = format!(
        "[default1]:{}\n[default1]:[rank1]: a\n[default1]:[rank9]: b\n",
        labeled("[default1]:")
    );
    let (raised, notes) = texts(log("a.log", &text));
    assert_eq!(raised, Vec::<String>::new());
    assert_eq!(notes, ["local rank 1 raised KeyError: 'x' at a.py:7"]);
}

#[test]
fn later_message_shows_that_a_launched_process_went_on() {
    let raises = RAISES.trim_end().replace('\n', "\n[default1]:");
    let after = |level: &str| {
        let text = format!(
            "[default1]:{raises}\n[default1]:2026-11-27 08:00:18 {level} hub.fetch attempt 2 of 5\n"
        );
        texts(log("a.log", &text)).1
    };
    let went_on = "local rank 1 logged an exception and continued: KeyError: 'x' at a.py:7";
    assert_eq!(after("INFO"), [went_on]);
    assert_eq!(after("ERROR"), ["local rank 1 raised KeyError: 'x' at a.py:7"]);
}

#[test]
fn tasks_with_the_number_of_their_local_rank_are_ranks() {
    let killed = |labels: &str| {
        let text = format!("{labels}srun: error: gpu-b: task 5: Out Of Memory\n");
        ranks(log("a.log", &text)).contains(&Some(5))
    };
    let label = |task: u32, rank: u32| {
        format!(
            "{task}: [rank{rank}]:{}",
            RAISES.replace('\n', &format!("\n{task}: [rank{rank}]:"))
        )
    };
    assert!(killed(&format!("{}\n{}\n", label(1, 1), label(4, 4))));
    assert!(!killed(&format!("{}\n{}\n", label(1, 1), label(4, 0))));
}

#[test]
fn interleaved_tracebacks_are_separated_by_their_labels() {
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
    let traceback = RAISES.to_owned()
        + "\nThe above exception was the direct cause of the following exception:\n\n"
        + "Traceback (most recent call last):\n  File \"b.py\", line 2, in h\nRuntimeError: worker failed\n";
    let text = traceback.lines().map(|line| format!("[rank2]: {line}\n"));
    let (raised, _) = texts(log("a.log", &text.collect::<String>()));
    assert_eq!(raised, ["KeyError: 'x' @7"]);
}

#[test]
fn file_name_names_no_rank_of_a_log_of_several_ranks() {
    let text = RAISES.to_owned() + "[rank0]: step 3\n";
    let (raised, notes) = texts(log("silent_rank5.log", &text));
    assert_eq!(raised, Vec::<String>::new());
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert_eq!(ranks(log("silent_rank5.log", &text)), [Some(0)]);
    let own = RAISES.to_owned() + "[rank5]: step 3\n";
    assert_eq!(ranks(log("silent_rank5.log", &own)), [Some(5)]);
}

#[test]
fn file_name_names_the_rank_of_unlabeled_lines() {
    let text = "Fatal Python error: Segmentation fault\n\nThread 0x00007f (most recent call first):\n  File \"a.py\", line 3 in f\n";
    assert_eq!(ranks(log("stderr_rank_5.txt", text)), [Some(5)]);
    assert_eq!(ranks(log("stderr.txt", text)), [None]);
}

#[test]
fn text_without_a_failure_states_nothing() {
    assert!(log("a.log", "step 1 loss 2.0\n[rank0]: step 2\nINFO done\n").is_empty());
}

#[test]
fn rank_that_cannot_exist_is_no_rank() {
    for text in [
        "Parameters which did not receive grad for rank 4000000000: w",
        "Parameter indices which did not receive grad for rank 4294967295: 0",
        "Rank 4294967295 failed to pass monitoredBarrier in 1000 ms",
        "[Rank 4294967297] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE, Timeout(ms)=1)",
        "Detected mismatch between collectives on ranks. Rank 3000000000 is running collective: CollectiveFingerPrint(OpType=BARRIER), but Rank 4000000000 is running collective: CollectiveFingerPrint(OpType=ALLREDUCE)",
        "wait timeout after 1ms, keys: /default_pg/0//cpu//0/4294967295",
        "DDP expects same model across all ranks, but Rank 4294967295 has 3 params, while rank 4000000000 has inconsistent 2 params.",
        "store based barrier (rank: 4294967295, world_size=2, worker_count=1, timeout=0:30:00) Timed out",
    ] {
        let known = ranks(log("a.log", text));
        assert!(known.iter().all(Option::is_none), "{text}: {known:?}");
    }
}

#[test]
fn local_rank_in_the_file_name_is_no_global_one() {
    let known = |name: &str| ranks(log(name, RAISES));
    assert_eq!(known("local_rank0.log"), [None]);
    assert_eq!(known("node_rank3.log"), [None]);
}

#[test]
fn path_completes_the_labels_of_lines() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("run/attempt_0/3");
    fs::create_dir_all(&folder).unwrap();
    let path = folder.join("stderr.log");
    fs::write(&path, format!("[rank11]: loading\n{RAISES}")).unwrap();
    let log = read(&path, u64::MAX).unwrap();
    assert_eq!(ranks(log), [Some(11)]);
    let (_, notes) = texts(read(&path, u64::MAX).unwrap());
    assert_eq!(notes, ["rank 11 logged an exception: KeyError: 'x' at a.py:7"]);
}

#[test]
fn error_file_of_torchrun_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("run/attempt_0/3");
    fs::create_dir_all(&folder).unwrap();
    let path = folder.join("error.json");
    let info = serde_json::json!({"py_callstack": RAISES, "timestamp": "1776000000"});
    let message = serde_json::json!({"message": "KeyError: 'x'", "extraInfo": info});
    let error = serde_json::json!({ "message": message });
    fs::write(&path, error.to_string()).unwrap();
    let log = read(&path, u64::MAX).unwrap();
    let events = evidence(std::slice::from_ref(&log)).events;
    let is_job = |event: &Event| matches!(event, Event::JobStarted { job, .. } if job == "run");
    assert!(events.iter().any(is_job), "{events:?}");
    let (_, notes) = texts(log);
    assert_eq!(notes, ["local rank 3 raised KeyError: 'x' at a.py:7"]);
}

#[test]
fn process_of_two_hosts_with_one_id_is_ambiguous() {
    let named = |host: &str, rank: u32| {
        format!("{host}:70:71 [0] NCCL INFO comm 0x1 rank {rank} nranks 2 - Init COMPLETE\n")
    };
    let warns = "b:70:72 [0] x.cc:7 NCCL WARN NET/IB : failed\n";
    let text = named("a", 0) + &named("b", 1) + warns;
    let (_, notes) = texts(log("a.log", &text));
    assert_eq!(notes, ["NCCL reported on rank 1 (b, GPU 0): NET/IB : failed"]);
    let stacks = "Process 70: python a.py\nThread 70 (idle): \"MainThread\"\n    f (a.py:3)\n";
    let (_, notes) = texts(log("a.log", &(text + stacks)));
    assert!(notes[0].starts_with("process 70 was at a.py:3"), "{notes:?}");
    assert_eq!(notes[1], "NCCL reported on rank 1 (b, GPU 0): NET/IB : failed");
}

#[test]
fn ray_workers_are_identified_by_their_labels() {
    let prefix = "(RayTrainWorker pid=41, ip=10.0.0.7) ";
    let raises = RAISES.lines().map(|line| format!("{prefix}{line}\n"));
    let text = format!(
        "{prefix}[rank5]: x\n(RayTrainWorker pid=41) [rank1]: x\n{}step 2\n",
        raises.collect::<String>()
    );
    let (_, notes) = texts(log("a.log", &text));
    assert_eq!(notes, ["rank 5 logged an exception: KeyError: 'x' at a.py:7"]);
}

#[test]
fn difference_precedes_the_connections_that_are_lost_by_it() {
    let raises = |rank: u32, what: &str| {
        let label = format!("[rank{rank}]: ");
        let lines = ["Traceback (most recent call last):", "  File \"a.py\", line 7, in f", what];
        lines.map(|line| format!("{label}{line}\n")).concat()
    };
    let lost = "RuntimeError: [gloo/transport/tcp/pair.cc:1] Connection closed by peer [::1]:2";
    let refused = "RuntimeError: [enforce fail at gloo/transport/tcp/pair.cc:2] op.preamble.length <= op.nbytes. 8 vs 4";
    let (_, notes) = texts(log("a.log", &(raises(0, lost) + &raises(1, refused))));
    assert!(notes[0].starts_with("rank 1 made a call that differs"), "{notes:?}");
    assert!(notes[1].starts_with("rank 0 lost its connection"), "{notes:?}");
}

#[test]
fn notes_on_one_subject_do_not_hide_others() {
    let mut text = String::new();
    for at in 0..9 {
        text += &format!("h:1:2 [0] NCCL WARN NET/IB : error {at}\n");
    }
    text += "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-31T12:00:00 DUE TO TIME LIMIT ***\n";
    let (_, notes) = texts(log("a.log", &text));
    assert!(notes[0].contains("TIME LIMIT"), "{notes:?}");
    let network = "NCCL reported on h, GPU 0: NET/IB : error 0; 8 more such errors follow";
    assert_eq!(notes[1..], [network]);
}

#[test]
fn log_line_between_frames_is_no_exception() {
    let text = "Traceback (most recent call last):\n  File \"a.py\", line 7, in f\nINFO:root:step 12\n\
                WARNING: slow\n    g()\nKeyError: 'x'\n";
    let labeled: String = text.lines().map(|it| format!("[rank1]: {it}\n")).collect();
    assert_eq!(texts(log("a.log", &labeled)).0, ["KeyError: 'x' @7"]);
}

/// Functions of the frames of all threads of the only process, outermost thread first.
fn functions(text: &str) -> Vec<Vec<String>> {
    let events = evidence(&[log("rank0.log", text)]).events.into_iter();
    let mut all_stacks = events.filter_map(|event| match event {
        Event::Stacks { stacks, .. } => Some(stacks),
        _ => None,
    });
    let stacks = all_stacks.next().unwrap();
    let names = |frames: &[Where]| frames.iter().map(|it| it.function.clone()).collect();
    stacks.threads.iter().map(|it| names(&it.python)).collect()
}

#[test]
fn indented_lines_do_not_end_stacks() {
    let native = "Process 7: python a.py\nPython v3.11.9\nThread 7 (idle): \"MainThread\"\n\
                  \x20   __poll (libc.so.6)\n    clone (clone.S:81)\n    wait (a.py:5)\n\
                  \x20       Arguments:\n            self: f (b.py:3)\n    main (a.py:9)\n";
    assert_eq!(functions(native), [["wait", "main"]]);
    let fault = "Timeout (0:01:00)!\nThread 0x00007f01 [worker] (most recent call first):\n\
                 \x20 File \"a.py\", line 3 in run\n\n\
                 Current thread 0x00007f02 [MainThread] (most recent call first):\n\
                 \x20 Garbage-collecting\n  File \"a.py\", line 5 in step\n  File \"a.py\", line 9 in <module>\n";
    let fault: String = fault.lines().map(|it| format!("[rank0]: {it}\n")).collect();
    assert_eq!(functions(&fault), [vec!["step", "<module>"], vec!["run"]]);
}
