//! Real PyTorch jobs under `ddp-doctor run`: a planted fault gives its finding, a healthy job
//! silence.
//!
//! Each program in `tests/jobs` says at its head what is true of it; the lines that a finding must
//! name are marked `# HERE rank 0 2` in the program itself. These tests need a Python environment
//! with PyTorch (`scripts/pytorch-env` makes one). Without it they say that they were skipped, or
//! fail where `DDP_DOCTOR_REQUIRE_PYTORCH` is set, as `make test` does.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use ddp_doctor::diagnosis::certificate;
use ddp_doctor_proto::report::{Confidence, Report, Role, Severity, Timestamp};
use serde::Deserialize;

use crate::support::process::{Finished, run_to_end};

/// What is true of a program.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Truth {
    /// Ranks to start.
    pub(crate) nproc: u32,
    /// Nothing is wrong with it.
    #[serde(default)]
    pub(crate) healthy: bool,
    /// The initiating finding.
    pub(crate) code: Option<String>,
    /// The one it becomes with more evidence than this version collects.
    or_code: Option<String>,
    pub(crate) root: Option<Vec<u32>>,
    root_confidence: Option<String>,
    cause: Option<String>,
    /// Words of its summary.
    says: Option<String>,
    /// Words of its summary with a number above zero at `{}`.
    measures: Option<String>,
    /// Words of one of its reasons.
    why: Option<String>,
    /// It never ends by itself.
    #[serde(default)]
    pub(crate) hang: bool,
    #[serde(default)]
    pub(crate) run_options: Vec<String>,
    /// How it is started; `torchrun` unless said otherwise.
    launcher: Option<String>,
    /// It has a /dev/shm of its own, of that size.
    shared_memory: Option<String>,
    /// It stamps the time of its decisive call.
    decisive: Option<String>,
    /// How long it means to take.
    #[expect(dead_code, reason = "for people who read the programs")]
    seconds: Option<u64>,
}

macro_rules! jobs {
    ($($kind:ident { $($name:ident)* })*) => {
        $(mod $kind {
            $(#[test]
            fn $name() {
                super::check(concat!(stringify!($kind), "/", stringify!($name), ".py"));
            })*
        })*

        /// Jobs that are tested.
        const TESTED: &[&str] = &[$($(concat!(stringify!($kind), "/", stringify!($name), ".py"),)*)*];
    };
}

