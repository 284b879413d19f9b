//! `ddp-doctor explain`

use std::io::{self, IsTerminal};

use anyhow::bail;
use clap::Args;

use super::options::Global;
use super::output::output;
use crate::report::explain;

/// Explain a finding: meaning, example, causes and fixes.
///
/// Without CODE, lists all findings.
#[derive(Debug, Args)]
pub(super) struct Explain {
    /// Code or name of the finding, such as DD102 or early-exit
    code: Option<String>,
}

impl Explain {
    pub(super) fn run(self, global: &Global) -> anyhow::Result<u8> {
        let style = global.style(io::stdout().is_terminal());
        let mut out = output();
        let Some(asked) = self.code else {
            explain::list(&mut out, style)?;
            return Ok(0);
        };
        match explain::find(&asked) {
            Ok(code) => explain::one(&mut out, code, style)?,
            Err(near) => {
                let near: Vec<String> =
                    near.iter().map(|code| format!("{} {}", code.code, code.name)).collect();
                // The argument may be of any length.
                let asked: String = asked.chars().take(40).collect();
                bail!(
                    "unknown finding {asked:?}; similar: {}. `ddp-doctor explain` lists all findings",
                    near.join(", ")
                );
            }
        }
        Ok(0)
    }
}
