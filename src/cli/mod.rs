//! The command line: parses arguments, runs a command and returns its exit status.

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::Resettable;
use clap::error::{ContextKind, ContextValue};
use clap::{ArgAction, Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};

use crate::report::live::Verbosity;
use crate::report::text::Style;
use crate::transport::Credentials;

mod analyze;
mod check;
mod coordinator;
mod demo;
mod dump;
mod explain;
mod export;
mod fail_on;
mod monitoring;
mod output;
mod reporter;
mod run;
mod status;
mod target;
mod viewing;
mod watch;

/// Exit status of a usage error.
const USAGE: u8 = 2;
/// Exit status if a finding is at or above the severity given by `--fail-on`.
const FOUND: u8 = 1;
/// Exit status of a command that failed.
const FAILED: u8 = 3;
/// Exit status if the evidence is insufficient for a verdict.
const INSUFFICIENT: u8 = 4;

/// Diagnose hangs of distributed PyTorch jobs: which rank, which call, which line, why, and what to
/// change.
#[derive(Debug, Parser)]
#[command(name = "ddp-doctor", version, max_term_width = 100, arg_required_else_help = true)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start a job and diagnose its ranks on this node
    Run(run::Run),
    /// Check the nodes before a job starts
    Check(check::Check),
    /// Diagnose jobs of one machine or several until interrupted
    Coordinator(coordinator::Coordinator),
    /// Show a job in the terminal, live or replayed
    Watch(watch::Watch),
    /// Print the state of a job, for scripts and logs
    Status(status::ShowStatus),
    /// Print the current stack of every rank of a running job
    Dump(dump::ShowStacks),
    /// Diagnose a job from the files it left behind
    Analyze(analyze::Analyze),
    /// Write the timeline of a job for other tools
    Export(export::Export),
    /// Explain a finding: meaning, example, causes and fixes
    Explain(explain::Explain),
    /// Run a small job with a planted fault and diagnose it
    Demo(demo::ShowDemo),
    #[command(hide = true)]
    DemoRank(demo::DemoRank),
    /// Follow the ranks of one launch on behalf of a coordinator
    #[command(hide = true)]
    Reporter(reporter::Reporter),
}

/// Options of every command.
#[derive(Clone, Debug, Args)]
struct Global {
    /// When to use colors
    #[arg(
        long,
        global = true,
        value_name = "WHEN",
        default_value = "auto",
        env = "DDP_DOCTOR_COLOR"
    )]
    color: Color,
    /// Print less (-qq: nothing)
    ///
    /// Once: findings and warnings only, without the opening and closing lines.
    #[arg(short, long, global = true, action = ArgAction::Count, env = "DDP_DOCTOR_QUIET")]
    quiet: u8,
    /// Print more: findings of severity note, too
    #[arg(short, long, global = true, action = ArgAction::Count, env = "DDP_DOCTOR_VERBOSE")]
    verbose: u8,
    /// Read the token for other machines from FILE (mode 600) [default: DDP_DOCTOR_TOKEN]
    #[arg(long, global = true, value_name = "FILE", env = "DDP_DOCTOR_TOKEN_FILE")]
    token_file: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Color {
    Auto,
    Always,
    Never,
}

impl Global {
    const fn verbosity(&self) -> Verbosity {
        Verbosity { quiet: self.quiet, verbose: self.verbose }
    }

    /// Where the token is found; a command of a user may ask for it.
    fn credentials(&self) -> Credentials {
        Credentials { file: self.token_file.clone(), can_ask: io::stdin().is_terminal() }
    }

    /// Whether output has colours, given whether it goes to a terminal.
    fn has_color(&self, is_terminal: bool) -> bool {
        let wanted = || std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        match self.color {
            Color::Auto => is_terminal && wanted(),
            Color::Always => true,
            Color::Never => false,
        }
    }

    /// Style of output, given whether it goes to a terminal.
    fn style(&self, is_terminal: bool) -> Style {
        let size = if is_terminal {
            ddp_doctor_dashboard::terminal::size()
        } else {
            Err(io::ErrorKind::Unsupported.into())
        };
        Style {
            color: self.has_color(is_terminal),
            past: false,
            columns: size.ok().map(|(columns, _)| usize::from(columns)),
        }
    }
}

/// Runs the program with the arguments of this process.
#[must_use]
pub fn main() -> ExitCode {
    ExitCode::from(run_with(std::env::args_os()))
}

