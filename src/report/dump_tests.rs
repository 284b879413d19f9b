use std::time::Duration;

use ddp_doctor_proto::report::WaitingIn;

use super::*;

fn frame(function: &str, file: &str, line: u32) -> Where {
    Where { file: file.into(), line, function: function.into(), ..Where::default() }
}

fn thread(name: &str, python: Vec<Where>) -> ThreadStack {
    ThreadStack {
        tid: 7,
        name: name.into(),
        state: Some('S'),
        wait_channel: Some("futex_do_wait".into()),
        cpu_time: Some(Duration::from_millis(1250)),
        holds_gil: Some(false),
        python,
        ..ThreadStack::default()
    }
}

fn rank(rank: u32, state: RankState, threads: Vec<ThreadStack>, trouble: &str) -> Process {
    let waiting_in = (state == RankState::Waiting).then(|| WaitingIn {
        group: "0".into(),
        seq: Some(5),
        op: "all_reduce".into(),
        waited_ms: Some(12_300),
    });
    let mut rank = Rank {
        rank,
        host: "h".into(),
        pid: 100 + rank,
        state,
        step: 4,
        waiting_in,
        ..Default::default()
    };
    rank.exit.signal = (state == RankState::Dead).then_some(9);
    let stacks = Stacks { at: Timestamp(2_000_000_000), threads, ..Stacks::default() };
    let has_any = !stacks.threads.is_empty();
    of_rank(&rank, if has_any { Ok(&stacks) } else { Err(trouble) })
}

/// Four ranks: two wait at one line, one is elsewhere, one has ended; a fifth was never seen.
fn job() -> Dump {
    let library = "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py";
    let waits = || {
        let main = vec![frame("all_reduce", library, 3038), frame("<module>", "train.py", 35)];
        let pool = |n: u32| thread(&format!("pt_autograd_{n}"), Vec::new());
        vec![thread("python", main), pool(0), pool(1)]
    };
    let mut sleeps = vec![frame("nap", "train.py", 20), frame("<module>", "train.py", 34)];
    sleeps[0].function.push_str("\x1b[2J");
    let loader = thread("python", vec![frame("wait", "/usr/lib/python3.11/threading.py", 320)]);
    let job = Job { id: "j-1".into(), ..Default::default() };
    let mut dump = of_job(Some(job), Timestamp(3_000_000_000), vec![4]);
    dump.processes = vec![
        rank(0, RankState::Waiting, waits(), ""),
        rank(2, RankState::Waiting, waits(), ""),
        rank(1, RankState::Running, vec![thread("python", sleeps), loader], ""),
        rank(3, RankState::Dead, Vec::new(), "it has ended"),
    ];
    grouped(dump)
}

