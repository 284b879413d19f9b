//! Parses the command line and the variables of the environment.

use std::ffi::OsString;
use std::io::Write;

use clap::builder::Resettable;
use clap::error::{ContextKind, ContextValue};
use clap::{CommandFactory, FromArgMatches};
use ddp_doctor_proto::words::{is_hidden, plain};

use super::Cli;

/// Options of the program, and the commands in which they have no effect: their help leaves them out.
const WITHOUT_EFFECT: [(&str, &[&str]); 3] = [
    ("color", &["export", "completions", "manual"]),
    ("quiet", &["dump", "explain", "completions", "manual"]),
    (
        "verbose",
        &["check", "watch", "status", "dump", "export", "explain", "completions", "manual"],
    ),
];

/// The command line that is accepted.
pub(super) fn command() -> clap::Command {
    let mut command = Cli::command();
    for (id, commands) in WITHOUT_EFFECT {
        let Some(option) = command.get_arguments().find(|it| it.get_id() == id) else { continue };
        let hidden = option.clone().global(false).hide(true);
        for name in commands {
            command = command.mut_subcommand(name, |it| it.arg(hidden.clone()));
        }
    }
    command
}

/// Parses the command line. `run` and `reporter` ignore invalid variables of the environment: the job
/// does not depend on them. Each is reported to `out` in one line.
pub(super) fn parse(arguments: &[OsString], out: &mut dyn Write) -> Result<Cli, clap::Error> {
    let mut ignored: Vec<(String, clap::Id)> = Vec::new();
    loop {
        let mut command = command();
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
        let Some((name, id, variable, is_secret)) = invalid_variable(&command, arguments, &error)
        else {
            return Err(inert(without_secrets(error)));
        };
        let current = std::env::var_os(&variable).unwrap_or_default();
        let value = if is_secret {
            String::new()
        } else {
            format!("={}", plain(&current.to_string_lossy()))
        };
        let variable = variable.display();
        writeln!(out, "ddp-doctor: {variable}{value} is ignored: not a valid value").ok();
        if ignored.contains(&(name.clone(), id.clone())) {
            return Err(inert(without_secrets(error)));
        }
        ignored.push((name, id));
    }
}

/// An error whose words from the command line control no terminal and begin no line: a wildcard leads to names of files that
/// others chose.
fn inert(mut error: clap::Error) -> clap::Error {
    let words = |value: &ContextValue| match value {
        ContextValue::String(text) => vec![text.clone()],
        ContextValue::Strings(all) => all.clone(),
        _ => Vec::new(),
    };
    if !error.context().any(|(_, value)| words(value).iter().any(|it| it.contains(is_hidden))) {
        return error;
    }
    let cleaned: Vec<(ContextKind, ContextValue)> = error
        .context()
        .map(|(kind, value)| {
            let value = match value {
                ContextValue::String(text) => ContextValue::String(plain(text)),
                ContextValue::Strings(all) => {
                    ContextValue::Strings(all.iter().map(|it| plain(it)).collect())
                }
                // Advice that quotes such a word.
                ContextValue::StyledStr(_) | ContextValue::StyledStrs(_)
                    if kind != ContextKind::Usage =>
                {
                    ContextValue::None
                }
                other => other.clone(),
            };
            (kind, value)
        })
        .collect();
    for (kind, value) in cleaned {
        error.insert(kind, value);
    }
    error
}

/// Removes the value from an error about an option whose value may be a secret: one that hides the value of
/// its variable in the help.
fn without_secrets(mut error: clap::Error) -> clap::Error {
    let option = error.get(ContextKind::InvalidArg).map(ToString::to_string).unwrap_or_default();
    let is_secret = |it: &clap::Arg| {
        let long = it.get_long().map(|long| format!("--{long}"));
        it.is_hide_env_values_set() && long.as_deref() == option.split([' ', '=']).next()
    };
    let command = command();
    let mut options = command.get_subcommands().flat_map(clap::Command::get_arguments);
    if options.any(is_secret) {
        error.insert(ContextKind::InvalidValue, ContextValue::String("(not shown)".into()));
    }
    error
}

/// An option whose value is invalid and came from the environment: its subcommand, id and variable, and
/// whether the value may be a secret.
fn invalid_variable(
    command: &clap::Command,
    arguments: &[OsString],
    error: &clap::Error,
) -> Option<(String, clap::Id, OsString, bool)> {
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
    let is_secret = option.is_hide_env_values_set();
    is_set.then(|| (name.to_owned(), option.get_id().clone(), variable.to_owned(), is_secret))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_an_error_control_no_terminal_and_begin_no_line() {
        for word in ["--\u{1b}]0;owned\u{7}", "--a\n::error::forged", "--\u{1b}[31mformat"] {
            let arguments: Vec<OsString> = ["ddp-doctor", "analyze", word].map(Into::into).into();
            let error = parse(&arguments, &mut Vec::new()).err().unwrap();
            let said = error.render().ansi().to_string();
            assert!(!said.contains("\u{1b}]0") && !said.contains('\u{7}'), "{said:?}");
            assert!(!said.contains("\n::error") && !said.contains("\u{1b}[31mformat"), "{said:?}");
        }
    }
}