jobs! {
    faulty {
        aborts aborts_on_its_way_out another_address another_port asleep atexit_barrier
        atexit_barrier_of_the_last buckets_on_a_slow_network checkpoint_not_marked computes_for_ever
        conditional_barrier conditional_barrier_alone ddp_bypassed debug_level_on_one_rank dtype_mismatch
        duplicate_rank early_stop_on_one_rank ends_before_joining evaluation_on_rank_zero
        exception_and_atexit_barrier exception_and_barrier exits_and_barrier fills_its_control_group
        fills_its_shared_memory fork_holds_lock gloo_against_fake gradients_one_by_one grows_with_every_step
        head_skipped_behind_a_hook head_skipped_by_all
        head_skipped_by_alternating_ranks head_skipped_by_one_rank head_skipped_in_the_last_step
        holds_far_more interface_that_is_not_there keeps_its_shared_memory keeps_the_gil killed killed_before_joining
        killed_by_the_kernel late_beyond_the_timeout leak_on_one_rank loader_lock_held_at_fork
        loader_worker_stuck lock_taken_twice long_checkpoint model_in_another_order
        model_of_other_shapes model_with_a_layer_more nan_skipped_early nan_skipped_on_one_rank
        nan_skipped_then_barrier needless_unused_search network_slows_down network_swallows_everything never_joins
        new_group_by_a_subset new_group_by_members_then_by_all new_group_in_another_order
        new_group_on_one_rank new_group_with_other_members no_answer_from_a_server
        no_sync_off_by_one op_mismatch op_mismatch_of_four os_exit os_exit_with_status
        other_version_on_one_rank out_of_memory out_of_memory_caught p2p_across_all_reduce
        p2p_missing_partner p2p_other_size p2p_other_tag p2p_partner_ended p2p_receive_first
        p2p_ring_of_three p2p_send_first port_of_nobody raises_before_joining
        rank_zero_checkpoint ready_twice reduce_op_mismatch root_mismatch shape_mismatch
        stale_build_lock static_graph_changes static_graph_grows stopped straggler_beside_a_hog
        straggler_in_compute straggler_in_input straggler_in_turns straggler_moves
        straggler_stopped_again_and_again swallowed_exception swapped_calls
        three_groups_in_a_cycle two_groups_in_opposite_order two_threads_on_one_group
        uneven_then_barrier uneven_then_exit work_never_waited_for world_size_differs
        world_too_large wrapped_by_one_rank
    }
    healthy {
        aborts aborts_on_its_way_out accumulated_gradients another_address another_port asleep
        asynchronous_groups_in_opposite_order atexit_barrier atexit_barrier_of_the_last
        broadcast_from_two_lines buckets_on_a_slow_network checkpoint_not_marked computes_for_ever conditional_barrier
        conditional_barrier_alone data_loader_workers ddp_bypassed debug_level_on_one_rank
        different_batch_shapes dtype_mismatch duplicate_rank early_stop_on_one_rank
        ends_before_joining ends_without_destroying evaluates_for_long evaluation_on_rank_zero
        exception_and_atexit_barrier exception_and_barrier exits_and_barrier
        fills_its_control_group fills_its_shared_memory first_step_compiles
        fork_holds_lock gather_crosses_barrier gloo_against_fake
        gradients_averaged_by_the_program gradients_one_by_one grows_with_every_step
        head_skipped_behind_a_hook head_skipped_by_all head_skipped_by_alternating_ranks
        head_skipped_by_one_rank head_skipped_in_the_last_step helper_with_its_own_world
        holds_far_more interface_that_is_not_there join_with_uneven_inputs joined_uneven_inputs
        keeps_its_shared_memory keeps_the_gil killed killed_before_joining killed_by_the_kernel late_beyond_the_timeout
        leak_on_one_rank loader_lock_held_at_fork loader_worker_stuck lock_taken_twice logged_exception
        long_checkpoint many_calls_of_a_step model_in_another_order
        model_of_other_shapes model_with_a_layer_more models_wrapped_in_many_ways
        nan_skipped_early nan_skipped_on_one_rank nan_skipped_then_barrier
        needless_unused_search network_slows_down network_swallows_everything never_joins
        new_group_by_a_subset new_group_by_members_then_by_all
        new_group_in_another_order new_group_on_one_rank new_group_with_other_members
        no_answer_from_a_server no_sync_off_by_one op_mismatch op_mismatch_of_four os_exit
        os_exit_with_status other_version_on_one_rank out_of_memory out_of_memory_caught
        own_hook_computes_longer p2p_across_all_reduce p2p_any_source p2p_batch p2p_missing_partner p2p_other_size p2p_other_tag
        p2p_partner_ended p2p_pipeline p2p_receive_first p2p_received_later p2p_ring_of_three
        p2p_send_first port_of_nobody raises_before_joining rank_zero_checkpoint ready_twice
        reduce_op_mismatch root_mismatch second_generation shape_mismatch slow_first_import spawned
        stale_build_lock static_graph_changes static_graph_grows step_tried_again stopped straggler_beside_a_hog
        straggler_in_turns
        subgroups swallowed_exception swapped_calls three_groups_in_a_cycle
        two_groups_in_opposite_order two_losses_of_one_forward two_threads_on_one_group
        uneven_evaluation uneven_now_and_then uneven_then_barrier uneven_then_exit
        work_never_waited_for work_waited_later world_size_differs world_too_large
        wrapped_by_one_rank
    }
}

