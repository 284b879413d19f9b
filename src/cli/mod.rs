//! The command line: parses arguments, runs a command and returns its exit status.
//!
//! `arguments` parses, with the `options` that commands share. The commands: `jobs` starts jobs or receives their
//! evidence, `view` shows a job, `evidence_files` diagnoses what a job left behind, `explain` prints the text on a
//! finding, and `shell` what shells and `man` show.

use std::ffi::OsString;
use std::io;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use exit_status::{FAILED, USAGE};
use options::Global;

use crate::host::sys;
use output::say;

mod arguments;
mod evidence_files;
mod exit_status;
mod explain;
mod jobs;

mod options;
mod output;
mod shell;
mod view;

/// Version, commit and target. The release procedure names the commit (`scripts/wheels`).
const VERSION: &str = match option_env!("DDP_DOCTOR_BUILD") {
    Some(build) => build,
    None => concat!(env!("CARGO_PKG_VERSION"), " (built from source)"),
};

/// Diagnose hangs of distributed PyTorch jobs: which rank, which call, which line, why, and what to
/// change.
#[derive(Debug, Parser)]
#[command(name = "ddp-doctor", version = VERSION, max_term_width = 100, arg_required_else_help = true)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start a job and diagnose its ranks on this node
    Run(jobs::Run),
    /// Check the nodes before a job starts
    Check(jobs::Check),
    /// Diagnose jobs on one or several machines until interrupted
    Coordinator(jobs::Coordinator),
    /// Show a job in the terminal, live or replayed
    Watch(view::Watch),
    /// Print the state of a job, for scripts and logs
    Status(view::ShowStatus),
    /// Diagnose a job that hangs now and was started without ddp-doctor
    Attach(view::Attach),
    /// Print the current stack of every rank of a running job
    Dump(view::ShowStacks),
    /// Diagnose a job from the files it left behind
    Analyze(evidence_files::Analyze),
    /// Write the timeline of a job for other tools
    Export(evidence_files::Export),
    /// Explain a finding: meaning, example, causes and fixes
    Explain(explain::Explain),
    /// Run a small job with a planted fault and diagnose it
    Demo(jobs::ShowDemo),
    /// Print the completions for a shell
    Completions(shell::Completions),
    /// Print a page of the manual
    #[command(hide = true)]
    Manual(shell::Manual),
    #[command(hide = true)]
    DemoRank(jobs::DemoRank),
    /// Follow the ranks of one launch on behalf of a coordinator
    #[command(hide = true)]
    Reporter(jobs::Reporter),
    /// Answer questions about processes of other users
    #[command(hide = true)]
    ReadProcesses(view::ReadProcesses),
}

/// Runs the program with the arguments of this process.
#[must_use]
pub fn main() -> ExitCode {
    ExitCode::from(run_with(std::env::args_os()))
}

fn run_with(arguments: impl Iterator<Item = OsString>) -> u8 {
    let arguments: Vec<OsString> = arguments.collect();
    let cli = match arguments::parse(&arguments, &mut io::stderr()) {
        Ok(cli) => cli,
        Err(error) => {
            // An error cannot be reported if the terminal rejects output.
            error.print().ok();
            return if error.use_stderr() { USAGE } else { 0 };
        }
    };
    // `run` lifts it again for its job.
    if !matches!(cli.command, Command::Run(_) | Command::Demo(_) | Command::DemoRank(_)) {
        sys::forbid_core_files();
    }
    let result = match cli.command {
        Command::Run(run) => Ok(run.run(&cli.global)),
        Command::Check(check) => check.run(&cli.global),
        Command::Coordinator(coordinator) => coordinator.run(&cli.global),
        Command::Watch(watch) => watch.run(&cli.global),
        Command::Status(status) => status.run(&cli.global),
        Command::Attach(attach) => attach.run(&cli.global),
        Command::Dump(dump) => dump.run(&cli.global),
        Command::Analyze(analyze) => analyze.run(&cli.global),
        Command::Export(export) => export.run(&cli.global),
        Command::Explain(explain) => explain.run(&cli.global),
        Command::Demo(demo) => demo.run(&cli.global),
        Command::Completions(completions) => completions.run(),
        Command::Manual(manual) => manual.run(),
        Command::DemoRank(rank) => rank.run(),
        Command::Reporter(reporter) => reporter.run(),
        Command::ReadProcesses(read) => read.run(),
    };
    result.unwrap_or_else(|error| {
        // A closed pipe means that the reader is satisfied.
        let broken_pipe = error
            .downcast_ref::<io::Error>()
            .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe);
        if broken_pipe {
            return 0;
        }
        say(format_args!("{error:#}"));
        FAILED
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn argument_definitions_are_consistent() {
        arguments::command().debug_assert();
    }

    #[test]
    fn help_names_the_options_that_act() {
        let help = |name: &str| {
            let mut program = arguments::command();
            program.build();
            let command = program.find_subcommand_mut(name).unwrap();
            command.render_long_help().to_string()
        };
        for (name, acts) in [
            ("run", [true; 4]),
            ("watch", [true, true, false, true]),
            ("analyze", [true, true, true, false]),
            ("explain", [true, false, false, false]),
            ("completions", [false; 4]),
        ] {
            let options = ["--color", "--quiet", "--verbose", "--token-file"];
            assert_eq!(options.map(|it| help(name).contains(it)), acts, "{name}");
        }
        assert!(
            run_with(["ddp-doctor", "-q", "explain", "DD101"].map(Into::into).into_iter()) == 0
        );
    }

    /// Where this program does not start, the package finds the job in the command line of `run`.
    #[test]
    fn package_knows_the_options_of_run_that_take_a_value() {
        let package = include_str!("../../agent/python/ddp_doctor/_job_alone.py");
        let table = package.split("\"\"\"").nth(3).unwrap();
        let known: Vec<&str> = table.split_whitespace().collect();
        let program = Cli::command();
        let run = program.find_subcommand("run").unwrap();
        let options = run.get_arguments().chain(program.get_arguments());
        let mut wanted: Vec<String> = options
            .filter(|it| it.get_action().takes_values())
            .flat_map(|it| it.get_all_aliases().into_iter().flatten().chain(it.get_long()))
            .map(|long| format!("--{long}"))
            .collect();
        wanted.sort_unstable();
        assert_eq!(known, wanted);
    }

    #[test]
    fn every_long_option_has_a_variable() {
        let mut commands = vec![Cli::command()];
        let mut seen = 0;
        while let Some(command) = commands.pop() {
            commands.extend(command.get_subcommands().cloned());
            for argument in command.get_arguments() {
                let Some(long) = argument.get_long() else {
                    continue;
                };
                if ["help", "version"].contains(&long) {
                    continue;
                }
                let wanted = format!("DDP_DOCTOR_{}", long.to_uppercase().replace('-', "_"));
                let variable = argument.get_env().map(|name| name.to_string_lossy().into_owned());
                assert_eq!(variable, Some(wanted), "{}", command.get_name());
                seen += 1;
            }
        }
        assert!(seen > 15, "{seen} options");
    }
}
