//! `ddp-doctor completions` and `ddp-doctor manual`: what a shell and `man` show of the command line.

use std::io::Write;

use anyhow::bail;
use clap::Args;
use clap_complete::Shell;

use super::arguments::command;
use super::output::output;

const PROGRAM: &str = "ddp-doctor";

/// Print the completions for a shell.
#[derive(Debug, Args)]
#[command(
    after_help = "bash:  ddp-doctor completions bash > ~/.local/share/bash-completion/completions/ddp-doctor\n\
                        zsh:   ddp-doctor completions zsh > DIR/_ddp-doctor   (DIR is on $fpath)\n\
                        fish:  ddp-doctor completions fish > ~/.config/fish/completions/ddp-doctor.fish"
)]
pub(super) struct Completions {
    /// Shell to generate completions for
    shell: Shell,
}

impl Completions {
    pub(super) fn run(self) -> anyhow::Result<u8> {
        // The generator panics if it cannot write.
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut command(), PROGRAM, &mut script);
        output().write_all(&script)?;
        Ok(0)
    }
}

/// Print a page of the manual, for `man -l -`.
#[derive(Debug, Args)]
pub(super) struct Manual {
    /// Command of the page, such as run [default: the program's own page]
    command: Option<String>,
}

impl Manual {
    pub(super) fn run(self) -> anyhow::Result<u8> {
        let mut program = command();
        program.build();
        let page = match self.command {
            None => program,
            Some(asked) => {
                let visible = |it: &&clap::Command| !it.is_hide_set() && it.get_name() == asked;
                let Some(command) = program.get_subcommands().find(visible) else {
                    // The argument may be of any length.
                    let asked: String = asked.chars().take(40).collect();
                    bail!("{asked:?} is not a command of ddp-doctor");
                };
                command.clone()
            }
        };
        let mut text = Vec::new();
        let source = concat!("ddp-doctor ", env!("CARGO_PKG_VERSION"));
        clap_mangen::Man::new(page).source(source).render(&mut text)?;
        output().write_all(&text)?;
        Ok(0)
    }
}
