//! One integration binary.
//!
//! * `scenarios`: the engine on evidence written down by hand, one file each.
//! * `run`: the command `run` as a shell sees it, on real processes.
//! * `framework`: that a scenario which expects the wrong thing fails, and says why.
#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot go on has failed, and may say why"
)]

mod framework;
mod run;
mod scenarios;
mod support;
