//! Options that several commands share.

use std::io::{self, IsTerminal};
use std::path::PathBuf;

use clap::{ArgAction, Args, ValueEnum};

use crate::node::live::Verbosity;
use crate::report::text::Style;
use crate::transport::Credentials;

mod monitoring;
mod sources;
mod stacks;
pub(super) mod values;

pub(super) use monitoring::Monitoring;
pub(super) use sources::Sources;
pub(super) use stacks::Stacks;
pub(super) use values::{address, seconds, size};

/// Options of every command, the last in its help.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Global options", next_display_order = 1000)]
pub(super) struct Global {
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
    pub(super) quiet: u8,
    /// Print more: include findings of severity note
    #[arg(short, long, global = true, action = ArgAction::Count, env = "DDP_DOCTOR_VERBOSE")]
    pub(super) verbose: u8,
}

/// Access to coordinators on other machines.
#[derive(Clone, Debug, Args)]
pub(super) struct Access {
    /// Read the token for other machines from FILE (mode 600) [default: DDP_DOCTOR_TOKEN]
    #[arg(long, value_name = "FILE", env = "DDP_DOCTOR_TOKEN_FILE")]
    token_file: Option<PathBuf>,
}

impl Access {
    /// Where the token is found; a command of a user may ask for it.
    pub(super) fn credentials(&self) -> Credentials {
        Credentials { file: self.token_file.clone(), can_ask: io::stdin().is_terminal() }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Color {
    Auto,
    Always,
    Never,
}

impl Global {
    pub(super) const fn verbosity(&self) -> Verbosity {
        Verbosity { quiet: self.quiet, verbose: self.verbose }
    }

    /// Whether output has colors, given whether it goes to a terminal.
    pub(super) fn has_color(&self, is_terminal: bool) -> bool {
        let wanted = || std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        match self.color {
            Color::Auto => is_terminal && wanted(),
            Color::Always => true,
            Color::Never => false,
        }
    }

    /// Style of output, given whether it goes to a terminal.
    pub(super) fn style(&self, is_terminal: bool) -> Style {
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

/// Whether standard output is a terminal.
pub(super) fn stdout_is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// Whether standard error is a terminal.
pub(super) fn stderr_is_terminal() -> bool {
    io::stderr().is_terminal()
}
