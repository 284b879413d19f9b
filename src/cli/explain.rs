//! `ddp-doctor explain`

use std::io::{self, IsTerminal};

use anyhow::bail;
use clap::Args;

use super::Global;
use crate::report::explain;

/// Say what a finding means, how it looks, what leads to it and what to change.
///
/// Without a code, lists all of them.
#[derive(Debug, Args)]
pub(super) struct Explain {
    /// Code or name of the finding, as DD102 or early-exit
    code: Option<String>,
}

impl Explain {
    pub(super) fn run(self, global: &Global) -> anyhow::Result<u8> {
        let style = global.style(io::stdout().is_terminal());
        let mut out = io::stdout().lock();
        let Some(asked) = self.code else {
            explain::list(&mut out, style)?;
            return Ok(0);
        };
        match explain::find(&asked) {
            Ok(code) => explain::one(&mut out, code, style)?,
            Err(near) => {
                let near: Vec<String> = near
                    .iter()
                    .map(|code| format!("{} {}", code.code, code.name))
                    .collect();
                // The argument may have any length.
                let asked: String = asked.chars().take(40).collect();
                bail!(
                    "there is no finding {asked:?}; near it: {}. `ddp-doctor explain` lists all",
                    near.join(", ")
                );
            }
        }
        Ok(0)
    }
}