#[test]
fn every_job_is_tested() {
    for kind in ["faulty", "healthy"] {
        for entry in fs::read_dir(jobs().join(kind)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let tested = TESTED.contains(&format!("{kind}/{name}").as_str());
            assert!(
                tested || !name.ends_with(".py"),
                "{kind}/{name} is not tested"
            );
        }
    }
}

pub(crate) fn jobs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/jobs")
}

/// The environment with PyTorch, if there is one.
pub(crate) fn venv() -> Option<&'static Path> {
    static VENV: OnceLock<Option<PathBuf>> = OnceLock::new();
    VENV.get_or_init(|| {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/pytorch-env");
        let found = Command::new(script).arg("--find").output().unwrap();
        if found.status.success() {
            return Some(PathBuf::from(
                String::from_utf8(found.stdout).unwrap().trim(),
            ));
        }
        let needed = std::env::var_os("DDP_DOCTOR_REQUIRE_PYTORCH").is_some();
        assert!(!needed, "{}", String::from_utf8_lossy(&found.stderr));
        eprintln!("skipped: {}", String::from_utf8_lossy(&found.stderr).trim());
        None
    })
    .as_deref()
}

fn check(name: &str) {
    let Some(venv) = venv() else { return };
    let program = jobs().join(name);
    let text = fs::read_to_string(&program).unwrap();
    let truth = truth(&text, "# ");
    if truth.shared_memory.is_some() && !can_have_shared_memory() {
        eprintln!("{name}: SKIPPED: no file system can be mounted here");
        return;
    }
    let (scratch, finished) = (0..3)
        .map(|_| run(venv, &program, &truth))
        .find(|(_, finished)| !(truth.healthy && aborted_at_its_end(finished)))
        .unwrap_or_else(|| panic!("{name} aborts on its way out every time"));
    if let Some(why) = finished
        .stdout
        .lines()
        .find(|it| it.starts_with("SKIPPED: "))
    {
        // What it is about cannot be had on this machine.
        eprintln!("{name}: {why}");
        return;
    }
    let report = fs::read_to_string(scratch.path().join("report.json"));
    let report = report.unwrap_or_else(|e| panic!("{name}: no report: {e}\n{finished}"));
    let report: Report = serde_json::from_str(&report).unwrap();

    if truth.healthy {
        silent(name, &finished, &report);
    } else {
        found(name, &text, &truth, &finished, &report);
        shown_at_once(name, &report, &scratch.path().join("run"));
        latency(name, &truth, &report, scratch.path());
    }
    assert!(
        report.ranks.len() == truth.nproc as usize || truth.launcher.is_some(),
        "{report:#?}"
    );
    crate::postmortem::is_as_live(&scratch.path().join("run"));
}

/// Whether a thread of Gloo's wanted the interpreter's lock when the interpreter was going away, which
/// PyTorch answers by an abort, with us and without us, now and then on a busy machine.
pub(crate) fn aborted_at_its_end(finished: &Finished) -> bool {
    finished
        .stderr
        .contains("terminate called without an active exception")
}

/// Runs a job under `ddp-doctor run` in a folder of its own.
fn run(venv: &Path, program: &Path, truth: &Truth) -> (tempfile::TempDir, Finished) {
    run_in(venv, program, truth, &[])
}

/// The same with these variables.
pub(crate) fn run_in(
    venv: &Path,
    program: &Path,
    truth: &Truth,
    environment: &[(&str, &str)],
) -> (tempfile::TempDir, Finished) {
    let scratch = tempfile::tempdir().unwrap();
    let program_of_ours = env!("CARGO_BIN_EXE_ddp-doctor");
    let mut command = match &truth.shared_memory {
        Some(size) => with_shared_memory(size, program_of_ours),
        None => Command::new(program_of_ours),
    };
    command
        .current_dir(scratch.path())
        .arg("run")
        .args(["--run-dir", "run"]);
    // A job that ends by itself is given the time to.
    let patience = if truth.hang { "1" } else { "60" };
    command.args([
        "--report",
        "report.json",
        "--on-hang",
        "kill",
        "--kill-after",
        patience,
    ]);
    command.args(&truth.run_options);
    match truth.launcher.as_deref() {
        Some(launcher) => command.args(["--", launcher]),
        None => command.arg("--nproc-per-node").arg(truth.nproc.to_string()),
    };
    command.arg(program);
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{}:{path}", venv.join("bin").display()));
    command.env("DDP_DOCTOR_TEST_STAMP", scratch.path().join("stamp"));
    command.env("OMP_NUM_THREADS", "1");
    command.envs(environment.iter().copied());
    let finished = run_to_end(command);
    (scratch, finished)
}

