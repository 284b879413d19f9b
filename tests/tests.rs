//! The integration tests, one binary.
//!
//! * `check`: `ddp-doctor check` on one host and on several, healthy and with one fault at a time.
//! * `copied`: the program without its Python package and libraries.
//! * `digests`: jobs whose coordinator asks for digests instead of records.
//! * `dump_files`: `analyze` on dumps by their names, damage and times.
//! * `dump_folders`: `analyze` on dumps of several folders.
//! * `dump_waits`: `analyze` on dumps of ranks that wait for each other.
//! * `dumps`: `analyze` on Flight Recorder dumps.
//! * `framework`: a scenario with a wrong expectation fails with the difference.
//! * `hostile`: peers with the token that send too much or what is not true, or read nothing.
//! * `fuzz`: mutated evidence of every kind.
//! * `gpu`: jobs over NCCL on a real GPU, replayed.
//! * `hosts`: jobs on several hosts, which are network namespaces.
//! * `launchers`: ways to start a job, and failures between `run` and the job.
//! * `linking`: programs that link the agent, under `run` and with a standing coordinator.
//! * `logs`: `analyze` on plain logs and stacks as text.
//! * `lost_coordinator`: the diagnosis continues when the coordinator is lost.
//! * `monitoring`: metrics, scraped by Prometheus, and messages to a webhook.
//! * `mixed`: dumps, logs and recordings of one job.
//! * `namesakes`: jobs of one name at a coordinator, and a coordinator of another version.
//! * `nccl`: programs that call NCCL directly, against doubles of NCCL and of the CUDA driver.
//! * `operations`: jobs under Slurm and Ray by the recipes of the documentation, and Kubernetes manifests.
//! * `oracle`: random programs whose true faults are known independently of the engine.
//! * `packaging`: `pip install agent/python` in a fresh environment.
//! * `pages`: `analyze --format html`, `perfetto` and `csv`; the page in a browser.
//! * `postmortem`: `analyze` on complete, partial and damaged evidence.
//! * `recorded`: recorded memory curves of real processes, and their recorder.
//! * `run`: the command `run` from the outside, on real processes.
//! * `scenarios`: the engine on handwritten evidence, one file per scenario.
//! * `schemas`: the formats SARIF and Perfetto against their schemas.
//! * `screens`: the dashboard's screens on terminals of three sizes.
//! * `security`: attacks by other users of the machine and hostile files.
//! * `simulated`: `analyze` on dumps of simulated jobs with a known faulty rank.
//! * `stacks`: stacks of real ranks, captured by `run` and by `dump`.
//! * `streams`: foreign streams at the coordinator, nodes of other versions, and foreign black boxes.
//! * `structure`: allowed dependencies and other invariants of the architecture.
//! * `surroundings`: healthy jobs with few resources, odd paths, other clocks, in namespaces.
//! * `timing`: `DDP_DOCTOR_TIME_SCALE`.
//! * `token`: the token by variable, file and prompt.
//! * `vectors`: the test vectors of PyTorch's analyzer of dumps, with the verdicts of `analyze`.
//! * `watch`: the dashboard on a terminal, beside real jobs.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test that cannot continue has failed and may print why"
)]

mod boxes;
mod check;
mod copied;
mod digests;
#[path = "doubles/harness.rs"]
mod doubles;
mod dump_files;
mod dump_folders;
mod dump_waits;
mod dumps;
mod formats;
mod framework;
mod fuzz;
mod gpu;
mod hostile;
mod hosts;
mod large_jobs;
mod launchers;
mod linking;
mod logs;
mod lost_coordinator;
mod mixed;
mod monitoring;
mod namesakes;
mod nccl;
mod operations;
mod oracle;
mod packaging;
mod pages;
mod postmortem;
mod recorded;
mod run;
mod scenarios;
mod schemas;
mod screens;
mod security;
mod simulated;
mod stacks;
mod streams;
mod structure;
mod support;
mod surroundings;
mod timing;
mod token;
mod vectors;
mod watch;