fn run_with(arguments: impl Iterator<Item = OsString>) -> u8 {
    let arguments: Vec<OsString> = arguments.collect();
    let cli = match parse(&arguments, &mut io::stderr()) {
        Ok(cli) => cli,
        Err(error) => {
            // An error cannot be reported if the terminal rejects output.
            error.print().ok();
            return if error.use_stderr() { USAGE } else { 0 };
        }
    };
    let result = match cli.command {
        Command::Run(run) => Ok(run.run(&cli.global)),
        Command::Check(check) => check.run(&cli.global),
        Command::Coordinator(coordinator) => coordinator.run(&cli.global),
        Command::Watch(watch) => watch.run(&cli.global),
        Command::Status(status) => status.run(&cli.global),
        Command::Dump(dump) => dump.run(&cli.global),
        Command::Analyze(analyze) => analyze.run(&cli.global),
        Command::Export(export) => export.run(&cli.global),
        Command::Explain(explain) => explain.run(&cli.global),
        Command::Demo(demo) => demo.run(&cli.global),
        Command::DemoRank(rank) => rank.run(),
        Command::Reporter(reporter) => reporter.run(&cli.global),
    };
    result.unwrap_or_else(|error| {
        // A closed pipe means that the reader is satisfied.
        let broken_pipe = error
            .downcast_ref::<io::Error>()
            .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe);
        if broken_pipe {
            return 0;
        }
        writeln!(io::stderr(), "ddp-doctor: {error:#}").ok();
        FAILED
    })
}

/// Parses the command line. `run` and `reporter` ignore invalid variables of the environment: the job
/// does not depend on them. Each is reported to `out` in one line.
fn parse(arguments: &[OsString], out: &mut dyn Write) -> Result<Cli, clap::Error> {
    let mut ignored: Vec<(String, clap::Id)> = Vec::new();
    loop {
        let mut command = Cli::command();
        for (name, id) in &ignored {
            let ignore =
                |command: clap::Command| command.mut_arg(id, |it| it.env(Resettable::Reset));
            // An option of all commands belongs to the program.
            command = if command.get_arguments().any(|it| it.get_id() == id) {
                ignore(command)
            } else {
                command.mut_subcommand(name, ignore)
            };
        }
        let parsed = command.clone().try_get_matches_from(arguments);
        let error = match parsed.and_then(|matches| Cli::from_arg_matches(&matches)) {
            Ok(cli) => return Ok(cli),
            Err(error) => error,
        };
        let Some((name, id, variable)) = invalid_variable(&command, arguments, &error) else {
            return Err(error);
        };
        let value = std::env::var_os(&variable).unwrap_or_default();
        let (variable, value) = (variable.display(), value.display());
        writeln!(out, "ddp-doctor: {variable}={value} is ignored: not a valid value").ok();
        if ignored.contains(&(name.clone(), id.clone())) {
            return Err(error);
        }
        ignored.push((name, id));
    }
}

/// The subcommand, id and variable of an option whose value is invalid and came from the environment.
fn invalid_variable(
    command: &clap::Command,
    arguments: &[OsString],
    error: &clap::Error,
) -> Option<(String, clap::Id, OsString)> {
    let lenient = command.clone().ignore_errors(true);
    let matches = lenient.try_get_matches_from(arguments).ok()?;
    let name = matches.subcommand_name()?;
    if !["run", "reporter"].contains(&name) {
        return None;
    }
    let ContextValue::String(option) = error.get(ContextKind::InvalidArg)? else {
        return None;
    };
    let long = option.strip_prefix("--")?.split([' ', '=']).next()?;
    let subcommand = command.find_subcommand(name)?;
    let mut options = subcommand.get_arguments().chain(command.get_arguments());
    let option = options.find(|it| it.get_long() == Some(long))?;
    let given = format!("--{long}");
    let is_given =
        |it: &&OsString| it.to_str().is_some_and(|it| it.split('=').next() == Some(&given));
    let variable = option.get_env()?;
    let mut own = arguments.iter().take_while(|it| *it != "--");
    let is_set = std::env::var_os(variable).is_some() && !own.any(|it| is_given(&it));
    is_set.then(|| (name.to_owned(), option.get_id().clone(), variable.to_owned()))
}

/// Whether standard error is a terminal.
fn stderr_is_terminal() -> bool {
    io::stderr().is_terminal()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn argument_definitions_are_consistent() {
        Cli::command().debug_assert();
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