fn written(dump: &Dump, all_threads: bool) -> String {
    let mut out = Vec::new();
    text(&mut out, dump, Style::default(), all_threads, &SourceFolders::default()).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn smallest_group_of_equal_stacks_comes_first() {
    let expected = "\
job j-1, 5 ranks · 1970-01-01T00:00:03.000Z

rank 1
    nap\u{fffd}[2J    train.py:20
    <module>   train.py:34

  rank 1   running, step 4   sleeping in futex_do_wait   CPU 1.2 s

ranks 0 and 2
    all_reduce   torch/distributed/distributed_c10d.py:3038
    <module>     train.py:35

  rank 0   in all_reduce #5 of the default group for 12.3 s, step 4   sleeping in futex_do_wait   CPU 1.2 s
  rank 2   in all_reduce #5 of the default group for 12.3 s, step 4   sleeping in futex_do_wait   CPU 1.2 s

rank 3: killed by SIGKILL
rank 4: never seen
";
    assert_eq!(written(&job(), false), expected);
}

#[test]
fn other_threads_are_grouped_by_kind() {
    let text = written(&job(), true);
    let expected = "
rank 1: 1 thread python
    sleeping in futex_do_wait, CPU 1.2 s
    wait   threading.py:320

ranks 0 and 2: 4 threads pt_autograd
    sleeping in futex_do_wait, CPU 1.2 s

rank 3:";
    assert!(text.contains(expected), "{text}");
}

#[test]
fn single_process_is_named_by_its_pid() {
    let mut main = thread("python", Vec::new());
    main.holds_gil = Some(true);
    (main.state, main.wait_channel) = (Some('R'), None);
    let stacks = Stacks {
        at: Timestamp::default(),
        threads: vec![main],
        trouble: "its memory may not be read".into(),
        ..Stacks::default()
    };
    let dump = of_processes("h", vec![(None, 123, stacks)]);
    let expected = "
process 123
    no frames

  running   running, holds the GIL   CPU 1.2 s

process 123: its memory may not be read
";
    assert_eq!(written(&dump, true), expected);
}

#[test]
fn native_frames_are_shown_down_to_the_interpreter() {
    let native = |function: &str, file: &str| Where {
        file: file.into(),
        line: 0,
        function: function.into(),
        ..Where::default()
    };
    let mut dump = job();
    let long = format!("c10d::{}", "x".repeat(100));
    for thread in &mut dump.processes[1].threads {
        thread.native = vec![
            native("__poll", "/lib/libc.so.6"),
            native("", "/lib/libgloo.so"),
            native(&long, "/lib/libtorch_cpu.so"),
            native("_PyEval_EvalFrameDefault", "/usr/bin/python3.11"),
            native("Py_RunMain", "/usr/bin/python3.11"),
        ];
    }
    let text = written(&dump, false);
    let expected = format!(
        "rank 1
    __poll                                                          libc.so.6
    ?                                                               libgloo.so
    c10d::{}…   libtorch_cpu.so
    nap\u{fffd}[2J                                                         train.py:20
    <module>                                                        train.py:34
",
        "x".repeat(54)
    );
    assert!(text.contains(&expected), "{text}");
    dump.processes[1].threads[1].python.clear();
    let text = written(&dump, true);
    assert!(text.contains("_PyEval_EvalFrameDefault   "), "{text}");
}

#[test]
fn markdown_escapes_text_of_the_job() {
    let mut dump = job();
    dump.processes[0].threads[0].wait_channel = Some("<b>|".into());
    dump.processes[0].trouble = Some("*x*".into());
    let mut out = Vec::new();
    markdown(&mut out, &dump, true, &SourceFolders::default()).unwrap();
    let text = String::from_utf8(out).unwrap();
    assert!(text.contains("## rank 1\n") && text.contains("sleeping in \\<b\\>\\|"), "{text}");
    assert!(text.contains("- rank 0: \\*x\\*") && !text.contains('\x1b'), "{text}");
    assert_eq!(text.matches("```").count(), 6, "{text}");
}

#[test]
fn frames_do_not_end_their_code_block() {
    let mut dump = job();
    dump.processes[0].threads[0].python.clear();
    dump.processes[0].threads[0].native = ["pause", "````", "[x](//y)"]
        .map(|it| Where { function: it.into(), ..Where::default() })
        .into();
    let mut out = Vec::new();
    markdown(&mut out, &dump, false, &SourceFolders::default()).unwrap();
    let text = String::from_utf8(out).unwrap();
    let (_, block) = text.split_once("\n`````text\n").unwrap();
    let (block, _) = block.split_once("\n`````\n").unwrap();
    assert!(block.contains("````") && block.contains("[x](//y)"), "{text}");
}

#[test]
fn json_parses_back_unchanged() {
    let dump = job();
    let text = serde_json::to_string(&dump).unwrap();
    assert_eq!(serde_json::from_str::<Dump>(&text).unwrap(), dump);
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(value["schema"], "ddp-doctor/dump");
    assert_eq!(value["groups"][0]["processes"], serde_json::json!([1]));
    assert_eq!(value["processes"][1]["threads"][0]["python"][1]["line"], 34);
    assert_eq!(value["processes"][3]["threads"], serde_json::json!([]));
}