/// A program with a /dev/shm of that size, which nobody else sees.
fn with_shared_memory(size: &str, program: &str) -> Command {
    let mount = format!("mount -t tmpfs -o size={size} tmpfs /dev/shm && exec \"$0\" \"$@\"");
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &mount, program]);
    command
}

/// Whether one can be had here.
fn can_have_shared_memory() -> bool {
    let ended = with_shared_memory("1m", "true").output();
    ended.is_ok_and(|ended| ended.status.success())
}

/// A healthy job ends as without us and hears nothing but the lines of start and end.
pub(crate) fn silent(name: &str, finished: &Finished, report: &Report) {
    assert_eq!(finished.status, Some(0), "{name}\n{finished}");
    assert_eq!(report.verdict.as_str(), "healthy", "{name}: {report:#?}");
    assert!(report.findings.is_empty(), "{name}: {report:#?}");
    let ours: Vec<&str> = finished
        .stderr
        .lines()
        .filter(|l| l.contains("ddp-doctor"))
        .collect();
    assert_eq!(ours.len(), 2, "{name}: {ours:#?}\n{finished}");
    assert!(
        !finished.stderr.contains("[DD") && !finished.stdout.contains("DD"),
        "{finished}"
    );
    assert!(
        report.evidence.records > 0 && report.evidence.records_lost == 0,
        "{report:#?}"
    );
}

/// A planted fault gives its finding: code, culprits, lines, on the terminal and in the report.
pub(crate) fn found(name: &str, text: &str, truth: &Truth, finished: &Finished, report: &Report) {
    let show = || format!("{name}\n{report:#?}\n{finished}");
    let killed = finished.status == Some(75);
    assert_eq!(
        killed,
        truth.hang,
        "status {:?}\n{}",
        finished.status,
        show()
    );
    let initiating: Vec<_> = report
        .findings
        .iter()
        .filter(|finding| finding.role == Role::Initiating)
        .collect();
    let [finding] = initiating[..] else {
        panic!("not one initiating finding\n{}", show())
    };
    let code = truth.code.as_ref().unwrap();
    assert!(
        finding.code == *code || truth.or_code.as_ref() == Some(&finding.code),
        "{} instead of {code}\n{}",
        finding.code,
        show()
    );
    assert_eq!(Some(&finding.ranks.root), truth.root.as_ref(), "{}", show());
    if let Some(confidence) = &truth.root_confidence {
        assert_eq!(
            finding.ranks.root_confidence.as_str(),
            confidence,
            "{}",
            show()
        );
    }
    if let Some(cause) = &truth.cause {
        let is = finding.cause.map(|cause| cause.kind.as_str());
        assert_eq!(is, Some(cause.as_str()), "{}", show());
    }
    if let Some(says) = &truth.says {
        assert!(finding.summary.contains(says), "{}", show());
    }
    if let Some(words) = &truth.measures {
        let (before, after) = words.split_once("{}").unwrap();
        let begins = finding.summary.split_once(before);
        let number = begins.and_then(|(_, rest)| rest.split_once(after));
        let number = number.and_then(|(number, _)| number.parse::<f64>().ok());
        assert!(number.is_some_and(|it| it > 0.0), "{}", show());
    }
    if let Some(why) = &truth.why {
        let is = |reason: &String| reason.contains(why);
        assert!(finding.why.iter().any(is), "{}", show());
    }
    // Those stand in the report alone.
    let is_note = finding.severity == Severity::Note;
    for (rank, line) in marked_lines(text) {
        let call = finding.per_rank.iter().find(|call| call.rank == rank);
        let place = call.and_then(|call| call.place.as_ref());
        let place = place.unwrap_or_else(|| panic!("no line of rank {rank}\n{}", show()));
        assert!(
            place.file.ends_with(name),
            "rank {rank}: {place:?}\n{}",
            show()
        );
        assert_eq!(place.line, line, "line of rank {rank}\n{}", show());
        let file = name.rsplit('/').next().unwrap();
        assert!(
            is_note || finished.stderr.contains(&format!("{file}:{line}")),
            "{}",
            show()
        );
    }
    match (&finding.certificate, finding.confidence) {
        (Some(proof), Confidence::Proved) => certificate::check(proof).unwrap(),
        (None, Confidence::Supported | Confidence::Suspected) => {}
        _ => panic!("certificate and confidence do not go together\n{}", show()),
    }
    assert!(
        is_note != finished.stderr.contains(&format!("[{}]", finding.code)),
        "{}",
        show()
    );
}

