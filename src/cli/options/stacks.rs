//! The option that states when to capture stacks.

use clap::ValueEnum;

use crate::node::stack_reader::stack_sampler::When;

/// When to capture stacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(in super::super) enum Stacks {
    /// Do not capture stacks
    Never,
    /// When a rank waits unusually long, and on request (`ddp-doctor dump`, `watch`)
    Stall,
    /// On request only (`ddp-doctor dump`, `watch`)
    Ask,
}

impl From<Stacks> for When {
    fn from(stacks: Stacks) -> Self {
        match stacks {
            Stacks::Never => Self::Never,
            Stacks::Stall => Self::Stall,
            Stacks::Ask => Self::OnRequest,
        }
    }
}