/// Whoever opens the dashboard on it sees on the first screen, without a key, what it is and who.
fn shown_at_once(name: &str, report: &Report, run_dir: &Path) {
    let mut watch = Command::new(env!("CARGO_BIN_EXE_ddp-doctor"));
    watch.args(["watch", "--once"]).arg(run_dir);
    watch.env("COLUMNS", "80").env("LINES", "24");
    let shown = run_to_end(watch);
    let finding = &report.findings[0];
    let screen: Vec<&str> = shown.stdout.split_whitespace().collect();
    let summary = screen.join(" ").to_lowercase();
    let begins: Vec<&str> = finding.summary.split_whitespace().take(8).collect();
    assert!(
        summary.contains(&begins.join(" ").to_lowercase())
            && shown.stdout.contains(&finding.code.to_string())
            && shown.stdout.lines().count() <= 24,
        "{name}: the first screen does not begin with {begins:?}\n{shown}"
    );
}

/// Prints how long after its decisive call the fault was found, by the program's own stamp.
fn latency(name: &str, truth: &Truth, report: &Report, scratch: &Path) {
    if truth.decisive.is_none() {
        return;
    }
    let stamps = (0..truth.nproc).filter_map(|rank| {
        let text = fs::read_to_string(scratch.join(format!("stamp.{rank}"))).ok()?;
        text.trim().parse().ok().map(Timestamp)
    });
    let decisive = stamps
        .max()
        .unwrap_or_else(|| panic!("{name} left no stamp"));
    let finding = &report.findings[0];
    println!(
        "latency {name}: {} {} ms after the decisive call ({} ms by its own account)",
        finding.code,
        finding.detected_at.since(decisive).as_millis(),
        finding.latency_ms
    );
}

/// The TOML at the head of a program, each line of which begins with these characters.
pub(crate) fn truth(text: &str, comment: &str) -> Truth {
    let head = text.lines().filter_map(|line| line.strip_prefix(comment));
    let toml: String = head
        .skip_while(|line| *line != "/// truth")
        .skip(1)
        .take_while(|line| *line != "///")
        .map(|line| format!("{line}\n"))
        .collect();
    toml::from_str(&toml).unwrap()
}

/// Lines marked `# HERE rank 0 2`, by rank.
fn marked_lines(text: &str) -> BTreeMap<u32, u32> {
    let mut marked = BTreeMap::new();
    for (i, line) in text.lines().enumerate() {
        if let Some((_, ranks)) = line.split_once("# HERE rank ") {
            let ranks = ranks
                .split_whitespace()
                .map(|rank| rank.parse::<u32>().unwrap());
            marked.extend(ranks.map(|rank| (rank, i as u32 + 1)));
        }
    }
    marked
}
